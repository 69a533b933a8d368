"""Objects that pickle parts of themselves into bytes, in ``__getstate__``."""

from __future__ import annotations

import importlib
import io

import pytest
import torch

import modpack
from modpack import PackageExporter, PackageImporter

WRAPPER = """
import io, pickle, torch

class Wrapper:
    def __init__(self, module):
        self.module = module
    def __getstate__(self):
        return {"bytes": self.dumped(self.module)}
    def __setstate__(self, state):
        self.module = self.loaded(state["bytes"])
    def __call__(self, x):
        return self.module(x)

class ByPickle(Wrapper):
    def dumped(self, module): return pickle.dumps(module)
    def loaded(self, data): return pickle.loads(data)

class ByTorch(Wrapper):
    zipped = True
    def dumped(self, module):
        file = io.BytesIO()
        torch.save(module, file, _use_new_zipfile_serialization=self.zipped)
        return file.getvalue()
    def loaded(self, data): return torch.load(io.BytesIO(data), weights_only=False)

class ByOldTorch(ByTorch):
    zipped = False

class Twice(ByPickle):
    def dumped(self, module): return pickle.dumps({"in": pickle.dumps(module)})
    def loaded(self, data): return pickle.loads(pickle.loads(data)["in"])
"""
INNER = """
import torch
class Inner(torch.nn.Module):
    def forward(self, x): return x + 1
"""
KINDS = ("ByPickle", "ByTorch", "ByOldTorch", "Twice")


@pytest.fixture
def wrapped(project):
    project({"wrapping.py": WRAPPER, "inner.py": INNER})
    wrapping, inner = map(importlib.import_module, ("wrapping", "inner"))
    return lambda kind: getattr(wrapping, kind)(inner.Inner())


@pytest.mark.parametrize("kind", KINDS)
def test_save_finds_modules_named_in_nested_pickle(wrapped, kind, tmp_path, clean_python):
    file = tmp_path / "net.modpack"
    with pytest.warns(modpack.ModpackWarning, match="namespace='process'"):
        plan = modpack.save(wrapped(kind), file)
    assert "inner" in plan.modules(modpack.Action.INTERN)
    (note,) = [each for each in plan.notes if each.code == "nested-pickle"]
    assert "inner.Inner" in note.message
    done = clean_python("import modpack; print(modpack.load(path)(1))", path=file)
    assert done.stdout == "2\n"


@pytest.mark.parametrize("kind", KINDS)
def test_private_load_of_nested_pickle_raises_with_hint(wrapped, kind, tmp_path, clean_python):
    file = tmp_path / "net.modpack"
    with pytest.warns(modpack.ModpackWarning):
        modpack.save(wrapped(kind), file)
    code = """
        import modpack
        try: modpack.load(path, namespace="private")
        except modpack.errors.UnpicklingError as failure: print(failure)
        """
    told = clean_python(code, path=file).stdout
    assert "'inner'" in told and "Load the package with namespace='process'" in told


def test_self_tested_package_does_not_warn_of_nested_pickle(wrapped, tmp_path, recwarn):
    file = tmp_path / "net.modpack"
    modpack.save(wrapped("ByPickle"), file, example_inputs=(torch.ones(1),))
    assert PackageImporter(file, namespace="private")._recommended_namespace == "process"
    assert not [each for each in recwarn if "namespace" in str(each.message)]


def test_bytes_naming_only_installed_libraries_are_ignored(tmp_path):
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, file)
    state = {"state": file.getvalue(), "zip": b"PK\x03\x04oops"}
    plan = modpack.save(state, tmp_path / "x.modpack")
    assert not plan.notes
    assert PackageImporter(tmp_path / "x.modpack")._recommended_namespace == "private"


def test_nested_pickle_of_script_class_is_reported(tmp_path, clean_python):
    code = """
        import pickle, warnings, modpack
        class Inner: pass
        with warnings.catch_warnings(record=True) as told:
            modpack.save({"state": pickle.dumps(Inner())}, path)
        print(*[each.message for each in told])
        """
    (tmp_path / "script.py").write_text("")
    told = clean_python(code, path=tmp_path / "x.modpack").stdout
    assert "__main__.Inner" in told and "Move these definitions into a module" in told


def test_exporter_of_several_objects_records_process_namespace(wrapped, tmp_path):
    file = tmp_path / "net.modpack"
    with pytest.warns(modpack.ModpackWarning), PackageExporter(file) as exporter:
        exporter.use_preset("pinned")
        exporter.save_pickle("a", "plain.pkl", {"x": 1})
        exporter.save_pickle("a", "nested.pkl", wrapped("ByPickle"))
    assert PackageImporter(file, namespace="private")._recommended_namespace == "process"
