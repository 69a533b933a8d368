"""Compiled code of a package's modules, kept beside its tree from one process to the next.

Python keeps a file for each module. Here, what one import has compiled goes into one file, for it
takes longer to make two thousand files than to write all that is in them. What is taken from there
needs no look at the source, whose tree was compared when the package was opened.

Code is kept only if its source was what the package has. Each piece has a digest, so that one that
was cut off or changed is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import logging
import marshal
import mmap
import os
import secrets
import struct
import sys
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from types import CodeType

from modpack.core.cachefolder import make_private, refuse_others
from modpack.hermetic.compileahead import CompileAhead
from modpack.hermetic.compilehelper import Task
from modpack.hermetic.index import EntryKind, ModuleIndex
from modpack.hermetic.treerecord import CODE, FILES, read_record

__all__ = ["CodeStore", "code_store"]

_log = logging.getLogger(__name__)
_FORM = 1
"""Counts up whenever files of this kind, or the code in them, are made in another way."""
_SUFFIX = ".code"
_SMALL = 64 << 10
"""Bytes of a file up to which reading it is faster than mapping it."""
_HEADER = struct.Struct("<Q32s")
"""Size and sha256 of the list of what is in a file. The list follows, then the pieces of code."""

_Key = tuple[str, str]
"""A module's path, and its record: a package may change where its modules are looked for."""
_Place = tuple[memoryview, int, int, bytes]
"""Where a piece is: the content of a file, the first byte and how many; and its sha256."""


def code_store(tree: Path, kind: str) -> CodeStore | None:
    """Where the code of a package's modules is kept; None if it is not.

    Args:
        tree: the folder with its files.
        kind: the kind of namespace that the code is compiled for.
    """
    is_of_this_process = tree.name != FILES
    if is_of_this_process or sys.implementation.cache_tag is None:
        return None
    return CodeStore(tree, kind)


