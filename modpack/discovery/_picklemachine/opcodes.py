"""Opcodes for values, the stack and the memo.

Each is a function of the machine and of the place where the opcode's argument begins; it returns
where the next opcode is. :mod:`pickletools` documents them all.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import Final

from modpack.discovery._picklemachine.found import MalformedError
from modpack.discovery._picklemachine.machine import Machine
from modpack.discovery._picklemachine.reach import give
from modpack.discovery._picklemachine.stack import NO_FRAME
from modpack.discovery._picklemachine.values import OPAQUE
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["FOR_VALUES", "Handler"]

Handler = Callable[[Machine, int], int]

_HIGHEST_PROTOCOL: Final = 5
_OLD_PROTOCOLS: Final = 3
"""From this one on, names are those of Python 3."""
_MOST_MARKS: Final = 100_000
_LONGEST_NUMBER: Final = 4302
"""Characters, with a sign and an L; see :data:`sys.int_info`."""
_NO_VALUES: Final[tuple[object, ...]] = ()


# -- values ----------------------------------------------------------------------------------


def _number(machine: Machine, at: int) -> int:
    line, end = machine.line(at)
    if len(line) > _LONGEST_NUMBER:
        raise MalformedError("a number has more digits than Python reads")
    machine.stack.append(OPAQUE)
    return end


def _integer(size: int) -> Handler:
    def handle(machine: Machine, at: int) -> int:
        machine.stack.append(machine.number(at, size))
        return at + size

    return handle


def _opaque(size: int) -> Handler:
    """A value of no interest, whose argument has a number of bytes before it."""

    def handle(machine: Machine, at: int) -> int:
        length = machine.number(at, size)
        end = at + size + length
        if end > len(machine.data):
            raise MalformedError("it is cut off")
        machine.stack.append(OPAQUE)
        return end

    return handle


def _bytes(size: int) -> Handler:
    skip = _opaque(size)

    def handle(machine: Machine, at: int) -> int:
        end = skip(machine, at)
        look_inside = machine.look_inside
        if look_inside and machine.data[end - 2 : end].rstrip(b"\0\n").endswith(b"."):
            look_inside(machine.found, machine.data[at + size : end])
        return end

    return handle


def _text(size: int, encoding: str) -> Handler:
    def handle(machine: Machine, at: int) -> int:
        length = machine.number(at, size)
        start = at + size
        machine.stack.append(machine.fixed(start, length).decode(encoding, "surrogatepass"))
        return start + length

    return handle


def _unicode(machine: Machine, at: int) -> int:
    line, end = machine.line(at)
    machine.stack.append(line.decode("raw-unicode-escape"))
    return end


def _string(machine: Machine, at: int) -> int:
    line, end = machine.line(at)
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise MalformedError("a text has no quotes around it")
    machine.stack.append(codecs.escape_decode(line[1:-1])[0].decode("latin1"))
    return end


# -- containers ------------------------------------------------------------------------------


def _empty_tuple(machine: Machine, at: int) -> int:
    machine.stack.append(_NO_VALUES)
    return at


def _tuple(machine: Machine, at: int) -> int:
    machine.push_tuple(machine.pop_to_mark())
    return at


def _tuple_of(length: int) -> Handler:
    def handle(machine: Machine, at: int) -> int:
        start = len(machine.stack) - length
        if start < (machine.marks[-1] if machine.marks else 0):
            raise MalformedError("a tuple takes more than there is")
        values = machine.stack[start:]
        del machine.stack[start:]
        machine.push_tuple(values)
        return at

    return handle


def _collected(machine: Machine, at: int) -> int:
    """A list or a frozenset of what is above the mark."""
    give(machine.found, machine.pop_to_mark())
    machine.stack.append(OPAQUE)
    return at


def _empty_dict(machine: Machine, at: int) -> int:
    machine.push_table()
    return at


def _dict(machine: Machine, at: int) -> int:
    values = machine.pop_to_mark()
    machine.push_table()
    machine.add(values)
    return at


# -- the stack and the memo ------------------------------------------------------------------


def _mark(machine: Machine, at: int) -> int:
    if len(machine.marks) >= _MOST_MARKS:
        raise MalformedError(f"more than {_MOST_MARKS} things are begun in each other")
    machine.marks.append(len(machine.stack))
    return at


def _pop(machine: Machine, at: int) -> int:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()
    return at


def _pop_mark(machine: Machine, at: int) -> int:
    machine.pop_to_mark()
    return at


def _dup(machine: Machine, at: int) -> int:
    machine.stack.append(machine.top())
    return at


def _memoize(machine: Machine, at: int) -> int:
    machine.memo.put(len(machine.memo), machine.top())
    return at


def _put(machine: Machine, at: int) -> int:
    line, end = machine.line(at)
    machine.memo.put(int(line), machine.top())
    return end


def _put_at(size: int) -> Handler:
    def handle(machine: Machine, at: int) -> int:
        machine.memo.put(machine.number(at, size), machine.top())
        return at + size

    return handle


def _get(machine: Machine, at: int) -> int:
    line, end = machine.line(at)
    machine.stack.append(machine.memo.get(int(line)))
    return end


def _get_from(size: int) -> Handler:
    def handle(machine: Machine, at: int) -> int:
        machine.stack.append(machine.memo.get(machine.number(at, size)))
        return at + size

    return handle


# -- the frame around it all -----------------------------------------------------------------


def _proto(machine: Machine, at: int) -> int:
    protocol = machine.number(at, 1)
    if protocol > _HIGHEST_PROTOCOL:
        machine.found.flaw(FlawKind.MALFORMED, f"its protocol {protocol} is unknown")
    if at - 1 != machine.start or (protocol < _OLD_PROTOCOLS) != machine.found.has_old_names:
        machine.found.flaw(FlawKind.MALFORMED, "it changes its protocol on the way")
    return at + 1


def _frame(machine: Machine, at: int) -> int:
    """Bytes that the unpickler reads at once; what does not fit into them is read elsewhere."""
    if machine.frame_end != NO_FRAME:
        machine.found.flaw(FlawKind.MALFORMED, "a frame begins inside of another")
    end = at + 8 + machine.number(at, 8)
    if end > len(machine.data):
        machine.found.flaw(FlawKind.MALFORMED, "a frame ends behind the pickle")
    machine.frame_end = end
    return at + 8


FOR_VALUES: Final[Mapping[str, Handler]] = {
    **dict.fromkeys(("INT", "LONG", "FLOAT"), _number),
    **{"BININT1": _integer(1), "BININT2": _integer(2), "BININT": _integer(4)},
    **{"LONG1": _opaque(1), "LONG4": _opaque(4)},
    **{"SHORT_BINBYTES": _bytes(1), "BINBYTES": _bytes(4)},
    **{"BINBYTES8": _bytes(8), "BYTEARRAY8": _bytes(8)},
    **{"STRING": _string, "UNICODE": _unicode},
    **{"SHORT_BINSTRING": _text(1, "latin1"), "BINSTRING": _text(4, "latin1")},
    **{"SHORT_BINUNICODE": _text(1, "utf-8"), "BINUNICODE": _text(4, "utf-8")},
    "BINUNICODE8": _text(8, "utf-8"),
    **{"EMPTY_TUPLE": _empty_tuple, "TUPLE": _tuple, "TUPLE1": _tuple_of(1)},
    **{"TUPLE2": _tuple_of(2), "TUPLE3": _tuple_of(3)},
    **dict.fromkeys(("LIST", "FROZENSET"), _collected),
    **{"EMPTY_DICT": _empty_dict, "DICT": _dict},
    **{"MARK": _mark, "POP": _pop, "POP_MARK": _pop_mark, "DUP": _dup},
    **{"MEMOIZE": _memoize, "PUT": _put, "BINPUT": _put_at(1), "LONG_BINPUT": _put_at(4)},
    **{"GET": _get, "BINGET": _get_from(1), "LONG_BINGET": _get_from(4)},
    **{"PROTO": _proto, "FRAME": _frame},
}
"""By their names in :mod:`pickletools`."""
