"""The processes of one version of a package, as the server sees them: a zygote and its workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from modpack.core.codec import from_json, record_to_json
from modpack.errors import ModpackError
from modpack.serving.dispatch import Dispatcher, Job
from modpack.serving.frames import (
    Channel,
    FrameDecoder,
    LoadedPackage,
    LoadOrder,
    encode_frame,
)
from modpack.serving.log import Log, run_in_background
from modpack.serving.settings import Answer

# With -m, Python would first look for modules such as random.py in the current folder.
_START: Final = """
import sys
sys.path[:] = sys.argv[3:]
from modpack.serving.zygote import main
main()
"""
_MAX_LINE: Final = 1 << 13
"""Bytes of a line on a process's stderr that become one log line."""
_MAX_DELAY: Final = 5.0
_END_AFTER: Final = 2.0
_MAX_EARLY_ENDS: Final = 5
"""Workers that may end before they are ready until the server gives up."""


class Zygote:
    """A process that loads a package and starts workers; see :mod:`modpack.serving.zygote`.

    Args:
        order: The package, and how to load it.
        log: Writes log lines, also those that the process and its forks write to stderr.
    """

    def __init__(self, order: LoadOrder, log: Log) -> None:
        self.order = order
        self._is_loaded = False
        self._control, theirs = socket.socketpair()
        numbers = [str(theirs.fileno()), str(os.getpid())]
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", _START, *numbers, *sys.path],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
        except BaseException:
            self._control.close()
            raise
        # A model may write anything to stderr, and each line of the log has one form.
        reading = threading.Thread(target=self._log_output, args=(log,), daemon=True)
        try:
            reading.start()
        except RuntimeError:
            self.close()
            raise
        Channel(self._control).send({"load": record_to_json(order)})
        self._control.setblocking(False)

    def _log_output(self, log: Log) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            while line := stream.readline(_MAX_LINE):
                if text := line.decode("utf-8", "replace").rstrip():
                    log("output", model=self.order.name, message=text)

    async def loaded(self) -> LoadedPackage:
        """Return the description of the package as soon as it is loaded.

        Raises:
            ModpackError: If it cannot be loaded.
        """
        loop, decoder = asyncio.get_running_loop(), FrameDecoder()
        while data := await loop.sock_recv(self._control, 1 << 16):
            for header, _ in decoder.feed(data):
                if "loaded" in header:
                    self._is_loaded = True
                    return from_json(LoadedPackage, header["loaded"], "the package")
                raise ModpackError(header["failed"])
        status = await asyncio.to_thread(self.process.wait)
        raise ModpackError(
            f"{self.order.path}: the process that loaded the package ended with status {status}"
        )

    def start_worker(self) -> socket.socket:
        """Fork a worker, or become one, and return the socket that is connected to it.

        Raises:
            OSError: If the process has ended.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        return ours

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended after the package was loaded."""
        return self._is_loaded and self.process.poll() is not None

    def close(self) -> None:
        """Let the process end; kill it if it does not, or still loads."""
        self._control.close()
        if not self._is_loaded:
            self.process.kill()
        try:
            self.process.wait(_END_AFTER)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Worker(asyncio.Protocol):
    """A worker process, connected by a socket.

    Args:
        pool: The pool that it belongs to.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._decoder = FrameDecoder()
        self._transport: Any = None
        self.pid: int | None = None
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for header, payload in self._decoder.feed(data):
            if "worker" in header:
                self.pid = int(header["worker"])
                self._pool.worker_ready(self)
                continue
            answers, start, content = [], 0, bytes(payload)
            for status, media_type, json_length, size in header["answers"]:
                body = content[start : start + size]
                answers.append(Answer(status, media_type, body, json_length))
                start += size
            self._pool.worker_finished(self, answers, header["seconds"])

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._pool.worker_lost(self)

    def start(self, jobs: Sequence[Job]) -> None:
        """Send jobs to the worker."""
        described = [[j.kind, j.encoding, j.json_length, len(j.body)] for j in jobs]
        self._transport.write(encode_frame({"jobs": described}, [job.body for job in jobs]))

    def kill(self) -> None:
        """End the worker at once."""
        if self.pid is not None and self.is_open:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let the worker end; it is idle."""
        self._transport.close()


