"""The demo from beginning to end: each step is done, then told."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from modpack import Action, PackageExporter
from modpack.demo import render
from modpack.demo.clean_room import (
    SHOWN,
    THREADS,
    Digits,
    Observation,
    Reloaded,
    load_digits,
    observe,
    visit,
)
from modpack.demo.render import Check

EPOCHS = 16
"""Some seconds of training on two cores, and about 99 % of the test images read right."""
GOOD_ENOUGH = 0.95
"""The share of test images that a model worth packaging reads right."""
CLIPPED_AT = 0.0625
"""Where the sample project clips its gradients."""

_PROJECT = Path(__file__).parent / "project"
_SEED = 8
_INTERN = "digits_cnn.**"
_MOCK = "labplot.**"


def run(console: Console, keep: Path | None = None, epochs: int = EPOCHS) -> int:
    """Tell the whole story on a console.

    Args:
        console: where it is told.
        keep: a folder in which the project and the package stay; a temporary one by default.
        epochs: how often the training goes through the training images, at least once.

    Returns:
        0 if the reloaded model is the same as the trained one in all that was checked, else 1.

    Raises:
        ModpackError: if a step could not be done at all.
        ValueError: if ``epochs`` is less than 1.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    with _folder(keep) as folder, _deterministic():
        checks = _chapters(console, folder, epochs)
    console.print(render.heading(5, "Compare"))
    console.print(render.checks_table(checks))
    console.print()
    broken = sum(not check.kept for check in checks)
    if broken:
        console.print(Text(f"{broken} of {len(checks)} promises were broken.", "bold red"))
        return 1
    console.print(Text(f"All {len(checks)} promises were kept.", "bold green"))
    if keep is None:
        console.print("Run modpack demo --keep FOLDER to look at the project and the package.")
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
def _deterministic() -> Iterator[None]:
    """Fix torch's seed and its number of threads, and put both back after."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            yield
    finally:
        torch.set_num_threads(threads_before)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Put a folder first in the import path, and forget what was imported from it after."""
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


def _chapters(console: Console, folder: Path, epochs: int) -> tuple[Check, ...]:
    project, file, elsewhere = (
        folder / name for name in ("project", "digits.modpack", "elsewhere")
    )
    training, test = load_digits()
    console.print(render.heading(1, "A project that knows nothing of modpack"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_PROJECT, project, dirs_exist_ok=True, ignore=ignored)
    console.print(render.project_tree(project))
    with importable(project):
        console.print(render.heading(2, "Train"))
        model = _train(console, training, epochs)
        before = observe(model, test)
        console.print(
            f"On {before.images} images that it has not seen, it reads {before.accuracy:.1%} "
            f"right.\nIts hooks fired: {before.hooks}.",
            highlight=False,
        )
        console.print(render.heading(3, "Package"))
        decided, heard = _package(console, model, file, project)
    console.print(render.heading(4, "Reload in a clean interpreter"))
    elsewhere.mkdir(exist_ok=True)
    with console.status("Starting a clean interpreter ..."):
        reloaded = visit(file, elsewhere)
    console.print(
        f"python -I, {reloaded.seconds:.1f} s in all, of which {reloaded.load_seconds:.2f} s "
        f"to load the package.\nThere the model's code is called {reloaded.module}.\n"
        "It reads:\n",
        highlight=False,
    )
    strip = render.digits_strip(test.images[:SHOWN].tolist(), reloaded.observed.predictions)
    _draw(console, strip)
    return compare(before, decided, heard, reloaded)


def _train(console: Console, training: Digits, epochs: int) -> Any:
    """Make the project's network and train it."""
    project = importlib.import_module("digits_cnn")
    hooks = importlib.import_module("digits_cnn.hooks")
    fit = importlib.import_module("digits_cnn.train").fit
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs, loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    is_plain = not console.is_terminal
    history = []
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=is_plain) as bar:
        task = bar.add_task("training", total=epochs, loss=float("nan"))
        model = project.DigitsNet(project.Settings(), hooks.Normalize(training.images))
        for loss, accuracy in fit(model, *training, epochs):
            history.append((loss, accuracy))
            bar.update(task, advance=1, loss=loss)
    seconds = time.perf_counter() - started
    console.print(
        f"{epochs} epochs over {len(training.images)} handwritten digits in {seconds:.1f} s.",
        highlight=False,
    )
    _draw(console, model.report(*zip(*history, strict=True)))
    return model


