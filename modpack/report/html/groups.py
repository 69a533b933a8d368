"""What belongs together on the page: distributions, one's own code by its top-level package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from modpack.core.actions import Action, Owner
from modpack.core.names import root_of
from modpack.archive.layout import RUNTIME_MODULE
from modpack.report.facts import ModuleFacts

__all__ = ["SAVED", "Group", "GroupKind", "Grouping", "group_of", "grouped"]


class GroupKind(str, Enum):
    """What a group is, in the order in which groups are listed."""

    SAVED = "saved"
    """What the user saved: objects, and where chains of imports begin."""
    CODE = "code"
    """Modules of no known distribution: one's own code, as a rule."""
    DISTRIBUTION = "distribution"
    """Modules of an installed distribution."""
    RUNTIME = "runtime"
    """torch and modpack, and what modpack's stand-ins are made of."""
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
_STAND_INS = Group(GroupKind.RUNTIME, "stand-ins of modpack")


def group_of(facts: ModuleFacts) -> Group:
    """Return the group of a module, as far as it can be known of the module alone."""
    if facts.module == RUNTIME_MODULE:
        return _STAND_INS
    if facts.provided_by is Owner.STDLIB:
        return Group(GroupKind.PYTHON, _STDLIB, licence=facts.licence)
    kind = GroupKind.CODE if facts.distribution is None else GroupKind.DISTRIBUTION
    if facts.provided_by is Owner.RUNTIME:
        kind = GroupKind.RUNTIME
    name = facts.distribution or root_of(facts.module)
    return Group(kind, name, facts.version, facts.licence, facts.editable)


class Grouping:
    """The groups of all modules of an audit: no distribution makes two of them.

    Args:
        modules: the modules.
    """

    def __init__(self, modules: Iterable[ModuleFacts]) -> None:
        modules = tuple(modules)
        self._named: dict[tuple[GroupKind, str], Group] = {}
        for group in map(group_of, modules):
            key = group.kind, group.name.lower()
            self._named[key] = max(self._named.get(key, group), group, key=_completeness)
        self._found = {facts.module: self._same(group_of(facts)) for facts in modules}

    def of(self, facts: ModuleFacts) -> Group:
        """Return the group of a module.

        A module of no known distribution belongs to that of the package above it, or to one of
        its own name: ``six.moves``, which no file of six is, or a mocked part of a library.

        Args:
            facts: one of the modules.
        """
        group = self._found[facts.module]
        if group.kind is not GroupKind.CODE:
            return group
        package = facts.module
        while "." in package:
            package = package.rpartition(".")[0]
            above = self._found.get(package)
            if above is not None and above.kind is GroupKind.DISTRIBUTION:
                return above
        return self._named.get((GroupKind.DISTRIBUTION, group.name.lower()), group)

    def _same(self, group: Group) -> Group:
        return self._named[group.kind, group.name.lower()]


def grouped(
    modules: Iterable[ModuleFacts], action: Action
) -> tuple[tuple[Group, tuple[ModuleFacts, ...]], ...]:
    """Return the modules with one decision, by group.

    Args:
        modules: all modules, whatever was decided about them.
        action: the decision.
    """
    modules = tuple(modules)
    grouping = Grouping(modules)
    members: dict[Group, list[ModuleFacts]] = {}
    for facts in modules:
        if facts.action is action:
            members.setdefault(grouping.of(facts), []).append(facts)
    return tuple((group, tuple(members[group])) for group in sorted(members, key=_order))


def _completeness(group: Group) -> tuple[bool, bool]:
    return group.version is not None, group.licence is not None


def _order(group: Group) -> tuple[int, str, str]:
    return list(GroupKind).index(group.kind), group.name.lower(), group.version or ""
