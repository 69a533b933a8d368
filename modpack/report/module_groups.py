"""The groups in which reports show modules: by distribution, and by top-level module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from modpack.archive.layout import RUNTIME_MODULE
from modpack.core.names import parents, root_of
from modpack.core.rules import Action, Owner
from modpack.report.facts import ModuleFacts


class GroupKind(str, Enum):
    """Kind of a group, in the order of listing."""

    SAVED = "saved"
    """Saved objects, and other starts of chains."""
    CODE = "code"
    """Modules without a known distribution, usually the user's own code."""
    DISTRIBUTION = "distribution"
    """Modules of an installed distribution."""
    RUNTIME = "runtime"
    """torch, modpack, and the implementation of mocks."""
    PYTHON = "python"
    """The standard library."""


@dataclass(frozen=True)
class ModuleGroup:
    """A group in which reports show modules, such as the modules of one distribution.

    Attributes:
        kind: Kind of the group.
        name: Name of the distribution or top-level module, or a description of the group.
        version: Version of the distribution, or None.
        license: License of the distribution, or None.
        editable: Whether the distribution was an editable install.
    """

    kind: GroupKind
    name: str
    version: str | None = None
    license: str | None = None
    editable: bool = False


SAVED = ModuleGroup(GroupKind.SAVED, "saved objects")
_STDLIB = "Python's standard library"
_MOCK_RUNTIME = ModuleGroup(GroupKind.RUNTIME, "mocks of modpack")


def group_of(facts: ModuleFacts) -> ModuleGroup:
    """Return the group of a module, judged by the module alone."""
    # The mock runtime is interned, but belongs to modpack and not to the user's code.
    if facts.module == RUNTIME_MODULE:
        return _MOCK_RUNTIME
    if facts.provided_by is Owner.STDLIB:
        return ModuleGroup(GroupKind.PYTHON, _STDLIB, license=facts.license)
    kind = GroupKind.CODE if facts.distribution is None else GroupKind.DISTRIBUTION
    if facts.provided_by is Owner.RUNTIME:
        kind = GroupKind.RUNTIME
    name = facts.distribution or root_of(facts.module)
    return ModuleGroup(kind, name, facts.version, facts.license, facts.editable)


def groups_of(modules: Iterable[ModuleFacts]) -> dict[str, ModuleGroup]:
    """Return the groups of all modules, by module, with one group for each distribution.

    A module without a known distribution, such as ``six.moves`` or a mocked part of a library,
    belongs to the distribution of its parent, or to the one with its name.

    Args:
        modules: The modules.
    """
    alone = {facts.module: group_of(facts) for facts in modules}
    named: dict[tuple[GroupKind, str], ModuleGroup] = {}
    for group in alone.values():
        key = group.kind, group.name.lower()
        # A mocked part of a library has no version, and belongs to the group that has one.
        named[key] = max(named.get(key, group), group, key=_completeness)
    found = {module: named[group.kind, group.name.lower()] for module, group in alone.items()}
    together = {}
    for module, group in found.items():
        if group.kind is GroupKind.CODE:
            # The nearest parent first: namespace packages hold parts of several distributions.
            above = (found[package] for package in parents(module) if package in found)
            alike = named.get((GroupKind.DISTRIBUTION, group.name.lower()), group)
            group = next((each for each in above if each.kind is GroupKind.DISTRIBUTION), alike)
        together[module] = group
    return together


def grouped(
    modules: Iterable[ModuleFacts], action: Action
) -> tuple[tuple[ModuleGroup, tuple[ModuleFacts, ...]], ...]:
    """Return the modules with one decision, by group.

    Args:
        modules: All modules, with any decision.
        action: The decision.
    """
    modules = tuple(modules)
    groups = groups_of(modules)
    members: dict[ModuleGroup, list[ModuleFacts]] = {}
    for facts in modules:
        if facts.action is action:
            members.setdefault(groups[facts.module], []).append(facts)
    return tuple((group, tuple(members[group])) for group in sorted(members, key=_order))


def _completeness(group: ModuleGroup) -> tuple[bool, bool]:
    return group.version is not None, group.license is not None


def _order(group: ModuleGroup) -> tuple[int, str, str]:
    return list(GroupKind).index(group.kind), group.name.lower(), group.version or ""
