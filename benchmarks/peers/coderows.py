"""Code that is taken along and imported; packages that are looked at; commands that start."""

from __future__ import annotations

from collections.abc import Iterator

from goals import at_limit, faster, no_more, under
from measuring import Job, Row

__all__ = ["importing", "inspecting", "opening", "starting", "walking"]

_WARM = "modpack, warm scan cache"
_PARSED = "limit: read and parsed, on one core"
_READ = "limit: read and hashed"
_COMPILED = "limit: one file of sources"
_UNMARSHALLED = "limit: one file of code"
_BARE_PYTHON = "limit: Python, click and rich"


def walking(share: int) -> Iterator[Row]:
    """Exports of much code."""
    below = "sympy" if share == 1 else "sympy.core"
    ours = {"how": "modpack", "below": below}
    yield Row(
        "walk-sympy",
        "export of all of sympy",
        (Job("walk_library", ours, cache="scans"),),
        {
            "modpack": Job("walk_library", ours),
            _WARM: Job("walk_library", {**ours, "needs_cache": True}, cache="scans"),
            "torch.package": Job("walk_library", {"how": "torch.package", "below": below}),
            _PARSED: Job("compile_library", {"below": below}),
            _READ: Job("read_library", {"below": below}),
        },
        (
            *at_limit(_PARSED, faster("per module", "torch.package", 6)),
            *at_limit(_READ, faster("per module", "torch.package", 20, _WARM)),
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
        "export of a made-up project, by its number of modules",
        (Job("write_projects", {"counts": {"few": few, "many": many}}), *filling),
        subjects,
        tuple(
            no_more("per module", small, 1.3, large) for small, large in (tuple(cold), tuple(warm))
        ),
    )


def _mocking(few: int, many: int) -> Row:
    """What looking for uses of mocks costs: the same code, with a module mocked or extern."""
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
        "export of a made-up project of which a twentieth uses a mocked module",
        (Job("write_projects", {"counts": counts, "tracked": 20}),),
        subjects,
        (
            no_more("per module", other, 1.15, ours),
            no_more("per module", ours, 1.3, larger),
        ),
    )


def importing(count: int, share: int) -> Row:
    """Modules of a package that are imported."""
    first, later = "modpack, first time", "modpack, from the second"
    packaged = {"how": "modpack", "file": "walked-modpack-site.pt"}
    ancestor = {"how": "torch.package", "file": "walked-torch.package-site.pt"}
    return Row(
        f"import-{count}",
        f"import of {count // share:,} packaged modules",
        (
            Job("write_projects", {"counts": {"site": count // share}}),
            Job("walk_project", {"how": "modpack", "folder": "site"}),
            Job("walk_project", {"how": "torch.package", "folder": "site"}),
            Job("import_packaged", packaged, cache="code"),
            Job("import_plainly", {"folder": "site"}),
            Job("write_code", {"folder": "site"}),
        ),
        {
            first: Job("import_packaged", packaged),
            later: Job("import_packaged", packaged, cache="code"),
            "torch.package": Job("import_packaged", ancestor),
            "not packaged, compiled before": Job("import_plainly", {"folder": "site"}),
            _COMPILED: Job("import_code", {"file": "site.sources"}),
            _UNMARSHALLED: Job("import_code", {"file": "site.code"}),
        },
        (
            *at_limit(_COMPILED, no_more("importing", "torch.package", 1, first)),
            *at_limit(_UNMARSHALLED, faster("importing", "torch.package", 6, later)),
        ),
    )


def opening(count: int) -> Row:
    """A package of many records."""
    subjects = ("modpack", "modpack, without a text of it", "modpack, opened only", "zipfile")
    made = ["tensors", count, 64]
    return Row(
        "open",
        f"open and inspect a package of {count:,} records",
        (Job("write_files", {"made": made, "savers": {"modpack": "modpack"}}),),
        {how: Job("look_at", {"how": how, "file": "model.modpack"}) for how in subjects},
        (no_more("opening", "zipfile", 2),),
    )


def starting() -> Row:
    """What importing costs before anything is done."""
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


def inspecting() -> Row:
    """The command that looks at packages."""
    files = {
        "small package": "model.modpack",
        "package of 2,500 modules": "large/first.modpack",
    }
    subjects = {
        name: Job("process", {"arguments": ["-m", "modpack", "inspect", file]})
        for name, file in files.items()
    }
    imports = "import click, rich.console, rich.table"
    subjects[_BARE_PYTHON] = Job("process", {"arguments": ["-c", imports]})
    subjects["Python alone"] = Job("process", {"arguments": ["-c", "pass"]})
    goals = (under("process", 0.3, "s", name, what=name) for name in files)
    return Row(
        "inspect",
        "`modpack inspect` as a process",
        (
            Job("write_files", {"made": ["small"], "savers": {"modpack": "modpack"}}),
            Job("build_large"),
        ),
        subjects,
        at_limit(_BARE_PYTHON, *goals),
    )
