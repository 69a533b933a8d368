"""The list of commands. Each is a module that is imported on first use."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

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


def run_main(tmp_path, *arguments, before="pass"):
    """Run the command line in a process that first executes the statement ``before``."""
    code = f"import sys; {before}; from modpack.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path
    )


@pytest.mark.parametrize("command", ["inspect", "serve"])
def test_misspelled_package_suggests_file_in_its_folder(tmp_path, command):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "net.modpack").write_bytes(b"")
    done = run_main(tmp_path, command, "models/nett.modpack")
    meant = str(Path("models", "net.modpack"))
    reason = f"the file does not exist. Did you mean {meant!r}?"
    assert done.stderr == f"Error: models/nett.modpack: {reason}\n"
    assert "Did you mean" not in run_main(tmp_path, command, "other/nett.modpack").stderr


def test_missing_numpy_is_not_a_warning(tmp_path):
    warning = '"Failed to initialize NumPy: {} (Triggered internally at x)"'
    for text, shown in (("No module named 'numpy'", False), ("numpy.core failed", True)):
        (tmp_path / "built.py").write_text(
            f"import warnings\nwarnings.warn({warning.format(text)})\nmodel = len\n"
        )
        done = run_main(tmp_path, "export", "built.py:model", "--dry-run")
        assert ("NumPy" in done.stderr) is shown, done.stderr


@pytest.mark.parametrize(("command", "options"), [("push", ()), ("pull", ("-o", "a.modpack"))])
def test_missing_library_is_reported_for_the_command(tmp_path, command, options):
    arguments = ("net.modpack", "ghcr.io/net:1")[command == "pull" :]
    done = run_main(tmp_path, command, *arguments, *options, before="sys.modules['oras'] = None")
    assert done.stderr.startswith(f"Error: modpack {command} requires oras")
