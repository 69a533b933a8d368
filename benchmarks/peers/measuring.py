"""Rounds: every subject has its turn in each, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import Goal, Measured, Side

_WORKER = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("jobs.py"))]
_TAKEN_ALONG = Path(__file__).with_name("taken_along")
"""Modules of models. They are copied: here they would belong to modpack's own distribution."""
_LARGE = 1 << 20
"""Bytes."""
_UNUSUAL = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONPROFILEIMPORTTIME")
"""What would change the time that imports take."""


@dataclass(frozen=True)
class Job:
    """What one process does.

    Attributes:
        name: a function of :mod:`jobs`.
        arguments: what to call it with.
        cache: the cache folder that it finds, by name; empty for a new one each time.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cache: str = ""


@dataclass(frozen=True)
class Row:
    """One piece of work, and everything that does it.

    Attributes:
        name: for the command line.
        title: what it is, in words.
        prepare: what happens before, once.
        subjects: what is measured, by name.
        goals: what is wanted.
        rounds: at least so many, where the disk decides: it is fast one minute and slow the next.
    """

    name: str
    title: str
    prepare: tuple[Job, ...]
    subjects: Mapping[str, Job]
    goals: tuple[Goal, ...]
    rounds: int = 0


class Failed(Exception):
    """A process gave no figures; the text says why."""


def measured(row: Row, rounds: int, folder: Path, tell: Callable[[str], None]) -> Measured:
    """Prepare and measure a row, in one run.

    Args:
        row: the row.
        rounds: how often each subject has its turn, unless the row wants more.
        folder: an empty folder to work in.
        tell: is told what happens.
    """
    samples: dict[Side, list[float]] = {}
    missing: dict[str, str] = {}
    try:
        prepare(row, folder)
    except Failed as failure:  # the other rows are worth having all the same
        missing = dict.fromkeys(row.subjects, str(failure))
    for number in range(max(rounds, row.rounds)):
        for subject in _turned(list(row.subjects), number):
            if subject in missing:
                continue
            tell(f"{row.name}, round {number + 1}: {subject}")
            try:
                figures = figures_of(row.subjects[subject], folder)
            except Failed as failure:
                missing[subject] = str(failure)
                continue
            for metric, value in figures.items():
                samples.setdefault(Side(subject, metric), []).append(value)
    complete = {side: values for side, values in samples.items() if side.subject not in missing}
    in_order = sorted(complete, key=lambda side: list(row.subjects).index(side.subject))
    run = {side: complete[side] for side in in_order}
    return Measured(row.name, row.title, row.goals, (run,), missing)


def prepare(row: Row, folder: Path) -> None:
    """Put what a row needs into an empty folder.

    Raises:
        Failed: a process that does it failed.
    """
    shutil.copytree(_TAKEN_ALONG, folder, dirs_exist_ok=True)
    for job in row.prepare:
        try:
            figures_of(job, folder)
        except Failed as failure:
            raise Failed(f"cannot prepare {job.name}: {failure}") from failure


def remove_large(folder: Path) -> None:
    """Remove large files, before there are too many of them.

    The thousands of small ones go at the end of everything: making files is slow for minutes after
    many were deleted, and that would be measured.
    """
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > _LARGE:
            file.unlink()


def _turned(names: list[str], number: int) -> list[str]:
    start = number % len(names)
    return names[start:] + names[:start]


def figures_of(job: Job, folder: Path, profile: Path | None = None) -> dict[str, float]:
    """What a job measures, in a process of its own.

    Args:
        job: the job.
        folder: where it works.
        profile: a file for the profile of what it measures, if that is wanted.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _UNUSUAL}
    # A fresh cache stays where it is: where many files were deleted just now, an ext4 needs ten
    # times as long to make one, and the next process would be measured with that.
    cache = folder / f"cache-{job.cache}" if job.cache else Path(tempfile.mkdtemp(dir=folder))
    done = subprocess.run(
        [*_WORKER, job.name, json.dumps(job.arguments), *([str(profile)] if profile else [])],
        cwd=folder,
        env={**environment, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise Failed(lines[-1])
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "missing" in figures:
        raise Failed(figures["missing"])
    return figures


def kept(measured: Sequence[Measured], rounds: int) -> str:
    """Measurements as JSON.

    Args:
        measured: what was measured.
        rounds: in how many rounds.
    """
    rows = {
        each.name: {
            "runs": _runs(each),
            "missing": dict(each.missing),
            "paces": [dict(pace) for pace in each.paces],
        }
        for each in measured
    }
    return json.dumps({"rounds": rounds, "rows": rows}, indent=1)


def read_back(file: Path, rows: Sequence[Row]) -> tuple[list[Measured], int]:
    """What :func:`kept` wrote, judged by today's goals; and in how many rounds it was measured."""
    document: Mapping[str, Any] = json.loads(file.read_text())
    found = document["rows"]
    measured = [_measured(row, found[row.name]) for row in rows if row.name in found]
    return measured, document["rounds"]


def _runs(measured: Measured) -> list[list[list[object]]]:
    return [
        [[side.subject, side.metric, list(values)] for side, values in run.items()]
        for run in measured.runs
    ]


def _measured(row: Row, found: Mapping[str, Any]) -> Measured:
    runs = tuple(
        {Side(subject, metric): values for subject, metric, values in run} for run in found["runs"]
    )
    paces = tuple(found.get("paces", ()))
    return Measured(row.name, row.title, row.goals, runs, found["missing"], paces)
