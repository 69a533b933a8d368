"""The stack machine of pickles (PEP 307, PEP 3154, PEP 574), followed without running anything.

:mod:`pickletools` documents the opcodes. The machine has a table with one entry for each byte, as
the real ones have; what an opcode does to values of interest is followed, of all others only how
many there are.
"""

from __future__ import annotations

import codecs
import pickletools
import re
from collections.abc import Callable
from typing import Final

from modpack.core.knownnames import special_attribute
from modpack.discovery._picklecalls import call, change, instantiate, mutate
from modpack.discovery._picklefound import Found, MalformedError, Memo
from modpack.discovery._picklereach import give, put
from modpack.discovery._picklestack import Stack
from modpack.discovery._picklestackvalues import OPAQUE, Made, Named, Table
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["run"]

_HIGHEST_PROTOCOL: Final = 5
_OLD_PROTOCOLS: Final = 3
"""From this one on, names are those of Python 3."""
_MOST_MARKS: Final = 100_000
_MOST_TABLES: Final = 1_500_000
"""Dictionaries that are looked into."""
_LONGEST_NUMBER: Final = 4302
"""Characters, with a sign and an L; see :data:`sys.int_info`."""
_SHORTEST_NESTED: Final = 6
"""Bytes of the shortest pickle that names something and does something with it."""


def run(found: Found, memo: Memo, data: bytes, start: int, is_nested: bool = False) -> int:
    """Follow one pickle.

    Args:
        found: is told what it does.
        memo: of the unpickler.
        data: a record with the pickle in it.
        start: where the pickle begins.
        is_nested: whether it was found in another pickle: bytes in it are left alone then.

    Returns:
        Where it ends.

    Raises:
        MalformedError: it is no pickle; ``found.at`` tells where that shows.
    """
    machine = _Machine(found, memo, data, start, is_nested)
    try:
        return machine.run()
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


_Handler = Callable[["_Machine", int], int]
"""Does what an opcode does whose argument begins at a place; returns where the next one is."""

_CODES: Final = {each.name: ord(each.code) for each in pickletools.opcodes}
_PLAIN: Final = {
    **{"NONE": 0, "NEWTRUE": 0, "NEWFALSE": 0, "BINFLOAT": 8},
    **{"EMPTY_LIST": 0, "EMPTY_SET": 0},
}
"""Opcodes that push a value of no interest, with the bytes of their arguments."""
_STOP: Final = -2
_OTHER: Final = -1
_SIZES: Final = tuple(
    {**{_CODES[name]: size for name, size in _PLAIN.items()}, _CODES["STOP"]: _STOP}.get(
        code, _OTHER
    )
    for code in range(256)
)
_BLANK: Final = re.compile(r"\s")
_NO_VALUES: Final[tuple[object, ...]] = ()


