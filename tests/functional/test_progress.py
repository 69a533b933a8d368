"""Progress of long work at a terminal, in a notebook, and in a pipe."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from modpack import PackageExporter, PackageImporter, load, save
from modpack.report import progress
from tests.warm_python import warm

SLOW = """\
import time

class Slow:
    def __reduce__(self):
        print("noise from below")
        time.sleep(1.0)
        return (Slow, ())

class SlowBothWays:
    def __getstate__(self):
        time.sleep(0.6)
        return {"slow": True}

    def __setstate__(self, state):
        time.sleep(0.6)

def make():
    return Slow()
"""
PATIENCE = "import modpack.report.progress as p; p.PATIENCE_SECONDS = {}"
RICH = "import rich.live, rich.progress_bar, rich.spinner, rich.table"
"""Takes long on a busy machine, and would otherwise happen while the work is done."""
COMMAND = f"{RICH}; {PATIENCE}; from modpack.cli import main; main()"


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    (tmp_path / "progressslow.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def at_a_terminal(code: str, *arguments: str) -> tuple[str, str]:
    """Return the output to stdout, a file, and to stderr, a terminal."""
    return outputs(os.openpty(), code, *arguments)


def in_a_pipe(code: str, *arguments: str) -> tuple[str, str]:
    """Return the output to stdout, a file, and to stderr, a pipe."""
    return outputs(os.pipe(), code, *arguments)


def outputs(ends: tuple[int, int], code: str, *arguments: str) -> tuple[str, str]:
    reading, writing = ends
    written = bytearray()
    with tempfile.TemporaryFile() as stdout:
        running = warm.popen(
            [sys.executable, "-c", code, *arguments],
            stdout=stdout,
            stderr=writing,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "OMP_NUM_THREADS": "1"},
        )
        os.close(writing)
        with contextlib.suppress(OSError):  # Linux reports a closed terminal so
            while chunk := os.read(reading, 65536):
                written += chunk
        os.close(reading)
        assert running.wait(60) == 0, written.decode()
        stdout.seek(0)
        return stdout.read().decode(), written.decode()


EXPORT = ("export", "progressslow.py:make", "-o", "slow.modpack", "-q")


def test_export_shows_and_erases_progress_at_terminal(work):
    stdout, stderr = at_a_terminal(COMMAND.format(0.1), *EXPORT)
    assert "Packaging progressslow.py:make" in stderr
    assert "saving __model__/model.pkl" in stderr
    assert stderr.rstrip().endswith("\x1b[2K")  # the line is erased at the end
    assert "noise from below" in stderr
    assert stdout == ""


def test_short_export_shows_no_progress(work):
    _, stderr = at_a_terminal(COMMAND.format(60), *EXPORT)
    assert "Packaging" not in stderr


def test_export_in_pipe_shows_no_progress(work):
    assert in_a_pipe(COMMAND.format(0.1), *EXPORT) == ("", "noise from below\n")


STEPS = f"""
{PATIENCE.format(0.1)}
{RICH}
import os, sys, types, modpack, torch, progressslow
for step in sys.argv[1:]:
    print(f"[{{step}}]", end="", file=sys.stderr, flush=True)
    os.environ["LOCAL_RANK"] = "1" if step == "rank" else "0"
    if step == "notebook":
        shell = types.SimpleNamespace(kernel=object())
        sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
    progress = {{"shown": True, "hidden": False}}.get(step)
    if step == "load":
        modpack.load("slow.modpack", progress=True)
    else:
        modpack.save(progressslow.SlowBothWays(), "slow.modpack", progress=progress)
"""


def by_step(stderr: str) -> dict[str, str]:
    return dict(piece.split("]", 1) for piece in stderr.split("[") if "]" in piece)


def overwritten(lines: list[str]) -> str:
    """Return what remains visible of lines that are written over each other."""
    visible = ""
    for line in lines:
        visible = line + visible[len(line) :]
    return visible.rstrip()


def test_save_shows_progress_at_terminal_unless_disabled(work):
    code = STEPS.replace('"[{step}]"', '"<{step}>"')
    _, stderr = at_a_terminal(code, "hidden", "rank", "default")
    assert stderr.startswith("<hidden><rank><default>")
    assert "Saving slow.modpack" in stderr and "saving __model__/model.pkl" in stderr
    assert stderr.rstrip().endswith("\x1b[2K")


def test_save_and_load_in_pipe_show_progress_only_on_request(work):
    shown = by_step(in_a_pipe(STEPS, "default", "shown", "load", "notebook")[1])
    assert shown["default"] == ""
    assert shown["shown"].startswith("Saving slow.modpack  ") and shown["shown"].endswith("\n")
    assert shown["load"].startswith("Loading slow.modpack  ")
    lines = shown["notebook"].split("\r")  # a notebook shows one line per update
    assert "\n" not in shown["notebook"] and lines[1].startswith("Saving slow.modpack")
    assert overwritten(lines) == ""


@pytest.mark.parametrize("call", [lambda **k: save([], "x", **k), lambda **k: load("x", **k)])
def test_progress_must_be_a_bool_or_none(call):
    with pytest.raises(TypeError, match="progress must be a bool or None, not str"):
        call(progress="yes")


def test_nested_work_shows_one_line(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.05)
    with progress.working("Outer", True), progress.working("Inner", True):
        time.sleep(0.5)
    shown = capsys.readouterr().err
    assert "Outer" in shown and "Inner" not in shown


def test_logger_receives_saving_and_loading(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="modpack")
    with PackageExporter(tmp_path / "logged.modpack") as exporter:
        exporter.save_model("model", "model.pkl", torch.nn.Linear(4, 2))
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("saving model/model.pkl: 40 bytes, done in ")
    assert any(text.startswith("planning: done in ") for text in told)
    caplog.clear()
    with PackageImporter(tmp_path / "logged.modpack") as importer:
        importer.load_model("model", "model.pkl")
    told = [record.getMessage() for record in caplog.records]
    assert any(text.startswith("loading model/model.pkl: done in ") for text in told)
