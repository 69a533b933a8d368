"""The process that imports torch once and forks an interpreter for each self-test.

:mod:`modpack.selftest.interpreters` starts it, isolated (``-I``). When its imports are done, it
describes itself in one line of JSON. Each job then arrives with three descriptors: a socket that
reports the fork's start and end, the connection to the parent, and the log. Closing the first one
kills the fork. This process never runs a kernel or opens a device, because threads of OpenMP and
CUDA would not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import linecache
import multiprocessing.process
import os
import random
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from modpack.core.codec import record_to_json
from modpack.core.json_values import Json
from modpack.core.process import die_with

FORK: Final = b"f"
"""Command: fork an interpreter. Three descriptors come with it."""
END: Final = b"e"
"""Command: end unless an interpreter is running."""
STARTED: Final = b"s"
"""A fork has started. Its exit status in decimal digits follows when it ends."""
FAILED: Final = b"x"
"""The operating system could not fork."""
_POLL_SECONDS: Final = 1.0


class ServerDescription(NamedTuple):
    """What the server has imported, which decides the jobs that its forks can run.

    Attributes:
        can_fork: Whether forks of the server are safe.
        names: Modules that are imported or were looked for.
        origins: The file of each top-level name. Empty for namespace packages and missing modules.
        distributions: Distributions whose metadata was looked for, as named there.
        variables: Environment variables that imports read.
    """

    can_fork: bool
    names: tuple[str, ...]
    origins: dict[str, str]
    distributions: tuple[str, ...]
    variables: tuple[str, ...]


class _Recorder:
    """Records the modules, distributions, and variables that imports look up. It finds nothing."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.distributions: set[str] = set()
        self.variables: set[str] = set()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        self.names.add(fullname)

    def find_distributions(self, context: Any) -> Iterable[Any]:
        if context.name is not None:
            self.distributions.add(context.name)
        return ()

    @contextlib.contextmanager
    def recording(self) -> Any:
        encode = os.environ.encodekey

        def record(name: str) -> str:
            self.variables.add(name)
            return encode(name)

        sys.meta_path.insert(0, self)
        os.environ.encodekey = record
        try:
            yield
        finally:
            os.environ.encodekey = encode
            sys.meta_path.remove(self)


def wait_for_job(descriptor: int, idle_seconds: float) -> tuple[dict[str, Json], int]:
    """Import torch, and fork an interpreter for each job until there is no more work.

    Only forks return, so that their call stack is as deep as that of a new interpreter. The server
    itself ends when its parent does, and after a time without work.

    Args:
        descriptor: Descriptor of the socket to the parent.
        idle_seconds: Time without work after which the server ends.

    Returns:
        The job as JSON, and the descriptor of the connection to the parent.
    """
    parent = os.getppid()
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    sys.argv = [""]
    before = dict(os.environ)
    recorder = _Recorder()
    with recorder.recording():
        import torch

        # Forks share what is imported here. These modules import nothing but torch and modpack.
        import modpack.loading.objects
        import modpack.selftest.child
        import modpack.selftest.compare
        import modpack.selftest.reference  # noqa: F401

    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    control.sendall(_describe(recorder, torch.cuda.is_initialized()))  # type: ignore[no-untyped-call]
    gc.collect()
    gc.freeze()  # a collection in a fork would write to all objects, and unshare their memory
    connection, log = _Server(control, parent, idle_seconds).run()
    signal.signal(signal.SIGINT, interrupt)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    copy = Connection(os.dup(connection))
    with copy:
        folder, environment = json.loads(copy.recv_bytes())
    os.environ.clear()
    os.environ.update({**environment, **changed})
    _forget_server(torch, folder)
    job: dict[str, Json] = json.loads((Path(folder) / "job.json").read_bytes())
    sys.path[:] = job["path"]  # type: ignore[assignment]
    return job, connection


