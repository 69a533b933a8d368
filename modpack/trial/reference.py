"""The recorded run: the live model, once, on the example; nothing of it stays behind."""

from __future__ import annotations

import os
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modpack.core.planjson import Json
from modpack.core.progress import phase
from modpack.errors import ExampleError
from modpack.trial.comparing import Difference, compare
from modpack.trial.conditions import (
    conditions_now,
    preserved_random_states,
    restored_random_states,
    without_unused,
)
from modpack.trial.examples import Example
from modpack.trial.leaves import Leaf, leaves_of
from modpack.trial.outputs import CaseRecords
from modpack.trial.preserving import PutBack, preserved, versions_of

__all__ = ["Case", "record_case"]


@dataclass(frozen=True)
class Case:
    """One example of one saved object, with the output that the live one gave.

    Attributes:
        resource: package and resource of the object.
        records: where the example lies in the package.
        model: the live object.
        example: its arguments.
        conditions: what held when it ran.
        leaves: its output.
        seconds: how long it took.
        restore_global: whether process-wide hooks were saved with it.
        put_back: undoes what a run did to tensors.
        versions: of the model's tensors, after the run: tells whether they changed since.
    """

    resource: tuple[str, str]
    records: CaseRecords
    model: Any
    example: Example
    conditions: dict[str, Json]
    leaves: list[Leaf]
    seconds: float
    restore_global: bool
    put_back: PutBack
    versions: list[int]

    def differs_from_itself(self) -> list[Difference]:
        """Run the live model once more, with the same random numbers; what differs this time.

        A model that was changed after it was saved tells nothing: then nothing is returned.
        """
        if versions_of(self.model) != self.versions:
            return []
        with restored_random_states(self.conditions), preserved(self.model, self.put_back):
            again = leaves_of(_called(self.model, self.example, self.resource))
        return compare(self.leaves, again)

    def to_json(self) -> dict[str, Json]:
        """What another interpreter needs to know to repeat it."""
        return {
            "resource": list(self.resource),
            "number": self.records.number,
            "restore_global": self.restore_global,
        }


def record_case(
    resource: tuple[str, str],
    records: CaseRecords,
    model: Any,
    example: Example,
    restore_global: bool,
    put_back: PutBack,
) -> Case:
    """Run the live model on its example, and leave it as it was.

    Its parameters and buffers are put back, and so are the random states. What it collects in
    lists of its own, and what its hooks collect, stays collected.

    Args:
        resource: package and resource under which it was saved.
        records: where the example goes.
        model: the model, which was saved already.
        example: its arguments.
        restore_global: whether process-wide hooks were saved with it.
        put_back: puts back the tensors that were saved.

    Raises:
        ExampleError: the live model itself fails on the example.
    """
    conditions = conditions_now()
    running = phase("running the live model", is_major=True)
    with running, preserved_random_states(), preserved(model, put_back):
        started = time.perf_counter()
        output = _called(model, example, resource)
        seconds = time.perf_counter() - started
        leaves = leaves_of(output)
        conditions = without_unused(conditions)
    return Case(
        resource,
        records,
        model,
        example,
        conditions,
        leaves,
        seconds,
        restore_global,
        put_back,
        versions_of(model),
    )


def _called(model: Any, example: Example, resource: tuple[str, str]) -> Any:
    try:
        return example.call(model)
    except Exception as failure:
        raise ExampleError("/".join(resource), failure, _place_of(failure)) from failure


def _place_of(failure: BaseException) -> str:
    """The innermost line that raised it, outside torch: the one that its author wrote."""
    folders = (Path(__file__).parents[1], Path(torch.__file__).parent)
    ours = tuple(f"{folder}{os.sep}" for folder in folders)
    frames = traceback.extract_tb(failure.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(("<", *ours))]
    if not theirs:
        return ""
    line = f": {theirs[-1].line}" if theirs[-1].line else ""
    return f"{theirs[-1].filename}:{theirs[-1].lineno}, in {theirs[-1].name}{line}"
