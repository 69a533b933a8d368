"""The files beside the user's own code that its sources say they read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from modpack.core.imports import FileRead, ReadKind
from modpack.core.names import package_folder, parents
from modpack.core.plan import Note, NoteKind
from modpack.discovery.walk import Walker
from modpack.planning.datafiles import (
    MOST_BYTES_OF_A_FILE,
    MOST_BYTES_UNNAMED,
    files_below,
    is_code,
    is_compiled,
    is_data_like,
    is_private,
)
from modpack.planning.homes import Home, record_in

__all__ = ["Offer", "files_beside", "record_folders"]


@dataclass(frozen=True)
class Offer:
    """A file that may go along.

    Attributes:
        file: it.
        record: the record that it would become.
        owner: the module or distribution that it belongs to.
        why: the evidence.
        most: the most bytes that it may have.
    """

    file: Path
    record: str
    owner: str
    why: str
    most: int = MOST_BYTES_OF_A_FILE


def record_folders(homes: Mapping[str, Home]) -> dict[Path, str]:
    """The record folder of each folder that interned modules lie in, and of those around them."""
    folders: dict[Path, str] = {}
    for home in homes.values():
        place, record = home.folder, home.record_folder
        while folders.get(place) != record:  # else those around it are known as well
            folders.setdefault(place, record)
            if not record:
                break
            place, record = place.parent, record.rpartition("/")[0]
    return folders


def files_beside(homes: Mapping[str, Home], walker: Walker, notes: list[Note]) -> Iterator[Offer]:
    """The files that sources name, and those in folders that they read from.

    Of the files of installed distributions only those that a source names are offered: the
    others are known from the distribution's own list.

    Args:
        homes: where the interned modules are.
        walker: knows what their sources say.
        notes: takes what cannot be known.
    """
    folders = record_folders(homes)
    for home in homes.values():
        reads = walker.scan(home.module).reads
        if reads:
            yield from _Reader(home, homes, folders, notes).offers(reads)


class _Reader:
    """The reads of one module."""

    def __init__(
        self,
        home: Home,
        homes: Mapping[str, Home],
        folders: Mapping[Path, str],
        notes: list[Note],
    ) -> None:
        self._home = home
        self._homes = homes
        self._folders = folders
        self._notes = notes

    def offers(self, reads: tuple[FileRead, ...]) -> Iterator[Offer]:
        named = [read for read in reads if read.kind is ReadKind.NAME]
        placed = [(r, self._place(r)) for r in reads if r.kind is not ReadKind.NAME]
        known = [(read, place) for read, place in placed if place is not None]
        for read, place in known:
            if read.kind is ReadKind.FILE and not place.is_dir():
                yield from self._named(place, read)
            else:
                yield from self._in_folder(place, read)
        if not self._home.is_installed:
            searched = [*self._own_folders(), *(place for _, place in known)]
            for read in named:
                yield from self._by_name(read, searched)

    def _place(self, read: FileRead) -> Path | None:
        """The file or folder that is read; None if it belongs to no interned module."""
        folder: Path | None = self._home.folder
        if read.module is not None:
            folder = self._folder_of(read.module)
        return Path(os.path.normpath(folder / read.path)) if folder is not None else None

    def _folder_of(self, module: str) -> Path | None:
        """A package's folder, interned or below an interned one (``files("pkg.data")``)."""
        for package in (module, *parents(module)):
            home = self._homes.get(package)
            if home is not None:
                below = package_folder(module[len(package) + 1 :])
                return home.folder / below if home.is_package else home.folder
        return None

    def _own_folders(self) -> Iterator[Path]:
        """The module's folder and those around it, up to the outermost package's."""
        place, record = self._home.folder, self._home.record_folder
        yield place
        while "/" in record:
            place, record = place.parent, record.rpartition("/")[0]
            yield place

    def _named(self, file: Path, read: FileRead) -> Iterator[Offer]:
        record = record_in(self._folders, file)
        if record is None or is_code(file.name) or is_compiled(file.name) or not file.is_file():
            return
        if is_private(record) and not self._home.is_installed:
            module = self._home.module
            text = f"{file} looks like a secret and is left out, although {module} names it"
            self._notes.append(Note(NoteKind.FILES_LEFT_OUT, module, text))
        else:
            yield Offer(file, record, self._home.module, self._why(read, "names it"))

    def _by_name(self, read: FileRead, folders: list[Path]) -> Iterator[Offer]:
        for folder in folders:
            file = Path(os.path.normpath(folder / read.path))
            if file.is_file():
                yield from self._named(file, read)
                return

    def _in_folder(self, folder: Path, read: FileRead) -> Iterator[Offer]:
        """Files that only the run can name: all of a folder that is there for them."""
        is_for_data = folder not in self._folders
        if not folder.is_dir() or (self._home.is_installed and not is_for_data):
            return
        if not is_for_data and not self._folders[folder]:
            self._cannot_tell(folder, read)
            return
        most = MOST_BYTES_OF_A_FILE if self._home.is_installed else MOST_BYTES_UNNAMED
        why = self._why(read, "reads files in its folder")
        for file in files_below(folder, deep=is_for_data):
            record = record_in(self._folders, file)
            if record is not None and (is_for_data or is_data_like(file.name)):
                yield Offer(file, record, self._home.module, why, most)

    def _cannot_tell(self, folder: Path, read: FileRead) -> None:
        found = [file.name for file in files_below(folder, deep=False) if is_data_like(file.name)]
        if found:
            shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            text = (
                f"{self._home.module} reads files in {folder} whose names are known at run time "
                f"only. That is no package's folder, so none of them goes along ({shown}). Save "
                'those that it needs: save_text("", name, text)'
            )
            place = f"{self._home.file}:{read.line}"
            self._notes.append(Note(NoteKind.FILES_UNKNOWN, self._home.module, text, place))

    def _why(self, read: FileRead, does: str) -> str:
        return f"{self._home.module} {does} (line {read.line})"
