"""modpack when all is known that it looks for: what is left of a save and a load.

From the first object on it is remembered which modules go along and why, whose they are, what is
installed, and that a package was made here; nobody looks for hooks and secrets any more. The next
process finds that in its folder of caches, and knows it from the start. A change goes unnoticed, so
nobody should use this. It tells what it takes to write and read any object with all digests; the
rest of modpack's time is what it looks for.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["know_what_is_loaded", "know_what_is_saved"]

Function = Callable[..., Any]


def know_what_is_saved() -> None:
    """From now on modpack saves with what it finds out about the first object."""
    from modpack.discovery import scan_cache as scancache
    from modpack.exporting import contents
    from modpack.exporting.builder import Bench
    from modpack.exporting.planner import Planner
    from modpack.exporting.secret_guard import LeakGuard
    from modpack.hooks.collect import HookCollector

    Bench.preview = _remembering(Bench.preview)  # type: ignore[method-assign]
    scancache._scanner = _remembering(scancache._scanner)  # type: ignore[assignment]
    contents.environment_record = _remembering(contents.environment_record)
    Planner.add_resource = _remembering(Planner.add_resource)  # type: ignore[method-assign]
    LeakGuard.look_at_pickle = _remembering(LeakGuard.look_at_pickle)  # type: ignore[method-assign]
    HookCollector.module = _nothing  # type: ignore[method-assign]


def know_what_is_loaded() -> None:
    """From now on modpack takes the environment of a package to be this one."""
    from modpack import importer as opening

    opening.compare_environment = _remembering(opening.compare_environment)
    opening.check_environment = _nothing


def _remembering(find: Function) -> Function:
    """Finds, or does, something once, and gives that ever after, in other processes too."""
    kept = Path(os.environ["XDG_CACHE_HOME"], f"known-{find.__qualname__}.pickle")
    found: list[Any] = [pickle.loads(kept.read_bytes())] if kept.exists() else []

    def answer(*arguments: Any) -> Any:
        if not found:
            found.append(find(*arguments))
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(pickle.dumps(found[0]))
        return found[0]

    return answer


def _nothing(*arguments: Any) -> None:
    pass
