"""Pickles read off their opcodes, as the names that they take or as a tree: nothing is unpickled.

All that a pickle can reach in the interpreter that loads it, it has to name, with texts that are
in it. What those things do, and with which arguments they are called, is not looked at: a name
that is not in the closed table (:mod:`modpack.pickling.allowlist`) is code, and is called so.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from modpack.core.process import gc_paused
from modpack.pickling import rebuild
from modpack.pickling.allowlist import CALLABLE, DATA
from modpack.pickling.pickle_machine import (
    OPAQUE,
    Actions,
    MalformedError,
    PickleMachine,
    StackItem,
)
from modpack.pickling.rebuild import current_module

_MAX_NAMES: Final = 100_000
"""What a pickle may name: ten times as much as torch has to offer."""
_MAX_NODES: Final = 1_000_000
"""Values of a tree. Of a model with 100,000 tensors and their names there are half as many."""
_MAX_KEPT: Final = 1_000_000
"""Tuples of names and texts, and what else costs memory; what has more is not followed."""
_MAX_TUPLES: Final = 1_000_000
_OPAQUE_TUPLES: Final = tuple((OPAQUE,) * length for length in range(6))
_OPAQUE_IDS: Final = frozenset(map(id, _OPAQUE_TUPLES))
_LARGEST_SIZE: Final = 2**60
"""Larger numbers can be chosen to have one hash, and a dict of them takes quadratic time."""
_ORDERED: Final = "collections.OrderedDict"
_TENSORS: Final = ("torch._utils", "torch._tensor")
"""Where the functions are that make tensors, among those that make data."""
_STARTS: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
_SIZES: Final = {b"C": 1, b"B": 4, b"\x8e": 8, b"\x96": 8}
"""For each opcode of bytes, how many bytes tell their size (:mod:`pickletools`)."""
_MAX_LEVELS: Final = 5


@dataclass(frozen=True, slots=True)
class PickledName:
    """Something that a pickle looks up in a module.

    Attributes:
        module: the module path, as today's Python calls it.
        name: what is taken from it, dotted; empty for the module itself, which packages hold as a
            persistent id.
        position: behind the opcode, in bytes from the start.
    """

    module: str
    name: str
    position: int = field(compare=False, default=0)

    @property
    def is_data(self) -> bool:
        """Whether it is in the closed table."""
        return f"{self.module}.{self.name}" in DATA

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


class _Naming(Actions):
    """Notes what pickles look up that continue each other: one unpickler loads them all."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], PickledName] = {}
        self._machine = PickleMachine(self)

    @property
    def named(self) -> tuple[PickledName, ...]:
        """Everything that was looked up, each once, in order."""
        return tuple(dict.fromkeys(self._known.values()))

    def find(self, module: str, name: str) -> PickledName:
        """A name."""
        found = self._known.get((module, name))
        if found is None:
            if len(self._known) >= _MAX_NAMES:
                raise MalformedError("it names more than can be followed")
            found = self._known[module, name] = self._name(module, name)
        return found

    def _name(self, module: str, name: str) -> PickledName:
        return PickledName(module, name, self._machine.position)


class PickledStorage(NamedTuple):
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


class PickledSource(NamedTuple):
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


class PickleContents(NamedTuple):
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


class _MadeOf:
    """What a function that makes data has made.

    Args:
        name: of the function.
    """

    def __init__(self, name: PickledName) -> None:
        self.name = name


_PLAIN: Final = frozenset({int, float, bool, type(None), _MadeOf})


