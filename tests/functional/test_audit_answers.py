"""Reports about packages, compared with answers that were derived by hand.

The project is in fixtures/audited. Its README derives the answers from the sources. Locations are
given by a text on the line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from modpack.cli import cli
from tests.warm_python import run_python

FIXTURE = Path(__file__).parents[2] / "fixtures" / "audited"
SAVED = "<model/net.pkl>"
MOCK_RULE = "mock(['telemetry.**', 'clockwork'])"
PINNED = "preset pinned: installed distributions are extern"
OWN = "preset pinned: your own code is interned"


@dataclass(frozen=True)
class Site:
    """A folder of packages, and their export environment."""

    packages: Path
    project: Path
    variables: dict[str, str]

    def python(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return run_python(*command, folder=self.project, variables=self.variables)


def _made(folder: Path, later: bool) -> Site:
    """Return the project, its distributions, and its packages."""
    site, drafts, packages = folder / "site-packages", folder / "drafts", folder / "packages"
    project = folder / "project"
    shutil.copytree(FIXTURE / "project", project)
    if later:
        shutil.copytree(FIXTURE / "later", project, dirs_exist_ok=True)
    packages.mkdir()
    variables = {key: value for key, value in os.environ.items() if key != "SCOUT_CANARY"}
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (site, drafts)))}
    made = Site(packages, project, variables)
    version = ["--later"] if later else []
    script = "pack_again.py" if later else "pack.py"
    for command in ([FIXTURE / "install.py", site, drafts, *version], [script, packages]):
        done = made.python(*command)
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def site(own_cache, tmp_path_factory) -> Site:
    return _made(tmp_path_factory.mktemp("audited"), later=False)


@pytest.fixture(scope="module")
def first(site) -> Path:
    """The package of the model, with a passed self-test."""
    return site.packages / "first.modpack"


@pytest.fixture(scope="module")
def second(own_cache, tmp_path_factory) -> Path:
    """The package of the model's second version."""
    made = _made(tmp_path_factory.mktemp("audited-later"), later=True)
    return made.packages / "second.modpack"


@pytest.fixture(autouse=True)
def canary(tmp_path, monkeypatch):
    """A file to which packaged code would write if a test executed it."""
    file = tmp_path / "song.txt"
    monkeypatch.setenv("SCOUT_CANARY", str(file))
    monkeypatch.delenv("COLUMNS", raising=False)
    yield file
    assert not file.exists(), f"code of the package has run: {file.read_text()}"


