"""The cache: a package's code and resources as real files, written once.

A tree is named by its package's digest, so it never changes once it is there. It is made
beside its final place and renamed into it; of two processes that make the same one, one
wins and the other uses the winner's. A tree that belongs to another user, or that others may
write to, is not used: its code would run here.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from modpack.core.cachefolder import cache_folder, make_private, refuse_strangers
from modpack.core.progress import Unit, advance, phase
from modpack.errors import CacheError

__all__ = ["unpack"]

_log = logging.getLogger(__name__)
_TREE_LAYOUT = "v1"
_lock = threading.Lock()
_temporary: dict[str, Path] = {}


def unpack(digest: str, records: Mapping[str, int], read: Callable[[str], bytes]) -> Path:
    """Make sure that a package's tree exists, and return its folder.

    Args:
        digest: the package's digest: names the tree.
        records: the records that belong into it, with their sizes in bytes; names are
            relative and checked.
        read: returns a record's verified contents.

    Raises:
        CacheError: neither the cache nor a temporary folder can be written.
    """
    try:
        return _in_cache(cache_folder() / "trees" / _TREE_LAYOUT, digest, records, read)
    except (OSError, RuntimeError) as failure:
        _log.warning(
            "the cache cannot be used (%s); unpacking into a temporary folder for this "
            "process. Set MODPACK_CACHE to a writable folder to avoid that",
            failure,
        )
        return _for_this_process(digest, records, read, failure)


def _in_cache(
    folder: Path, digest: str, records: Mapping[str, int], read: Callable[[str], bytes]
) -> Path:
    tree = folder / digest
    if _is_complete(tree, records):
        return tree
    make_private(folder)
    making = Path(tempfile.mkdtemp(prefix=f"{digest[:12]}.", suffix=".tmp", dir=folder))
    try:
        with phase("unpacking code", Unit.RECORDS, len(records), is_major=True):
            _write(making, records, read)
        _put(making, tree, records)
        return tree
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _is_complete(tree: Path, records: Mapping[str, int]) -> bool:
    """Whether a tree can be used as it is; cleaners of caches may have taken files from it.

    Raises:
        OSError: it is not safe to use.
    """
    try:
        refuse_strangers(tree)
        return all((tree / name).stat().st_size == size for name, size in records.items())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _put(making: Path, tree: Path, records: Mapping[str, int]) -> None:
    """Rename a finished tree into its place, unless another process was first."""
    try:
        making.rename(tree)
    except OSError:
        if _is_complete(tree, records):
            return
        with tempfile.TemporaryDirectory(suffix=".tmp", dir=tree.parent) as aside:
            with contextlib.suppress(FileNotFoundError):
                tree.rename(Path(aside) / "damaged")
            making.rename(tree)


def _for_this_process(
    digest: str, records: Mapping[str, int], read: Callable[[str], bytes], why: Exception
) -> Path:
    with _lock:
        known = _temporary.get(digest)
        if known is None or not _is_complete(known, records):
            try:
                _temporary[digest] = _temporary_tree(records, read)
            except OSError as failure:
                raise CacheError(
                    f"the package's code can be unpacked neither into the cache ({why}) "
                    f"nor into a temporary folder ({failure}). Set MODPACK_CACHE to a "
                    "writable folder with enough space"
                ) from failure
        return _temporary[digest]


def _temporary_tree(records: Mapping[str, int], read: Callable[[str], bytes]) -> Path:
    tree = Path(tempfile.mkdtemp(prefix="modpack-"))
    atexit.register(_remove, tree, os.getpid())
    _write(tree, records, read)
    return tree


def _remove(tree: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must leave its parent's files alone
        shutil.rmtree(tree, ignore_errors=True)


def _write(folder: Path, records: Mapping[str, int], read: Callable[[str], bytes]) -> None:
    made = {folder}
    for record in records:
        file = folder / record
        if file.parent not in made:
            file.parent.mkdir(parents=True, exist_ok=True)
            made.add(file.parent)
        file.write_bytes(read(record))
        advance()
