"""What a pickle names and how, read off its opcodes: nothing is unpickled.

A pickle is a program for a small stack machine (PEP 307, PEP 3154; :mod:`pickletools` documents
the opcodes). All that it can reach in the interpreter that loads it, it has to name: with GLOBAL
or INST in one text, or with STACK_GLOBAL by two texts on the stack. The machine is followed as far
as is needed to know these texts. Whatever cannot be followed is a flaw, and so is whatever could
smuggle in something that was not named.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["FlawKind", "PickleFlaw", "PickleReader", "PickleScan", "PickledName", "scan_pickle"]

_HIGHEST_PROTOCOL: Final = 5
_SHORTEST_NESTED: Final = 6
"""Bytes of the shortest pickle that names something and does something with it."""


class FlawKind(str, Enum):
    """Why a pickle cannot be relied upon to do only what it names."""

    MALFORMED = "malformed"
    """It is no pickle, or is cut off."""
    UNRESOLVED = "unresolved"
    """It takes a name that is made while it runs."""
    EXTENSION = "extension"
    """It names something by a number of copyreg's registry."""
    TRAILING = "trailing"
    """Something follows where it ends."""
    NESTED = "nested"
    """Bytes in it are a pickle themselves, which names something."""
    BUFFER = "buffer"
    """It takes data that is not in it."""


@dataclass(frozen=True)
class PickledName:
    """Something that a pickle looks up in a module.

    Attributes:
        module: the module path, as today's Python calls it.
        name: what is taken from it, dotted; empty for the module itself, which packages hold as a
            persistent id.
        position: of the opcode, in bytes from the start.
    """

    module: str
    name: str
    position: int

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True)
class PickleFlaw:
    """Something in a pickle that keeps one from knowing what it does.

    Attributes:
        kind: what it is.
        text: the same in one sentence.
        position: of the opcode, in bytes from the start.
    """

    kind: FlawKind
    text: str
    position: int


@dataclass(frozen=True)
class PickleScan:
    """What the opcodes tell.

    Attributes:
        names: everything that is looked up, each at its first place, in order.
        flaws: what keeps this from being all; empty for what picklers write.
        end: where the pickle ends, in bytes from the start.
    """

    names: tuple[PickledName, ...] = ()
    flaws: tuple[PickleFlaw, ...] = ()
    end: int = 0


def scan_pickle(data: bytes) -> PickleScan:
    """Read what one pickle names.

    >>> import pickle, decimal
    >>> [str(name) for name in scan_pickle(pickle.dumps([decimal.Decimal(1)])).names]
    ['decimal.Decimal']
    >>> scan_pickle(b"no pickle").flaws[0].kind
    <FlawKind.MALFORMED: 'malformed'>
    """
    return PickleReader().read(data)


class PickleReader:
    """Reads pickles that continue each other: one unpickler loads them, with one memo."""

    def __init__(self) -> None:
        self._memo: dict[int, object] = {}

    def read(self, data: bytes, *, several: bool = False) -> PickleScan:
        """Read what is in a record.

        Args:
            data: the record.
            several: whether pickles may follow each other in it, up to its end.
        """
        names: dict[tuple[str, str], PickledName] = {}
        flaws: list[PickleFlaw] = []
        start = end = 0
        while True:
            machine = _Machine(self._memo, data, start)
            for found in machine.run():
                if isinstance(found, PickleFlaw):
                    flaws.append(found)
                else:
                    names.setdefault((found.module, found.name), found)
            end = machine.end
            if not several or end >= len(data) or not machine.has_stopped:
                break
            start = end
        if machine.has_stopped and end < len(data):
            text = f"{len(data) - end} bytes follow where it ends"
            flaws.append(PickleFlaw(FlawKind.TRAILING, text, end))
        return PickleScan(tuple(names.values()), tuple(flaws), end)


_OPAQUE: Final = object()
"""A value that is no text: nothing can be named by it."""

