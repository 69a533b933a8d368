"""Jobs, each of which runs in a new process with the arguments of a row."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import keyword
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import project
from clocks import (
    clock,
    cpu_of,
    peak_bytes,
    peak_bytes_from_now,
    private_bytes,
    profile_clocks,
    read_through,
    run_python,
    seconds_of,
)
from formats import FILES, LOADERS, SAVERS, exporter_of, importer_of

Figures = dict[str, float]

_GIB = 1 << 30
_TINY = ["tensors", 1, 64]
"""The object of warm-ups, which trigger lazy imports."""


class Missing(Exception):
    """A cache that was not filled by a preparing job."""


def write_files(spec: list[Any], savers: dict[str, str]) -> Figures:
    """Save an object in every format."""
    obj, tiny = _create(spec), _create(_TINY)
    for saver, loader in savers.items():
        save_to = SAVERS[saver]()
        save_to(obj, FILES[loader])
        save_to(tiny, f"tiny-{FILES[loader]}")
    _reload_page_cache([FILES[loader] for loader in savers.values()])
    return {}


def _reload_page_cache(files: list[str]) -> None:
    """Drop files from the page cache, and read them again.

    The page cache stores written data in pieces whose size depends on free memory at that time.
    Reading a mapped file takes up to twice as long with small pieces, so the order of writing would
    affect the results. Memory is no longer fragmented after all files were dropped.
    """
    for file in files:
        with Path(file).open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for file in files:
        read_through(file)


def load(how: str) -> Figures:
    """Load a model and read all tensors, and measure time and memory."""
    import torch  # noqa: F401 - modpack imports torch lazily

    file, loader = FILES[how], LOADERS[how]()
    with clock(warming_up=True) as first:
        loader(f"tiny-{file}")
    read_through(file)
    before = private_bytes()
    with clock() as loading:
        model = loader(file)
    private = private_bytes()
    with clock() as reading:
        for parameter in model.parameters():
            float(parameter.sum())
    return {
        "load only": loading(),
        "load and read": loading() + reading(),
        "private memory": private,
        "added memory": private - before,
        "private memory after reading": private_bytes(),
        "warm-up": first(),
    }


def save(how: str, spec: list[Any]) -> Figures:
    """Save an object, and measure time and extra memory."""
    obj, saver = _create(spec), SAVERS[how]()
    target = Path(f"saved-{os.getpid()}.pt")
    with clock(warming_up=True) as first:
        saver(_create(_TINY), str(target))
    os.sync()  # flush the writes of earlier jobs
    before = peak_bytes_from_now()
    with clock() as seconds:
        saver(obj, str(target))
    extra = peak_bytes() - before
    target.unlink()
    return {"saving": seconds(), "extra memory": max(extra, 0), "warm-up": first()}


def round_trip(saver: str, loader: str, times: int) -> Figures:
    """Repeatedly save and load a small model with changing weights."""
    import torch

    model, taken = _create(["small"]), []
    with clock(warming_up=True) as importing:
        save_to, load_from = SAVERS[saver](), LOADERS[loader]()
    for number in range(times):
        torch.nn.init.constant_(model.layers[0].bias, number)
        file = f"trip-{os.getpid()}-{number}.pt"
        os.sync()  # flush earlier writes
        with clock() as seconds:
            save_to(model, file)
            load_from(file)
        taken.append(seconds())
        Path(file).unlink()
    first, later = importing() + taken[0], statistics.median(taken[1:])
    return {"first, with import": first, "later": later, "importing the tool": importing()}


def write_projects(counts: dict[str, int], tracked: int = 0) -> Figures:
    """Write a project to each folder."""
    for folder, count in counts.items():
        project.write_project(Path(folder), count, tracked)
    return {}


def walk_project(
    how: str, folder: str, needs_cache: bool = False, tracker: str = "extern"
) -> Figures:
    """Export a project, with the rule ``tracker`` for the module that some of its modules use."""
    exporting = exporter_of(how)
    _require_cache(needs_cache)
    sys.path.insert(0, folder)
    with clock() as seconds, exporting(f"walked-{how}-{folder}.pt") as exporter:
        exporter.intern("app.**")
        getattr(exporter, tracker)(f"{project.TRACKER}.**")
        exporter.save_module(project.MAIN)
        count = len(exporter.interned_modules())
    return {"per module": seconds() / count, "modules": count}


def walk_library(how: str, below: str, needs_cache: bool = False) -> Figures:
    """Export all modules of an installed library, or of a subpackage."""
    exporting = exporter_of(how)
    _require_cache(needs_cache)
    source = "".join(f"import {name}\n" for name in _modules_below(below))
    with clock() as seconds, exporting(f"walked-{how}.pt") as exporter:
        exporter.intern(f"{below}.**")
        exporter.extern("**")
        exporter.save_source_string("everything", source)
        count = len(exporter.interned_modules())
    return {"per module": seconds() / count, "modules": count}


def import_packaged(how: str, file: str) -> Figures:
    """Import all modules of a packaged project."""
    importing = importer_of(how)
    with clock() as seconds:
        importing(file).import_module(project.MAIN)
    return {"importing": seconds()}


def import_plainly(folder: str) -> Figures:
    """Import the same modules from where they are."""
    sys.path.insert(0, folder)
    with clock() as seconds:
        importlib.import_module(project.MAIN)
    return {"importing": seconds()}


def open_package(how: str, file: str) -> Figures:
    """Open and inspect a package, or only open it."""
    opener = _opener(how)
    with clock(warming_up=True) as first:
        opener(f"tiny-{file}")
    read_through(file)
    with clock() as seconds:
        opener(file)
    return {"opening": seconds(), "warm-up": first()}


def first_load(times: int) -> Figures:
    """Measure the first load in a process that has imported torch, with modpack and torch.package.

    Loads alternate between both tools, each in a new process, and include the tool's imports.
    """
    import torch
    from torch.package import PackageExporter

    import modpack

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    modpack.save(model, "plain.modpack", extern="torch.**")
    with PackageExporter("plain.torch-package") as exporter:
        exporter.extern("torch.**")
        exporter.save_pickle("model", "model.pkl", model)
    ours, theirs = _medians_in_turn(times, [(code, "import torch") for code in _FIRST_LOADS])
    return {"over torch.package": ours - theirs, "modpack": ours, "torch.package": theirs}


_FIRST_LOADS = (
    "import modpack; modpack.load('plain.modpack')",
    "from torch.package import PackageImporter; "
    "PackageImporter('plain.torch-package').load_pickle('model', 'model.pkl')",
)


def _medians_in_turn(times: int, codes: Sequence[tuple[str, str]]) -> list[float]:
    """Return the median seconds of each code, which run in turn, each in a new interpreter.

    Args:
        times: Number of measurements of each.
        codes: Each code, and code that runs before its measurement.
    """
    for code, after in codes:
        seconds_of(code, after)  # compiles modules and fills the cache
    taken = [[seconds_of(code, after) for code, after in codes] for _ in range(times)]
    return [statistics.median(each) for each in zip(*taken, strict=True)]


def first_save(times: int) -> Figures:
    """Measure a first save with its load test, less an import of torch in a new process.

    The clean interpreter of the test imports torch while the model is saved.
    """
    small = "import torch, benched; model = benched.Small()"
    save = "import modpack; modpack.save(model, 'first.modpack', self_test=True)"
    after = f"import sys; sys.path.insert(0, ''); {small}"
    ours, theirs = _medians_in_turn(times, [(save, after), ("import torch", "pass")])
    return {"over `import torch`": ours - theirs, "modpack": ours, "import torch": theirs}


def repeated_save(times: int) -> Figures:
    """Measure what the load test adds to later saves of a small model with changing weights."""
    import torch

    import modpack

    model = _create(["small"])
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(times + 1):
        for is_tested in taken:
            torch.nn.init.constant_(model.layers[0].bias, number)
            os.sync()  # flush earlier writes
            with clock(warming_up=not number) as seconds:
                modpack.save(model, "repeated.modpack", self_test=is_tested)
            if number:  # the first save starts the interpreter
                taken[is_tested].append(seconds())
    tested, untested = map(statistics.median, taken.values())
    return {"added by the test": tested - untested, "tested": tested, "untested": untested}


def save_library(how: str, model: str) -> Figures:
    """Save a model with the code of its library. modpack also loads it and compares its output.

    The first call of the model runs before the measurement.
    """
    import libraries
    import torch

    built, inputs, library = libraries.MODELS[model]()
    with torch.no_grad():
        built.eval()(*inputs)
    if how == "modpack":
        import modpack

        with clock() as seconds:
            options: dict[str, Any] = {"preset": "hermetic", "example_inputs": inputs}
            modpack.save(built, "library.modpack", **options, self_test=True)
    else:
        with clock() as seconds, exporter_of(how)("library.pt") as exporter:
            exporter.intern([library, f"{library}.**"])
            exporter.extern("**")
            exporter.save_pickle("model", "model.pkl", built)
    return {"saving": seconds()}


def cpu_of_import(module: str, times: int) -> Figures:
    """Measure the CPU time of an import, less that of an empty interpreter."""
    cpu_of(f"import {module}")
    over = []
    for _ in range(times):
        nothing = cpu_of("pass")
        over.append(cpu_of(f"import {module}") - nothing)
    return {"CPU": statistics.median(over)}


def process(arguments: list[str]) -> Figures:
    """Measure the time of an interpreter."""
    with clock() as seconds:
        run_python(*arguments)
    return {"process": seconds()}


def machine(work: str) -> Figures:
    """Measure work that no tool can avoid: hashing half a GiB, or writing it to the disk."""
    data, file = bytes(_GIB // 2), Path(f"machine-{os.getpid()}")
    os.sync()
    with clock() as seconds:
        if work == "hash":
            hashlib.sha256(data).digest()
        else:
            with file.open("wb", buffering=0) as opened:
                opened.write(data)
                os.fsync(opened.fileno())
    file.unlink(missing_ok=True)
    return {"for 1 GiB": 2 * seconds()}


def build_large() -> Figures:
    """Build the package of 2,500 modules of the benchmark of commands."""
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
        open_package,
        first_load,
        first_save,
        repeated_save,
        save_library,
        cpu_of_import,
        process,
        build_large,
        machine,
    )
}


def _opener(how: str) -> Callable[[str], object]:
    if how == "zipfile":
        import zipfile

        return zipfile.ZipFile
    if how == "modpack, open only":
        from modpack.archive.reader import open_archive

        return open_archive
    import io

    from rich.console import Console

    from modpack.report.package_info import package_facts
    from modpack.report.text import package_report

    if how == "modpack, without rendering":
        return package_facts
    return lambda file: Console(file=io.StringIO()).print(package_report(package_facts(file)))


def _create(spec: list[Any]) -> Any:
    import benched

    kind, *arguments = spec
    return benched.FACTORIES[kind](*arguments)


def _require_cache(is_needed: bool) -> None:
    if is_needed and not any(Path(os.environ["XDG_CACHE_HOME"]).rglob("*")):
        raise Missing("not built")


def _modules_below(library: str) -> list[str]:
    """Return the modules of an installed library without importing any."""
    found = importlib.util.find_spec(library.partition(".")[0])
    assert found is not None and found.origin is not None
    site = Path(found.origin).parents[1]
    files = sorted((site / library.replace(".", "/")).rglob("*.py"))
    modules = (".".join(file.relative_to(site).with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in modules if _is_module_path(name)]


def _is_module_path(name: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))


def main() -> None:
    """Run ``jobs.py JOB ARGUMENTS [PROFILE]``, and print the measurements as JSON."""
    name, arguments, *profile = sys.argv[1:]
    sys.path.insert(0, str(Path.cwd()))  # contains the modules of the models
    with profile_clocks(profile[0]) if profile else contextlib.nullcontext():
        try:
            figures: object = JOBS[name](**json.loads(arguments))
        except Missing as missing:
            figures = {"missing": str(missing)}
    print("\n" + json.dumps(figures))


if __name__ == "__main__":
    main()
