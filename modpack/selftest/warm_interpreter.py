"""The process that imports torch once and forks an interpreter for each self-test.

:mod:`modpack.selftest.interpreters` starts it, isolated (``-I``). When its imports are done, it
describes them in one line of JSON. Each job then arrives with three descriptors: a socket that
reports the fork's start and end, the connection to the parent, and the log. Closing the first one
kills the fork. This process runs no kernels and opens no device, because neither threads of OpenMP
nor CUDA survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing.process
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NamedTuple

from modpack.core.process import die_with

FORK: Final = b"f"
"""Command: fork an interpreter. Three descriptors come with it."""
END: Final = b"e"
"""Command: end unless an interpreter is running."""
STARTED: Final = b"s"
"""A fork has started. Its exit status in decimal digits follows when it ends."""
_POLL_SECONDS: Final = 1.0


class ImportRecord(NamedTuple):
    """What the imports of a warm interpreter looked up.

    Attributes:
        modules: Modules that are imported or were looked for.
        origins: The file of each top-level module. Empty if it is missing or has none.
        distributions: Names of distributions whose metadata was looked for.
    """

    modules: list[str]
    origins: dict[str, str]
    distributions: list[str]


class _Recorder:
    """A finder that records lookups and finds nothing."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.distributions: set[str] = set()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        self.modules.add(fullname)

    def find_distributions(self, context: Any) -> Iterable[Any]:
        self.distributions.add(context.name or "")  # "": of all
        return ()


def wait_for_job(
    hidden: Sequence[str], descriptor: int, idle_seconds: float, parent: int
) -> tuple[dict[str, Any], int]:
    """Import torch, and fork an interpreter for each job until there is no more work.

    Only forks return, so that their call stack is as deep as that of a new interpreter. The server
    itself ends when its parent does, and after a time without work.

    Args:
        hidden: Modules to hide from torch.
        descriptor: Descriptor of the socket to the parent.
        idle_seconds: Time without work after which the server ends.
        parent: Process id of the parent.

    Returns:
        The job as JSON, and the descriptor of the connection to the parent.
    """
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    sys.argv = [""]
    before, recorder = dict(os.environ), _Recorder()
    _end_with(parent)
    from modpack.selftest.child_surroundings import FilteredFinder, HostIsolation
    from modpack.selftest.process import HiddenModules

    if hidden:
        HostIsolation(HiddenModules(tuple(hidden))).install()
    sys.meta_path.insert(0, recorder)
    import torch

    import modpack.examples.recorded

    # Forks share what is imported here. These modules import nothing but torch and modpack.
    import modpack.loading.objects
    import modpack.selftest.child
    import modpack.selftest.reference  # noqa: F401

    # Each fork hides what its own job says, so the finders are restored.
    sys.meta_path.remove(recorder)
    sys.meta_path[:] = [
        finder.original if isinstance(finder, FilteredFinder) else finder
        for finder in sys.meta_path
    ]
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Variables that the import of torch has set, as it would in a new interpreter.
    changed = dict(os.environ.items() - before.items())
    if threading.active_count() > 1 or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os._exit(1)  # neither survives a fork
    # A path may contain a __main__.py, but no import looks for it there.
    names = recorder.modules.union(sys.modules) - {"__main__"}
    origins = {name: _origin(name) for name in names if "." not in name}
    record = ImportRecord(list(names), origins, list(recorder.distributions))
    control = socket.socket(fileno=descriptor)
    control.sendall(json.dumps(record).encode("ascii") + b"\n")
    gc.collect()
    gc.freeze()  # a collection in a fork would write to all objects, and unshare their memory
    connection, log = _Server(control, parent, idle_seconds).run()
    signal.signal(signal.SIGINT, interrupt)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # A copy, because Connection closes its descriptor, which the job needs.
    with Connection(os.dup(connection)) as copy:
        folder, environment = json.loads(copy.recv_bytes())
    os.environ.clear()
    os.environ.update({**environment, **changed})
    os.chdir(Path(folder) / "cwd")
    # multiprocessing has noted the folder of its own import.
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
    # Forks would otherwise draw the same random numbers. torch.seed() would also seed the GPU's
    # generators, whose first seed is constant.
    random.seed()
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    job: dict[str, Any] = json.loads((Path(folder) / "job.json").read_bytes())
    sys.path[:] = job["path"]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()  # of distributions, too
    return job, connection


def _origin(module: str) -> str:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return (spec.origin or "") if spec is not None else ""


def _end_with(parent: int) -> None:
    """End this process within a second of its parent while it imports torch.

    The parent may have been killed. A signal that follows the thread that started this process, as
    PR_SET_PDEATHSIG does, would end it too early; a thread would not survive a fork.
    """

    def check(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)

    check()
    signal.signal(signal.SIGALRM, check)
    signal.siginterrupt(signal.SIGALRM, False)  # native code may not expect EINTR
    signal.setitimer(signal.ITIMER_REAL, _POLL_SECONDS, _POLL_SECONDS)


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
        self._forks: dict[int, socket.socket] = {}
        """The socket of each fork, by its process id."""
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)

    def run(self) -> tuple[int, int]:
        """Fork interpreters until there is no more work; return a fork's connection and log."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only wakes this process
        signal.set_wakeup_fd(self._waker.fileno())
        idle = 0.0
        # The parent's own forks may keep the socket open if Python does not know of them.
        while idle < self._idle_seconds and os.getppid() == self._parent:
            pause = min(_POLL_SECONDS, self._idle_seconds - idle)
            ready = wait([self._control, self._woken, *self._forks.values()], pause)
            idle = 0.0 if ready or self._forks else idle + pause
            if self._woken in ready:
                self._woken.recv(4096)
            self._end_forks(ready)
            if self._control in ready:
                command, descriptors, _, _ = socket.recv_fds(
                    self._control, 1, 3, socket.MSG_CMSG_CLOEXEC
                )
                if not command or (command == END and not self._forks):
                    break
                if command == FORK and self._fork(*descriptors):
                    return descriptors[1], descriptors[2]
        os._exit(0)  # forks end too

    def _end_forks(self, ready: Iterable[object]) -> None:
        """Kill forks that the parent gave up, and report those that have ended."""
        for process, reporter in list(self._forks.items()):
            if reporter in ready:
                os.kill(process, signal.SIGKILL)
            ended, status = os.waitpid(process, 0 if reporter in ready else os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):  # the parent does not listen any more
                    reporter.sendall(b"%d" % os.waitstatus_to_exitcode(status))
                self._forks.pop(process).close()

    def _fork(self, life: int, connection: int, log: int) -> bool:
        """Fork an interpreter, and return whether this process is the fork."""
        server, reporter, process = os.getpid(), socket.socket(fileno=life), -1
        with warnings.catch_warnings(), contextlib.suppress(OSError):  # too many processes
            warnings.simplefilter("ignore", DeprecationWarning)  # libraries' idle threads
            process = os.fork()
        if process == 0:
            die_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Copies in this fork would keep the sockets of the others open after their ends.
            for each in (reporter, self._control, self._woken, self._waker, *self._forks.values()):
                each.close()
            return True
        # The parent sees the fork's end on the connection only if no other process has it open.
        os.close(connection)
        os.close(log)
        if process > 0:
            self._forks[process] = reporter
            with contextlib.suppress(OSError):  # the next round notices it
                reporter.sendall(STARTED)
        else:
            reporter.close()
        return False