def _describe(recorder: _Recorder, has_cuda: bool) -> bytes:
    names = recorder.names.union(sys.modules)
    described = ServerDescription(
        threading.active_count() == 1 and not has_cuda,
        tuple(names),
        {name: _origin(name) for name in names if "." not in name and _is_searched(name)},
        tuple(recorder.distributions),
        tuple(recorder.variables),
    )
    return json.dumps(record_to_json(described)).encode("ascii") + b"\n"


def _is_searched(name: str) -> bool:
    """Return whether a top-level module is searched for in ``sys.path``."""
    if name not in sys.modules:
        return True
    spec = getattr(sys.modules[name], "__spec__", None)
    return spec is not None and spec.origin not in ("built-in", "frozen")


def _origin(name: str) -> str:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return (spec.origin or "") if spec is not None else ""


def _forget_server(torch: Any, folder: str) -> None:
    """Give a fork the state of a new interpreter in a folder."""
    os.chdir(Path(folder) / "cwd")
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
    linecache.clearcache()
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()  # of distributions, too
    # Forks would otherwise draw the same random numbers. torch.seed() would also seed the GPU's
    # generators, whose first seed is constant.
    random.seed()
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


class _Server:
    """Forks interpreters, and reports their ends.

    Args:
        control: The socket to the parent.
        parent: The process id of the parent.
        idle_seconds: Time without work after which the server ends.
    """

    def __init__(self, control: socket.socket, parent: int, idle_seconds: float) -> None:
        self._control = control
        self._parent = parent
        self._idle_seconds = idle_seconds
        self._lives: dict[int, socket.socket] = {}
        """The socket of each fork, which reports its end."""
        self._woken, waker = socket.socketpair()
        self._woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker

    def run(self) -> tuple[int, int]:
        """Fork interpreters until there is no more work; return a fork's connection and log."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only wakes this process
        signal.set_wakeup_fd(self._waker.fileno())
        idle = 0.0
        while idle < self._idle_seconds:
            wait = min(_POLL_SECONDS, self._idle_seconds - idle)
            sockets = [self._control, self._woken, *self._lives.values()]
            ready, _, _ = select.select(sockets, [], [], wait)
            idle = 0.0 if ready or self._lives else idle + wait
            self._end_forks(ready)
            # A process that was forked without Python's knowledge may keep the socket open.
            if os.getppid() != self._parent:
                break
            if self._control in ready:
                command, descriptors, _, _ = socket.recv_fds(
                    self._control, 1, 3, socket.MSG_CMSG_CLOEXEC
                )
                if not command or (command == END and not self._lives):
                    break
                if command == FORK and (fork := self._fork(*descriptors)) is not None:
                    return fork
        os._exit(0)  # forks end too

    def _end_forks(self, ready: Iterable[socket.socket]) -> None:
        """Kill forks that the parent gave up, and report those that have ended."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        for process, life in list(self._lives.items()):
            is_unwanted = life in ready
            if is_unwanted:
                os.kill(process, signal.SIGKILL)
            ended, status = os.waitpid(process, 0 if is_unwanted else os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):  # the parent does not listen any more
                    life.sendall(b"%d" % os.waitstatus_to_exitcode(status))
                self._lives.pop(process).close()

    def _fork(self, life: int, connection: int, log: int) -> tuple[int, int] | None:
        """Fork an interpreter. Return its connection and log in the fork, and None here."""
        server = os.getpid()
        reporter = socket.socket(fileno=life)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # libraries' idle threads
                process = os.fork()
        except OSError:  # no memory, or too many processes
            process = -1
        if not process:
            die_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (reporter, self._control, self._woken, self._waker, *self._lives.values()):
                each.close()
            return connection, log
        os.close(connection)
        os.close(log)
        with contextlib.suppress(OSError):  # the parent does not listen any more
            reporter.sendall(STARTED if process > 0 else FAILED)
        if process > 0:
            self._lives[process] = reporter
        else:
            reporter.close()
        return None