class WorkerPool:
    """A loaded version of a package, and its workers. Lost workers are replaced.

    Args:
        order: The package, and how to load it. Loading begins at once.
        dispatcher: Gives requests to the workers.
        lost: Called for each worker that ended without being asked to.
        log: Writes log lines.
        load: Starts a process that loads the package.

    Attributes:
        is_broken: Whether no worker can be replaced, because the package cannot be loaded again.
    """

    def __init__(
        self,
        order: LoadOrder,
        dispatcher: Dispatcher,
        lost: Callable[[int | None], None],
        log: Log,
        load: Callable[[LoadOrder, Log], Zygote] = Zygote,
    ) -> None:
        self._order = order
        self._count = order.settings.workers
        self._dispatcher = dispatcher
        self._lost = lost
        self._log = log
        self._load = load
        self._zygotes = [load(order, log)]
        self._spare: Zygote | None = self._zygotes[0]
        """A zygote that can start a worker. One that cannot fork becomes the worker itself."""
        self._starting = asyncio.Lock()
        self._workers: set[Worker] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._delay = 0.0
        self._early_ends = 0
        self._all_ready = asyncio.Event()
        self._is_retired = False
        self.is_broken = False

    @property
    def pids(self) -> list[int]:
        """Processes of the workers that are ready."""
        return sorted(worker.pid for worker in self._workers if worker.pid is not None)

    async def start(self) -> LoadedPackage:
        """Load the package and start the workers, which are idle when this returns.

        Raises:
            ModpackError: If the package cannot be loaded, or workers end before they are ready.
        """
        package = await self._zygotes[0].loaded()
        self._order = self._order._replace(digest=package.digest)
        self._can_fork = package.can_fork
        for _ in range(self._count):
            await self._add_worker()
        await self._all_ready.wait()
        if len(self.pids) < self._count:
            raise ModpackError(f"{self._order.path}: workers end before they are ready")
        return package

    def worker_ready(self, worker: Worker) -> None:
        """Handle a worker that waits for its first job."""
        self._delay = 0.0
        if len(self.pids) == self._count:
            self._all_ready.set()
        self._free(worker)

    def worker_finished(self, worker: Worker, answers: Sequence[Answer], seconds: float) -> None:
        """Handle the answers of a worker."""
        if self._dispatcher.finish(worker, answers, seconds):
            self._free(worker)

    def worker_lost(self, worker: Worker) -> None:
        """Handle the end of a worker: another takes its requests and its place."""
        self._workers.discard(worker)
        # It ended before it was ready. If all of the first ones do, start() gives up.
        if worker.pid is None:
            self._early_ends += 1
            if self._early_ends == _MAX_EARLY_ENDS:
                self._all_ready.set()  # start() reports it
        if not self._is_retired:
            self._lost(worker.pid)
            was_ready = worker.pid is not None
            self._run("replace a worker", lambda: self._replace_worker(was_ready))
        self._dispatcher.remove(worker)

    def retire(self) -> None:
        """Let the workers finish their requests, and end all processes."""
        self._is_retired = True
        for worker in list(self._workers):
            if worker.pid is None or self._dispatcher.retire(worker):
                worker.close()

    async def close(self, timeout: float) -> None:
        """End all processes, those of retired workers when they have finished."""
        self.retire()
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while self._workers and loop.time() < end:
            await asyncio.sleep(0.02)
        for worker in list(self._workers):
            worker.kill()
        for task in list(self._tasks):
            task.cancel()
        for zygote in self._zygotes:
            await asyncio.to_thread(zygote.close)

    def kill(self) -> None:
        """Kill all processes that have not ended; workers end with their zygote."""
        for zygote in self._zygotes:
            zygote.process.kill()
            zygote.process.wait()

    def _free(self, worker: Worker) -> None:
        if self._is_retired:
            worker.close()
        else:
            self._dispatcher.add(worker)

    async def _replace_worker(self, was_ready: bool) -> None:
        """Start a worker: at once, or with growing delays if workers die before they are ready."""
        if not was_ready:
            self._delay = min(self._delay * 2 or 0.1, _MAX_DELAY)
            await asyncio.sleep(self._delay)
        if not self._is_retired:
            try:
                await self._add_worker()
            except (OSError, ModpackError):  # the server loads the package again, and reports why
                self.is_broken = True
                self._all_ready.set()  # start() reports it if workers are missing

    async def _add_worker(self) -> None:
        async with self._starting:  # forks of workers that are lost together have one zygote
            zygote = await self._spare_zygote()
            connection = zygote.start_worker()
            self._spare = zygote if self._can_fork else None
        loop = asyncio.get_running_loop()
        worker = Worker(self)
        self._workers.add(worker)
        try:
            await loop.create_connection(lambda: worker, sock=connection)
        except BaseException:
            self._workers.discard(worker)
            connection.close()
            raise

    async def _spare_zygote(self) -> Zygote:
        """Return a zygote that can start a worker; load the package again if there is none."""
        if self._spare is not None and not self._spare.has_ended:
            return self._spare
        if self._spare is not None:
            self._log("loading process lost", model=self._order.name)
            self._spare = None
        for ended in [each for each in self._zygotes if each.has_ended]:
            ended.close()
            self._zygotes.remove(ended)
        zygote = self._load(self._order, self._log)
        self._zygotes.append(zygote)
        self._can_fork = (await zygote.loaded()).can_fork
        return zygote

    def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        run_in_background(name, work, self._tasks, self._log)
