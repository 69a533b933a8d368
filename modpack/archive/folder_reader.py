"""Packages that are unzipped folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from modpack.archive import layout
from modpack.archive.base import CHUNK_BYTES, Archive, ByteSource, DataRange, open_file_next_to
from modpack.archive.layout import find_name_problem
from modpack.archive.other_files import identify_folder
from modpack.errors import ArchiveError, NotAPackageError


class FolderArchive(Archive):
    """A folder with one file per record.

    ``__pycache__`` folders are ignored: Python creates them when the code is imported in place.

    Args:
        folder: The package's top-level folder, or a folder that contains only that folder.

    Raises:
        NotAPackageError: If the folder does not contain a package, or cannot be read.
        ArchiveError: If the folder contains a symlink that leaves it, a file that is not
            regular, or a name that is not allowed.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        # Resolved, because the targets of symlinks are compared with it.
        self._root = os.path.realpath(_package_root(folder))
        self._closed = False
        self._sizes: dict[str, int] = {}
        self._paths = self._collect()
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
        # The path is found now: a missing record is an error before the first chunk is read.
        return self._chunks(name, self._path(name))

    def data_range(self, name: str) -> DataRange | None:
        return DataRange(self._path(name), 0, self.size(name))

    def close(self) -> None:
        self._closed = True

    def open_next_to(self, name: str) -> ByteSource:
        return open_file_next_to(os.path.abspath(self.path), self.path, name)

    def record_path(self, name: str) -> str:
        """Return the absolute path of a record, which need not exist."""
        if name.startswith(layout.LOADER_FILES):
            name = name.removeprefix(layout.LOADER_FILES)
            return os.path.join(os.path.dirname(self._root), *name.split("/"))
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

    def _collect(self) -> dict[str, str]:
        """Return the absolute path of each record."""
        paths = self._collect_in("")
        hidden = next((name for name in paths if name.startswith(layout.LOADER_FILES)), None)
        if hidden is not None:
            raise ArchiveError(self.path, layout.HIDDEN_LOADER, hidden)
        # Files next to the top-level folder are part of the package only if it states that it has a
        # loader. Other files there are the user's own.
        if layout.LOADER in paths:
            main, folder = (layout.LOADER_FILES + name for name in ("__main__.py", "modpack/"))
            if os.path.isfile(self.record_path(main)):
                paths[main] = self._checked_file(main, self.record_path(main))
            if os.path.isdir(self.record_path(folder)):
                paths |= self._collect_in(folder)
        return paths

    def _collect_in(self, first: str) -> dict[str, str]:
        """Return the absolute path of each record whose name starts like this."""
        paths: dict[str, str] = {}
        folders = [first]
        while folders:
            prefix = folders.pop()
            for entry in self._entries(prefix):
                name = prefix + entry.name
                if not self._is_folder(name, entry):
                    paths[name] = self._checked_file(name, entry.path)
                # It could lead to a parent, and names would never end.
                elif entry.is_symlink():
                    raise ArchiveError(self.path, "the record is a symlink to a folder", name)
                elif entry.name != "__pycache__":
                    folders.append(name + "/")
            if len(paths) > layout.MAX_RECORDS:
                raise ArchiveError(
                    self.path, f"the folder has more than {layout.MAX_RECORDS} files"
                )
        return paths

    def _is_folder(self, name: str, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:  # a symlink to itself
            raise self._unreadable(name, error) from error

    def _entries(self, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.record_path(prefix)) as entries:
                return list(entries)
        except OSError as error:
            reason = f"the folder {prefix or '.'!r} cannot be read: {error.strerror}"
            raise NotAPackageError(self.path, reason) from error

    def _checked_file(self, name: str, found: str) -> str:
        path = os.path.realpath(found) if os.path.islink(found) else found
        root = self._root
        if name.startswith(layout.LOADER_FILES):
            root = os.path.dirname(root)
            if not layout.is_loader_file(name.removeprefix(layout.LOADER_FILES)):
                raise ArchiveError(self.path, "a loader has no such file", name)
        # Such a link could make any file of this machine a part of the package.
        if path is not found and os.path.commonpath((root, path)) != root:
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
    if len(inner) > 1:  # a loader adds a folder, and Python another one if it runs the loader
        loader = ("modpack", "__pycache__")
        inner = [path for path in inner if os.path.basename(path) not in loader]
    if len(inner) == 1 and _is_package(inner[0]):
        return inner[0]
    raise identify_folder(folder, [entry.name for entry in entries])


def _is_package(folder: str) -> bool:
    return any(os.path.isfile(os.path.join(folder, version)) for version in layout.VERSIONS)
