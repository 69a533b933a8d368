"""What belongs together on the page: distributions, one's own code by its top-level package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from modpack.core.actions import Action, Owner
from modpack.core.names import root_of
from modpack.report.facts import ModuleFacts

__all__ = ["SAVED", "Group", "GroupKind", "group_of", "grouped"]


class GroupKind(str, Enum):
    """What a group is, in the order in which groups are listed."""

    SAVED = "saved"
    """What the user saved: objects, and where chains of imports begin."""
    CODE = "code"
    """Modules of no known distribution: one's own code, as a rule."""
    DISTRIBUTION = "distribution"
    """Modules of an installed distribution."""
    RUNTIME = "runtime"
    """torch and modpack."""
    PYTHON = "python"
    """The standard library."""


@dataclass(frozen=True)
class Group:
    """Modules that belong together.

    Attributes:
        kind: what holds them together.
        name: what to call them: a distribution's name, a top-level package.
        version: the distribution's version, if there is one.
        licence: the distribution's licence, if known.
        editable: whether the distribution was an editable install.
    """

    kind: GroupKind
    name: str
    version: str | None = None
    licence: str | None = None
    editable: bool = False


SAVED = Group(GroupKind.SAVED, "saved objects")
_STDLIB = "Python's standard library"


def group_of(facts: ModuleFacts) -> Group:
    """The group of a module."""
    if facts.provided_by is Owner.STDLIB:
        return Group(GroupKind.PYTHON, _STDLIB, licence=facts.licence)
    kind = GroupKind.CODE if facts.distribution is None else GroupKind.DISTRIBUTION
    if facts.provided_by is Owner.RUNTIME:
        kind = GroupKind.RUNTIME
    name = facts.distribution or root_of(facts.module)
    return Group(kind, name, facts.version, facts.licence, facts.editable)


def grouped(
    modules: Iterable[ModuleFacts], action: Action
) -> tuple[tuple[Group, tuple[ModuleFacts, ...]], ...]:
    """The modules with one decision, by group."""
    members: dict[Group, list[ModuleFacts]] = {}
    for facts in modules:
        if facts.action is action:
            members.setdefault(group_of(facts), []).append(facts)
    return tuple((group, tuple(members[group])) for group in sorted(members, key=_order))


def _order(group: Group) -> tuple[int, str, str]:
    return list(GroupKind).index(group.kind), group.name.lower(), group.version or ""
