"""``modpack audit``: packages, targets, gates, exit status, and JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from modpack.archive.reader import open_archive
from modpack.cli import cli
from modpack.writing.writer import ArchiveWriter

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "reference" / "json"
ARCHIVES = sorted((ROOT / "fixtures" / "archives" / "torch_package").glob("torch-*/*.pt"))
GRAPH = ".data/modpack/graph.json"

FILES = {
    "tillapp/__init__.py": "",
    "tillapp/till.py": """\
        import tillspy
        import tillloose

        class Till(tillspy.Base):
            def ring(self):
                tillspy.log("ring")

        def make():
            return Till()
        """,
    "tillspy.py": "class Base: pass\n\ndef log(text): pass\n",
    "tillloose.py": "",
}
RULES = ("--mock", "tillspy", "--extern", "tillloose")


@pytest.fixture(autouse=True)
def unsized(monkeypatch):
    """Remove the terminal width that a test runner sets."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def work(project, monkeypatch) -> Path:
    """A project folder in which commands run."""
    folder = project(FILES)
    sys.path.remove(str(folder))
    monkeypatch.chdir(folder)
    return folder


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, ["audit", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def package(work) -> Path:
    made = CliRunner().invoke(
        cli, ["export", "tillapp.till:make", "-o", "till.modpack", *RULES, "-q"]
    )
    assert made.exit_code == 0, made.output
    return Path("till.modpack")


def test_audit_lists_findings_mocks_code_and_totals_in_order(package):
    shown = run(package)
    assert shown.exit_code == 0
    order = [
        "extern-local",
        "tillapp/till.py:2: no installed distribution provided extern tillloose",
        "mocked: 1 module",
        "tillspy  not observed  mock('tillspy')",
        "imported by tillapp/till.py:1 (required)",
        "code  runs with all rights",
        "3 interned",
        "1 mocked",
        "passed",
    ]
    positions = [shown.stdout.find(text) for text in order]
    assert -1 not in positions and positions == sorted(positions), shown.stdout


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_audit_reads_torch_package_archives(archive):
    shown = run(archive)
    assert shown.exit_code == 0, shown.output
    assert "torch-package-archive" in shown.stdout


@pytest.mark.parametrize(
    "gates, status",
    [
        ([], 0),
        (["mock-not-observed"], 1),
        (["mock-untouched"], 1),
        (["warning"], 1),
        (["dynamic-import,extern-local"], 1),
        (["dynamic-import", "self-test-missing"], 1),
        (["error,mock-called,dynamic-import,license:GPL*"], 0),
    ],
)
def test_fail_on_fails_audit_with_matching_finding(package, gates, status):
    options = [word for gate in gates for word in ("--fail-on", gate)]
    assert run(package, *options).exit_code == status


def test_audit_shows_gate_with_its_findings(package):
    shown = run(package, "--fail-on", "mock-not-observed,dynamic-import")
    assert "--fail-on mock-not-observed: 1 finding (tillspy)" in shown.stdout
    assert "--fail-on dynamic-import" not in shown.stdout
    assert shown.stdout.endswith("failed: 1 gate fired\n")


def test_fail_on_unknown_code_suggests_closest(package):
    shown = run(package, "--fail-on", "mock-not-observd")
    assert shown.exit_code == 2
    assert "Did you mean 'mock-not-observed'?" in shown.stderr


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["nowhere.modpack"], "nowhere.modpack: the file does not exist"),
        (["tillapp/till.py"], "tillapp/till.py"),
        (["tillapp.till:make"], "tillapp.till:make: the file does not exist"),
        ([], "FILE"),
    ],
)
def test_audit_rejects_invalid_arguments(package, arguments, told):
    shown = run(*arguments)
    assert shown.exit_code == 2
    assert told in shown.stderr
    assert "Traceback" not in shown.output


def test_audit_json_reports_errors_as_json(package):
    shown = run("nowhere.modpack", "--json")
    assert shown.exit_code == 2
    assert "nowhere.modpack" in json.loads(shown.stdout)["error"]["message"]


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_audit_json_follows_schema(package):
    of_audits = validator("audit")
    gates = ("--fail-on", "mock-not-observed,self-test-missing,license:*")
    for arguments in (
        (package, *gates),
        *((archive, *gates) for archive in ARCHIVES),
    ):
        document = json.loads(run(*arguments, "--json").stdout)
        of_audits.validate(document)


def test_audit_json_contains_gates_and_outcome(package):
    document = json.loads(
        run(package, "--json", "--fail-on", "mock-not-observed,self-test-missing").stdout
    )
    assert not document["passed"]
    assert {each["gate"]: each["fired"] for each in document["gates"]} == {
        "mock-not-observed": True,
        "self-test-missing": True,
    }
    (found,) = document["gates"][0]["findings"]
    assert found in document["findings"]


def test_packaged_graph_follows_schema(package):
    with open_archive(package) as archive:
        validator("graph").validate(json.loads(archive.read(GRAPH)))


@pytest.fixture
def hostile(packaged, tmp_path) -> Path:
    """A package whose records contain terminal control characters."""
    source = Path(packaged({"good.py": "import evilspy\n"}, mock=["evilspy"]).filename)
    made = tmp_path / "hostile.modpack"
    with open_archive(source) as archive, ArchiveWriter(made) as writer:
        for name in archive.names():
            if name.startswith(".data/modpack/manifest."):
                continue
            content = archive.read(name)
            if name == GRAPH:
                content = content.replace(b"evilspy", b"evil\\u001b[2J\\u202espy")
            writer.write(name, content)
        writer.commit()
    return made


def test_audit_escapes_control_characters(hostile):
    shown = run(hostile, "--fail-on", "info")
    assert "evil" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "\u202e" not in shown.stdout
    assert "\x1b" not in run(hostile, "--json").stdout


def test_audit_does_not_import_torch_or_package(package, clean_python):
    clean_python(
        """
        import sys
        from modpack.cli import cli

        cli.main(["audit", str(path), "--fail-on", "error"], standalone_mode=False)
        assert not {"torch", "tillapp", "tillspy"} & set(sys.modules)
        """,
        path=package.resolve(),
    )


def test_audit_does_not_change_file(package):
    before = package.read_bytes()
    run(package)
    assert package.read_bytes() == before
