"""The builder of one package, which repeats planning and writing for each self-test round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from modpack.core.plan import (
    EmptyMatchError,
    MockUse,
    PackagingError,
    PackagingErrorReason,
    Plan,
)
from modpack.core.process import phase
from modpack.core.rules import Action
from modpack.diagnostics import Diagnostic, Severity
from modpack.discovery.distributions import DistributionIndex
from modpack.exporting.contents import reject_clashing_records, write_contents
from modpack.exporting.edited_sources import edited_notes
from modpack.exporting.heavy_libraries import heavy_notes
from modpack.exporting.module_records import interned_records
from modpack.exporting.objects import ObjectSaver
from modpack.exporting.planner import Planner
from modpack.exporting.secret_guard import SecretScan
from modpack.writing.writer import ArchiveWriter, Checkpoint


@dataclass
class PackageBuilder:
    """Plans and writes the package of one exporter.

    Attributes:
        planner: Decides the contents of the package.
        writer: Writes the package.
        objects: The objects saved so far.
        installed: The installed distributions.
        secret_scan: Searches saved objects and planned files for secrets.
        debug: Whether errors show the import chain of each module.
        torch_settings: Settings of torch that the saved objects may depend on.
        start: The point to which :meth:`plan` and :meth:`write` roll back: everything is saved.
    """

    planner: Planner
    writer: ArchiveWriter
    objects: ObjectSaver
    installed: DistributionIndex
    secret_scan: SecretScan
    debug: bool
    torch_settings: dict[str, str] = field(default_factory=dict)
    start: Checkpoint | None = None
    _found_uses: tuple[object, tuple[MockUse, ...]] = (None, ())

    def preview(self) -> Plan:
        """Return the plan for everything saved so far, including all problems."""
        with phase("planning", is_major=True):
            plan, walker = self.planner.plan(), self.planner.walker
            plan = replace(
                plan,
                problems=tuple(self._problems(plan)),
                notes=(*plan.notes, *edited_notes(plan, walker), *self.objects.notes(plan)),
            )
            plan = reject_clashing_records(plan, walker, self.writer.names())
            plan = replace(plan, notes=(*plan.notes, *heavy_notes(plan, walker)))
            with phase("looking for secrets"):
                data, place = self.planner.package_data, self.objects.scripts.place
                found = tuple(self.secret_scan.findings(plan, walker, data, place))
                leaks = (each for each in found if each.severity is Severity.ERROR)
                published = (each for each in found if each.severity is not Severity.ERROR)
                return replace(
                    plan, problems=(*plan.problems, *leaks), notes=(*plan.notes, *published)
                )

    def _problems(self, plan: Plan) -> Iterator[Diagnostic]:
        """Yield a plan's problems, with those of a script replaced by those of its definitions.

        Locations in generated definition modules are mapped to the scripts that the user can open.
        """
        scripts = self.objects.scripts
        of_scripts = tuple(scripts.problems())
        for problem in plan.problems:
            if problem.subject != "__main__" or not of_scripts:
                yield replace(
                    problem, location=problem.location and scripts.place(problem.location)
                )
        yield from of_scripts

    def plan(self) -> Plan:
        """Return the plan for everything saved so far, and roll back what :meth:`write` wrote.

        Raises:
            PackagingError: If the plan has problems.
        """
        self._rollback()
        plan = self.preview()
        if plan.problems:
            only_empty = all(p.code == PackagingErrorReason.EMPTY_MATCH for p in plan.problems)
            raise (EmptyMatchError if only_empty else PackagingError)(plan.problems, self.debug)
        mocked = plan.modules(Action.MOCK)
        return replace(plan, mock_uses=self._uses(plan, mocked) if mocked else ())

    def _uses(self, plan: Plan, mocked: list[str]) -> tuple[MockUse, ...]:
        from modpack.discovery.mock_usage import find_uses

        walker = self.planner.walker
        with phase("looking for uses of mocked modules"):
            sources = {
                module: (walker.source(module), walker.is_package(module))
                for module in interned_records(plan, walker)
            }
            inputs = (sources, mocked, plan.graph.roots(), list(plan.graph.edges()))
            if self._found_uses[0] != inputs:  # most self-test rounds change only data files
                self._found_uses = inputs, find_uses(sources, mocked, plan.graph)
            return self._found_uses[1]

    def write(self, plan: Plan, namespace: str = "private") -> None:
        """Write everything that the plan adds to the saved objects, replacing an earlier plan."""
        self._rollback()
        walker, objects = self.planner.walker, self.objects
        settings = self.torch_settings
        write_contents(plan, walker, self.writer, objects, self.installed, namespace, settings)

    def _rollback(self) -> None:
        if self.start is not None:
            self.writer.rollback(self.start)
