"""The demo from beginning to end: each step is done, then told."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from modpack.demo import render
from modpack.demo.checks import compare
from modpack.demo.clean_room import visit
from modpack.demo.digits import Digits, load_digits
from modpack.demo.facts import Check, Observation, Packaged, Reloaded, Trained
from modpack.demo.observe import SHOWN, THREADS, Model, observe
from modpack.demo.steps import (
    INTERN,
    MOCK,
    deterministic,
    importable,
    package,
    train,
    write_project,
)

__all__ = ["tell"]


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
