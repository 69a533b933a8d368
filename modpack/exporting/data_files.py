"""Classification of files as data that a package may include, by name and size."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MAX_FILE_BYTES = 64 * 2**20
"""A larger file is excluded with a warning: it is more likely a checkpoint than a vocabulary."""
MAX_TOTAL_BYTES = 256 * 2**20

_CODE = (".py", ".pyc", ".pyo", ".pyi", ".pyx", ".pxd", ".pxi", ".pyw", ".ipynb")
_LOADABLE = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*$")
_LINKER_SUFFIXES = (".a", ".lib", ".o", ".obj", ".exe")
# Formats of private keys, and of the certificates that come with them.
_KEYS = frozenset({".crt", ".der", ".jks", ".kdbx", ".key", ".keystore", ".p12", ".pem", ".pfx"})
_SECRETS = (
    r"(.*\.env|id_(rsa|dsa|ecdsa|ed25519)|.*credentials?|.*secrets?|passwords?|.*api_?keys?)"
    r"(\.[a-z0-9]+)?"
)
_NOT_DATA = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
_MAX_FILES_LISTED = 10_000


def is_code(name: str) -> bool:
    """Return whether a file is Python code in any form, which is included only as a module."""
    return name.lower().endswith(_CODE)


def is_native(name: str) -> bool:
    """Return whether a file is native code.

    >>> is_native("libx.so.1"), is_native("kernel.cu")
    (True, False)
    """
    return is_loadable(name) or name.lower().endswith(_LINKER_SUFFIXES)


def is_loadable(name: str) -> bool:
    """Return whether a file is a native extension or a shared library."""
    return _LOADABLE.search(name.lower()) is not None


def is_private(path: str) -> bool:
    """Return whether a path is hidden or looks like a secret. Such files are only saved by name.

    >>> is_private("pkg/.env"), is_private("pkg/server.key"), is_private("pkg/words.txt")
    (True, True, False)
    """
    *folders, name = path.split("/")
    if any(part.startswith(".") and part != ".." for part in (*folders, name)):
        return True
    is_key = PurePosixPath(name.lower()).suffix in _KEYS
    return is_key or bool(re.fullmatch(_SECRETS, name, re.IGNORECASE))


def is_in_tests(folders: str) -> bool:
    """Return whether a path below a package is in its tests."""
    return not {"test", "tests"}.isdisjoint(folders.split("/")[:-1])


def is_data(name: str) -> bool:
    """Return whether a file can be included as data: it is neither Python nor native code."""
    return not (is_code(name) or is_native(name))


def iter_data_files(folder: Path) -> Iterator[Path]:
    """Yield the data files below a folder, sorted, without subfolders that are packages."""
    listed = 0
    for place, folders, names in os.walk(folder):
        # os.walk enters only the folders that stay in its list.
        folders[:] = sorted(n for n in folders if _is_entered(Path(place, n)))
        for name in sorted(names):
            listed += 1  # a folder next to the code may contain a data set
            if listed > _MAX_FILES_LISTED:
                return
            if is_data(name) and not is_private(name):
                yield Path(place, name)


def _is_entered(folder: Path) -> bool:
    # A package below decides about its own files, and a virtual environment is not data.
    is_hidden = folder.name.startswith(".") or folder.name in _NOT_DATA
    has_own_code = (folder / "__init__.py").exists() or (folder / "pyvenv.cfg").exists()
    return not (is_hidden or has_own_code or folder.is_symlink())


class SizeLimit:
    """Counts the bytes of included files.

    Attributes:
        excluded: Files that exceed a limit, with their sizes in bytes, by owner.
    """

    def __init__(self) -> None:
        self.excluded: dict[str, dict[Path, int]] = {}
        self._bytes_left = MAX_TOTAL_BYTES

    def admits(self, file: Path, owner: str = "") -> bool:
        """Return whether a file is readable and within the limits, and count it if so.

        Args:
            file: The file.
            owner: The module or distribution that it belongs to.
        """
        if not file.is_file() or not os.access(file, os.R_OK):
            return False
        size = file.stat().st_size
        if size > min(MAX_FILE_BYTES, self._bytes_left):
            self.excluded.setdefault(owner, {})[file] = size
            return False
        self._bytes_left -= size
        return True
