"""Work in forked child processes, and its results."""

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
class ChildResult:
    """The result of a child process.

    Attributes:
        value: Return value of the work, decoded from JSON. None if it raised an exception.
        error: Class name of the exception. Empty if there was none.
        text: Message of the exception.
        signal: Number of the signal that ended the process, or 0.
        seconds: CPU time of the work.
        peak: Peak memory in bytes, less the memory at the start of the work.
    """

    value: Any = None
    error: str = ""
    text: str = ""
    signal: int = 0
    seconds: float = 0.0
    peak: int = 0

    @property
    def is_success(self) -> bool:
        """Whether the work returned."""
        return not self.error and not self.signal


class Child:
    """A forked process that runs a function and exits without the parent's cleanup.

    Args:
        work: Function to run. Returns a JSON value.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _run_and_exit(work, writing)
        os.close(writing)
        self._reading = reading

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process."""
        os.kill(self._pid, number)

    def wait(self) -> ChildResult:
        """Wait for the end of the process."""
        with os.fdopen(self._reading, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(self._pid, 0)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number or not content:
            return ChildResult(error="" if number else "no output", signal=number)
        return ChildResult(**json.loads(content))


def run_in_child(work: Callable[[], Any], timeout: int = 0) -> ChildResult:
    """Run a function in a child process, and wait for its result.

    Args:
        work: Function to run. Returns a JSON value.
        timeout: Seconds until SIGALRM ends the process. 0 means no limit.
    """

    def bounded() -> Any:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(timeout)
        return work()

    return Child(bounded).wait()


def _run_and_exit(work: Callable[[], Any], writing: int) -> None:
    try:
        result = json.dumps(_result(work), default=repr).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(result)
    finally:
        os._exit(0)


def _result(work: Callable[[], Any]) -> dict[str, Any]:
    before, start = _peak(), time.process_time()
    try:
        result: dict[str, Any] = {"value": work()}
    except BaseException as error:
        result = {"error": type(error).__name__, "text": str(error)}
    seconds = time.process_time() - start
    return {**result, "seconds": seconds, "peak": _peak() - before}


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
