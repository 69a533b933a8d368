"""The work that is measured, beside whom, and what is wanted."""

from __future__ import annotations

from collections.abc import Iterator

from figures import Absolute, Goal, Side
from measuring import Job, Row

__all__ = ["rows"]

_GIB = 1 << 30
_LOADED = (
    "modpack",
    "torch.package",
    "torch.load",
    "torch.load(mmap=True)",
    "safetensors",
    "cloudpickle",
)
_SAVED = ("modpack", "torch.package", "torch.save", "torch.save and fsync", "cloudpickle")
_WRITTEN_FOR = {
    "modpack": "modpack",
    "torch.package": "torch.package",
    "torch.save": "torch.load",
    "safetensors": "safetensors",
    "cloudpickle": "cloudpickle",
}
_MAPPED = "torch.load(mmap=True)"


def rows(share: int = 1) -> list[Row]:
    """All of it.

    Args:
        share: what the sizes are divided by.
    """
    return [
        *_loading(share),
        *_saving(share),
        *_walking(share),
        _importing(2000 // share),
        _opening(20_000 // share),
        _starting(),
        _inspecting(),
        _round_trip(),
    ]


def _loading(share: int) -> Iterator[Row]:
    yield _load(
        "load-one",
        "load, one 2 GiB tensor",
        ["tensors", 1, 2 * _GIB // share],
        _faster("to the model", "torch.package", 100),
        _faster("with a pass", "torch.package", 15),
        *(
            _no_more(metric, peer, 1.2)
            for metric in ("to the model", "with a pass")
            for peer in ("safetensors", _MAPPED)
        ),
    )
    count = max(400 // share, 4)
    yield _load(
        "load-400",
        "load, 400 tensors, 2 GiB",
        ["tensors", count, 2 * _GIB // share // count],
        _faster("to the model", "torch.package", 50),
    )
    yield _load(
        "load-20000",
        "load, 20,000 tensors of 50 KB",
        ["tensors", 20_000 // share, 50_000],
        _faster("with a pass", "torch.package", 2.5),
        _no_more("to the model", _MAPPED, 1),
        _no_more("with a pass", _MAPPED, 1),
    )


def _load(name: str, title: str, made: list[object], *goals: Goal) -> Row:
    writing = Job("write_files", {"made": made, "savers": _WRITTEN_FOR})
    filling = Job("load", {"how": "modpack"}, cache="warm")
    subjects = {how: Job("load", {"how": how}, cache="warm") for how in _LOADED}
    memory = [
        _no_more(metric, "safetensors", 1.1)
        for metric in ("private memory", "private memory after the pass")
    ]
    return Row(name, title, (writing, filling), subjects, (*goals, *memory))


def _saving(share: int) -> Iterator[Row]:
    as_fast = (
        _no_more("saving", "torch.save", 1),
        _faster("saving", "torch.package", 1.5),
        Goal("extra memory", Side("modpack", "extra memory"), Absolute(100e6, "B"), at_most=1),
    )
    count = max(400 // share, 4)
    size = 2 * _GIB // share // count
    yield _save("save-400", "save, 2 GiB", ["tensors", count, size], *as_fast)
    many = ["tensors", 20_000 // share, 50_000]
    yield _save("save-20000", "save, 20,000 tensors of 50 KB", many, *as_fast)
    for kind in ("plain", "objects"):
        what = "small containers" if kind == "plain" else "small objects"
        yield _save(
            f"save-{kind}",
            f"save, 200,000 {what}",
            [kind, 200_000 // share],
            _faster("saving", "torch.package", 10),
        )


def _save(name: str, title: str, made: list[object], *goals: Goal) -> Row:
    savers = (*_SAVED, "safetensors") if made[0] == "tensors" else _SAVED
    subjects = {how: Job("save", {"how": how, "made": made}) for how in savers}
    return Row(name, title, (), subjects, goals)


def _walking(share: int) -> Iterator[Row]:
    below = "sympy" if share == 1 else "sympy.core"
    warm = "modpack, warm scan cache"
    yield Row(
        "walk-sympy",
        "export of all of sympy",
        (Job("walk_library", {"how": "modpack", "below": below}, cache="scans"),),
        {
            "modpack": Job("walk_library", {"how": "modpack", "below": below}),
            warm: Job(
                "walk_library", {"how": "modpack", "below": below, "needs_cache": True}, "scans"
            ),
            "torch.package": Job("walk_library", {"how": "torch.package", "below": below}),
        },
        (
            _faster("per module", "torch.package", 6),
            _faster("per module", "torch.package", 20, warm),
        ),
    )
    few, many = 1000 // share, 10_000 // share
    small, large = f"modpack, {few:,} modules", f"modpack, {many:,} modules"
    yield Row(
        "walk-linear",
        "export of a made-up project",
        (Job("write_projects", {"counts": {"few": few, "many": many}}),),
        {
            small: Job("walk_project", {"how": "modpack", "folder": "few"}),
            large: Job("walk_project", {"how": "modpack", "folder": "many"}),
            f"torch.package, {few:,} modules": Job(
                "walk_project", {"how": "torch.package", "folder": "few"}
            ),
        },
        (_no_more("per module", small, 1.3, large),),
    )


def _importing(count: int) -> Row:
    first, later = "modpack, first time", "modpack, from the second"
    packaged = {"how": "modpack", "file": "walked-modpack-site.pt"}
    ancestor = {"how": "torch.package", "file": "walked-torch.package-site.pt"}
    return Row(
        "import",
        f"import of {count:,} packaged modules",
        (
            Job("write_projects", {"counts": {"site": count}}),
            Job("walk_project", {"how": "modpack", "folder": "site"}),
            Job("walk_project", {"how": "torch.package", "folder": "site"}),
            Job("import_packaged", packaged, cache="code"),
            Job("import_plainly", {"folder": "site"}),
        ),
        {
            first: Job("import_packaged", packaged),
            later: Job("import_packaged", packaged, cache="code"),
            "torch.package": Job("import_packaged", ancestor),
            "not packaged, compiled before": Job("import_plainly", {"folder": "site"}),
        },
        (
            _no_more("importing", "torch.package", 1, first),
            _faster("importing", "torch.package", 6, later),
        ),
    )


def _opening(count: int) -> Row:
    made = Job("write_files", {"made": ["tensors", count, 64], "savers": {"modpack": "modpack"}})
    subjects = ("modpack", "modpack, opened only", "zipfile")
    return Row(
        "open",
        f"open and inspect a package of {count:,} records",
        (made,),
        {how: Job("look_at", {"how": how, "file": "model.modpack"}) for how in subjects},
        (_no_more("opening", "zipfile", 2),),
    )


def _starting() -> Row:
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
            name: Job("cpu_of_import", {"module": module, "times": 5})
            for name, module in modules.items()
        },
        (Goal("CPU", Side("modpack", "CPU"), Absolute(0.060, "s"), at_most=1),),
    )


def _inspecting() -> Row:
    files = {
        "small package": "model.modpack",
        "package of 2,500 modules": "large/first.modpack",
    }
    return Row(
        "inspect",
        "`modpack inspect` as a process",
        (
            Job("write_files", {"made": ["small"], "savers": {"modpack": "modpack"}}),
            Job("build_large"),
        ),
        {name: Job("command", {"arguments": ["inspect", file]}) for name, file in files.items()},
        tuple(Goal(name, Side(name, "process"), Absolute(0.3, "s"), at_most=1) for name in files),
    )


def _round_trip() -> Row:
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
    goals = (
        _no_more(metric, "torch.package", 1, ours)
        for metric in ("first", "later")
        for ours in ("modpack", "modpack.save and load")
    )
    return Row("round-trip", "save and load a model of 1 MB", (), subjects, tuple(goals))


def _faster(metric: str, peer: str, times: float, ours: str = "modpack") -> Goal:
    return Goal(_what(metric, ours), Side(ours, metric), Side(peer, metric), at_least=times)


def _no_more(metric: str, peer: str, times: float, ours: str = "modpack") -> Goal:
    return Goal(_what(metric, ours), Side(ours, metric), Side(peer, metric), at_most=times)


def _what(metric: str, ours: str) -> str:
    return metric if ours == "modpack" else f"{metric}; {ours}"
