"""Curves, each drawn on one line."""

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


class Sheet:
    """Labeled curves, drawn one below the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def curve(self, label: str, values: Sequence[float]) -> None:
        """Add a curve, scaled to its smallest and largest value."""
        low, high = min(values), max(values)
        step = (high - low) / (len(BARS) - 1) or 1.0
        bars = "".join(BARS[round((value - low) / step)] for value in values)
        self._lines.append(f"{label:>8} {bars} {values[0]:.3f} to {values[-1]:.3f}")

    def __str__(self) -> str:
        return "\n".join(self._lines)
