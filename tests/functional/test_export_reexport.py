"""Re-exporting objects of a loaded package with the source of their own package."""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from modpack import (
    Importer,
    ObjMismatchError,
    ObjNotFoundError,
    OrderedImporter,
    PackageExporter,
    PackageImporter,
    PackagingError,
    sys_importer,
)
from tests.warm_python import run_python

LIBRARY = {
    "relib/__init__.py": "from relib.version import NAME",
    "relib/version.py": "NAME = '{version}'",
    "relib/net.py": """
        import torch
        from relib import version
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.tensor([{number}.0]))
                self.made_in = __name__
            def which(self):
                return version.NAME
    """,
}


def library(version: str, number: int) -> dict[str, str]:
    return {
        name: text.replace("{version}", version).replace("{number}", str(number))
        for name, text in LIBRARY.items()
    }


def forget_relib() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "relib"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def old(project, tmp_path: Path):
    """An open package with version ONE of a library, of which the host then has version TWO."""
    project(library("ONE", 1))
    target = tmp_path / "one.pt"
    with PackageExporter(target) as exporter:
        exporter.intern("relib.**")
        net = importlib.import_module("relib.net").Net()
        exporter.save_pickle("m", "net.pkl", net)
    forget_relib()
    project(library("TWO", 2))
    with PackageImporter(target) as importer:
        yield importer
    forget_relib()


@pytest.fixture
def host_net(old) -> object:
    """An object of the host's version TWO."""
    return importlib.import_module("relib.net").Net()


IMPORTERS = {
    "package first": lambda old: [old, sys_importer],
    "host first": lambda old: [sys_importer, old],
    "package alone": lambda old: old,
    "package alone in a list": lambda old: [old],
    "nested": lambda old: OrderedImporter(OrderedImporter(sys_importer), OrderedImporter(old)),
}

READ_BACK = """
import modpack
importer = modpack.PackageImporter(target)
net = importer.load_pickle("m", "net.pkl")
print(net.which(), net.weight.item(), importer.get_source("relib.version"))
print(net.made_in, type(net).__module__.endswith("relib.net"))
"""


@pytest.mark.parametrize("host_has_it_loaded", [False, True])
@pytest.mark.parametrize("order", IMPORTERS)
@pytest.mark.parametrize("protocol", [3, 5])
def test_object_of_package_includes_package_source(
    old, tmp_path, order, host_has_it_loaded, protocol
):
    if host_has_it_loaded:
        importlib.import_module("relib.net")
    net = old.load_pickle("m", "net.pkl")
    again = tmp_path / "again.pt"
    with PackageExporter(again, importer=IMPORTERS[order](old)) as exporter:
        exporter.intern("relib.**")
        exporter.save_pickle("m", "net.pkl", net, pickle_protocol=protocol)
    assert exporter.interned_modules() == ["relib", "relib.net", "relib.version"]
    with PackageImporter(again) as importer:
        assert importer.load_pickle("m", "net.pkl").which() == "ONE"
        assert importer.get_source("relib.version") == "NAME = 'ONE'"


def test_reexport_loads_without_either_version(old, tmp_path, clean_python):
    net = old.load_pickle("m", "net.pkl")
    again = tmp_path / "again.pt"
    with PackageExporter(again, importer=[old, sys_importer]) as exporter:
        exporter.intern("relib.**")
        exporter.save_pickle("m", "net.pkl", {"net": net, "alias": net.which, "class": type(net)})
    done = clean_python(
        """
        import modpack
        saved = modpack.PackageImporter(target).load_pickle("m", "net.pkl")
        net = saved["net"]
        print(net.which(), net.weight.item(), saved["alias"](), saved["class"] is type(net))
        """,
        target=again,
    )
    assert done.stdout == "ONE 1.0 ONE True\n"


@pytest.mark.parametrize("order", ["package first", "host first"])
def test_object_of_host_includes_host_source(old, host_net, tmp_path, order):
    old.load_pickle("m", "net.pkl")
    again = tmp_path / "again.pt"
    with PackageExporter(again, importer=IMPORTERS[order](old)) as exporter:
        exporter.intern("relib.**")
        exporter.save_pickle("m", "net.pkl", host_net)
    with PackageImporter(again) as importer:
        assert importer.load_pickle("m", "net.pkl").which() == "TWO"


