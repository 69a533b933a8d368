"""Processes and cores that modpack may use."""

from __future__ import annotations

import os

import pytest

from modpack.core import process
from modpack.core.process import usable_cores, warm_processes_enabled


@pytest.mark.parametrize(("value", "wanted"), [(None, True), ("", True), ("1", True), ("0", False)])
def test_variable_disables_warm_processes(value, wanted, monkeypatch):
    monkeypatch.delenv("MODPACK_WORKERS", raising=False)
    if value is not None:
        monkeypatch.setenv("MODPACK_WORKERS", value)
    assert warm_processes_enabled() is wanted


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 8), ("100000 100000", 1), ("50000 100000", 1), ("350000 100000", 3), ("", 8)],
)
def test_usable_cores_respects_container_limit(limit, cores, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(process, "_CPU_QUOTA", tmp_path / "cpu.max")
    assert usable_cores() == 8
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert usable_cores() == cores


def test_usable_cores_falls_back_to_all_cores(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(process, "_CPU_QUOTA", tmp_path / "none")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
