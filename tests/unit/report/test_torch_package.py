"""Reports about archives of torch.package, which record neither rules nor imports."""

from __future__ import annotations

import pickle
import zipfile

import pytest
import torch
from torch.package import PackageExporter as AncestorsExporter

from modpack.core.rules import Action, Owner
from modpack.errors import ModpackError
from modpack.report.audit import audit_package, judge, parse_gate
from modpack.report.package_info import package_facts
from modpack.report.why import why_package

SHOP = {
    "evshop/__init__.py": "",
    "evshop/net.py": """\
        import torch
        import evspy

        class Net(torch.nn.Module):
            def forward(self, x):
                evspy.log(x)
                return x
        """,
    "evspy.py": "def log(x): pass",
}


def archive_of(path, records):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {".data/version": "6\n", **records}.items():
            file.writestr(zipfile.ZipInfo(f"made/{name}"), content)
    return path


@pytest.fixture
def ancestor(project, tmp_path):
    project(SHOP)
    import evshop.net

    file = tmp_path / "ancestor.pt"
    with AncestorsExporter(str(file)) as exporter:
        exporter.mock("evspy")
        exporter.intern("ev*.**")
        exporter.extern("**")
        exporter.save_pickle("model", "net.pkl", evshop.net.Net(), pickle_protocol=4)
    return file


def test_facts_list_modules_by_their_records(ancestor):
    actions = {each.module: each.action for each in package_facts(ancestor).modules}
    assert actions["evshop.net"] is Action.INTERN
    assert actions["evspy"] is Action.MOCK
    assert actions["torch"] is Action.EXTERN


def test_why_shows_the_decision_without_chains(ancestor):
    found = why_package(ancestor, "evspy")
    assert (found.action, found.rule, found.chains) == (Action.MOCK, None, ())


def test_gate_fires_on_a_mock_that_was_not_observed(ancestor):
    audit = judge(audit_package(ancestor), [parse_gate("mock-not-observed")])
    assert not audit.passed
    (finding,) = audit.gates[0].findings
    assert finding.subject == "evspy"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"no pickle at all", id="text"),
        pytest.param(b"\x80\x04\x95", id="cut off"),
        pytest.param(b"\x80\x02h\x07.", id="a memo that was never filled"),
        pytest.param(b"\x80\x04\x93.", id="a name without texts"),
        pytest.param(b"\x80\x04\x8c\x02os\x8c\x01a\x8c\x01bR\x93.", id="a name that is computed"),
        pytest.param(b"cos\n", id="half a global"),
        pytest.param(b"\x80\x02K\x01", id="no end"),
    ],
)
def test_unreadable_pickle_is_an_error_of_the_audit(tmp_path, content):
    audit = audit_package(archive_of(tmp_path / "a.pt", {"model/x.pkl": content}))
    assert [(e.code, e.subject) for e in audit.errors] == [("pickle-malformed", "model/x.pkl")]


def test_pickles_are_never_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return exec, ("import antigravity",)

    audit = audit_package(archive_of(tmp_path / "a.pt", {"m/x.pkl": pickle.dumps(Trap(), 2)}))
    assert [each.code for each in audit.errors] == ["pickle-dangerous-name"]


def test_names_that_are_not_module_paths_are_harmless(tmp_path):
    records = {
        "a b/c*.py": "import os",
        "x/**.py": "",
        "..py": "",
        ".data/extern_modules": "o s\n**\n<model/net.pkl>\n\n\x1b[2J\n",
    }
    audit = audit_package(archive_of(tmp_path / "a.pt", records))
    assert {"a b.c*", "x.**", "o s", "**"} <= {each.module for each in audit.modules}


def test_why_knows_modules_that_no_plan_lists(made):
    assert "mocked modules" in why_package(made.file, "_modpack_mock").rule


@pytest.mark.parametrize("module", ["<model/till.pkl>", "nowhere"])
def test_why_rejects_names_that_the_package_does_not_mention(made, module):
    with pytest.raises(ModpackError, match="neither contains nor imports"):
        why_package(made.file, module)


def test_provider_of_a_module_has_its_version(made):
    import numpy

    found = {name: why_package(made.file, name) for name in (*made.plan.decisions, "reportspy")}
    providers = {name: (w.provided_by, w.distribution, w.version) for name, w in found.items()}
    assert providers["numpy"] == (Owner.INSTALLED, "numpy", numpy.__version__)
    assert providers["torch"] == (Owner.RUNTIME, "torch", torch.__version__)
    assert providers["json"] == (Owner.STDLIB, None, None)
    assert providers["reportspy"] == (None, None, None) == providers["reportshop"]
