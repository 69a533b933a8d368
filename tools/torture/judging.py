"""Run commands and loaders on packages, each in a child process, and record forbidden effects.

``python tools/torture/judging.py commands GOOD PACKAGE...`` runs every reading command on each
package, in an interpreter without torch. ``loaders`` loads the packages with torch. The output is
a line of JSON per package. Audit events and canaries reveal code and pickles that run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from children import ChildResult, run_in_child

_TIMEOUT = 180
_FAST = 1.0
"""Seconds of CPU time below which the speed of the machine does not matter."""
_MODULE = "shop"
_FORBIDDEN = frozenset({"pickle.find_class", "os.system", "os.exec", "os.fork", "os.posix_spawn",
                        "subprocess.Popen", "socket.connect", "ctypes.dlopen"})  # fmt: skip
"""Audit events that reading a package never causes."""
_LINE = "def name(first, second): return first[0].other(second, 1 + first)\n"
_SOURCE = _LINE * ((1 << 18) // len(_LINE))

COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "verify": lambda package, _: ["verify", "--json", package],
    "inspect": lambda package, _: ["inspect", package],
    "tree": lambda package, _: ["inspect", "--tree", package],
    "audit": lambda package, _: ["audit", package],
    "why": lambda package, _: ["why", package, _MODULE],
    "requirements": lambda package, _: ["requirements", package],
    "diff": lambda package, other: ["diff", other, package],
    "report": lambda package, _: ["report", package, "-o", os.devnull],
    "sbom": lambda package, _: ["sbom", package],
}
"""Arguments of each command, for a package and a good package for comparison."""


def run_commands(package: str, other: str) -> dict[str, ChildResult]:
    """Run all commands in one child, and return their results by name; see :func:`_run_command`.

    Args:
        package: Path of the package.
        other: Path of a good package for comparison.
    """

    def run_all() -> dict[str, Any]:
        return {name: _run_command(make(package, other)) for name, make in COMMANDS.items()}

    done = run_in_child(run_all, _TIMEOUT)
    results = done.value.values() if isinstance(done.value, dict) else ()
    is_slow = any(result["seconds"] > _FAST for result in results)
    unit = _parse_seconds() if is_slow else 0.0  # here, because the memory of the child is counted
    for result in results:
        result["parses"] = result["seconds"] / unit if is_slow else 0.0
    return {"commands": done}


def _parse_seconds() -> float:
    """Return the CPU time for parsing 256 KiB of Python, to which others are compared."""
    start = time.process_time()
    ast.parse(_SOURCE)
    return time.process_time() - start


def run_loaders(package: str) -> dict[str, ChildResult]:
    """Run each loader; return its ``error``, empty if it accepts, and its ``effects``."""
    return {n: run_in_child(lambda w=w: w(package), _TIMEOUT) for n, w in LOADERS.items()}


def _run_command(arguments: list[str]) -> dict[str, Any]:
    """Run a command, and return its ``status``, ``output``, ``seconds``, and ``effects``.

    The status is -1 if the command ends with a traceback.
    """
    from modpack.cli import cli

    trace, start = "", time.process_time()
    with _recorded_effects() as effects, _captured_output() as written:
        try:
            status = cli.main(arguments, prog_name="modpack", standalone_mode=False) or 0
        except Exception:  # a traceback at the command line
            status, trace = -1, traceback.format_exc()
    if "torch" in sys.modules:
        effects.append("import of torch")
    seconds = time.process_time() - start
    output = written.getvalue() + trace
    return {"status": status, "output": output, "effects": effects, "seconds": seconds}


def _load(package: str) -> dict[str, Any]:
    import modpack

    return _outcome(lambda: modpack.load(package))


def _load_all(package: str) -> dict[str, Any]:
    import modpack

    return _outcome(lambda: modpack.load(package, verify="full"))


def _weights(package: str) -> dict[str, Any]:
    import modpack

    return _outcome(lambda: modpack.load_weights(package))


LOADERS = {"load": _load, "load_all": _load_all, "weights": _weights}


def _outcome(work: Callable[[], object]) -> dict[str, Any]:
    from modpack.errors import ModpackError

    try:
        work()
    except ModpackError as error:
        return {"error": str(error), "effects": _canaries()}
    return {"error": "", "effects": _canaries()}


def _canaries() -> list[str]:
    return [f"import of {sys.canary}"] if hasattr(sys, "canary") else []


@contextlib.contextmanager
def _recorded_effects() -> Iterator[list[str]]:
    """Record forbidden audit events and canaries."""
    effects: list[str] = []
    is_recording = True

    def record(event: str, arguments: tuple[object, ...]) -> None:
        if is_recording and event in _FORBIDDEN:
            effects.append(f"{event}{arguments!r:.200}")

    sys.addaudithook(record)
    yield effects
    is_recording = False
    effects += _canaries()


@contextlib.contextmanager
def _captured_output() -> Iterator[io.StringIO]:
    """Capture stdout and stderr at the level of file descriptors."""
    kept, written = [os.dup(1), os.dup(2)], io.StringIO()
    with tempfile.TemporaryFile() as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield written
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
                os.close(old)
            file.seek(0)
            written.write(file.read().decode("utf-8", "backslashreplace"))


def main() -> None:
    """Run commands or loaders on all packages. The first package is good."""
    mode, good, *packages = sys.argv[1:]
    # Use the good package first, so that lazy imports are done before the first fork.
    if mode == "loaders":
        run: Callable[[str], dict[str, ChildResult]] = run_loaders
        _load(good)
    else:
        run = partial(run_commands, other=good)
        for command in COMMANDS.values():
            _run_command(command(good, good))
    for package in packages:
        results = {name: asdict(result) for name, result in run(package).items()}
        print(json.dumps({"package": Path(package).name, "results": results}), flush=True)


if __name__ == "__main__":
    main()
