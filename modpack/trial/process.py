"""A clean interpreter: started, talked with, and ended.

It is this Python again, isolated (``-I``), in an empty folder, with a cache of its own and a path
that is told to it. Parent and child talk through a connection of their own, in JSON: what
libraries print does not disturb it, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from modpack.core.planjson import Json
from modpack.core.trialrecord import UnfilledTable, touch_from_json
from modpack.core.usage import MockTouch
from modpack.errors import ModpackError
from modpack.trial.comparing import Difference, difference_from_json

__all__ = ["Failure", "Verdict", "perform"]

_START = """
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    job = json.load(file)
sys.path[:] = job["path"]
from modpack.replaying.child import main
main(job, int(sys.argv[2]))
"""
_POLL_SECONDS = 0.5
_LOG_LINES = 15

Answer = Callable[[dict[str, Any]], dict[str, Json]]
"""Answers a question of the child's."""


@dataclass(frozen=True)
class Failure:
    """Why a run came to no output.

    Attributes:
        text: what went wrong, in one sentence.
        trace: where, innermost last, in the package's terms.
        is_timeout: whether it just took too long.
        is_end: whether the interpreter ended without a word.
    """

    text: str
    trace: tuple[str, ...] = ()
    is_timeout: bool = False
    is_end: bool = False


@dataclass(frozen=True)
class Verdict:
    """What came of one run in a clean interpreter.

    Attributes:
        failure: why it came to no output; None if it did.
        differences: where the outputs differ from the recorded ones, by the example's number.
        refused: what was looked for in vain because it is hidden, and by whom.
        has_skipped: whether a greater eagerness would have asked for more.
        operators: the operators that were declared from Python there.
        log: the end of what was written to stdout and stderr.
        seconds: how long it took.
        touches: what was done with mocked modules.
        unfilled: tables that name a class of the model here, and not there.
        imported: modules from outside the package that were imported, each with who did so first.
    """

    failure: Failure | None
    differences: tuple[tuple[int, Difference], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    operators: frozenset[str] = frozenset()
    has_skipped: bool = False
    log: str = ""
    seconds: float = 0.0
    touches: tuple[MockTouch, ...] = ()
    imported: tuple[tuple[str, str | None], ...] = ()
    unfilled: tuple[UnfilledTable, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the interpreter itself told what happened, and neither hung nor died."""
        return self.failure is None or not (self.failure.is_end or self.failure.is_timeout)

    def told_with(self, name: str, replacement: str) -> Verdict:
        """The same, with another name for the package's file in all texts."""
        if self.failure is None:
            return self
        text = self.failure.text.replace(name, replacement)
        trace = tuple(line.replace(name, replacement) for line in self.failure.trace)
        failure = replace(self.failure, text=text, trace=trace)
        return replace(self, failure=failure, log=self.log.replace(name, replacement))


def perform(job: dict[str, Json], answer: Answer, limit_seconds: float) -> Verdict:
    """Run a job in a clean interpreter of its own.

    Args:
        job: what to do; see :func:`modpack.replaying.child.main`. Without a ``tree`` the
            package's code goes to a folder that is removed afterwards.
        answer: asked by the child about what it misses.
        limit_seconds: when to give up.

    Raises:
        ModpackError: no interpreter can be started.
    """
    if not sys.executable:
        raise ModpackError(
            "there is no Python to try the package with: sys.executable is empty. "
            "Remedy: trial=False"
        )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="modpack-trial-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        outcome = _Run(job, place, limit_seconds).outcome(answer)
        return replace(outcome, log=_tail(place / "log"), seconds=time.monotonic() - started)


class _Run:
    """One child process, in a folder of its own."""

    def __init__(self, job: dict[str, Json], folder: Path, limit_seconds: float) -> None:
        self._folder = folder
        self._limit = limit_seconds
        self._deadline = time.monotonic() + limit_seconds
        (folder / "cwd").mkdir()
        job = {"tree": str(folder / "tree"), **job}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")

    def outcome(self, answer: Answer) -> Verdict:
        ours, theirs = Pipe()
        with ours, (self._folder / "log").open("wb") as log:
            with theirs:
                process = self._start(theirs, log)
            try:
                return self._converse(ours, process, answer)
            finally:
                process.kill()
                process.wait()

    def _start(self, connection: Connection, log: Any) -> subprocess.Popen[bytes]:
        optimised = [f"-{'O' * sys.flags.optimize}"] if sys.flags.optimize else []
        handle = connection.fileno()
        command = [sys.executable, "-I", *optimised, "-c", _START]
        return subprocess.Popen(
            [*command, str(self._folder / "job.json"), str(handle)],
            cwd=self._folder / "cwd",
            env={**os.environ, "MODPACK_CACHE": str(self._folder / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_inheriting(handle),
        )

    def _converse(
        self, connection: Connection, process: subprocess.Popen[bytes], answer: Answer
    ) -> Verdict:
        while True:
            message = self._received(connection, process)
            if isinstance(message, Failure):
                return Verdict(message)
            if message["kind"] == "verdict":
                return _understood(message)
            with contextlib.suppress(OSError):  # it ended meanwhile: the next question tells
                connection.send_bytes(json.dumps(answer(message)).encode("ascii"))

    def _received(
        self, connection: Connection, process: subprocess.Popen[bytes]
    ) -> dict[str, Any] | Failure:
        while not connection.poll(_POLL_SECONDS):
            if process.poll() is not None and not connection.poll(0):
                return Failure(_end_of(process), is_end=True)
            if time.monotonic() > self._deadline:
                text = f"it did not come to an end within {self._limit:.0f} seconds"
                return Failure(text, is_timeout=True)
        try:
            message: dict[str, Any] = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return Failure(_end_of(process), is_end=True)
        return message


def _inheriting(handle: int) -> dict[str, Any]:
    """How a child is given one handle, and no other."""
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    return {"pass_fds": (handle,)}


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return "it stopped answering"
    if code < 0:
        known = {member.value: member.name for member in signal.Signals}
        hint = ". Was there enough memory?" if -code == 9 else ""
        return f"it was killed by {known.get(-code, f'signal {-code}')}{hint}"
    return f"it ended by itself with exit status {code}"


def _understood(message: dict[str, Any]) -> Verdict:
    failure = message["failure"]
    return Verdict(
        Failure(failure["text"], tuple(failure["trace"])) if failure is not None else None,
        tuple((number, difference_from_json(each)) for number, each in message["differences"]),
        tuple((name, by) for name, by in message["refused"]),
        frozenset(message["operators"]),
        bool(message["has_skipped"]),
        touches=tuple(map(touch_from_json, message["touches"])),
        imported=tuple((name, by) for name, by in message["imported"]),
        unfilled=tuple(UnfilledTable(*table) for table in message["unfilled"]),
    )


def _tail(file: Path) -> str:
    lines = file.read_bytes().decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-_LOG_LINES:])
