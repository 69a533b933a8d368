"""An SVG plot of ratios on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_LABELS, _WIDTH, _BAR, _TOP, _RIGHT = 380, 460, 22, 34, 70
_MET, _MISSED, _GOAL = "#2f7d5b", "#b3542d", "#1f2430"
_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2430 }
.axis { stroke: #d5d9e0 }
.range { stroke: #1f2430; stroke-opacity: .45 }
@media (prefers-color-scheme: dark) {
  .ground { fill: #14171d } text { fill: #e4e7ec } .axis { stroke: #3a404b }
  .goal, .range { stroke: #e4e7ec }
}"""


@dataclass(frozen=True)
class Bar:
    """One ratio.

    Attributes:
        label: Label of the bar.
        ratio: Ratio; larger is better.
        lowest: Smallest ratio of a round.
        highest: Largest ratio of a round.
        goal: Minimum ratio.
        shown: Ratio as text.
        is_met: Whether the goal is met.
    """

    label: str
    ratio: float
    lowest: float
    highest: float
    goal: float
    shown: str
    is_met: bool


def drawn(bars: Sequence[Bar], title: str) -> str:
    """Draw a bar for each ratio, a line for its range, and a mark for its goal."""
    first, last = _decades(bars)
    height = _TOP + _BAR * len(bars) + 30
    width = _LABELS + _WIDTH + _RIGHT

    def x(value: float) -> float:
        fraction = (math.log10(max(value, 10.0**first)) - first) / (last - first)
        return round(_LABELS + _WIDTH * min(fraction, 1.0), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="ground" width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for power in range(first, last + 1):
        parts += _gridline(x(10.0**power), power, height)
    for number, bar in enumerate(bars):
        parts += _drawn_bar(bar, _TOP + _BAR * number, x)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(bars: Sequence[Bar]) -> tuple[int, int]:
    """Return the powers of ten at both ends of the axis."""
    values = [value for bar in bars for value in (bar.ratio, bar.goal)]
    first = math.floor(math.log10(max(min(values, default=1.0), 0.001)))
    last = math.ceil(math.log10(min(max(values, default=1.0), 1e6)))
    return min(first, -1), max(last, 1)


def _gridline(x: float, power: int, height: int) -> list[str]:
    label = f"{10.0**power:g}x" if power < 4 else f"10^{power}x"
    return [
        f'<line class="axis" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{height - 24}"/>',
        f'<text x="{x}" y="{_TOP - 12}" text-anchor="middle">{label}</text>',
    ]


def _drawn_bar(bar: Bar, y: int, x: object) -> list[str]:
    assert callable(x)
    start, end, goal, middle = x(0), x(bar.ratio), x(bar.goal), y + _BAR / 2
    color = _MET if bar.is_met else _MISSED
    after = max(end, x(bar.highest), goal) + 6
    return [
        f'<text x="{_LABELS - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{start}" y="{y + 4}" width="{max(end - start, 1):.1f}" height="{_BAR - 8}" '
        f'fill="{color}"/>',
        f'<line class="range" x1="{x(bar.lowest)}" x2="{x(bar.highest)}" '
        f'y1="{middle}" y2="{middle}"/>',
        f'<line class="goal" x1="{goal}" x2="{goal}" y1="{y + 1}" y2="{y + _BAR - 1}" '
        f'stroke="{_GOAL}" stroke-width="2"/>',
        f'<text x="{after}" y="{middle + 4}">{escape(bar.shown)}</text>',
    ]
