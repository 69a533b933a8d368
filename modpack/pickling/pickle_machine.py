"""The stack machine of pickles (PEP 307, PEP 3154), of which we decide what each action means.

:mod:`pickletools` documents the opcodes. The machine keeps the stack, the memo and the marks, and
is stricter than Python's own: whatever no pickler writes, and unpicklers do not all read alike, is
refused. What names, calls and states mean is for those who use it: :mod:`.closed` makes data of
them, :mod:`modpack.security.pickle_names` only writes down what they are.
"""

from __future__ import annotations

import _compat_pickle
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

StackItem = object
"""What lies on the stack: values, and whatever the actions return."""

_HIGHEST_PROTOCOL: Final = 5
_PYTHON3_NAMES: Final = 3
"""From this protocol on, names are those of Python 3."""
_MOST_MARKS: Final = 100_000
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


class Actions:
    """What a pickle can ask for beyond plain values. The defaults refuse everything."""

    def find(self, module: str, name: str) -> StackItem:
        """What a name stands for."""
        raise MalformedError(f"it names {module}.{name}")

    def persistent(self, pid: StackItem) -> StackItem:
        """What a persistent id stands for."""
        raise MalformedError("it has a persistent id")

    def call(self, function: StackItem, arguments: StackItem) -> StackItem:
        """What REDUCE pushes."""
        raise MalformedError("it makes a call")

    def make(self, kind: StackItem, arguments: StackItem, named: StackItem) -> StackItem:
        """What NEWOBJ, NEWOBJ_EX, OBJ and INST push."""
        raise MalformedError("it makes an object")

    def build(self, made: StackItem, state: StackItem) -> None:
        """Give an object its state, as BUILD does."""
        raise MalformedError("it sets the state of an object")

    def dropped(self, value: StackItem) -> None:
        """Note that a value is taken off the stack, and used no further."""

    def grouped(self, items: Sequence[StackItem]) -> StackItem:
        """A tuple."""
        return tuple(items)

    def listed(self, items: Sequence[StackItem]) -> StackItem:
        """A list."""
        return list(items)

    def dictionary(self) -> StackItem:
        """An empty dict."""
        return {}

    def extend(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Add to a list."""
        if type(target) is not list:
            raise MalformedError("it appends to what is no list")
        target.extend(items)

    def store(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Add keys and values, in turn, to a dict."""
        raise MalformedError("it stores in a dict")

    def collected(self, items: Sequence[StackItem]) -> StackItem:
        """A frozenset."""
        raise MalformedError("it makes a set")

    def emptied(self) -> StackItem:
        """An empty set."""
        raise MalformedError("it makes a set")

    def add(self, target: StackItem, items: Sequence[StackItem]) -> None:
        """Add to a set."""
        raise MalformedError("it adds to a set")


class PickleMachine:
    """Runs pickles that one unpickler loads after each other, with one memo.

    Args:
        actions: what names, calls and states mean.
        is_modern: whether to refuse the opcodes that only protocols 0 and 1 write.
    """

    def __init__(self, actions: Actions, *, is_modern: bool = False) -> None:
        self._actions = actions
        self._grouped = actions.grouped
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
            told = MalformedError(_reason(failure))
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

    # -- bytes -------------------------------------------------------------------------------

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

    # -- the stack ---------------------------------------------------------------------------

    def _push(self, value: StackItem) -> None:
        self._stack.append(value)

    def _pop(self) -> StackItem:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise MalformedError("it takes more than there is")
        return self._stack.pop()

    def _top(self) -> StackItem:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise MalformedError("it takes more than there is")
        return self._stack[-1]

    def _pop_to_mark(self) -> list[StackItem]:
        if not self._marks:
            raise MalformedError("it takes up to a mark that is not there")
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    # -- values ------------------------------------------------------------------------------

    def _signed(self) -> None:
        self._push(int.from_bytes(self._take(4), "little", signed=True))

    def _float(self) -> None:
        (value,) = struct.unpack(">d", self._take(8))
        self._push(value)

    def _long4(self) -> None:
        size = int.from_bytes(self._take(4), "little", signed=True)
        if size < 0:
            raise MalformedError("a number has fewer than no bytes")
        self._push(_integer(self._take(size)))

    def _text_line(self) -> None:
        """A value of protocol 0 that no name is made of."""
        self._line()
        self._push(OPAQUE)

    def _unicode_line(self) -> None:
        self._push(self._line().decode("raw-unicode-escape"))

    def _string_line(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise MalformedError("a text has no quotes around it")
        if b"\\" in line:  # which Python's two unpicklers do not read quite alike
            self._push(OPAQUE)
        else:
            self._push(line[1:-1].decode("ascii"))

    # -- containers --------------------------------------------------------------------------

    def _tuple(self) -> None:
        self._push(self._actions.grouped(self._pop_to_mark()))

    def _empty_list(self) -> None:
        self._push(self._actions.listed(()))

    def _list(self) -> None:
        self._push(self._actions.listed(self._pop_to_mark()))

    def _empty_dict(self) -> None:
        self._push(self._actions.dictionary())

    def _dict(self) -> None:
        items = self._pop_to_mark()
        self._push(self._actions.dictionary())
        self._store(items)

    def _empty_set(self) -> None:
        self._push(self._actions.emptied())

    def _frozenset(self) -> None:
        self._push(self._actions.collected(self._pop_to_mark()))

    def _append(self) -> None:
        item = self._pop()
        self._actions.extend(self._top(), (item,))

    def _appends(self) -> None:
        items = self._pop_to_mark()
        self._actions.extend(self._top(), items)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._store((key, value))

    def _set_items(self) -> None:
        self._store(self._pop_to_mark())

    def _store(self, items: Sequence[StackItem]) -> None:
        if len(items) % 2:
            raise MalformedError("a key has no value")
        self._actions.store(self._top(), items)

    def _add_items(self) -> None:
        items = self._pop_to_mark()
        self._actions.add(self._top(), items)

    # -- the stack and the memo --------------------------------------------------------------

    def _mark(self) -> None:
        if len(self._marks) >= _MOST_MARKS:
            raise MalformedError(f"more than {_MOST_MARKS} things are begun in each other")
        self._marks.append(len(self._stack))

    def _drop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._actions.dropped(self._pop())

    def _drop_to_mark(self) -> None:
        self._pop_to_mark()

    def _duplicate(self) -> None:
        self._push(self._top())

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

    def _put_line(self) -> None:
        self._put(_decimal(self._line()))

    def _get_line(self) -> None:
        self._get(_decimal(self._line()))

    # -- names, calls and states -------------------------------------------------------------

    def _global(self) -> None:
        module, name = self._line(), self._line()
        self._push(self._found(module.decode(), name.decode()))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
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

    def _extension(self) -> None:
        raise MalformedError("it names something by a number of copyreg's registry")

    def _buffer(self) -> None:
        raise MalformedError("it takes data that is not in it")

    def _persistent(self) -> None:
        self._push(self._actions.persistent(self._pop()))

    def _persistent_line(self) -> None:
        self._push(self._actions.persistent(self._line().decode("ascii")))

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        self._push(self._actions.call(function, arguments))

    def _new(self) -> None:
        arguments, kind = self._pop(), self._pop()
        self._push(self._actions.make(kind, arguments, None))

    def _new_named(self) -> None:
        named, arguments, kind = self._pop(), self._pop(), self._pop()
        self._push(self._actions.make(kind, arguments, named))

    def _object(self) -> None:
        parts = self._pop_to_mark()
        if not parts:
            raise MalformedError("it makes an object of no class")
        self._push(self._actions.call(parts[0], tuple(parts[1:])))

    def _instance(self) -> None:
        module, name = self._line(), self._line()
        kind = self._found(module.decode("ascii"), name.decode("ascii"))
        self._push(self._actions.call(kind, tuple(self._pop_to_mark())))

    def _build(self) -> None:
        state = self._pop()
        self._actions.build(self._top(), state)

    # -- the frame around it all -------------------------------------------------------------

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

    def _unknown(self) -> None:
        code = self._data[self._at - 1 : self._at]
        raise MalformedError(f"{code!r} is no opcode")

    def _outdated(self) -> None:
        code = self._data[self._at - 1 : self._at]
        raise MalformedError(f"{code!r} is an opcode of protocol 0 or 1")


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _decimal(line: bytes) -> int:
    if not (line.isdigit() and len(line) < 20):
        raise MalformedError("a place in the memo is no number")
    return int(line)


def _reason(failure: BaseException) -> str:
    if isinstance(failure, IndexError):
        return "it is cut off"
    if isinstance(failure, RecursionError):
        return "it lies deeper in itself than can be followed"
    return str(failure) or type(failure).__name__


_STOP: Final = ord(".")
_OF_BAD_PICKLES: Final = (IndexError, ValueError, OverflowError, RecursionError, MemoryError)


_Handler = Callable[[PickleMachine], None]


def _constant(value: StackItem) -> _Handler:
    return lambda machine: machine._push(value)


def _unsigned(size: int) -> _Handler:
    return lambda machine: machine._push(machine._number(size))


def _sized(size: int, made: Callable[[bytes], StackItem]) -> _Handler:
    """Bytes with their number before them, and what becomes of them."""
    return lambda machine: machine._push(made(machine._take(machine._number(size))))


def _tuple_of(size: int) -> _Handler:
    def push(machine: PickleMachine) -> None:
        stack, marks = machine._stack, machine._marks
        start = len(stack) - size
        if start < (marks[-1] if marks else 0):
            raise MalformedError("it takes more than there is")
        values = stack[start:]
        del stack[start:]
        stack.append(machine._grouped(values))

    return push


def _put(size: int) -> _Handler:
    return lambda machine: machine._put(machine._number(size))


def _get(size: int) -> _Handler:
    return lambda machine: machine._get(machine._number(size))


def _ascii(data: bytes) -> str:
    return data.decode("ascii")


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_WRITTEN_TODAY: Final[Mapping[bytes, _Handler]] = {
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b")": _constant(()),
    b"K": _unsigned(1),
    b"M": _unsigned(2),
    b"J": PickleMachine._signed,
    b"\x8a": _sized(1, _integer),
    b"\x8b": PickleMachine._long4,
    b"G": PickleMachine._float,
    b"C": _sized(1, bytes),
    b"B": _sized(4, bytes),
    b"\x8e": _sized(8, bytes),
    b"\x96": _sized(8, bytearray),
    b"U": _sized(1, _ascii),
    b"T": _sized(4, _ascii),
    b"\x8c": _sized(1, _utf8),
    b"X": _sized(4, _utf8),
    b"\x8d": _sized(8, _utf8),
    b"t": PickleMachine._tuple,
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"]": PickleMachine._empty_list,
    b"}": PickleMachine._empty_dict,
    b"\x8f": PickleMachine._empty_set,
    b"\x91": PickleMachine._frozenset,
    b"a": PickleMachine._append,
    b"e": PickleMachine._appends,
    b"s": PickleMachine._set_item,
    b"u": PickleMachine._set_items,
    b"\x90": PickleMachine._add_items,
    b"(": PickleMachine._mark,
    b"0": PickleMachine._drop,
    b"1": PickleMachine._drop_to_mark,
    b"2": PickleMachine._duplicate,
    b"\x94": PickleMachine._memoize,
    b"q": _put(1),
    b"r": _put(4),
    b"h": _get(1),
    b"j": _get(4),
    b"c": PickleMachine._global,
    b"\x93": PickleMachine._stack_global,
    b"Q": PickleMachine._persistent,
    b"R": PickleMachine._reduce,
    b"\x81": PickleMachine._new,
    b"\x92": PickleMachine._new_named,
    b"b": PickleMachine._build,
    b"\x80": PickleMachine._protocol,
    b"\x95": PickleMachine._frame,
    b"\x82": PickleMachine._extension,
    b"\x83": PickleMachine._extension,
    b"\x84": PickleMachine._extension,
    b"\x97": PickleMachine._buffer,
    b"\x98": PickleMachine._buffer,
}
"""What picklers of protocol 2 and later write."""

_WRITTEN_ONCE: Final[Mapping[bytes, _Handler]] = {
    b"I": PickleMachine._text_line,
    b"L": PickleMachine._text_line,
    b"F": PickleMachine._text_line,
    b"S": PickleMachine._string_line,
    b"V": PickleMachine._unicode_line,
    b"l": PickleMachine._list,
    b"d": PickleMachine._dict,
    b"p": PickleMachine._put_line,
    b"g": PickleMachine._get_line,
    b"P": PickleMachine._persistent_line,
    b"o": PickleMachine._object,
    b"i": PickleMachine._instance,
}
"""What only those of protocols 0 and 1 write."""


def _table(
    *parts: Mapping[bytes, _Handler],
    otherwise: _Handler = PickleMachine._unknown,
    outdated: Iterable[bytes] = (),
) -> tuple[_Handler, ...]:
    known = {ord(code): handler for part in parts for code, handler in part.items()}
    known |= {ord(code): PickleMachine._outdated for code in outdated}
    return tuple(known.get(code, otherwise) for code in range(256))


_MODERN: Final = _table(_WRITTEN_TODAY, outdated=_WRITTEN_ONCE)
_ALL: Final = _table(_WRITTEN_TODAY, _WRITTEN_ONCE)
