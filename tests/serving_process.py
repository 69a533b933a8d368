"""A ``modpack serve`` process for tests, and the packages that it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

NET = """
    import os
    import signal
    import time

    import torch

    TOGETHER, CRASH, SLEEP, FAIL, EXIT = 555.0, 666.0, 777.0, 888.0, 999.0


    class Net(torch.nn.Module):
        def __init__(self, factor=1.0):
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)
            torch.nn.init.constant_(self.linear.weight, factor)
            torch.nn.init.zeros_(self.linear.bias)

        def forward(self, x):
            commands = x[:, 0]
            if (commands == TOGETHER).any() and len(x) > 1:
                raise MemoryError("too many rows")
            if (commands == CRASH).any():
                os.kill(os.getpid(), signal.SIGKILL)
            if (commands == SLEEP).any():
                time.sleep(float(x[commands == SLEEP][:, 1].max()))
            if (commands == FAIL).any():
                raise ValueError("no such number")
            if (commands == EXIT).any():
                raise SystemExit(3)
            return self.linear(x)
"""

MODPACK = Path(sys.executable).with_name("modpack")
"""The installed command, whose import path does not contain the current folder."""
EXPORT = """
    import sys
    import warnings

    sys.path.insert(0, {folder!r})
    import modpack
    import net
    import torch

    warnings.simplefilter("ignore")
    modpack.save(net.Net({factor}), {path!r}, example_inputs={inputs})
"""


def slow(seconds: float) -> dict[str, Any]:
    return {"x": [[777.0, seconds, 0, 0]]}


class Serving:
    """A running server.

    Attributes:
        lines: The log lines so far, parsed; others as ``{"event": text}``.
    """

    def __init__(self, *arguments: object) -> None:
        command = [str(MODPACK), "serve", *map(str, arguments)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--log-format", "json"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.url = str(self.wait_for("listening")["url"])
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"event": line.rstrip()})

    def wait_for(self, event: str, start: int = 0, **fields: object) -> dict[str, Any]:
        """Return the first log line from index ``start`` with these fields."""

        def find() -> dict[str, Any] | None:
            wanted = {"event": event, **fields}.items()
            return next((line for line in self.lines[start:] if wanted <= line.items()), None)

        return wait_until(find, lambda: f"{event} {fields}: {self.lines}")

    def metric(self, name: str) -> float:
        """Return a metric; the sum over its labels."""
        text = self.client.get("/metrics").text
        found = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def predict(self, rows: list[list[float]]) -> httpx.Response:
        return self.client.post("/predict", json={"x": rows})

    def stop(self) -> None:
        """Stop the server."""
        self.client.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def wait_until(find: Callable[[], Any], describe: Callable[[], str], seconds: float = 30) -> Any:
    """Return the first true result of a function."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = find()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not found in {seconds} seconds: {describe()}")


def export(
    folder: Path,
    path: Path,
    factor: float = 1.0,
    source: str = NET,
    inputs: str = "torch.ones(3, 4)",
) -> Path:
    """Package a net. Each output of the default one is ``factor`` times the sum of a row."""
    (folder / "net.py").write_text(textwrap.dedent(source))
    from tests.warm_python import warm

    script = folder / "export.py"
    code = EXPORT.format(folder=str(folder), path=str(path), factor=factor, inputs=inputs)
    script.write_text(textwrap.dedent(code))
    done = warm.run([sys.executable, str(script)], cwd=folder, env=dict(os.environ), timeout=300)
    assert done.returncode == 0, done.stderr
    return path
