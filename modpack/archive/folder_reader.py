"""Packages that are unzipped folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from modpack.archive import layout
from modpack.archive.base import CHUNK_BYTES, Archive, DataRange
from modpack.archive.layout import DEFAULT_LIMITS, Limits, find_name_problem
from modpack.archive.other_files import identify_folder
from modpack.errors import ArchiveError, NotAPackageError


class FolderArchive(Archive):
    """A folder with one file per record.

    ``__pycache__`` folders are ignored: Python creates them when the code is imported in place.

    Args:
        folder: The package's top-level folder, or a folder that contains only that folder.
        limits: Limits on the number of files.

    Raises:
        NotAPackageError: If the folder does not contain a package, or cannot be read.
        ArchiveError: If the folder contains a symlink that leaves it, a file that is not
            regular, or a name that is not allowed.
    """

    def __init__(self, folder: str, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(folder)
        self._root = os.path.realpath(_package_root(folder))
        self._closed = False
        self._sizes: dict[str, int] = {}
        self._paths = self._collect(limits)
        names = sorted(self._paths)
        problem = find_name_problem(names)
        if problem is not None:
            raise ArchiveError(folder, problem[1], problem[0])
        self._names = tuple(names)

    def has(self, name: str) -> bool:
        return name in self._paths

    def sizes(self) -> dict[str, int]:
        return {name: self._sizes[name] for name in self.names()}

    def size(self, name: str) -> int:
        path = self._path(name)
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise self._unreadable(name, error) from error

    def chunks(self, name: str) -> Iterator[bytes | memoryview]:
        return self._chunks(name, self._path(name))

    def data_range(self, name: str) -> DataRange | None:
        return DataRange(self._path(name), 0, self.size(name))

    def close(self) -> None:
        self._closed = True

    def record_path(self, name: str) -> str:
        """Return the absolute path of a record, which need not exist."""
        return os.path.join(self._root, *name.split("/"))

    def _path(self, name: str) -> str:
        if self._closed:
            raise ArchiveError(self.path, "the archive is closed", hint="Open the package again.")
        path = self._paths.get(name)
        if path is None:
            raise self._missing(name)
        return path

    def _chunks(self, name: str, path: str) -> Iterator[bytes]:
        try:
            with open(path, "rb", buffering=0) as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _collect(self, limits: Limits) -> dict[str, str]:
        """Return the absolute path of each record."""
        paths: dict[str, str] = {}
        folders = [""]
        while folders:
            prefix = folders.pop()
            for entry in self._entries(prefix):
                name = prefix + entry.name
                if not self._is_folder(name, entry):
                    paths[name] = self._checked_file(name, entry)
                elif entry.is_symlink():
                    raise ArchiveError(self.path, "the record is a symlink to a folder", name)
                elif entry.name != "__pycache__":
                    folders.append(name + "/")
            if len(paths) > limits.max_records:
                raise ArchiveError(
                    self.path, f"the folder has more than {limits.max_records} files"
                )
        return paths

    def _is_folder(self, name: str, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:  # a symlink to itself
            raise self._unreadable(name, error) from error

    def _entries(self, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self._root, prefix)) as entries:
                return list(entries)
        except OSError as error:
            reason = f"the folder {prefix or '.'!r} cannot be read: {error.strerror}"
            raise NotAPackageError(self.path, reason) from error

    def _checked_file(self, name: str, entry: os.DirEntry[str]) -> str:
        path = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
        if entry.is_symlink() and os.path.commonpath((self._root, path)) != self._root:
            raise ArchiveError(self.path, "the record is a symlink that leaves the package", name)
        try:
            status = os.stat(path)
        except OSError as error:
            raise self._unreadable(name, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise ArchiveError(self.path, "the record is not a regular file", name)
        self._sizes[name] = status.st_size
        return path

    def _unreadable(self, name: str, error: OSError) -> ArchiveError:
        return ArchiveError(self.path, f"the record cannot be read: {error.strerror}", name)


def _package_root(folder: str) -> str:
    if _is_package(folder):
        return folder
    try:
        with os.scandir(folder) as scanned:
            entries = list(scanned)
    except OSError as error:
        raise NotAPackageError(folder, f"the folder cannot be read: {error.strerror}") from error
    inner = [entry.path for entry in entries if entry.is_dir()]
    if len(inner) == 1 and _is_package(inner[0]):
        return inner[0]
    reason, hint = identify_folder(folder, [entry.name for entry in entries])
    raise NotAPackageError(folder, reason, hint=hint)


def _is_package(folder: str) -> bool:
    return any(os.path.isfile(os.path.join(folder, version)) for version in layout.VERSIONS)
