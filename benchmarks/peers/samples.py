"""Measurements in a file: what took half an hour is worth more than one page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import Measured, Side
from measuring import Row

__all__ = ["kept", "read_back"]


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
