import io

import pytest
from rich.console import Console

from modpack.core.process import Phase, ProgressUnit
from modpack.report import progress


@pytest.fixture
def console():
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


@pytest.fixture
def display(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 1000.0)
    made = progress._Display("Packaging \x1b[2Jnet", progress.ProgressOutput.TERMINAL)
    yield made
    made.close()


def line(display, console):
    with console.capture() as captured:
        console.print(display.line())
    return captured.get()


def reached(text, unit, total, done):
    phase = Phase(text, unit, total)
    phase.advance(done)
    return phase


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        (Phase("planning"), ""),
        (Phase("saving", ProgressUnit.BYTES), ""),
        (reached("saving", ProgressUnit.BYTES, None, 2_000_000), "2.0 MB"),
        (reached("checking", ProgressUnit.BYTES, 4_000_000, 1_000_000), "1.0 MB of 4.0 MB"),
        (reached("walking", ProgressUnit.MODULES, None, 1234), "1,234 modules"),
        (reached("writing", ProgressUnit.MODULES, 2500, 1200), "1,200 of 2,500 modules"),
    ],
)
def test_line_shows_completion_of_phase(display, console, phase, shown):
    display.begin(phase)
    text = line(display, console)
    assert phase.text in text
    assert shown in text
    assert ("\u2501" in text) == (phase.total is not None)  # a bar only where the end is known
    assert phase.text in display.text() and shown in display.text()


def test_line_shows_innermost_phase(display, console):
    outer, inner = Phase("planning"), reached("reading", ProgressUnit.RECORDS, None, 3)
    display.begin(outer)
    display.begin(inner)
    assert "3 records" in line(display, console)
    display.end(inner)
    assert "planning" in line(display, console)
    display.end(outer)
    assert "planning" not in line(display, console)


def test_line_escapes_names(display, console):
    assert "\\x1b[2Jnet" in line(display, console)
    assert "\\x1b[2Jnet" in display.text()


def test_line_shows_speed_of_rows_and_time_left(display, console, monkeypatch):
    phase = reached("rows", ProgressUnit.ROWS, 5000, 1200)
    monkeypatch.setattr(progress.time, "monotonic", lambda: phase.started + 12)
    display.begin(phase)
    assert "rows  1,200 of 5,000  100 rows/s  0:38 left" in display.text()
    phase.total = None
    assert "rows  1,200  100 rows/s" in display.text() and "left" not in display.text()
    phase.done = 6
    assert "rows  6  0.5 rows/s" in display.text()
