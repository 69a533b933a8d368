"""The stack machine of pickles (PEP 307, PEP 3154), of which we decide what each action means.

:mod:`pickletools` documents the opcodes. The machine keeps the stack, the memo and the marks, and
is stricter than Python's own: whatever no pickler writes, and unpicklers do not all read alike, is
refused. Its actions decide what names, calls and states mean: :mod:`.data_unpickler` makes data
of them, :mod:`modpack.security.pickle_names` only writes down what they are.
"""

from __future__ import annotations

import _compat_pickle
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

StackItem = object
"""What lies on the stack: values, and whatever the actions return."""

_HIGHEST_PROTOCOL: Final = 5
_PYTHON3_NAMES: Final = 3
"""From this protocol on, names are those of Python 3."""
_MAX_MARKS: Final = 100_000
_LONGEST_NAME: Final = 10_000
_NOWHERE: Final = -1
_NO_FRAME: Final = sys.maxsize


class MalformedError(ValueError):
    """It is no pickle, or one that no pickler writes.

    Attributes:
        position: of the opcode where that shows, in bytes from the start.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.position = 0


class _Opaque:
    """The one value of no interest."""

    def __repr__(self) -> str:
        return "..."


OPAQUE: Final = _Opaque()
"""A value that only the old text opcodes write, for which nobody needs it."""


class Actions(Protocol):
    """What a pickle can ask for beyond plain values."""

    def find(self, module: str, name: str) -> StackItem:
        """What a name stands for."""

    def persistent(self, pid: StackItem) -> StackItem:
        """What a persistent id stands for."""

    def call(self, function: StackItem, arguments: StackItem) -> StackItem:
        """What REDUCE, OBJ and INST push."""

    def make(self, kind: StackItem, arguments: StackItem, named: StackItem) -> StackItem:
        """What NEWOBJ and NEWOBJ_EX push."""

    def build(self, made: StackItem, state: StackItem) -> None:
        """Give an object its state, as BUILD does."""

    def dropped(self, value: StackItem) -> None:
        """Note that a value is taken off the stack, and used no further."""
        return None

    def grouped(self, items: Sequence[StackItem]) -> StackItem:
        """A tuple."""
        return tuple(items)

    def listed(self, items: Sequence[StackItem]) -> StackItem:
        """A list."""

    def dictionary(self) -> StackItem:
        """An empty dict."""

    def extend(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Add to a list."""

    def store(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Add keys and values, in turn, to a dict."""

    def collected(self, items: Sequence[StackItem]) -> StackItem:
        """A frozenset."""

    def emptied(self) -> StackItem:
        """An empty set."""

    def add(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Add to a set."""


class PickleMachine:
    """Runs pickles that one unpickler loads after each other, with one memo.

    Args:
        actions: what names, calls and states mean.
        is_modern: whether to refuse the opcodes that only protocols 0 and 1 write.
    """

    def __init__(self, actions: Actions, *, is_modern: bool = False) -> None:
        self._actions = actions
        self._handlers = _MODERN if is_modern else _ALL
        self._memo: list[StackItem] = []
        self._has_old_names: bool | None = None
        self._data = b""
        self._at = self._start = 0
        self._kept_at = _NOWHERE
        self._stack: list[StackItem] = []
        self._marks: list[int] = []
        self._frame_end = _NO_FRAME

    def run(self, data: bytes, start: int = 0) -> tuple[StackItem, int]:
        """Run one pickle.

        Args:
            data: a record.
            start: where the pickle begins in it.

        Returns:
            What it makes, and where it ends.

        Raises:
            MalformedError: it is no pickle, or an action refuses.
        """
        self._data = data
        self._at = self._start = start
        self._kept_at = _NOWHERE
        self._stack, self._marks = [], []
        self._frame_end = _NO_FRAME
        if self._has_old_names is None:  # one unpickler decides once, by its first pickle
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
        except _OF_BAD_PICKLES as failure:
            reason = str(failure) or type(failure).__name__
            if isinstance(failure, IndexError):
                reason = "it is cut off"
            elif isinstance(failure, RecursionError):
                reason = "it lies deeper in itself than can be followed"
            told = MalformedError(reason)
            told.position = position
            raise told from failure
        finally:  # whoever keeps the machine, or the error, need not keep this
            self._stack, self._marks, self._data = [], [], b""

    @property
    def position(self) -> int:
        """Behind the opcode that is being carried out, in bytes from the start."""
        return self._at

    def _leave_frame(self, position: int) -> None:
        """A frame ends with an opcode: of one that goes on, unpicklers read other bytes."""
        if position > self._frame_end:
            raise MalformedError("an opcode goes on behind the end of its frame")
        self._frame_end = _NO_FRAME

    def _end(self) -> tuple[StackItem, int]:
        made = self._pop()
        if self._stack or self._marks:
            raise MalformedError("more than one value is left at its end")
        if self._frame_end not in (_NO_FRAME, self._at):
            raise MalformedError("it ends before its frame does")
        return made, self._at

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise MalformedError("it is cut off")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise MalformedError("it is cut off")
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    def _push(self, value: StackItem) -> None:
        self._stack.append(value)

    def _pop(self) -> StackItem:
        return self._pop_many(1)[0]

    def _pop_many(self, count: int) -> list[StackItem]:
        start = len(self._stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise MalformedError("it takes more than there is")
        return self._pop_from(start)

    def _pop_to_mark(self) -> list[StackItem]:
        if not self._marks:
            raise MalformedError("it takes up to a mark that is not there")
        return self._pop_from(self._marks.pop())

    def _pop_from(self, start: int) -> list[StackItem]:
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _top(self) -> StackItem:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise MalformedError("it takes more than there is")
        return self._stack[-1]

    def _mark(self) -> None:
        if len(self._marks) >= _MAX_MARKS:
            raise MalformedError(f"more than {_MAX_MARKS} things are begun in each other")
        self._marks.append(len(self._stack))

    def _drop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._actions.dropped(self._pop())

    def _long4(self) -> None:
        size = _integer(self._take(4))
        if size < 0:
            raise MalformedError("a number has fewer than no bytes")
        self._push(_integer(self._take(size)))

    def _text_line(self) -> None:
        """A value of protocol 0 that no name is made of."""
        self._line()
        self._push(OPAQUE)

    def _string_line(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise MalformedError("a text has no quotes around it")
        if b"\\" in line:  # which Python's two unpicklers do not read quite alike
            self._push(OPAQUE)
        else:
            self._push(line[1:-1].decode("ascii"))

    def _dict(self) -> None:
        items = self._pop_to_mark()
        self._push(self._actions.dictionary())
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
        if self._kept_at == self._at - 1:
            raise MalformedError("it keeps one value twice in a row")
        self._kept_at = self._at
        self._memo.append(self._top())

    def _put(self, number: int) -> None:
        """Fill a place of the memo; picklers count up, and begin again in the next pickle."""
        value = self._top()
        if number < len(self._memo):
            self._memo[number] = value
        elif number == len(self._memo):
            self._memo.append(value)
        else:
            raise MalformedError("it leaves out places of the memo")

    def _get(self, number: int) -> None:
        if number >= len(self._memo):
            raise MalformedError("it takes what is not in the memo")
        self._push(self._memo[number])

    def _stack_global(self) -> None:
        module, name = self._pop_many(2)
        if not (type(module) is str and type(name) is str):
            raise MalformedError("it takes a name that is no text in it")
        self._push(self._found(module, name))

    def _found(self, module: str, name: str) -> StackItem:
        if len(module) + len(name) > _LONGEST_NAME:
            raise MalformedError(f"it takes a name of more than {_LONGEST_NAME:,} characters")
        if self._has_old_names:
            if (module, name) in _compat_pickle.NAME_MAPPING:
                module, name = _compat_pickle.NAME_MAPPING[module, name]
            else:
                module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        return self._actions.find(module, name)

    def _object(self) -> None:
        parts = self._pop_to_mark()
        if not parts:
            raise MalformedError("it makes an object of no class")
        self._push(self._actions.call(parts[0], tuple(parts[1:])))

    def _instance(self) -> None:
        module, name = self._line().decode("ascii"), self._line().decode("ascii")
        kind = self._found(module, name)
        self._push(self._actions.call(kind, tuple(self._pop_to_mark())))

    def _new(self, kind: StackItem, arguments: StackItem, named: StackItem = None) -> None:
        self._push(self._actions.make(kind, arguments, named))

    def _build(self) -> None:
        state = self._pop()
        self._actions.build(self._top(), state)

    def _protocol(self) -> None:
        protocol = self._number(1)
        if protocol > _HIGHEST_PROTOCOL:
            raise MalformedError(f"its protocol {protocol} is unknown")
        if self._at != self._start + 2 or (protocol < _PYTHON3_NAMES) != self._has_old_names:
            raise MalformedError("it changes its protocol on the way")

    def _frame(self) -> None:
        size = self._number(8)
        if self._frame_end != _NO_FRAME:
            raise MalformedError("a frame begins inside of another")
        if self._at + size > len(self._data):
            raise MalformedError("a frame ends behind the pickle")
        self._frame_end = self._at + size

    def _refuse(self, reason: str) -> None:
        code = self._data[self._at - 1 : self._at]
        raise MalformedError(reason.format(code=code))


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _decimal(line: bytes) -> int:
    if not (line.isdigit() and len(line) < 20):
        raise MalformedError("a place in the memo is no number")
    return int(line)


_STOP: Final = ord(".")
_OF_BAD_PICKLES: Final = (IndexError, ValueError, OverflowError, RecursionError, MemoryError)

_Handler = Callable[[PickleMachine], object]


def _constant(value: StackItem) -> _Handler:
    return lambda m: m._push(value)


def _unsigned(size: int) -> _Handler:
    return lambda m: m._push(m._number(size))


def _sized(size: int, made: Callable[[bytes], StackItem]) -> _Handler:
    """Bytes with their number before them, and what becomes of them."""
    return lambda m: m._push(made(m._take(m._number(size))))


def _tuple_of(size: int) -> _Handler:
    return lambda m: m._push(m._actions.grouped(m._pop_many(size)))


def _put(size: int) -> _Handler:
    return lambda m: m._put(m._number(size))


def _get(size: int) -> _Handler:
    return lambda m: m._get(m._number(size))


def _refused(reason: str) -> _Handler:
    return lambda m: m._refuse(reason)


def _ascii(data: bytes) -> str:
    return data.decode("ascii")


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_BY_NUMBER: Final = _refused("it names something by a number of copyreg's registry")
_OUT_OF_BAND: Final = _refused("it takes data that is not in it")

_WRITTEN_TODAY: Final[Mapping[bytes, _Handler]] = {
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
    b"t": lambda m: m._push(m._actions.grouped(m._pop_to_mark())),
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"]": lambda m: m._push(m._actions.listed(())),
    b"}": lambda m: m._push(m._actions.dictionary()),
    b"\x8f": lambda m: m._push(m._actions.emptied()),
    b"\x91": lambda m: m._push(m._actions.collected(m._pop_to_mark())),
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
    b"c": lambda m: m._push(m._found(m._line().decode(), m._line().decode())),
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
"""What picklers of protocol 2 and later write."""

_WRITTEN_ONCE: Final[Mapping[bytes, _Handler]] = {
    **dict.fromkeys((b"I", b"L", b"F"), PickleMachine._text_line),
    b"S": PickleMachine._string_line,
    b"V": lambda m: m._push(m._line().decode("raw-unicode-escape")),
    b"l": lambda m: m._push(m._actions.listed(m._pop_to_mark())),
    b"d": PickleMachine._dict,
    b"p": lambda m: m._put(_decimal(m._line())),
    b"g": lambda m: m._get(_decimal(m._line())),
    b"P": lambda m: m._push(m._actions.persistent(m._line().decode("ascii"))),
    b"o": PickleMachine._object,
    b"i": PickleMachine._instance,
}
"""What only those of protocols 0 and 1 write."""


def _table(handlers: Mapping[bytes, _Handler]) -> tuple[_Handler, ...]:
    unknown = _refused("{code!r} is no opcode")
    return tuple(handlers.get(bytes([code]), unknown) for code in range(256))


_OUTDATED: Final = _refused("{code!r} is an opcode of protocol 0 or 1")
_MODERN: Final = _table({**_WRITTEN_TODAY, **dict.fromkeys(_WRITTEN_ONCE, _OUTDATED)})
_ALL: Final = _table({**_WRITTEN_TODAY, **_WRITTEN_ONCE})
