"""Archives that must be refused, by commands in the right words, and before any code runs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hostiles(monkeypatch):
    """The tool that gives the archives to commands and loaders."""
    for folder in (ROOT, ROOT / "fixtures", ROOT / "tools" / "torture"):
        monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield importlib.import_module("hostiles")
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if Path(file).is_relative_to(ROOT / "tools") or name.startswith("hostile"):
            del sys.modules[name]


def test_every_command_refuses_every_archive_that_it_reads_and_runs_nothing(hostiles):
    judged = hostiles.looking()
    assert judged.wrong == []
    assert sum(map(len, judged.messages.values())) >= 290
    assert len(judged.messages) >= 200


def test_every_loader_refuses_what_is_damaged_before_any_code_runs(hostiles):
    judged = hostiles.loading()
    assert judged.wrong == []
    assert judged.tries >= 600


def test_the_archives_can_be_written_to_be_looked_at(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "fixtures" / "hostile", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(list((tmp_path / "out").iterdir()))
    assert "bomb.modpack: 64 MiB of zeros in 64 KiB" in done.stdout


def test_what_is_made_to_exhaust_takes_little_memory_and_time(hostiles):
    judged = hostiles.flooded(share=45)
    assert judged.wrong == []
    assert judged.tries >= 20
