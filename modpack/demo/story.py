"""The demo: a small model is trained, packaged, and reloaded where its code cannot be imported.

Importing this package does not import torch; running the demo does.

What the demo does: write a project, train its model, package it.

What the demo promises, held against what it found out.

The demo from beginning to end: each step is done, then told.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from modpack.core.rules import Action
from modpack.demo import render
from modpack.demo.clean_room import SHOWN, THREADS, Digits, Model, load_digits, observe, visit
from modpack.demo.facts import (
    Check,
    Observation,
    Packaged,
    Reloaded,
    Trained,
    files_left_behind,
    hook_facts,
    module_facts,
)
from modpack.exporter import PackageExporter

EPOCHS = 16
"""Some seconds of training on two cores, and about 99 % of the test images read right."""


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

    return tell(console, keep, epochs)


PROJECT = Path(__file__).parent / "project"
SEED = 8
INTERN = "digits_cnn.**"
MOCK = "labplot.**"


def write_project(folder: Path) -> tuple[Path, ...]:
    """Copy the sample project into a folder.

    Args:
        folder: where its packages go; files of a former run are replaced.

    Returns:
        The files, in the order of their names.
    """
    shutil.copytree(
        PROJECT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    names = sorted(source.relative_to(PROJECT) for source in PROJECT.rglob("*.py"))
    return tuple(folder / name for name in names)


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


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Fix torch's seed and its number of threads, and put both back after."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            yield
    finally:
        torch.set_num_threads(threads_before)


def train(
    images: Digits, epochs: int, after_epoch: Callable[[float], None]
) -> tuple[Model, Trained]:
    """Make the project's network and train it.

    Args:
        images: what to train on.
        epochs: how often to go through them.
        after_epoch: called after each epoch with its mean loss.

    Returns:
        The network, and how the training went.
    """
    project = importlib.import_module("digits_cnn")
    hooks = importlib.import_module("digits_cnn.hooks")
    training = importlib.import_module("digits_cnn.train")
    started = time.perf_counter()
    model: Model = project.DigitsNet(project.Settings(), hooks.Normalise(images.images))
    history: list[tuple[float, float]] = []
    for loss, accuracy in training.fit(model, images.images, images.labels, epochs):
        history.append((loss, accuracy))
        after_epoch(loss)
    seconds = time.perf_counter() - started
    losses, accuracies = zip(*history, strict=True)
    return model, Trained(epochs, len(images), seconds, model.report(losses, accuracies))


def package(model: Model, target: Path, project: Path) -> Packaged:
    """Write the model and the code that it needs into one file.

    Args:
        model: the network.
        target: the file.
        project: the folder that files are shown relative to.
    """
    model.feature_maps.reset()
    heard: list[tuple[Action, str]] = []
    started = time.perf_counter()
    with PackageExporter(target) as exporter:
        exporter.intern(INTERN)
        exporter.mock(MOCK)
        for action, register in (
            (Action.INTERN, exporter.register_intern_hook),
            (Action.EXTERN, exporter.register_extern_hook),
            (Action.MOCK, exporter.register_mock_hook),
        ):
            register(_listener(action, heard))
        exporter.save_model("model", "model.pkl", model)
        plan = exporter.plan()
        hooks = [hook.spec for hook in exporter.hook_report() if hook.spec is not None]
    seconds = time.perf_counter() - started
    return Packaged(
        file=target,
        size=target.stat().st_size,
        seconds=seconds,
        modules=module_facts(plan, project),
        left_behind=files_left_behind(plan, project),
        remarks=tuple(str(note) for note in plan.warnings()),
        hook_calls=tuple(heard),
        hooks=hook_facts(hooks),
    )


def _listener(
    action: Action, heard: list[tuple[Action, str]]
) -> Callable[[PackageExporter, str], None]:
    def hear(exporter: PackageExporter, module: str) -> None:
        heard.append((action, module))

    return hear


GOOD_ENOUGH = 0.95
"""The share of test images that a model worth packaging reads right."""

CLIPPED_AT = 0.0625
"""Where the sample project clips its gradients."""


def compare(trained: Observation, packaged: Packaged, reloaded: Reloaded) -> tuple[Check, ...]:
    """Hold each promise against the facts.

    Args:
        trained: what the model did before the export.
        packaged: what went into the package.
        reloaded: what the clean interpreter reported.
    """
    again = reloaded.observed
    return (
        Check(
            f"the model reads more than {GOOD_ENOUGH:.0%} of the test images right",
            again.accuracy > GOOD_ENOUGH,
            f"{again.accuracy:.1%} of {again.images}",
        ),
        Check(
            "the project cannot be imported where the model was reloaded",
            set(reloaded.unknown) == _project_roots(packaged),
            f"unknown there: {', '.join(reloaded.unknown) or 'nothing'}",
        ),
        Check(
            "predictions are bit-identical",
            again.logits == trained.logits,
            _same(again.logits, trained.logits, "sha256 of the logits"),
        ),
        Check(
            "the hooks fire, and collect the same",
            _hooks(again) == _hooks(trained) and _all_fired(again),
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
            sorted(packaged.hook_calls) == sorted((f.action, f.module) for f in packaged.modules),
            f"{len(packaged.hook_calls)} calls for {len(packaged.modules)} modules",
        ),
    )


def _project_roots(packaged: Packaged) -> set[str]:
    return {
        fact.module.partition(".")[0]
        for fact in packaged.modules
        if fact.action in (Action.INTERN, Action.MOCK)
    }


def _hooks(observed: Observation) -> tuple[int, int, str, str]:
    return (
        observed.normalise_calls,
        observed.feature_map_calls,
        observed.feature_maps,
        observed.refusal,
    )


def _all_fired(observed: Observation) -> bool:
    return bool(observed.normalise_calls and observed.feature_map_calls and observed.refusal)


def _same(found: str, expected: str, what: str) -> str:
    if found == expected:
        return f"{what}: {found[:16]}..."
    return f"{what}: {found[:16]}..., was {expected[:16]}..."


def tell(console: Console, keep: Path | None, epochs: int) -> int:
    """Do and tell everything.

    Args:
        console: where it is told.
        keep: a folder in which the project and the package stay; a temporary one if None.
        epochs: how often the training goes through the training images.

    Returns:
        0 if every promise was kept, else 1.
    """
    with _folder(keep) as folder, deterministic(THREADS):
        checks = _chapters(console, folder, epochs)
    console.print(render.heading(5, "Compare"))
    console.print(render.checks_table(checks))
    console.print()
    return _verdict(console, checks, keep)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="modpack-demo-") as name:
        yield Path(name).resolve()


def _chapters(console: Console, folder: Path, epochs: int) -> tuple[Check, ...]:
    project = folder / "project"
    training, test = load_digits()
    console.print(render.heading(1, "A project that knows nothing of modpack"))
    console.print(render.project_tree(project, write_project(project)))
    with importable(project):
        model, trained = _train(console, training, epochs)
        before = observe(model, test)
        _tell_training(console, trained, before)
        packaged = package(model, folder / "digits.modpack", project)
    _tell_package(console, packaged)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    with console.status("Starting a clean interpreter ..."):
        reloaded = visit(packaged.file, elsewhere)
    _tell_reload(console, reloaded, test)
    return compare(before, packaged, reloaded)


def _train(console: Console, training: Digits, epochs: int) -> tuple[Model, Trained]:
    console.print(render.heading(2, "Train"))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs, loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=_is_plain(console)) as bar:
        task = bar.add_task("training", total=epochs, loss=float("nan"))
        return train(training, epochs, lambda loss: bar.update(task, advance=1, loss=loss))


def _is_plain(console: Console) -> bool:
    return not console.is_terminal


def _tell_training(console: Console, trained: Trained, before: Observation) -> None:
    console.print(
        f"{trained.epochs} epochs over {trained.images} handwritten digits "
        f"in {trained.seconds:.1f} s.",
        highlight=False,
    )
    console.print(Text(_printable(console, trained.report), "cyan"))
    console.print(
        f"On {before.images} images that it has not seen, it reads {before.accuracy:.1%} right.\n"
        f"Its hooks fired: {before.hooks}.",
        highlight=False,
    )


def _tell_package(console: Console, packaged: Packaged) -> None:
    console.print(render.heading(3, "Package"))
    console.print(f'exporter.intern("{INTERN}")', f'exporter.mock("{MOCK}")', sep="\n")
    console.print('exporter.save_model("model", "model.pkl", model)')
    console.print(
        f"\n{packaged.file.name}: {render.human_size(packaged.size)}, {packaged.seconds:.2f} s.",
        highlight=False,
    )
    console.print(render.modules_table(packaged.modules))
    console.print(render.hooks_table(packaged.hooks))
    console.print(f"\nnot needed, not taken: {', '.join(packaged.left_behind)}", highlight=False)
    console.print(render.remarks(packaged))


def _tell_reload(console: Console, reloaded: Reloaded, test: Digits) -> None:
    console.print(render.heading(4, "Reload in a clean interpreter"))
    console.print(
        f"python -I, {reloaded.seconds:.1f} s in all, of which {reloaded.load_seconds:.2f} s "
        f"to load the package.\nThere the model's code is called {reloaded.module}.\n"
        "It reads:\n",
        highlight=False,
    )
    strip = render.digits_strip(test.images[:SHOWN].tolist(), reloaded.observed.predictions)
    console.print(Text(_printable(console, strip), "cyan"))


def _printable(console: Console, text: str) -> str:
    return text.encode(console.encoding, "replace").decode(console.encoding)


def _verdict(console: Console, checks: tuple[Check, ...], keep: Path | None) -> int:
    broken = [check for check in checks if not check.kept]
    if broken:
        console.print(Text(f"{len(broken)} of {len(checks)} promises were broken.", "bold red"))
        return 1
    console.print(Text(f"All {len(checks)} promises were kept.", "bold green"))
    if keep is None:
        console.print("Run modpack demo --keep FOLDER to look at the project and the package.")
    else:
        console.print(f"The project and the package are in {keep}.", highlight=False)
    return 0
