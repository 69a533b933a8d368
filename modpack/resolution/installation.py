"""One installed distribution: what it is, and which files it claims."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import eq
from pathlib import Path
from urllib.parse import urlsplit

from modpack.core.coremetadata import headers
from modpack.core.licences import licence_of
from modpack.core.names import root_of
from modpack.resolution.contents import DistributionContents, read_contents
from modpack.resolution.editable import folders_on_path, found_through
from modpack.resolution.importpath import ORIGIN, Found, Metadata, lies_in
from modpack.resolution.requirements import required_names
from modpack.resolution.statuses import Status, is_settled, status_of

__all__ = ["Distribution", "Installation", "in_site_packages"]

_COMPILED = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*,")
"""A file of machine code, as a line of a RECORD starts with it."""
_OUTERMOST = re.compile(r"\n([^/,\n]+)")
_LISTED = re.compile(r"\n([^,\n]*),")
_OF_EGGS = ("requires.txt", "top_level.txt")
_FOLDERS = ("licenses", "license_files")
_TELLING = ("METADATA", "PKG-INFO", "RECORD", ORIGIN, *_OF_EGGS, *_FOLDERS)
"""The metadata that is read, files and folders; others come and go with the folder of all."""


@dataclass(frozen=True)
class Distribution:
    """An installed distribution.

    Attributes:
        name: its name as it is installed under.
        version: its version.
        editable: whether it is an editable install: its code is the user's own folder.
        requires: the normalised names of the distributions that it requires.
    """

    name: str
    version: str
    editable: bool = False
    requires: frozenset[str] = frozenset()

    @property
    def pin(self) -> str:
        """What to give to pip: ``numpy==2.1.0``."""
        return f"{self.name}=={self.version}"


class Installation:
    """One installed distribution, its metadata read piece by piece as it is needed."""

    def __init__(self, metadata: Metadata, may_be_editable: bool = True) -> None:
        self.metadata = metadata
        self._may_be_editable = may_be_editable
        self._read_besides: dict[str, Status | None] = {}

    @classmethod
    def of(cls, found: Found) -> Installation:
        """The installation, with what is known of it from another time, if it has not changed."""
        known = _known.get(found.place)
        if known is None or not (known[0].is_current() and known[1]._is_current()):
            looks = _Looks(found.place)
            known = _known[found.place] = looks, cls(found.metadata, looks.may_have_origin)
        return known[1]

    def lists(self, module: str, file: str, is_folder: bool = False) -> bool:
        """Whether the distribution claims a file, or something in a folder."""
        if self.source_folder is not None:
            return self._has_source(module, file, is_folder)
        if not file.startswith(self._home):
            return False
        if not self._roots:  # installed by a tool that keeps no record: all it has is a list
            return root_of(module) in self.top_level
        listed = file[len(self._home) :].replace(os.sep, "/")
        return listed in (self._folders if is_folder else self._listed)

    def has_published(self, file: str, content: bytes) -> bool:
        """Whether an index has a file with this content: it was installed from there like that.

        What was installed from somewhere else, such as a folder, says so (PEP 610); what an
        index gave away has its digest in the RECORD.
        """
        if (self._may_be_editable and self.text(ORIGIN)) or not file.startswith(self._home):
            return False
        listed = file[len(self._home) :].replace(os.sep, "/")
        row = re.search(f"\n{re.escape(listed)},sha256=([\\w-]+)", self._record())
        return row is not None and row[1] == _digest(content)

    def _has_source(self, module: str, file: str, is_folder: bool) -> bool:
        """Whether something in the folder of an editable install is importable through it."""
        if not lies_in(os.path.normcase(file), self._source_home):
            return False  # as of most: paths are not made of all that is asked for
        place = Path(file)
        if in_site_packages(place):
            return False
        if self.top_level:
            return root_of(module) in self.top_level
        known = self._on_path
        return known is None or found_through(module, place, is_folder) in known

    def may_have(self, folder: str) -> bool:
        """Whether the distribution can claim files in a folder."""
        if self.source_folder is not None:
            return True
        if not lies_in(folder, self._home):
            return False
        inside = folder[len(self._home) :].replace(os.sep, "/")
        if not inside or not self._roots:
            return True
        # Nearly all distributions fail here, by the outermost folder.
        return inside.partition("/")[0] in self._roots and inside in self._folders

    @property
    def has_compiled_code(self) -> bool:
        """Whether it lists a file of machine code."""
        if self._roots:
            return self._lists_compiled_code
        return any(
            _COMPILED.search(f"{file},") is not None
            for root in self.top_level
            for file in (self.folder / root).rglob("*")
        )

    @cached_property
    def _lists_compiled_code(self) -> bool:
        return _COMPILED.search(self._record()) is not None

    @cached_property
    def described(self) -> Distribution | None:
        """What its metadata says; None if that cannot be read, as after a broken install."""
        said = self._headers
        name, version = said.get("name", [""])[0], said.get("version", [""])[0]
        if not name or not version:
            return None
        lines = said.get("requires-dist") or self._requires_of_eggs()
        return Distribution(name, version, self.source_folder is not None, required_names(lines))

    @cached_property
    def _headers(self) -> Mapping[str, Sequence[str]]:
        return headers(self.text("METADATA") or self.text("PKG-INFO") or self.text(""))

    @property
    def licence(self) -> str | None:
        """The licence that its metadata states; None if it states none."""
        return licence_of(self._headers)

    def _requires_of_eggs(self) -> Sequence[str]:
        """What old tools wrote into a file of its own."""
        return (self.metadata.requires or ()) if self.text("requires.txt") else ()

    @cached_property
    def contents(self) -> DistributionContents:
        """Its files and its metadata."""
        inner = _folders_in(str(getattr(self.metadata, "_path", "")))
        self._note(inner)
        return read_contents(self.metadata)

    @cached_property
    def folder(self) -> Path:
        """What its record is relative to."""
        return Path(str(self.metadata.locate_file(""))).absolute()

    @cached_property
    def _home(self) -> str:
        """The folder as paths of files in it begin: asked of each folder of the plan."""
        return f"{self.folder}{os.sep}"

    @cached_property
    def _source_home(self) -> str:
        """The folder of an editable install as paths of files in it begin."""
        return os.path.normcase(os.path.join(self.source_folder or "", ""))  # noqa: PTH118

    @cached_property
    def _roots(self) -> frozenset[str]:
        """The outermost folders, and files, that it lists; nothing if it has no record."""
        return frozenset(_OUTERMOST.findall(self._record()))

    @cached_property
    def _on_path(self) -> frozenset[str] | None:
        """The folders that an editable install puts on the import path, if it says so."""
        names = (f"{self._home}{name}" for name in self._roots if name.endswith(".pth"))
        self._note(names)
        return folders_on_path(self.folder, self._roots)

    def _note(self, files: Iterable[str]) -> None:
        """Note how files and folders look that are about to be read; other threads may compare."""
        self._read_besides = {**self._read_besides, **{file: status_of(file) for file in files}}

    def _is_current(self) -> bool:
        """Whether what was read besides the usual metadata, which few need, looks the same now."""
        return all(status_of(name) == then for name, then in self._read_besides.items())

    @cached_property
    def _listed(self) -> frozenset[str]:
        """Its files; a set, because each module of a distribution is looked up."""
        return frozenset(_LISTED.findall(self._record()))

    @cached_property
    def _folders(self) -> frozenset[str]:
        """The folders that these are in, at any depth."""
        folders: set[str] = set()
        for folder in {name.rpartition("/")[0] for name in self._listed}:
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(folders)

    def _record(self) -> str:
        """Its RECORD (PEP 376), each line behind a line feed; empty if it has none.

        It is not kept: those of large distributions have megabytes.
        """
        listed = self.text("RECORD")
        return "\n" + listed if listed else ""

    @cached_property
    def top_level(self) -> frozenset[str]:
        """The modules that an old tool says it has installed."""
        return frozenset(self.text("top_level.txt").split())

    @cached_property
    def source_folder(self) -> Path | None:
        """The folder of an editable install (PEP 610); None for all others."""
        if not self._may_be_editable:  # nearly all: reading what is not there takes its time
            return None
        from urllib.request import url2pathname  # it brings networking along, which is not cheap

        try:
            direct_url = json.loads(self.text(ORIGIN) or "{}")
            if not direct_url.get("dir_info", {}).get("editable", False):
                return None
            return Path(url2pathname(urlsplit(direct_url["url"]).path))
        except (ValueError, KeyError, AttributeError):  # not as PEP 610 has it
            return None

    def text(self, name: str) -> str:
        """The text of a file of its metadata; empty if it cannot be read."""
        try:
            return self.metadata.read_text(name) or ""
        except (OSError, ValueError):
            return ""


class _Looks:
    """How the metadata of a distribution looked when it was met.

    Args:
        place: its folder.
    """

    def __init__(self, place: str) -> None:
        folder = status_of(place)
        files = {name: status_of(name) for name in (f"{place}/{each}" for each in _TELLING)}
        # What is missing cannot come without a trace in a folder that has not changed of late.
        telling = {f: s for f, s in files.items() if s is not None or not is_settled(folder)}
        self._statuses = {place: folder, **telling}
        self._is_there = folder is not None
        self.may_have_origin = folder is None or files[f"{place}/{ORIGIN}"] is not None

    def is_current(self) -> bool:
        """Whether it looks the same now."""
        then = self._statuses
        return self._is_there and all(map(eq, map(status_of, then), then.values()))


def _digest(content: bytes) -> str:
    """The sha256 of a file, as a RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return digest.decode("ascii").rstrip("=")


def _folders_in(folder: str) -> Iterator[str]:
    """The folders below a folder, at any depth."""
    for place, names, _ in os.walk(folder):
        yield from (f"{place}/{name}" for name in names)


def in_site_packages(file: Path) -> bool:
    """Whether a file is where tools install."""
    return any(part in ("site-packages", "dist-packages") for part in file.parts)


_known: dict[str, tuple[_Looks, Installation]] = {}
"""What this process has seen, by the folder of metadata, and how that looked then."""