@pytest.mark.parametrize("importer", [sys_importer, OrderedImporter(sys_importer)])
def test_importer_of_a_loaded_package_is_added(old, host_net, importer):
    target = io.BytesIO()
    with PackageExporter(target, importer=importer) as exporter:
        exporter.intern("relib.**")
        exporter.save_pickle("m", "net.pkl", {"nets": [old.load_pickle("m", "net.pkl")]})
    target.seek(0)
    nets = PackageImporter(target).load_pickle("m", "net.pkl")["nets"]
    assert nets[0].which() == old.load_pickle("m", "net.pkl").which() != host_net.which()


def test_importer_of_a_closed_package_is_not_added(old):
    net = old.load_pickle("m", "net.pkl")
    old.close()
    with pytest.raises(ObjNotFoundError, match="is closed"), PackageExporter(None) as exporter:
        exporter.save_pickle("m", "net.pkl", net)


def test_package_importer_does_not_find_host_version(old, host_net):
    old.load_pickle("m", "net.pkl")
    with pytest.raises(ObjMismatchError), PackageExporter(None, importer=old) as exporter:
        exporter.save_pickle("m", "net.pkl", host_net)


@pytest.mark.parametrize("order", ["package first", "host first"])
def test_two_versions_in_one_package_are_a_clear_mismatch(old, host_net, order):
    net = old.load_pickle("m", "net.pkl")
    exporter = PackageExporter(None, importer=IMPORTERS[order](old))
    exporter.intern("relib.**")
    exporter.save_pickle("m", "old.pkl", net)
    with pytest.raises(ObjMismatchError, match="one version of 'relib'") as failure:
        exporter.save_pickle("m", "new.pkl", host_net)
    assert "sys_importer" in str(failure.value) and old.filename in str(failure.value)


def test_two_versions_in_one_object_are_a_clear_mismatch(old, host_net):
    net = old.load_pickle("m", "net.pkl")
    exporter = PackageExporter(None, importer=[old, sys_importer])
    with pytest.raises(ObjMismatchError, match="one version of 'relib'"):
        exporter.save_pickle("m", "both.pkl", [net, host_net])


@pytest.mark.parametrize("order", ["package first", "host first"])
@pytest.mark.parametrize("of_host", [True, False])
def test_module_by_name_and_object_of_other_version_do_not_mix(old, host_net, order, of_host):
    """A module name refers to the first importer that has the module."""
    obj = host_net if of_host else old.load_pickle("m", "net.pkl")
    exporter = PackageExporter(None, importer=IMPORTERS[order](old))
    exporter.intern("relib.**")
    exporter.save_module("relib.version")
    if of_host == (order == "host first"):
        exporter.save_pickle("m", "net.pkl", obj)
        exporter.close()
    else:
        with pytest.raises(ObjMismatchError, match="one version of 'relib'"):
            exporter.save_pickle("m", "net.pkl", obj)


def test_modules_by_name_come_from_the_first_importer_that_has_them(old, project):
    project({"host_only.py": "from relib.version import NAME"})
    for order, version in (("package first", "ONE"), ("host first", "TWO")):
        buffer = io.BytesIO()
        with PackageExporter(buffer, importer=IMPORTERS[order](old)) as exporter:
            exporter.intern("**")
            exporter.save_module("host_only")
        buffer.seek(0)
        with PackageImporter(buffer) as importer:
            assert version == importer.import_module("host_only").NAME


def test_model_can_be_reexported_repeatedly(old, tmp_path):
    importer, opened = old, []
    for generation in range(3):
        net = importer.load_pickle("m", "net.pkl")
        with torch.no_grad():
            net.weight += 1
        target = tmp_path / f"generation{generation}.pt"
        with PackageExporter(target, importer=[importer, sys_importer]) as exporter:
            exporter.intern("relib.**")
            exporter.save_pickle("m", "net.pkl", net)
        importer = PackageImporter(target)
        opened.append(importer)
    last = importer.load_pickle("m", "net.pkl")
    assert last.weight.item() == 4.0 and last.which() == "ONE"
    for each in opened:
        each.close()


def test_reexport_keeps_mocked_and_extern_by_rule(project, tmp_path):
    project({"bench_a.py": "import bench_b\nclass A: pass", "bench_b.py": "x = 1"})
    target = tmp_path / "a.pt"
    with PackageExporter(target) as exporter:
        exporter.extern("bench_b")
        exporter.intern("bench_a")
        exporter.save_pickle("m", "a.pkl", importlib.import_module("bench_a").A())
    with PackageImporter(target) as importer:
        obj = importer.load_pickle("m", "a.pkl")
        with PackageExporter(None, importer=importer) as exporter:
            exporter.extern("bench_b")
            exporter.intern("bench_a")
            exporter.save_pickle("m", "a.pkl", obj)
    assert "bench_b" in exporter.externed_modules()


