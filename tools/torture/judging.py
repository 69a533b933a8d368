"""What commands and loaders say to packages, each asked in a child of its own.

``python tools/torture/judging.py looking GOOD PACKAGE...`` runs every command that looks at
packages on each of them, in an interpreter without torch; ``loading`` loads them, with torch. For
each a line of JSON goes to stdout. Canaries: what code and pickles would set off is noticed.
"""

from __future__ import annotations

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

from children import Told, told

_SECONDS = 180
_MODULE = "shop"
_FORBIDDEN = frozenset({"pickle.find_class", "os.system", "os.exec", "os.fork", "os.posix_spawn",
                        "subprocess.Popen", "socket.connect", "ctypes.dlopen"})  # fmt: skip
"""Events of :func:`sys.audit` that looking at a package never causes."""

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
"""Arguments of each command, for a package and a good one to compare it with."""


def look(package: str, other: str) -> dict[str, Told]:
    """What all commands say to a package, by their names; see :func:`_command`.

    Args:
        package: the package.
        other: a good one to compare it with.
    """

    def each() -> dict[str, Any]:
        return {name: _command(make(package, other)) for name, make in COMMANDS.items()}

    return {"commands": told(each, _SECONDS)}


def load(package: str) -> dict[str, Told]:
    """What each loader says: ``refused``, which is why or nothing, and ``fired`` canaries."""
    return {name: told(lambda w=w: w(package), _SECONDS) for name, w in LOADERS.items()}


def _command(arguments: list[str]) -> dict[str, Any]:
    """Run a command: its ``status``, ``output``, ``seconds``, and which canaries ``fired``.

    The status of one that ends with a traceback is -1.
    """
    from modpack.cli import cli

    trace, start = "", time.process_time()
    with _listening() as fired, _output() as written:
        try:
            status = cli.main(arguments, prog_name="modpack", standalone_mode=False) or 0
        except Exception:  # a traceback at the command line
            status, trace = -1, traceback.format_exc()
    if "torch" in sys.modules:
        fired.append("import of torch")
    seconds = time.process_time() - start
    output = written.getvalue() + trace
    return {"status": status, "output": output, "fired": fired, "seconds": seconds}


def _load(package: str) -> dict[str, Any]:
    import modpack

    return _loading(lambda: modpack.load(package))


def _load_all(package: str) -> dict[str, Any]:
    import modpack

    return _loading(lambda: modpack.load(package, verify="full"))


def _weights(package: str) -> dict[str, Any]:
    import modpack

    return _loading(lambda: modpack.load_weights(package))


LOADERS = {"load": _load, "load_all": _load_all, "weights": _weights}


def _loading(work: Callable[[], object]) -> dict[str, Any]:
    from modpack.errors import ModpackError

    try:
        work()
    except ModpackError as failure:
        return {"refused": str(failure), "fired": _traces()}
    return {"refused": "", "fired": _traces()}


def _traces() -> list[str]:
    return [f"import of {sys.canary}"] if hasattr(sys, "canary") else []


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """Notice what must not happen."""
    fired: list[str] = []
    listens = True

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if listens and event in _FORBIDDEN:
            fired.append(f"{event}{arguments!r:.200}")

    sys.addaudithook(hear)
    yield fired
    listens = False
    fired += _traces()


@contextlib.contextmanager
def _output() -> Iterator[io.StringIO]:
    """What is written to stdout and stderr, by whatever means."""
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
    """Judge the packages that are named; the first one is good."""
    what, good, *packages = sys.argv[1:]
    judge = load if what == "loading" else partial(look, other=good)
    for command in () if what == "loading" else COMMANDS.values():
        _command(command(good, good))  # what they import is there before the first fork
    if what == "loading":
        _load(good)
    for package in packages:
        fields = {name: asdict(told) for name, told in judge(package).items()}
        print(json.dumps({"package": Path(package).name, "said": fields}), flush=True)


if __name__ == "__main__":
    main()
