"""Recorded uses of mocks, and events of mocks in the self-test."""

from __future__ import annotations

import textwrap
import warnings

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import modpack
from modpack.archive.manifest import read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.records import read_plan, read_self_test
from modpack.cli import cli
from modpack.core.observations import MockEvent, MockEventKind
from modpack.errors import ModpackWarning

TRACKER = "def log(x):\n    pass\n\ndef init(**options):\n    pass\n\nLEVEL = 3\n"
ONE = (torch.ones(1, 2),)


def net(forward: str, top: str = "") -> dict[str, str]:
    """A project with a model with a given forward, and a tracker to be mocked."""
    body = "\n".join(f"        {line}" for line in forward.splitlines())
    source = (
        f"import mutrack\nfrom torch import nn\n{top}\n"
        f"class Net(nn.Module):\n    def forward(self, x):\n{body}\n        return x\n"
    )
    return {"mutrack.py": TRACKER, "mushop/__init__.py": "", "mushop/net.py": source}


@pytest.fixture
def saved(project, tmp_path):
    """Save the model of a project with the tracker mocked. Return the file and the plan."""

    def save(files, inputs=ONE, **options):
        project(files)
        from mushop.net import Net

        file = tmp_path / "net.modpack"
        exporter = modpack.PackageExporter(file, **options)
        exporter.mock("mutrack")
        exporter.use_preset("pinned")
        with exporter:
            exporter.save_model("model", "net.pkl", Net().eval(), example_inputs=inputs)
        return file

    return save


def recorded(file):
    with open_archive(file) as archive:
        manifest = read_manifest(archive)
        return read_plan(archive, manifest), read_self_test(archive, manifest)


def uses_in(self_test):
    """Return the events of a self-test that raised an exception."""
    return [e for e in self_test.observations.mock_events if e.kind is MockEventKind.USED]


SWALLOWED = "try:\n    mutrack.log(x)\nexcept Exception:\n    pass"


def test_package_records_mock_uses(saved):
    top = "mutrack.init()\n\ndef dead():\n    mutrack.log(1)\n"
    plan, _ = recorded(saved(net("if x is None:\n    mutrack.log(x)", top)))
    assert [(use.name, use.line, use.scope) for use in plan.mock_uses] == [
        ("log", 11, "Net.forward"),
        ("init", 3, ""),
        ("log", 6, "dead"),
    ]


def test_plan_of_saved_package_has_mock_uses(project, tmp_path):
    project(net("mutrack.log(x)"))
    from mushop.net import Net

    exporter = modpack.PackageExporter(tmp_path / "net.modpack")
    exporter.mock("mutrack")
    exporter.intern("mushop.**")
    exporter.save_model("model", "net.pkl", Net())
    plan = exporter.close()
    assert [use.name for use in plan.mock_uses] == ["log"]


def test_mock_uses_are_searched_once_if_self_test_only_adds_files(saved, monkeypatch):
    from modpack.discovery import mock_usage

    searches, real = [], mock_usage.find_uses
    monkeypatch.setattr(
        "modpack.discovery.mock_usage.find_uses", lambda *given: searches.append(1) or real(*given)
    )
    asking = "from importlib import metadata\n"
    files = net("mutrack.log(x) if x is None else metadata.version('ini' + 'config')", asking)
    plan, self_test = recorded(saved(files))
    assert self_test.rounds > 1 and [use.name for use in plan.mock_uses] == ["log"]
    assert len(searches) == 1


def test_package_without_mocks_records_no_uses(saved):
    files = net("pass")
    files["mushop/net.py"] = files["mushop/net.py"].replace("import mutrack\n", "")
    plan, self_test = recorded(saved(files))
    assert plan.mock_uses == ()
    assert self_test.observations.mock_events == ()


def test_self_test_records_mock_error_that_package_catches(saved):
    with pytest.warns(ModpackWarning) as told:
        _, self_test = recorded(saved(net(SWALLOWED)))
    used = MockEvent("mutrack", MockEventKind.USED, "mutrack.log", "was called", "mushop/net.py:7")
    assert self_test.passed
    assert [
        event for event in self_test.observations.mock_events if event.kind is MockEventKind.USED
    ] == [used]
    (message,) = [str(each.message) for each in told if "mutrack" in str(each.message)]
    assert "mutrack.log was called at mushop/net.py:7" in message
    assert "Intern or extern 'mutrack'" in message


def test_self_test_distinguishes_imported_and_accessed_mocks(saved):
    top = "LEVEL = mutrack.LEVEL\nmutrack.init()\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModpackWarning)
        _, self_test = recorded(saved(net("pass", top)))
    assert set(self_test.observations.mock_events) == {
        MockEvent("mutrack", MockEventKind.LOADED),
        MockEvent("mutrack", MockEventKind.NAMED, "mutrack.LEVEL"),
        MockEvent("mutrack", MockEventKind.NAMED, "mutrack.init"),
    }


def test_self_test_records_no_event_for_unimported_mock(saved):
    files = net("if x is None:\n    import mutrack\n    mutrack.log(x)")
    files["mushop/net.py"] = files["mushop/net.py"].replace("import mutrack\n", "", 1)
    plan, self_test = recorded(saved(files))
    assert [use.name for use in plan.mock_uses] == ["log"]
    assert self_test.observations.mock_events == ()