class FolderImporter(Importer):
    """A user's importer: runs the modules of a folder, and keeps them out of ``sys.modules``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded: dict[str, ModuleType] = {}

    def import_module(self, module_name: str) -> ModuleType:
        file = self.folder / f"{module_name}.py"
        if module_name not in self.loaded:
            if not file.is_file():
                raise ModuleNotFoundError(f"no {file}", name=module_name)
            spec = importlib.util.spec_from_file_location(module_name, file)
            assert spec is not None and spec.loader is not None
            module = self.loaded[module_name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        return self.loaded[module_name]


@pytest.fixture
def own(tmp_path: Path) -> FolderImporter:
    folder = tmp_path / "of_ones_own"
    folder.mkdir()
    (folder / "own_shop.py").write_text(
        "class Thing:\n    class Label: text = 'cheap'\ndef make(): return Thing()\nimport json"
    )
    return FolderImporter(folder)


def test_users_own_importer_names_objects(own):
    thing = own.import_module("own_shop").Thing
    assert own.get_name(thing.Label) == ("own_shop", "Thing.Label")
    assert OrderedImporter(sys_importer, own).get_name(thing) == ("own_shop", "Thing")
    with pytest.raises(ObjNotFoundError):
        sys_importer.get_name(thing)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_custom_importer_provides_interned_modules(own, protocol):
    shop = own.import_module("own_shop")
    objects = [shop.Thing(), shop.Thing, shop.Thing.Label(), shop.make]
    buffer = io.BytesIO()
    with PackageExporter(buffer, importer=[own, sys_importer]) as exporter:
        exporter.intern("own_shop")
        exporter.save_pickle("m", "thing.pkl", objects, pickle_protocol=protocol)
    assert exporter.interned_modules() == ["own_shop"]
    assert "own_shop" not in sys.modules
    buffer.seek(0)
    with PackageImporter(buffer) as importer:
        thing, kind, label, make = importer.load_pickle("m", "thing.pkl")
        assert type(thing) is kind is type(make()) and type(label) is kind.Label
        assert label.text == "cheap" and kind is not shop.Thing


def test_custom_importer_modules_may_be_extern(own):
    thing = own.import_module("own_shop").Thing()
    with PackageExporter(None, importer=[own, sys_importer]) as exporter:
        exporter.extern("own_shop")
        exporter.save_pickle("m", "thing.pkl", thing)
    assert "own_shop" in exporter.externed_modules()
    exporter = PackageExporter(None, importer=[own, sys_importer])
    exporter.save_pickle("m", "thing.pkl", thing)
    with pytest.raises(PackagingError, match="own_shop"):
        exporter.close()


def test_ordered_importer_combines_errors(old):
    both = OrderedImporter(old, sys_importer)
    assert both.import_module("relib.version").NAME == "ONE"
    assert both.import_module("json") is importlib.import_module("json")
    with pytest.raises(ModuleNotFoundError, match=r"no importer has 'nowhere_at_all'.*sys_imp"):
        both.import_module("nowhere_at_all")
    with pytest.raises(ObjNotFoundError, match="sys_importer"):
        both.get_name(type("Homeless", (), {"__module__": "nowhere_at_all"}))


def test_lambda_of_script_that_uses_a_global_is_saved_again(tmp_path, clean_python):
    train = tmp_path / "train.py"
    train.write_text(
        "import sys, torch, modpack\n"
        "k = 3\n"
        "model = torch.nn.Linear(1, 1)\n"
        "torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)\n"
        "model.register_forward_hook(lambda m, i, o: o * k)\n"
        "modpack.save(model, 'a.modpack')\n"
    )
    done = run_python("train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    code = """
        import modpack, torch
        for old, new in ("a", "b"), ("b", "c"):
            model = modpack.load(folder / f"{old}.modpack")
            importers = [modpack.importer_of(model), modpack.sys_importer]
            modpack.save(model, folder / f"{new}.modpack", importer=importers)
    """
    clean_python(code, folder=tmp_path)
    code = "import modpack, torch; print(modpack.load(path)(torch.ones(1)).item())"
    assert clean_python(code, path=tmp_path / "c.modpack").stdout == "3.0\n"
