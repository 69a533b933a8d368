"""Rows of the benchmark: work, subjects, and goals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

from figures import Absolute, Goal, Side
from measuring import Job, Row

_GIB = 1 << 30
_MAPPED = "torch.load(mmap=True)"
_LOADED = ("modpack", "torch.package", "torch.load", _MAPPED, "safetensors", "cloudpickle")
_SAVED = ("modpack", "torch.package", "torch.save", "torch.save and fsync", "cloudpickle")
_SAVED_TENSORS = (*_SAVED, "safetensors")
_WRITTEN_FOR = {
    "modpack": "modpack",
    "torch.package": "torch.package",
    "torch.save": "torch.load",
    "safetensors": "safetensors",
    "cloudpickle": "cloudpickle",
}
_WARM = "modpack, warm scan cache"
_TESTED = {
    "transformers": ("bert", "BERT of transformers"),
    "diffusers": ("unet", "UNet2DConditionModel of diffusers"),
    "timm": ("vit", "a ViT of timm"),
}
"""Models whose tested saves are measured if their libraries are installed."""


def rows(share: int = 1) -> list[Row]:
    """Return all rows.

    Args:
        share: Divisor of all sizes.
    """
    return [
        *loading(share),
        *saving(share),
        *walking(share),
        *(importing(count, share) for count in (1000, 3000)),
        opening(20_000 // share),
        starting(),
        first_loading(),
        first_saving(),
        repeated_saving(),
        *testing(share),
        inspecting(),
        round_trip(),
        _machine(),
    ]


def _machine() -> Row:
    work = {"sha256, one core": "hash", "write and fsync a new file": "write"}
    subjects = {name: Job("machine", {"work": each}) for name, each in work.items()}
    return Row("machine", "speed of this machine", (), subjects, ())


def loading(share: int) -> Iterator[Row]:
    """Yield rows that load a model and then read all tensors."""
    yield _load(
        "load-one",
        "load, one 2 GiB tensor",
        ["tensors", 1, 2 * _GIB // share],
        faster("load only", "torch.package", 100),
        faster("load and read", "torch.package", 15),
        *(no_more("load only", peer, 1.2) for peer in ("safetensors", _MAPPED)),
        *(no_more("load and read", peer, 1.2) for peer in ("safetensors", _MAPPED)),
    )
    yield _load(
        "load-400",
        "load, 400 tensors, 2 GiB",
        ["tensors", _few(share), 2 * _GIB // share // _few(share)],
        faster("load only", "torch.package", 50),
    )
    yield _load(
        "load-20000",
        "load, 20,000 tensors of 50 KB",
        ["tensors", 20_000 // share, 50_000],
        faster("load and read", "torch.package", 2.5),
        no_more("load only", _MAPPED, 1),
        no_more("load and read", _MAPPED, 1),
    )


def _load(name: str, title: str, spec: list[object], *goals: Goal) -> Row:
    writing = Job("write_files", {"spec": spec, "savers": _WRITTEN_FOR})
    filling = Job("load", {"how": "modpack"}, cache="warm")
    subjects = {how: Job("load", {"how": how}, cache="warm") for how in _LOADED}
    memory = [
        no_more(metric, "safetensors", 1.1)
        for metric in ("private memory", "private memory after reading")
    ]
    return Row(name, title, (writing, filling), subjects, (*goals, *memory))


def saving(share: int) -> Iterator[Row]:
    """Yield rows that save tensors and other objects."""
    goals = (
        no_more("saving", "torch.save", 1),
        faster("saving", "torch.package", 1.5),
        under("extra memory", 100e6, "B"),
    )
    sizes = {
        "one": ("one 2 GiB tensor", 1, 2 * _GIB // share),
        "400": ("400 tensors, 2 GiB", _few(share), 2 * _GIB // share // _few(share)),
        "20000": ("20,000 tensors of 50 KB", 20_000 // share, 50_000),
    }
    for name, (title, count, size) in sizes.items():
        spec = ["tensors", count, size]
        row = _save(f"save-{name}", f"save, {title}", spec, _SAVED_TENSORS, *goals)
        yield row if share > 1 else replace(row, rounds=5)
    for name, kind in {"plain": "small containers", "objects": "small objects"}.items():
        goal = faster("saving", "torch.package", 10)
        title = f"save, 200,000 {kind}"
        spec = [name, 200_000 // share]
        yield _save(f"save-{name}", title, spec, _SAVED, goal)


def _few(share: int) -> int:
    return max(400 // share, 4)


def _save(name: str, title: str, spec: list[object], savers: tuple[str, ...], *goals: Goal) -> Row:
    subjects = {how: Job("save", {"how": how, "spec": spec}) for how in savers}
    return Row(name, title, (), subjects, goals)


def round_trip() -> Row:
    """Return a row that saves and loads a small model."""
    pairs = {
        "modpack": ("modpack", "modpack"),
        "modpack.save and load": ("modpack.save", "modpack.load"),
        "torch.package": ("torch.package", "torch.package"),
        "torch.save": ("torch.save", "torch.load"),
        "torch.save and fsync": ("torch.save and fsync", "torch.load"),
        "cloudpickle": ("cloudpickle", "cloudpickle"),
    }
    subjects = {
        name: Job("round_trip", {"saver": saver, "loader": loader, "times": 11}, cache="warm")
        for name, (saver, loader) in pairs.items()
    }
    goals = tuple(
        no_more(metric, "torch.package", 1, ours)
        for metric in ("first, with import", "later")
        for ours in ("modpack", "modpack.save and load")
    )
    title = "save and load a model of 1 MB"
    return Row("round-trip", title, (subjects["modpack"],), subjects, goals)


def walking(share: int) -> Iterator[Row]:
    """Yield rows that export large projects."""
    below = "sympy" if share == 1 else "sympy.core"
    ours = {"how": "modpack", "below": below}
    yield Row(
        "walk-sympy",
        "export of sympy",
        (Job("walk_library", ours, cache="scans"),),
        {
            "modpack": Job("walk_library", ours),
            _WARM: Job("walk_library", {**ours, "needs_cache": True}, cache="scans"),
            "torch.package": Job("walk_library", {"how": "torch.package", "below": below}),
        },
        (
            faster("per module", "torch.package", 6),
            faster("per module", "torch.package", 20, _WARM),
        ),
    )
    yield _growing(1000 // share, 10_000 // share)
    yield _mocking(1000 // share, 10_000 // share)


def _growing(few: int, many: int) -> Row:
    cold = {f"modpack, {few:,}": "few", f"modpack, {many:,}": "many"}
    warm = {f"{name}, warm scan cache": folder for name, folder in cold.items()}
    subjects = {
        name: Job("walk_project", {"how": "modpack", "folder": folder})
        for name, folder in cold.items()
    }
    for name, folder in warm.items():
        job = {"how": "modpack", "folder": folder, "needs_cache": True}
        subjects[name] = Job("walk_project", job, cache="scans")
    peer = {"how": "torch.package", "folder": "few"}
    subjects[f"torch.package, {few:,}"] = Job("walk_project", peer)
    filling = [
        Job("walk_project", {"how": "modpack", "folder": folder}, cache="scans")
        for folder in cold.values()
    ]
    return Row(
        "walk-linear",
        "export of a generated project, by number of modules",
        (Job("write_projects", {"counts": {"few": few, "many": many}}), *filling),
        subjects,
        tuple(
            no_more("per module", small, 1.3, large) for small, large in (tuple(cold), tuple(warm))
        ),
    )


def _mocking(few: int, many: int) -> Row:
    """Return a row for the cost of mock analysis: the same code with a mocked or extern module."""
    extern, mocked = "modpack, extern", "modpack, mocked"
    jobs = {
        f"{extern}, {few:,}": ("tracked-few", "extern"),
        f"{mocked}, {few:,}": ("tracked-few", "mock"),
        f"{mocked}, {many:,}": ("tracked-many", "mock"),
    }
    subjects = {
        name: Job("walk_project", {"how": "modpack", "folder": folder, "tracker": action})
        for name, (folder, action) in jobs.items()
    }
    other, ours, larger = subjects
    counts = {"tracked-few": few, "tracked-many": many}
    return Row(
        "walk-mocks",
        "export of a generated project, 5% of modules use a mock",
        (Job("write_projects", {"counts": counts, "tracked": 20}),),
        subjects,
        (
            no_more("per module", other, 1.15, ours),
            no_more("per module", ours, 1.3, larger),
        ),
    )


def importing(count: int, share: int) -> Row:
    """Return a row that imports packaged modules."""
    first, later = "modpack, first import", "modpack, later imports"
    packaged = {"how": "modpack", "file": "walked-modpack-site.pt"}
    legacy = {"how": "torch.package", "file": "walked-torch.package-site.pt"}
    return Row(
        f"import-{count}",
        f"import of {count // share:,} packaged modules",
        (
            Job("write_projects", {"counts": {"site": count // share}}),
            Job("walk_project", {"how": "modpack", "folder": "site"}),
            Job("walk_project", {"how": "torch.package", "folder": "site"}),
            Job("import_packaged", packaged, cache="code"),
            Job("import_plainly", {"folder": "site"}),
        ),
        {
            first: Job("import_packaged", packaged),
            later: Job("import_packaged", packaged, cache="code"),
            "torch.package": Job("import_packaged", legacy),
            "unpackaged, compiled": Job("import_plainly", {"folder": "site"}),
        },
        (
            no_more("importing", "torch.package", 1, first),
            faster("importing", "torch.package", 6, later),
        ),
    )


def opening(count: int) -> Row:
    """Return a row that opens a package of many records."""
    subjects = ("modpack", "modpack, without rendering", "modpack, open only", "zipfile")
    spec = ["tensors", count, 64]
    return Row(
        "open",
        f"open and inspect a package of {count:,} records",
        (Job("write_files", {"spec": spec, "savers": {"modpack": "modpack"}}),),
        {how: Job("open_package", {"how": how, "file": "model.modpack"}) for how in subjects},
        (no_more("opening", "zipfile", 2),),
    )


def starting() -> Row:
    """Return a row for the import of each tool."""
    modules = {
        "modpack": "modpack",
        "torch.package": "torch.package",
        "safetensors": "safetensors.torch",
        "cloudpickle": "cloudpickle",
    }
    return Row(
        "start",
        "`import modpack`, CPU over a bare interpreter",
        (),
        {
            name: Job("cpu_of_import", {"module": module, "times": 3})
            for name, module in modules.items()
        },
        (under("CPU", 0.060, "s"),),
    )


def first_loading() -> Row:
    """Return a row for the first load of a small model in a process, as in workers and tests."""
    return Row(
        "first-load",
        "first load in a new process",
        (),
        {"modpack": Job("first_load", {"times": 15})},
        (under("over torch.package", 0.015, "s"),),
    )


def first_saving() -> Row:
    """Return a row for the first save of a small model in a process, with its load test."""
    return Row(
        "first-save",
        "first save in a new process, with the load test",
        (),
        {"modpack": Job("first_save", {"times": 3})},
        (under("over `import torch`", 0.3, "s"),),
    )


def repeated_saving() -> Row:
    """Return a row for what the load test adds to later saves of a small model."""
    return Row(
        "repeated-save",
        "later save of a small model, with the load test",
        (),
        {"modpack": Job("repeated_save", {"times": 15})},
        (under("added by the test", 0.150, "s"),),
    )


def testing(share: int) -> Iterator[Row]:
    """Yield rows that save a model with all code of its library, and test the package.

    The libraries are optional. A generated one is always measured; its import takes less time than
    that of torch, which the test needs, so there is no goal.
    """
    count = 1000 // share
    yield _test(
        "generated",
        f"a model of {count:,} generated modules",
        Job("write_projects", {"counts": {"generated": count}}),
    )
    goals = tuple(no_more("saving", "torch.package", 1.5, how) for how in ("modpack", _WARM))
    for library, (model, title) in _TESTED.items():
        if find_spec(library) is not None:
            yield replace(_test(model, title), goals=goals)


def _test(model: str, title: str, *prepare: Job) -> Row:
    ours = {"how": "modpack", "model": model}
    return Row(
        f"test-{model}",
        f"hermetic save with the load test, {title}",
        (*prepare, Job("save_library", ours, cache="scans")),
        {
            "modpack": Job("save_library", ours),
            _WARM: Job("save_library", ours, cache="scans"),
            "torch.package": Job("save_library", {**ours, "how": "torch.package"}),
        },
        (),
    )


def inspecting() -> Row:
    """Return a row for ``modpack inspect``."""
    files = {
        "small package": "model.modpack",
        "package of 2,500 modules": "large/first.modpack",
    }
    subjects = {
        name: Job("process", {"arguments": ["-m", "modpack", "inspect", file]})
        for name, file in files.items()
    }
    subjects["Python alone"] = Job("process", {"arguments": ["-c", "pass"]})
    goals = tuple(under("process", 0.3, "s", name, label=name) for name in files)
    return Row(
        "inspect",
        "`modpack inspect` as a process",
        (
            Job("write_files", {"spec": ["small"], "savers": {"modpack": "modpack"}}),
            Job("build_large"),
        ),
        subjects,
        goals,
    )


def faster(metric: str, peer: str, times: float, ours: str = "modpack") -> Goal:
    """Return a goal: at least so many times faster than a peer."""
    return Goal(_label(metric, ours), Side(ours, metric), Side(peer, metric), at_least=times)


def no_more(metric: str, peer: str, times: float, ours: str = "modpack") -> Goal:
    """Return a goal: at most so many times the value of a peer."""
    return Goal(_label(metric, ours), Side(ours, metric), Side(peer, metric), at_most=times)


def under(metric: str, limit: float, unit: str, ours: str = "modpack", label: str = "") -> Goal:
    """Return a goal: less than an absolute limit."""
    return Goal(label or metric, Side(ours, metric), Absolute(limit, unit), at_most=1)


def _label(metric: str, ours: str) -> str:
    return metric if ours == "modpack" else f"{metric}; {ours}"
