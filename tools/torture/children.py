"""Children: what is done in a forked process of its own, and what it tells of it."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Told:
    """What a child told, and how it ended.

    Attributes:
        value: what its work returned, by way of JSON; None if it did not return.
        error: the class of what its work raised; empty if it raised nothing.
        text: what that said.
        signal: the signal that ended it; 0 if none did.
        seconds: of processor time that its work took.
        peak: bytes of memory that it had at most beyond what it had when it began.
    """

    value: Any = None
    error: str = ""
    text: str = ""
    signal: int = 0
    seconds: float = 0.0
    peak: int = 0

    @property
    def has_ended_well(self) -> bool:
        """Whether its work returned."""
        return not self.error and not self.signal


class Child:
    """A forked process that does something, and then ends without cleaning up after its parent.

    Args:
        work: what it does; what it returns must be of JSON's kinds.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _work_and_end(work, writing)
        os.close(writing)
        self._reading = reading

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        os.kill(self._pid, number)

    def wait(self) -> Told:
        """Wait until it ends."""
        with os.fdopen(self._reading, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(self._pid, 0)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number or not content:
            return Told(error="" if number else "silence", signal=number)
        return Told(**json.loads(content))


def told(work: Callable[[], Any], seconds: int = 0) -> Told:
    """Do something in a child and wait for it.

    Args:
        work: what it does.
        seconds: after which it is ended with SIGALRM; 0 for never.
    """

    def bounded() -> Any:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        return work()

    return Child(bounded).wait()


def _work_and_end(work: Callable[[], Any], writing: int) -> None:
    try:
        answer = json.dumps(_answer(work), default=repr).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def _answer(work: Callable[[], Any]) -> dict[str, Any]:
    before, start = _peak(), time.process_time()
    try:
        answer: dict[str, Any] = {"value": work()}
    except BaseException as failure:  # whatever it is, is told
        answer = {"error": type(failure).__name__, "text": str(failure)}
    seconds = time.process_time() - start
    return {**answer, "seconds": seconds, "peak": _peak() - before}


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
