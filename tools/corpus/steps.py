"""Steps whose failures are told, not raised: one failing step must not hide the others."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

OK = "ok"


class Steps:
    """What came of each step, in order.

    Attributes:
        outcomes: ``ok``, or the last line of the error, by the name of the step. The whole
            traceback goes to standard error.
        failures: the exception of each step that failed.
        seconds: how long each step took.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.failures: dict[str, BaseException] = {}
        self.seconds: dict[str, float] = {}

    def take(self, name: str, step: Callable[[], Any]) -> Any:
        """Carry out a step; what it returns, or None if it fails."""
        started = time.perf_counter()
        self.outcomes[name] = OK
        try:
            return step()
        except (Exception, SystemExit) as failure:
            print(f"--- {name}", file=sys.stderr)
            traceback.print_exc()
            self.outcomes[name] = in_one_line(failure)
            self.failures[name] = failure
        finally:
            self.seconds[name] = round(time.perf_counter() - started, 3)
        return None


def in_one_line(failure: BaseException) -> str:
    """The error as the last line of a traceback shows it."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return f"{type(failure).__name__}: {' / '.join(lines[:4])}"[:400]
