"""Helper processes that compile ahead of an import, as seen by tests."""

from __future__ import annotations

import subprocess

import pytest

from modpack.loading import compile


def awaited_helpers(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Record started helpers, and wait for each before its answer is read."""
    processes = []
    start = compile._start

    def wait(*arguments):
        process, notes = start(*arguments)
        processes.append(process)
        process.wait(60)
        return process, notes

    monkeypatch.setattr("modpack.loading.compile._start", wait)
    return processes
