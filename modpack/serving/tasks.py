"""Background tasks of a server, none of which ends unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

Log = Callable[..., None]
"""Writes a log line: an event, its time if that is not now, and its fields by keyword."""

_RESTART_SECONDS: Final = 1.0


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