def asked(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def told(*arguments: str | Path, status: int | None = 0) -> dict:
    """Return a command's JSON output. None as the status accepts any."""
    result = asked(*arguments, "--json")
    if status is not None and result.exit_code != status:
        pytest.fail(f"exit status {result.exit_code}: {result.output[-1500:]}")
    return json.loads(result.stdout)


def line(record: str, text: str, later: bool = False) -> int:
    """Return the number of the only line of a source that contains a text."""
    folder = FIXTURE / ("later" if later else "project")
    lines = (folder / record).read_text().splitlines()
    found = [number for number, each in enumerate(lines, 1) if text in each]
    assert len(found) == 1, f"{text!r} is on lines {found} of {record}"
    return found[0]


def place(record: str, text: str) -> str:
    return f"{record}:{line(record, text)}"


DECISIONS = {
    "scout": ("intern", OWN),
    "scout.net": ("intern", OWN),
    "scout.lately": ("intern", OWN),
    "gridkit": ("intern", "intern('gridkit.**')"),
    "gridkit.cells": ("intern", "intern('gridkit.**')"),
    "mathbits": ("extern", PINNED),
    "plainbox": ("extern", PINNED),
    "atlas": ("extern", PINNED),
    "atlas.north": ("extern", PINNED),
    "atlas.south": ("extern", PINNED),
    "draftlib": ("extern", "extern(['draftlib', 'looselib'])"),
    "looselib": ("extern", "extern(['draftlib', 'looselib'])"),
    "clockwork": ("extern", MOCK_RULE),
    "telemetry": ("mock", MOCK_RULE),
    "telemetry.live": ("mock", MOCK_RULE),
    "telemetry.sinks": ("mock", MOCK_RULE),
}
DISTRIBUTIONS = {
    "gridkit.cells": ("gridkit", "0.9.1", "GPL-3.0-only"),
    "mathbits": ("mathbits", "1.4.0", "BSD-3-Clause OR Apache-2.0"),
    "plainbox": ("plainbox", "2.0", None),
    "atlas.north": ("atlas-north", "1.1", "Apache"),
    "atlas.south": ("atlas-south", "2.2", "BSD"),
    "clockwork": ("clockwork", "1.0", "MIT"),
    "draftlib": ("draftlib", "0.1.dev0", "MIT"),
    "looselib": (None, None, None),
    "scout.net": (None, None, None),
}


@pytest.fixture(scope="module")
def audit(first) -> dict:
    return told("audit", first, status=None)


@pytest.fixture(scope="module")
def modules(audit) -> dict[str, dict]:
    return {each["module"]: each for each in audit["modules"]}


@pytest.mark.parametrize("module", DECISIONS)
def test_audit_lists_action_and_rule_of_module(modules, module):
    found = modules[module]
    assert (found["action"], found["rule"]) == DECISIONS[module]


def test_audit_lists_hook_that_overrides_rule(modules):
    assert modules["clockwork"]["overridden_by"].endswith("keep_the_clock")
    assert [m for m, found in modules.items() if found["overridden_by"]] == ["clockwork"]


@pytest.mark.parametrize("module", DISTRIBUTIONS)
def test_audit_lists_distribution_version_and_license(modules, module):
    found = modules[module]
    told_of = (found["distribution"], found["version"], found["license"])
    assert told_of == DISTRIBUTIONS[module]


def test_audit_lists_only_modules_that_can_run(modules):
    own = {name for name in modules if name.partition(".")[0] == "scout"}
    files = {file.stem for file in (FIXTURE / "project" / "scout").glob("*.py")}
    assert own == {"scout"} | {f"scout.{name}" for name in files - {"__init__", "typing_only"}}
    assert "telemetry.protocols" not in modules
    assert not {"warpdrive", "gridfast", "gridfast.kernels"} & set(modules)


def test_audit_reports_absent_optional_module_as_note(audit):
    absent = {
        each["subject"]: each
        for each in audit["findings"]
        if each["code"] == "optional-import-missing"
    }
    assert {"warpdrive", "gridfast.kernels"} <= set(absent)
    assert absent["warpdrive"]["location"] == place("scout/legacy.py", "import warpdrive")
    assert "missing-module" not in _codes(audit)


def test_audit_lists_source_sizes(modules):
    file = FIXTURE / "project" / "scout" / "net.py"
    assert modules["scout.net"]["size_bytes"] == file.stat().st_size


def test_audit_marks_editable_installs(modules):
    assert [name for name, found in modules.items() if found["editable"]] == ["draftlib"]


USED = "used"
NAMED = "named"
LOADED = "loaded"


@dataclass(frozen=True)
class Use:
    """A use of a mock: a text on its line, and the expected facts."""

    name: str
    record: str
    text: str
    kind: str
    scope: str = ""
    via: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mock:
    """The expected facts about a mock, derived from the sources."""

    risk: str
    imported: dict[tuple[str, str], str]
    uses: tuple[Use, ...] = ()
    event: str | None = None


def _import(record: str, text: str, kind: str = "required") -> dict[tuple[str, str], str]:
    return {(record, text): kind}


FROM_NET = _import("scout/net.py", "import gauges, live")
MOCKS = {
    "telemetry.live": Mock(
        "called",
        FROM_NET,
        (Use("beat", "scout/net.py", "live.beat(", "function-body", "Net.forward"),),
        USED,
    ),
    "telemetry.gauges": Mock(
        "untouched",
        FROM_NET,
        (Use("record", "scout/net.py", "gauges.record(", "function-body", "Net.forward"),),
        LOADED,
    ),
    "telemetry.local": Mock(
        "untouched",
        _import("scout/net.py", "from telemetry.local", "function"),
        (Use("count", "scout/net.py", "return count()", "function-body", "Net.locally"),),
    ),
    "telemetry.sinks": Mock(
        "used-at-import",
        _import("scout/sinks.py", "from telemetry.sinks"),
        (
            Use(
                "write",
                "scout/reporting.py",
                "tools.emit(",
                "function-body",
                "report",
                via=("scout.tools", "scout.sinks"),
            ),
        ),
        NAMED,
    ),
    "telemetry.lazy": Mock(
        "untouched",
        _import("scout/plugins.py", '"telemetry.lazy"', "dynamic"),
        (Use("value", "scout/plugins.py", "lazy.value(", "function-body", "lazily"),),
        LOADED,
    ),
    "telemetry.names": Mock(
        "untouched",
        _import("scout/stars.py", "import *"),
        (Use("SCALE", "scout/stars.py", "return x * SCALE", "function-body", "starred"),),
        LOADED,
    ),
    "telemetry.meters": Mock(
        "used-at-import",
        _import("scout/net.py", "import metered"),
        (Use("metered", "scout/net.py", "@metered", "decorator", "Net"),),
        NAMED,
    ),
    "telemetry.callbacks": Mock(
        "used-at-import",
        _import("scout/progress.py", "import Callback"),
        (Use("Callback", "scout/progress.py", "class Progress(", "base-class"),),
        NAMED,
    ),
    "telemetry.spans": Mock(
        "used-at-import",
        _import("scout/tracing.py", "import traced"),
        (Use("traced", "scout/tracing.py", "@traced", "decorator"),),
        NAMED,
    ),
    "telemetry.seeds": Mock(
        "used-at-import",
        _import("scout/seeding.py", "import seeds"),
        (Use("plant", "scout/seeding.py", "seeds.plant(", "module-level"),),
        NAMED,
    ),
    "telemetry.turbo": Mock(
        "untouched",
        _import("scout/legacy.py", "import telemetry.turbo", "guarded"),
        (Use("", "scout/legacy.py", "HAS_TURBO =", "module-level"),),
        LOADED,
    ),
    "telemetry.dumps": Mock(
        "untouched",
        _import("scout/debugging.py", "import dumps"),
        (
            Use(
                "save",
                "scout/debugging.py",
                "dumps.save(x)",
                "function-body",
                "dump_everything",
            ),
        ),
        LOADED,
    ),
}


@pytest.fixture(scope="module")
def mocks(audit) -> dict[str, dict]:
    return {each["module"]: each for each in audit["mocks"]}


def _uses(mock: dict) -> list[Use | tuple]:
    return [
        (
            use["name"],
            use["importer"],
            use["line"],
            use["kind"],
            use["scope"],
            tuple(use["via"]),
        )
        for use in mock["uses"]
    ]


def _expected(use: Use) -> tuple:
    importer = use.record.removesuffix(".py").replace("/", ".")
    number = line(use.record, use.text)
    return (use.name, importer, number, use.kind, use.scope, use.via)


def test_audit_lists_exactly_the_mocks(mocks):
    assert set(mocks) == set(MOCKS) | {"telemetry", "telemetry.boards", "telemetry.logs"}


@pytest.mark.parametrize("module", MOCKS)
def test_audit_lists_importers_of_mock(mocks, module):
    found = {(each["path"], each["line"]): each["kind"] for each in mocks[module]["importers"]}
    imported = MOCKS[module].imported
    assert found == {(file, line(file, text)): kind for (file, text), kind in imported.items()}


@pytest.mark.parametrize("module", MOCKS)
def test_audit_lists_uses_of_mock(mocks, module):
    assert _uses(mocks[module]) == [_expected(use) for use in MOCKS[module].uses]


@pytest.mark.parametrize("module", MOCKS)
def test_audit_rates_risk_of_mock(mocks, module):
    assert mocks[module]["risk"] == MOCKS[module].risk


@pytest.mark.parametrize("module", MOCKS)
def test_audit_lists_self_test_events_of_mock(mocks, module):
    kinds = {event["kind"] for event in mocks[module]["events"]}
    expected = MOCKS[module].event
    strongest = next((kind for kind in (USED, NAMED, LOADED) if kind in kinds), None)
    assert strongest == expected
    assert mocks[module]["runs"] == 1


def test_audit_lists_uses_in_annotations(mocks):
    found = mocks["telemetry.boards"]
    assert found["risk"] == "used-at-import"
    assert {use["kind"] for use in found["uses"]} == {"annotation"}
    places = {use["line"] for use in found["uses"]}
    assert places == {
        line("scout/boards.py", "current:"),
        line("scout/boards.py", "def shown("),
    }


def test_parent_mocked_only_for_submodules_is_untouched(mocks):
    found = mocks["telemetry"]
    assert found["risk"] == "untouched"
    assert found["uses"] == []
    importers = {each["importer"] for each in found["importers"] if each["kind"] == "required"}
    assert importers == {"scout.net", "scout.debugging", "scout.seeding", "scout.talking"}


def test_audit_sorts_mocks_by_risk(audit):
    risks = [each["risk"] for each in audit["mocks"]]
    assert risks == sorted(risks, key=["called", "used-at-import", "untouched"].index)


def test_audit_locates_mock_used_in_passed_self_test(mocks):
    (event,) = [each for each in mocks["telemetry.live"]["events"] if each["kind"] == USED]
    assert event["name"] == "telemetry.live.beat"
    assert event["operation"] == "was called"
    assert event["location"] == place("scout/net.py", "live.beat(")


def _codes(audit: dict, subject: str | None = None) -> set[str]:
    findings = audit["findings"]
    return {each["code"] for each in findings if subject in (None, each["subject"])}


def test_audit_with_error_fails_without_gate(first):
    assert asked("audit", first).exit_code == 1


def test_mock_called_in_self_test_is_error(audit):
    (error,) = [each for each in audit["findings"] if each["severity"] == "error"]
    assert (error["code"], error["subject"]) == ("mock-called", "telemetry.live")
    assert error["location"] == place("scout/net.py", "live.beat(")


def test_audit_sorts_findings_by_severity(audit):
    severities = [each["severity"] for each in audit["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)


def test_each_mock_has_finding_of_its_risk(audit, mocks):
    for module, found in mocks.items():
        codes = _codes(audit, module)
        assert ("mock-called" in codes) == (found["risk"] == "called")
        # The package has no checked signature.
        assert ("mock-unverified" in codes) == (found["risk"] != "called")


@pytest.mark.parametrize(
    ("code", "subject", "where"),
    [
        ("shadowed-rule", "extern('telemetry.sinks')", None),
        ("unmatched-rule", "mock('telemetri.**')", None),
        ("dynamic-import", "scout.plugins", ("scout/plugins.py", "scout.kinds")),
        ("star-import-of-mock", "telemetry.names", ("scout/stars.py", "import *")),
    ],
)
def test_audit_includes_hazards_of_plan(audit, code, subject, where):
    (found,) = [each for each in audit["findings"] if each["code"] == code]
    assert found["subject"] == subject
    assert found["location"] == (place(*where) if where else None)
    assert found["hint"]


EVERY_MOCK = set(MOCKS) | {"telemetry", "telemetry.boards", "telemetry.logs"}
GATES = {
    "mock-called": {"telemetry.live"},
    "mock-unverified": EVERY_MOCK - {"telemetry.live"},
    "mock-not-observed": EVERY_MOCK,
    "mock-used-at-import": EVERY_MOCK,
    "mock-untouched": EVERY_MOCK,
    "star-import-of-mock": {"telemetry.names"},
    "dynamic-import": {"scout.plugins"},
    "shadowed-rule": {"extern('telemetry.sinks')"},
    "unmatched-rule": {"mock('telemetri.**')"},
    "extern-local": {"draftlib", "looselib"},
    "extern-unpinned": {"draftlib", "looselib"},
    "license-unknown": {"plainbox"},
    "license:GPL*": {"gridkit"},
    "license:gpl-3.0-only": {"gridkit"},
    "license:Apache*": {"atlas-north", "mathbits", "torch"},
    "license:BSD*": {"atlas-south", "mathbits", "torch"},
    "license:AGPL*": set(),  # no mocked distribution is included
    "license:LGPL*": set(),
    "self-test-missing": {"first.modpack"},
    "self-test-failed": set(),
    "error": {"telemetry.live"},
}


@pytest.mark.parametrize("gate", GATES)
def test_gate_fires_only_on_its_findings(first, gate):
    document = told("audit", first, "--fail-on", gate, status=None)
    (judged,) = document["gates"]
    subjects = {each["subject"].removeprefix(f"{first.parent}/") for each in judged["findings"]}
    assert subjects == GATES[gate]
    assert judged["fired"] == bool(GATES[gate])


def _fired(document: dict) -> list[str]:
    return [each["gate"] for each in document["gates"] if each["fired"]]


CALM_GATES = ["warning", "mock-untouched", "extern-unpinned", "license-unknown", "license:GPL*"]


def test_package_without_findings_passes_all_gates(site):
    calm = site.packages / "calm.modpack"
    document = told("audit", calm, "--fail-on", ",".join(CALM_GATES))
    assert _codes(document) == {"self-test-unverified"}  # the package is not signed
    assert document["mocks"] == []


def test_package_without_self_test_fails_only_its_gate(site):
    untried = site.packages / "untried.modpack"
    document = told("audit", untried)
    assert {each["severity"] for each in document["findings"]} <= {"warning", "info"}
    assert "self-test-missing" in _codes(document)
    assert _fired(told("audit", untried, "--fail-on", "self-test-missing", status=1)) == [
        "self-test-missing"
    ]
    assert {each["risk"] for each in document["mocks"]} == {"not-observed"}


def test_audit_lists_all_gates_that_fire(site):
    untried = site.packages / "untried.modpack"
    gates = ["--fail-on", "license:GPL*,self-test-failed", "--fail-on", "mock-not-observed"]
    document = told("audit", untried, *gates, status=1)
    assert set(_fired(document)) == {"license:GPL*", "mock-not-observed"}
    text = asked("audit", untried, *gates)
    assert text.exit_code == 1
    assert "license:GPL*" in text.output
    assert "mock-not-observed" in text.output


def test_audit_of_failed_self_test_names_called_mock(site):
    document = told("audit", site.packages / "failing.modpack", status=1)
    assert "self-test-failed" in _codes(document)
    assert "mock-called" in _codes(document, "telemetry.gauges")
    mock = {each["module"]: each for each in document["mocks"]}["telemetry.gauges"]
    (event,) = [each for each in mock["events"] if each["kind"] == USED]
    assert event["location"] == place("scout/net.py", "gauges.record(")


def test_unknown_gate_is_rejected_with_suggestion(first):
    result = asked("audit", first, "--fail-on", "mock-not-observd")
    assert result.exit_code == 2
    assert "mock-not-observed" in result.output


def test_audit_text_starts_with_problems_and_risks(first):
    text = asked("audit", first).output
    assert text.index("telemetry.live") < text.index("gridkit==0.9.1")
    assert place("scout/net.py", "live.beat(") in text
    assert "GPL-3.0-only" in text


RULES = [
    *("--intern", "gridkit.**", "--mock", "telemetry.**", "--extern", "telemetry.sinks"),
    *("--extern", "draftlib", "--extern", "looselib"),
]


BLOCKS = ("scout/net.py", "import scaled")
LEFT = ("scout/net.py", "import left_of")
SAVED_OBJECT = (SAVED, "scout.net", None, "pickle")
SHORTEST = [
    SAVED_OBJECT,
    ("scout.net", "scout.blocks", BLOCKS, "required"),
    ("scout.blocks", "gridkit.cells", ("scout/blocks.py", "from gridkit"), "required"),
]


def _steps(chain: dict) -> list[tuple]:
    return [
        (step["importer"], step["imported"], step["path"], step["line"], step["kind"])
        for step in chain["links"]
    ]


def _known(chain: list[tuple]) -> list[tuple]:
    known = []
    for importer, imported, where, kind in chain:
        file, number = (where[0], line(*where)) if where else (None, None)
        known.append((importer, imported, file, number, kind))
    return known


def test_why_shows_shortest_chain_with_locations_and_kinds(first):
    document = told("why", first, "gridkit.cells")
    assert [_steps(chain) for chain in document["chains"]] == [_known(SHORTEST)]
    assert document["rule"] == "intern('gridkit.**')"


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("telemetry.local", "function"),
        ("scout.lately", "function"),
        ("telemetry.turbo", "guarded"),
        ("telemetry.lazy", "dynamic"),
        ("telemetry.live", "required"),
    ],
)
def test_why_shows_kind_of_last_import(first, module, kind):
    (chain,) = told("why", first, module)["chains"]
    assert chain["links"][-1]["kind"] == kind


def test_why_shows_hook_that_overrides_rule(first):
    document = told("why", first, "clockwork")
    assert document["rule"] == MOCK_RULE
    assert document["overridden_by"].endswith("keep_the_clock")
    assert "keep_the_clock" in asked("why", first, "clockwork").output


@pytest.mark.parametrize("module", ["scout.typing_only", "telemetry.protocols"])
def test_why_reports_module_imported_only_for_type_checking(first, module):
    text = asked("why", first, module).output
    assert "TYPE_CHECKING" in text
    text_on_line = "import Shape" if module == "scout.typing_only" else "import Sink"
    assert place("scout/net.py", text_on_line) in text


def test_why_of_unknown_module_suggests_similar_name(first):
    result = asked("why", first, "scout.block")
    assert result.exit_code == 2
    assert "scout.blocks" in result.output


PINS = {
    "atlas-north==1.1",
    "atlas-south==2.2",
    "clockwork==1.0",
    "mathbits==1.4.0",
    "plainbox==2.0",
}


def _pins(text: str) -> set[str]:
    lines = (each.partition("#")[0].strip() for each in text.splitlines())
    return {each for each in lines if each}


def test_requirements_pin_torch_and_extern_distributions(first):
    result = asked("requirements", first)
    assert result.exit_code == 0
    (torch,) = _pins(result.stdout) - PINS
    assert torch.startswith("torch==")


def test_requirements_list_unpinnable_modules_in_comments(first):
    comments = [each for each in asked("requirements", first).stdout.splitlines() if "#" in each]
    assert any("draftlib" in each and "editable" in each for each in comments)
    assert any("looselib" in each for each in comments)
    assert not any("gridkit" in each or "telemetry" in each for each in comments)


def test_lock_pins_transitive_requirements(first):
    pins = _pins(asked("requirements", first, "--lock").stdout)
    assert {"deepdep==7.0", *PINS} <= pins


def test_requirements_check_lists_missing_distributions(first):
    result = asked("requirements", first, "--check")
    assert result.exit_code == 1
    for pin in PINS:
        assert pin in result.output


def test_requirements_check_passes_in_export_environment(site, first):
    done = site.python("-m", "modpack", "requirements", first, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_requirements_check_shows_both_versions_and_install_command(site, first, second):
    later = second.parents[1]
    paths = os.pathsep.join([str(later / "site-packages"), str(later / "drafts")])
    there = Site(site.packages, later / "project", {**site.variables, "PYTHONPATH": paths})
    done = there.python("-m", "modpack", "requirements", first, "--check")
    assert done.returncode == 1
    assert "1.4.0" in done.stdout
    assert "1.5.0" in done.stdout
    assert "mathbits==1.4.0" in done.stdout
    assert "plainbox" not in done.stdout


LOAD = """
import sys, warnings
sys.path[:0] = paths
import modpack
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    try:
        modpack.load(file, on_mismatch=on_mismatch)
    except modpack.ModpackError as failure:
        print(type(failure).__name__, failure)
for each in told:
    print(each.category.__name__, each.message)
"""


def test_load_in_equal_environment_does_not_warn(site, first, clean_python, canary):
    paths = [*site.variables["PYTHONPATH"].split(os.pathsep), str(site.project)]
    done = clean_python(LOAD, paths=paths, file=first, on_mismatch="error")
    assert done.stdout == ""
    sung = [each.split(".", 3)[3] for each in canary.read_text().split()]
    assert sung == ["scout", "scout.net"], "the canary must sing if code of the package runs"
    canary.unlink()


def test_load_lists_all_missing_modules_before_code_runs(first, clean_python, canary):
    done = clean_python(LOAD, paths=[], file=first, on_mismatch="error")
    assert "EnvironmentMismatchError" in done.stdout
    for name in ("mathbits", "plainbox", "atlas-north", "atlas-south", "clockwork"):
        assert name in done.stdout


@pytest.fixture(scope="module")
def differences(first, second) -> dict:
    return told("diff", first, second, status=1)


def test_diff_of_package_with_itself_is_empty(first):
    assert told("diff", first, first)["identical"] is True


def _of_part(document: dict, part: str) -> dict[str, dict]:
    return {each["subject"]: each for each in document["differences"] if each["part"] == part}


def _changes(document: dict, part: str) -> dict[str, str]:
    return {subject: each["change"] for subject, each in _of_part(document, part).items()}


def _fields(difference: dict) -> dict[str, tuple[str | None, str | None]]:
    return {each["name"]: (each["before"], each["after"]) for each in difference["fields"]}


def test_diff_lists_added_removed_and_changed_modules(differences):
    assert _changes(differences, "module") == {
        "mathbits": "changed",
        "plainbox": "removed",
        "scout.blocks": "changed",
        "scout.clipping": "added",
    }


def test_diff_shows_changed_source_lines(differences):
    modules = _of_part(differences, "module")
    unified = modules["scout.blocks"]["text"]["unified"]
    changed = [each for each in unified if each[:1] in "+-" and each[1:2] not in "+-"]
    assert changed == [
        "-import plainbox",
        '-    """Calls what is interned and what is extern."""',
        "-    return cell(x) * mathbits.ONE + plainbox.ZERO",
        '+    """Calls what is interned and what is extern, twice."""',
        "+    return cell(x) * mathbits.ONE * 2",
    ]
    assert modules["mathbits"]["text"] is None


def test_diff_lists_changed_versions(first, second, differences):
    distributions = _changes(differences, "distribution")
    assert distributions == {"mathbits": "changed", "plainbox": "removed"}
    text = asked("diff", first, second).output
    assert "1.4.0 -> 1.5.0" in text


def test_diff_lists_added_hook(differences):
    (hook,) = _of_part(differences, "hook").values()
    assert (hook["subject"], hook["change"]) == ("head", "added")
    fields = _fields(hook)
    assert fields["kind"] == (None, "forward")
    assert fields["calls"] == (None, "scout.clipping.clip")


def test_diff_lists_changed_tensors_with_all_names(differences):
    assert _changes(differences, "tensor") == {
        "linear.weight": "changed",
        "head.weight": "changed",
        "history": "changed",
    }
    history = _of_part(differences, "tensor")["history"]
    assert _fields(history)["shape"] == ("[2]", "[3]")


def test_diff_in_reverse_order_is_inverted(first, second):
    modules = _changes(told("diff", second, first, status=1), "module")
    assert modules["scout.clipping"] == "removed"
    assert modules["plainbox"] == "added"


@pytest.fixture(scope="module")
def bill(first) -> dict:
    result = asked("sbom", first)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


COMPONENTS = {
    "gridkit": ("0.9.1", "GPL-3.0-only"),
    "mathbits": ("1.4.0", "BSD-3-Clause OR Apache-2.0"),
    "plainbox": ("2.0", None),
    "atlas-north": ("1.1", "Apache"),
    "atlas-south": ("2.2", "BSD"),
    "clockwork": ("1.0", "MIT"),
    "draftlib": ("0.1.dev0", "MIT"),
}


@pytest.mark.parametrize("name", COMPONENTS)
def test_sbom_lists_every_distribution_with_version_and_license(bill, name):
    (found,) = [each for each in bill["components"] if each["name"] == name]
    version, license = COMPONENTS[name]
    assert found["version"] == version
    licenses = json.dumps(found.get("licenses", []))
    assert (license in licenses) if license else not found.get("licenses")


def test_sbom_requires_torch_and_no_mocked_code(bill):
    names = {each["name"] for each in bill["components"]}
    assert "torch" in names
    assert bill["metadata"]["component"]["type"] == "machine-learning-model"
    mocked = [each for each in bill["components"] if each["name"].startswith("telemetry")]
    assert all(each.get("scope") == "excluded" for each in mocked)


def test_sbom_lists_dependencies_of_components(bill):
    references = {each["name"]: each["bom-ref"] for each in bill["components"]}
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    if "deepdep" in references:
        assert references["deepdep"] in needs[references["mathbits"]]


@pytest.mark.parametrize(
    "command",
    [
        ["audit"],
        ["audit", "--fail-on", "mock-not-observed"],
        ["why", "gridkit.cells"],
        ["diff", "OTHER"],
        ["requirements"],
        ["requirements", "--lock"],
        ["requirements", "--check"],
        ["inspect"],
        ["sbom"],
        ["report", "-o", "PAGE"],
    ],
    ids=" ".join,
)
def test_commands_do_not_import_torch_or_run_packaged_code(
    first, second, tmp_path, clean_python, command
):
    given = {"OTHER": str(second), "PAGE": str(tmp_path / "audit.html")}
    arguments = [command[0], str(first), *(given.get(each, each) for each in command[1:])]
    code = """
    import contextlib, io, sys
    from modpack.cli import main
    sys.argv = ["modpack", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    roots = ("torch", "scout", "gridkit", "telemetry", "numpy")
    print([name for name in roots if name in sys.modules])
    """
    done = clean_python(code, arguments=arguments)
    assert done.stdout == "[]\n"
    assert "Error" not in done.stderr
