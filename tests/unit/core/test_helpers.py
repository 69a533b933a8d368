"""Helper processes."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from modpack.core.process import (
    FIND_MODPACK,
    helpers_enabled,
    start_helper,
    start_if_possible,
    usable_cores,
)


def said_by(code: str, *arguments: str, work: bytes = b"") -> bytes:
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(work)
        given.seek(0)
        with start_helper(code, arguments, given, said) as helper:
            assert helper.wait() == 0
        said.seek(0)
        return said.read()


def test_helper_receives_arguments_and_input():
    code = "import sys; print(*sys.argv[2:], sys.stdin.read())"
    assert said_by(code, "one", "two", work=b"three").split() == [b"one", b"two", b"three"]


def test_helper_imports_modpack_only():
    code = f"{FIND_MODPACK}; import modpack; print(modpack.__file__, 'site' in sys.modules)"
    file, has_site = said_by(code).decode().split()
    assert Path(file).samefile(sys.modules["modpack"].__file__ or "")
    assert has_site == "False"


def test_helper_ignores_environment_variables(monkeypatch, tmp_path):
    (tmp_path / "re.py").write_text("print('run')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert said_by("import re") == b""


@pytest.mark.parametrize("executable", ["", None, "/usr/sbin/another-server", "/"])
def test_start_helper_rejects_other_executable(executable, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(OSError, match=r"sys\.executable"):
        said_by("")


def test_start_if_possible_logs_failure(caplog):
    def refuse() -> None:
        raise LookupError("no processes here")

    with caplog.at_level("INFO", "modpack"):
        assert start_if_possible(refuse, "scanning") is None
    assert "no helper process for scanning (no processes here)" in caplog.text
    assert start_if_possible(lambda: 3, "scanning") == 3


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
