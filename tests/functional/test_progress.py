"""Signs of life during long work: at a terminal, after a while, and nowhere else."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modpack import PackageExporter, PackageImporter

SLOW = """\
import time

class Slow:
    def __reduce__(self):
        print("noise from below")
        time.sleep(1.5)
        return (Slow, ())

def make():
    return Slow()
"""
COMMAND = "import modpack.cli._progress as p; p.PATIENCE_SECONDS = {}; from modpack.cli import main"


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    (tmp_path / "progressslow.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(work: Path, patience: float, stderr: int) -> subprocess.Popen[str]:
    arguments = ["export", "progressslow.py:make", "-o", "slow.modpack", "-q"]
    code = f"{COMMAND.format(patience)}; main()"
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        text=True,
    )


def at_a_terminal(work: Path, patience: float) -> tuple[str, str]:
    """What goes to stdout, which is a pipe, and to stderr, which is a terminal."""
    main, terminal = os.openpty()
    written = bytearray()
    with exported(work, patience, terminal) as running:
        os.close(terminal)
        with contextlib.suppress(OSError):  # how Linux says that the other end was closed
            while chunk := os.read(main, 65536):
                written += chunk
        stdout = running.communicate()[0]
    os.close(main)
    assert running.returncode == 0, written.decode()
    return stdout, written.decode()


def test_long_work_shows_what_it_does_at_a_terminal_and_takes_it_away(work):
    stdout, stderr = at_a_terminal(work, patience=0.1)
    assert "Packaging progressslow.py:make" in stderr
    assert "saving __model__/model.pkl" in stderr
    assert stderr.rstrip().endswith("\x1b[2K")  # the line is erased in the end
    assert "noise from below" in stderr
    assert stdout == ""


def test_short_work_shows_nothing(work):
    _, stderr = at_a_terminal(work, patience=60)
    assert "Packaging" not in stderr


def test_nothing_is_shown_in_a_pipe(work):
    with exported(work, 0.1, subprocess.PIPE) as running:
        stdout, stderr = running.communicate()
    assert (running.returncode, stdout) == (0, "")
    assert stderr == "noise from below\n"


def test_a_logger_hears_of_saving_and_loading(tmp_path, caplog):
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