class PickleReader(_Naming):
    """Reads pickles that continue each other: one unpickler loads them, with one memo.

    Everything that is made is opaque, which saves memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._start_again()

    def _start_again(self) -> None:
        """Forget what was noted, as for the next record of the same unpickler."""
        self._known.clear()
        self._kept = self._tuples = 0
        self._misused: set[PickledName] = set()
        self._made: dict[PickledName, _MadeOf] = {}
        self._sources: list[PickledSource] = []
        self._storages: dict[tuple[str, str, int | None], PickledStorage] = {}

    def read(self, data: bytes, *, several: bool = False) -> PickleContents:
        """Read what is in a record.

        Args:
            data: the record.
            several: whether pickles may follow each other in it, up to its end.
        """
        self._start_again()
        unreadable, position = None, 0
        try:
            _, end = self._machine.run(data)
            while several and end < len(data):
                _, end = self._machine.run(data, end)
            if end < len(data):
                unreadable, position = f"{len(data) - end} bytes follow where it ends", end
        except MalformedError as failure:
            unreadable, position = str(failure), failure.position
        return PickleContents(
            self.named,
            tuple(self._sources),
            tuple(self._storages.values()),
            frozenset(self._misused),
            unreadable,
            position,
        )

    def make_tuple(self, items: Sequence[StackItem]) -> StackItem:
        """A tuple; those with nothing of interest in them are all one, which saves memory."""
        self._tuples += 1
        if self._tuples > _MAX_TUPLES:
            raise MalformedError("it makes more tuples than can be followed")
        for each in items:
            if type(each) not in _PLAIN and each is not OPAQUE and id(each) not in _OPAQUE_IDS:
                self._kept += 1 + len(items) // 8
                if self._kept > _MAX_KEPT:
                    raise MalformedError("it makes more values than can be followed")
                return tuple(items)
        return _OPAQUE_TUPLES[min(len(items), len(_OPAQUE_TUPLES) - 1)]

    def make_list(self, items: Sequence[StackItem] = ()) -> StackItem:
        """A list, or another container."""
        return OPAQUE

    make_dict = make_set = make_frozenset = make_list

    def extend(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Add to what is opaque."""

    store = add = extend

    def persistent(self, pid: StackItem) -> StackItem:
        """A storage, a module, or an object that the package rebuilds."""
        kind, *parts = pid if isinstance(pid, tuple) and pid else (None,)
        if kind == "storage":
            self._note_storage(parts)
        elif kind == "module" and len(parts) == 1 and isinstance(parts[0], str):
            self._known.setdefault((parts[0], ""), self._name(parts[0], ""))
        elif kind == "reduce_package" and len(parts) >= 2:
            return self.call(parts[-2], parts[-1])
        else:
            raise MalformedError("a persistent id is of no kind that packages have")
        return OPAQUE

    def _note_storage(self, parts: Sequence[StackItem]) -> None:
        kind, key, size = (parts[0], parts[1], parts[3]) if len(parts) >= 4 else (None, None, None)
        if not isinstance(key, (str, int)):
            raise MalformedError("a storage has no key")
        name = str(kind) if isinstance(kind, PickledName) else ""
        items = size if type(size) is int else None
        if items is not None and not 0 <= items < _LARGEST_SIZE:
            raise MalformedError("a storage has a size that nothing has")
        found = PickledStorage(str(key), name, items, self._machine.position)
        self._storages.setdefault((found.key, name, items), found)

    def call(self, function: StackItem, arguments: StackItem) -> StackItem:
        """A call: of what makes data, its result is known by that name."""
        if type(function) is not PickledName:
            return OPAQUE
        if function.name == "make_function" and isinstance(arguments, tuple):
            if current_module(function.module, function.name) == rebuild.MODULE:
                self._note_source(arguments)
        if not function.is_data:
            return OPAQUE
        if str(function) not in CALLABLE:
            self._misused.add(function)
        return self._made.setdefault(function, _MadeOf(function))

    def _note_source(self, arguments: tuple[StackItem, ...]) -> None:
        fields, identity = (*arguments, None, None)[:2]
        if not (isinstance(fields, tuple) and isinstance(identity, tuple)):
            raise MalformedError("a function by source is not as modpack writes it")
        (text, line), name = (fields[0], fields[-1]) if fields else (None, None), identity[1:2]
        if not (isinstance(text, str) and name and isinstance(name[0], str)):
            raise MalformedError("a function by source is not as modpack writes it")
        first = line if isinstance(line, int) else 1
        self._sources.append(PickledSource(name[0], text, first, self._machine.position))

    def make(self, kind: StackItem, arguments: StackItem, named: StackItem) -> StackItem:
        """An instance, of which no class of data has any that is made so."""
        if type(kind) is PickledName and kind.is_data:
            self._misused.add(kind)
        return OPAQUE

    def build(self, made: StackItem, state: StackItem) -> None:
        """A state, which only tensors and an OrderedDict may get."""
        if type(made) is _MadeOf:
            if made.name.module in _TENSORS:
                takes_state = type(state) is tuple and len(state) == 3
            else:
                takes_state = state is OPAQUE and str(made.name) == _ORDERED
            if not takes_state:
                self._misused.add(made.name)
        elif made is not OPAQUE:
            raise MalformedError("it sets the state of what it has not made")


