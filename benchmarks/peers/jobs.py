"""What one process does and measures. Each is called with the arguments that a row gives."""

from __future__ import annotations

import contextlib
import keyword
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import project
from formats import EXPORTERS, FILES, LOADERS, SAVERS

__all__ = ["JOBS", "Missing"]

Figures = dict[str, float]

_TINY = ["tensors", 1, 64]
"""What is saved and loaded first, for what is imported then."""


class Missing(Exception):
    """There is nothing to measure yet."""


def write_files(made: list[Any], savers: dict[str, str]) -> Figures:
    """Save an object in every format, for the loaders."""
    obj, tiny = _made(made), _made(_TINY)
    for saver, loader in savers.items():
        save_to = SAVERS[saver]()
        save_to(obj, FILES[loader])
        save_to(tiny, f"tiny-{FILES[loader]}")
    return {}


def load(how: str) -> Figures:
    """Load a model; read all of it; see what memory it took."""
    import torch  # noqa: F401 - modpack imports it late, the others at once

    file, loader = FILES[how], LOADERS[how]()
    with _clock() as first:
        loader(f"tiny-{file}")
    _read_through(file)
    before = _private_bytes()
    with _clock() as to_model:
        model = loader(file)
    private = _private_bytes()
    with _clock() as a_pass:
        for parameter in model.parameters():
            float(parameter.sum())
    return {
        "to the model": to_model(),
        "with a pass": to_model() + a_pass(),
        "private memory": private,
        "memory that loading added": private - before,
        "private memory after the pass": _private_bytes(),
        "a tiny one, before": first(),
    }


def save(how: str, made: list[Any]) -> Figures:
    """Save an object; see what memory it takes on top."""
    obj, saver = _made(made), SAVERS[how]()
    target = Path(f"saved-{os.getpid()}.pt")
    with _clock() as first:
        saver(_made(_TINY), str(target))
    os.sync()  # what others wrote is none of this one's work
    before = _peak_bytes_from_now()
    with _clock() as seconds:
        saver(obj, str(target))
    extra = _status("VmHWM") - before
    target.unlink()
    return {"saving": seconds(), "extra memory": max(extra, 0), "a tiny one, before": first()}


def round_trip(saver: str, loader: str, times: int) -> Figures:
    """Save a small model and load it, over and over, with other weights each time."""
    import torch

    model, save_to, load_from = _made(["small"]), SAVERS[saver](), LOADERS[loader]()
    taken = []
    for number in range(times):
        torch.nn.init.constant_(model.layers[0].bias, number)
        file = f"trip-{os.getpid()}-{number}.pt"
        with _clock() as seconds:
            save_to(model, file)
            load_from(file)
        taken.append(seconds())
        Path(file).unlink()
    return {"first": taken[0], "later": statistics.median(taken[1:])}


def write_projects(counts: dict[str, int]) -> Figures:
    """Write projects of many modules, one in each folder."""
    for folder, count in counts.items():
        project.write_project(Path(folder), count)
    return {}


def walk_project(how: str, folder: str) -> Figures:
    """Export a project of many modules."""
    exporter_of = EXPORTERS[how]()
    sys.path.insert(0, folder)
    with _clock() as seconds, exporter_of(f"walked-{how}-{folder}.pt") as exporter:
        exporter.intern("app.**")
        exporter.save_module(project.MAIN)
        count = len(exporter.interned_modules())
    return {"per module": seconds() / count}


def walk_library(how: str, below: str, needs_cache: bool = False) -> Figures:
    """Export all modules of an installed library, or of a part of it."""
    exporter_of = EXPORTERS[how]()
    if needs_cache and not any(Path(os.environ["XDG_CACHE_HOME"]).rglob("*")):
        raise Missing("not built")
    source = "".join(f"import {name}\n" for name in _modules_below(below))
    with _clock() as seconds, exporter_of(f"walked-{how}.pt") as exporter:
        exporter.intern(f"{below}.**")
        exporter.extern("**")
        exporter.save_source_string("everything", source)
        count = len(exporter.interned_modules())
    return {"per module": seconds() / count}


