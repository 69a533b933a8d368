"""The commands, each in a module of its own that is imported when the command is asked for."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

import modpack.cli
from modpack.cli import cli


def test_every_module_that_holds_a_command_is_one_by_its_name():
    modules = {each.name for each in pkgutil.iter_modules(modpack.cli.__path__)}
    assert set(cli.commands) == {name for name in modules if not name.startswith("_")}
    assert len(cli.commands) == len(set(cli.commands))
    assert all(command.name == name for name, command in cli.commands.items())


def test_help_tells_what_each_command_does():
    shown = CliRunner().invoke(cli, ["--help"]).stdout
    for name, command in cli.commands.items():
        assert f"  {name} " in shown
        assert command.get_short_help_str(limit=60) in shown


def test_an_unknown_command_is_told_with_the_one_that_was_meant():
    with pytest.raises(KeyError):
        cli.commands["inspec"]
    shown = CliRunner().invoke(cli, ["inspec"])
    assert shown.exit_code == 2
    assert "No such command 'inspec'. Did you mean 'inspect'?" in shown.stderr


def test_what_other_commands_need_is_not_imported(tmp_path):
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
