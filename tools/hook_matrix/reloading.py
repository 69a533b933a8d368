"""Loads the cells of the matrix and observes them; in a clean process when it runs by itself."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from torch.nn.modules import module as modules

import modpack


def reloaded(importer: Any, record: str, row: str) -> dict[str, Any]:
    """What is observed of a cell's model after it was loaded.

    Returns:
        What was ``seen``, and which steps are ``left`` once all handles were removed; or what
        ``failed``.
    """
    forget_process_wide_choice()
    try:
        net, optimizer = importer.load_model(
            "net", record, optimizer=True, hooks=True, global_hooks=True
        )
        observed = importer.import_module("matrixlib.net").observed
        try:
            seen = observed(row, net, optimizer)
        finally:
            for spec in importer.hook_specs("net", record):
                importer.hook_handles.pop(spec.name).remove()
        return {"seen": seen, "left": observed(row, net, optimizer)["log"]}
    except Exception as failure:
        return {"failed": f"{type(failure).__name__}: {failure}"}


def forget_process_wide_choice() -> None:
    """Torch decides once per process for legacy or full global backward hooks; each cell anew."""
    modules._global_is_full_backward_hook = None


def main(package: str, notes: str, results: str) -> None:
    """Observe all cells of a package and write down what was seen."""
    if importlib.util.find_spec("matrixlib") is not None:
        sys.exit("this process is not clean: it can import matrixlib")
    warnings.simplefilter("ignore")
    importer = modpack.PackageImporter(package)
    told = {
        cell: reloaded(importer, note["record"], cell.partition("|")[0])
        for cell, note in json.loads(Path(notes).read_text()).items()
        if "refused" not in note
    }
    Path(results).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
