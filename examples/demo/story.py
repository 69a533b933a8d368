"""The steps of the demo, each followed by its results."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import render
import torch
from behavior import Check, Digits, compare, error_message, load_digits, observe
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from rich.text import Text
from served import can_serve, post, serve

from modpack import Action, PackageExporter, PackageImporter, self_test

EPOCHS = 16
"""Takes a few seconds on two cores and reaches a test accuracy of about 99%."""

_PROJECT = Path(__file__).parent / "project"
_SEED = 8
_SHOWN = 8
"""The number of test images to draw."""


def run(console: Console, keep: Path | None = None, epochs: int = EPOCHS) -> int:
    """Run the demo and print its results.

    Args:
        console: The console for the results.
        keep: The folder for the project and the package. Default: a temporary folder.
        epochs: The number of training epochs, at least 1.

    Returns:
        0 if every check passes, else 1.

    Raises:
        ModpackError: If a step fails.
        ValueError: If ``epochs`` is less than 1.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    with _folder(keep) as folder, _reproducible():
        checks = _run_steps(console, folder, epochs)
    failed = sum(not check.passed for check in checks)
    if failed:
        console.print(Text(f"{failed} of {len(checks)} checks failed.", "bold red"))
        return 1
    console.print(Text(f"All {len(checks)} checks passed.", "bold green"))
    if keep is None:
        console.print("To keep the project and the package, run: python examples/demo --keep DIR")
    else:
        console.print(f"The project and the package are in {keep}.", highlight=False)
    return 0


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="modpack-demo-") as name:
        yield Path(name).resolve()


