"""Rounds, in each of which every subject runs in a new process."""

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
_MODELS = Path(__file__).with_name("models")
"""Modules of models, which are copied: here they would belong to modpack's distribution."""
_LARGE = 1 << 20
"""Size in bytes from which files are removed early."""
_EXCLUDED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONPROFILEIMPORTTIME")
"""Environment variables that affect the time of imports, and are not passed on."""


@dataclass(frozen=True)
class Job:
    """The work of one process.

    Attributes:
        name: Function of :mod:`jobs`.
        arguments: Arguments of the function.
        cache: Name of the cache folder. If empty, the cache folder is new.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cache: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the benchmark: one kind of work and its subjects.

    Attributes:
        name: Name on the command line.
        title: Name on the page.
        prepare: Jobs that run once before the measurement.
        subjects: Measured jobs, by subject.
        goals: Goals for subjects.
        rounds: Minimum number of rounds. Rows that depend on the disk's speed need more.
    """

    name: str
    title: str
    prepare: tuple[Job, ...]
    subjects: Mapping[str, Job]
    goals: tuple[Goal, ...]
    rounds: int = 0


class Failed(Exception):
    """A process that failed, with the reason."""


def measure(row: Row, rounds: int, folder: Path, log: Callable[[str], None]) -> Measured:
    """Prepare and measure a row.

    Args:
        row: The row.
        rounds: Number of rounds, unless the row needs more.
        folder: Empty working folder.
        log: Function that shows progress.
    """
    samples: dict[Side, list[float]] = {}
    missing: dict[str, str] = {}
    try:
        prepare(row, folder)
    except Failed as error:  # continue with the other rows
        missing = dict.fromkeys(row.subjects, str(error))
    for number in range(max(rounds, row.rounds)):
        for subject in _rotated(list(row.subjects), number):
            if subject in missing:
                continue
            log(f"{row.name}, round {number + 1}: {subject}")
            try:
                figures = figures_of(row.subjects[subject], folder)
            except Failed as error:
                missing[subject] = str(error)
                continue
            for metric, value in figures.items():
                samples.setdefault(Side(subject, metric), []).append(value)
    complete = {side: values for side, values in samples.items() if side.subject not in missing}
    in_order = sorted(complete, key=lambda side: list(row.subjects).index(side.subject))
    ordered = {side: complete[side] for side in in_order}
    return Measured(row.name, row.title, row.goals, ordered, missing)


def prepare(row: Row, folder: Path) -> None:
    """Run the preparing jobs of a row in an empty folder.

    Raises:
        Failed: If one of the jobs fails.
    """
    shutil.copytree(_MODELS, folder, dirs_exist_ok=True)
    for job in row.prepare:
        try:
            figures_of(job, folder)
        except Failed as error:
            raise Failed(f"cannot prepare {job.name}: {error}") from error


def remove_large(folder: Path) -> None:
    """Remove large files early.

    Small files are removed at the end, because file systems create files slowly for minutes after
    many deletions.
    """
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > _LARGE:
            file.unlink()


def _rotated(names: list[str], number: int) -> list[str]:
    start = number % len(names)
    return names[start:] + names[:start]


def figures_of(job: Job, folder: Path, profile: Path | None = None) -> dict[str, float]:
    """Run a job in a new process, and return its measurements.

    Args:
        job: The job.
        folder: Working folder.
        profile: File for a profile of the measured code.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _EXCLUDED}
    # Don't remove new caches here: ext4 creates files ten times slower after many deletions, which
    # would affect the next process.
    cache = folder / f"cache-{job.cache}" if job.cache else Path(tempfile.mkdtemp(dir=folder))
    done = subprocess.run(
        [*_WORKER, job.name, json.dumps(job.arguments), *([str(profile)] if profile else [])],
        cwd=folder,
        env={**environment, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Failed(lines[-1])
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "missing" in figures:
        raise Failed(figures["missing"])
    return figures


def to_json(measured: Sequence[Measured], rounds: int) -> str:
    """Return measurements as JSON.

    Args:
        measured: Measurements.
        rounds: Number of rounds.
    """
    rows = {
        row.name: {
            "samples": [[side.subject, side.metric, each] for side, each in row.samples.items()],
            "missing": dict(row.missing),
        }
        for row in measured
    }
    return json.dumps({"rounds": rounds, "rows": rows}, indent=1)


def read_back(file: Path, rows: Sequence[Row]) -> tuple[list[Measured], int]:
    """Read measurements and their number of rounds, and use the current goals."""
    document: Mapping[str, Any] = json.loads(file.read_text())
    measured = []
    for row in rows:
        if found := document["rows"].get(row.name):
            samples = {Side(subject, metric): each for subject, metric, each in found["samples"]}
            measured.append(Measured(row.name, row.title, row.goals, samples, found["missing"]))
    return measured, document["rounds"]
