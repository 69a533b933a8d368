"""Hostile archives are rejected with a clear message, before any code runs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hostiles(monkeypatch):
    """The tool that passes the archives to commands and loaders."""
    for folder in (ROOT, ROOT / "fixtures", ROOT / "tools" / "torture"):
        monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield importlib.import_module("hostiles")
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if Path(file).is_relative_to(ROOT / "tools") or name.startswith("hostile"):
            del sys.modules[name]


def test_commands_reject_hostile_archives(hostiles):
    tally = hostiles.run_commands()
    assert tally.wrong == []
    assert sum(map(len, tally.messages.values())) >= 290
    assert len(tally.messages) >= 200


def test_loaders_reject_damage_before_code_runs(hostiles):
    tally = hostiles.run_loaders()
    assert tally.wrong == []
    assert tally.tries >= 600


def test_hostile_archives_can_be_written_to_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "fixtures" / "hostile", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(list((tmp_path / "out").iterdir()))
    assert "bomb.modpack: 64 MiB of zeros in 64 KiB" in done.stdout


def test_exhausting_archives_use_bounded_resources(hostiles):
    tally = hostiles.run_commands_on_floods(share=45)
    assert tally.wrong == []
    assert tally.tries >= 20
