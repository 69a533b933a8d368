"""Clean interpreters for the jobs of the self-test: forks of a warm one, or new ones.

A new interpreter imports torch, which takes longer than most jobs. On Linux, one isolated
interpreter of this process therefore imports torch once and forks a child for each job
(:mod:`modpack.selftest.warm_interpreter`). It ends with this process, however that ends, and after
a minute without work. A process that was forked from this one starts its own.

A job that would differ in a fork runs in a new interpreter: it hides a module that the import of
torch has used, or its import path or environment would change what is imported.
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
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from modpack.core.codec import from_json
from modpack.core.names import normalized_distribution as normalized
from modpack.core.process import helpers_enabled, start_if_possible
from modpack.selftest.warm_interpreter import END, FORK, STARTED, ServerDescription

if TYPE_CHECKING:
    from modpack.selftest.process import Job

SELF_TEST_VARIABLE: Final = "MODPACK_IN_SELF_TEST"
"""Environment variable that is ``1`` in the interpreters of self-tests."""
IDLE_SECONDS = 60.0
"""Time without work after which the warm interpreter ends."""
_START_SECONDS: Final = 120.0
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
sys.path[:] = json.loads(sys.argv[1])
from modpack.selftest.warm_interpreter import wait_for_job
job, handle = wait_for_job(int(sys.argv[2]), float(sys.argv[3]))
from modpack.selftest.child import main
main(job, handle)
"""
_NATIVE_PREFIXES: Final = (
    *("LANG", "LC_", "TZ", "LD_", "MALLOC_", "GLIBC_"),  # the C library
    *("OMP_", "GOMP_", "KMP_", "MKL", "OPENBLAS_", "DNNL_", "ONEDNN_"),  # kernels and threads
    *("TORCH", "PYTORCH", "ATEN_", "C10_", "CUDA", "NVIDIA_", "HIP_", "ROCR_"),  # torch
)
"""Variables that native code may read when it is loaded, which cannot be observed from Python."""

_log = logging.getLogger("modpack")


