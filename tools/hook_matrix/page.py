"""The page that holds the matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matrix import Cell

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
