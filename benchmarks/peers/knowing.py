"""modpack when all is known that it looks for: what is left of a save and a load.

From the first object on it is remembered which modules go along and why, whose they are, what is
installed, and that a package was made here; nobody looks for hooks and secrets any more. A change
goes unnoticed, so nobody should use this. It tells what it takes to write and read any object with
all digests; the rest of modpack's time is what it looks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["loader_that_knows", "saver_that_knows"]

Function = Callable[..., Any]


def saver_that_knows() -> Callable[[Any, str], None]:
    """Saves as modpack does, but for what it found out about the first object."""
    from modpack import PackageExporter
    from modpack.hooks.collect import HookCollector
    from modpack.packing import contents
    from modpack.packing.bench import Bench
    from modpack.packing.leakguard import LeakGuard
    from modpack.planning.planner import Planner

    Bench.preview = _remembering(Bench.preview)  # type: ignore[method-assign]
    contents.environment_record = _remembering(contents.environment_record)
    Planner.add_resource = _once(Planner.add_resource)  # type: ignore[method-assign]
    LeakGuard.look_at_pickle = _once(LeakGuard.look_at_pickle)  # type: ignore[method-assign]
    HookCollector.module = _nothing  # type: ignore[method-assign]

    def save(obj: Any, file: str) -> None:
        with PackageExporter(file) as exporter:
            exporter.intern("benched")
            exporter.save_pickle("model", "model.pkl", obj)

    return save


def loader_that_knows() -> Callable[[str], Any]:
    """Loads as modpack does, but takes the environment of a package to be this one."""
    from modpack import PackageImporter
    from modpack.importer import opening

    opening.compare_environment = _remembering(opening.compare_environment)
    opening.check_environment = _nothing
    return lambda file: PackageImporter(file).load_pickle("model", "model.pkl")


def _remembering(find: Function) -> Function:
    """Gives for everything what was found first."""
    found: list[Any] = []

    def answer(*arguments: Any) -> Any:
        if not found:
            found.append(find(*arguments))
        return found[0]

    return answer


def _once(do: Function) -> Function:
    """Does something the first time only."""
    done: list[None] = []

    def answer(*arguments: Any) -> None:
        if not done:
            done.append(do(*arguments))

    return answer


def _nothing(*arguments: Any) -> None:
    pass
