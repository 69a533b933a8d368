"""Rounds: every subject has its turn in each, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import Goal, Side
from page import Measured

__all__ = ["Job", "Row", "measured"]

_WORKER = Path(__file__).with_name("worker.py")
_TAKEN_ALONG = Path(__file__).with_name("taken_along")
"""Modules of models. They are copied: here they would belong to modpack's own distribution."""
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
    """

    name: str
    title: str
    prepare: tuple[Job, ...]
    subjects: Mapping[str, Job]
    goals: tuple[Goal, ...]


class _Failed(Exception):
    """A process gave no figures; the text says why."""


def measured(row: Row, rounds: int, folder: Path, tell: Callable[[str], None]) -> Measured:
    """Prepare and measure a row.

    Args:
        row: the row.
        rounds: how often each subject has its turn.
        folder: an empty folder to work in.
        tell: is told what happens.
    """
    shutil.copytree(_TAKEN_ALONG, folder, dirs_exist_ok=True)
    for job in row.prepare:
        try:
            _figures_of(job, folder)
        except _Failed as failure:
            raise SystemExit(f"{row.name}: cannot prepare {job.name}: {failure}") from failure
    samples: dict[Side, list[float]] = {}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for subject in _turned(list(row.subjects), number):
            if subject in missing:
                continue
            tell(f"{row.name}, round {number + 1}: {subject}")
            try:
                figures = _figures_of(row.subjects[subject], folder)
            except _Failed as failure:
                missing[subject] = str(failure)
                continue
            for metric, value in figures.items():
                samples.setdefault(Side(subject, metric), []).append(value)
    complete = {side: values for side, values in samples.items() if side.subject not in missing}
    in_order = sorted(complete, key=lambda side: list(row.subjects).index(side.subject))
    return Measured(
        row.name, row.title, row.goals, {side: complete[side] for side in in_order}, missing
    )


def _turned(names: list[str], number: int) -> list[str]:
    start = number % len(names)
    return names[start:] + names[:start]


def _figures_of(job: Job, folder: Path) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if name not in _UNUSUAL}
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        cache = folder / f"cache-{job.cache}" if job.cache else Path(fresh)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(_WORKER), job.name, json.dumps(job.arguments)],
            cwd=folder,
            env={**environment, "XDG_CACHE_HOME": str(cache)},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise _Failed(lines[-1])
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "missing" in figures:
        raise _Failed(figures["missing"])
    return figures
