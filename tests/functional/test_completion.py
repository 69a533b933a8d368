"""Shell completion."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from modpack import PackageExporter
from modpack.cli import cli


def complete(*arguments: str) -> list[str]:
    """Return completions of the last argument, with ``file:`` before those left to the shell."""
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


def test_complete_returns_commands_options_and_choices():
    assert "inspect" in complete("")
    assert complete("insp") == ["inspect"]
    assert complete("export", "--pres") == ["--preset"]
    assert complete("export", "--preset", "h") == ["hermetic"]


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
    ],
)
def test_complete_leaves_files_to_shell(arguments):
    assert complete(*arguments) == ["file:ne"]


def test_complete_returns_modules_of_package(package):
    assert complete("why", package, "comp") == ["completed", "completed.net"]
    assert complete("why", package, "js") == ["json"]
    assert complete("inspect", package, "--source", "completed.") == ["completed.net"]


def test_complete_of_unreadable_package_is_empty(tmp_path):
    (tmp_path / "broken.modpack").write_bytes(b"no zip")
    for file in (tmp_path / "broken.modpack", tmp_path / "absent.modpack", tmp_path):
        assert complete("why", str(file), "") == []


def test_completion_script_is_printed():
    environment = {**os.environ, "_MODPACK_COMPLETE": "zsh_source"}
    code = "from modpack.cli import main; import sys; sys.argv[0] = 'modpack'; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert done.stdout.startswith(b"#compdef modpack")
