"""The other side: an interpreter that has never seen the project loads the package.

:func:`visit` starts it, with ``python -I`` and in an empty folder; :func:`main` runs in it
and answers with one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modpack.demo.facts import Observation, Reloaded
from modpack.errors import ModpackError

if TYPE_CHECKING:
    from modpack.demo.observe import Model

__all__ = ["main", "visit"]

PROJECT_NAMES = ("digits_cnn", "labplot")
MODPACK_HOME = Path(__file__).resolve().parents[2]
START = """
import sys
sys.path.append(sys.argv[1])
from modpack.demo.clean_room import main
main(sys.argv[2])
"""
"""Last in the path, and only for a modpack that runs from its sources without an install."""


def visit(package: Path, folder: Path) -> Reloaded:
    """Load a package in a clean interpreter and let it tell what it saw.

    Args:
        package: the file to load.
        folder: where the interpreter runs.

    Raises:
        ModpackError: if the interpreter fails; the text holds what it wrote.
    """
    command = [sys.executable, "-I", "-c", START, str(MODPACK_HOME), str(package.resolve())]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise ModpackError(
            f"the clean interpreter could not load {package} (exit {done.returncode}):\n"
            f"{done.stderr.strip()}"
        )
    return _understood(json.loads(done.stdout.splitlines()[-1]), seconds)


def _understood(answer: dict[str, Any], seconds: float) -> Reloaded:
    observed = answer["observed"]
    return Reloaded(
        folder=answer["folder"],
        unknown=tuple(answer["unknown"]),
        load_seconds=answer["load_seconds"],
        seconds=seconds,
        module=answer["module"],
        mocked=answer["mocked"],
        observed=Observation(**{**observed, "predictions": tuple(observed["predictions"])}),
    )


def main(package: str) -> None:
    """Runs in the clean interpreter: load the package, use it, print what happened.

    Args:
        package: the file to load.
    """
    unknown = [name for name in PROJECT_NAMES if not _importable(name)]
    import torch

    from modpack.demo.digits import load_digits
    from modpack.demo.observe import THREADS, observe
    from modpack.importer import PackageImporter

    torch.set_num_threads(THREADS)
    _, test = load_digits()
    started = time.perf_counter()
    importer = PackageImporter(package)
    model = importer.load_model("model", "model.pkl")
    loaded = time.perf_counter() - started
    answer = {
        "folder": str(Path.cwd()),
        "unknown": unknown,
        "load_seconds": loaded,
        "module": type(model).__module__,
        "mocked": _use_of_a_mock(model),
        "observed": asdict(observe(model, test)),
    }
    print(json.dumps(answer))


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def _use_of_a_mock(model: Model) -> str:
    try:
        model.report([1.0, 0.5], [0.5, 1.0])
    except NotImplementedError as error:
        return str(error)
    return ""
