"""Helpers: other processes of this Python that do in advance what this one will need.

Nothing depends on a helper: what it has not done, this process does, only later. A helper runs this
Python, isolated, with nothing but what its work needs: it imports neither torch nor the user's main
module, and can be started from anywhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "FIND_MODPACK",
    "helpers_wanted",
    "if_possible",
    "kill_helper",
    "start_helper",
    "usable_cores",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SWITCH: Final = "MODPACK_HELPERS"
_PATIENCE: Final = 5.0
"""Seconds that a killed helper has to end; its disk may not answer."""
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use, in microseconds out of so many."""
_HOME: Final = str(Path(__file__).absolute().parents[2])
"""Where modpack is, wherever the current folder will be when a helper is started."""
FIND_MODPACK: Final = "import sys; sys.path.append(sys.argv[1])"
"""What a helper runs first, if it is to import modpack."""


def helpers_wanted() -> bool:
    """Whether helpers may be started: ``MODPACK_HELPERS=0`` forbids it."""
    return os.environ.get(_SWITCH) != "0"


def usable_cores() -> int:
    """How many processes of this user's can run at a time, as far as that is known."""
    cores = os.cpu_count() or 1
    with contextlib.suppress(AttributeError, OSError):  # not every system tells
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no container, or none with a limit
        quota, period = _QUOTA.read_text().split()
        cores = min(cores, max(int(quota) // int(period), 1))
    return cores


def start_helper(
    code: str, arguments: Sequence[str], stdin: IO[Any], stdout: IO[Any] | None = None
) -> subprocess.Popen[bytes]:
    """Start a helper. Its work is a file: a pipe would have to be fed.

    Args:
        code: what it runs; it has modpack's folder, then its arguments, in ``sys.argv``.
        arguments: the arguments.
        stdin: its work.
        stdout: a file for what it says, if it says anything.

    Raises:
        OSError, RuntimeError, ValueError: no process can be started.
    """
    import subprocess  # what most loads do without

    python = sys.executable or ""
    if not Path(python).name.lower().startswith(("python", "pypy")):
        raise OSError(f"sys.executable is {python!r}, which may not be Python")
    # -S: what is installed is no concern of a helper's, and looking at it takes its time.
    return subprocess.Popen(
        [python, "-I", "-S", "-c", code, _HOME, *arguments],
        stdin=stdin,
        stdout=subprocess.DEVNULL if stdout is None else stdout,
        stderr=subprocess.DEVNULL,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def if_possible(start: Callable[[], T], work: str) -> T | None:
    """What starts a helper, or None where that is not possible; the log tells why.

    Args:
        start: starts it, and makes the files that it needs.
        work: what it would help with (``"scanning"``).
    """
    try:
        return start()
    except Exception as failure:  # audit hooks may raise anything
        _log.info("no process can be started to help %s (%s)", work, failure)
        return None


def kill_helper(helper: subprocess.Popen[bytes]) -> None:
    """End a helper that can leave nothing half made, wherever it is."""
    import subprocess

    helper.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # Python waits for it when it can
        helper.wait(_PATIENCE)
