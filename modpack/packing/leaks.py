"""What a plan says of a secret: what it is, and what can be done."""

from __future__ import annotations

from dataclasses import dataclass

from modpack.core.graph import DependencyGraph
from modpack.core.imports import ImportKind
from modpack.core.names import is_within, parents, root_of
from modpack.core.plan import PackagingErrorReason, Problem
from modpack.discovery.leaks.finding import Secret

__all__ = ["Leak"]


@dataclass(frozen=True)
class Leak:
    """A secret in something that is to be packaged.

    Attributes:
        subject: the module or the record.
        secret: what was found.
        place: where the user finds it.
        is_file: whether it is in a file beside the code.
    """

    subject: str
    secret: Secret
    place: str
    is_file: bool = False

    def problem(self, graph: DependencyGraph, saved: bool = False) -> Problem:
        """What the plan says of it.

        Args:
            graph: who imports whom.
            saved: whether the user saved it as a resource.
        """
        secret, allow = self.secret, f"{self.subject}#{self.secret.fingerprint}"
        module = None if saved else self._module(graph)
        chain = graph.shortest_path(f"<{self.subject}>" if module is None else module)
        sentences = [f"{secret.what}, {secret.shown}"]
        sentences.append(f"If it is none: allow_secrets=[{allow!r}], or --allow-secret '{allow}'")
        pattern = _mockable(module, chain, graph) if module is not None else None
        if pattern is not None:
            sentences.append(f"To leave it out: mock({pattern!r})")
        reason = PackagingErrorReason.SECRET
        return Problem(self.subject, reason, ". ".join(sentences), self.place, chain)

    def _module(self, graph: DependencyGraph) -> str | None:
        """The module, or the nearest package around a file, that anything leads to."""
        if not self.is_file:
            return self.subject
        reached = graph.reached()
        folders = parents(self.subject.replace("/", "."))
        return next((folder for folder in folders if folder in reached), None)


def _mockable(module: str, chain: tuple[str, ...], graph: DependencyGraph) -> str | None:
    """The pattern of a rule that leaves a module out; None if a saved object needs it.

    A library is left out as a whole: the rest of it would not do without.
    """
    if len(chain) < 2:
        return None
    root = root_of(module)
    is_library = any(not each.startswith("<") and root_of(each) != root for each in chain)
    within = root if is_library else module
    for node in graph.reached():
        if is_within(node, within):
            if any(edge.kind is ImportKind.PICKLE for edge in graph.edges_to(node)):
                return None
    return f"{root}.**" if is_library else module
