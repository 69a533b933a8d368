"""What an exporter does with a package that has examples: try it, and act on what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from modpack.archive import layout
from modpack.archive.writer import ArchiveWriter
from modpack.core.plan import Plan
from modpack.errors import TrialError
from modpack.trial.rounds import Trial
from modpack.trial.saving import write_record

__all__ = ["Tried", "settle_trial"]


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
    outcome = f"{'passed' if record.passed else 'failed'}, namespace {record.namespace}, {runs}"
    told = tuple(_warnings(writer.source, failure, record.operators))
    return Tried(replace(trial.plan, trial=outcome), told)


def _warnings(source: str, failure: TrialError | None, operators: Sequence[str]) -> Iterator[str]:
    if failure is not None:
        yield str(failure)
    if operators:
        yield f"whoever loads {source} must first declare {', '.join(operators)}"