_TEXTS: Final = frozenset(
    {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING"}
)
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_EXTENSIONS: Final = frozenset({"EXT1", "EXT2", "EXT4"})
_BUFFERS: Final = frozenset({"NEXT_BUFFER", "READONLY_BUFFER"})
_BYTES: Final = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
_SEEING: Final = (
    frozenset({"GLOBAL", "INST", "STACK_GLOBAL", "BINPERSID", "PROTO"})
    | _EXTENSIONS
    | _BUFFERS
    | _BYTES
)
"""Opcodes that name something, or might smuggle something in."""


def _effects() -> dict[str, tuple[bool, int, int]]:
    """For each opcode: whether it pops down to a mark, what it pops besides, what it pushes."""
    effects = {}
    for opcode in pickletools.opcodes:
        before = [each for each in opcode.stack_before if each is not pickletools.stackslice]
        to_mark = pickletools.markobject in before
        effects[opcode.name] = (to_mark, len(before) - to_mark, len(opcode.stack_after))
    return effects


_EFFECTS: Final = _effects()


class _Machine:
    """Follows one pickle."""

    def __init__(self, memo: dict[int, object], data: bytes, start: int) -> None:
        self.end = start
        self.has_stopped = False
        self._memo = memo
        self._data = data
        self._start = start
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._protocol = 0

    def run(self) -> Iterator[PickledName | PickleFlaw]:
        position = self._start
        try:
            for opcode, argument, at in pickletools.genops(self._file()):
                position = at or 0
                if opcode.name in _SEEING:
                    yield from self._see(opcode.name, argument, position)
                else:
                    self._step(opcode.name, argument)
        except (ValueError, LookupError, OverflowError, MemoryError) as failure:
            told = "it takes what is not there" if isinstance(failure, LookupError) else failure
            yield PickleFlaw(FlawKind.MALFORMED, f"it is no pickle: {told}", position)
            return
        self.has_stopped = True
        self.end = position + 1

    def _file(self) -> io.BytesIO:
        file = io.BytesIO(self._data)
        file.seek(self._start)
        return file

    def _step(self, name: str, argument: object) -> None:
        """Follow an opcode that only moves values."""
        stack = self._stack
        if name in _TEXTS:
            stack.append(argument)
        elif name in _PUTS:
            self._memo[_number(argument)] = stack[-1]
        elif name in _GETS:
            stack.append(self._memo[_number(argument)])
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _TUPLES:
            self._pack(len(stack) - _TUPLES[name])
        elif name == "TUPLE":
            self._pack(self._marks.pop())
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            self._apply(name)

    def _see(self, name: str, argument: object, at: int) -> Iterator[PickledName | PickleFlaw]:
        """Follow an opcode that names something, or might smuggle something in."""
        stack = self._stack
        if name in ("GLOBAL", "INST"):
            if name == "INST":
                del stack[self._marks.pop() :]
            stack.append(_OPAQUE)
            yield self._by_text(str(argument), at)
        elif name == "STACK_GLOBAL":
            taken, module = self._pop(), self._pop()
            stack.append(_OPAQUE)
            yield self._by_texts(module, taken, at)
        elif name == "BINPERSID":
            yield from self._by_id(self._pop(), at)
            stack.append(_OPAQUE)
        else:
            yield from self._hazards(name, argument, at)
            self._apply(name)

    def _hazards(self, name: str, argument: object, at: int) -> Iterator[PickleFlaw]:
        if name == "PROTO":
            self._protocol = _number(argument)
            if self._protocol > _HIGHEST_PROTOCOL:
                text = f"its protocol {self._protocol} is unknown"
                yield PickleFlaw(FlawKind.MALFORMED, text, at)
        elif name in _EXTENSIONS:
            text = f"it names something by the number {argument} of the extension registry"
            yield PickleFlaw(FlawKind.EXTENSION, text, at)
        elif name in _BUFFERS:
            yield PickleFlaw(FlawKind.BUFFER, "it takes data that is not in it", at)
        elif isinstance(argument, (bytes, bytearray)) and _is_nested(bytes(argument)):
            yield PickleFlaw(FlawKind.NESTED, "bytes in it are a pickle themselves", at)

    def _apply(self, name: str) -> None:
        """What an opcode does to the stack, as far as numbers go."""
        to_mark, popped, pushed = _EFFECTS[name]
        if to_mark:
            del self._stack[self._marks.pop() :]
        elif name == "POP" and self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
            return
        for _ in range(popped):
            self._pop()
        self._stack.extend([_OPAQUE] * pushed)

    def _pop(self) -> object:
        if self._marks and self._marks[-1] == len(self._stack):
            raise ValueError("it takes a mark for a value")
        return self._stack.pop()

    def _pack(self, start: int) -> None:
        """Put the values from a place of the stack on into one tuple."""
        if start < (self._marks[-1] if self._marks else 0):
            raise ValueError("a tuple takes more than there is")
        self._stack[start:] = [tuple(self._stack[start:])]

    def _named(self, module: str, name: str, at: int) -> PickledName:
        if self._protocol < 3:
            module, name = _todays_name(module, name)
        return PickledName(module, name, at)

    def _by_id(self, value: object, at: int) -> Iterator[PickledName | PickleFlaw]:
        """What a persistent id names: a module, in ``("module", path)``."""
        kind = value[0] if isinstance(value, tuple) and value else None
        if not isinstance(kind, str):
            text = "it takes something by a persistent id that is made while it runs"
            yield PickleFlaw(FlawKind.UNRESOLVED, text, at)
        elif kind == "module" and isinstance(value, tuple):
            module = value[1] if len(value) == 2 else None
            if isinstance(module, str):
                yield PickledName(module, "", at)
            else:
                text = "it takes a module by a name that is made while it runs"
                yield PickleFlaw(FlawKind.UNRESOLVED, text, at)

    def _by_text(self, text: str, at: int) -> PickledName | PickleFlaw:
        """By module and name with a blank between, which neither of them may have."""
        parts = text.split(" ")
        if len(parts) == 2:
            return self._named(parts[0], parts[1], at)
        told = f"it takes {text!r}, which is no module and name"
        return PickleFlaw(FlawKind.UNRESOLVED, told, at)

    def _by_texts(self, module: object, name: object, at: int) -> PickledName | PickleFlaw:
        if isinstance(module, str) and isinstance(name, str):
            return self._named(module, name, at)
        text = "it takes a name that is made while it runs"
        return PickleFlaw(FlawKind.UNRESOLVED, text, at)


def _number(argument: object) -> int:
    if not isinstance(argument, int):
        raise ValueError(f"{argument!r} is no number")
    return argument


def _todays_name(module: str, name: str) -> tuple[str, str]:
    """What Python 2's names are called now; unpicklers translate them for old protocols."""
    from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING

    if (module, name) in NAME_MAPPING:
        return NAME_MAPPING[module, name]
    return IMPORT_MAPPING.get(module, module), name


def _is_nested(data: bytes) -> bool:
    """Whether bytes are a pickle that names something."""
    if len(data) < _SHORTEST_NESTED or not data.rstrip(b"\0\n").endswith(b"."):
        return False
    machine = _Machine({}, data, 0)
    found = list(machine.run())
    return machine.has_stopped and any(isinstance(each, PickledName) for each in found)
