"""What a shell offers when somebody presses the tab key."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from modpack import PackageExporter
from modpack.cli import cli


def offered(*arguments: str) -> list[str]:
    """What completes the last argument; ``file:`` before what the shell completes itself."""
    shell = BashComplete(cli, {}, "modpack", "_MODPACK_COMPLETE")
    found = shell.get_completions(list(arguments[:-1]), arguments[-1])
    return [f"file:{each.value}" if each.type == "file" else each.value for each in found]


@pytest.fixture
def package(tmp_path):
    file = tmp_path / "net.modpack"
    with PackageExporter(file) as exporter:
        exporter.save_source_string("completed", "", is_package=True)
        exporter.save_source_string("completed.net", "import json\n")
    return str(file)


def test_commands_options_and_choices_are_offered():
    assert "inspect" in offered("")
    assert offered("insp") == ["inspect"]
    assert offered("export", "--pres") == ["--preset"]
    assert offered("export", "--preset", "h") == ["hermetic"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "ne"],
        ["self-test", "ne"],
        ["audit", "ne"],
        ["why", "ne"],
        ["diff", "a.modpack", "ne"],
        ["requirements", "ne"],
        ["sbom", "ne"],
        ["report", "ne"],
        ["export", "ne"],
        ["suggest", "ne"],
    ],
)
def test_files_are_left_to_the_shell(arguments):
    assert offered(*arguments) == ["file:ne"]


def test_the_modules_of_the_package_are_offered(package):
    assert offered("why", package, "comp") == ["completed", "completed.net"]
    assert offered("why", package, "js") == ["json"]
    assert offered("inspect", package, "--source", "completed.") == ["completed.net"]


def test_a_package_that_cannot_be_read_offers_nothing(tmp_path):
    (tmp_path / "broken.modpack").write_bytes(b"no zip")
    for file in (tmp_path / "broken.modpack", tmp_path / "absent.modpack", tmp_path):
        assert offered("why", str(file), "") == []


def test_the_script_for_a_shell_is_printed():
    environment = {**os.environ, "_MODPACK_COMPLETE": "zsh_source"}
    code = "from modpack.cli import main; import sys; sys.argv[0] = 'modpack'; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert done.stdout.startswith(b"#compdef modpack")


def test_codes_of_findings_are_offered_one_by_one():
    assert "mock-reachable" in offered("audit", "--fail-on", "mock-r")
    assert offered("audit", "--fail-on", "self-test-missing,self-test-f") == [
        "self-test-missing,self-test-failed"
    ]
