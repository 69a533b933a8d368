"""Hidden modules of a self-test, and the import path of its interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import modpack
from modpack.discovery.distributions import DistributionIndex
from modpack.exporting.hidden_modules import build_sys_path, find_hidden_modules
from modpack.selftest.process import HiddenModules


def plan_of(module, **rules):
    with modpack.PackageExporter(None) as exporter:
        for action, patterns in rules.items():
            getattr(exporter, action)(patterns)
        exporter.use_preset("pinned")
        exporter.save_module(module)
        return exporter.plan()


def test_interned_module_is_hidden_with_its_folder(project):
    root = project({"till/__init__.py": "import coins, json, click", "coins.py": ""})
    plan = plan_of("till")
    hidden = find_hidden_modules(plan, DistributionIndex())
    assert hidden.modules == ("coins", "till")
    assert hidden.paths == (str(root / "coins.py"), str(root / "till"))
    assert str(root) not in build_sys_path(plan, hidden)


def test_root_with_extern_module_is_not_hidden(project):
    root = project({"till/__init__.py": "from till import drawer", "till/drawer.py": ""})
    plan = plan_of("till", extern="till.drawer")
    hidden = find_hidden_modules(plan, DistributionIndex())
    assert hidden == HiddenModules()
    assert str(root) in build_sys_path(plan, hidden)


def test_requirements_of_modpack_are_never_hidden(project):
    project({"till.py": "import packaging.version, iniconfig"})
    plan = plan_of("till", intern=["packaging.**", "iniconfig.**"])
    hidden = find_hidden_modules(plan, DistributionIndex())
    assert hidden.modules == ("iniconfig", "till")
    assert hidden.distributions == ("iniconfig",)


def test_path_keeps_folder_with_extern_module(project):
    root = project({"till.py": "import coins", "coins.py": ""})
    plan = plan_of("till", extern="coins")
    hidden = find_hidden_modules(plan, DistributionIndex())
    assert hidden.modules == ("till",)
    assert str(root) in build_sys_path(plan, hidden)


def test_path_excludes_unneeded_working_folder(project, monkeypatch, tmp_path):
    project({"till.py": ""})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    plan = plan_of("till")
    path = build_sys_path(plan, find_hidden_modules(plan, DistributionIndex()))
    assert str(tmp_path) not in path
    assert str(Path(modpack.__file__).parents[1]) in path or "" in sys.path
