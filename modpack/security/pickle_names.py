"""Which names a pickle takes from where, read off its opcodes: nothing is unpickled.

All that a pickle can reach in the interpreter that loads it, it has to name, with texts that are
in it. What those things do, and with which arguments they are called, is not looked at: a name
that is not in the closed table (:mod:`modpack.pickling.allowlist`) is code, and is called so.

What pickles name that are stored as bytes in a pickle, as a ``__getstate__`` makes them.

``pickle.dumps`` and ``torch.save`` in a ``__getstate__`` write names that modpack does not see
being pickled, and that :func:`pickle.loads` will look up among the process's own modules.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from modpack.pickling import rebuild
from modpack.pickling.allowlist import MADE
from modpack.pickling.pickle_machine import (
    OPAQUE,
    Actions,
    MalformedError,
    PickleMachine,
    StackItem,
)
from modpack.pickling.rebuild import current_module
from modpack.security.pickle_tree import MOST_NAMES, PickledName, PickleTree

_MOST_KEPT: Final = 1_000_000
"""Tuples of names and texts, and what else costs memory; what has more is not followed."""
_MOST_TUPLES: Final = 1_000_000
_OPAQUE_TUPLES: Final = tuple((OPAQUE,) * length for length in range(6))
_OPAQUE_IDS: Final = frozenset(map(id, _OPAQUE_TUPLES))
_MAKES_FUNCTIONS: Final = "make_function"


_LARGEST_SIZE: Final = 2**60
"""Larger numbers can be chosen to have one hash, and a dict of them takes quadratic time."""
_ORDERED: Final = "collections.OrderedDict"
_TENSORS: Final = ("torch._utils", "torch._tensor")
"""Where the functions are that make tensors, among those that make data."""


class _MadeOf:
    """What a function that makes data has made.

    Args:
        name: of the function.
    """

    def __init__(self, name: PickledName) -> None:
        self.name = name


_PLAIN: Final = frozenset({int, float, bool, type(None), _MadeOf})


@dataclass(frozen=True)
class PickledStorage:
    """A storage that a pickle refers to by a persistent id.

    Attributes:
        key: the storage's key.
        kind: the storage class, by its full name; empty if it is none.
        size: how many elements are asked of it; None if that is no plain number.
        position: behind the opcode, in bytes from the start.
    """

    key: str
    kind: str
    size: int | None
    position: int


@dataclass(frozen=True)
class PickledSource:
    """A function that travels in a pickle by its source.

    Attributes:
        name: its qualified name.
        text: its source.
        line: the line of the source's first line in the file that it comes from.
        position: behind the opcode that makes it, in bytes from the start.
    """

    name: str
    text: str
    line: int
    position: int


@dataclass(frozen=True)
class PickleContents:
    """What the opcodes tell.

    Attributes:
        names: everything that is looked up, each once, in order.
        sources: the functions that travel by their source.
        storages: the storages that it refers to, each once for each class and size.
        misused: names of data that it uses as no data does: it calls what may only be held, or
            sets a state that no unpickler of data would.
        unreadable: why this may not be all; None if it is.
        position: where that shows, in bytes from the start.
    """

    names: tuple[PickledName, ...] = ()
    sources: tuple[PickledSource, ...] = ()
    storages: tuple[PickledStorage, ...] = ()
    misused: frozenset[PickledName] = frozenset()
    unreadable: str | None = None
    position: int = 0

    @property
    def code_names(self) -> tuple[PickledName, ...]:
        """The names that are not data, or not used as data."""
        return tuple(n for n in self.names if not n.is_data or n in self.misused)


def read_pickle(data: bytes) -> PickleContents:
    """Read what one pickle names.

    >>> import pickle, fractions
    >>> contents = read_pickle(pickle.dumps([fractions.Fraction(1, 2)]))
    >>> [str(name) for name in contents.names]
    ['fractions.Fraction']
    >>> read_pickle(b"no pickle").unreadable
    "b'n' is no opcode"
    """
    return PickleReader().read(data)


class PickleReader:
    """Reads pickles that continue each other: one unpickler loads them, with one memo."""

    def __init__(self) -> None:
        self._notes = _Notes()

    def read(self, data: bytes, *, several: bool = False) -> PickleContents:
        """Read what is in a record.

        Args:
            data: the record.
            several: whether pickles may follow each other in it, up to its end.
        """
        notes = self._notes
        notes.start_again()
        unreadable, position = None, 0
        try:
            _, end = notes.machine.run(data)
            while several and end < len(data):
                _, end = notes.machine.run(data, end)
            if end < len(data):
                unreadable, position = f"{len(data) - end} bytes follow where it ends", end
        except MalformedError as failure:
            unreadable, position = str(failure), failure.position
        return PickleContents(
            tuple(notes.names),
            tuple(notes.sources),
            tuple(notes.storages.values()),
            frozenset(notes.misused),
            unreadable,
            position,
        )


class _Notes(Actions):
    """Writes down what is named; everything that is made is opaque, which saves memory."""

    def __init__(self) -> None:
        self.machine = PickleMachine(self)
        self.start_again()

    def start_again(self) -> None:
        """Forget what was written down, as for the next record of the same unpickler."""
        self.names: dict[PickledName, None] = {}
        self._known: dict[tuple[str, str], PickledName] = {}
        self._kept = self._tuples = 0
        self.misused: set[PickledName] = set()
        self._made: dict[PickledName, _MadeOf] = {}
        self.sources: list[PickledSource] = []
        self.storages: dict[tuple[str, str, int | None], PickledStorage] = {}

    def find(self, module: str, name: str) -> StackItem:
        found = self._known.get((module, name))
        if found is None:
            found = PickledName(module, name, self.machine.position)
            self._known[module, name] = found
            self.names[found] = None
            if len(self._known) > MOST_NAMES:
                raise MalformedError("it names more than can be followed")
        return found

    def grouped(self, items: Sequence[StackItem]) -> StackItem:
        """A tuple; those with nothing of interest in them are all one, which saves memory."""
        self._tuples += 1
        if self._tuples > _MOST_TUPLES:
            raise MalformedError("it makes more tuples than can be followed")
        for each in items:
            if type(each) not in _PLAIN and each is not OPAQUE and id(each) not in _OPAQUE_IDS:
                self._kept += 1 + len(items) // 8
                if self._kept > _MOST_KEPT:
                    raise MalformedError("it makes more values than can be followed")
                return tuple(items)
        return _OPAQUE_TUPLES[min(len(items), len(_OPAQUE_TUPLES) - 1)]

    def listed(self, items: Sequence[StackItem]) -> StackItem:
        return OPAQUE

    def persistent(self, pid: StackItem) -> StackItem:
        kind, *parts = pid if isinstance(pid, tuple) and pid else (None,)
        if kind == "storage":
            self._storage(parts)
        elif kind == "module" and len(parts) == 1 and isinstance(parts[0], str):
            self.names.setdefault(PickledName(parts[0], "", self.machine.position))
        elif kind == "reduce_package" and len(parts) >= 2:
            return self.call(parts[-2], parts[-1])
        else:
            raise MalformedError("a persistent id is of no kind that packages have")
        return OPAQUE

    def _storage(self, parts: Sequence[StackItem]) -> None:
        kind, key, size = (parts[0], parts[1], parts[3]) if len(parts) >= 4 else (None, None, None)
        if not isinstance(key, (str, int)):
            raise MalformedError("a storage has no key")
        name = str(kind) if isinstance(kind, PickledName) else ""
        items = size if type(size) is int else None
        if items is not None and not 0 <= items < _LARGEST_SIZE:
            raise MalformedError("a storage has a size that nothing has")
        found = PickledStorage(str(key), name, items, self.machine.position)
        self.storages.setdefault((found.key, name, items), found)

    def call(self, function: StackItem, arguments: StackItem) -> StackItem:
        if type(function) is PickledName and _makes_functions(function):
            if isinstance(arguments, tuple):
                self._function(arguments)
        if type(function) is PickledName and function.is_data:
            return self._called(function)
        return OPAQUE

    def _called(self, name: PickledName) -> StackItem:
        if str(name) not in MADE:
            self.misused.add(name)
        return self._made.setdefault(name, _MadeOf(name))

    def _function(self, arguments: tuple[StackItem, ...]) -> None:
        fields, identity = (*arguments, None, None)[:2]
        if not (isinstance(fields, tuple) and isinstance(identity, tuple)):
            raise MalformedError("a function by source is not as modpack writes it")
        (text, line), name = (fields[0], fields[-1]) if fields else (None, None), identity[1:2]
        if not (isinstance(text, str) and name and isinstance(name[0], str)):
            raise MalformedError("a function by source is not as modpack writes it")
        first = line if isinstance(line, int) else 1
        self.sources.append(PickledSource(name[0], text, first, self.machine.position))

    def make(self, kind: StackItem, arguments: StackItem, named: StackItem) -> StackItem:
        if type(kind) is PickledName and kind.is_data:
            self.misused.add(kind)
        return OPAQUE

    def build(self, made: StackItem, state: StackItem) -> None:
        if type(made) is _MadeOf:
            is_of_tensor = type(state) is tuple and len(state) == 3
            takes_state = is_of_tensor if made.name.module in _TENSORS else state is OPAQUE
            if not (takes_state and (made.name.module in _TENSORS or str(made.name) == _ORDERED)):
                self.misused.add(made.name)
        elif made is not OPAQUE:
            raise MalformedError("it sets the state of what it has not made")

    def dictionary(self) -> StackItem:
        return OPAQUE

    def emptied(self) -> StackItem:
        return OPAQUE

    def collected(self, items: Sequence[StackItem]) -> StackItem:
        return OPAQUE

    def extend(self, target: StackItem, items: Sequence[StackItem]) -> None:
        pass

    def store(self, target: StackItem, items: Sequence[StackItem]) -> None:
        pass

    def add(self, target: StackItem, items: Sequence[StackItem]) -> None:
        pass


def _makes_functions(name: PickledName) -> bool:
    is_of_modpack = current_module(name.module, name.name) == rebuild.MODULE
    return is_of_modpack and name.name == _MAKES_FUNCTIONS


_STARTS: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
_SIZES: Final = {b"C": 1, b"B": 4, b"\x8e": 8, b"\x96": 8}
"""For each opcode of bytes, how many bytes tell their size (:mod:`pickletools`)."""
_MOST_LEVELS: Final = 5


def nested_names(data: bytes, level: int = 0) -> dict[PickledName, None]:
    """Return what the pickles among the bytes of a pickle name, in order.

    Args:
        data: The pickle.
        level: How many pickles are around it.

    >>> import fractions, pickle
    >>> inner = pickle.dumps(fractions.Fraction(1, 3))
    >>> [str(name) for name in nested_names(pickle.dumps({"state": inner}))]
    ['fractions.Fraction']
    """
    found: dict[PickledName, None] = {}
    if level < _MOST_LEVELS:
        for content in _byte_texts(data):
            for inner in _pickles_in(content):
                found.update(_names(inner))
                found.update(nested_names(inner, level + 1))
    return found


def _byte_texts(data: bytes) -> Iterator[bytes]:
    """The bytes that begin as a pickle or a zip archive does, with an opcode and a size before."""
    for begin in _STARTS:
        at = data.find(begin)
        while at >= 0:
            for opcode, width in _SIZES.items():
                end = at + int.from_bytes(data[max(0, at - width) : at], "little")
                if data.startswith(opcode, max(0, at - width - 1)) and at < end <= len(data):
                    yield data[at:end]
            at = data.find(begin, at + 1)


def _pickles_in(content: bytes) -> Iterator[bytes]:
    if not content.startswith(b"PK"):
        yield content
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                if name.endswith("/data.pkl"):
                    yield archive.read(name)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError):
        return  # no archive that torch reads either


def _names(data: bytes) -> dict[PickledName, None]:
    """The names of a pickle and of those that follow it, as in the old files of torch.save."""
    tree, end = PickleTree(), 0
    try:
        while end < len(data):
            _, end = tree.read_one(data, end)
    except MalformedError:
        pass  # not a pickle at all, or tensors follow it
    return tree.named if end else {}
