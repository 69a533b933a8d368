"""Measurement of time and memory, and optional profiles."""

from __future__ import annotations

import contextlib
import cProfile
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_INTERPRETER = os.path.realpath(sys.executable)
_profile: cProfile.Profile | None = None
_profile_of_commands = ""


@contextlib.contextmanager
def profile_clocks(target: str) -> Iterator[None]:
    """Profile all blocks of :func:`clock` and commands in this context.

    Args:
        target: File for the profile.
    """
    global _profile, _profile_of_commands
    _profile, _profile_of_commands = cProfile.Profile(), target
    yield
    if not Path(target).exists():  # a command may have written its own profile
        _profile.dump_stats(target)


@contextlib.contextmanager
def clock(*, warming_up: bool = False) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds of the block.

    Args:
        warming_up: Whether to exclude the block from profiles.
    """
    seconds = [0.0]
    profiling = contextlib.nullcontext() if warming_up or _profile is None else _profile
    with profiling:
        started = time.perf_counter()
        yield lambda: seconds[0]
        seconds[0] = time.perf_counter() - started


def run_python(*arguments: str) -> None:
    """Run an interpreter and discard its output."""
    profiling = ["-m", "cProfile", "-o", _profile_of_commands] if _profile_of_commands else []
    command = [sys.executable, *profiling, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cpu_of(code: str) -> float:
    """Return the user and system seconds of an interpreter that runs code."""
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def seconds_of(code: str, after: str) -> float:
    """Return the seconds of code in a new interpreter with cached bytecode.

    Args:
        code: Code to measure.
        after: Code that runs before the measurement.
    """
    measured = f"{after}; from time import perf_counter; started = perf_counter(); {code}"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path("bytecode").absolute())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-W", "ignore", "-c", f"{measured}; print(perf_counter() - started)"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return float(done.stdout)


def read_through(file: str | Path) -> None:
    """Read a file into the page cache."""
    with Path(file).open("rb", buffering=0) as opened:
        buffer = bytearray(1 << 20)
        while opened.readinto(buffer):
            pass


def private_bytes() -> int:
    """Return the private memory of this process, without clean pages of libraries.

    Clean pages of a library become shared when another process loads it.
    """
    with Path("/proc/self/smaps").open() as lines:  # no list of lines, which would use memory
        return private_in(lines)


def private_in(lines: Iterable[str]) -> int:
    """Return the private memory in the lines of an ``smaps`` file."""
    total, is_library = 0, False
    for line in lines:
        field, *rest = line.split()
        if not field.endswith(":"):
            is_library = rest[-1] == _INTERPRETER or ".so" in rest[-1]
        elif field == "Private_Dirty:" or (field == "Private_Clean:" and not is_library):
            total += int(rest[0]) * 1024
    return total


def peak_bytes_from_now() -> int:
    """Reset the peak, and return the resident memory."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_bytes() -> int:
    """Return the peak of the resident memory since :func:`peak_bytes_from_now`."""
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
