"""Changes of a finished pickle, opcode by opcode: other module names, and sets in order.

An object that was loaded from a package lives under a private module path. The C pickler
writes the path that the object carries; in the new package it must be the real one.

The C pickler writes a set itself, in the order of its hashes, and asks nobody but the function for
persistent ids. So that names the call that makes the set as its persistent id. Taking away the
opcode that would look the persistent id up leaves what plain pickle writes of a set, with the
members in order.

>>> import io, pickle
>>> sets = SetWriting(sorted)
>>> class Pickler(pickle.Pickler):
...     def persistent_id(self, obj):
...         return sets.persistent_id(obj) if type(obj) is set else None
>>> buffer = io.BytesIO()
>>> Pickler(buffer, 3).dump({"b", "a"})
>>> data = sets.finished(buffer.getvalue())
>>> data == pickle.dumps(Reduced((set, (["a", "b"],))), 3)
True
>>> sorted(pickle.loads(data))
['a', 'b']
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class ReducedObject:
    """Stands for an object of which the reduction is known.

    Args:
        reduction: what :meth:`object.__reduce__` would return.
    """

    __slots__ = ("reduction",)

    def __init__(self, reduction: tuple[Any, ...]) -> None:
        self.reduction = reduction

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduction


def operations(data: bytes) -> Iterator[tuple[str, Any, bytes]]:
    """The opcodes of one pickle: the name of each, its argument, and its bytes with those of it."""
    last: tuple[str, Any] | None = None
    begin = 0
    for opcode, argument, start in pickletools.genops(data):
        if last is not None:
            yield *last, data[begin:start]
        last, begin = (opcode.name, argument), start or 0
    if last is not None:
        yield *last, data[begin:]


class SetWriter:
    """Writes the sets of several pickles that share a memo.

    Args:
        ordered: gives the members of a set in order; None if they are in it as they are.
    """

    def __init__(self, ordered: Callable[[Any], list[Any] | None]) -> None:
        self._ordered = ordered
        self._met: dict[int, tuple[object, ReducedObject]] = {}
        self._numbers: set[int] = set()
        self._memoized = 0
        self._unread: list[bytes] = []

    def persistent_id(self, obj: Any) -> ReducedObject | None:
        """What stands for a ``set`` or a ``frozenset``; None if it may be written as it is."""
        if id(obj) not in self._met:
            members = self._ordered(obj)
            if members is None:
                return None
            self._met[id(obj)] = obj, ReducedObject((type(obj), (members,)))
        return self._met[id(obj)][1]

    def reduced(self, reduction: Any) -> Any:
        """What a set of a class of the user's is reduced to, with its members in order."""
        is_plain = isinstance(reduction, tuple) and len(reduction) > 1 and len(reduction[1]) == 1
        if not is_plain or type(reduction[1][0]) is not list:
            return reduction  # the class has a way of its own
        function, (members,), *rest = reduction
        return function, (self._ordered(members) or members,), *rest

    def finished(self, data: bytes) -> bytes:
        """A pickle without the opcodes that would look up the persistent ids of sets.

        What else has a persistent id has a tuple for it. Frames, which are optional (PEP 3154),
        are left out because their lengths change.

        Args:
            data: the pickle, of protocol 2 or later; the next one of those that share a memo.
        """
        self._unread.append(data)
        if not self._met:  # there is nothing to change, and nothing to look for
            return data
        *_, last = (b"".join(self._without_lookups(each)) for each in self._unread)
        self._unread = []
        return last

    def _without_lookups(self, data: bytes) -> Iterator[bytes]:
        earlier = last = ""
        number = -1
        for name, argument, piece in operations(data):
            if name == "MEMOIZE":
                number = self._memoized
                self._memoized += 1
            elif name in _PUTS or name in _GETS:
                number = argument
            elif name == "BINPERSID" and last in _PUTS and earlier == "REDUCE":
                self._numbers.add(number)
            is_lookup = name == "BINPERSID" and number in self._numbers
            if name != "FRAME" and not (is_lookup and (last in _PUTS or last in _GETS)):
                yield piece
            earlier, last = last, name


_PUTS = frozenset({"BINPUT", "LONG_BINPUT", "MEMOIZE"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})
_TEXT = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})


def rename_modules(data: bytes, renames: Mapping[str, str]) -> bytes:
    r"""Give modules in a pickle other names.

    Replaces them where a global is named, and, since protocol 4 shares strings between
    names and values, every string that equals one. Frames are left out because their lengths
    change.

    Args:
        data: a pickle as ``pickle.Pickler`` writes it, of protocol 2 or later.
        renames: new module path by old module path.

    >>> import pickle, collections
    >>> old = pickle.dumps(collections.OrderedDict, protocol=4)
    >>> pickletools.dis(rename_modules(old, {"collections": "elsewhere"}))
        0: \x80 PROTO      4
        2: \x8c SHORT_BINUNICODE 'elsewhere'
       13: \x94 MEMOIZE    (as 0)
       14: \x8c SHORT_BINUNICODE 'OrderedDict'
       27: \x94 MEMOIZE    (as 1)
       28: \x93 STACK_GLOBAL
       29: \x94 MEMOIZE    (as 2)
       30: .    STOP
    highest protocol among opcodes = 4
    """
    pieces = []
    for opcode, argument, piece in operations(data):
        if opcode == "GLOBAL":
            module, _, name = argument.partition(" ")
            if module in renames:
                piece = global_opcode(renames[module], name)
        elif opcode in _TEXT and argument in renames:
            piece = text_opcode(renames[argument], opcode == "SHORT_BINUNICODE")
        if opcode != "FRAME":
            pieces.append(piece)
    return b"".join(pieces)


def global_opcode(module: str, name: str) -> bytes:
    """The opcode that names something, as protocols 2 and 3 write it."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def text_opcode(value: str, is_short: bool = False) -> bytes:
    """The opcode that pushes a text.

    Args:
        value: the text.
        is_short: whether to take the short one, which protocols 4 and 5 have, where that will do.
    """
    encoded = value.encode()
    if is_short and len(encoded) < 256:
        return pickle.SHORT_BINUNICODE + bytes([len(encoded)]) + encoded
    return pickle.BINUNICODE + len(encoded).to_bytes(4, "little") + encoded
