"""Hook matrix: package and reload every kind of hook with every form of callable.

``python tools/hook_matrix`` prints the table, ``--write`` writes it to
``docs/reference/hook-spec.md``. It takes about half a minute.
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

sys.path.append(str(Path(__file__).parents[1]))

from marks import replaced

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hook-spec.md"

HEAD = """\
Each [kind of hook](#kinds) is saved and loaded with each form of callable, in the
process that wrote the package and in a clean one that cannot import the project. A cell is
identical if two training steps give bit-identical outputs, gradients, and state, if both hooks of
the model run as often and in the same order as before, and if `remove()` removes them.
"""

METHOD = """\
A row is a kind of hook, and a column is a form of callable. One hook doubles a value, and the other
adds one to it, so that results differ if the hooks are removed or swapped. If the API has
`prepend`, the second hook is prepended. A number in parentheses means that torch rejects the hook
on the original model. Its reason is below the table.
"""

LOADING = """\

### Hooks that a class registers when it is loaded

torch.save drops hooks of tensors, so classes register them again in `__setstate__`. After a load,
each hook runs once, those of the package first, and each handle removes its own hook.
"""

LOADING_TABLE = """\
In the first column, a class clears its own hooks and registers one again, like the one in the
package. In the third, it adds another one. In the columns of handles, `yes` means that `remove()`
of the handle which `__setstate__` got removes that hook, and no other.

| kind | registered again | its handle | added | its handle |
| --- | --- | --- | --- | --- |"""

TAIL = """

Other tests cover the kinds that take no callable (`graph.capture_grad`, `parametrization`) or
require a process group (`ddp.comm`).
"""


@dataclass(frozen=True)
class Cell:
    """The outcome for one kind of hook with one form of callable.

    Attributes:
        row: The kind, with flags.
        shape: The form of the callables.
        outcome: ``yes``, or a short description of the problem.
        refused: torch's reason if torch rejects the hook on the live model.
    """

    row: str
    shape: str
    outcome: str
    refused: str | None = None


def main() -> int:
    """Run the matrix; return 1 if any cell fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    write = parser.parse_args().write
    cells = run()
    part = rendered(cells)
    if write:
        command = "python tools/hook_matrix --write"
        PAGE.write_text(replaced(PAGE, command, part), encoding="utf-8")
    else:
        sys.stdout.reconfigure(encoding="utf-8")
        print(part, end="")
    return int(any("**" in cell.outcome for cell in cells))


def run() -> list[Cell]:
    """Package every cell in one process, load it there and in a clean one, and compare.

    Raises:
        subprocess.CalledProcessError: If one of the two processes failed; stderr shows why.
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
        cells = json.loads(Path(notes).read_text())
        in_clean_process = json.loads(Path(results).read_text())
    return [_cell(name, note, in_clean_process.get(name, {})) for name, note in cells.items()]


def loading_rows() -> Iterator[str]:
    """Yield the rows about hooks that a class registers when it is loaded."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "again.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE / "project")},
        check=True,
        capture_output=True,
        text=True,
    )
    for kind, outcomes in json.loads(done.stdout).items():
        shown = ("yes" if outcome else "**no**" for outcome in outcomes)
        yield f"| {kind} | {' | '.join(shown)} |"


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
    """Return the part of the page in Markdown."""
    reasons = list(dict.fromkeys(cell.refused for cell in cells if cell.refused))
    notes = (f"\n({n}) torch rejects the hook: `{reason}`" for n, reason in enumerate(reasons, 1))
    table = _folded("Table of all hooks", [METHOD, *_table(cells, reasons), *notes])
    loading = _folded("Table of kinds", [LOADING_TABLE, *loading_rows()])
    return "\n".join([HEAD, _summary(cells), "", *table, LOADING, *loading]) + TAIL


def _folded(summary: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield lines below one that unfolds them, on the site and on GitHub."""
    yield from (f"<details markdown>\n<summary>{summary}</summary>", "", *lines, "", "</details>")


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


def _summary(cells: Sequence[Cell]) -> str:
    good = sum(cell.outcome == "yes" for cell in cells)
    refused = sum(cell.refused is not None for cell in cells)
    return (
        f"**{len(cells)} cells: {good} identical after loading, {refused} rejected by torch, "
        f"{len(cells) - good - refused} lost or different.**"
    )


if __name__ == "__main__":
    sys.exit(main())
