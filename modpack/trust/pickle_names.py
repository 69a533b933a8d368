"""Static reading of pickles from their opcodes, as a list of globals or as a tree of values.

A pickle must name everything that it uses in the loading interpreter. Any global outside the
allowlist (:mod:`modpack.pickling.allowlist`) counts as code. What such globals do, and with which
arguments they are called, is not analyzed. Nothing is unpickled.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from modpack.core.codec import json_keys
from modpack.core.process import gc_paused
from modpack.pickling.allowlist import CALLABLE, DATA, is_dangerous
from modpack.pickling.pickle_machine import (
    OPAQUE,
    Actions,
    MalformedError,
    PickleMachine,
    StackItem,
)
from modpack.pickling.rebuild import MODULE

_MAKE_FUNCTION: Final = f"{MODULE}.make_function"
_MAX_NAMES: Final = 100_000
"""Limit on globals in a pickle: ten times the number of names in torch."""
_MAX_NODES: Final = 1_000_000
"""Limit on values in a tree. A model with 100,000 named tensors has half as many."""
_MAX_KEPT: Final = 1_000_000
"""Limit on tuples with names or texts, which need memory."""
_MAX_TUPLES: Final = 1_000_000
_OPAQUE_TUPLES: Final = tuple((OPAQUE,) * length for length in range(6))
_OPAQUE_IDS: Final = frozenset(map(id, _OPAQUE_TUPLES))
_MAX_SIZE: Final = 2**60
"""Larger integers can be chosen to collide in a dict, which then takes quadratic time."""
_ORDERED_DICT: Final = "collections.OrderedDict"
_TENSORS: Final = ("torch._utils", "torch._tensor")
"""Modules with the allowed functions that create tensors."""
_STARTS: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
_SIZES: Final = {b"C": 1, b"B": 4, b"\x8e": 8, b"\x96": 8}
"""The length of the size field, by opcode for bytes (:mod:`pickletools`)."""
_MAX_LEVELS: Final = 5


@json_keys(
    {"full_name": "name", "is_dangerous": "dangerous"},
    omitted=("module", "name", "position"),
    derived=("full_name", "is_dangerous"),
)
@dataclass(frozen=True, slots=True)
class PickledName:
    """A global that a pickle looks up.

    Attributes:
        module: Module path, in the spelling of current Python.
        name: Dotted name in the module. Empty for the module itself, which packages store as a
            persistent id.
        position: Offset after the opcode.
    """

    module: str
    name: str
    position: int = field(compare=False, default=0)

    @property
    def is_data(self) -> bool:
        """Whether the name is in the allowlist."""
        return f"{self.module}.{self.name}" in DATA

    @property
    def is_dangerous(self) -> bool:
        """Whether the name gives access to the interpreter, the system, or the network."""
        return is_dangerous(self.module, self.name)

    @property
    def full_name(self) -> str:
        """The module path and the name in it."""
        return f"{self.module}.{self.name}" if self.name else self.module

    def __str__(self) -> str:
        return self.full_name


class _GlobalCollector(Actions):
    """Collects the globals in consecutive pickles, which one unpickler loads."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], PickledName] = {}
        self._machine = PickleMachine(self)

    @property
    def named(self) -> tuple[PickledName, ...]:
        """The distinct globals, in order."""
        return tuple(dict.fromkeys(self._known.values()))

    def find(self, module: str, name: str) -> PickledName:
        """Return a global."""
        found = self._known.get((module, name))
        if found is None:
            # A small pickle can name many globals, so memory is limited here.
            if len(self._known) >= _MAX_NAMES:
                raise MalformedError(f"the pickle names more than {_MAX_NAMES} globals")
            found = self._known[module, name] = self._name(module, name)
        return found

    def _name(self, module: str, name: str) -> PickledName:
        return PickledName(module, name, self._machine.position)


class PickledStorage(NamedTuple):
    """A storage that a pickle refers to by a persistent id.

    Attributes:
        key: Key of the storage.
        kind: Full name of the storage class, or empty if it is not a global.
        size: Requested number of elements, or None if it is not a plain integer.
        position: Offset after the opcode.
    """

    key: str
    kind: str
    size: int | None
    position: int


