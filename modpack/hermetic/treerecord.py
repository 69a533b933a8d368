"""What is known of a tree in the cache: what it was made of, and that nothing has changed since.

A *stamp* sums up whose tree it is, and the inodes, sizes and times of all files. The system changes
the time of a change of an inode (ctime) itself, whoever changes the file, and nobody sets it back.
A stamp holds for one boot of the machine: after a power failure files may lack what was not yet on
the disk, although their inodes say nothing of it. Then, and whenever the stamp is not that of the
files, the files themselves are compared.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "CODE",
    "FILES",
    "TreeRecord",
    "boot",
    "has_content",
    "has_stamp",
    "last_use",
    "note_use",
    "put_stamp",
    "read_record",
    "write_record",
]

FILES = "files"
"""The folder of a tree that holds the package's files."""
CODE = "code"
"""The one that holds what they were compiled into."""
_RECORD = "tree.json"
_USED = "used"
_STAMPS = "stamps"
_VERSION = 1


@dataclass(frozen=True)
class TreeRecord:
    """What a tree was made of.

    Attributes:
        name: the package file's name.
        made: when, in seconds since 1970.
        files: size in bytes and sha256 of each file, by its name below the tree.
    """

    name: str
    made: float
    files: Mapping[str, tuple[int, str]]


def write_record(tree: Path, name: str, files: Mapping[str, tuple[int, str]]) -> None:
    """Write what a new tree was made of."""
    document = {"version": _VERSION, "name": name, "made": time.time(), "files": files}
    (tree / _RECORD).write_text(json.dumps(document), encoding="utf-8")
    (tree / _USED).touch()


def read_record(tree: Path) -> TreeRecord | None:
    """What a tree was made of; None if that cannot be told any more."""
    try:
        document = json.loads((tree / _RECORD).read_bytes())
        files = {str(n): (int(size), str(sha)) for n, (size, sha) in document["files"].items()}
        return TreeRecord(str(document["name"]), float(document["made"]), files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    except (OverflowError, RecursionError):  # no number, or far too many levels
        return None


def note_use(tree: Path) -> None:
    """Note that a tree is used now, if the cache can be written to."""
    with contextlib.suppress(OSError):
        os.utime(f"{tree}{os.sep}{_USED}")


def last_use(tree: Path) -> float:
    """When a tree was used last, in seconds since 1970; never after now, whatever clocks said."""
    try:
        used = (tree / _USED).stat().st_mtime
    except OSError:
        used = tree.stat().st_mtime
    return max(0.0, min(used, time.time()))


@functools.cache
def boot() -> str:
    """Which boot of the machine this is; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def put_stamp(tree: Path, digest: str, names: Iterable[str]) -> None:
    """Note that a tree's files are right as they are, if the cache can be written to.

    Args:
        tree: the tree.
        digest: of what it was made of, whatever it is called now.
        names: its files.
    """
    with contextlib.suppress(OSError):
        folder = tree / _STAMPS
        folder.mkdir(mode=0o700, exist_ok=True)
        making = folder / f"{secrets.token_hex(4)}.tmp"
        try:
            making.write_text(_stamp(tree, digest, names), encoding="ascii")
            making.replace(folder / (boot() or "any"))
        finally:
            making.unlink(missing_ok=True)


def has_stamp(tree: Path, digest: str, names: Iterable[str]) -> bool:
    """Whether a tree's files are those that were found right for a package.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such tree, or it lacks files.
    """
    now = _stamp(tree, digest, names)
    try:
        stamp = f"{tree}{os.sep}{_STAMPS}{os.sep}{boot() or 'any'}"
        with open(stamp, "rb", buffering=0) as file:  # noqa: PTH123 - each load reads it
            return file.read() == now.encode("ascii")
    except OSError:
        return False


def _stamp(tree: Path, digest: str, names: Iterable[str]) -> str:
    lines = [f"{digest}\n"]
    for name, now in _statuses(f"{tree}{os.sep}{FILES}", names):
        facts = f"({now.st_ino}, {now.st_mode}, {now.st_size}, {now.st_mtime_ns})"
        lines.append(f"{name}\0{facts}{now.st_ctime_ns}\n")
    return hashlib.blake2b("".join(lines).encode(), digest_size=20).hexdigest()


def _statuses(folder: str, names: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    """The status of each file in a folder; links are not followed."""
    if os.stat not in os.supports_dir_fd:  # Windows
        for name in names:
            yield name, os.lstat(f"{folder}{os.sep}{name}")
        return
    # From the folder on, which takes a quarter less than from the root on, for each file.
    place = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY))
    try:
        for name in names:
            yield name, os.stat(name, dir_fd=place, follow_symlinks=False)
    finally:
        os.close(place)


def has_content(file: Path, content: bytes) -> bool:
    """Whether a file holds this; what a link leads to may change without the link.

    Raises:
        FileNotFoundError, NotADirectoryError: it is not there.
    """
    return stat.S_ISREG(file.lstat().st_mode) and file.read_bytes() == content
