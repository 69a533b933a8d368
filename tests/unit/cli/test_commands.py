"""The list of commands. Each is a module that is imported on first use."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

import modpack.cli
from modpack.cli import cli


def test_commands_match_modules_of_cli():
    modules = {each.name.replace("_", "-") for each in pkgutil.iter_modules(modpack.cli.__path__)}
    assert set(cli.commands) == {name for name in modules if not name.startswith("-")}
    assert len(cli.commands) == len(set(cli.commands))
    assert all(command.name == name for name, command in cli.commands.items())


def test_help_shows_whole_summaries_in_80_columns():
    lines = CliRunner().invoke(cli, ["--help"]).stdout.splitlines()
    for name, command in cli.commands.items():
        summary = command.help.partition("\n")[0]
        assert f"  {name:<12}  {summary}" in lines
        assert summary.endswith(".")
    assert max(map(len, lines)) <= 80


def test_help_groups_commands_under_headings():
    shown = CliRunner().invoke(cli, ["--help"]).stdout
    headings = ("Create packages:", "Inspect packages:", "Sign and verify packages:")
    assert list(map(shown.index, headings)) == sorted(map(shown.index, headings))
    assert "\nCommands:" not in shown


def test_unknown_command_suggests_closest():
    with pytest.raises(KeyError):
        cli.commands["inspec"]
    shown = CliRunner().invoke(cli, ["inspec"])
    assert shown.exit_code == 2
    assert "No such command 'inspec'. Did you mean 'inspect'?" in shown.stderr


def test_command_does_not_import_other_commands(tmp_path):
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from modpack.cli import cli\n"
        "CliRunner().invoke(cli, ['inspect', 'nowhere.modpack'])\n"
        "print(*sorted(name for name in sys.modules if name.startswith('modpack.cli.')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    public = [name for name in done.stdout.split() if not name.startswith("modpack.cli._")]
    assert public == ["modpack.cli.inspect"]
