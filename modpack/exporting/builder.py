"""Where a package is planned and written, several times over if it is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from modpack.archive.writer import ArchiveWriter, Checkpoint
from modpack.core.plan import (
    EmptyMatchError,
    NameUse,
    PackagingError,
    PackagingErrorReason,
    Plan,
    Problem,
)
from modpack.core.progress import phase
from modpack.core.rules import Action
from modpack.exporting.contents import with_room, write_contents
from modpack.exporting.edited_sources import edited_notes
from modpack.exporting.heavy_libraries import heavy_notes
from modpack.exporting.live_notes import extern_notes, live_notes, registered_notes
from modpack.exporting.objects import ObjectSaver, needs_process_namespace, nested_notes
from modpack.exporting.planner import Planner
from modpack.exporting.presets import InstalledOwnership
from modpack.exporting.records import clashes, interned_records
from modpack.exporting.secret_guard import LeakGuard


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
        self._found_uses: tuple[object, tuple[NameUse, ...]] = (None, ())

    def preview(self) -> Plan:
        """What the package will hold by now, with all problems."""
        with phase("planning", is_major=True):
            return self._preview()

    def _preview(self) -> Plan:
        plan = self._planner.plan()
        taken = self._writer.names()
        found = clashes(plan, self._planner.walker, taken)
        problems = (*_told_better(plan.problems, self._objects), *found)
        walker = self._planner.walker
        edited = tuple(edited_notes(plan, walker))
        found_here = (
            *edited,
            *live_notes(plan, walker, {note.subject for note in edited}),
            *extern_notes(plan, walker),
            *self._objects.notes(),
            *nested_notes(plan, self._objects.nested),
            *registered_notes(plan, walker, self._ownership),
        )
        notes = (*plan.notes, *found_here)
        plan = replace(plan, problems=problems, notes=notes)
        plan = with_room(plan, self._planner.walker, taken)
        plan = replace(plan, notes=(*plan.notes, *heavy_notes(plan, self._planner.walker)))
        return self._guarded(plan)

    def _guarded(self, plan: Plan) -> Plan:
        """The plan with the secrets that it would give away."""
        with phase("looking for secrets"):
            holdings, walker = self._planner.holdings, self._planner.walker
            folders = holdings.own_folders(plan.decisions)
            published = holdings.published(plan.decisions)
            place = self._objects.script_place
            leaks = self._guard.problems(plan, walker, folders, published, place)
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
        from modpack.discovery.mock_reachability import callable_from_outside, find_uses

        walker = self._planner.walker
        with phase("looking for uses of mocked modules"):
            sources = {
                module: (walker.source(module), walker.is_package(module))
                for module in interned_records(plan, walker)
            }
            names = callable_from_outside(plan.graph)
            asked = (sources, mocked, names, list(plan.graph.edges()))
            if self._found_uses[0] != asked:  # most rounds of a trial change files only
                uses = find_uses(sources, mocked, names, plan.graph)
                self._found_uses = asked, uses
            return replace(plan, uses=self._found_uses[1], tells_uses=True)

    def write(self, plan: Plan, namespace: str = "private") -> None:
        """Write all that the plan adds to what was saved, in place of what was written so."""
        self._clear()
        walker = self._planner.walker
        write_contents(plan, walker, self._writer, self._objects, self._ownership, namespace)

    def namespace(self, plan: Plan) -> str:
        """The namespace in which the saved objects can be loaded, as far as their pickles tell."""
        return "process" if needs_process_namespace(plan, self._objects.nested) else "private"

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
