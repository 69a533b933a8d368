"""Where a package is planned and written, several times over if it is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from modpack.archive.writer import ArchiveWriter, Checkpoint
from modpack.core.actions import Action
from modpack.core.plan import (
    EmptyMatchError,
    PackagingError,
    PackagingErrorReason,
    Plan,
    Problem,
)
from modpack.core.progress import phase
from modpack.packing.contents import write_contents
from modpack.packing.edited import edited_notes
from modpack.packing.files import with_room
from modpack.packing.leakguard import LeakGuard
from modpack.packing.objects import ObjectSaver
from modpack.packing.records import clashes, interned_records
from modpack.planning.ownership import InstalledOwnership
from modpack.planning.planner import Planner

__all__ = ["Bench"]


class Bench:
    """One exporter's package in the making.

    Args:
        planner: decides what goes into it.
        writer: writes it.
        objects: what was saved so far.
        ownership: knows what is installed here.
        guard: knows the secrets in what was saved, and finds those in what is planned.
        debug: whether errors show how each module is reached.
    """

    def __init__(
        self,
        planner: Planner,
        writer: ArchiveWriter,
        objects: ObjectSaver,
        ownership: InstalledOwnership,
        guard: LeakGuard,
        debug: bool,
    ) -> None:
        self._planner = planner
        self._writer = writer
        self._objects = objects
        self._ownership = ownership
        self._guard = guard
        self._debug = debug
        self._start: Checkpoint | None = None

    def preview(self) -> Plan:
        """What the package will hold by now, with all problems."""
        with phase("planning", is_major=True):
            return self._preview()

    def _preview(self) -> Plan:
        plan = self._planner.plan()
        taken = self._writer.names()
        found = clashes(plan, self._planner.walker, taken)
        problems = (*_told_better(plan.problems, self._objects), *found)
        edited = edited_notes(plan, self._planner.walker)
        notes = (*plan.notes, *edited, *self._objects.notes())
        plan = replace(plan, problems=problems, notes=notes)
        return self._guarded(with_room(plan, self._planner.walker, taken))

    def _guarded(self, plan: Plan) -> Plan:
        """The plan with the secrets that it would give away."""
        with phase("looking for secrets"):
            folders = self._planner.holdings.own_folders(plan.decisions)
            place = self._objects.script_place
            leaks = self._guard.problems(plan, self._planner.walker, folders, place)
            return replace(plan, problems=(*plan.problems, *leaks))

    def plan(self) -> Plan:
        """What the package will hold by now; what :meth:`write` wrote is forgotten.

        Raises:
            PackagingError: there are problems.
        """
        self._clear()
        plan = self.preview()
        _refuse(plan, self._debug)
        return self._with_uses(plan)

    def _with_uses(self, plan: Plan) -> Plan:
        """The plan with the uses of mocked modules."""
        mocked = plan.modules(Action.MOCK)
        if not mocked:
            return replace(plan, tells_uses=True)
        from modpack.discovery.mockuse.finding import callable_from_outside, find_uses

        walker = self._planner.walker
        with phase("looking for uses of mocked modules"):
            sources = {
                module: (walker.source(module), walker.is_package(module))
                for module in interned_records(plan, walker)
            }
            names = callable_from_outside(plan.graph)
            return replace(
                plan, uses=find_uses(sources, mocked, names, plan.graph), tells_uses=True
            )

    def write(self, plan: Plan, namespace: str = "private") -> None:
        """Write all that the plan adds to what was saved, in place of what was written so."""
        self._clear()
        walker = self._planner.walker
        write_contents(plan, walker, self._writer, self._objects, self._ownership, namespace)

    def previewed(self) -> AbstractContextManager[str]:
        """The complete package, in a temporary file."""
        return self._writer.previewed()

    def begin(self) -> None:
        """Say that all has been saved: what is written from here on can be written again."""
        self._start = self._writer.checkpoint()

    def _clear(self) -> None:
        if self._start is not None:
            self._writer.rollback(self._start)


def _told_better(problems: Sequence[Problem], objects: ObjectSaver) -> Iterator[Problem]:
    """Problems, with those of single definitions in place of the one about their script.

    Places in the modules of definitions become those in the scripts that the user can open.
    """
    of_scripts = tuple(objects.problems())
    for problem in problems:
        if problem.subject != "__main__" or not of_scripts:
            place = problem.place and objects.script_place(problem.place)
            yield replace(problem, place=place)
    yield from of_scripts


def _refuse(plan: Plan, debug: bool) -> None:
    if not plan.problems:
        return
    only_empty = all(p.reason is PackagingErrorReason.EMPTY_MATCH for p in plan.problems)
    raise (EmptyMatchError if only_empty else PackagingError)(plan.problems, debug)