@contextmanager
def _reproducible() -> Iterator[None]:
    """Set torch's seed and number of threads: with one, busy cores do not slow the training."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Put a folder first on the import path, and remove its modules afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None)
            if origin is not None and Path(origin).is_relative_to(folder):
                del sys.modules[name]


def _run_steps(console: Console, folder: Path, epochs: int) -> tuple[Check, ...]:
    project, file, elsewhere = (
        folder / name for name in ("project", "digits.modpack", "elsewhere")
    )
    training, test = load_digits()
    console.print(render.heading(1, "A project without modpack"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_PROJECT, project, dirs_exist_ok=True, ignore=ignored)
    console.print(render.project_tree(project))
    with importable(project):
        console.print(render.heading(2, "Train"))
        model = _train(console, training, epochs)
        before = observe(model, test)
        console.print(
            f"Test accuracy on {len(test.images)} images: {before.accuracy:.1%}.\n"
            f"Hook calls: {before.hooks}.",
            highlight=False,
        )
        console.print(render.heading(3, "Package"))
        decided, announced = _package(console, model, file, test.images[:2].clone())
    elsewhere.mkdir(exist_ok=True)
    console.print(render.heading(4, "Test in a clean interpreter"))
    with console.status("Starting a clean interpreter ..."):
        tested = self_test(file)
    outcome = "passed" if tested.passed else f"failed: {tested.reason}"
    console.print(
        f"modpack.self_test({file.name!r}): {outcome} in {tested.seconds:.1f} s.\n"
        f"The interpreter cannot import {', '.join(tested.recorded.hidden)}.",
        highlight=False,
    )
    console.print(render.heading(5, "Reload without the project"))
    with PackageImporter(file) as importer:
        reloaded = importer.load_model("model", "model.pkl")
        after = observe(reloaded, test)
        mocked = error_message(NotImplementedError, lambda: reloaded.report([1.0], [0.5]))
    console.print(
        f"The model's module is\n{type(reloaded).__module__}.\nIts predictions:\n",
        highlight=False,
    )
    predicted = after.logits[:_SHOWN].argmax(dim=1).tolist()
    _draw(console, render.digits_strip(test.images[:_SHOWN].tolist(), predicted))
    missing = [name for name in ("digits_cnn", "labplot") if find_spec(name) is None]
    shown = f"not importable: {', '.join(missing) or 'none'}"
    checks = (
        Check("the self-test passes in a clean interpreter", tested.passed, outcome),
        Check("the project cannot be imported", len(missing) == 2, shown),
        *compare(before, after, mocked, decided, announced),
    )
    console.print("", render.checks_table(checks))
    console.print(render.heading(6, "Serve"))
    answered = _serve(console, file, elsewhere, test, predicted[0])
    console.print()
    return *checks, *answered


def _train(console: Console, training: Digits, epochs: int) -> Any:
    """Create and train the project's network."""
    project = importlib.import_module("digits_cnn")
    hooks = importlib.import_module("digits_cnn.hooks")
    fit = importlib.import_module("digits_cnn.train").fit
    started = time.perf_counter()
    model = project.DigitsNet(project.Settings(), hooks.Normalize(training.images))
    history = track(
        fit(model, *training, epochs),
        "training",
        total=epochs,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    losses, accuracies = zip(*history, strict=True)
    seconds = time.perf_counter() - started
    console.print(
        f"{epochs} epochs over {len(training.images)} handwritten digits in {seconds:.1f} s.",
        highlight=False,
    )
    _draw(console, model.report(losses, accuracies))
    return model


def _draw(console: Console, text: str) -> None:
    """Print a drawing, replacing characters that the console cannot encode."""
    console.print(Text(text.encode(console.encoding, "replace").decode(console.encoding), "cyan"))


def _package(
    console: Console, model: Any, file: Path, images: torch.Tensor
) -> tuple[dict[str, Action], list[tuple[Action, str]]]:
    """Package the model.

    Returns:
        The decision about each module, and the calls of the match hooks, in order.
    """
    console.print('exporter.intern("digits_cnn.**")', 'exporter.mock("labplot.**")', sep="\n")
    console.print('exporter.save_model("model", "model.pkl", model, example_inputs=images)')
    model.feature_maps.reset()
    announced: list[tuple[Action, str]] = []
    started = time.perf_counter()
    with PackageExporter(file) as exporter:
        exporter.intern("digits_cnn.**")
        exporter.mock("labplot.**")
        exporter.register_intern_hook(lambda _, module: announced.append((Action.INTERN, module)))
        exporter.register_extern_hook(lambda _, module: announced.append((Action.EXTERN, module)))
        exporter.register_mock_hook(lambda _, module: announced.append((Action.MOCK, module)))
        exporter.save_model("model", "model.pkl", model, example_inputs=images)
        plan = exporter.plan()
    seconds = time.perf_counter() - started
    size = decimal(file.stat().st_size)
    console.print(
        f"\n{file.name}: {size}, {seconds:.2f} s.\n\n$ modpack inspect {file.name}", highlight=False
    )
    command = [sys.executable, "-m", "modpack", "inspect", str(file)]
    width = {"COLUMNS": str(console.width), "PYTHONIOENCODING": console.encoding}
    inspected = subprocess.run(
        command, env={**os.environ, **width}, capture_output=True, encoding=console.encoding
    )
    console.print(Text(inspected.stdout + inspected.stderr), end="")
    return {module: each.action for module, each in plan.decisions.items()}, announced


def _serve(
    console: Console, file: Path, elsewhere: Path, test: Digits, predicted: int
) -> tuple[Check, ...]:
    """Send the first test image to the served package, and check the answer."""
    if not can_serve():
        console.print(
            "Skipped, because uvicorn, msgspec, or prometheus-client is not installed. Run: pip "
            "install 'modpack[serve]'",
            highlight=False,
            markup=False,  # the brackets of the extra are not a tag
        )
        return ()
    image = test.images[:1].int().tolist()
    with console.status("Starting a server ..."), serve(file, elsewhere) as url:
        (scores,) = post(f"{url}/predict", {"images": image})["output"]
    answer = scores.index(max(scores))
    body = json.dumps({"images": image})
    shown = ", ".join(f"{score:.2f}" for score in scores)
    console.print(
        f"$ modpack serve {file.name}\n$ curl {url}/predict -d '{body[:34]}...'\n"
        f'{{"output": [[{shown}]]}}\n',
        highlight=False,
        soft_wrap=True,
    )
    evidence = f"digit {answer} has the largest score"
    check = Check("the server's answer is the reloaded model's", answer == predicted, evidence)
    console.print(render.checks_table([check]))
    return (check,)
