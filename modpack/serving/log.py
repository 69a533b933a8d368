"""Structured log lines on stderr, and background tasks, whose failures are logged."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Final, Literal

import msgspec

from modpack.core.text import printable

Log = Callable[..., None]
"""Writes a log line: an event, its time if that is not now, and its fields by keyword."""
_RESTART_SECONDS: Final = 1.0
_encode = msgspec.json.Encoder(enc_hook=str).encode


def make_log(log_format: Literal["json", "text"]) -> Log:
    """Return a function that writes an event and its fields as one line to stderr.

    Its second argument is the time of the event, if that is not now.
    """

    def write(event: str, at: float | None = None, /, **fields: object) -> None:
        now = datetime.now(timezone.utc) if at is None else datetime.fromtimestamp(at, timezone.utc)
        if log_format == "json":
            time = now.isoformat(timespec="milliseconds")
            line = _to_json({"time": time, "event": event, **fields})
        else:
            shown = " ".join(f"{name}={_show(value)}" for name, value in fields.items())
            line = f"{now.astimezone():%H:%M:%S} {event} {shown}"
        write_line(line)

    return write


def _to_json(record: dict[str, object]) -> str:
    with suppress(UnicodeError):  # a file's name with bytes that are not UTF-8
        line = _encode(record).decode()
        if line.isascii():
            return line
    return json.dumps(record, default=str)  # escapes all other characters


def write_line(line: str) -> None:
    """Write a line to stderr. A server logs the lines of its workers."""
    with suppress(OSError, ValueError):  # the reader of the log has ended
        sys.stderr.write(f"{printable(line)}\n")


def _show(value: object) -> str:
    text = printable(str(value).replace("\n", "; "))
    return repr(text) if " " in text else text


class LogHandler(logging.Handler):
    """Writes the records of a library's logger as log lines."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._log("warning", logger=record.name, message=self.format(record))


def run_in_background(
    name: str, work: Callable[[], Awaitable[None]], tasks: set[asyncio.Task[None]], log: Log
) -> asyncio.Task[None]:
    """Run work until it returns or is canceled; log each failure, and start the work again.

    Args:
        name: Name of the work in the log.
        work: Coroutine function that can be called again after it has failed.
        tasks: Contains the task while it runs, because the event loop refers to it only weakly.
        log: Writes log lines.
    """

    async def run() -> None:
        while True:
            try:
                return await work()
            except Exception as failure:  # of any kind: exhausted descriptors, threads, or memory
                log("task failed", task=name, error=f"{type(failure).__name__}: {failure}")
            await asyncio.sleep(_RESTART_SECONDS)

    task = asyncio.get_running_loop().create_task(run())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
