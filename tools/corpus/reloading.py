"""Load a package without its libraries, and use the model.

``python -I reloading.py FOLDER PACKAGE`` reads ``case.pt`` and writes a report next to the
package, and ``again.modpack`` with the loaded model.
"""

from __future__ import annotations

import copy
import inspect
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from shared import Steps, declare, difference, leaves

del sys.path[0]


class DifferenceError(Exception):
    """The output differs from the original's."""


def main(folder: Path, package: Path) -> None:
    """Run all possible steps, and write their results."""
    saved = json.loads((folder / "saved.json").read_text())
    declare(saved["stubs"])
    case = torch.load(folder / "case.pt", weights_only=True)
    steps = Steps()
    model = steps.take("load", lambda: _load(package))
    report: dict[str, Any] = {}
    if model is not None:
        steps.take("run", lambda: _compare(model, case))
        if package.name == "net.modpack":
            _use(model, case, steps, folder, saved["torch.save"])
            report["namespace"] = _namespace(model)
    steps.write(package.with_name(f"{package.name}.json"), **report)


def _load(package: Path) -> Any:
    if package.suffix == ".pt":
        from torch.package import PackageImporter

        return PackageImporter(package).load_pickle("model", "model.pkl")
    import modpack

    return modpack.load(package)


def _use(model: Any, case: dict[str, Any], steps: Steps, folder: Path, torch_saves: bool) -> None:
    if case["copied"] is not None:
        as_copied = {**case, "output": case["copied"]}
        steps.take("deepcopy", lambda: _compare(copy.deepcopy(model), as_copied))
    if case["source"] is not None:
        steps.take("getsource", lambda: _compare_source(model, case["source"]))
    if torch_saves:
        steps.take("torch.save", lambda: torch.save(model, io.BytesIO()))
    steps.take("re-export", lambda: _save_again(model, folder / "again.modpack"))


def _save_again(model: Any, path: Path) -> None:
    import modpack

    modpack.save(model, path, preset="hermetic")


def _owner(model: Any) -> Any:
    """Return the importer of the first packaged submodule, or None."""
    import modpack

    owners = (modpack.importer_of(part) for part in model.modules())
    return next((owner for owner in owners if owner is not None), None)


def _compare(model: Any, case: dict[str, Any]) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        found = leaves(model(*case["inputs"]))
    if text := difference(case["output"], found):
        raise DifferenceError(text)


def _compare_source(model: Any, source: str) -> None:
    if inspect.getsource(type(model)) != source:
        raise DifferenceError("the source differs")


def _namespace(model: Any) -> str:
    """Return the namespace of the package's modules, by their names."""
    owner = _owner(model)
    if owner is None:
        return "no packaged code"
    # Check sys.modules, not the model's classes: possibly only its hooks are packaged.
    private = any(name.startswith(f"{owner.id()}.") for name in sys.modules)
    return "private" if private else "process"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