def _draw(console: Console, text: str) -> None:
    """Print a drawing, as far as the console's encoding has its characters."""
    console.print(Text(text.encode(console.encoding, "replace").decode(console.encoding), "cyan"))


def _package(
    console: Console, model: Any, file: Path, project: Path
) -> tuple[dict[str, Action], list[tuple[Action, str]]]:
    """Write the model and the code that it needs into one file.

    Returns:
        What was decided about each module, and what the match hooks heard, in order.
    """
    console.print(f'exporter.intern("{_INTERN}")', f'exporter.mock("{_MOCK}")', sep="\n")
    console.print('exporter.save_model("model", "model.pkl", model)')
    model.feature_maps.reset()
    heard: list[tuple[Action, str]] = []
    started = time.perf_counter()
    with PackageExporter(file) as exporter:
        exporter.intern(_INTERN)
        exporter.mock(_MOCK)
        exporter.register_intern_hook(lambda _, module: heard.append((Action.INTERN, module)))
        exporter.register_extern_hook(lambda _, module: heard.append((Action.EXTERN, module)))
        exporter.register_mock_hook(lambda _, module: heard.append((Action.MOCK, module)))
        exporter.save_model("model", "model.pkl", model)
        plan = exporter.plan()
        hooks = [hook.spec for hook in exporter.hook_report() if hook.spec is not None]
    seconds = time.perf_counter() - started
    size = decimal(file.stat().st_size)
    console.print(f"\n{file.name}: {size}, {seconds:.2f} s.", highlight=False)
    console.print(render.modules_table(plan, project))
    console.print(render.hooks_table(hooks))
    left_behind = render.left_behind(plan, project)
    console.print(f"\nnot needed, not taken: {left_behind}", highlight=False)
    for note in plan.warnings():
        console.print(Text(f"note: {note}", "yellow"))
    return {module: each.action for module, each in plan.decisions.items()}, heard


def compare(
    trained: Observation,
    decided: Mapping[str, Action],
    heard: Sequence[tuple[Action, str]],
    reloaded: Reloaded,
) -> tuple[Check, ...]:
    """Hold each promise against the facts.

    Args:
        trained: what the model did before the export.
        decided: what was decided about each module.
        heard: what the match hooks heard.
        reloaded: what the clean interpreter reported.
    """
    again = reloaded.observed
    ours = (Action.INTERN, Action.MOCK)
    roots = {module.partition(".")[0] for module, action in decided.items() if action in ours}
    fired = again.normalize_calls and again.feature_map_calls and again.refusal
    return (
        Check(
            f"the model reads more than {GOOD_ENOUGH:.0%} of the test images right",
            again.accuracy > GOOD_ENOUGH,
            f"{again.accuracy:.1%} of {again.images}",
        ),
        Check(
            "the project cannot be imported where the model was reloaded",
            set(reloaded.unknown) == roots,
            f"unknown there: {', '.join(reloaded.unknown) or 'nothing'}",
        ),
        Check(
            "predictions are bit-identical",
            again.logits == trained.logits,
            _same(again.logits, trained.logits, "sha256 of the logits"),
        ),
        Check(
            "the hooks fire, and collect the same",
            _hooks(again) == _hooks(trained) and bool(fired),
            again.hooks,
        ),
        Check(
            "the gradients are clipped, and bit-identical",
            again.gradients == trained.gradients and again.largest_gradient <= CLIPPED_AT,
            f"largest {again.largest_gradient:.3f}, "
            + _same(again.gradients, trained.gradients, "sha256"),
        ),
        Check(
            "the mock fails only when it is used",
            bool(reloaded.mocked),
            reloaded.mocked or "it did not fail",
        ),
        Check(
            "each module was announced to its match hook, once",
            sorted(heard) == sorted((action, module) for module, action in decided.items()),
            f"{len(heard)} calls for {len(decided)} modules",
        ),
    )


def _hooks(observed: Observation) -> tuple[object, ...]:
    calls = observed.normalize_calls, observed.feature_map_calls
    return *calls, observed.feature_maps, observed.refusal


def _same(found: str, expected: str, what: str) -> str:
    was = "" if found == expected else f", was {expected[:16]}..."
    return f"{what}: {found[:16]}...{was}"
