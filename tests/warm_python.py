"""Interpreters for tests that start in milliseconds: forks of one that has imported torch.

Importing torch takes longer than most things that a test asks of a fresh interpreter. A server,
itself a fresh isolated interpreter, imports torch once. Each request forks a child, which gets the
caller's descriptors, working directory, and environment, and runs the command as ``python`` would.
Nothing of the test process is in it. Two things differ from a new process: torch is in
``sys.modules``, and variables that Python or torch read when they start are the server's. Tests
about either start a process of their own.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_SERVER = _HERE / "warm_server.py"
_READ_AT_START = ("PYTHONHASHSEED", "PYTHONPATH", "PYTHONWARNINGS", "PYTHONOPTIMIZE")


_Completed = subprocess.CompletedProcess[str]


class WarmPython:
    """A server that forks interpreters, started by the first request.

    Attributes:
        socket_path: The path of its socket.
    """

    def __init__(self) -> None:
        self._folder = self.socket_path = ""
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server if necessary, and wait until it has imported torch."""
        if self._server is not None:
            return
        self._folder = tempfile.mkdtemp(prefix="warm-")
        self.socket_path = str(Path(self._folder) / "socket")
        self._server = subprocess.Popen(
            [sys.executable, "-I", str(_SERVER), self.socket_path],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._server.stdout is not None
        assert self._server.stdout.read(5) == b"ready"

    def stop(self) -> None:
        """Stop the server. Running children continue."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            shutil.rmtree(self._folder, ignore_errors=True)

    def programs(self) -> Path:
        """Return a folder with ``python``, ``python3``, and ``modpack`` for a shell's PATH."""
        self.start()
        folder = Path(self._folder) / "bin"
        folder.mkdir(exist_ok=True)
        for name in ("python", "python3", "modpack"):
            start = folder / name
            real = Path(sys.executable).with_name(name)
            start.write_text(
                f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(_HERE)!r})\n"
                f"from warm_python import main\nmain({str(real)!r}, {self.socket_path!r})\n"
            )
            start.chmod(0o755)
        return folder

    def popen(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
    ) -> WarmProcess | subprocess.Popen[bytes]:
        """Run a command like :class:`subprocess.Popen`, as a fork if it starts Python."""
        job = _job(list(command))
        if job is None:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
            )
        self.start()
        job["environment"] = dict(os.environ if env is None else env)
        job["folder"] = str(cwd or Path.cwd())
        with contextlib.ExitStack() as stack:
            streams = []
            for number, stream in enumerate((stdin, stdout, stderr)):
                if stream is None:
                    streams.append(number)
                elif stream == subprocess.DEVNULL:
                    streams.append(stack.enter_context(Path(os.devnull).open("r+b")).fileno())
                else:
                    streams.append(stream if isinstance(stream, int) else stream.fileno())
            job["descriptors"] = [0, 1, 2, *pass_fds]
            return WarmProcess(self.socket_path, job, [*streams, *pass_fds])

    def run(
        self, command: Sequence[str], *, timeout: float = 300, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and return its output as text."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **options
            )
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(list(command), code, *texts)


class WarmProcess:
    """A forked interpreter with the methods of :class:`subprocess.Popen` that are used."""

    def __init__(
        self, socket_path: str, job: Mapping[str, Any], descriptors: Sequence[int]
    ) -> None:
        self.args = job["what"]
        self.returncode: int | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(socket_path)
        text = json.dumps(job).encode()
        self._socket.sendall(len(text).to_bytes(8, "big"))
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        sent = self._socket.sendmsg([text], [rights])
        self._socket.sendall(text[sent:])
        self.pid = int.from_bytes(self._socket.recv(8, socket.MSG_WAITALL), "big")

    def poll(self) -> int | None:
        """Return the exit status, or None if the interpreter still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status.

        Raises:
            subprocess.TimeoutExpired: If the interpreter still runs.
        """
        if self.returncode is None:
            self._socket.settimeout(timeout if timeout is None else max(timeout, 1e-6))
            try:
                status = self._socket.recv(8, socket.MSG_WAITALL)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            code = int.from_bytes(status, "big")
            self.returncode = code if code < 0x8000 else code - 0x10000
            self._socket.close()
        return self.returncode

    def kill(self) -> None:
        """Kill the interpreter if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


warm = WarmPython()
"""The interpreters of this test run. A session fixture stops the server."""


def run_python(
    *arguments: object, folder: Path, variables: Mapping[str, str] | None = None
) -> _Completed:
    """Run Python in a folder, with torch already imported.

    Args:
        arguments: The arguments of Python: a script, ``-c``, or ``-m``, and its arguments.
        folder: The working directory.
        variables: The environment. By default that of the test run.
    """
    command = [sys.executable, *map(str, arguments)]
    environment = {"OMP_NUM_THREADS": "1", **(os.environ if variables is None else variables)}
    return warm.run(command, cwd=folder, env=environment)


def main(real: str, socket_path: str) -> None:
    """Run a program in a fork if it is Python, or else directly.

    Args:
        real: The program.
        socket_path: The path of the server's socket.
    """
    arguments = sys.argv[1:]
    is_python = Path(real).name != "modpack"
    command = [sys.executable, *arguments] if is_python else [sys.executable, real, *arguments]
    job = _job(command)
    is_other = job is not None and job["kind"] == "-m" and job["what"] != "modpack"
    is_server = arguments[:1] == ["serve"]  # its processes would have a fork's state
    is_new = is_other or is_server or any(name in os.environ for name in _READ_AT_START)
    if job is None or is_new:
        os.execv(real, [real, *arguments])
    job |= {"environment": dict(os.environ), "folder": str(Path.cwd()), "descriptors": [0, 1, 2]}
    process = WarmProcess(socket_path, job, [0, 1, 2])
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(process.pid, number))
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _job(command: list[str]) -> dict[str, Any] | None:
    """Return the job of a Python command, or None if it has options other than ``-I``.

    Only a new interpreter finds the module ``__main__`` of a package.
    """
    program, *rest = command
    if program != sys.executable or os.name != "posix":
        return None
    isolated = rest[:1] == ["-I"]
    rest = rest[isolated:]
    if not rest or (rest[0].startswith("-") and (rest[0] not in ("-c", "-m") or len(rest) < 2)):
        return None
    kind = rest[0] if rest[0] in ("-c", "-m") else ""
    what, *arguments = rest[1:] if kind else rest
    if not kind and what.endswith(".modpack"):
        return None
    return {"kind": kind, "what": what, "arguments": arguments, "isolated": isolated}
