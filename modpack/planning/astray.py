"""Imports of the user's own code that lead nowhere, though each of their modules may be here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from modpack.core.actions import Action
from modpack.core.graph import Edge
from modpack.core.names import root_of
from modpack.core.plan import Decision, PackagingErrorReason, Problem
from modpack.discovery.walk import Walker

__all__ = ["AstrayImports"]


class AstrayImports:
    """Looks for them in what a plan interns.

    A name that a module does not bind counts only if nothing speaks for it: no submodule, no
    binding that cannot be read, no such name in the live module, and no other module that may set
    it from outside.

    Args:
        walker: the finished walk.
        decisions: what was decided.
        is_own: whether a module is the user's own code.
    """

    def __init__(
        self, walker: Walker, decisions: Mapping[str, Decision], is_own: Callable[[str], bool]
    ) -> None:
        self._walker = walker
        self._interned = {m for m, d in decisions.items() if d.action is Action.INTERN}
        self._is_own = is_own

    def problems(self) -> Iterator[Problem]:
        """One for each of them."""
        for module in sorted(self._interned):
            if self._walker.is_followed(module) and self._is_own(module):
                yield from self._beyond_the_top(module)
                yield from self._of_missing_names(module)

    def _beyond_the_top(self, module: str) -> Iterator[Problem]:
        for astray in self._walker.scan(module).astray:
            top = root_of(module)
            is_in_none = module == top and not self._walker.is_package(module)
            why = "is in no package" if is_in_none else f"is in no package beyond {top}"
            yield self._problem(module, f"{astray.statement}: {module} {why}", astray.line)

    def _of_missing_names(self, module: str) -> Iterator[Problem]:
        for target in self._walker.graph.successors(module):
            if target not in self._interned:
                continue
            bound = self._walker.scan(target).bound
            unbound: dict[str, Edge] = {}
            for edge in self._walker.graph.edges_between(module, target):
                if edge.kind.is_dependency and not edge.kind.may_be_absent:
                    unbound.update((name, edge) for name in edge.names if name not in bound)
            if not unbound or not self._is_known(target):
                continue
            for name, edge in unbound.items():
                if self._is_missing(target, name):
                    why = f"{target} has no such name, nor a submodule"
                    context = f"from {target} import {name}: {why}"
                    yield self._problem(module, context, edge.line)

    def _is_known(self, target: str) -> bool:
        """Whether all names of a module can be read off its source."""
        walker = self._walker
        is_here = walker.environment_of(target) is not None and walker.has_source(target)
        return is_here and self._is_own(target) and not walker.scan(target).binds_unseen

    def _is_missing(self, target: str, name: str) -> bool:
        walker = self._walker
        if re.fullmatch(r"__\w+__|\*", name):
            return False
        submodule = f"{target}.{name}"
        if walker.locate(submodule) is not None or walker.is_loaded(submodule):
            return False
        environment = walker.environment_of(target)
        if environment is not None and environment.live_attribute(target, name) is not None:
            return False
        return name not in self._set_from_outside

    @cached_property
    def _set_from_outside(self) -> frozenset[str]:
        """Names that own code sets on anything, or spells in a text, as ``setattr`` needs it."""
        pattern = re.compile(rb"\.(\w+)\s*(?::[^=\n]+)?=(?!=)|[\"'](\w+)[\"']")
        found = (
            match[1] or match[2]
            for module in self._interned
            if self._walker.has_source(module) and self._is_own(module)
            for match in pattern.finditer(self._walker.source(module))
        )
        return frozenset(name.decode("utf-8", "replace") for name in found)

    def _problem(self, module: str, context: str, line: int | None) -> Problem:
        location = self._walker.locate(module)
        file = location.file if location is not None and location.file else module
        place = f"{file}:{line}" if line is not None else file
        chain = self._walker.graph.shortest_path(module)
        return Problem(module, PackagingErrorReason.IMPORT_LEADS_NOWHERE, context, place, chain)
