"""Load the cells of the matrix and run them. As a script, in a clean process."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from torch.nn.modules import module as modules

import modpack


def load_and_observe(importer: Any, record: str, row: str) -> dict[str, Any]:
    """Load a cell's model and run it.

    Returns:
        The results as ``seen``, and as ``left`` the hooks that still run after their removal. If
        loading fails, ``failed`` is the error.
    """
    forget_process_wide_choice()
    try:
        net, optimizer = importer.load_model(
            "net", record, with_optimizer=True, hooks=True, global_hooks=True
        )
        observe = importer.import_module("matrixlib.net").observe
        try:
            seen = observe(row, net, optimizer)
        finally:
            for spec in importer.hook_specs("net", record):
                importer.hook_handles.pop(spec.name).remove()
        return {"seen": seen, "left": observe(row, net, optimizer)["log"]}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def forget_process_wide_choice() -> None:
    """Reset torch's choice of legacy or full global backward hooks, which it makes once."""
    modules._global_is_full_backward_hook = None


def main(package: str, notes: str, results: str) -> None:
    """Run all cells of a package, and write the results."""
    if importlib.util.find_spec("matrixlib") is not None:
        sys.exit("matrixlib is importable, so this process is not clean")
    warnings.simplefilter("ignore")
    importer = modpack.PackageImporter(package)
    results_by_cell = {
        cell: load_and_observe(importer, note["record"], cell.partition("|")[0])
        for cell, note in json.loads(Path(notes).read_text()).items()
        if "refused" not in note
    }
    Path(results).write_text(json.dumps(results_by_cell))


if __name__ == "__main__":
    main(*sys.argv[1:])
