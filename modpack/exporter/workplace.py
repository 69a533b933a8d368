"""What all parts of an exporter work with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

from modpack.archive.writer import ArchiveWriter
from modpack.discovery.ahead import remembering_scan
from modpack.errors import ModpackError
from modpack.packing.bench import Bench
from modpack.packing.leakguard import LeakGuard
from modpack.packing.objects import ObjectSaver
from modpack.packing.sources import ImporterEnvironments
from modpack.planning.ownership import InstalledOwnership
from modpack.planning.planner import Planner
from modpack.resolution.importers import Importer

if TYPE_CHECKING:
    from modpack.trial.reference import Case
    from modpack.trial.saving import ExampleSaver

__all__ = ["Workplace"]


class Workplace:
    """The state of an exporter, all of it; its parts derive from this and add methods only.

    Args:
        f: where the package is written; None plans only.
        importer: where objects and modules come from.
        debug: whether errors show how each module is reached.
        trial: whether a package with examples is tried; see :class:`modpack.PackageExporter`.
        guard: knows where something may be that looks like a secret.
    """

    def __init__(
        self,
        f: str | os.PathLike[str] | BinaryIO | None,
        importer: Importer,
        debug: bool,
        trial: bool | str,
        guard: LeakGuard,
    ) -> None:
        self.importer = importer
        self.debug = debug
        self._guard = guard
        self._environments = ImporterEnvironments(importer)
        self._ownership = InstalledOwnership()
        environments = self._environments.in_order()
        self._planner = Planner(
            environments, self._ownership, self, self._ownership, *remembering_scan()
        )
        self._writer = ArchiveWriter(f)
        self._objects = ObjectSaver(self, self._writer, self._environments, self._planner, guard)
        self._bench = Bench(
            self._planner, self._writer, self._objects, self._ownership, guard, debug
        )
        self._plans_only = f is None
        self._trial = trial
        self._examples: ExampleSaver | None = None
        self._unique_ids = 0
        self._closed = False

    @property
    def _cases(self) -> Sequence[Case]:
        """The examples that the model was run on by now."""
        return () if self._examples is None else self._examples.cases

    def _check_open(self) -> None:
        if self._closed:
            raise ModpackError("this PackageExporter is closed; make a new one")
