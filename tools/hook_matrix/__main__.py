"""The matrix of hooks: every kind in every shape, packaged and loaded again.

``python tools/hook_matrix`` prints the page that holds the table, ``--write`` writes it to
``docs/reference/hook-matrix.md``. It takes about half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hook-matrix.md"

HEAD = """\
# The matrix of hooks

<!-- Made by `python tools/hook_matrix --write`; a test compares. Do not edit. -->

Each cell packages a model with two hooks of one kind and one shape, and an optimizer, and
loads them twice: in a clean process that has never seen the code, and in the process that
packaged them. `yes` says that in both

- outputs, gradients, parameters, optimizer state, state dicts and registered tensors are equal
  to the original's, to the last bit, over two steps of training with saving between them;
- both hooks run, as often as with the original, and in its order. One doubles a value and the
  other adds one to it, which do not commute; without them, and with them swapped, the numbers
  are others. Where the API has `prepend`, the second hook is prepended;
- after `handle.remove()` on every restored handle no hook runs any more.

A number in place of `yes` is torch's own reason for refusing the hook on the live model.
"""

TAIL = """

Not in the table, because they take no callable or a live group of processes, and tested by
themselves: `graph.capture_grad`, `parametrization`, `ddp.comm`.
"""


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


def main() -> int:
    """Run it; the exit status is 1 if anything came out otherwise than it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    write = parser.parse_args().write
    cells = run()
    page = rendered(cells)
    if write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        sys.stdout.reconfigure(encoding="utf-8")
        print(page, end="")
    return int(any("**" in cell.outcome for cell in cells))


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
    return Cell(row, shape, "yes" if proven else "**proves nothing**")


def rendered(cells: Sequence[Cell]) -> str:
    """The page, in Markdown."""
    reasons = list(dict.fromkeys(cell.refused for cell in cells if cell.refused))
    return "\n".join([HEAD, *_table(cells, reasons), "", *_notes(cells, reasons)]) + TAIL


def _table(cells: Sequence[Cell], reasons: list[str]) -> Iterator[str]:
    shapes = list(dict.fromkeys(cell.shape for cell in cells))
    yield f"| kind | {' | '.join(shapes)} |"
    yield f"| --- |{' --- |' * len(shapes)}"
    for row in dict.fromkeys(cell.row for cell in cells):
        shown = [
            f"({reasons.index(cell.refused) + 1})" if cell.refused else cell.outcome
            for cell in cells
            if cell.row == row
        ]
        yield f"| {row} | {' | '.join(shown)} |"


def _notes(cells: Sequence[Cell], reasons: list[str]) -> Iterator[str]:
    for number, reason in enumerate(reasons, 1):
        yield f"({number}) torch refuses: `{reason}`"
        yield ""
    good = sum(cell.outcome == "yes" for cell in cells)
    refused = sum(cell.refused is not None for cell in cells)
    yield (
        f"{len(cells)} cells: {good} the same after loading, {refused} refused by torch, "
        f"{len(cells) - good - refused} lost or different."
    )


if __name__ == "__main__":
    sys.exit(main())