class Interpreter(Protocol):
    """A running interpreter, with methods of :class:`subprocess.Popen`."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def start_interpreter(
    job: Job, folder: Path, connection: Connection, handle: int, log: IO[bytes]
) -> Interpreter:
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
    fork = _fork_interpreter(job, handle, log)
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
            _running_server()
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
    optimized = [f"-{'O' * sys.flags.optimize}"] if sys.flags.optimize else []
    return [sys.executable, "-I", *optimized]


def _inheritance_options(handle: int) -> dict[str, Any]:
    """Return the options with which a child inherits one handle and no other."""
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    return {"pass_fds": (handle,)}


class _Launch(NamedTuple):
    """What a warm interpreter is started with."""

    command: tuple[str, ...]
    path: tuple[str, ...]


def _current_launch() -> _Launch:
    """Return what a warm interpreter would be started with now.

    Its import path has the folders of torch, modpack, and the installation. Of these, the current
    folder and the script's come last: their files must not replace the standard library's.
    """
    torch = importlib.util.find_spec("torch")
    found = [torch.origin] if torch is not None and torch.origin else []
    packages = [str(Path(file).absolute().parents[1]) for file in found]
    packages.append(str(Path(__file__).absolute().parents[2]))
    kept = {*packages, *installation_paths(), sysconfig.get_config_var("DESTSHARED")}
    entries = [str(Path(entry or Path.cwd()).absolute()) for entry in sys.path]
    path = dict.fromkeys(entry for entry in (*entries, *packages) if entry in kept)
    last = {str(Path.cwd()), script_folder()}
    ordered = sorted(path, key=lambda entry: entry in last)
    return _Launch(tuple(_isolated_python()), tuple(ordered))


class _Server:
    """The warm interpreter of this process.

    Attributes:
        launch: What it was started with.
        has_failed: Whether it could not import torch, or cannot be forked.
    """

    def __init__(self) -> None:
        self.launch = _current_launch()
        self.has_failed = False
        self._environment = dict(os.environ)
        self._description: ServerDescription | None = None
        self._control, theirs = socket.socketpair()
        arguments = [json.dumps(self.launch.path), str(theirs.fileno()), str(IDLE_SECONDS)]
        with theirs:
            self._process = subprocess.Popen(
                [*self.launch.command, "-c", _WARM, *arguments],
                cwd=os.sep,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended after its imports."""
        return not self.has_failed and self._process.poll() is not None

    def read_description(self) -> None:
        """Wait until the process has imported torch."""
        text = b""
        self._control.settimeout(_START_SECONDS)
        with contextlib.suppress(OSError):
            while not text.endswith(b"\n") and (part := self._control.recv(1 << 16)):
                text += part
        if text.endswith(b"\n"):
            self._description = from_json(ServerDescription, json.loads(text), "the server")
        if self._description is None or not self._description.can_fork:
            _log.info("the self-test uses new interpreters: no interpreter could be kept warm")
            self.has_failed = True
            self.end()

    def can_run(self, job: Job) -> bool:
        """Return whether a job finds in a fork what it would find in a new interpreter."""
        if self._description is None and not self.has_failed:
            self.read_description()
        known = self._description
        if known is None or self.has_failed:
            return False
        if self.launch != _current_launch() or self._differs(os.environ, known.variables):
            with contextlib.suppress(OSError):
                self._control.send(END, socket.MSG_NOSIGNAL)  # the next job starts another one
            return False
        distributions = map(normalized, known.distributions)
        return (
            set(job.hidden.modules).isdisjoint(known.names)
            and set(job.hidden.distributions).isdisjoint(distributions)
            and set(self.launch.path).issubset(job.path)
            and all(_finds(name, job.path, file) for name, file in known.origins.items())
        )

    def _differs(self, environment: Mapping[str, str], variables: Sequence[str]) -> bool:
        """Return whether variables have changed that are read when torch is imported."""
        names = {*variables, *(each for each in environment if each.startswith(_NATIVE_PREFIXES))}
        names.update(each for each in self._environment if each.startswith(_NATIVE_PREFIXES))
        return any(self._environment.get(name) != environment.get(name) for name in names)

    def fork(self, handle: int, log: int) -> _ForkedInterpreter | bytes:
        """Fork an interpreter; return the response if that is not possible.

        The response is empty if the process has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):
            passed = array.array("i", (theirs.fileno(), handle, log))
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)
            self._control.sendmsg([FORK], [rights], socket.MSG_NOSIGNAL)
        ours.settimeout(_START_SECONDS)
        response = b""
        with contextlib.suppress(OSError):
            response = ours.recv(1)
        if response == STARTED:
            return _ForkedInterpreter(ours)
        ours.close()
        return response

    def end(self) -> None:
        """End the process and its forks."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Let go of the process in a fork of this process, which is not its parent."""
        self._control.close()
        self._process.returncode = 0


class _ForkedInterpreter:
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
                self._life.shutdown(socket.SHUT_WR)


_lock = threading.Lock()
_server: _Server | None = None


def _fork_interpreter(job: Job, handle: int, log: IO[bytes]) -> _ForkedInterpreter | None:
    """Fork the warm interpreter for a job; return None if a new interpreter must run it."""
    for server in _servers():
        with _lock:
            if not server.can_run(job):
                return None
        fork = server.fork(handle, log.fileno())
        if isinstance(fork, _ForkedInterpreter):
            return fork
        if fork:
            return None
        _discard(server)
    return None


def _servers() -> Iterator[_Server]:
    """Yield the warm interpreter, and another one if that has ended just then."""
    for _ in range(2):
        with _lock:
            server = _running_server()
        if server is None:
            return
        yield server


def _running_server() -> _Server | None:
    """Return the warm interpreter, which is started if necessary. The caller holds the lock."""
    global _server
    if _server is not None and (
        _server.has_ended or (_server.has_failed and _server.launch != _current_launch())
    ):
        _server.end()
        _server = None
    # Elsewhere, forks are missing or unsafe.
    if _server is None and sys.platform == "linux" and helpers_enabled():
        _server = start_if_possible(_Server, "self-tests")
    return _server


def _discard(server: _Server) -> None:
    global _server
    with _lock:
        if _server is server:
            server.end()
            _server = None


@atexit.register
def _end_server() -> None:
    if _server is not None:
        _server.end()


def _forget_server() -> None:
    """Let a forked process start its own warm interpreter, and let this one end with its parent."""
    global _lock, _server
    _lock = threading.Lock()
    if _server is not None:
        _server.forget()
        _server = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_server)


def _finds(module: str, path: Sequence[str], file: str) -> bool:
    """Return whether a path contains a top-level module as this file, or does not contain it."""
    spec = PathFinder.find_spec(module, path)
    return spec is None or (spec.origin or "") == file
