"""Clean interpreters for the jobs of the self-test: forks of a warm one, or new ones.

A new interpreter imports torch, which takes longer than most jobs. On Linux, one isolated
interpreter of this process therefore imports torch once and forks a child for each job
(:mod:`modpack.selftest.warm_interpreter`). It ends with this process, however that ends, and after
a minute without work. A process that was forked from this one starts its own.

If a job hides a module that the import of torch looks up, another warm interpreter hides it, too. A
job that would still differ in a fork runs in a new interpreter, for example because its import path
has other files for modules that torch imports.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib.util
import json
import logging
import os
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from modpack.core.names import normalized
from modpack.core.process import helpers_enabled, start_if_possible
from modpack.selftest.warm_interpreter import END, FORK, STARTED, ImportRecord

if TYPE_CHECKING:
    from modpack.selftest.process import Job

SELF_TEST_VARIABLE: Final = "MODPACK_IN_SELF_TEST"
"""Environment variable that is ``1`` in the interpreters of self-tests."""
IDLE_SECONDS = 60.0
"""Time without work after which the warm interpreter ends."""
_START_SECONDS: Final = 120.0
_END_SECONDS: Final = 2.0
# -I ignores PYTHONPATH and the current folder, so the path is set before modpack is imported.
_NEW = """
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    job = json.load(file)
sys.path[:] = job["path"]
from modpack.selftest.child import main
main(job, int(sys.argv[2]))
"""
_WARM = """
import json, sys
sys.path[:], *options = json.loads(sys.argv[1])
from modpack.selftest.warm_interpreter import wait_for_job
job, handle = wait_for_job(*options)
from modpack.selftest.child import main
main(job, handle)
"""
_READ_AT_START: Final = (
    *("LANG", "LC_", "TZ", "LD_", "MALLOC_", "GLIBC_"),  # by the C library
    *("OMP_", "GOMP_", "KMP_", "MKL", "OPENBLAS_", "DNNL_", "ONEDNN_"),  # by libraries of torch
    *("TORCH", "PYTORCH", "ATEN_"),
)
"""Prefixes of variables that are read when an interpreter starts or torch is imported."""

_log = logging.getLogger("modpack")


def start_interpreter(
    job: Job, folder: Path, connection: Connection, handle: int, log: IO[bytes]
) -> ForkedInterpreter | subprocess.Popen[bytes]:
    """Start an interpreter that runs a job: a fork of the warm one, or else a new one.

    Args:
        job: The job, which is also the content of ``job.json``.
        folder: The folder with ``job.json`` and an empty folder ``cwd``.
        connection: The parent's end of the connection to the interpreter.
        handle: The descriptor of the other end.
        log: File for stdout and stderr.

    Raises:
        OSError: If no process can be started.
    """
    environment = {**os.environ, SELF_TEST_VARIABLE: "1"}
    environment["MODPACK_CACHE_DIR"] = str(folder / "cache")
    fork = None if job.in_new_interpreter else _fork_interpreter(job, handle, log)
    if fork is not None:
        start = json.dumps([str(folder), environment]).encode("ascii")
        with contextlib.suppress(OSError):  # the next read reports that it ended
            connection.send_bytes(start)
        return fork
    return subprocess.Popen(
        [*_isolated_python(), "-c", _NEW, str(folder / "job.json"), str(handle)],
        cwd=folder / "cwd",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        **_inheritance_options(handle),
    )


def prestart() -> None:
    """Start the warm interpreter if this process has none, without waiting for its imports."""
    if _lock.acquire(blocking=False):  # otherwise, another thread is about to start it
        try:
            _start_warm_interpreter()
        finally:
            _lock.release()


def installation_paths() -> list[str]:
    """Return the folders of the standard library and of installed distributions."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    zipped = [entry for entry in sys.path if entry.endswith(".zip")]
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    sites = [*site.getsitepackages(), *([user] if user else [])]
    return [*map(sysconfig.get_path, names), *zipped, *sites]