@dataclass(eq=False, slots=True)
class Pairs:
    """A dictionary, or what is set in an object as in one."""

    items: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The value under a text; None if there is none. The last one counts."""
        return next((v for k, v in reversed(self.items) if type(k) is str and k == key), None)


@dataclass(eq=False, slots=True)
class CallResult:
    """The result of a call, with what is put into it afterwards.

    Attributes:
        function: what is called.
        arguments: the arguments.
        is_instance: whether the function is a class, of which an instance is made as it is.
        pairs: items that are set in it; arguments by name before them.
        states: what ``BUILD`` gives it.
        added: elements that are appended or added to it.
        calls: functions that are called with it and something else, for what they do to it.
    """

    function: Any
    arguments: Any
    is_instance: bool = False
    pairs: Pairs | None = None
    states: Sequence[Any] = ()
    added: Sequence[Any] = ()
    calls: Sequence[tuple[Any, Any]] = ()

    def get(self, key: str) -> Any:
        """What its last state has under a text; None if there is none."""
        state = self.states[-1] if self.states else None
        return state.get(key) if isinstance(state, Pairs) else None


@dataclass(eq=False, slots=True)
class Persistent:
    """An object that the loader has to know by an id."""

    identity: Any


class PickleTree(_Naming):
    """Reads pickles that continue each other as trees of inert values.

    A call becomes a :class:`CallResult`, a persistent id a :class:`Persistent`, a dictionary
    :class:`Pairs`; sets are lists. Texts, numbers, tuples and lists are what they are.

    >>> import pickle, fractions
    >>> (made,) = PickleTree().read_all(pickle.dumps(fractions.Fraction(1, 3)))
    >>> str(made.function), made.arguments
    ('fractions.Fraction', (1, 3))
    """

    def __init__(self) -> None:
        super().__init__()
        self._nodes = 0

    def read_one(self, data: bytes, start: int = 0) -> tuple[Any, int]:
        """Read one pickle; returns what it makes, and where it ends.

        Raises:
            MalformedError: it cannot be read to its end.
        """
        with gc_paused():  # all that is made is kept
            return self._machine.run(data, start)

    def read_all(self, data: bytes) -> list[Any]:
        """Read all pickles in some bytes, one after the other.

        Raises:
            MalformedError: they cannot be read to the end.
        """
        end, found = 0, []
        while end < len(data):
            made, end = self.read_one(data, end)
            found.append(made)
        return found

    def _count(self, nodes: int = 1) -> None:
        self._nodes += nodes
        if self._nodes > _MAX_NODES:
            raise MalformedError("it makes more values than can be followed")

    def _name(self, module: str, name: str) -> PickledName:
        return super()._name(current_module(module, name), name)

    def persistent(self, pid: Any) -> Any:
        """An object that the loader knows by an id."""
        self._count()
        return Persistent(pid)

    def call(self, function: Any, arguments: Any) -> CallResult:
        """A call."""
        self._count()
        return CallResult(function, arguments)

    def make(self, kind: Any, arguments: Any, named: Any) -> CallResult:
        """An instance, made without a call of ``__init__``."""
        self._count()
        return CallResult(kind, arguments, True, named if isinstance(named, Pairs) else None)

    def drop(self, value: Any) -> None:
        """Note a call whose result is not used: it has set the state of its first argument."""
        arguments = value.arguments if isinstance(value, CallResult) else None
        if (
            type(arguments) is tuple
            and len(arguments) == 2
            and isinstance(arguments[0], CallResult)
        ):
            of = arguments[0]
            of.calls = _longer(of.calls, ((value.function, arguments[1]),))

    def build(self, made: Any, state: Any) -> None:
        """A state, beside those that it had before."""
        if not isinstance(made, CallResult):
            raise MalformedError("it sets the state of what it has not made")
        made.states = _longer(made.states, (state,))

    def make_dict(self) -> Pairs:
        """A dictionary."""
        self._count()
        return Pairs()

    def make_tuple(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """A tuple."""
        self._count()
        return tuple(items)

    def make_list(self, items: Sequence[Any]) -> list[Any]:
        """A list."""
        self._count()
        return list(items)

    def make_frozenset(self, items: Sequence[Any] = ()) -> list[Any]:
        """A set, or a frozenset."""
        return list(items)

    make_set = make_frozenset

    def extend(self, target: Any, items: Sequence[Any]) -> None:
        """Items of a list, or of what is like one."""
        if type(target) is not list and not isinstance(target, CallResult):
            raise MalformedError("it appends to what is no list")
        if isinstance(target, CallResult):
            target.added = _longer(target.added, items)
        else:
            target.extend(items)

    add = extend

    def store(self, target: Any, items: Sequence[Any]) -> None:
        """Items of a dictionary, or of what is like one."""
        if isinstance(target, CallResult):
            target.pairs = target.pairs or Pairs()
        pairs = target.pairs if isinstance(target, CallResult) else target
        if not isinstance(pairs, Pairs):
            raise MalformedError("it sets items of what is no dict")
        self._count(len(items) // 4)
        pairs.items.extend(zip(items[::2], items[1::2], strict=True))


def _longer(items: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """A list with more in it: the same one, if there is one. Most objects need none."""
    made = items if isinstance(items, list) else []
    made.extend(more)
    return made


def read_nested_names(data: bytes, level: int = 0) -> dict[PickledName, None]:
    """Return what the pickles among the bytes of a pickle name, in order.

    ``pickle.dumps`` and ``torch.save`` in a ``__getstate__`` write names that modpack does not see
    being pickled, and that :func:`pickle.loads` will look up among the process's own modules.

    Args:
        data: The pickle.
        level: How many pickles are around it.

    >>> import fractions, pickle
    >>> inner = pickle.dumps(fractions.Fraction(1, 3))
    >>> [str(name) for name in read_nested_names(pickle.dumps({"state": inner}))]
    ['fractions.Fraction']
    """
    found: dict[PickledName, None] = {}
    if level < _MAX_LEVELS:
        for content in _byte_texts(data):
            for inner in _pickles_in(content):
                found.update(dict.fromkeys(_names(inner)))
                found.update(read_nested_names(inner, level + 1))
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


def _names(data: bytes) -> tuple[PickledName, ...]:
    """The names of a pickle and of those that follow it, as in the old files of torch.save."""
    tree, end = PickleTree(), 0
    try:
        while end < len(data):
            _, end = tree.read_one(data, end)
    except MalformedError:
        pass  # not a pickle at all, or tensors follow it
    return tree.named if end else ()
