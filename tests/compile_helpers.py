"""Watching the processes that compile ahead of an import."""

from __future__ import annotations

import subprocess

import pytest

from modpack.loading import compile as compileahead


def awaited_helpers(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The helpers that will be started; each has done all that it will do before it is heard."""
    processes = []
    start = compileahead._start

    def wait(*arguments):
        process, notes = start(*arguments)
        processes.append(process)
        process.wait(60)
        return process, notes

    monkeypatch.setattr(compileahead, "_start", wait)
    return processes