def test_failed_self_test_records_mock_events(saved):
    with pytest.warns(ModpackWarning):
        _, self_test = recorded(saved(net("mutrack.log(x)"), self_test="warn"))
    assert not self_test.passed
    (used,) = [
        event for event in self_test.observations.mock_events if event.kind is MockEventKind.USED
    ]
    assert used.location == "mushop/net.py:6"


def test_mock_used_by_extern_library_is_located_in_package(saved):
    forward = (
        "import statistics\ntry:\n    statistics.mean(mutrack.LEVEL)\nexcept Exception:\n    pass"
    )
    with pytest.warns(ModpackWarning):
        _, self_test = recorded(saved(net(forward)))
    (used,) = [
        event for event in self_test.observations.mock_events if event.kind is MockEventKind.USED
    ]
    assert (used.operation, used.location) == ("was iterated over", "mushop/net.py:8")


def test_loaded_package_raises_on_mock_use(saved):
    file = saved(net("mutrack.log(x)"), inputs=None)
    model = modpack.load(file)
    assert isinstance(model, nn.Module)
    with pytest.raises(NotImplementedError, match=r"mutrack\.log was called"):
        model(*ONE)


OBSERVED = {
    "mushop/__init__.py": "",
    "mushop/net.py": """
        from pathlib import Path
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                from mushop import late
                return x + len((Path(__file__).parent / "words.txt").read_text())
    """,
    "mushop/late.py": "",
    "mushop/never.py": "",
    "mushop/words.txt": "three golden words",
}


@pytest.fixture
def observed(project, tmp_path):
    """Return a function that saves a model and returns the observations of the package."""

    def save(name, inputs=ONE):
        from mushop.net import Net

        file = tmp_path / name
        exporter = modpack.PackageExporter(file, self_test=True)
        exporter.use_preset("pinned")
        exporter.intern("mushop.never")
        exporter.save_source_string("mushop.never", "")
        with exporter:
            exporter.save_model("model", "net.pkl", Net().eval(), example_inputs=inputs)
        return file

    project({name: textwrap.dedent(text) for name, text in OBSERVED.items()})
    return save


def test_self_test_records_imported_modules_and_opened_files(observed):
    _, self_test = recorded(observed("run.modpack"))
    seen = self_test.observations
    assert seen.modules == ("mushop", "mushop.net")
    assert seen.example_modules == ("mushop.late",)
    assert seen.files == ("mushop/words.txt",)
    assert seen.importer_of("mushop.never") == "nothing"


def test_self_test_without_examples_records_modules_of_loading(observed):
    _, self_test = recorded(observed("loaded.modpack", inputs=None))
    seen = self_test.observations
    assert (seen.modules, seen.example_modules, seen.files) == (("mushop", "mushop.net"), (), ())


def test_readers_say_that_the_package_recorded_observations(observed):
    file = str(observed("run.modpack"))
    shown = CliRunner().invoke(cli, ["inspect", file], env={"COLUMNS": "200"}).output
    assert "2 packaged modules, the examples imported 1 more" in shown
    assert "code opened 1 packaged file (recorded by the package)" in shown
    for module, by in (("net", "loading"), ("late", "an example"), ("never", "nothing")):
        shown = CliRunner().invoke(cli, ["why", file, f"mushop.{module}"]).output
        assert f"imported by {by} (recorded by the package)" in shown


def test_repeated_self_test_observes_again(observed):
    repeated = modpack.self_test(observed("run.modpack"))
    assert repeated.passed
    assert repeated.observations.example_modules == ("mushop.late",)


@pytest.fixture
def keys(tmp_path):
    """A pair of key files: the private and the public one."""
    pytest.importorskip("securesystemslib")
    made = CliRunner().invoke(cli, ["keygen", str(tmp_path / "team")])
    assert made.exit_code == 0, made.output
    return tmp_path / "team", tmp_path / "team.pub"


def audited(*arguments):
    """Return exit status and output of an audit with a gate on unobserved mocks."""
    options = ["--fail-on", "mock-not-observed", *map(str, arguments)]
    done = CliRunner().invoke(cli, ["audit", *options], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_gate_passes_on_observations_only_of_checked_signer(saved, keys):
    private, public = keys
    file = saved(net("pass", "LEVEL = mutrack.LEVEL\n"))
    status, shown = audited(file)
    assert status == 1
    assert "mock-unverified" in shown
    assert "mutrack  used at import in 1 run (recorded by the package)" in shown
    status, shown = audited(file, "--key", public)
    assert status == 2
    assert "is not signed" in shown
    assert CliRunner().invoke(cli, ["sign", str(file), "--key", str(private)]).exit_code == 0
    assert audited(file)[0] == 1
    status, shown = audited(file, "--key", public)
    assert status == 0, shown
    assert "mock-used-at-import" in shown


def test_gate_fires_on_signed_package_without_runs(saved, keys):
    private, public = keys
    file = saved(net("pass", "LEVEL = mutrack.LEVEL\n"), inputs=None)
    assert CliRunner().invoke(cli, ["sign", str(file), "--key", str(private)]).exit_code == 0
    status, shown = audited(file, "--key", public)
    assert status == 1
    assert "mutrack  not observed" in shown
