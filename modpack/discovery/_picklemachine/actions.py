"""Opcodes that name something, or do something with what was named.

They are functions like those of :mod:`modpack.discovery._picklemachine.opcodes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modpack.discovery._picklemachine.calls import call, instantiate
from modpack.discovery._picklemachine.changes import change
from modpack.discovery._picklemachine.machine import Machine
from modpack.discovery._picklemachine.opcodes import Handler
from modpack.discovery._picklemachine.values import OPAQUE
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["FOR_ACTIONS"]


# -- what is named ---------------------------------------------------------------------------


def _global(machine: Machine, at: int) -> int:
    module, at = machine.line(at)
    name, at = machine.line(at)
    machine.stack.append(machine.take(module.decode(), name.decode()))
    return at


def _stack_global(machine: Machine, at: int) -> int:
    name, module = machine.pop(), machine.pop()
    if isinstance(module, str) and isinstance(name, str):
        machine.stack.append(machine.take(module, name))
    else:
        machine.push_unresolved("it takes a name that is made while it runs")
    return at


def _extension(size: int) -> Handler:
    def handle(machine: Machine, at: int) -> int:
        number = machine.number(at, size)
        text = f"it names something by the number {number} of the extension registry"
        machine.found.flaw(FlawKind.EXTENSION, text)
        machine.stack.append(OPAQUE)
        return at + size

    return handle


def _next_buffer(machine: Machine, at: int) -> int:
    machine.found.flaw(FlawKind.BUFFER, "it takes data that is not in it")
    machine.stack.append(OPAQUE)
    return at


def _readonly_buffer(machine: Machine, at: int) -> int:
    machine.top()
    machine.found.flaw(FlawKind.BUFFER, "it takes data that is not in it")
    return at


def _persid(machine: Machine, at: int) -> int:
    _, end = machine.line(at)
    machine.push_unresolved("it takes something by a persistent id that is a text")
    return end


def _binpersid(machine: Machine, at: int) -> int:
    value = machine.pop()
    kind = value[0] if isinstance(value, tuple) and value else None
    rest = value[1:] if isinstance(value, tuple) else ()
    if kind == "storage" and len(rest) == 4 and isinstance(rest[1], (str, int)):
        machine.found.storage(str(rest[1]), rest[0], rest[3])
        machine.stack.append(OPAQUE)
    elif kind == "module" and len(rest) == 1 and isinstance(rest[0], str) and rest[0]:
        machine.stack.append(machine.found.named(rest[0], ""))
    elif kind == "reduce_package" and len(rest) in (2, 3):
        arguments = rest[-1]
        known = (OPAQUE, *arguments) if isinstance(arguments, tuple) else None
        machine.stack.append(call(machine.found, rest[-2], known))
    else:
        machine.push_unresolved("it takes something by a persistent id that is not known")
    return at


# -- what is done ----------------------------------------------------------------------------


def _reduce(machine: Machine, at: int) -> int:
    arguments, called = machine.pop(), machine.pop()
    machine.stack.append(machine.call(called, arguments))
    return at


def _newobj(machine: Machine, at: int) -> int:
    arguments, kind = machine.pop(), machine.pop()
    known = arguments if isinstance(arguments, tuple) else None
    machine.stack.append(instantiate(machine.found, kind, known))
    return at


def _newobj_ex(machine: Machine, at: int) -> int:
    machine.pop()
    return _newobj(machine, at)


def _obj(machine: Machine, at: int) -> int:
    kind, *arguments = machine.pop_to_mark()
    machine.stack.append(machine.call(kind, tuple(arguments)))
    return at


def _inst(machine: Machine, at: int) -> int:
    module, at = machine.line(at)
    name, at = machine.line(at)
    arguments = tuple(machine.pop_to_mark())
    kind = machine.take(module.decode(), name.decode())
    machine.stack.append(machine.call(kind, arguments))
    return at


def _build(machine: Machine, at: int) -> int:
    state = machine.pop()
    change(machine.found, machine.top(), state)
    return at


def _adding(count: int) -> Handler:
    def handle(machine: Machine, at: int) -> int:
        machine.add([machine.pop() for _ in range(count)][::-1])
        return at

    return handle


def _adding_many(machine: Machine, at: int) -> int:
    machine.add(machine.pop_to_mark())
    return at


def _append(machine: Machine, at: int) -> int:
    machine.append([machine.pop()])
    return at


def _append_many(machine: Machine, at: int) -> int:
    machine.append(machine.pop_to_mark())
    return at


FOR_ACTIONS: Final[Mapping[str, Handler]] = {
    **{"GLOBAL": _global, "STACK_GLOBAL": _stack_global},
    **{f"EXT{size}": _extension(size) for size in (1, 2, 4)},
    **{"NEXT_BUFFER": _next_buffer, "READONLY_BUFFER": _readonly_buffer},
    **{"PERSID": _persid, "BINPERSID": _binpersid},
    **{"REDUCE": _reduce, "NEWOBJ": _newobj, "NEWOBJ_EX": _newobj_ex, "OBJ": _obj, "INST": _inst},
    **{"BUILD": _build, "SETITEM": _adding(2), "SETITEMS": _adding_many},
    **{"APPEND": _append, "APPENDS": _append_many, "ADDITEMS": _append_many},
}
"""By their names in :mod:`pickletools`."""
