"""What is known of a package's modules, torch.package's archives included."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch.package import PackageExporter as AncestorsExporter

from modpack.archive.reader import open_archive
from modpack.core.graph import CodeKind, Edge
from modpack.core.plan import UseKind
from modpack.core.rules import UNRECORDED, Action, Owner
from modpack.core.scan import ImportKind
from modpack.errors import ArchiveError, ModpackError
from modpack.report.audit import audit_package
from modpack.report.facts import sources_here
from modpack.report.package_info import read_evidence
from modpack.report.why import why_package

FIXTURES = Path(__file__).parents[3] / "fixtures" / "archives" / "torch_package"

SHOP = {
    "evshop/__init__.py": "",
    "evshop/net.py": """\
        import torch
        from evshop import parts
        from .parts import scale
        import evspy

        class Net(torch.nn.Module):
            class Inner:
                pass

            def forward(self, x):
                evspy.log(x)
                return scale(x)
        """,
    "evshop/parts.py": """\
        import importlib

        def scale(x):
            import json
            return x

        def plugin(name):
            return importlib.import_module(name)
        """,
    "evspy.py": "def log(x): pass",
    "evtool.py": "import evshop.parts",
}


def evidence_of(file, with_uses=False):
    with open_archive(file) as archive:
        return read_evidence(archive, with_uses=with_uses)


def edges(plan):
    return set(plan.graph.edges())


@pytest.fixture
def ancestor(project, tmp_path):
    """An archive of torch.package with an object, a mock, and a module saved by name."""
    project(SHOP)
    import evshop.net

    file = tmp_path / "ancestor.pt"
    with AncestorsExporter(str(file)) as exporter:
        exporter.mock("evspy")
        exporter.intern("ev*.**")
        exporter.extern("**")
        objects = [evshop.net.Net(), evshop.net.Net.Inner()]
        exporter.save_pickle("model", "net.pkl", objects, pickle_protocol=4)
        exporter.save_module("evtool")
    return file


def test_package_of_modpack_has_its_own_plan(made):
    plan = evidence_of(made.file)
    assert {m: d.action for m, d in plan.decisions.items()} == {
        m: d.action for m, d in made.plan.decisions.items()
    }
    assert edges(plan) == edges(made.plan)


def test_torch_package_decisions_are_reconstructed(ancestor):
    plan = evidence_of(ancestor)
    assert plan.modules(Action.MOCK) == ["evspy"]
    assert set(plan.modules(Action.INTERN)) == {
        "evshop",
        "evshop.net",
        "evshop.parts",
        "evtool",
        "_mock",
    }
    assert {"torch", "json", "importlib"} <= set(plan.modules(Action.EXTERN))
    assert {str(decision.rule) for decision in plan.decisions.values()} == {UNRECORDED}
    assert plan.decisions["evshop.parts"].location.file == "evshop/parts.py"
    assert plan.decisions["evshop.parts"].location.kind is CodeKind.SOURCE
    folder = plan.decisions["evshop"].location  # torch.package leaves out its __init__
    assert (folder.kind, folder.is_package) == (CodeKind.NAMESPACE, True)


def test_imports_are_read_from_sources(ancestor):
    found = edges(evidence_of(ancestor))
    assert {
        Edge("evshop.net", "torch", ImportKind.REQUIRED, 1),
        Edge("evshop.net", "evshop", ImportKind.REQUIRED, 2, ("parts",)),
        Edge("evshop.net", "evshop.parts", ImportKind.REQUIRED, 2),
        Edge("evshop.net", "evshop.parts", ImportKind.REQUIRED, 3, ("scale",)),
        Edge("evshop.net", "evspy", ImportKind.REQUIRED, 4),
        Edge("evshop.parts", "json", ImportKind.FUNCTION, 4),
        Edge("evshop.net", "evshop", ImportKind.PARENT),
    } <= found
    assert not any(edge.importer == "evspy" and edge.imported != "_mock" for edge in found)


def pickled(plan):
    """Return the names in saved objects, with their modules."""
    found = [edge for edge in plan.graph.edges() if edge.kind is ImportKind.PICKLE]
    return [(edge.imported, name) for edge in found for name in edge.names]


def test_dependencies_of_saved_objects_are_read_from_pickles(ancestor):
    plan = evidence_of(ancestor)
    assert {
        Edge("<model/net.pkl>", "evshop.net", ImportKind.PICKLE, None, ("Net", "Net.Inner"))
    } <= edges(plan)


def test_chains_begin_at_saved_objects_and_modules(ancestor):
    plan = evidence_of(ancestor)
    assert plan.graph.roots() == ("<model/net.pkl>", "evtool")
    assert plan.why("evspy") == ("<model/net.pkl>", "evshop.net", "evspy")


def test_notes_have_locations(ancestor):
    (note,) = evidence_of(ancestor).notes
    assert (note.code, note.subject) == ("dynamic-import", "evshop.parts")
    assert note.location == "evshop/parts.py:8"


def test_mock_uses_are_found(ancestor):
    (use,) = evidence_of(ancestor, with_uses=True).mock_uses
    assert (use.module, use.name, use.importer, use.line) == ("evspy", "log", "evshop.net", 11)
    assert use.kind is UseKind.FUNCTION_BODY
    assert evidence_of(ancestor).mock_uses == ()


@pytest.mark.parametrize("archives", ["torch-1.9-py3.9", "torch-2.13-py3.11"])
def test_archives_of_old_and_new_torch_give_the_same_plan(archives):
    plan = evidence_of(FIXTURES / archives / "tiny_model.pt")
    assert plan.why("tinynet.layers") == ("<model/model.pkl>", "tinynet.layers")
    assert plan.graph.edges_between("tinynet.net", "tinynet.layers")[-1].names == (
        "Embed",
        "Scale",
    )


def archive_of(path, records):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {".data/version": "6\n", **records}.items():
            file.writestr(zipfile.ZipInfo(f"made/{name}"), content)
    return path


def test_unparsable_source_is_a_note(tmp_path):
    plan = evidence_of(archive_of(tmp_path / "a.pt", {"broken.py": "x = = 1\n"}))
    (note,) = plan.notes
    assert note.code == "source-unparsable"
    assert (note.subject, note.location) == ("broken", "broken.py:1")
    assert plan.graph.roots() == ("broken",)


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


def test_pickles_with_other_names_are_read(tmp_path):
    records = {"model/net": pickle.dumps(torch.nn.ReLU, 4), "model/image": b"\x80\x04\xff\xff"}
    plan = evidence_of(archive_of(tmp_path / "a.pt", records))
    assert pickled(plan) == [("torch.nn.modules.activation", "ReLU")]
    assert plan.graph.roots() == ("<model/net>",)
    assert plan.notes == ()


def test_pickles_are_never_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return exec, ("import antigravity",)

    plan = evidence_of(archive_of(tmp_path / "a.pt", {"m/x.pkl": pickle.dumps(Trap(), 2)}))
    assert pickled(plan) == [("builtins", "exec")]


def test_names_that_are_not_module_paths_are_harmless(tmp_path):
    records = {
        "a b/c*.py": "import os",
        "x/**.py": "",
        "..py": "",
        ".data/extern_modules": "o s\n**\n<model/net.pkl>\n\n\x1b[2J\n",
    }
    plan = evidence_of(archive_of(tmp_path / "a.pt", records))
    assert {"a b.c*", "x.**", "o s", "**"} <= set(plan.decisions)


def test_unreached_import_cycle_becomes_reachable(tmp_path):
    records = {"a.py": "import b", "b.py": "import c", "c.py": "import a", "d.py": "import a"}
    plan = evidence_of(archive_of(tmp_path / "x.pt", records))
    assert plan.graph.roots() == ("d",)
    records = {"a.py": "import b", "b.py": "import a"}
    assert evidence_of(archive_of(tmp_path / "y.pt", records)).graph.roots() == ("a",)


def test_file_that_is_not_a_package_is_rejected(tmp_path):
    (tmp_path / "x.pt").write_text("hello")
    with pytest.raises(ArchiveError):
        evidence_of(tmp_path / "x.pt")


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


def test_sources_of_a_plan_are_read_from_disk(made):
    assert sources_here(made.plan)["reportshop"] == (b"from .till import Till\n", True)
    assert set(sources_here(made.plan)) == {"reportshop", "reportshop.till"}