class _Machine(Stack):
    """Follows one pickle."""

    def __init__(self, found: Found, memo: Memo, data: bytes, start: int, is_nested: bool) -> None:
        super().__init__(data)
        self._found = found
        self._memo = memo
        self._start = start
        self._is_nested = is_nested
        self._tables = 0
        if found.has_old_names is None:  # the unpickler of packages looks at these bytes only
            is_new = data[start : start + 1] == b"\x80" and data[start + 1 : start + 2] >= b"\x03"
            found.has_old_names = not is_new

    def run(self) -> int:
        data, sizes, handlers, found = self.data, _SIZES, _HANDLERS, self._found
        push = self.stack.append
        at = self._start
        while True:
            found.at = at
            code = data[at]
            size = sizes[code]
            if size >= 0:
                push(OPAQUE)
                at += 1 + size
            elif size == _STOP:
                self.pop()
                return at + 1
            else:
                handler = handlers[code]
                if handler is None:
                    raise MalformedError(f"{data[at : at + 1]!r} is no opcode")
                at = handler(self, at + 1)

    # -- values ------------------------------------------------------------------------------

    def _look_inside(self, content: bytes) -> None:
        """Whether bytes are a pickle that names something."""
        if len(content) < _SHORTEST_NESTED:
            return
        inner = Found()
        try:
            run(inner, Memo(), content, 0, is_nested=True)
        except MalformedError:
            return
        if inner.names():
            self._found.nested.append((self._found.at, content))
            self._found.flaw(FlawKind.NESTED, "bytes in it are a pickle themselves")

    def _on_number(self, at: int) -> int:
        line, end = self.line(at)
        if len(line) > _LONGEST_NUMBER:
            raise MalformedError("a number has more digits than Python reads")
        self.stack.append(OPAQUE)
        return end

    def _on_unicode(self, at: int) -> int:
        line, end = self.line(at)
        self.stack.append(line.decode("raw-unicode-escape"))
        return end

    def _on_string(self, at: int) -> int:
        line, end = self.line(at)
        line = line.strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise MalformedError("a text has no quotes around it")
        self.stack.append(codecs.escape_decode(line[1:-1])[0].decode("latin1"))
        return end

    def push_tuple(self, values: list[object]) -> None:
        kept = self.kept
        super().push_tuple(values)
        if self.kept != kept:  # there is something of interest in it
            give(self._found, values)

    def _add(self, values: list[object]) -> None:
        """Follow how items are added to what is on the stack."""
        target = self.top()
        if isinstance(target, (Table, Made)):
            put(self._found, values)
        else:
            give(self._found, values)
        if isinstance(target, Table) and not target.is_closed:
            target.fill(values)
        else:
            mutate(self._found, target)

    def _on_tuple(self, at: int) -> int:
        self.push_tuple(self.pop_to_mark())
        return at

    def _on_empty_dict(self, at: int) -> int:
        """Only the bodies of graphs are looked into."""
        self._tables += 1
        self.stack.append(Table() if self._tables < _MOST_TABLES else OPAQUE)
        return at

    def _on_collected(self, at: int) -> int:
        """A list or a frozenset of what is above the mark."""
        give(self._found, self.pop_to_mark())
        self.stack.append(OPAQUE)
        return at

    def _on_dict(self, at: int) -> int:
        values = self.pop_to_mark()
        self._on_empty_dict(at)
        self._add(values)
        return at

    # -- the stack and the memo --------------------------------------------------------------

    def _on_mark(self, at: int) -> int:
        if len(self.marks) >= _MOST_MARKS:
            raise MalformedError(f"more than {_MOST_MARKS} things are begun in each other")
        self.marks.append(len(self.stack))
        return at

    def _on_pop(self, at: int) -> int:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()
        return at

    def _on_pop_mark(self, at: int) -> int:
        self.pop_to_mark()
        return at

    def _on_dup(self, at: int) -> int:
        self.stack.append(self.top())
        return at

    def _on_memoize(self, at: int) -> int:
        self._memo.put(len(self._memo), self.top())
        return at

    def _on_put(self, at: int) -> int:
        line, end = self.line(at)
        self._memo.put(int(line), self.top())
        return end

    def _on_get(self, at: int) -> int:
        line, end = self.line(at)
        self.stack.append(self._memo.get(int(line)))
        return end

    def _on_proto(self, at: int) -> int:
        protocol = self.number(at, 1)
        if protocol > _HIGHEST_PROTOCOL:
            self._found.flaw(FlawKind.MALFORMED, f"its protocol {protocol} is unknown")
        if at - 1 != self._start or (protocol < _OLD_PROTOCOLS) != self._found.has_old_names:
            self._found.flaw(FlawKind.MALFORMED, "it changes its protocol on the way")
        return at + 1

    def _on_frame(self, at: int) -> int:
        self.fixed(at, 8)
        return at + 8

    # -- what is named -----------------------------------------------------------------------

    def _on_global(self, at: int) -> int:
        module, at = self.line(at)
        name, at = self.line(at)
        self.stack.append(self._take(module.decode(), name.decode()))
        return at

    def _on_stack_global(self, at: int) -> int:
        name, module = self.pop(), self.pop()
        if isinstance(module, str) and isinstance(name, str):
            self.stack.append(self._take(module, name))
        else:
            self._unresolved("it takes a name that is made while it runs")
        return at

    def _take(self, module: str, name: str) -> object:
        if not module or not name or _BLANK.search(module) or _BLANK.search(name):
            told = f"it takes {f'{module} {name}'!r:.200}, which is no module and name"
            self._found.flaw(FlawKind.UNRESOLVED, told)
            return OPAQUE
        if self._found.has_old_names:
            module, name = _todays_name(module, name)
        special = special_attribute(name) if "__" in name else None
        if special is not None and name != special:
            self._found.flaw(FlawKind.REACHES, f"it takes the attribute {special} of {module}")
        return self._found.named(module, name)

    def _unresolved(self, text: str) -> None:
        self._found.flaw(FlawKind.UNRESOLVED, text)
        self.stack.append(OPAQUE)

    def _on_next_buffer(self, at: int) -> int:
        self._found.flaw(FlawKind.BUFFER, "it takes data that is not in it")
        self.stack.append(OPAQUE)
        return at

    def _on_readonly_buffer(self, at: int) -> int:
        self.top()
        self._found.flaw(FlawKind.BUFFER, "it takes data that is not in it")
        return at

    def _on_persid(self, at: int) -> int:
        _, end = self.line(at)
        self._unresolved("it takes something by a persistent id that is a text")
        return end

    def _on_binpersid(self, at: int) -> int:
        value = self.pop()
        kind = value[0] if isinstance(value, tuple) and value else None
        rest = value[1:] if isinstance(value, tuple) else ()
        if kind == "storage" and len(rest) == 4 and isinstance(rest[1], (str, int)):
            self._found.storage(str(rest[1]), rest[0], rest[3])
            self.stack.append(OPAQUE)
        elif kind == "module" and len(rest) == 1 and isinstance(rest[0], str) and rest[0]:
            self.stack.append(self._found.named(rest[0], ""))
        elif kind == "reduce_package" and len(rest) in (2, 3):
            arguments = rest[-1]
            known = (OPAQUE, *arguments) if isinstance(arguments, tuple) else None
            self.stack.append(call(self._found, rest[-2], known))
        else:
            self._unresolved("it takes something by a persistent id that is not known")
        return at

    # -- what is done ------------------------------------------------------------------------

    def _on_reduce(self, at: int) -> int:
        arguments, called = self.pop(), self.pop()
        self.stack.append(self._called(called, arguments))
        return at

    def _called(self, called: object, arguments: object) -> object:
        made = call(self._found, called, arguments if isinstance(arguments, tuple) else None)
        if isinstance(called, Named) and made is not called.made:
            self.keep()
        return made

    def _on_newobj(self, at: int) -> int:
        arguments, kind = self.pop(), self.pop()
        known = arguments if isinstance(arguments, tuple) else None
        self.stack.append(instantiate(self._found, kind, known))
        return at

    def _on_newobj_ex(self, at: int) -> int:
        self.pop()
        return self._on_newobj(at)

    def _on_obj(self, at: int) -> int:
        kind, *arguments = self.pop_to_mark()
        self.stack.append(self._called(kind, tuple(arguments)))
        return at

    def _on_inst(self, at: int) -> int:
        module, at = self.line(at)
        name, at = self.line(at)
        arguments = tuple(self.pop_to_mark())
        self.stack.append(self._called(self._take(module.decode(), name.decode()), arguments))
        return at

    def _on_build(self, at: int) -> int:
        state = self.pop()
        change(self._found, self.top(), state)
        return at

    def _on_adding_many(self, at: int) -> int:
        self._add(self.pop_to_mark())
        return at


