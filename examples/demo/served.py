"""One HTTP request to the served package."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modpack import ModpackError

_SECONDS = 60


def can_serve() -> bool:
    """Return whether the optional dependencies of ``modpack serve`` are installed."""
    return all(find_spec(name) for name in ("uvicorn", "msgspec", "prometheus_client"))


@contextmanager
def serve(package: Path, folder: Path) -> Iterator[str]:
    """Serve a package in another process on a free port of this machine; yield its URL.

    Args:
        package: The package.
        folder: The working folder of the server, where the project cannot be imported.

    Raises:
        ModpackError: If the server ends before it listens. The message includes its stderr.
    """
    command = [sys.executable, "-m", "modpack", "serve", str(package), "--port", "0"]
    server = subprocess.Popen(
        [*command, "--log-format", "json"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    try:
        read = []
        for line in server.stderr:
            read.append(line)
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "listening":
                yield str(event["url"])
                return
        raise ModpackError(f"{package}: serving the package failed:\n{''.join(read).strip()}")
    finally:
        server.terminate()
        server.communicate(timeout=_SECONDS)


def post(url: str, document: object) -> Any:
    """Send a JSON document, and return the JSON of the answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        return json.loads(answer.read())
