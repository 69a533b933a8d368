"""A served model: its current package, and the replacement when the file is replaced."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from modpack.core.call_signature import CallSignature
from modpack.errors import ModpackError
from modpack.serving.dispatch import Dispatcher, Metrics
from modpack.serving.frames import LoadedPackage, LoadOrder
from modpack.serving.log import Log, run_in_background
from modpack.serving.open_inference import version_of
from modpack.serving.pool import WorkerPool

_POLL_SECONDS: Final = 1.0


class ServedModel:
    """A model that a server answers with. Loading the package begins at once.

    Args:
        order: The package, and how to load it.
        metrics: Receives figures.
        log: Writes log lines.

    Attributes:
        digest: Digest of the package that answers.
        signature: Its call signature.
        dispatcher: The queue of its requests.
    """

    digest: str
    signature: CallSignature

    def __init__(self, order: LoadOrder, metrics: Metrics, log: Log) -> None:
        self.name = order.name
        self.dispatcher = Dispatcher(order.name, order.settings, metrics)
        self._order = order
        self._metrics = metrics
        self._log = log
        self._retired: set[asyncio.Task[None]] = set()
        self._seen = _identity(order.path)
        self._pool = self._make_pool()
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a worker is ready."""
        return bool(self._pool.pids)

    @property
    def version(self) -> str:
        """The version of the model in the Open Inference Protocol."""
        return version_of(self.digest)

    async def start(self) -> None:
        """Wait until the workers are ready, and begin to watch the file.

        Raises:
            ModpackError: If the package cannot be loaded.
        """
        self._adopt(await self._pool.start())
        self._watching = run_in_background("watch the file", self._watch, set(), self._log)

    async def close(self, timeout: float) -> None:
        """End all processes; workers that compute have ``timeout`` seconds to finish."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(self._pool.close(timeout), *self._retired)

    def kill(self) -> None:
        """Kill all processes that have not ended."""
        self._pool.kill()

    def _make_pool(self) -> WorkerPool:
        return WorkerPool(self._order, self.dispatcher, self._count_lost, self._log)

    def _adopt(self, package: LoadedPackage) -> None:
        """Describe the package of the pool, which answers from now on."""
        for text in package.warnings:
            self._log("warning", model=self.name, message=text)
        self.signature = package.signature
        self.digest = package.digest
        self._log("ready", model=self.name, version=self.version, workers=self._pool.pids)

    def _count_lost(self, pid: int | None) -> None:
        self._metrics.worker_lost(self.name)
        self._log("worker lost", model=self.name, pid=pid)

    async def _watch(self) -> None:
        """Load the package again when its file is replaced, or no worker can be replaced."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            seen = await asyncio.to_thread(_identity, self._order.path)
            # While a file is replaced in two steps, it does not exist for a moment.
            if seen is None or (seen == self._seen and not self._pool.is_broken):
                continue
            if await self._replace():
                self._seen = seen

    async def _replace(self) -> bool:
        """Load the package again; return False if that is worth another attempt."""
        pool = None
        try:
            pool = self._make_pool()
            package = await pool.start()
        except Exception as failure:  # of any kind: the previous package must go on answering
            if pool is not None:
                await pool.close(0)
            self._metrics.replaced(self.name, False)
            is_broken = self._pool.is_broken
            kept = "no worker can be replaced" if is_broken else "the previous one answers"
            self._log("replacement failed", model=self.name, error=str(failure), result=kept)
            return isinstance(failure, ModpackError)  # others are of the system, not of the file
        previous, self._pool = self._pool, pool
        self._adopt(package)
        self._metrics.replaced(self.name, True)
        timeout = self._order.settings.timeout
        run_in_background(
            "end old workers", lambda: previous.close(timeout), self._retired, self._log
        )
        return True


def _identity(path: str) -> tuple[int, ...] | None:
    """Return numbers that change when a file is replaced, or None if it cannot be read."""
    try:
        found = os.stat(path)  # noqa: PTH116  # of the name, each second
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
