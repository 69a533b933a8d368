"""A note about the distribution that makes up most of a package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from modpack.core.plan import FileKind, Plan
from modpack.core.rules import Action, RuleOrigin
from modpack.core.scan import ImportKind
from modpack.core.text import human_size
from modpack.diagnostics import Diagnostic
from modpack.discovery.walk import Walker
from modpack.exporting.problems import file_of, location_in

_MIN_BYTES = 5_000_000
"""The size from which a distribution is reported."""
_SAVED = (ImportKind.PICKLE, ImportKind.EXPLICIT)


def heavy_notes(plan: Plan, walker: Walker) -> Iterator[Diagnostic]:
    """Yield a note about a distribution that makes up most of a package.

    Distributions that saved objects or a user's rule name are not reported.

    Args:
        plan: The plan, with its files and distributions.
        walker: The walk, which has the sources.
    """
    owners = {m: each.name for each in plan.distributions for m in each.modules}
    if not owners:
        return
    # The user's own code counts in the total, but is never the heaviest.
    sizes = _sizes(plan, walker, owners)
    heaviest = max(filter(None, sizes), key=sizes.__getitem__, default="")
    size, total = sizes[heaviest], sizes.total()
    if not heaviest or size < max(_MIN_BYTES, total / 2) or _is_chosen(plan, heaviest, owners):
        return
    # The shortest chain from a saved object to a module that other code imports.
    graph = plan.graph
    entries = (m for m in owners if owners[m] == heaviest)
    entries = (m for m in entries if any(owners.get(i) != heaviest for i in graph.predecessors(m)))
    distances = graph.distances()
    reached = (m for m in entries if m in distances)
    chain = graph.shortest_path(min(reached, key=distances.__getitem__, default=""))
    if len(chain) > 1:
        lines = (edge.line for edge in graph.edges_between(*chain[-2:]))
        line = next((each for each in lines if each is not None), None)
        through = " -> ".join(module for module in chain if not module.startswith("<"))
        yield Diagnostic.from_code(
            "heavy-distribution",
            heaviest,
            f"{size / total:.0%} of the code and data files ({human_size(size)} of "
            f"{human_size(total)}, uncompressed) is {heaviest}, imported through {through}",
            location_in(walker, chain[-2], line) or file_of(walker, chain[-2]),
        )


def _sizes(plan: Plan, walker: Walker, owners: Mapping[str, str]) -> Counter[str]:
    """Return the bytes of modules and data files by distribution; the rest under an empty name."""
    names = set(owners.values())
    sizes: Counter[str] = Counter()
    for module in filter(walker.has_source, plan.modules(Action.INTERN)):
        sizes[owners.get(module, "")] += len(walker.source(module))
    for file in plan.files:
        if file.kind is not FileKind.METADATA and Path(file.source).is_file():
            owner = file.owner if file.owner in names else owners.get(file.owner, "")
            sizes[owner] += Path(file.source).stat().st_size
    return sizes


def _is_chosen(plan: Plan, name: str, owners: Mapping[str, str]) -> bool:
    """Return whether a saved object or a user's rule names modules of a distribution."""
    saved = {edge.imported for edge in plan.graph.edges() if edge.kind in _SAVED}
    if any(owners.get(module) == name for module in saved.union(plan.graph.roots())):
        return True
    rules = ((plan.decisions[m].rule, m) for m in owners if owners[m] == name)
    return any(r.origin is RuleOrigin.USER and r.names_explicitly(m) for r, m in rules)
