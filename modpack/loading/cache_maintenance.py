"""Looking after the cache: what is in it, what of it is right, and what of it may go."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from modpack.errors import CacheError, ModpackError
from modpack.loading.cache import (
    CODE,
    FILES,
    TEMPORARY,
    USED,
    exclusive,
    in_use,
    read_record,
    sweep,
    trees_folder,
)

_SHORTEST_PREFIX = 4
_DIGEST = re.compile(r"[0-9a-f]{4,64}")
_SCAN_FOLDERS = (re.compile(r"v\d+"), re.compile(r"[0-9a-f]{1,2}"))
_SCAN = re.compile(r"[0-9a-f]+|tmp\w*\.tmp")


@dataclass(frozen=True)
class CachedTree:
    """Unpacked files, of one package or of several that have the same.

    Attributes:
        digest: names what is in it.
        name: the name of the package file that it was unpacked from; None if that is not known any
            more.
        files: how many files it has, compiled code included.
        size_bytes: what they take.
        used: when it was used last, in seconds since 1970.
        folder: where it is.
    """

    digest: str
    name: str | None
    files: int
    size_bytes: int
    used: float
    folder: Path


@dataclass(frozen=True)
class Scans:
    """What sources say about imports, kept from one export to the next.

    Attributes:
        files: how many there are.
        size_bytes: what they take.
    """

    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class Pruned:
    """What pruning did.

    Attributes:
        removed: the trees that are gone.
        kept: those that would have gone, but are in use.
        scans: the scans that are gone.
        leftovers: how many half-made folders of processes that have ended are gone.
    """

    removed: tuple[CachedTree, ...] = ()
    kept: tuple[CachedTree, ...] = ()
    scans: Scans = Scans()
    leftovers: int = 0

    @property
    def freed_bytes(self) -> int:
        """What trees and scans took."""
        return sum(tree.size_bytes for tree in self.removed) + self.scans.size_bytes


def list_trees(cache: Path) -> tuple[CachedTree, ...]:
    """All trees, what was used last first.

    Args:
        cache: the cache folder; it need not be there.
    """
    found = (_tree(each) for each in _tree_folders(cache))
    trees = [tree for tree in found if tree is not None]
    return tuple(sorted(trees, key=lambda tree: (-tree.used, tree.digest)))


def list_scans(cache: Path) -> Scans:
    """How much is kept of what sources say."""
    sizes = [size for _, size, _ in _scan_files(cache)]
    return Scans(len(sizes), sum(sizes))


def damaged_files(tree: CachedTree) -> tuple[str, ...]:
    """The files of a tree that are not what was unpacked; all of them if that is not known."""
    record = read_record(tree.folder)
    if record is None:
        return ("tree.json",)
    folder = tree.folder / FILES
    return tuple(n for n, (size, sha) in record.files.items() if not _is(folder / n, size, sha))


def _is(file: Path, size: int, sha256: str) -> bool:
    try:
        content = file.read_bytes()
    except OSError:
        return False
    return len(content) == size and hashlib.sha256(content).hexdigest() == sha256


def prune(
    cache: Path,
    *,
    digests: Iterable[str] = (),
    older_than: float | None = None,
    max_size: int | None = None,
    everything: bool = False,
) -> Pruned:
    """Remove what is not needed. What a living process uses stays, whatever is asked for.

    What dead processes left half made goes in any case.

    Args:
        cache: the cache folder; it need not be there.
        digests: digests of trees, or how these begin.
        older_than: remove what was not used for so many seconds.
        max_size: then remove what was not used for longest, until the rest takes so many bytes.
        everything: remove all.

    Raises:
        CacheError: there are no locks where the cache is, so that nobody can tell what is in use.
        ModpackError: no tree, or more than one, has a digest that begins so.
    """
    if not cache.is_dir():
        return Pruned()
    trees = list_trees(cache)
    named = {tree.digest for each in digests for tree in [_named(trees, each)]}
    limit = time.time() - older_than if older_than is not None else None
    with exclusive(cache):
        used = in_use(cache)
        old = {t.digest for t in trees if everything or (limit is not None and t.used < limit)}
        wanted = named | old
        wanted |= _too_many(cache, trees, wanted | used, wanted - used, max_size)
        going = [tree for tree in trees if tree.digest in wanted]
        removed = tuple(tree for tree in going if tree.digest not in used and _put_aside(tree))
        left = sweep(cache, used)
    for each in left:
        shutil.rmtree(each, ignore_errors=True)
    kept = tuple(tree for tree in going if tree not in removed)
    scans = _prune_scans(cache, time.time() if everything else limit)
    return Pruned(removed, kept, scans, len(left) - len(removed))


def _too_many(
    cache: Path,
    trees: Iterable[CachedTree],
    settled: set[str],
    going: set[str],
    max_size: int | None,
) -> set[str]:
    """The trees that must go as well, for the cache to be small enough."""
    if max_size is None:
        return set()
    trees = list(trees)
    total = sum(t.size_bytes for t in trees if t.digest not in going)
    total += list_scans(cache).size_bytes
    found: set[str] = set()
    for tree in reversed(trees):  # what was not used for longest is last
        if total > max_size and tree.digest not in settled:
            found.add(tree.digest)
            total -= tree.size_bytes
    return found


def _put_aside(tree: CachedTree) -> bool:
    """Take a tree out of everybody's sight; its files are removed when nobody waits for that."""
    aside = tree.folder.with_name(f"{tree.digest[:12]}.{os.urandom(8).hex()}{TEMPORARY}")
    try:
        tree.folder.rename(aside)
    except OSError as failure:
        reason = failure.strerror or failure
        raise CacheError(f"{tree.folder} cannot be removed: {reason}") from failure
    return True


