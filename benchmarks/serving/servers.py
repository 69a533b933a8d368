"""The servers that are compared: started, paused, measured, and stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
BODY = json.dumps({"x": [[round(0.1 * n, 1) for n in range(16)]]}).encode()
BATCH = 16
APPS = {"plain": "threaded", "async": "direct", "starlette": "bare"}
"""The names in ``plain_app`` of the apps that load the package themselves."""
FASTAPI = ("plain", "async")
NAMES = (*APPS, "litserve", "litserve-batch", "modpack", "modpack-batch")


def command(name: str, package: Path, port: int, workers: int = 1) -> list[str]:
    """Return the command that starts a server."""
    python = [sys.executable, "-W", "ignore"]
    if name in APPS:
        app = ["-m", "uvicorn", f"plain_app:{APPS[name]}", "--no-access-log"]
        return [*python, *app, "--port", str(port), "--workers", str(workers)]
    if name.startswith("litserve"):
        batch = BATCH if name == "litserve-batch" else 1
        return [*python, str(HERE / "lit_app.py"), str(package), str(port), str(batch), "0.005"]
    batch = BATCH if name == "modpack-batch" else 1
    options = ["--port", str(port), "--max-batch", str(batch), "--workers", str(workers)]
    return [*python, "-m", "modpack", "serve", str(package), *options, "--log-format", "json"]


class Running:
    """A server that answers.

    Attributes:
        seconds: Time from its start to the first answer.
    """

    def __init__(self, name: str, package: Path, workers: int = 1) -> None:
        self.name = name
        self.port = _free_port()
        environment = {**os.environ, "PACKAGE": str(package), "OMP_NUM_THREADS": "1"}
        started = time.perf_counter()
        self._process = subprocess.Popen(
            command(name, package, self.port, workers),
            cwd=HERE,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not self._answers():
            if self._process.poll() is not None:
                raise SystemExit(f"{name} has ended with status {self._process.returncode}")
            time.sleep(0.01)
        self.seconds = time.perf_counter() - started

    def _answers(self) -> bool:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/predict",
            data=BODY,
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                json.load(answer)
        except OSError:
            return False
        return True

    @property
    def processes(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def pss(self) -> float:
        """Return the proportional set size of all processes, in MiB."""
        return sum(process.memory_full_info().pss for process in self.processes) / 2**20

    def pause(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    def cpu(self) -> float:
        """Return the processor time of all processes so far, in seconds."""
        times = [process.cpu_times() for process in self.processes]
        return sum(each.user + each.system for each in times)

    def load(self, clients: int, seconds: float, warmup: float = 0.5) -> dict[str, Any]:
        """Measure with a number of clients; see :mod:`load`. Adds ``cpu``, in us per request."""
        arguments = [str(self.port), "/predict", str(clients), str(seconds)]
        before = self.cpu()
        done = subprocess.run(
            [sys.executable, str(HERE / "load.py"), *arguments, "--warmup", str(warmup)],
            input=BODY,
            capture_output=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        found["cpu"] = (self.cpu() - before) / max(found["answers"], 1) * 1e6
        return found

    def stop(self) -> None:
        processes = self.processes
        self.resume()
        self._process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=10)
        for process in alive:  # LitServe leaves some
            process.kill()
        self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def seconds_of(*arguments: str) -> float:
    """Return the wall-clock time of a Python process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True)
    return time.perf_counter() - started