def import_packaged(how: str, file: str) -> Figures:
    """Import all modules of a packaged project."""
    importer_of: Any
    if how == "modpack":
        from modpack import PackageImporter as importer_of
    else:
        from torch.package import PackageImporter as importer_of
    with _clock() as seconds:
        importer_of(file).import_module(project.MAIN)
    return {"importing": seconds()}


def import_plainly(folder: str) -> Figures:
    """Import the same modules from where they are."""
    import importlib

    sys.path.insert(0, folder)
    with _clock() as seconds:
        importlib.import_module(project.MAIN)
    return {"importing": seconds()}


def look_at(how: str, file: str) -> Figures:
    """Open a package and find out about it, or only read its directory."""
    opener = _OPENERS[how]()
    _read_through(file)
    with _clock() as seconds:
        opener(file)
    return {"opening": seconds()}


def cpu_of_import(module: str, times: int) -> Figures:
    """The CPU time of an import, less that of an interpreter that does nothing."""
    _cpu_of(f"import {module}")
    over = []
    for _ in range(times):
        nothing = _cpu_of("pass")
        over.append(_cpu_of(f"import {module}") - nothing)
    return {"CPU": statistics.median(over)}


def command(arguments: list[str]) -> Figures:
    """A command of modpack as a process, from start to end."""
    with _clock() as seconds:
        subprocess.run(
            [sys.executable, "-m", "modpack", *arguments], check=True, stdout=subprocess.DEVNULL
        )
    return {"process": seconds()}


def build_large() -> Figures:
    """The package of 2,500 modules that the other benchmark looks at."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import synthetic

    synthetic.build(Path("large"))
    return {}


JOBS: dict[str, Callable[..., Figures]] = {
    job.__name__: job
    for job in (
        write_files,
        load,
        save,
        round_trip,
        write_projects,
        walk_project,
        walk_library,
        import_packaged,
        import_plainly,
        look_at,
        cpu_of_import,
        command,
        build_large,
    )
}


def _facts_of_package() -> Callable[[str], object]:
    from modpack.report.archived import package_facts

    return package_facts


def _opened_archive() -> Callable[[str], object]:
    from modpack.archive.reader import open_archive

    return open_archive


def _opened_zip() -> Callable[[str], object]:
    import zipfile

    return zipfile.ZipFile


_OPENERS: dict[str, Callable[[], Callable[[str], object]]] = {
    "modpack": _facts_of_package,
    "modpack, opened only": _opened_archive,
    "zipfile": _opened_zip,
}


def _made(made: list[Any]) -> Any:
    import benched

    kind, *arguments = made
    return benched.MADE[kind](*arguments)


def _modules_below(library: str) -> list[str]:
    """The modules of an installed library; none is imported."""
    import importlib.util

    found = importlib.util.find_spec(library.partition(".")[0])
    assert found is not None and found.origin is not None
    site = Path(found.origin).parents[1]
    files = sorted((site / library.replace(".", "/")).rglob("*.py"))
    modules = (file.relative_to(site).with_suffix("").parts for file in files)
    named = (".".join(parts) for parts in modules if all(map(_is_name, parts)))
    return [module.removesuffix(".__init__") for module in named]


def _is_name(part: str) -> bool:
    return part.isidentifier() and not keyword.iskeyword(part)


@contextlib.contextmanager
def _clock() -> Iterator[Callable[[], float]]:
    """Yields what gives the seconds that the block took."""
    taken = [0.0]
    started = time.perf_counter()
    yield lambda: taken[0]
    taken[0] = time.perf_counter() - started


def _cpu_of(code: str) -> float:
    """User and system seconds of an interpreter."""
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def _read_through(file: str) -> None:
    """Make sure that a file is in the page cache."""
    with Path(file).open("rb", buffering=0) as opened:
        buffer = bytearray(1 << 20)
        while opened.readinto(buffer):
            pass


def _private_bytes() -> int:
    """What this process alone holds of the memory."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def _peak_bytes_from_now() -> int:
    """Forgets the peak; returns what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
