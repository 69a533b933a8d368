"""Packages that consist mostly of an unneeded library."""

from __future__ import annotations

import importlib
import random
import warnings
from typing import Any

import pytest

import modpack
from modpack import PackageExporter
from modpack.diagnostics import Diagnostic
from modpack.errors import ModpackWarning

NET = """
    import torch
    from glue import tools

    class Net(torch.nn.Module):
        def forward(self, x):
            return tools.double(x)
"""
TOOLS = """
    import cloud

    def double(x):
        return x * 2 if x is not None else upload(x)

    def upload(x):
        return cloud.client().put(x)
"""
CLOUD = """
    from cloudcore import session

    def client():
        session.check()
        return session.Session()
"""
SESSION = """
    from pathlib import Path

    MODELS = list((Path(__file__).parent / "data").glob("*.bin"))

    class Session:
        pass
"""


@pytest.fixture
def net(installed: Any) -> Any:
    """Return ``net(heavy=6, **sources)``: a model that imports a library with MB of data."""

    def build(heavy: int = 6, **sources: str) -> Any:
        installed("netlib", {"netlib/__init__.py": "", "netlib/net.py": sources.get("net", NET)})
        tools = {"glue/__init__.py": "", "glue/tools.py": sources.get("tools", TOOLS)}
        installed("glue", tools)
        installed("cloud", {"cloud/__init__.py": CLOUD})
        core: dict[str, str | bytes] = {
            "cloudcore/__init__.py": "",
            "cloudcore/session.py": SESSION,
        }
        core.update(
            {f"cloudcore/data/{n}.bin": random.Random(n).randbytes(1_000_000) for n in range(heavy)}
        )
        installed("cloudcore", core)
        return importlib.import_module("netlib.net").Net()

    return build


def heavy_notes(obj: object, **rules: str) -> list[Diagnostic]:
    with warnings.catch_warnings(), PackageExporter(None) as exporter:
        warnings.simplefilter("ignore", ModpackWarning)
        for action, pattern in rules.items():
            getattr(exporter, action)(pattern)
        exporter.use_preset("hermetic")
        exporter.save_pickle("model", "model.pkl", obj)
        notes = exporter.plan().notes
    return [note for note in notes if note.code == "heavy-distribution"]


def test_save_warns_of_heavy_library_with_the_imports_that_lead_to_it(net, tmp_path, clean_python):
    obj, file = net(), tmp_path / "net.modpack"
    with pytest.warns(ModpackWarning, match="cloudcore") as told:
        plan = modpack.save(obj, file, preset="hermetic")
    (note,) = [n for n in plan.notes if n.code == "heavy-distribution"]
    assert note.subject == "cloudcore"
    assert note.location is not None and note.location.endswith("cloud/__init__.py:2")
    assert "100% of the code and data files (6.0 MB of 6.0 MB, uncompressed)" in note.message
    assert "imported through netlib.net -> glue.tools -> cloud -> cloudcore" in note.message
    assert str(note) in str(told[0].message)

    lighter = tmp_path / "lighter.modpack"
    plan = modpack.save(obj, lighter, preset="hermetic", mock="cloud.**")
    assert not [n for n in plan.notes if n.code == "heavy-distribution"]
    assert lighter.stat().st_size < 100_000 < file.stat().st_size
    code = "import modpack, torch; print(modpack.load(path)(torch.ones(1)).item())"
    assert clean_python(code, path=lighter).stdout == "2.0\n"


def test_audit_of_heavy_package_finds_it(net, tmp_path):
    from modpack.report.audit import audit_package

    file = tmp_path / "net.modpack"
    with pytest.warns(ModpackWarning, match="cloudcore"):
        modpack.save(net(), file, preset="hermetic")
    (found,) = [f for f in audit_package(file).findings if f.code == "heavy-distribution"]
    assert (found.subject, found.location) == ("cloudcore", "cloud/__init__.py:2")


@pytest.mark.parametrize("rules", [{"mock": "cloud.**"}, {"intern": "cloudcore.**"}])
def test_library_decided_by_rule_is_not_reported(net, rules):
    assert heavy_notes(net(), **rules) == []


def test_light_library_is_not_reported(net):
    assert heavy_notes(net(heavy=4)) == []


def test_library_of_saved_object_is_not_reported(net):
    net()
    assert heavy_notes(importlib.import_module("cloudcore.session").Session()) == []


def test_heavy_library_smaller_than_own_code_is_not_reported(net, installed):
    obj = net()
    big = {f"netlib/{n}.bin": bytes(1_000_000) for n in range(8)}
    installed("netlib", {"netlib/__init__.py": "", "netlib/net.py": NET, **big})
    assert heavy_notes(obj) == []
