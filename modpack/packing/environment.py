"""What a package records about where it was made: Python, the platform, what must be installed."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES

from modpack._version import __version__
from modpack.core.actions import Action
from modpack.core.environment import RecordedEnvironment
from modpack.core.environmentjson import environment_to_json
from modpack.core.location import CodeKind
from modpack.core.names import parents
from modpack.core.native import NativeTag
from modpack.core.plan import FileKind, Plan
from modpack.core.planjson import Json
from modpack.planning.ownership import InstalledOwnership
from modpack.resolution.distributions import Distribution, is_everywhere, normalised

__all__ = ["environment_record"]


def environment_record(plan: Plan, ownership: InstalledOwnership) -> dict[str, Json]:
    """The record that a package holds; the archive format page documents it.

    Args:
        plan: what was decided.
        ownership: knows what is installed here.
    """
    return {
        **environment_to_json(_environment(plan, ownership)),
        "distributions": {d.name: d.version for d in plan.distributions},
    }


def _environment(plan: Plan, ownership: InstalledOwnership) -> RecordedEnvironment:
    providers = _providers(plan, ownership)
    torch = ownership.named("torch") if _torch_version() is not None else None
    needed = [*providers.values(), *filter(None, (torch, ownership.named("modpack")))]
    return RecordedEnvironment(
        platform.python_version(),
        platform.python_implementation(),
        sys.platform,
        platform.machine(),
        _torch_version(),
        {path: normalised(found.name) for path, found in providers.items()},
        ownership.recorded_closure(needed),
        _native(plan),
        modpack=__version__,
    )


def _providers(plan: Plan, ownership: InstalledOwnership) -> dict[str, Distribution]:
    """What provides the extern modules, by the shortest path of which it provides everything."""
    owners: dict[str, Distribution] = {}
    for module in plan.modules(Action.EXTERN):
        if not is_everywhere(module) and not _is_shared(module, plan):
            found = ownership.distribution_of(module, plan.decisions[module].location)
            if found is not None:
                owners[module] = found
    below = _owners_below(owners)
    return {_widest(module, below, plan): found for module, found in owners.items()}


def _owners_below(owners: Mapping[str, Distribution]) -> dict[str, set[Distribution]]:
    """For each module path, who provides something at it or below it."""
    below: dict[str, set[Distribution]] = {}
    for module, found in owners.items():
        for path in (module, *parents(module)):
            below.setdefault(path, set()).add(found)
    return below


def _widest(module: str, below: Mapping[str, set[Distribution]], plan: Plan) -> str:
    """The shortest path above a module that is its distribution's alone."""
    paths: Iterable[str] = reversed([module, *parents(module)])
    return next((p for p in paths if len(below[p]) == 1 and not _is_shared(p, plan)), module)


def _is_shared(path: str, plan: Plan) -> bool:
    """Whether it is a namespace package, in which any distribution may have a part."""
    decision = plan.decisions.get(path)
    location = decision.location if decision is not None else None
    return location is not None and location.kind is CodeKind.NAMESPACE


def _native(plan: Plan) -> NativeTag | None:
    """What the compiled modules that go along were built for."""
    compiled = [file.record for file in plan.files if file.kind is FileKind.COMPILED]
    suffixes = tuple(EXTENSION_SUFFIXES)
    modules = [record for record in compiled if record.endswith(suffixes)]
    return NativeTag.of(modules) if compiled else None


def _torch_version() -> str | None:
    """The version of the torch that is loaded; None if only sources were saved."""
    torch = sys.modules.get("torch")
    return str(torch.__version__) if torch is not None else None
