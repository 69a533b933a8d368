"""Numbers of examples of property tests."""

from __future__ import annotations

import os

from hypothesis import settings

FACTOR = int(os.environ.get("EXAMPLES_FACTOR", "1"))


def examples(count: int) -> settings:
    """Return settings for a number of examples, which ``make torture`` multiplies."""
    return settings(max_examples=count * FACTOR)
