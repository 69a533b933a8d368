"""Modules that code imports by another name than their own."""

from __future__ import annotations

import importlib

import pytest

import modpack

FILES = {
    "proj/_vendor/__init__.py": "",
    "proj/_vendor/minilib.py": "calls = []\ndef twice(x):\n    calls.append(x)\n    return x * 2\n",
    "proj/_vendor/bundle/__init__.py": "from . import tools\n",
    "proj/_vendor/bundle/tools.py": "def thrice(x): return x * 3\n",
    "proj/__init__.py": """
        import sys
        from proj._vendor import bundle, minilib
        sys.modules["minilib"] = minilib
        sys.modules["bundle"] = bundle
        sys.modules["bundle.tools"] = bundle.tools
        """,
    "proj/net.py": """
        import torch
        import bundle.tools
        import minilib
        from bundle.tools import thrice
        from minilib import twice
        class Net(torch.nn.Module):
            def forward(self, x):
                from minilib import calls
                assert calls is minilib.calls
                return bundle.tools.thrice(thrice(twice(x))), len(calls)
        """,
}


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_module_imported_by_another_name_is_one_module(project, clean_python, namespace, tmp_path):
    project(FILES)
    net = importlib.import_module("proj.net").Net()
    plan = modpack.save(net, tmp_path / "net.modpack")
    assert {"minilib", "proj._vendor.minilib", "bundle.tools"} <= set(
        plan.modules(modpack.Action.INTERN)
    )
    code = f"""
    import modpack
    with modpack.PackageImporter(file, namespace={namespace!r}) as importer:
        print(importer.load_model("__model__", "model.pkl")(1))
        vendored = importer.import_module("proj._vendor.minilib")
        print(importer.import_module("minilib") is vendored)
    """
    assert clean_python(code, file=tmp_path / "net.modpack").stdout == "(18, 1)\nTrue\n"


def test_object_of_aliased_module_is_saved_again(project, clean_python, tmp_path):
    project(FILES)
    modpack.save(importlib.import_module("proj.net").Net(), tmp_path / "net.modpack")
    loaded = modpack.load(tmp_path / "net.modpack")
    importers = [modpack.importer_of(loaded), modpack.sys_importer]
    modpack.save(loaded, tmp_path / "again.modpack", importer=importers)
    code = "import modpack\nprint(modpack.load(file)(1))"
    assert clean_python(code, file=tmp_path / "again.modpack").stdout == "(18, 1)\n"


def test_alias_of_hermetic_distribution_is_interned_with_it(installed, clean_python, tmp_path):
    installed("proj", {name: text for name, text in FILES.items()})
    net = importlib.import_module("proj.net").Net()
    modpack.save(net, tmp_path / "net.modpack", preset="hermetic")
    code = "import modpack\nprint(modpack.load(file)(1))"
    assert clean_python(code, file=tmp_path / "net.modpack").stdout == "(18, 1)\n"
