"""Listing and clearing the cache.

An *entry* is a folder that is used and removed as a whole: the unpacked files of a package, or a
virtual environment with a package's requirements.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from modpack.core.codec import json_keys
from modpack.errors import CacheError
from modpack.loading.cache import (
    CODE,
    ENVIRONMENT,
    FILES,
    TEMPORARY,
    USED,
    environments_folder,
    exclusive,
    in_use,
    read_record,
    sweep,
    trees_folder,
)
from modpack.loading.package_record import remove_stale_records

EntryKind: TypeAlias = Literal["package", "environment"]

_DIGEST = re.compile(r"[0-9a-f]{4,64}")
_SCAN_FOLDERS = (re.compile(r"v\d+"), re.compile(r"[0-9a-f]{1,2}"))
_SCAN = re.compile(r"[0-9a-f]+|tmp\w*\.tmp")


@json_keys(omitted=("used", "folder"), derived=("last_used",))
@dataclass(frozen=True)
class CacheEntry:
    """The unpacked files of one package, or of several with the same files, or an environment.

    Attributes:
        kind: Its kind.
        digest: Digest of the files, or of the requirements of an environment.
        name: Name of the package file that it was unpacked from; None if unknown.
        files: Number of files, including compiled code.
        size_bytes: Total size of the files. Weights that packages at URLs have in common are one
            file with several names, and count in equal shares.
        used: Time of the last use, in seconds since 1970.
        folder: Its path.
    """

    kind: EntryKind
    digest: str
    name: str | None
    files: int
    size_bytes: int
    used: float
    folder: Path

    @property
    def last_used(self) -> str:
        """Time of the last use, in UTC (ISO 8601)."""
        return datetime.fromtimestamp(self.used, timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Scans:
    """Cached results of scanning sources for imports, reused by later exports.

    Attributes:
        files: Number of files.
        size_bytes: Total size of the files.
    """

    files: int = 0
    size_bytes: int = 0


class CacheContents(NamedTuple):
    """The contents of the cache.

    Attributes:
        folder: The cache folder.
        entries: The unpacked packages and the environments, most recently used first.
        scans: The cached scans.
    """

    folder: str
    entries: tuple[CacheEntry, ...]
    scans: Scans


@json_keys({"kept": "in_use"}, derived=("freed_bytes",))
@dataclass(frozen=True)
class Cleared:
    """The result of :func:`clear`.

    Attributes:
        removed: The removed entries.
        kept: Entries that were selected but are in use.
        scans: The removed scans.
        leftovers: Number of removed temporary folders and environments of ended processes.
    """

    removed: tuple[CacheEntry, ...] = ()
    kept: tuple[CacheEntry, ...] = ()
    scans: Scans = Scans()
    leftovers: int = 0

    @property
    def freed_bytes(self) -> int:
        """Total size of the removed entries and scans."""
        return sum(entry.size_bytes for entry in self.removed) + self.scans.size_bytes


def list_entries(cache: Path) -> tuple[CacheEntry, ...]:
    """Return the packages and environments in the cache, most recently used first.

    Args:
        cache: The cache folder, which may not exist.
    """
    entries: list[CacheEntry | None] = []
    trees = trees_folder(cache)
    for folder in [] if trees.parent.is_symlink() else _entries(trees):
        record = read_record(folder)
        files = chain.from_iterable(_files_below(folder / each) for each in (FILES, CODE))
        name = record.name or None if record is not None else None
        entries.append(_entry("package", folder, name, files, USED))
    for folder in _entries(environments_folder(cache)):
        if (folder / ENVIRONMENT).is_file():  # written last
            inside = _files_below(folder)
            entries.append(_entry("environment", folder, None, inside, ENVIRONMENT))
    found = (entry for entry in entries if entry is not None and _DIGEST.fullmatch(entry.digest))
    return tuple(sorted(found, key=lambda entry: (-entry.used, entry.digest)))


def list_scans(cache: Path) -> Scans:
    """Return number and size of the cached scans."""
    sizes = [size for _, size, _ in _scan_files(cache)]
    return Scans(len(sizes), sum(sizes))


def clear(cache: Path, older_than: float | None = None) -> Cleared:
    """Remove entries and scans, except entries that a running process uses.

    Incomplete entries of ended processes are always removed, and so are records of packages that no
    longer exist.

    Args:
        cache: The cache folder, which may not exist.
        older_than: Remove only what was not used for this many seconds. None removes everything.

    Raises:
        CacheError: If the cache cannot be locked, or an entry cannot be removed.
    """
    if not cache.is_dir():
        return Cleared()
    limit = math.inf if older_than is None else time.time() - older_than
    with exclusive(cache):
        used = in_use(cache)
        old = [entry for entry in list_entries(cache) if entry.used < limit]
        kept = tuple(entry for entry in old if entry.digest in used)
        removed = tuple(entry for entry in old if entry.digest not in used)
        for entry in removed:
            _put_aside(entry)
        # These include the entries that were just put aside.
        left = sweep(cache, used, partial_age=0)
    # Files are removed without the lock, for which loads would wait.
    for each in left:
        shutil.rmtree(each, ignore_errors=True)
    remove_stale_records(cache)
    return Cleared(removed, kept, _clear_scans(cache, limit), len(left) - len(removed))


def _clear_scans(cache: Path, limit: float) -> Scans:
    removed = []
    for file, size, changed in _scan_files(cache):
        if changed < limit:
            with contextlib.suppress(OSError):
                Path(file).unlink()
                removed.append(size)
    return Scans(len(removed), sum(removed))


def _put_aside(entry: CacheEntry) -> None:
    """Rename an entry under the lock; its files are removed after the lock is released."""
    aside = entry.folder.with_name(f"{entry.digest[:12]}.{os.urandom(8).hex()}{TEMPORARY}")
    try:
        entry.folder.rename(aside)
    except OSError as failure:
        reason = failure.strerror or failure
        raise CacheError(f"{entry.folder}: cannot remove the cache entry: {reason}") from failure


def _entry(
    kind: EntryKind,
    folder: Path,
    name: str | None,
    files: Iterable[tuple[str, int, float]],
    marker: str,
) -> CacheEntry | None:
    """Return an entry, or None if another process removes it.

    Args:
        kind: Its kind.
        folder: Its folder.
        name: Name of its package.
        files: Its files.
        marker: The file whose modification time is the time of the last use.
    """
    sizes = [size for _, size, _ in files]
    try:
        try:
            used = (folder / marker).stat().st_mtime
        except OSError:
            used = folder.stat().st_mtime
    except FileNotFoundError:
        return None
    used = max(0.0, min(used, time.time()))  # a time in the future becomes now
    return CacheEntry(kind, folder.name, name, len(sizes), sum(sizes), used, folder)


def _scan_files(cache: Path) -> Iterator[tuple[str, int, float]]:
    """Yield path, size in bytes, and modification time of each scan; ignore other files."""
    folders = [cache / "scans"]
    for pattern in _SCAN_FOLDERS:
        inner = (each for folder in folders for each in _entries(folder))
        folders = [each for each in inner if pattern.fullmatch(each.name)]
    for folder in folders:
        for file, size, changed in _files_below(folder):
            if _SCAN.fullmatch(os.path.basename(file)):  # noqa: PTH119 - there are many
                yield file, size, changed


def _entries(folder: Path) -> list[Path]:
    """Return the folders in a folder, without symlinks, which could lead out of the cache."""
    if folder.is_symlink():
        return []
    try:
        return [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files_below(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Yield path, size in bytes, and modification time of each file.

    A file with several names counts in equal shares, so that the sum is what the disk has.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                path = os.path.join(parent, name)  # noqa: PTH118 - there are many
                status = os.lstat(path)
                yield path, status.st_size // max(status.st_nlink, 1), status.st_mtime
