"""From one opcode to the next: the machine has a table with an entry for each byte."""

from __future__ import annotations

import pickletools
from typing import Final

from modpack.discovery._picklemachine.actions import FOR_ACTIONS
from modpack.discovery._picklemachine.found import Found, MalformedError, Memo
from modpack.discovery._picklemachine.machine import Machine
from modpack.discovery._picklemachine.opcodes import FOR_VALUES, Handler
from modpack.discovery._picklemachine.stack import NO_FRAME
from modpack.discovery._picklemachine.values import OPAQUE
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["run"]

_SHORTEST_NESTED: Final = 6
"""Bytes of the shortest pickle that names something and does something with it."""
_STOP: Final = -2
_OTHER: Final = -1

_CODES: Final = {each.name: ord(each.code) for each in pickletools.opcodes}
_PLAIN: Final = {
    **{"NONE": 0, "NEWTRUE": 0, "NEWFALSE": 0, "BINFLOAT": 8},
    **{"EMPTY_LIST": 0, "EMPTY_SET": 0},
}
"""Opcodes that push a value of no interest, with the bytes of their arguments."""


def _sizes() -> tuple[int, ...]:
    """For each byte: how long a plain opcode's argument is, or that it is another opcode."""
    known = {_CODES[name]: size for name, size in _PLAIN.items()}
    return tuple({**known, _CODES["STOP"]: _STOP}.get(code, _OTHER) for code in range(256))


def _handlers() -> tuple[Handler | None, ...]:
    """For each byte: what to do about it; None for those that are no opcodes."""
    named = {**FOR_VALUES, **FOR_ACTIONS}
    known = {code: named.get(name) for name, code in _CODES.items()}
    return tuple(known.get(code) for code in range(256))


_SIZES: Final = _sizes()
_HANDLERS: Final = _handlers()


def run(found: Found, memo: Memo, data: bytes, start: int) -> int:
    """Follow one pickle, and those that are bytes in it, but not those in these.

    Args:
        found: is told what it does.
        memo: of the unpickler.
        data: a record with the pickle in it.
        start: where the pickle begins.

    Returns:
        Where it ends.

    Raises:
        MalformedError: it is no pickle; ``found.at`` tells where that shows.
    """
    return _run(Machine(found, memo, data, start, _look_inside))


def _look_inside(found: Found, content: bytes) -> None:
    """Whether bytes are a pickle that names something."""
    if len(content) < _SHORTEST_NESTED:
        return
    inner = Found()
    try:
        _run(Machine(inner, Memo(), content, 0, look_inside=None))
    except MalformedError:
        return
    if inner.names():
        found.nested.append((found.at, content))
        found.flaw(FlawKind.NESTED, "bytes in it are a pickle themselves")


def _run(machine: Machine) -> int:
    try:
        return _follow(machine)
    except MalformedError:
        raise
    except RecursionError as failure:
        raise MalformedError(
            "what it calls lies deeper in itself than can be followed"
        ) from failure
    except (IndexError, KeyError) as failure:
        raise MalformedError("it takes what is not there") from failure
    except (ValueError, OverflowError) as failure:
        raise MalformedError(str(failure)) from failure


def _follow(machine: Machine) -> int:
    data, sizes, handlers, found = machine.data, _SIZES, _HANDLERS, machine.found
    push = machine.stack.append
    at = machine.start
    while True:
        found.at = at
        if at >= machine.frame_end:
            _leave_frame(machine, at)
        code = data[at]
        size = sizes[code]
        if size >= 0:
            push(OPAQUE)
            at += 1 + size
        elif size == _STOP:
            machine.pop()
            if machine.frame_end not in (at + 1, NO_FRAME):
                found.flaw(FlawKind.MALFORMED, "it ends before its frame does")
            return at + 1
        else:
            handler = handlers[code]
            if handler is None:
                raise MalformedError(f"{data[at : at + 1]!r} is no opcode")
            at = handler(machine, at + 1)


def _leave_frame(machine: Machine, at: int) -> None:
    """A frame ends with an opcode: of one that goes on, the unpickler would read other bytes."""
    if at > machine.frame_end:
        machine.found.flaw(FlawKind.MALFORMED, "an opcode goes on behind the end of its frame")
    machine.frame_end = NO_FRAME
