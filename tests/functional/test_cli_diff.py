"""``modpack diff``, and what ``modpack inspect`` shows besides its report, as users drive them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
from click.testing import CliRunner

from modpack import PackageExporter
from modpack.cli import cli

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/json/diff.schema.json").read_text("utf-8")
)
TILL = "def ring(coins):\n    return coins\n"


@pytest.fixture
def packages(tmp_path):
    """Two packages that differ in everything that can differ."""
    made = []
    for number, factor in enumerate((1.0, 2.0)):
        file = tmp_path / f"{'ab'[number]}.modpack"
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        with torch.no_grad():
            model[1].weight.mul_(factor)
        model[number].register_forward_hook(_double if number else _same)
        with PackageExporter(file) as exporter:
            exporter.intern("diffcli.**")
            (exporter.mock if number else exporter.extern)("numpy")
            exporter.extern("**")
            source = TILL.replace("coins\n", f"coins * {factor}\n")
            exporter.save_source_string("diffcli.till", f"import numpy\n{source}")
            exporter.save_source_string("diffcli", "", is_package=True)
            exporter.save_source_string(f"diffcli.only{number}", "x = 1\n")
            exporter.save_text("texts", "note.txt", f"one\n{factor}\n")
            exporter.save_model("model", "model.pkl", model)
        made.append(file)
    return made


def _same(module, args, output):
    return output


def _double(module, args, output):
    return output * 2


def run(*arguments):
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def document(*arguments):
    parsed = json.loads(run("diff", *arguments, "--json").stdout)
    jsonschema.validate(parsed, SCHEMA)
    return parsed


def of_part(document, part):
    """The differences of a part, by subject."""
    return {each["subject"]: each for each in document["differences"] if each["part"] == part}


def test_diff_of_same_package_finds_no_difference(packages):
    result = run("diff", packages[0], packages[0])
    assert result.exit_code == 0
    assert "are identical: digest" in result.stdout


def test_diff_lists_differences_and_exits_with_1(packages):
    result = run("diff", *packages)
    assert result.exit_code == 1
    shown = result.stdout.splitlines()
    assert "  ~ diffcli.till  source: +1 -1" in shown
    assert any(line.startswith("  + diffcli.only1  interned") for line in shown)
    assert any("numpy" in line and "action: extern -> mock" in line for line in shown)
    assert "  ~ 1.weight  parameter float32 [2, 2]  different values" in shown
    assert "+    return coins * 2.0" in shown
    assert any(line.startswith("  - 0  forward: ") for line in shown)


def test_diff_json_follows_schema(packages):
    found = document(*packages)
    assert not (found["passed"] or found["identical"])
    assert "+    return coins * 2.0" in of_part(found, "module")["diffcli.till"]["text"]["unified"]
    assert list(of_part(found, "tensor")) == ["1.weight"]
    assert {each["change"] for each in of_part(found, "hook").values()} == {"added", "removed"}
    same = document(packages[0], packages[0])
    assert same["passed"] and same["identical"]


def test_diff_source_options_select_sources(packages):
    assert "@@" not in run("diff", *packages, "--no-source").stdout
    assert "--- /dev/null" in run("diff", *packages, "--source").stdout


def test_diff_of_other_file_exits_with_2(packages, tmp_path):
    result = run("diff", packages[0], tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "nowhere: the file does not exist" in result.stderr
    error = json.loads(run("diff", packages[0], tmp_path / "nowhere", "--json").stdout)["error"]
    assert error["type"] == "PackageNotFoundError"


def test_diff_output_applies_with_patch(packages, tmp_path):
    """What is printed of sources turns the one package's sources into the other's."""
    folder = tmp_path / "unpacked"
    (folder / "diffcli").mkdir(parents=True)
    sources = [run("inspect", file, "--source", "diffcli.till").stdout for file in packages]
    (folder / "diffcli" / "till.py").write_text(sources[0])
    lines = of_part(document(*packages), "module")["diffcli.till"]["text"]["unified"]
    text = "".join(f"{line}\n" for line in lines)
    subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=folder, check=True)
    assert (folder / "diffcli" / "till.py").read_text() == sources[1]


def test_diff_uses_colors_at_terminal_only(packages):
    command = [sys.executable, "-m", "modpack", "diff", *map(str, packages)]
    plain = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR")}
    piped = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert "\x1b[" not in piped.stdout
    forced = {**plain, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    shown = subprocess.run(command, capture_output=True, text=True, env=forced)
    assert "\x1b[32m" in shown.stdout


def test_diff_does_not_wrap_long_lines(packages, tmp_path):
    file = tmp_path / "long.modpack"
    with PackageExporter(file) as exporter:
        exporter.save_text("texts", "note.txt", "one\n" + "x" * 400 + "\n")
    assert f"+{'x' * 400}" in run("diff", packages[0], file).stdout.splitlines()


def test_diff_does_not_import_torch(packages):
    code = (
        "import sys\n"
        "from modpack.cli import cli\n"
        f"arguments = ['diff', {str(packages[0])!r}, {str(packages[1])!r}, '--source']\n"
        "cli.main(arguments, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def noted(project, tmp_path, monkeypatch):
    """A package with more quiet notes than a report shows."""
    absent = "".join(
        f"try:\n    import diffabsent{n}\nexcept ImportError:\n    pass\n" for n in range(9)
    )
    project({"diffnotes/__init__.py": "", "diffnotes/till.py": absent})
    import diffnotes.till  # noqa: F401

    file = tmp_path / "notes.modpack"
    with PackageExporter(file) as exporter:
        exporter.intern("diffnotes.**")
        exporter.use_preset("pinned")
        exporter.save_source_string("diffmain", "import diffnotes.till\n")
    return file


def test_inspect_notes_shows_all_notes(noted):
    assert "--notes lists them" in run("inspect", noted).stdout
    shown = run("inspect", noted, "--notes").stdout
    assert all(f"diffabsent{n}" in shown for n in range(9))
    listed = json.loads(run("inspect", noted, "--json").stdout)["notes"]
    assert len(listed) == 9


def test_inspect_rejects_combined_views(noted):
    assert run("inspect", noted, "--notes", "--tree").exit_code == 2
