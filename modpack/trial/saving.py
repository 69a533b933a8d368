"""Saving an example: its arguments, the live model's output, and the conditions of the run."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from modpack.archive.writer import ArchiveWriter
from modpack.core.planjson import Json
from modpack.core.portabletext import folders_here, portable_text
from modpack.core.trialrecord import TrialRecord
from modpack.packing.objects import ObjectSaver
from modpack.planning.planner import Planner
from modpack.trial.examples import Example
from modpack.trial.outputs import CaseRecords, write_leaves
from modpack.trial.reference import Case, record_case

__all__ = ["ExampleSaver"]


class ExampleSaver:
    """Saves the examples of one package.

    Args:
        objects: pickles the arguments.
        writer: where everything goes.
        planner: follows the classes of the arguments.

    Attributes:
        cases: what was recorded by now.
    """

    def __init__(self, objects: ObjectSaver, writer: ArchiveWriter, planner: Planner) -> None:
        self.cases: list[Case] = []
        self._objects = objects
        self._writer = writer
        self._planner = planner

    def save_arguments(self, example: Example, protocol: int) -> CaseRecords:
        """Save the arguments of the next example; their classes go along like the model's."""
        records = CaseRecords(len(self.cases))
        arguments = (example.args, example.kwargs)
        edges = self._objects.save(records.inputs, arguments, protocol)
        self._objects.pin_homes(self._planner.walker)
        self._planner.add_resource(f"<{records.inputs}>", edges, follow=True)
        return records

    def record(
        self,
        records: CaseRecords,
        resource: tuple[str, str],
        model: Any,
        example: Example,
        since: int,
        restore_global: bool,
    ) -> None:
        """Run the live model on an example, and save what came of it.

        Args:
            records: where the example goes.
            resource: package and resource of the model.
            model: the live model, saved already.
            example: its arguments.
            since: how many objects were saved before the model.
            restore_global: whether process-wide hooks were saved with it.

        Raises:
            ExampleError: the live model itself fails on it.
        """
        put_back = partial(self._objects.put_back, since)
        case = record_case(resource, records, model, example, restore_global, put_back)
        write_leaves(self._writer, records, case.leaves)
        self._writer.write(records.conditions, _json(case.conditions), compress=True)
        self.cases.append(case)


def write_record(writer: ArchiveWriter, record: str, trial: TrialRecord) -> None:
    """Write what came of the trial into the package, without the folders of this machine."""
    folders = folders_here()
    told = {
        name: portable_text(text, folders)
        for name, text in (("failure", trial.failure), ("why_process", trial.why_process))
        if text is not None
    }
    writer.write(record, _json({**trial.to_json(), **told}))


def _json(record: dict[str, Json]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")
