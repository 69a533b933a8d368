"""What the demo does: write a project, train its model, package it."""

from __future__ import annotations

import importlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from modpack.core.actions import Action
from modpack.demo.digits import Digits
from modpack.demo.facts import Packaged, Trained, files_left_behind, hook_facts, module_facts
from modpack.demo.observe import Model
from modpack.exporter import PackageExporter

__all__ = ["INTERN", "MOCK", "deterministic", "importable", "package", "train", "write_project"]

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