def _opaque(size: int) -> _Handler:
    """Pushes a value of no interest, whose argument has a number of bytes before it."""

    def handle(self: _Machine, at: int) -> int:
        length = self.number(at, size)
        end = at + size + length
        if end > len(self.data):
            raise MalformedError("it is cut off")
        self.stack.append(OPAQUE)
        return end

    return handle


def _bytes(size: int) -> _Handler:
    skip = _opaque(size)

    def handle(self: _Machine, at: int) -> int:
        end = skip(self, at)
        if not self._is_nested and self.data[end - 2 : end].rstrip(b"\0\n").endswith(b"."):
            self._look_inside(self.data[at + size : end])
        return end

    return handle


def _text(size: int, encoding: str) -> _Handler:
    def handle(self: _Machine, at: int) -> int:
        length = self.number(at, size)
        start = at + size
        self.stack.append(self.fixed(start, length).decode(encoding, "surrogatepass"))
        return start + length

    return handle


def _integer(size: int) -> _Handler:
    def handle(self: _Machine, at: int) -> int:
        self.stack.append(self.number(at, size))
        return at + size

    return handle


def _tuple(length: int) -> _Handler:
    def handle(self: _Machine, at: int) -> int:
        start = len(self.stack) - length
        if start < (self.marks[-1] if self.marks else 0):
            raise MalformedError("a tuple takes more than there is")
        values = self.stack[start:]
        del self.stack[start:]
        self.push_tuple(values)
        return at

    return handle


