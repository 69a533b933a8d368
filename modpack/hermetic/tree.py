"""The cache: a package's code and resources as real files, written once.

A tree is named by its package's digest, so it never changes once it is there. It is made
beside its final place and renamed into it; of two processes that make the same one, one
wins and the other uses the winner's.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from modpack.errors import CacheError

__all__ = ["cache_folder", "unpack"]

_log = logging.getLogger(__name__)
_TREE_LAYOUT = "v1"
_lock = threading.Lock()
_temporary: dict[str, Path] = {}


def cache_folder() -> Path:
    """Where trees are kept: ``MODPACK_CACHE``, or the platform's cache folder for this user."""
    chosen = os.environ.get("MODPACK_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "modpack"


def unpack(digest: str, records: Iterable[str], read: Callable[[str], bytes]) -> Path:
    """Make sure that a package's tree exists, and return its folder.

    Args:
        digest: the package's digest: names the tree.
        records: the records that belong into it; names are relative and checked.
        read: returns a record's verified contents.

    Raises:
        CacheError: neither the cache nor a temporary folder can be written.
    """
    try:
        return _in_cache(cache_folder() / "trees" / _TREE_LAYOUT, digest, records, read)
    except OSError as failure:
        _log.warning(
            "the cache %s cannot be used (%s); unpacking into a temporary folder for this "
            "process. Set MODPACK_CACHE to a writable folder to avoid that",
            cache_folder(),
            failure,
        )
        return _for_this_process(digest, records, read, failure)


def _in_cache(
    folder: Path, digest: str, records: Iterable[str], read: Callable[[str], bytes]
) -> Path:
    tree = folder / digest
    if tree.is_dir():
        return tree
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{digest[:12]}.", suffix=".tmp", dir=folder))
    try:
        _write(making, records, read)
        with contextlib.suppress(OSError):  # another process was first: use its tree
            making.rename(tree)
        if not tree.is_dir():
            raise CacheError(f"{tree} could not be made although its folder is writable")
        return tree
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _for_this_process(
    digest: str, records: Iterable[str], read: Callable[[str], bytes], why: OSError
) -> Path:
    with _lock:
        if digest not in _temporary:
            try:
                tree = Path(tempfile.mkdtemp(prefix="modpack-"))
                atexit.register(shutil.rmtree, tree, ignore_errors=True)
                _write(tree, records, read)
            except OSError as failure:
                raise CacheError(
                    f"the package's code can be unpacked neither into {cache_folder()} ({why}) "
                    f"nor into {tempfile.gettempdir()} ({failure}). Set MODPACK_CACHE to a "
                    "writable folder with enough space"
                ) from failure
            _temporary[digest] = tree
        return _temporary[digest]


def _write(folder: Path, records: Iterable[str], read: Callable[[str], bytes]) -> None:
    made = {folder}
    for record in records:
        file = folder / record
        if file.parent not in made:
            file.parent.mkdir(parents=True, exist_ok=True)
            made.add(file.parent)
        file.write_bytes(read(record))
