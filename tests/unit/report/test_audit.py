"""Audits of packages: the facts together, from the file alone."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import modpack
from modpack.archive.reader import open_archive
from modpack.core.observations import MockRisk
from modpack.core.rules import Action
from modpack.errors import ArchiveError
from modpack.report.audit import audit_package, judge, parse_gate
from modpack.writing.writer import ArchiveWriter

FIXTURES = Path(__file__).parents[3] / "fixtures" / "archives" / "torch_package"
GRAPH = ".data/modpack/graph.json"

PROJECT = {
    "auditshop/__init__.py": "from .till import Till\n",
    "auditshop/till.py": """\
        import auditdraft
        import auditlib
        import auditspy
        import auditwheel

        class Till(auditspy.Base):
            def ring(self):
                auditspy.log("ring")
        """,
    "auditspy.py": "class Base: pass\n\ndef log(text): pass\n",
    "auditdraft.py": "",
}
LICENSED = "Metadata-Version: 2.4\nName: {0}\nVersion: {1}\nLicense-Expression: {2}\n"


@pytest.fixture
def shop(project, installed):
    """The project, with a distribution that is interned and one that is extern."""
    project(PROJECT)
    for name, version, license in (
        ("auditlib", "2.0", "MIT"),
        ("auditwheel", "3.1", "GPL-3.0-only"),
    ):
        metadata = {"METADATA": LICENSED.format(name, version, license)}
        installed(name, {f"{name}/__init__.py": "x = 1\n"}, version=version, metadata=metadata)
    import auditshop

    return auditshop


def save(shop, exporter):
    exporter.mock("auditspy")
    exporter.intern("auditlib.**")
    exporter.extern("auditdraft")
    exporter.use_preset("pinned")
    exporter.save_pickle("m", "till.pkl", shop.Till())


@pytest.fixture
def package(shop, tmp_path):
    with modpack.PackageExporter(tmp_path / "till.modpack") as exporter:
        save(shop, exporter)
    return tmp_path / "till.modpack"


@pytest.fixture
def audit(package):
    return audit_package(package)


def by_name(audit):
    return {facts.module: facts for facts in audit.modules}


def test_modules_have_decision_rule_distribution_and_license(audit):
    told = {
        name: (facts.action, facts.rule, facts.requirement, facts.license)
        for name, facts in by_name(audit).items()
        if name.startswith("audit")
    }
    pinned = "preset pinned: installed distributions are extern"
    own = "preset pinned: your own code is interned"
    assert told == {
        "auditshop": (Action.INTERN, own, None, None),
        "auditshop.till": (Action.INTERN, own, None, None),
        "auditspy": (Action.MOCK, "mock('auditspy')", None, None),
        "auditlib": (Action.INTERN, "intern('auditlib.**')", "auditlib==2.0", "MIT"),
        "auditwheel": (Action.EXTERN, pinned, "auditwheel==3.1", "GPL-3.0-only"),
        "auditdraft": (Action.EXTERN, "extern('auditdraft')", None, None),
    }


def test_torch_and_standard_library_have_licenses(packaged, tmp_path):
    audit = audit_package(packaged({"m.py": "import json, torch\n"}, extern=["**"]).filename)
    assert by_name(audit)["json"].license == "PSF-2.0"
    assert by_name(audit)["torch"].distribution == "torch"
    assert "BSD" in by_name(audit)["torch"].license


def test_distributions_count_interned_and_extern_modules(audit):
    found = {each.name: each for each in audit.distributions if each.name.startswith("audit")}
    assert list(found) == ["auditlib", "auditwheel"]
    assert (found["auditlib"].interned, found["auditlib"].extern) == (1, 0)
    assert found["auditlib"].size_bytes == len("x = 1\n")
    assert (found["auditwheel"].interned, found["auditwheel"].extern) == (0, 1)
    assert found["auditwheel"].license == "GPL-3.0-only"


def test_mock_has_importers_uses_and_risk(audit):
    (mock,) = audit.mocks
    assert (mock.module, mock.rule, mock.risk) == (
        "auditspy",
        "mock('auditspy')",
        MockRisk.NOT_OBSERVED,
    )
    assert [(i.importer, i.line) for i in mock.importers] == [("auditshop.till", 3)]
    assert [(use.name, use.line) for use in mock.uses] == [("log", 8), ("Base", 6)]


def test_findings_have_code_subject_and_location(audit):
    found = {each.code: each for each in audit.findings}
    assert {"mock-not-observed", "extern-local"} <= set(found)
    assert found["mock-not-observed"].subject == "auditspy"
    assert found["mock-not-observed"].location.endswith("auditshop/till.py:8")
    assert found["extern-local"].subject == "auditdraft"
    assert found["extern-local"].location.endswith("auditshop/till.py:1")


def test_audit_executes_nothing_and_needs_no_torch(package):
    program = (
        "import sys\n"
        "from modpack.report.audit import audit_package\n"
        "audit_package(sys.argv[1])\n"
        "foreign = {'torch', 'rich', 'auditshop', 'auditspy'} & set(sys.modules)\n"
        "assert not foreign, foreign\n"
    )
    subprocess.run([sys.executable, "-c", program, str(package)], check=True)


@pytest.mark.parametrize("archive", sorted(FIXTURES.glob("torch-*/*.pt")), ids=str)
def test_torch_package_archives_are_audited(archive):
    audit = audit_package(archive)
    assert "torch-package-archive" in [each.code for each in audit.findings]
    assert all(facts.rule is None for facts in audit.modules if facts.action is Action.EXTERN)
    assert not [each for each in audit.findings if each.code == "missing-module"]


def rewritten(package, copy, record, content):
    with open_archive(package) as archive, ArchiveWriter(copy) as writer:
        for name in archive.names():
            if not name.startswith(".data/modpack/manifest."):
                writer.write(name, content if name == record else archive.read(name))
        writer.commit()
    return copy


@pytest.mark.parametrize(
    "key, value",
    [
        ("edges", [["a"]]),
        ("uses", [{"module": 3}]),
        ("uses", [["spy", "log", "shop", "seven", "function", "", True, []]]),
        ("distributions", [{"name": []}]),
        ("modules", {"shop": {"action": "eat"}}),
        ("notes", "none"),
    ],
)
def test_forged_graph_raises_archive_error(package, tmp_path, key, value):
    with open_archive(package) as archive:
        document = json.loads(archive.read(GRAPH))
    content = json.dumps({**document, key: value}).encode()
    forged = rewritten(package, tmp_path / "forged.modpack", GRAPH, content)
    with pytest.raises(ArchiveError, match=r"graph\.json"):
        audit_package(forged)


@pytest.mark.parametrize("record", [GRAPH, ".data/modpack/environment.json"])
@pytest.mark.parametrize("odd", [None, -1, "\x1b[2J", [["a"]], {"a": {"b": 1}}], ids=repr)
def test_arbitrary_record_gives_audit_or_archive_error(package, tmp_path, record, odd):
    with open_archive(package) as archive:
        document = json.loads(archive.read(record))
    for key in document:
        content = json.dumps({**document, key: odd}).encode()
        forged = rewritten(package, tmp_path / f"{key}.modpack", record, content)
        with contextlib.suppress(ArchiveError):
            assert judge(audit_package(forged), [parse_gate("info")]).gates[0].fired