class CodeStore:
    """The code of one tree, for one Python and one kind of namespace.

    Args:
        tree: the folder with the package's files.
        kind: the kind of namespace that the code is compiled for.
    """

    def __init__(self, tree: Path, kind: str) -> None:
        python = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"
        variant = f"{python}-{kind}{_FORM}-{sys.flags.optimize}"
        self._tree = tree
        self._folder = tree.parent / CODE / variant
        self._owner = f"{variant} {tree}"  # code knows the path of its source
        self._kept: Mapping[_Key, _Place] | None = None
        self._new: dict[_Key, bytes] = {}
        self._sources: Mapping[str, tuple[int, str]] | None = None
        self._ahead: CompileAhead | None = None
        self._index = ModuleIndex({})

    def compile_ahead(self, prefix: str, index: ModuleIndex) -> None:
        """From now on, let a helper compile modules that are not kept, where that is faster.

        Args:
            prefix: what goes before the package's module paths, or ``""`` for real names.
            index: the package's modules.
        """
        self._index = index
        self._ahead = CompileAhead(self._tree, prefix, index)

    def get(self, module: str, file: str) -> CodeType | None:
        """The code of a module; None if it is not kept, and was not compiled ahead either.

        Args:
            module: its path.
            file: its source.
        """
        if self._kept is None:
            self._kept = self._places()
        key = module, self._record(file)
        place = self._kept.get(key)
        if place is not None:
            content, start, length, digest = place
            kept = content[start : start + length]
            if _sha256(kept) == digest:
                return _code(kept)
        piece = self._ahead.take(key, self._waiting) if self._ahead is not None else None
        if piece is None:
            return None
        self._new[key] = piece
        return _code(piece)

    def put(self, module: str, file: str, source: bytes, code: CodeType) -> None:
        """Keep code, from the next :meth:`write` on; unless it is not of the package's source.

        Args:
            module: the module's path.
            file: its source.
            source: what was compiled.
            code: what has become of it.
        """
        record = self._record(file)
        if self._known_sources().get(record) == (len(source), hashlib.sha256(source).hexdigest()):
            with contextlib.suppress(ValueError):  # nested too deeply
                self._new[module, record] = marshal.dumps(code)

    def write(self) -> None:
        """An import has ended: write what is new, if the cache can be written to."""
        if self._ahead is not None:
            self._ahead.end()
        if self._new:
            new, self._new = self._new, {}
            try:
                self._write(new)
            except OSError as failure:
                _log.debug("compiled code is not kept in %s: %s", self._folder, failure)

    def _known_sources(self) -> Mapping[str, tuple[int, str]]:
        if self._sources is None:
            known = read_record(self._tree.parent)
            self._sources = known.files if known is not None else {}
        return self._sources

    def _waiting(self) -> list[Task]:
        """The modules whose code is not kept."""
        sources, kept, waiting = self._known_sources(), self._kept or {}, list[Task]()
        for module, entry in self._index.entries.items():
            key = module, entry.record
            is_kept = key in kept or key in self._new
            if entry.kind is EntryKind.SOURCE and not is_kept and entry.record in sources:
                waiting.append((*key, entry.is_package, *sources[entry.record]))
        return waiting

    def _record(self, file: str) -> str:
        return file[len(str(self._tree)) + 1 :].replace(os.sep, "/")

    def _places(self) -> dict[_Key, _Place]:
        """Where all pieces are."""
        places = dict[_Key, _Place]()
        with contextlib.suppress(OSError):
            for folder in (self._folder.parent, self._folder):
                refuse_others(folder)
            for name in os.listdir(self._folder):  # noqa: PTH208 - a folder may have many
                if name.endswith(_SUFFIX):
                    places.update(_read(f"{self._folder}{os.sep}{name}", self._owner))
        return places

    def _write(self, new: Mapping[_Key, bytes]) -> None:
        make_private(self._folder)
        # Of processes that have imported the same, each writes the same file.
        name = hashlib.blake2b(repr(sorted(new)).encode(), digest_size=16).hexdigest()
        making = self._folder / f"{secrets.token_hex(8)}.tmp"
        try:
            making.write_bytes(_written(new, self._owner))
            making.replace(self._folder / f"{name}{_SUFFIX}")
        finally:
            making.unlink(missing_ok=True)


def _written(pieces: Mapping[_Key, bytes], owner: str) -> bytes:
    listed = [(key, len(piece), _sha256(piece)) for key, piece in pieces.items()]
    contents = marshal.dumps((owner, listed))
    header = _HEADER.pack(len(contents), _sha256(contents))
    return b"".join([header, contents, *pieces.values()])


def _read(file: str, owner: str) -> Mapping[_Key, _Place]:
    """The pieces in a file; none if it is damaged, or of another tree."""
    try:
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - a folder may have many
            content = _content(opened)
        size, digest = _HEADER.unpack_from(content)
        position = _HEADER.size + size
        contents = content[_HEADER.size : position]
        its_owner, listed = marshal.loads(contents) if _sha256(contents) == digest else ("", ())
    except (OSError, ValueError, struct.error) as failure:  # gone, or empty
        _log.debug("%s holds no code: %s", file, failure)
        return {}
    if its_owner != owner or not listed:
        return {}
    keys, lengths, digests = zip(*listed, strict=True)  # in columns: there may be thousands
    starts = itertools.accumulate(lengths, initial=position)
    places = zip(itertools.repeat(content), starts, lengths, digests, strict=False)
    return dict(zip(keys, places, strict=True))


def _content(opened: FileIO) -> memoryview:
    """A file's content: mapped if it is large, since of many modules few may be wanted."""
    if os.fstat(opened.fileno()).st_size <= _SMALL:
        return memoryview(opened.read())
    return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def _code(piece: bytes | memoryview) -> CodeType | None:
    try:
        found = marshal.loads(piece)
    except (EOFError, TypeError, ValueError):  # whole, but of another make
        return None
    return found if isinstance(found, CodeType) else None


def _sha256(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()
