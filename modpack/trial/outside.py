"""Distributions that the trial's interpreter imported, and that nothing in the package names.

An extern module may import another library, as ``torch.utils.tensorboard`` does. Its imports are
not the package's. But where that library is missing, the package does not load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from modpack.core.actions import Action
from modpack.core.location import Location
from modpack.core.names import is_within
from modpack.core.plan import Plan
from modpack.core.trialrecord import OutsideImport
from modpack.planning.ownership import InstalledOwnership
from modpack.resolution.distributions import Distribution, is_everywhere, normalised

__all__ = ["imported_outside"]

Imported = Sequence[tuple[str, str | None]]
"""Modules, and by which module each was imported first, if that is known."""


def imported_outside(
    imported: Imported,
    plan: Plan,
    hidden: Sequence[str],
    locate: Callable[[str], Location | None],
    ownership: InstalledOwnership,
) -> tuple[OutsideImport, ...]:
    """The distributions of modules that were imported, without what is installed in any case.

    That is what comes with torch and modpack, what the plan names, and what any of these or of
    those that are returned require.

    Args:
        imported: the modules.
        plan: what the package holds and needs.
        hidden: roots of modules that the package holds.
        locate: finds a module here.
        ownership: knows what is installed here.
    """
    found: dict[str, tuple[Distribution, str, str | None]] = {}
    for module, by in imported:
        if not is_everywhere(module) and not any(is_within(module, root) for root in hidden):
            owner = ownership.distribution_of(module, locate(module))
            if owner is not None:
                found.setdefault(normalised(owner.name), (owner, module, by))
    named = {normalised(each.name): each for each in _named_by(plan, ownership)}
    known = {*ownership.always_installed(), *named, *_required(named.values(), ownership)}
    for owner, _, _ in found.values():  # two may require each other: the first stays
        if normalised(owner.name) not in known:
            known |= ownership.required_closure(owner) - {normalised(owner.name)}
    return tuple(
        OutsideImport(owner.name, owner.version, module, by)
        for name, (owner, module, by) in sorted(found.items())
        if name not in known
    )


def _named_by(plan: Plan, ownership: InstalledOwnership) -> Iterator[Distribution]:
    for decision in plan.decisions.values():
        if decision.action is Action.EXTERN and not is_everywhere(decision.module):
            owner = ownership.distribution_of(decision.module, decision.location)
            if owner is not None:
                yield owner


def _required(distributions: Iterable[Distribution], ownership: InstalledOwnership) -> set[str]:
    return set().union(*map(ownership.required_closure, distributions))
