"""Build a recipe in a new process, record its outputs, and package it.

``python saving.py RECIPE FOLDER`` writes ``case.pt`` (inputs and outputs), ``net.modpack`` and
``saved.json``. With ``--trained``, it takes a training step first. With ``--torch``, it packages
with ``torch.package`` and writes ``net.pt``.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import io
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bare import foundation, normalized, owners_of
from shared import Steps, declare, leaves

RECIPES = Path(__file__).parent / "recipes"


def main() -> None:
    """Package a recipe, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--trained", action="store_true")
    options = parser.parse_args()
    if options.torch:
        _with_torch_package(options.recipe, options.folder)
    else:
        _with_modpack(options.recipe, options.folder, options.trained)


def _with_modpack(name: str, folder: Path, is_trained: bool) -> None:
    import modpack
    from modpack.errors import ModpackWarning

    recipe, model, inputs = build(name)
    if is_trained:
        train(model, inputs)
    case = {"inputs": inputs, "output": _output(model, inputs), "source": _source(type(model))}
    case["copied"] = _output_of_copy(model, inputs)
    torch.save(case, folder / "case.pt")
    steps = Steps()
    target = folder / "net.modpack"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ModpackWarning)
        plan = steps.take(
            "save", lambda: modpack.save(model, target, preset="hermetic", example_inputs=inputs)
        )
    told = [e.message for e in caught if issubclass(e.category, ModpackWarning)]
    report: dict[str, Any] = {
        "warnings": [str(message) for message in told],
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
    """Return the output of a copy of the model, or None if copying or running it fails."""
    try:
        return _output(copy.deepcopy(model), inputs)
    except Exception:
        return None


def _refusal(error: BaseException | None) -> str:
    """Return the first two lines of one of modpack's own errors, or an empty string.

    In a list of problems, the first line is the problem and the second its subject.
    """
    import modpack

    if not isinstance(error, modpack.errors.ModpackError):
        return ""
    lines = [line.strip(" *") for line in str(error).splitlines()]
    return " / ".join([line for line in lines if line][:2]) or type(error).__name__


def _torch_saves(model: torch.nn.Module) -> bool:
    """Return whether ``torch.save`` works for the original; otherwise the copy need not work."""
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
        "codes": Counter(note.code for note in plan.notes),
        "notes": [str(note) for note in plan.notes],
    }


def _files(plan: Any, decided: str) -> Iterator[Path]:
    """Yield the source files of all modules with a decision."""
    for decision in plan.decisions.values():
        if decision.action.past == decided and decision.location is not None:
            yield from map(Path, filter(None, [decision.location.file]))


def _with_torch_package(name: str, folder: Path) -> None:
    from torch.package import PackageExporter

    recipe, model, _ = build(name)

    def save() -> None:
        with PackageExporter(folder / "net.pt") as exporter:
            exporter.intern([f"{root}.**" for root in _roots(recipe)])
            exporter.extern("**")
            exporter.save_pickle("model", "model.pkl", model)

    steps = Steps()
    steps.take("save", save)
    steps.write(folder / "torch-saved.json")


def _roots(recipe: Any) -> list[str]:
    """Return the top-level modules of the recipe and its libraries."""
    from importlib.metadata import packages_distributions

    libraries = {normalized(library) for library in recipe.LIBRARIES}
    found = [
        root
        for root, names in packages_distributions().items()
        if libraries & {normalized(name) for name in names}
    ]
    return [recipe.__name__, *sorted(found)]


def build(name: str) -> tuple[Any, torch.nn.Module, tuple[Any, ...]]:
    """Return a recipe's module, model, and inputs."""
    sys.path.insert(0, str(RECIPES))
    declare(operators_of(name))
    recipe = importlib.import_module(name)
    torch.manual_seed(0)
    model, inputs = recipe.build()
    model.eval()
    return recipe, model, inputs


def train(model: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    """Take one training step, as far as the model computes anything that can be trained."""
    trained = [part for part in model.parameters() if part.requires_grad]
    model.train()
    try:
        outputs = leaves(model(*inputs), is_detached=False).values()
        parts = [part for part in outputs if isinstance(part, torch.Tensor) and part.requires_grad]
        loss = sum(part.abs().float().mean() for part in parts)
        if trained and isinstance(loss, torch.Tensor):
            optimizer = torch.optim.SGD(trained, 1e-4)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    except Exception as error:  # recorded in the log; some models cannot be trained like this
        print(f"--- not trained: {type(error).__name__}: {error}", file=sys.stderr)
    model.eval()


def operators_of(name: str) -> str:
    """Return the library whose operators a recipe needs declared, or an empty string."""
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