def _prune_scans(cache: Path, before: float | None) -> Scans:
    removed = []
    for file, size, changed in _scan_files(cache) if before is not None else ():
        if before is not None and changed < before:
            with contextlib.suppress(OSError):
                Path(file).unlink()
                removed.append(size)
    return Scans(len(removed), sum(removed))


def _named(trees: Iterable[CachedTree], digest: str) -> CachedTree:
    found = [tree for tree in trees if tree.digest.startswith(digest)]
    if len(found) == 1 and len(digest) >= _SHORTEST_PREFIX:
        return found[0]
    if not found:
        raise ModpackError(
            f"no cached package has a digest that begins with {digest!r}",
            hint="List the digests with: modpack cache list",
        )
    digests = ", ".join(tree.digest[:16] for tree in found[:3])
    raise ModpackError(
        f"the digest {digest!r} is ambiguous or too short: it matches {digests}",
        hint=f"Pass at least {_SHORTEST_PREFIX} characters that identify one package.",
    )


def _tree(folder: Path) -> CachedTree | None:
    try:
        inside = (_files_below(folder / each) for each in (FILES, CODE))
        files = [(size, name) for name, size, _ in chain.from_iterable(inside)]
        record = read_record(folder)
        name = record.name if record is not None else None
        size = sum(size for size, _ in files)
        return CachedTree(folder.name, name or None, len(files), size, _last_use(folder), folder)
    except FileNotFoundError:  # somebody else removes it
        return None


def _last_use(tree: Path) -> float:
    """When a tree was used last, in seconds since 1970; never after now, whatever clocks said."""
    try:
        used = (tree / USED).stat().st_mtime
    except OSError:
        used = tree.stat().st_mtime
    return max(0.0, min(used, time.time()))


def _tree_folders(cache: Path) -> list[Path]:
    folder = trees_folder(cache)
    if folder.parent.is_symlink():
        return []
    return [each for each in _entries(folder) if _DIGEST.fullmatch(each.name)]


def _scan_files(cache: Path) -> Iterator[tuple[str, int, float]]:
    """Path, size in bytes, and time of change of each scan; what else lies there is not ours."""
    folders = [cache / "scans"]
    for pattern in _SCAN_FOLDERS:
        inner = (each for folder in folders for each in _entries(folder))
        folders = [each for each in inner if pattern.fullmatch(each.name)]
    for folder in folders:
        for file, size, changed in _files_below(folder):
            if _SCAN.fullmatch(os.path.basename(file)):  # noqa: PTH119 - there are many
                yield file, size, changed


def _entries(folder: Path) -> list[Path]:
    """The folders in a folder; no link is followed, for it may lead out of the cache."""
    if folder.is_symlink():
        return []
    try:
        return [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files_below(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Each file's path, size in bytes, and time of change."""
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(place, name))  # noqa: PTH118 - there are many
                yield os.path.join(place, name), status.st_size, status.st_mtime  # noqa: PTH118
