"""The work that is measured, beside whom, and what is wanted."""

from __future__ import annotations

from coderows import importing, inspecting, opening, starting, walking
from measuring import Job, Row
from rates import RATES
from tensorrows import loading, round_trip, saving

__all__ = ["rows"]


def rows(share: int = 1) -> list[Row]:
    """All of it.

    Args:
        share: what the sizes are divided by.
    """
    return [
        *loading(share),
        *saving(share),
        *walking(share),
        *(importing(count, share) for count in (1000, 3000)),
        opening(20_000 // share),
        starting(),
        inspecting(),
        round_trip(),
        _machine(),
    ]


def _machine() -> Row:
    subjects = {what: Job("rate", {"of": what}) for what in RATES}
    subjects["making files of 1 KB"] = Job("make_files", {"count": 3000})
    return Row("machine", "limits of this machine", (), subjects, ())
