"""Shell completion."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from modpack.cli import cli


def complete(*arguments: str) -> list[str]:
    """Return completions of the last argument, with ``file:`` before those left to the shell."""
    shell = BashComplete(cli, {}, "modpack", "_MODPACK_COMPLETE")
    found = shell.get_completions(list(arguments[:-1]), arguments[-1])
    return [f"file:{each.value}" if each.type == "file" else each.value for each in found]


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


def test_completion_script_is_printed():
    environment = {**os.environ, "_MODPACK_COMPLETE": "zsh_source"}
    code = "from modpack.cli import main; import sys; sys.argv[0] = 'modpack'; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert done.stdout.startswith(b"#compdef modpack")
