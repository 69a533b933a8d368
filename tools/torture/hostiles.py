"""Run all commands and loaders on the hostile archives of ``fixtures/hostile``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packages import Tally

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "fixtures"), str(ROOT)]

from hostile.catalog import LOADERS, Hostile, everything  # noqa: E402
from hostile.floods import floods  # noqa: E402
from hostile.good import good  # noqa: E402
from hostile.zips import zipped  # noqa: E402

MAX_BYTES = 256 << 20
"""Memory limit for reading a package of up to 10 MB, without the interpreter's own."""
MAX_PARSES = 40
"""CPU time limit of one command: as often as Python parses 256 KiB of source in that time.

That is 5 s on a machine that takes 125 ms. Busy machines take longer for both.
"""
_AT_ONCE = 12
"""Number of 10 MB archives on the disk at the same time."""
_TRACEBACK = -1
_DIFFERENT = 1
"""Exit status of ``diff`` for a package that it can read."""


@dataclass
class HostileTally(Tally):
    """The results of commands or loaders on hostile archives.

    Attributes:
        messages: Names of archives by the message with which ``verify`` rejects them.
        peak: Largest memory use for an archive, in bytes.
        seconds: Longest CPU time of a command.
        parses: The same for commands that take more than a second, in units of :data:`MAX_PARSES`.
    """

    messages: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    peak: int = 0
    seconds: float = 0.0
    parses: float = 0.0


def run_commands(share: int = 1) -> HostileTally:
    """Run every reading command on each ``share``-th archive."""
    tally = HostileTally()
    with tempfile.TemporaryDirectory() as folder:
        chosen = list(everything())[::share]
        packages = _write_packages(Path(folder), chosen)
        for archive, results in zip(chosen, results_of("commands", packages), strict=True):
            _add_commands(tally, archive.name, archive, results["commands"])
            message = _verify_errors(results["commands"]).replace(archive.name, "NAME")
            tally.messages[message].append(archive.name)
    _check_messages_differ(tally, chosen)
    return tally


def run_loaders(share: int = 1) -> HostileTally:
    """Run every loader on each ``share``-th archive that loaders must reject.

    The other archives are not loaded, because that would run their code.
    """
    tally = HostileTally()
    chosen = [each for each in everything() if each.refused_by & {*LOADERS}][::share]
    with tempfile.TemporaryDirectory() as folder:
        packages = _write_packages(Path(folder), chosen)
        for archive, results in zip(chosen, results_of("loaders", packages), strict=True):
            for name, result in results.items():
                tally.tries += 1
                tally.wrong += _loader_failures(archive, name, result)
    return tally


def run_commands_on_floods(share: int = 1) -> HostileTally:
    """Run every reading command on each ``share``-th archive that exhausts resources.

    Commands may accept these archives, which can be valid and very large.
    """
    tally = HostileTally()
    chosen = list(floods())[::share]
    for start in range(0, len(chosen), _AT_ONCE):
        some = chosen[start : start + _AT_ONCE]
        with tempfile.TemporaryDirectory() as folder:
            packages = _write_packages(Path(folder), some)
            for flood, results in zip(some, results_of("commands", packages), strict=True):
                _add_commands(tally, flood.name, None, results["commands"])
    return tally


def results_of(mode: str, packages: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """Run ``judging.py`` on packages, and yield its results. The first package is good."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("judging.py")),
                mode,
                *map(str, packages),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MODPACK_CACHE_DIR": cache},
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    for line in done.stdout.splitlines():
        yield json.loads(line)["results"]


def _write_packages(folder: Path, archives: Sequence[Any]) -> list[Path]:
    """Write a good package and then all archives, and return their paths."""
    path = folder / "good.modpack"
    path.write_bytes(zipped(good()))
    return [path, *(each.make(folder) for each in archives)]


def _add_commands(
    tally: HostileTally, name: str, hostile: Hostile | None, child: Mapping[str, Any]
) -> None:
    """Add the results of all commands on an archive. They must reject a hostile one."""
    if not isinstance(child["value"], dict):
        tally.wrong.append(f"{name}: {child['error'] or child['signal']} {child['text']}")
        return
    tally.peak = max(tally.peak, child["peak"])
    if child["peak"] > MAX_BYTES:
        tally.wrong.append(f"{name} uses {child['peak'] >> 20} MiB")
    for command, result in child["value"].items():
        tally.tries += 1
        tally.seconds = max(tally.seconds, result["seconds"])
        tally.parses = max(tally.parses, result["parses"])
        tally.wrong += [f"{command} {name}: {failure}" for failure in _command_failures(result)]
        if hostile is not None and (command == "verify" or command in hostile.refused_by):
            tally.wrong += _rejection_failures(hostile, command, child)


def _command_failures(result: Mapping[str, Any]) -> Iterator[str]:
    if result["effects"]:
        yield f"causes {result['effects']}"
    if result["parses"] > MAX_PARSES:
        yield f"takes {result['seconds']:.1f} s, {result['parses']:.0f} parses of 256 KiB"
    if result["status"] == _TRACEBACK:
        yield f"ends with a traceback: {result['output'][-300:]}"


def _rejection_failures(hostile: Hostile, command: str, child: Mapping[str, Any]) -> Iterator[str]:
    result = child["value"][command]
    is_verify = command == "verify"
    message = _verify_errors(child) if is_verify else " ".join(result["output"].split())
    if result["status"] == 0 or (command == "diff" and result["status"] == _DIFFERENT):
        yield f"{command} accepts {hostile.name}"
    elif hostile.message not in message:
        yield f"{command} {hostile.name}: expected {hostile.message!r}, got {message[:300]!r}"


def _verify_errors(child: Mapping[str, Any]) -> str:
    """Return the errors with which ``verify`` rejects a package."""
    if not isinstance(child["value"], dict):
        return ""
    output = str(child["value"]["verify"]["output"])
    try:
        document = json.loads(output)
    except ValueError:
        return output
    if "error" in document:
        return str(document["error"]["message"])
    errors = (each for each in document["findings"] if each["severity"] == "error")
    return "; ".join(f"{each['code']} {each['subject']}: {each['message']}" for each in errors)


def _loader_failures(archive: Hostile, name: str, child: Mapping[str, Any]) -> Iterator[str]:
    result = child["value"]
    if not isinstance(result, dict):
        ended = child["error"] or child["signal"]
        yield f"{name} {archive.name}: {ended} {child['text'][:300]}"
        return
    if name not in archive.refused_by:
        return
    if not result["error"]:
        yield f"{name} accepts {archive.name}"
    if result["effects"]:
        yield f"{name} {archive.name}: causes {result['effects']}"


def _check_messages_differ(tally: HostileTally, archives: Iterable[Hostile]) -> None:
    """Require different messages for archives with different flaws."""
    flaws = {each.name: each.message for each in archives}
    for message, names in tally.messages.items():
        if len({flaws[name] for name in names}) > 1:
            tally.wrong.append(f"{', '.join(names)} have the same message: {message}")
