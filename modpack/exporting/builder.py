"""One package in the making: planned and written, several times over if it is tried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from modpack.archive.writer import ArchiveWriter, Checkpoint
from modpack.core.plan import (
    EmptyMatchError,
    MockUse,
    PackagingError,
    PackagingErrorReason,
    Plan,
    Problem,
)
from modpack.core.process import phase
from modpack.core.rules import Action
from modpack.discovery.distributions import DistributionIndex
from modpack.exporting.contents import interned_records, with_room, write_contents
from modpack.exporting.heavy_libraries import heavy_notes
from modpack.exporting.live_notes import live_notes
from modpack.exporting.objects import ObjectSaver
from modpack.exporting.patches import extern_notes, registered_notes
from modpack.exporting.planner import Planner
from modpack.exporting.secret_guard import SecretScan


@dataclass
class PackageBuilder:
    """Plans and writes the package of one exporter.

    Attributes:
        planner: decides what goes into it.
        writer: writes it.
        objects: what was saved so far.
        installed: the distributions of this interpreter.
        guard: knows the secrets in what was saved, and finds those in what is planned.
        debug: whether errors show how each module is reached.
    """

    planner: Planner
    writer: ArchiveWriter
    objects: ObjectSaver
    installed: DistributionIndex
    guard: SecretScan
    debug: bool
    _start: Checkpoint | None = None
    _found_uses: tuple[object, tuple[MockUse, ...]] = (None, ())

    def preview(self) -> Plan:
        """Return the plan for everything saved so far, with all problems."""
        with phase("planning", is_major=True):
            plan, walker = self.planner.plan(), self.planner.walker
            plan = replace(
                plan,
                problems=tuple(self._problems(plan)),
                notes=(
                    *plan.notes,
                    *live_notes(plan, walker),
                    *extern_notes(plan, walker),
                    *self.objects.notes(plan),
                    *registered_notes(plan, walker, self.installed),
                ),
            )
            plan = with_room(plan, walker, self.writer.names())
            plan = replace(plan, notes=(*plan.notes, *heavy_notes(plan, walker)))
            with phase("looking for secrets"):
                data = self.planner.package_data
                folders = data.own_folders(plan.decisions)
                published = data.published(plan.decisions)
                place = self.objects.scripts.place
                leaks = self.guard.problems(plan, walker, folders, published, place)
                return replace(plan, problems=(*plan.problems, *leaks))

    def _problems(self, plan: Plan) -> Iterator[Problem]:
        """A plan's problems, with those of single definitions in place of that of their script.

        Places in the modules of definitions become those in the scripts that the user can open.
        """
        scripts = self.objects.scripts
        of_scripts = tuple(scripts.problems())
        for problem in plan.problems:
            if problem.subject != "__main__" or not of_scripts:
                yield replace(problem, place=problem.place and scripts.place(problem.place))
        yield from of_scripts

    def plan(self) -> Plan:
        """Return the plan for everything saved so far; take back what :meth:`write` wrote.

        Raises:
            PackagingError: there are problems.
        """
        self._clear()
        plan = self.preview()
        if plan.problems:
            only_empty = all(p.reason is PackagingErrorReason.EMPTY_MATCH for p in plan.problems)
            raise (EmptyMatchError if only_empty else PackagingError)(plan.problems, self.debug)
        mocked = plan.modules(Action.MOCK)
        return replace(plan, uses=self._uses(plan, mocked) if mocked else (), tells_uses=True)

    def _uses(self, plan: Plan, mocked: list[str]) -> tuple[MockUse, ...]:
        from modpack.discovery.mock_usage import find_uses

        walker = self.planner.walker
        with phase("looking for uses of mocked modules"):
            sources = {
                module: (walker.source(module), walker.is_package(module))
                for module in interned_records(plan, walker)
            }
            asked = (sources, mocked, plan.graph.roots(), list(plan.graph.edges()))
            if self._found_uses[0] != asked:  # most rounds of a self-test change files only
                self._found_uses = asked, find_uses(sources, mocked, plan.graph)
            return self._found_uses[1]

    def write(self, plan: Plan, namespace: str = "private") -> None:
        """Write all that the plan adds to what was saved, in place of what was written so."""
        self._clear()
        walker, objects = self.planner.walker, self.objects
        write_contents(plan, walker, self.writer, objects, self.installed, namespace)

    def open_preview(self) -> AbstractContextManager[str]:
        """The complete package, in a temporary file."""
        return self.writer.open_preview()

    def begin(self) -> None:
        """Say that all has been saved: what is written from here on can be written again."""
        self._start = self.writer.checkpoint()

    def _clear(self) -> None:
        if self._start is not None:
            self.writer.rollback(self._start)