def script_folder() -> str | None:
    """Return the folder of the running script."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(script).absolute().parent) if script else None


def _isolated_python() -> list[str]:
    # Assertions of packaged code run in the interpreter only if they run in this process.
    optimized = [f"-{'O' * sys.flags.optimize}"] if sys.flags.optimize else []
    return [sys.executable, "-I", *optimized]


def _inheritance_options(handle: int) -> dict[str, Any]:
    """Return the options with which a child inherits one handle and no other."""
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    return {"pass_fds": (handle,)}


def _warm_path() -> list[str]:
    """Return the import path of a warm interpreter: torch, modpack, and the installation.

    If the current folder or the script's is one of these folders, it comes last. Their files must
    not replace those of the standard library.
    """
    torch = importlib.util.find_spec("torch")
    files = [__file__.rpartition(os.sep)[0], *([torch.origin] if torch and torch.origin else [])]
    packages = [str(Path(file).absolute().parents[1]) for file in files]
    kept = {*packages, *installation_paths(), sysconfig.get_config_var("DESTSHARED")}
    entries = [str(Path(entry or Path.cwd()).absolute()) for entry in sys.path]
    path = dict.fromkeys(entry for entry in (*entries, *packages) if entry in kept)
    last = {str(Path.cwd()), script_folder()}
    return sorted(path, key=lambda entry: entry in last)


def _variables_at_start() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.startswith(_READ_AT_START)}


class _WarmInterpreter:
    """The warm interpreter of this process.

    Attributes:
        process: The process.
        control: The socket to the process.
        hidden: Modules that are hidden from torch's own imports, too.
        has_failed: Whether it could not import torch, or cannot be forked.
    """

    def __init__(self, hidden: frozenset[str]) -> None:
        self.hidden = hidden
        self.has_failed = False
        self._path = _warm_path()
        self._variables = _variables_at_start()
        self._record: ImportRecord | None = None
        self._received = b""
        self.control, theirs = socket.socketpair()
        self.control.settimeout(_START_SECONDS)
        with theirs:
            options = [self._path, list(hidden), theirs.fileno(), IDLE_SECONDS, os.getpid()]
            self.process = subprocess.Popen(
                [*_isolated_python(), "-c", _WARM, json.dumps(options)],
                cwd=os.sep,
                env={**os.environ, SELF_TEST_VARIABLE: "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )

    def _has_record(self) -> bool:
        """Wait for the imports, and return whether they succeeded."""
        with contextlib.suppress(OSError):
            while self._record is None and (part := self.control.recv(1 << 16)):
                self._received += part  # Ctrl-C may interrupt the loop
                if part.endswith(b"\n"):
                    self._record = ImportRecord(*json.loads(self._received))
        if self._record is None and not self.has_failed:
            _log.info("self-tests use new interpreters, because none could be kept warm")
            self.has_failed = True
            self.end()
        return self._record is not None

    def needs_successor(self, job: Job) -> bool:
        """Return whether a warm interpreter with other imports is needed for a job."""
        return self._has_record() and (
            # The origins of all modules are compared for each job, whatever the order of the path.
            set(self._path) != set(_warm_path())
            or self._variables != _variables_at_start()
            or not self.hidden.issubset(job.hidden.modules)
            or not self.hidden.issuperset(self.looked_up(job))
        )

    def looked_up(self, job: Job) -> frozenset[str]:
        """Return the modules that a job hides and that the imports have looked up."""
        assert self._record is not None
        return frozenset(job.hidden.modules).intersection(self._record.modules)

    def end_if_unused(self) -> bool:
        """End the process unless other threads use its forks. Return whether it has ended."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.control.send(END, socket.MSG_NOSIGNAL)
            self.process.wait(_END_SECONDS)
        return self.process.poll() is not None

    def can_run(self, job: Job) -> bool:
        """Return whether a job finds in a fork what it would find in a new interpreter."""
        if not self._has_record() or self.needs_successor(job):
            return False
        assert self._record is not None
        _, origins, distributions = self._record
        return (
            set(job.hidden.distributions).isdisjoint(map(normalized, distributions))
            and set(self._path).issubset(job.path)
            and all(_finds(n, job.path, f) for n, f in origins.items() if n not in self.hidden)
            and not _has_torch_plugin([e for e in job.path if e not in self._path])
        )

    def fork(self, handle: int, log: int) -> ForkedInterpreter | None:
        """Fork an interpreter; return None if the process has ended or cannot be forked."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_START_SECONDS)
        with theirs, contextlib.suppress(OSError):
            passed = array.array("i", (theirs.fileno(), handle, log))
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)
            # If the process has ended, SIGPIPE would end a program that does not ignore it.
            self.control.sendmsg([FORK], [rights], socket.MSG_NOSIGNAL)
        with contextlib.suppress(OSError):
            if ours.recv(1) == STARTED:
                return ForkedInterpreter(ours)
        ours.close()
        return None

    def end(self) -> None:
        """End the process and its forks."""
        self.control.close()
        self.process.kill()
        self.process.wait()


class ForkedInterpreter:
    """A fork of the warm interpreter.

    Args:
        life: The socket on which the warm interpreter reports the exit status.
    """

    def __init__(self, life: socket.socket) -> None:
        self._life = life
        self._status: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            if not wait([self._life], timeout):
                raise subprocess.TimeoutExpired("python", timeout or 0)
            self._life.settimeout(None)
            # Without a report, the warm interpreter was killed, and its forks with it.
            self._status = int(self._life.recv(16) or -signal.SIGKILL)
            self._life.close()
        return self._status

    def kill(self) -> None:
        if self._status is None:
            with contextlib.suppress(OSError):  # it has ended
                # The warm interpreter then kills the fork. Its exit status still arrives here.
                self._life.shutdown(socket.SHUT_WR)


_lock = threading.Lock()
_warm: _WarmInterpreter | None = None


def _start_warm_interpreter(hidden: frozenset[str] | None = None) -> _WarmInterpreter | None:
    """Return the warm interpreter, which is started if necessary. The caller holds the lock.

    Args:
        hidden: Modules that a new one hides. By default, those of the previous one.
    """
    global _warm
    if sys.platform != "linux" or not helpers_enabled():  # elsewhere, forks are missing or unsafe
        return None
    if _warm is not None and not _warm.has_failed and _warm.process.poll() is not None:
        _warm.end()
        hidden = _warm.hidden if hidden is None else hidden
        _warm = None
    if _warm is None:
        _warm = start_if_possible(lambda: _WarmInterpreter(hidden or frozenset()), "self-tests")
    return _warm


def _fork_interpreter(job: Job, handle: int, log: IO[bytes]) -> ForkedInterpreter | None:
    """Fork the warm interpreter for a job; return None if a new interpreter must run it."""
    with _lock:
        warm = _start_warm_interpreter()
        # One is kept, because each has torch in memory. The next jobs probably hide the same
        # modules.
        if warm is not None and warm.needs_successor(job):
            hidden = warm.looked_up(job) | warm.hidden.intersection(job.hidden.modules)
            warm = _start_warm_interpreter(hidden) if warm.end_if_unused() else None
        if warm is None or not warm.can_run(job):
            return None
    return warm.fork(handle, log.fileno())


@atexit.register
def _end_warm_interpreter() -> None:
    if _warm is not None:
        _warm.end()


def _forget_warm_interpreter() -> None:
    """Let a forked process start its own warm interpreter, and let this one end with its parent."""
    global _lock, _warm
    # A thread that does not exist in this process may have held the lock.
    _lock = threading.Lock()
    if _warm is not None:
        _warm.control.close()
        _warm.process.returncode = 0  # it is not a child of this process
        _warm = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_warm_interpreter)


def _finds(module: str, path: Sequence[str], file: str) -> bool:
    """Return whether a path contains a top-level module as this file, or does not contain it."""
    if file in ("built-in", "frozen"):
        return True
    spec = PathFinder.find_spec(module, path)
    return spec is None or (spec.origin or "") == file


def _has_torch_plugin(path: list[str]) -> bool:
    """Return whether a path contains a distribution with a plugin that torch imports."""
    groups = (point.group for each in distributions(path=path) for point in each.entry_points)
    return "torch.backends" in groups
