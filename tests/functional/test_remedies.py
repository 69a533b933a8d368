"""Hints of errors and notes, and that they work."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import io
import sys
import types

import pytest
import torch

import modpack

NET = """
import torch
class Net(torch.nn.Module):
    def forward(self, x): return x + 1
"""


def test_own_native_extension_suggests_intern_native(project, tmp_path):
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    uses = NET + "    def fast(self): import speedy\n"
    project({f"speedy{suffix}": "", "uses_speedy.py": uses})
    module = importlib.import_module("uses_speedy")
    with pytest.raises(modpack.PackagingError, match=r"intern_native=True.*\n.*speedy"):
        modpack.save(module.Net(), tmp_path / "net.modpack")


@pytest.fixture
def loaded_by_path(project):
    """Return a function that loads a file of a project by its path."""
    root = project({"elsewhere/net.py": NET})

    def load(name: str, before=lambda module: None) -> types.ModuleType:
        spec = importlib.util.spec_from_file_location(name, root / "elsewhere" / "net.py")
        module = importlib.util.module_from_spec(spec)
        before(module)
        spec.loader.exec_module(module)
        return module

    return load


def test_class_of_module_loaded_by_path_has_hint(loaded_by_path, tmp_path, clean_python):
    with pytest.raises(modpack.errors.PicklingError) as caught:
        modpack.save(loaded_by_path("by_path").Net(), tmp_path / "net.modpack")
    assert "sys.modules['by_path'] = module before spec.loader.exec_module" in str(caught.value)
    register = lambda module: sys.modules.__setitem__("by_path", module)  # noqa: E731
    modpack.save(loaded_by_path("by_path", register).Net(), tmp_path / "net.modpack")
    done = clean_python("import modpack; print(modpack.load(p)(1))", p=tmp_path / "net.modpack")
    assert done.stdout == "2\n"


def test_class_of_executed_code_has_hint(tmp_path):
    names = {"__name__": "executed"}
    exec(NET, names)
    with pytest.raises(modpack.errors.PicklingError, match="Write the code into a file"):
        modpack.save(names["Net"](), tmp_path / "net.modpack")


def test_class_of_module_created_by_code_is_rejected(monkeypatch, tmp_path):
    module = types.ModuleType("made_by_code")
    monkeypatch.setitem(sys.modules, "made_by_code", module)
    exec(NET, vars(module))
    with pytest.raises(modpack.PackagingError, match="Write its source to a file"):
        modpack.save(module.Net(), tmp_path / "net.modpack")


BASE = """
import torch
REGISTRY = {}
def register(kind):
    REGISTRY[kind.__name__] = kind
    return kind
class Net(torch.nn.Module):
    def forward(self, x): return REGISTRY["Foo"]()(x)
"""
LAYERS = """
import registry_base, torch
@registry_base.register
class Foo(torch.nn.Module):
    def forward(self, x): return x * 2
"""


@pytest.fixture
def registered(project):
    """Import two modules of which the second fills the registry of the given one."""

    def make(base: str = BASE) -> types.ModuleType:
        project({"registry_base.py": base, "registry_layers.py": LAYERS})
        importlib.import_module("registry_layers")
        return sys.modules["registry_base"]

    return make


def test_registry_that_no_packaged_module_fills_fails_self_test(registered, tmp_path):
    net = registered().Net()
    with pytest.raises(modpack.errors.SelfTestError, match="KeyError: 'Foo'"):
        modpack.save(net, tmp_path / "net.modpack", example_inputs=torch.ones(1))


def test_import_of_module_that_fills_registry_fixes_self_test(registered, tmp_path, clean_python):
    net = registered(BASE + "import registry_layers\n").Net()
    file = tmp_path / "net.modpack"
    modpack.save(net, file)
    assert clean_python("import modpack; print(modpack.load(p)(3))", p=file).stdout == "6\n"


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x).relu()


@pytest.mark.parametrize("make", [lambda p: p.module(), torch.export.unflatten])
def test_module_of_exported_program_has_working_hint(make):
    x = torch.ones(1, 2)
    program = torch.export.export(Scaled(), (x,))
    for obj in (make(program), torch.nn.Sequential(make(program))):
        with pytest.raises(modpack.errors.PicklingError, match=r"Save the ExportedProgram"):
            modpack.save(obj, io.BytesIO())
    file = io.BytesIO()
    modpack.save(program, file)
    file.seek(0)
    assert torch.equal(make(modpack.load(file))(x), make(program)(x))


HOOKS = """
def double(module, args, output): return output * 2
def adding(): return lambda module, args, output: output + 1
"""


@pytest.fixture
def hooked(project, tmp_path):
    """A loaded model of torch's own classes, with packaged hooks."""
    project({"own_hooks.py": HOOKS})
    hooks = importlib.import_module("own_hooks")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.register_forward_hook(hooks.double)
    model[0].register_forward_hook(hooks.adding())
    model[0].register_forward_hook(hooks.double)
    modpack.save(model, tmp_path / "net.modpack")
    return modpack.load(tmp_path / "net.modpack")


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model[0]])
def test_model_of_torch_classes_is_reexported(part, hooked, tmp_path, clean_python):
    model = part(hooked)
    owner = modpack.importer_of(model)
    assert owner is modpack.importer_of(hooked) is not None
    modpack.save(model, tmp_path / "again.modpack", importer=[owner, modpack.sys_importer])
    code = "import modpack, torch; print(modpack.load(p)(torch.ones(2)).tolist())"
    done = clean_python(code, p=tmp_path / "again.modpack")
    assert done.stdout == f"{model(torch.ones(2)).tolist()}\n"


def test_model_that_was_not_loaded_has_no_importer(hooked):
    assert modpack.importer_of(torch.nn.Linear(2, 2)) is None
