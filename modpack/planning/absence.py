"""Which modules are left out although some code asks for them, and why nothing is lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path
from typing import Protocol

from modpack.core.actions import Action, Owner
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.location import CodeKind, Location
from modpack.core.names import root_of
from modpack.core.rules import Origin, Rule
from modpack.discovery.walk import Walker

__all__ = ["Absence"]


class _Ownership(Protocol):
    def owner(self, module: str, location: Location | None) -> Owner: ...


class _Staying(Protocol):
    def is_optional(self, module: Location, importer: Location) -> bool: ...


class Absence:
    """Judges modules that a rule would decide.

    What is absent where a package is made is as absent where it is loaded, where the code of
    installed distributions asks for it: they ask for a great deal that nobody has, in functions
    and under conditions of their own. The user's own code is not excused like that.

    Args:
        walker: knows who asks for what.
        ownership: tells whose a module is.
    """

    def __init__(self, walker: Walker, ownership: _Ownership) -> None:
        self._walker = walker
        self._ownership = ownership

    def why(self, module: str, rule: Rule | None, staying: _Staying | None) -> str | None:
        """Why a module is left out, in one sentence; None if the rule is to decide it.

        A rule that spells the name, and does not need the source, decides it in any case.

        Args:
            module: its path.
            rule: the rule that matches it, if any does.
            staying: the policy's view of distributions, if it has one.
        """
        if rule is not None and rule.origin is Origin.IMPLICIT:
            return None
        if rule is not None and rule.action is not Action.INTERN and rule.spells(module):
            return None
        edges = [e for e in self._walker.graph.edges_to(module) if e.kind.is_dependency]
        if rule is None or rule.origin is Origin.PRESET:
            without = [
                e.importer for e in edges if self._walker.is_out_of_reach(e.importer, module)
            ]
            if edges and len(without) == len(edges):
                return f"the package that {without[0]} comes from was made without {module}"
        location = self._walker.locate(module)
        if location is None:
            return self._why_not_here(module, rule, edges)
        if rule is None or rule.origin is not Origin.PRESET or rule.action is not Action.INTERN:
            return None
        is_sourceless = location.kind is CodeKind.UNKNOWN and not _had_source(location)
        if is_sourceless and self._walker.is_loaded(module):
            return None if _is_named_by_object(module, edges) else _made_by_code(module, edges)
        if staying is not None and self._is_optional(location, edges, staying):
            by = edges[0].importer
            return (
                f"{module} is not loaded here, and {by} does not require its distribution: the "
                "packaged code will find it absent"
            )
        return None

    def _why_not_here(self, module: str, rule: Rule | None, edges: Sequence[Edge]) -> str | None:
        if all(edge.kind.may_be_absent for edge in edges):
            by = f"{edges[0].importer} copes" if edges else "its importers cope"
            return (
                f"{module} is not installed here, and {by} with that: it "
                "will be absent for the packaged code as well"
            )
        if rule is None or rule.origin is not Origin.PRESET:
            return None
        if self._walker.is_loaded(module):
            return None if _is_named_by_object(module, edges) else _made_by_code(module, edges)
        if all(edge.kind.may_be_absent or self._is_theirs(edge.importer) for edge in edges):
            return (
                f"{module} is not installed here: {edges[0].importer} cannot import it here either"
            )
        return None

    def _is_theirs(self, importer: str) -> bool:
        """Whether code was taken from an installed distribution, or from a package."""
        location = self._walker.locate(importer)
        if location is None:
            return False
        is_installed = self._ownership.owner(importer, location) is Owner.INSTALLED
        return is_installed or self._walker.is_from_package(importer)

    def _is_optional(self, location: Location, edges: Sequence[Edge], staying: _Staying) -> bool:
        """Whether a whole distribution was not needed so far, and nobody says that it will be."""
        if not edges or self._walker.is_loaded(root_of(location.module)):
            return False
        return all(self._may_do_without(edge, location, staying) for edge in edges)

    def _may_do_without(self, edge: Edge, location: Location, staying: _Staying) -> bool:
        importer = self._walker.locate(edge.importer)
        if importer is None or not self._walker.is_loaded(root_of(edge.importer)):
            return False
        is_installed = self._ownership.owner(edge.importer, importer) is Owner.INSTALLED
        return is_installed and staying.is_optional(location, importer)


def _had_source(location: Location) -> bool:
    """Whether a module was loaded from a source file, which is gone if it has none now."""
    file = location.file
    return file is not None and file.endswith(tuple(SOURCE_SUFFIXES)) and Path(file).is_absolute()


def _is_named_by_object(module: str, edges: Sequence[Edge]) -> bool:
    """Whether a saved object needs it, and no package around it can make it again."""
    return root_of(module) == module and any(each.kind is ImportKind.PICKLE for each in edges)


def _made_by_code(module: str, edges: Sequence[Edge]) -> str:
    by = edges[0].importer if edges else "some code"
    return f"{module}, which {by} imports, has no file: code makes it when it runs"