@json_keys(
    {"sources": "functions", "code_names": "names"},
    omitted=("names", "storages", "misused", "position"),
    derived=("code_names",),
)
class PickleContents(NamedTuple):
    """The contents of a pickle, as far as its opcodes show.

    Attributes:
        names: Distinct globals, in order.
        sources: Qualified names of functions that are stored by source.
        storages: Storages, one entry for each class and size.
        misused: Allowed names that are used in a way that is not allowed: called although they
            may only be referenced, or given a state.
        unreadable: Why the contents may be incomplete, or None if they are complete.
        position: Offset of the problem in ``unreadable``.
    """

    names: tuple[PickledName, ...] = ()
    sources: tuple[str, ...] = ()
    storages: tuple[PickledStorage, ...] = ()
    misused: frozenset[PickledName] = frozenset()
    unreadable: str | None = None
    position: int = 0

    @property
    def code_names(self) -> tuple[PickledName, ...]:
        """The names that are not data, or are not used as data."""
        return tuple(n for n in self.names if not n.is_data or n in self.misused)


def read_pickle(data: bytes) -> PickleContents:
    """Return the contents of one pickle.

    >>> import pickle, fractions
    >>> contents = read_pickle(pickle.dumps([fractions.Fraction(1, 2)]))
    >>> [str(name) for name in contents.names]
    ['fractions.Fraction']
    >>> read_pickle(b"no pickle").unreadable
    "b'n' is not an opcode"
    """
    return PickleReader().read(data)


class _DataResult:
    """The result of an allowed function.

    Args:
        name: The function.
    """

    def __init__(self, name: PickledName) -> None:
        self.name = name


_PLAIN: Final = frozenset({int, float, bool, type(None), _DataResult})


class PickleReader(_GlobalCollector):
    """Reads consecutive pickles with one memo, as one unpickler does.

    To save memory, created objects are opaque.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reset()

    def _reset(self) -> None:
        """Clear the results, but not the memo."""
        self._known.clear()
        self._kept = self._tuples = 0
        self._misused: set[PickledName] = set()
        self._made: dict[PickledName, _DataResult] = {}
        self._sources: list[str] = []
        self._storages: dict[tuple[str, str, int | None], PickledStorage] = {}

    def read(self, data: bytes, *, several: bool = False) -> PickleContents:
        """Return the contents of a record.

        Args:
            data: The record.
            several: Whether the record may contain consecutive pickles.
        """
        self._reset()
        unreadable, position = None, 0
        try:
            _, end = self._machine.run(data)
            # Pickles of hooks share one memo, so the machine is not reset between them.
            while several and end < len(data):
                _, end = self._machine.run(data, end)
            if end < len(data):
                unreadable, position = f"{len(data) - end} bytes follow the end of the pickle", end
        # The names before the damage are kept: a pickle runs up to the byte that ends it.
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
        """Return a tuple, or a shared one if it contains only opaque values, to save memory."""
        self._tuples += 1
        if self._tuples > _MAX_TUPLES:
            raise MalformedError(f"the pickle creates more than {_MAX_TUPLES} tuples")
        for each in items:
            if type(each) not in _PLAIN and each is not OPAQUE and id(each) not in _OPAQUE_IDS:
                self._kept += 1 + len(items) // 8
                if self._kept > _MAX_KEPT:
                    raise MalformedError(f"the pickle creates more than {_MAX_KEPT} values")
                return tuple(items)
        return _OPAQUE_TUPLES[min(len(items), len(_OPAQUE_TUPLES) - 1)]

    def make_list(self, items: Sequence[StackItem] = ()) -> StackItem:
        """Return an opaque container."""
        return OPAQUE

    make_dict = make_set = make_frozenset = make_list

    def extend(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Ignore items of an opaque container."""

    store = add = extend

    def persistent(self, pid: StackItem) -> StackItem:
        """Record a storage or module, or a call that rebuilds an object."""
        # The persistent IDs of torch and of packages are tuples. Any other is forged.
        kind, *parts = pid if isinstance(pid, tuple) and pid else (None,)
        if kind == "storage":
            self._note_storage(parts)
        elif kind == "module" and len(parts) == 1 and isinstance(parts[0], str):
            self._known.setdefault((parts[0], ""), self._name(parts[0], ""))
        elif kind == "reduce_package" and len(parts) >= 2:
            return self.call(parts[-2], parts[-1])
        else:
            raise MalformedError("a persistent id has an unknown kind")
        return OPAQUE

    def _note_storage(self, parts: Sequence[StackItem]) -> None:
        kind, key, size = (parts[0], parts[1], parts[3]) if len(parts) >= 4 else (None, None, None)
        if not isinstance(key, (str, int)):
            raise MalformedError("a storage has no key")
        name = str(kind) if isinstance(kind, PickledName) else ""
        items = size if type(size) is int else None
        if items is not None and not 0 <= items < _MAX_SIZE:
            raise MalformedError("a storage has an invalid size")
        found = PickledStorage(str(key), name, items, self._machine.position)
        self._storages.setdefault((found.key, name, items), found)

    def call(self, function: StackItem, arguments: StackItem) -> StackItem:
        """Record a call. The result of an allowed function keeps the function's name."""
        # Results of calls can be called, too. The names that they come from are listed already.
        if type(function) is not PickledName:
            return OPAQUE
        if str(function) == _MAKE_FUNCTION and isinstance(arguments, tuple):
            self._note_source(arguments)
        if not function.is_data:
            return OPAQUE
        # Data may name a class as a value, but a call of it could do more than make data.
        if str(function) not in CALLABLE:
            self._misused.add(function)
        return self._made.setdefault(function, _DataResult(function))

    def _note_source(self, arguments: tuple[StackItem, ...]) -> None:
        fields, identity = (*arguments, None, None)[:2]
        if not (isinstance(fields, tuple) and isinstance(identity, tuple)):
            raise MalformedError("a function stored by source has an unknown form")
        text, name = fields[:1], identity[1:2]
        if not (text and isinstance(text[0], str) and name and isinstance(name[0], str)):
            raise MalformedError("a function stored by source has an unknown form")
        self._sources.append(name[0])

    def make(self, kind: StackItem, arguments: StackItem, named: StackItem) -> StackItem:
        """Record an instance. Classes of data are never instantiated in this way."""
        # Without __init__, even a class of data may get any state.
        if type(kind) is PickledName and kind.is_data:
            self._misused.add(kind)
        return OPAQUE

    def build(self, made: StackItem, state: StackItem) -> None:
        """Check the state of an object. Only tensors and OrderedDict may have one."""
        if type(made) is _DataResult:
            if made.name.module in _TENSORS:
                takes_state = type(state) is tuple and len(state) == 3
            else:
                takes_state = state is OPAQUE and str(made.name) == _ORDERED_DICT
            if not takes_state:
                self._misused.add(made.name)
        elif made is not OPAQUE:
            raise MalformedError("the pickle sets the state of an object that it did not create")


