"""Package each cell's model, load it in the same process, and write the results."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reloading import forget_process_wide_choice, load_and_observe

import modpack
from matrixlib.net import Net, new_model, observe
from matrixlib.registering import ROWS, Row
from matrixlib.shapes import SHAPES, Pair

OF_A_SCRIPT = "function of `__main__`"


def package_all(of_script: Pair, package: Path, notes: Path) -> None:
    """Package the model of every cell, and write the results of the originals.

    Args:
        of_script: Two functions of ``__main__``.
        package: Path of the package.
        notes: Path of the results by cell, as JSON.
    """
    shapes: dict[str, Callable[[Net], Pair]] = {**SHAPES, OF_A_SCRIPT: lambda net: of_script}
    cells = [(row, shape) for row in ROWS for shape in shapes]
    results: dict[str, dict[str, Any]] = {}
    with modpack.PackageExporter(package) as exporter:
        exporter.intern("matrixlib.**")
        exporter.save_module("matrixlib.net")
        for number, (row, shape) in enumerate(cells):
            results[f"{row}|{shape}"] = _cell(exporter, number, row, shapes[shape])
    importer = modpack.PackageImporter(package)
    for cell, note in results.items():
        if "refused" not in note:
            note["in process"] = load_and_observe(importer, note["record"], cell.partition("|")[0])
    notes.write_text(json.dumps(results))


def _cell(exporter: Any, number: int, row: str, shape: Callable[[Net], Pair]) -> dict[str, Any]:
    record = f"cell{number}.pkl"
    without = observe(row, *new_model())
    with _hooked(ROWS[row], shape, swapped=True) as (failure, net, optimizer):
        swapped = None if failure else observe(row, net, optimizer)
    with _hooked(ROWS[row], shape) as (failure, net, optimizer):
        if failure:
            return {"refused": failure}
        is_global = row.startswith("global.")
        exporter.save_model("net", record, net, optimizer=optimizer, global_hooks=is_global)
        original = observe(row, net, optimizer)
    return {
        "record": record,
        "original": original,
        "has effect": original != without,
        "shows order": original != swapped,
    }


@contextmanager
def _hooked(
    row: Row, shape: Callable[[Net], Pair], swapped: bool = False
) -> Iterator[tuple[str | None, Net, Any]]:
    """Yield a new model with two hooks, or torch's error if it rejects them."""
    net, optimizer = new_model()
    handles: list[Any] = []
    double, shift = shape(net)
    pair = (shift, double) if swapped else (double, shift)
    _forget_marks(pair)
    try:
        if row.at_once:
            handles.append(row.register(net, optimizer, *pair))
        else:
            flags = {"prepend": True} if row.prepends else {}
            handles.append(row.register(net, optimizer, pair[0]))
            handles.append(row.register(net, optimizer, pair[1], **flags))
        yield None, net, optimizer
    except (AttributeError, RuntimeError, TypeError) as error:
        if handles:
            raise
        yield f"{type(error).__name__}: {error}", net, optimizer
    finally:
        for handle in handles:
            handle.remove()


def _forget_marks(pair: Pair) -> None:
    """Remove torch's permanent marks from hooks and process before the next cell."""
    forget_process_wide_choice()
    for hook in pair:
        vars(getattr(hook, "__func__", hook)).pop("_from_public_api", None)
