"""Distributions that make up most of a package, and the rule that excludes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from modpack.core.names import is_within, parents
from modpack.core.plan import FileKind, MockUse, Plan, UseKind
from modpack.core.rules import Action, RuleOrigin
from modpack.core.scan import ImportKind
from modpack.core.text import human_size
from modpack.diagnostics import Diagnostic
from modpack.discovery.walk import Walker
from modpack.exporting.problems import file_of, location_in

_MIN_BYTES = 5_000_000
"""The size from which a distribution is reported."""
_NEARLY = 0.1
"""The share of all bytes that a rule may leave in addition, if it mocks less."""
_SAVED = (ImportKind.PICKLE, ImportKind.EXPLICIT)


class _Cut(NamedTuple):
    """A mock rule that excludes the library.

    Attributes:
        path: The module to mock, with its submodules.
        left: The remaining bytes.
        uses: Uses of the mock in the remaining functions.
    """

    path: str
    left: int
    uses: tuple[MockUse, ...]


class _Crossing(NamedTuple):
    """An import from one distribution into another.

    Attributes:
        at: The importer, with the line.
        imported: The imported module.
        location: ``file:line``.
    """

    at: str
    imported: str
    location: str | None


def heavy_notes(plan: Plan, walker: Walker) -> Iterator[Diagnostic]:
    """Yield a note about a distribution that makes up most of a package.

    Distributions that saved objects name are not reported.

    Args:
        plan: The plan, with its files and distributions.
        walker: The walk, which has the sources.
    """
    if not any(each.modules for each in plan.distributions):
        return
    weights = _Weights(plan, walker)
    by_distribution = weights.by_distribution
    heaviest = max(by_distribution, key=by_distribution.__getitem__, default="")
    size = by_distribution.get(heaviest, 0)
    if size < max(_MIN_BYTES, weights.total / 2) or heaviest in weights.own:
        return
    chain = weights.chain_to(heaviest)
    crossings = weights.crossings(chain)
    if not crossings or weights.is_interned_explicitly(heaviest):
        return
    cut = weights.best_cut(chain)
    if cut is None:
        location = crossings[0].location
        hint = (
            f'Add extern="{weights.path_of(chain[-1])}.**" if the loading environment has it. The '
            "model's own code uses it, so a mock would fail."
        )
    else:
        location = next((c.location for c in crossings if is_within(c.imported, cut.path)), None)
        hint = (
            f'Add mock="{cut.path}.**", which leaves {human_size(cut.left)}. {_remaining_uses(cut)}'
        )
    because = ", ".join(f"{each.at} imports {each.imported}" for each in crossings)
    yield Diagnostic.from_code(
        "heavy-distribution",
        heaviest,
        f"{size / weights.total:.0%} of the code and data files ({human_size(size)} of "
        f"{human_size(weights.total)}, uncompressed) is {heaviest}, because {because}",
        location,
        hint=hint,
    )


def _remaining_uses(cut: _Cut) -> str:
    if not cut.uses:
        return f"No other function uses {cut.path}."
    first = cut.uses[0]
    what = f"{first.module}.{first.name}".rstrip(".")
    more = f" (and {len(cut.uses) - 1} more places)" if len(cut.uses) > 1 else ""
    return (
        f"{first.importer}:{first.line}{more} uses {what}, which then raises NotImplementedError. "
        "Export with example inputs to see whether the model calls it."
    )


class _Weights:
    """The sizes of a plan's modules and files, and the imports that lead to them.

    Attributes:
        by_distribution: The bytes of each distribution.
        total: The bytes of all modules and files, without tensors and metadata.
        own: The distributions that saved objects name, or that were saved by name.
    """

    def __init__(self, plan: Plan, walker: Walker) -> None:
        self._plan = plan
        self._walker = walker
        self._interned = [m for m in plan.modules(Action.INTERN) if walker.has_source(m)]
        self._owner = {m: d.name for d in plan.distributions for m in d.modules}
        self._sizes = {m: len(walker.source(m)) for m in self._interned}
        self._files: dict[str, int] = {}
        for file in plan.files:
            if file.kind is not FileKind.METADATA:
                self._files[file.owner] = self._files.get(file.owner, 0) + _size(file.source)
        self.total = sum(self._sizes.values()) + sum(self._files.values())
        found = dict.fromkeys((d.name for d in plan.distributions if d.modules), 0)
        for owner, size in (*self._sizes.items(), *self._files.items()):
            name = owner if owner in found else self._owner.get(owner)
            if name is not None:
                found[name] += size
        self.by_distribution = found
        pickled = {e.imported for e in plan.graph.edges() if e.kind in _SAVED}
        self._named = {*pickled, *plan.graph.roots()}
        self.own = {self._owner[m] for m in self._named if m in self._owner}

    def is_interned_explicitly(self, name: str) -> bool:
        """Return whether a user's rule names the distribution's modules explicitly."""
        decisions = (self._plan.decisions[m] for m in self._interned if self._owner.get(m) == name)
        rules = ((d.rule, d.module) for d in decisions)
        return any(r.origin is RuleOrigin.USER and r.names_explicitly(m) for r, m in rules)

    def chain_to(self, name: str) -> list[str]:
        """Return the shortest import chain from a saved object into a distribution."""
        leading = self._leading()
        node = next((node for node in leading if self._owner.get(node) == name), None)
        chain: list[str] = []
        while node is not None:
            chain.insert(0, node)
            node = leading[node]
        return chain

    def crossings(self, chain: Sequence[str]) -> list[_Crossing]:
        """Return the imports in a chain that lead from one distribution into another."""
        found = []
        for importer, imported in pairwise(chain):
            if importer.startswith("<") or self._owner.get(importer) == self._owner.get(imported):
                continue
            lines = (e.line for e in self._plan.graph.edges_between(importer, imported))
            line = next((each for each in lines if each is not None), None)
            at = importer if line is None else f"{importer}:{line}"
            file = file_of(self._walker, importer)
            location = location_in(self._walker, importer, line) or file
            found.append(_Crossing(at, imported, location))
        return found

    def best_cut(self, chain: Sequence[str]) -> _Cut | None:
        """Return the mock rule that leaves little and is used little, preferring the smaller one.

        Return None if the model's own code uses every candidate.
        """
        paths = dict.fromkeys(
            self.path_of(module)
            for module in reversed(chain)
            if module in self._owner and self._owner[module] not in self.own
        )
        left = {path: self._left_without(path) for path in paths}
        most = min(left.values(), default=0) + _NEARLY * self.total
        for is_nearly_least in (True, False):
            candidates = (path for path in paths if (left[path] <= most) is is_nearly_least)
            cuts = [
                _Cut(path, left[path], uses)
                for path in candidates
                if (uses := self._uses_of(path)) is not None
            ]
            if cuts:
                return min(cuts, key=lambda cut: len(cut.uses))
        return None

    def path_of(self, module: str) -> str:
        """Return the outermost package of a module that belongs to its distribution alone."""
        name = self._owner.get(module)
        for path in reversed([module, *parents(module)]):
            below = {self._owner.get(m) for m in self._interned if is_within(m, path)}
            if below == {name}:
                return path
        return module

    def _uses_of(self, path: str) -> tuple[MockUse, ...] | None:
        """Return the uses that raise when called, or None if the model's own code has one."""
        if any(is_within(module, path) for module in self._named):
            return None
        from modpack.discovery.mock_usage import find_uses  # rarely needed

        mocked = [m for m in self._plan.decisions if is_within(m, path)]
        kept = (m for m in self._interned if not is_within(m, path))
        sources = {m: (self._walker.source(m), self._walker.is_package(m)) for m in kept}
        found = find_uses(sources, mocked, self._plan.graph)
        uses = tuple(use for use in found if use.kind is UseKind.FUNCTION_BODY)
        owners = {self._owner.get(use.importer) for use in uses}
        return None if None in owners or not owners.isdisjoint(self.own) else uses

    def _left_without(self, path: str) -> int:
        reached = self._leading(path)
        kept = [m for m in self._interned if m in reached and not is_within(m, path)]
        owners = {*kept, *(self._owner[m] for m in kept if m in self._owner)}
        files = sum(size for owner, size in self._files.items() if owner in owners)
        return files + sum(self._sizes[m] for m in kept)

    def _leading(self, without: str = "") -> dict[str, str | None]:
        """Return the reached nodes, nearest first, each with its importer.

        Args:
            without: A module to mock, whose imports do not count.
        """
        graph, actions = self._plan.graph, self._plan.decisions
        leading: dict[str, str | None] = dict.fromkeys(graph.roots())
        waiting = deque(leading)
        while waiting:
            node = waiting.popleft()
            decision = actions.get(node)
            is_cut = bool(without) and is_within(node, without)
            if is_cut or (decision is not None and decision.action is not Action.INTERN):
                continue
            for imported in graph.successors(node):
                if imported not in leading and graph.depends(node, imported):
                    leading[imported] = node
                    waiting.append(imported)
        return leading


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:  # writing the file reports this
        return 0
