"""Helper processes."""

from __future__ import annotations

import os

import pytest

from modpack.core.process import (
    helpers_enabled,
    start_if_possible,
    usable_cores,
)


def test_start_if_possible_logs_failure(caplog):
    def refuse() -> None:
        raise LookupError("no processes here")

    with caplog.at_level("INFO", "modpack"):
        assert start_if_possible(refuse, "self-tests") is None
    assert "no helper process for self-tests (no processes here)" in caplog.text
    assert start_if_possible(lambda: 3, "self-tests") == 3


@pytest.mark.parametrize(("value", "wanted"), [(None, True), ("", True), ("1", True), ("0", False)])
def test_variable_disables_helpers(value, wanted, monkeypatch):
    monkeypatch.delenv("MODPACK_WORKERS", raising=False)
    if value is not None:
        monkeypatch.setenv("MODPACK_WORKERS", value)
    assert helpers_enabled() is wanted


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 8), ("100000 100000", 1), ("50000 100000", 1), ("350000 100000", 3), ("", 8)],
)
def test_usable_cores_respects_container_limit(limit, cores, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("modpack.core.process._CPU_QUOTA", tmp_path / "cpu.max")
    assert usable_cores() == 8
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert usable_cores() == cores


def test_usable_cores_falls_back_to_all_cores(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr("modpack.core.process._CPU_QUOTA", tmp_path / "none")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
