"""Builds one recipe, notes what its model puts out, and packages it; in a process of its own.

``python saving.py RECIPE FOLDER`` writes ``case.pt`` (inputs and outputs), ``net.modpack`` and
``saved.json``; with ``--torch`` it packages with ``torch.package`` and writes ``net.pt``.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bare import foundation, normalized, owners_of
from shared import Steps, declare, leaves

RECIPES = Path(__file__).parent / "recipes"


def main() -> None:
    """Do it, and write down what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", action="store_true")
    given = parser.parse_args()
    (_with_torch_package if given.torch else _with_modpack)(given.recipe, given.folder)


def _with_modpack(name: str, folder: Path) -> None:
    import modpack

    recipe, model, inputs = built(name)
    case = {"inputs": inputs, "output": _output(model, inputs), "source": _source(type(model))}
    case["copied"] = _output_of_copy(model, inputs)
    torch.save(case, folder / "case.pt")
    steps = Steps()
    options: dict[str, Any] = {"preset": "hermetic"}
    if "example_inputs" in inspect.signature(modpack.save).parameters:
        options["example_inputs"] = inputs
    plan = steps.take("save", lambda: modpack.save(model, folder / "net.modpack", **options))
    report: dict[str, Any] = {
        "stubs": operators_of(name),
        "libraries": list(recipe.LIBRARIES),
        "compiled": list(getattr(recipe, "COMPILED", ())),
        "torch.save": _torch_saves(model),
        "refusal": _refusal(steps.failures.get("save")),
    }
    steps.write(folder / "saved.json", **report, **({} if plan is None else _facts(plan)))


def _output(model: torch.nn.Module, inputs: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return leaves(model(*inputs))


def _output_of_copy(model: torch.nn.Module, inputs: Any) -> Any:
    """What a copy of the original puts out; None if it cannot be copied, or the copy not be run."""
    try:
        return _output(copy.deepcopy(model), inputs)
    except Exception:
        return None


def _refusal(failure: BaseException | None) -> str:
    """What an error that modpack raised on purpose says first; empty for any other.

    In a list of problems the first line says what is wrong, the second one where.
    """
    import modpack

    if not isinstance(failure, modpack.errors.ModpackError):
        return ""
    lines = [line.strip(" *") for line in str(failure).splitlines()]
    return " / ".join([line for line in lines if line][:2]) or type(failure).__name__


def _torch_saves(model: torch.nn.Module) -> bool:
    """Whether ``torch.save`` takes the original: if it does not, it need not take the copy."""
    try:
        torch.save(model, io.BytesIO())
    except Exception:
        return False
    return True


def _facts(plan: Any) -> dict[str, Any]:
    decided: dict[str, list[str]] = {}
    for module, decision in sorted(plan.decisions.items()):
        decided.setdefault(decision.action.past, []).append(module)
    owners = owners_of(_files(plan, "interned"))
    return {
        "modules": decided,
        "interned": sorted(owners),
        "extern": sorted(owners_of(_files(plan, "externed"))),
        "hidden": sorted(owners - foundation()),
        "notes": [str(note) for note in plan.warnings()],
    }


def _files(plan: Any, decided: str) -> Iterator[Path]:
    """The files of all modules with a decision; folders without code have none."""
    for decision in plan.decisions.values():
        if decision.action.past == decided and decision.location is not None:
            yield from map(Path, filter(None, [decision.location.file]))


def _with_torch_package(name: str, folder: Path) -> None:
    from torch.package import PackageExporter

    recipe, model, _ = built(name)

    def save() -> None:
        with PackageExporter(folder / "net.pt") as exporter:
            exporter.intern([f"{root}.**" for root in _roots(recipe)])
            exporter.extern("**")
            exporter.save_pickle("model", "model.pkl", model)

    steps = Steps()
    steps.take("save", save)
    steps.write(folder / "torch-saved.json")


def _roots(recipe: Any) -> list[str]:
    """The top-level modules of the recipe's libraries, and the recipe's own."""
    from importlib.metadata import packages_distributions

    libraries = {normalized(library) for library in recipe.LIBRARIES}
    found = [
        root
        for root, names in packages_distributions().items()
        if libraries & {normalized(name) for name in names}
    ]
    return [recipe.__name__, *sorted(found)]


def built(name: str) -> tuple[Any, torch.nn.Module, tuple[Any, ...]]:
    """The module of a recipe, its model, and the inputs of its model."""
    sys.path.insert(0, str(RECIPES))
    declare(operators_of(name))
    recipe = importlib.import_module(name)
    torch.manual_seed(0)
    model, inputs = recipe.build()
    model.eval()
    return recipe, model, inputs


def operators_of(name: str) -> str:
    """The library whose operators a recipe wants declared before it is imported; or nothing."""
    text = (RECIPES / f"{name}.py").read_text()
    wanted = re.search(r'^OPERATORS = "(\w+)"$', text, re.MULTILINE)
    return wanted[1] if wanted else ""


def _source(kind: type) -> str | None:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return None


if __name__ == "__main__":
    main()