def _empty_tuple(self: _Machine, at: int) -> int:
    self.stack.append(_NO_VALUES)
    return at


def _put(size: int) -> _Handler:
    def handle(self: _Machine, at: int) -> int:
        self._memo.put(self.number(at, size), self.top())
        return at + size

    return handle


def _get(size: int) -> _Handler:
    def handle(self: _Machine, at: int) -> int:
        self.stack.append(self._memo.get(self.number(at, size)))
        return at + size

    return handle


def _extension(size: int) -> _Handler:
    def handle(self: _Machine, at: int) -> int:
        number = self.number(at, size)
        text = f"it names something by the number {number} of the extension registry"
        self._found.flaw(FlawKind.EXTENSION, text)
        self.stack.append(OPAQUE)
        return at + size

    return handle


def _adding(count: int) -> _Handler:
    def handle(self: _Machine, at: int) -> int:
        self._add([self.pop() for _ in range(count)][::-1])
        return at

    return handle


def _table() -> list[_Handler | None]:
    """What to do about each byte; None for those that are no opcodes."""
    named: dict[str, _Handler] = {
        **dict.fromkeys(("INT", "LONG", "FLOAT"), _Machine._on_number),
        **dict.fromkeys(("LIST", "FROZENSET"), _Machine._on_collected),
        **dict.fromkeys(("APPENDS", "SETITEMS", "ADDITEMS"), _Machine._on_adding_many),
        **{"APPEND": _adding(1), "SETITEM": _adding(2)},
        **{"LONG1": _opaque(1), "LONG4": _opaque(4)},
        **{"SHORT_BINBYTES": _bytes(1), "BINBYTES": _bytes(4)},
        **{"BINBYTES8": _bytes(8), "BYTEARRAY8": _bytes(8)},
        **{"SHORT_BINSTRING": _text(1, "latin1"), "BINSTRING": _text(4, "latin1")},
        **{"SHORT_BINUNICODE": _text(1, "utf-8"), "BINUNICODE": _text(4, "utf-8")},
        "BINUNICODE8": _text(8, "utf-8"),
        **{"BININT1": _integer(1), "BININT2": _integer(2)},
        "BININT": _integer(4),
        **{"EMPTY_TUPLE": _empty_tuple, "TUPLE1": _tuple(1)},
        **{"TUPLE2": _tuple(2), "TUPLE3": _tuple(3)},
        **{"BINPUT": _put(1), "LONG_BINPUT": _put(4)},
        **{"BINGET": _get(1), "LONG_BINGET": _get(4)},
        **{f"EXT{size}": _extension(size) for size in (1, 2, 4)},
    }
    table: list[_Handler | None] = [None] * 256
    for name, code in _CODES.items():
        table[code] = named.get(name) or getattr(_Machine, f"_on_{name.lower()}", None)
    return table


_HANDLERS: Final = _table()


def _todays_name(module: str, name: str) -> tuple[str, str]:
    """What Python 2's names are called now; unpicklers translate them for old protocols."""
    from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING

    if (module, name) in NAME_MAPPING:
        return NAME_MAPPING[module, name]
    return IMPORT_MAPPING.get(module, module), name
