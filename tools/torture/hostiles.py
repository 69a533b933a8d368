"""The hostile archives of ``fixtures/hostile``, before all commands and loaders."""

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
"""Memory that looking at a package of up to 10 MB may take, beyond the interpreter's own."""
MAX_SECONDS = 5.0
"""How long one command may take for it."""
_AT_ONCE = 12
"""Archives of 10 MB that lie on the disk at the same time."""
_TRACEBACK = -1
_DIFFERENT = 1
"""The status of ``diff`` for a package that it could read."""


@dataclass
class Judged(Tally):
    """What came of archives before commands or loaders.

    Attributes:
        messages: the archives by the reason for which ``verify`` refused them.
        peak: the most memory that an archive took, in bytes.
        seconds: the longest that a command took.
    """

    messages: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    peak: int = 0
    seconds: float = 0.0


def looking(share: int = 1) -> Judged:
    """Give every ``share``-th archive to every command that looks at packages."""
    judged = Judged()
    with tempfile.TemporaryDirectory() as folder:
        chosen, packages = _made(Path(folder), list(everything())[::share])
        for archive, said in zip(chosen, said_by("looking", packages), strict=True):
            _look_into(judged, archive.name, archive, said["commands"])
            refusal = _reasons(said["commands"])
            judged.messages[refusal.replace(archive.name, "NAME")].append(archive.name)
    _require_own_messages(judged, chosen)
    return judged


def loading(share: int = 1) -> Judged:
    """Give every ``share``-th archive that loaders must refuse to every loader.

    The others are not loaded: that would run what is in them.
    """
    judged = Judged()
    refused = [each for each in everything() if each.refused_by & {*LOADERS}]
    with tempfile.TemporaryDirectory() as folder:
        chosen, packages = _made(Path(folder), refused[::share])
        for archive, said in zip(chosen, said_by("loading", packages), strict=True):
            for name, told in said.items():
                judged.tries += 1
                judged.wrong += _wrong_of_loader(archive, name, told)
    return judged


def flooded(share: int = 1) -> Judged:
    """Give every ``share``-th archive that is made to exhaust to every command that looks at it.

    Whether it is refused does not matter: it may only be very large.
    """
    judged = Judged()
    chosen = list(floods())[::share]
    for start in range(0, len(chosen), _AT_ONCE):
        some = chosen[start : start + _AT_ONCE]
        with tempfile.TemporaryDirectory() as folder:
            packages = [_good(Path(folder)), *(each.make(Path(folder)) for each in some)]
            for flood, said in zip(some, said_by("looking", packages), strict=True):
                _look_into(judged, flood.name, None, said["commands"])
    return judged


def said_by(what: str, packages: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """What ``judging.py``, in a process of its own, says of packages; the first one is good."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("judging.py")),
                what,
                *map(str, packages),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MODPACK_CACHE_DIR": cache},
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    for line in done.stdout.splitlines():
        yield json.loads(line)["said"]


def _made(folder: Path, chosen: list[Hostile]) -> tuple[list[Hostile], list[Path]]:
    """Archives, and where they are; a good package comes before them."""
    return chosen, [_good(folder), *(each.make(folder) for each in chosen)]


def _good(folder: Path) -> Path:
    path = folder / "good.modpack"
    path.write_bytes(zipped(good()))
    return path


def _look_into(
    judged: Judged, name: str, hostile: Hostile | None, child: Mapping[str, Any]
) -> None:
    """Count what commands said to an archive; if it is a hostile one, they must refuse it."""
    if not isinstance(child["value"], dict):
        judged.wrong.append(f"{name}: {child['error'] or child['signal']} {child['text']}")
        return
    judged.peak = max(judged.peak, child["peak"])
    if child["peak"] > MAX_BYTES:
        judged.wrong.append(f"{name} takes {child['peak'] >> 20} MiB")
    for command, said in child["value"].items():
        judged.tries += 1
        judged.seconds = max(judged.seconds, said["seconds"])
        judged.wrong += [f"{command} of {name} {wrong}" for wrong in _misbehavior(said)]
        if hostile is not None and (command == "verify" or command in hostile.refused_by):
            judged.wrong += _wrong_refusal(hostile, command, child)


def _misbehavior(said: Mapping[str, Any]) -> Iterator[str]:
    if said["fired"]:
        yield f"fires {said['fired']}"
    if said["seconds"] > MAX_SECONDS:
        yield f"takes {said['seconds']:.1f} s"
    if said["status"] == _TRACEBACK:
        yield f"ends with a traceback: {said['output'][-300:]}"


def _wrong_refusal(hostile: Hostile, command: str, child: Mapping[str, Any]) -> Iterator[str]:
    said = child["value"][command]
    told = _reasons(child) if command == "verify" else " ".join(said["output"].split())
    if said["status"] == 0 or (command == "diff" and said["status"] == _DIFFERENT):
        yield f"{command} accepts {hostile.name}"
    elif hostile.message not in told:
        yield f"{command} of {hostile.name} does not say {hostile.message!r}, but {told[:300]!r}"


def _reasons(child: Mapping[str, Any]) -> str:
    """Why ``verify`` refused a package."""
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


def _wrong_of_loader(archive: Hostile, name: str, told: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(told["value"], dict):
        yield f"{name} of {archive.name}: {told['error'] or told['signal']} {told['text'][:300]}"
        return
    if name not in archive.refused_by:
        return
    if not told["value"]["refused"]:
        yield f"{name} accepts {archive.name}"
    if told["value"]["fired"]:
        yield f"{name} of {archive.name} fires {told['value']['fired']}"


def _require_own_messages(judged: Judged, archives: Iterable[Hostile]) -> None:
    """Two archives that are refused in the same words have the same flaw."""
    flaws = {each.name: each.message for each in archives}
    for refusal, names in judged.messages.items():
        if len({flaws[name] for name in names}) > 1:
            judged.wrong.append(f"{', '.join(names)} are refused in the same words: {refusal}")
