"""What an exporter tells of what it was given so far."""

from __future__ import annotations

from modpack.core.actions import Action
from modpack.core.arguments import require_type
from modpack.core.graph import DependencyGraph
from modpack.core.plan import Plan
from modpack.exporter.workplace import Workplace

__all__ = ["ExporterAnswers"]


class ExporterAnswers(Workplace):
    """The part of an exporter that answers questions; none of them writes anything."""

    def plan(self) -> Plan:
        """Every decision, and all problems and notes at once, for what was saved so far.

        Writes nothing and raises nothing for problems.
        """
        return self._bench.preview()

    def interned_modules(self) -> list[str]:
        """The modules that are interned by now, sorted."""
        return self._decided(Action.INTERN)

    def externed_modules(self) -> list[str]:
        """The modules that are externed by now, sorted."""
        return self._decided(Action.EXTERN)

    def mocked_modules(self) -> list[str]:
        """The modules that are mocked by now, sorted."""
        return self._decided(Action.MOCK)

    def denied_modules(self) -> list[str]:
        """The modules that are denied by now, sorted."""
        return self._decided(Action.DENY)

    def get_rdeps(self, module_name: str) -> list[str]:
        """Who depends on a module: modules, and resources as ``<package/resource>``."""
        require_type(module_name, str, "module_name", "a module path")
        return list(self._settled_graph().predecessors(module_name))

    def all_paths(self, src: str, dst: str) -> str:
        """All chains of imports from one node to another, in the DOT language.

        Linear in the size of the graph, cycles included.

        Args:
            src: where they start: a module path, or a resource as ``<package/resource>``.
            dst: where they end.
        """
        require_type(src, str, "src", "a module path")
        require_type(dst, str, "dst", "a module path")
        return self._settled_graph().between(src, dst).to_dot()

    def dependency_graph_string(self) -> str:
        """The whole dependency graph in the DOT language."""
        return self._settled_graph().to_dot()

    def get_unique_id(self) -> str:
        """A number that no other call on this exporter returned, as text."""
        self._unique_ids += 1
        return str(self._unique_ids - 1)

    def _decided(self, action: Action) -> list[str]:
        decisions = self._planner.decisions()
        return sorted(module for module, d in decisions.items() if d.action is action)

    def _settled_graph(self) -> DependencyGraph:
        self._planner.decisions()
        return self._planner.walker.graph