class Pairs:
    """The items of a dict."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[tuple[Any, Any]] = []

    def get(self, key: str) -> Any:
        """Return the last value of a string key, or None."""
        return next((v for k, v in reversed(self.items) if type(k) is str and k == key), None)


class CallResult:
    """The result of a call, and its later modifications, except items that are added to it.

    Attributes:
        function: Called function.
        arguments: Positional arguments.
        is_instance: Whether the function is a class that is instantiated without ``__init__``.
        states: States set by ``BUILD``.
        calls: Functions called for their effect on the result, each with its second argument.
    """

    __slots__ = ("arguments", "calls", "function", "is_instance", "states")

    def __init__(self, function: Any, arguments: Any, is_instance: bool = False) -> None:
        self.function = function
        self.arguments = arguments
        self.is_instance = is_instance
        self.states: Sequence[Any] = ()
        self.calls: Sequence[tuple[Any, Any]] = ()

    def get(self, key: str) -> Any:
        """Return the value of a string key in the last state, or None."""
        state = self.states[-1] if self.states else None
        return state.get(key) if isinstance(state, Pairs) else None


class Persistent:
    """An object that the unpickler resolves by a persistent id."""

    __slots__ = ("identity",)

    def __init__(self, identity: Any) -> None:
        self.identity = identity


class PickleTree(_GlobalCollector):
    """Reads consecutive pickles as trees of inert values.

    A call becomes a :class:`CallResult`, a persistent id a :class:`Persistent`, a dict
    :class:`Pairs`, and a set a list. Strings, numbers, tuples, and lists remain unchanged.

    >>> import pickle, fractions
    >>> (made,) = PickleTree().read_all(pickle.dumps(fractions.Fraction(1, 3)))
    >>> str(made.function), made.arguments
    ('fractions.Fraction', (1, 3))
    """

    def __init__(self) -> None:
        super().__init__()
        self._nodes = 0

    def read_one(self, data: bytes, start: int = 0) -> tuple[Any, int]:
        """Return the value of one pickle and the offset of its end.

        Raises:
            MalformedError: If the pickle cannot be read to its end.
        """
        with gc_paused():  # no created object becomes garbage
            return self._machine.run(data, start)

    def read_all(self, data: bytes) -> list[Any]:
        """Return the values of consecutive pickles.

        Raises:
            MalformedError: If a pickle cannot be read to its end.
        """
        end, values = 0, []
        while end < len(data):
            value, end = self.read_one(data, end)
            values.append(value)
        return values

    def _count(self, nodes: int = 1) -> None:
        self._nodes += nodes
        if self._nodes > _MAX_NODES:
            raise MalformedError(f"the pickle creates more than {_MAX_NODES} values")

    def persistent(self, pid: Any) -> Any:
        """Return a node for a persistent id."""
        self._count()
        return Persistent(pid)

    def call(self, function: Any, arguments: Any) -> CallResult:
        """Return a node for a call."""
        self._count()
        return CallResult(function, arguments)

    def make(self, kind: Any, arguments: Any, named: Any) -> CallResult:
        """Return a node for an instance that is created without ``__init__``."""
        self._count()
        return CallResult(kind, arguments, is_instance=True)

    def drop(self, value: Any) -> None:
        """Record an unused call result: the call modified its first argument."""
        arguments = value.arguments if isinstance(value, CallResult) else None
        if (
            type(arguments) is tuple
            and len(arguments) == 2
            and isinstance(arguments[0], CallResult)
        ):
            target = arguments[0]
            # Its first argument is what a dropped call can have modified.
            target.calls = _extended(target.calls, ((value.function, arguments[1]),))

    def build(self, made: Any, state: Any) -> None:
        """Add a state to a call result."""
        if not isinstance(made, CallResult):
            raise MalformedError("the pickle sets the state of an object that it did not create")
        made.states = _extended(made.states, (state,))

    def make_dict(self) -> Pairs:
        """Return an empty dict node."""
        self._count()
        return Pairs()

    def make_tuple(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return a tuple."""
        self._count()
        return tuple(items)

    def make_list(self, items: Sequence[Any] = ()) -> list[Any]:
        """Return a list, also for a set or frozenset."""
        self._count()
        return list(items)

    make_set = make_frozenset = make_list

    def extend(self, target: Any, items: Sequence[Any]) -> None:
        """Add items to a list. Items of a call result are dropped."""
        if type(target) is list:
            target.extend(items)
        elif not isinstance(target, CallResult):
            raise MalformedError("the pickle appends to a value that is not a list")

    add = extend

    def store(self, target: Any, items: Sequence[Any]) -> None:
        """Set items in a dict. Items of a call result are dropped."""
        if isinstance(target, Pairs):
            # Pairs need less memory than nodes.
            self._count(len(items) // 4)
            target.items.extend(zip(items[::2], items[1::2], strict=True))
        elif not isinstance(target, CallResult):
            raise MalformedError("the pickle sets items of a value that is not a dict")


def _extended(items: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """Extend a list in place, or return a new one for the shared empty default."""
    extended = items if isinstance(items, list) else []
    extended.extend(more)
    return extended


def read_nested_names(data: bytes, level: int = 0) -> dict[PickledName, None]:
    """Return the globals that pickles inside the bytes objects of a pickle name, once each.

    If a ``__getstate__`` calls ``pickle.dumps`` or ``torch.save``, modpack's pickler sees only the
    resulting bytes. :func:`pickle.loads` looks their globals up in the process's own modules.

    Args:
        data: The pickle.
        level: Current nesting depth. Deeper levels than ``_MAX_LEVELS`` are not searched.

    >>> import fractions, pickle
    >>> inner = pickle.dumps(fractions.Fraction(1, 3))
    >>> [str(name) for name in read_nested_names(pickle.dumps({"state": inner}))]
    ['fractions.Fraction']
    """
    found: dict[PickledName, None] = {}
    if level < _MAX_LEVELS:
        for content in _find_candidates(data):
            for inner in _unzip_pickles(content):
                found.update(dict.fromkeys(_read_names(inner)))
                found.update(read_nested_names(inner, level + 1))
    return found


def _find_candidates(data: bytes) -> Iterator[bytes]:
    """Yield bytes objects in a pickle that start like a pickle or a zip archive."""
    for magic in _STARTS:
        start = data.find(magic)
        while start >= 0:
            for opcode, width in _SIZES.items():
                end = start + int.from_bytes(data[max(0, start - width) : start], "little")
                if data.startswith(opcode, max(0, start - width - 1)) and start < end <= len(data):
                    yield data[start:end]
            # Bytes may contain bytes objects, so the search continues inside a candidate.
            start = data.find(magic, start + 1)


def _unzip_pickles(content: bytes) -> Iterator[bytes]:
    if not content.startswith(b"PK"):
        yield content
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                # torch.save stores its pickle under this name, below a folder.
                if name.endswith("/data.pkl"):
                    yield archive.read(name)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError):
        return  # torch cannot read such an archive either


def _read_names(data: bytes) -> tuple[PickledName, ...]:
    """Return the globals of consecutive pickles, as in legacy files of torch.save."""
    tree, end = PickleTree(), 0
    try:
        while end < len(data):
            _, end = tree.read_one(data, end)
    except MalformedError:
        pass  # not a pickle, or tensor data follows it
    return tree.named if end else ()
