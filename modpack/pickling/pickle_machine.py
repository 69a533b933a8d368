"""A pickle virtual machine (PEP 307, PEP 3154) with pluggable meanings of names and calls.

:mod:`pickletools` documents the opcodes. The machine keeps the stack, the memo, and the marks. It
is stricter than Python's: it rejects what no pickler writes and unpicklers read differently. Its
actions define names, calls, and states: :mod:`.data_unpickler` creates plain data,
:mod:`modpack.trust.pickle_names` only records what a pickle would do.
"""

from __future__ import annotations

import _compat_pickle
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

StackItem = object
"""An item on the stack: a plain value, or a result of the actions."""

_HIGHEST_PROTOCOL: Final = 5
_PYTHON3_NAMES: Final = 3
"""From this protocol on, global names are those of Python 3."""
_MAX_MARKS: Final = 100_000
_MAX_NAME_LENGTH: Final = 10_000
_NOWHERE: Final = -1
_NO_FRAME: Final = sys.maxsize


class MalformedError(ValueError):
    """The data is not a pickle, or is one that no pickler writes.

    Attributes:
        position: Offset of the offending opcode, in bytes.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.position = 0


class _Opaque:
    """The type of :data:`OPAQUE`."""

    def __repr__(self) -> str:
        return "..."


OPAQUE: Final = _Opaque()
"""A value of an old text opcode that no caller needs."""


class Actions(Protocol):
    """Meanings of the opcodes that go beyond plain values."""

    def find(self, module: str, name: str) -> StackItem:
        """Return the value of a global name."""

    def persistent(self, pid: StackItem) -> StackItem:
        """Return the value of a persistent id."""

    def call(self, function: StackItem, arguments: StackItem) -> StackItem:
        """Return the result of REDUCE, OBJ, or INST."""

    def make(self, kind: StackItem, arguments: StackItem, named: StackItem) -> StackItem:
        """Return the result of NEWOBJ or NEWOBJ_EX."""

    def build(self, made: StackItem, state: StackItem) -> None:
        """Set the state of an object, for BUILD."""

    def drop(self, value: StackItem) -> None:
        """Handle a value that is removed from the stack without being used."""
        return None

    def make_tuple(self, items: Sequence[StackItem]) -> StackItem:
        """Return a tuple."""
        return tuple(items)

    def make_list(self, items: Sequence[StackItem]) -> StackItem:
        """Return a list."""

    def make_dict(self) -> StackItem:
        """Return an empty dict."""

    def extend(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Append items to a list."""

    def store(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Store alternating keys and values in a dict."""

    def make_frozenset(self, items: Sequence[StackItem]) -> StackItem:
        """Return a frozenset."""

    def make_set(self) -> StackItem:
        """Return an empty set."""

    def add(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Add items to a set."""


class PickleMachine:
    """Runs consecutive pickles that share a memo, like one unpickler.

    Args:
        actions: The meanings of names, calls, and states.
        is_modern: Whether to reject opcodes that only protocols 0 and 1 write.
    """

    def __init__(self, actions: Actions, *, is_modern: bool = False) -> None:
        self._actions = actions
        self._handlers = _MODERN if is_modern else _ALL
        self._memo: list[StackItem] = []
        self._has_old_names: bool | None = None
        self._data = b""
        self._at = self._start = 0
        self._memoized_at = _NOWHERE
        self._stack: list[StackItem] = []
        self._marks: list[int] = []
        self._frame_end = _NO_FRAME

    def run(self, data: bytes, start: int = 0) -> tuple[StackItem, int]:
        """Run one pickle.

        Args:
            data: A record.
            start: Offset of the pickle in it.

        Returns:
            The unpickled value, and the offset of the pickle's end.

        Raises:
            MalformedError: If the data is not a pickle, or an action rejects it.
        """
        self._data = data
        self._at = self._start = start
        self._memoized_at = _NOWHERE
        self._stack, self._marks = [], []
        self._frame_end = _NO_FRAME
        if self._has_old_names is None:  # an unpickler's first pickle decides for all
            head = data[start : start + 2]
            self._has_old_names = not (head[:1] == b"\x80" and head[1:] >= bytes([_PYTHON3_NAMES]))
        position, handlers = start, self._handlers
        try:
            while True:
                position = self._at
                if position >= self._frame_end:
                    self._leave_frame(position)
                code = data[position]
                self._at = position + 1
                if code == _STOP:
                    return self._end()
                handlers[code](self)
        except MalformedError as failure:
            failure.position = position
            raise
        except _ERRORS_OF_BAD_PICKLES as failure:
            reason = str(failure) or type(failure).__name__
            if isinstance(failure, IndexError):
                reason = "the data is truncated"
            elif isinstance(failure, RecursionError):
                reason = "values are nested too deeply"
            error = MalformedError(reason)
            error.position = position
            raise error from failure
        finally:  # do not keep the data alive with the machine or the error
            self._stack, self._marks, self._data = [], [], b""

    @property
    def position(self) -> int:
        """Offset after the current opcode, in bytes."""
        return self._at

    def _leave_frame(self, position: int) -> None:
        """End a frame; if an opcode crosses the end, unpicklers disagree about the next bytes."""
        if position > self._frame_end:
            raise MalformedError("an opcode crosses the end of its frame")
        self._frame_end = _NO_FRAME

    def _end(self) -> tuple[StackItem, int]:
        made = self._pop()
        if self._stack or self._marks:
            raise MalformedError("more than one value is left at the end")
        if self._frame_end not in (_NO_FRAME, self._at):
            raise MalformedError("the pickle ends inside a frame")
        return made, self._at

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise MalformedError("the data is truncated")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise MalformedError("the data is truncated")
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    def _push(self, value: StackItem) -> None:
        self._stack.append(value)

    def _pop(self) -> StackItem:
        return self._pop_many(1)[0]

    def _pop_many(self, count: int) -> list[StackItem]:
        # As in Python's unpickler, values below the last mark are out of reach until it is popped.
        start = len(self._stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise MalformedError("an opcode takes more values than the stack contains")
        return self._pop_from(start)

    def _pop_to_mark(self) -> list[StackItem]:
        if not self._marks:
            raise MalformedError("an opcode needs a mark, and there is none")
        return self._pop_from(self._marks.pop())

    def _pop_from(self, start: int) -> list[StackItem]:
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _top(self) -> StackItem:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise MalformedError("an opcode needs a value, and the stack is empty")
        return self._stack[-1]

    def _mark(self) -> None:
        if len(self._marks) >= _MAX_MARKS:
            raise MalformedError(f"more than {_MAX_MARKS:,} marks are open")
        self._marks.append(len(self._stack))

    def _drop(self) -> None:
        # As in Python's unpickler, POP removes a mark if no value is above it.
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._actions.drop(self._pop())

    def _long4(self) -> None:
        size = _integer(self._take(4))
        if size < 0:
            raise MalformedError("an integer has a negative size")
        self._push(_integer(self._take(size)))

    def _text_line(self) -> None:
        """Push a value of protocol 0 that cannot be part of a name."""
        self._line()
        self._push(OPAQUE)

    def _string_line(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise MalformedError("a string is not quoted")
        if b"\\" in line:  # Python's C and Python unpicklers decode escapes differently
            self._push(OPAQUE)
        else:
            self._push(line[1:-1].decode("ascii"))

    def _dict(self) -> None:
        items = self._pop_to_mark()
        self._push(self._actions.make_dict())
        self._store(items)

    def _extend(self, items: Sequence[StackItem]) -> None:
        self._actions.extend(self._top(), items)

    def _store(self, items: Sequence[StackItem]) -> None:
        if len(items) % 2:
            raise MalformedError("a key has no value")
        self._actions.store(self._top(), items)

    def _add(self, items: Sequence[StackItem]) -> None:
        self._actions.add(self._top(), items)

    def _memoize(self) -> None:
        # Each byte would add an entry to the memo: eight times the size of the pickle.
        if self._memoized_at == self._at - 1:
            raise MalformedError("a value is memoized twice in a row")
        self._memoized_at = self._at
        self._memo.append(self._top())

    def _put(self, number: int) -> None:
        """Set a memo entry; picklers number them consecutively, from 0 in each pickle."""
        value = self._top()
        # A list without gaps: a large number alone would make Python's C unpickler allocate a memo
        # of that size.
        if number < len(self._memo):
            self._memo[number] = value
        elif number == len(self._memo):
            self._memo.append(value)
        else:
            raise MalformedError("the memo is not filled consecutively")

    def _get(self, number: int) -> None:
        if number >= len(self._memo):
            raise MalformedError("a memo entry does not exist")
        self._push(self._memo[number])

    def _stack_global(self) -> None:
        module, name = self._pop_many(2)
        if not (type(module) is str and type(name) is str):
            raise MalformedError("a global name is not a string")
        self._push(self._find(module, name))

    def _find(self, module: str, name: str) -> StackItem:
        if len(module) + len(name) > _MAX_NAME_LENGTH:
            raise MalformedError(f"a name is longer than {_MAX_NAME_LENGTH:,} characters")
        # As Python's unpickler does. Otherwise `__builtin__.eval` would be checked under a name
        # other than the one that Python then looks up.
        if self._has_old_names:
            if (module, name) in _compat_pickle.NAME_MAPPING:
                module, name = _compat_pickle.NAME_MAPPING[module, name]
            else:
                module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        return self._actions.find(module, name)

    def _object(self) -> None:
        parts = self._pop_to_mark()
        if not parts:
            raise MalformedError("an object has no class")
        self._push(self._actions.call(parts[0], tuple(parts[1:])))

    def _instance(self) -> None:
        module, name = self._line().decode("ascii"), self._line().decode("ascii")
        kind = self._find(module, name)
        self._push(self._actions.call(kind, tuple(self._pop_to_mark())))

    def _new(self, kind: StackItem, arguments: StackItem, named: StackItem = None) -> None:
        self._push(self._actions.make(kind, arguments, named))

    def _build(self) -> None:
        state = self._pop()
        self._actions.build(self._top(), state)

    def _protocol(self) -> None:
        protocol = self._number(1)
        if protocol > _HIGHEST_PROTOCOL:
            raise MalformedError(f"protocol {protocol} is unknown")
        # Python's unpickler would translate the names after the opcode by the new protocol.
        if self._at != self._start + 2 or (protocol < _PYTHON3_NAMES) != self._has_old_names:
            raise MalformedError("the protocol changes within the pickle")

    def _frame(self) -> None:
        size = self._number(8)
        if self._frame_end != _NO_FRAME:
            raise MalformedError("a frame begins inside another frame")
        if self._at + size > len(self._data):
            raise MalformedError("a frame extends past the end of the data")
        self._frame_end = self._at + size

    def _refuse(self, reason: str) -> None:
        code = self._data[self._at - 1 : self._at]
        raise MalformedError(reason.format(code=code))


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _decimal(line: bytes) -> int:
    if not (line.isdigit() and len(line) < 20):
        raise MalformedError("a memo index is not a number")
    return int(line)


_STOP: Final = ord(".")
_ERRORS_OF_BAD_PICKLES: Final = (IndexError, ValueError, OverflowError, RecursionError, MemoryError)

_Handler = Callable[[PickleMachine], object]


def _constant(value: StackItem) -> _Handler:
    return lambda m: m._push(value)


def _unsigned(size: int) -> _Handler:
    return lambda m: m._push(m._number(size))


def _sized(size: int, made: Callable[[bytes], StackItem]) -> _Handler:
    """Return a handler that reads a size and that many bytes, and pushes their conversion."""
    return lambda m: m._push(made(m._take(m._number(size))))


def _tuple_of(size: int) -> _Handler:
    return lambda m: m._push(m._actions.make_tuple(m._pop_many(size)))


def _put(size: int) -> _Handler:
    return lambda m: m._put(m._number(size))


def _get(size: int) -> _Handler:
    return lambda m: m._get(m._number(size))


def _refused(reason: str) -> _Handler:
    return lambda m: m._refuse(reason)


def _ascii(data: bytes) -> str:
    return data.decode("ascii")


def _utf8(data: bytes) -> str:
    # As Python's picklers encode strings with lone surrogates.
    return data.decode("utf-8", "surrogatepass")


_BY_NUMBER: Final = _refused("a name is given as a copyreg extension code")
_OUT_OF_BAND: Final = _refused("an out-of-band buffer is required")

_MODERN_HANDLERS: Final[Mapping[bytes, _Handler]] = {
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b")": _constant(()),
    b"K": _unsigned(1),
    b"M": _unsigned(2),
    b"J": lambda m: m._push(_integer(m._take(4))),
    b"\x8a": _sized(1, _integer),
    b"\x8b": PickleMachine._long4,
    b"G": lambda m: m._push(struct.unpack(">d", m._take(8))[0]),
    b"C": _sized(1, bytes),
    b"B": _sized(4, bytes),
    b"\x8e": _sized(8, bytes),
    b"\x96": _sized(8, bytearray),
    b"U": _sized(1, _ascii),
    b"T": _sized(4, _ascii),
    b"\x8c": _sized(1, _utf8),
    b"X": _sized(4, _utf8),
    b"\x8d": _sized(8, _utf8),
    b"t": lambda m: m._push(m._actions.make_tuple(m._pop_to_mark())),
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"]": lambda m: m._push(m._actions.make_list(())),
    b"}": lambda m: m._push(m._actions.make_dict()),
    b"\x8f": lambda m: m._push(m._actions.make_set()),
    b"\x91": lambda m: m._push(m._actions.make_frozenset(m._pop_to_mark())),
    b"a": lambda m: m._extend(m._pop_many(1)),
    b"e": lambda m: m._extend(m._pop_to_mark()),
    b"s": lambda m: m._store(m._pop_many(2)),
    b"u": lambda m: m._store(m._pop_to_mark()),
    b"\x90": lambda m: m._add(m._pop_to_mark()),
    b"(": PickleMachine._mark,
    b"0": PickleMachine._drop,
    b"1": PickleMachine._pop_to_mark,
    b"2": lambda m: m._push(m._top()),
    b"\x94": PickleMachine._memoize,
    b"q": _put(1),
    b"r": _put(4),
    b"h": _get(1),
    b"j": _get(4),
    b"c": lambda m: m._push(m._find(m._line().decode(), m._line().decode())),
    b"\x93": PickleMachine._stack_global,
    b"Q": lambda m: m._push(m._actions.persistent(m._pop())),
    b"R": lambda m: m._push(m._actions.call(*m._pop_many(2))),
    b"\x81": lambda m: m._new(*m._pop_many(2)),
    b"\x92": lambda m: m._new(*m._pop_many(3)),
    b"b": PickleMachine._build,
    b"\x80": PickleMachine._protocol,
    b"\x95": PickleMachine._frame,
    **dict.fromkeys((b"\x82", b"\x83", b"\x84"), _BY_NUMBER),
    **dict.fromkeys((b"\x97", b"\x98"), _OUT_OF_BAND),
}
"""Handlers of the opcodes that picklers of protocol 2 and later write."""

_LEGACY_HANDLERS: Final[Mapping[bytes, _Handler]] = {
    **dict.fromkeys((b"I", b"L", b"F"), PickleMachine._text_line),
    b"S": PickleMachine._string_line,
    b"V": lambda m: m._push(m._line().decode("raw-unicode-escape")),
    b"l": lambda m: m._push(m._actions.make_list(m._pop_to_mark())),
    b"d": PickleMachine._dict,
    b"p": lambda m: m._put(_decimal(m._line())),
    b"g": lambda m: m._get(_decimal(m._line())),
    b"P": lambda m: m._push(m._actions.persistent(m._line().decode("ascii"))),
    b"o": PickleMachine._object,
    b"i": PickleMachine._instance,
}
"""Handlers of the opcodes that only picklers of protocols 0 and 1 write."""


def _table(handlers: Mapping[bytes, _Handler]) -> tuple[_Handler, ...]:
    unknown = _refused("{code!r} is not an opcode")
    return tuple(handlers.get(bytes([code]), unknown) for code in range(256))


_OUTDATED: Final = _refused("opcode {code!r} belongs to protocol 0 or 1")
_MODERN: Final = _table({**_MODERN_HANDLERS, **dict.fromkeys(_LEGACY_HANDLERS, _OUTDATED)})
_ALL: Final = _table({**_MODERN_HANDLERS, **_LEGACY_HANDLERS})
