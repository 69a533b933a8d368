"""Packages that are there for what is in them: no rule decides them, or nobody wrote them."""

from __future__ import annotations

from collections.abc import Mapping

from modpack.core.actions import Action
from modpack.core.imports import ImportKind
from modpack.core.plan import Decision
from modpack.discovery.walk import Walker

__all__ = ["is_made_up", "leading_child"]

_STRENGTH = (Action.INTERN, Action.EXTERN, Action.MOCK)


def leading_child(walker: Walker, decisions: Mapping[str, Decision], parent: str) -> str | None:
    """The child that a package without a rule follows, the strongest action first.

    Args:
        walker: knows the children.
        decisions: by module, those that are made.
        parent: the package.
    """
    edges = walker.graph.edges_to(parent)
    children = [edge.importer for edge in edges if edge.kind is ImportKind.PARENT]
    for action in _STRENGTH:
        for child in children:
            decision = decisions.get(child)
            if decision is not None and decision.action is action:
                return child
    return None


def is_made_up(walker: Walker, module: str) -> bool:
    """Whether a package exists only as the folder of a module whose source was given."""
    edges = walker.graph.edges_to(module)
    is_folder = all(
        edge.kind is ImportKind.PARENT
        and walker.actions.get(edge.importer, Action.INTERN) is Action.INTERN
        for edge in edges
    )
    return is_folder and bool(edges) and walker.locate(module) is None
