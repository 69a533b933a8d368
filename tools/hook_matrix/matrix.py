"""Runs the matrix and tells what came of each cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
YES = "yes"


@dataclass(frozen=True)
class Cell:
    """What came of one kind of hook in one shape.

    Attributes:
        row: the kind, with flags.
        shape: the shape of the callables.
        outcome: ``yes``, or in a few words what is wrong.
        refused: torch's reason, if torch refuses to register it in the first place.
    """

    row: str
    shape: str
    outcome: str
    refused: str | None = None


def run() -> list[Cell]:
    """Package every cell in one process, load it there and in a clean one, and compare.

    Raises:
        subprocess.CalledProcessError: one of the two processes failed; its stderr was shown.
    """
    with tempfile.TemporaryDirectory() as folder:
        package, notes, results = (
            str(Path(folder) / name) for name in ("net.modpack", "notes.json", "results.json")
        )
        path = os.pathsep.join([str(HERE / "project"), str(HERE)])
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        script = [sys.executable, "-W", "ignore", str(HERE / "project" / "train.py")]
        subprocess.run([*script, package, notes], env=variables, check=True)
        clean = [sys.executable, "-I", str(HERE / "reloading.py"), package, notes, results]
        subprocess.run(clean, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        told = json.loads(Path(notes).read_text())
        in_clean_process = json.loads(Path(results).read_text())
    return [_cell(name, note, in_clean_process.get(name, {})) for name, note in told.items()]


def _cell(name: str, note: dict[str, Any], clean: dict[str, Any]) -> Cell:
    row, _, shape = name.partition("|")
    if "refused" in note:
        return Cell(row, shape, "", note["refused"])
    for where, result in (("in process", note["in process"]), ("in a clean process", clean)):
        if "failed" in result:
            return Cell(row, shape, f"**fails {where}: {result['failed']}**")
        if result["seen"] != note["original"]:
            return Cell(row, shape, f"**differs {where}**")
        if result["left"]:
            return Cell(row, shape, f"**stays {where}**")
    proven = note["has effect"] and note["shows order"]
    return Cell(row, shape, YES if proven else "**proves nothing**")
