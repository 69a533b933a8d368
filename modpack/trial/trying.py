"""What an exporter does with a package that has examples: try it, and act on what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from modpack.archive import layout
from modpack.archive.writer import ArchiveWriter
from modpack.core.plan import Plan
from modpack.core.trialrecord import TrialRecord
from modpack.core.usage import MockTouch, TouchKind
from modpack.errors import TrialError
from modpack.trial.rounds import Trial
from modpack.trial.saving import write_record

__all__ = ["Tried", "settle_trial"]

_MOST_PLACES = 4
_CONSTRUCT = "construct one object of the class after loading"


@dataclass(frozen=True)
class Tried:
    """A package that was tried and is written.

    Attributes:
        plan: what it holds.
        warnings: what its user should hear.
    """

    plan: Plan
    warnings: Sequence[str]


def settle_trial(trial: Trial, writer: ArchiveWriter, write_anyway: bool) -> Tried:
    """Write a package as its trial shows that it must be, with a record of the trial.

    Args:
        trial: the package and its examples.
        writer: where the record goes.
        write_anyway: whether a package that fails is written as well, with a warning.

    Raises:
        TrialError: it failed.
    """
    record = trial.outcome()
    why = trial.explanation
    failure: TrialError | None = None
    if why is not None:
        failure = TrialError(writer.source, why.reason, why.details, why.log, write_anyway)
        if not write_anyway:
            raise failure
    write_record(writer, layout.TRIAL, record)
    runs = f"{record.rounds} run{'s' if record.rounds != 1 else ''}"
    outcome = f"{record.outcome}, namespace {record.namespace}, {runs}"
    told = tuple(_warnings(writer.source, failure, record))
    return Tried(replace(trial.plan, trial=outcome), told)


def _warnings(source: str, failure: TrialError | None, record: TrialRecord) -> Iterator[str]:
    if failure is not None:
        yield str(failure)
    else:
        yield from _swallowed(record.touches)
        for table in record.unfilled:
            yield f"the trial passed, but {table}. Remedy: {_CONSTRUCT}"
    if record.operators:
        yield f"whoever loads {source} must first declare {', '.join(record.operators)}"


def _swallowed(touches: Sequence[MockTouch]) -> Iterator[str]:
    """What was used of mocked modules although the trial passed: the package hides it."""
    used: dict[str, list[MockTouch]] = {}
    for touch in touches:
        if touch.kind is TouchKind.USED:
            used.setdefault(touch.module, []).append(touch)
    for module, listed in used.items():
        places = dict.fromkeys(
            f"{t.name} {t.operation}" + (f" at {t.place}" if t.place else "") for t in listed
        )
        shown = ", ".join(list(places)[:_MOST_PLACES])
        more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
        yield (
            f"the trial passed, but the package used the mocked module {module!r} and caught what "
            f"that raises: {shown}{more}. Remedy: intern or extern {module!r}, or remove the use"
        )
