"""A sign of life: what is being done and how far it is, once that has taken a second.

It appears on stderr, at a terminal only, and is gone when the work is done.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from modpack.cli._console import make_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from modpack.core.progress import Phase

__all__ = ["working"]

PATIENCE_SECONDS: Final = 1.0
"""How long nothing appears: most commands are done by then."""
_BAR_WIDTH: Final = 24
_PER_SECOND: Final = 8
"""How often it is drawn."""


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show what the block does, if it takes long.

    Args:
        what: what is done on the whole (``Packaging train.py:make``).
    """
    if not sys.stderr.isatty():  # before rich is imported, which is not cheap
        yield
        return
    from modpack.core.progress import heard_by

    display = _Display(make_console(stderr=True), what)
    try:
        with heard_by(display):
            yield
    finally:
        display.close()


class _Display:
    """One line at the terminal: it hears of phases, and asks them how far they are.

    Args:
        console: where it appears.
        what: what is done on the whole.
    """

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = what
        self._phases: list[Phase] = []
        self._started = time.monotonic()
        self._live: Live | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE_SECONDS, self._show)
        self._timer.daemon = True
        self._timer.start()

    def begin(self, phase: Phase) -> None:
        """A phase to show, instead of the one that it is a part of."""
        self._phases.append(phase)

    def end(self, phase: Phase) -> None:
        """The phase before it is shown again."""
        self._phases.remove(phase)

    def close(self) -> None:
        """Take the line away, and do not show it any more."""
        self._timer.cancel()
        with self._lock:
            self._is_closed = True
            if self._live is not None:
                self._live.stop()

    def _show(self) -> None:
        from rich.live import Live

        with self._lock:
            if self._is_closed:
                return
            self._live = Live(
                console=self._console,
                get_renderable=self._line,
                refresh_per_second=_PER_SECOND,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # what goes into a pipe must get there
            )
            self._live.start()

    def _line(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        from modpack.report.wording import printable

        phase = self._phases[-1] if self._phases else None
        seconds = int(time.monotonic() - self._started)
        line = Table.grid(padding=(0, 1))
        parts: list[RenderableType] = [Spinner("dots"), Text(printable(self._what))]
        if phase is not None:
            parts.append(Text(printable(phase.text), "dim"))
            if phase.total:
                parts.append(ProgressBar(phase.total, phase.done, width=_BAR_WIDTH))
            parts.append(Text(_amount(phase)))
        parts.append(Text(f"{seconds // 60}:{seconds % 60:02}", "dim"))
        line.add_row(*parts)
        return line


def _amount(phase: Phase) -> str:
    """How far a phase is, in its unit."""
    from modpack.core.progress import Unit
    from modpack.report.wording import human_size

    if phase.unit is None or not phase.done:
        return ""
    if phase.unit is Unit.BYTES:
        done, total = human_size(phase.done), human_size(phase.total or 0)
    else:
        done, total = f"{phase.done:,}", f"{phase.total or 0:,} {phase.unit.value}"
    if phase.total:
        return f"{done} of {total}"
    return done if phase.unit is Unit.BYTES else f"{done} {phase.unit.value}"
