"""Edits of finished pickles, opcode by opcode: renamed modules and sorted sets.

An object that was loaded from a package lives under a private module path. The C pickler writes
that path; the new package needs the original one.

The C pickler writes sets itself, in hash order, and calls no hook for them except
``persistent_id``. That function therefore returns the call that creates the set. Removing the
opcode that would look up the persistent id leaves the same pickle as ``pickle`` writes for a set,
with sorted members.

>>> import io, pickle
>>> sets = SetWriter(sorted)
>>> class Pickler(pickle.Pickler):
...     def persistent_id(self, obj):
...         return sets.persistent_id(obj) if type(obj) is set else None
>>> buffer = io.BytesIO()
>>> Pickler(buffer, 3).dump({"b", "a"})
>>> data = sets.finish(buffer.getvalue())
>>> data == pickle.dumps(ReducedObject((set, (["a", "b"],))), 3)
True
>>> sorted(pickle.loads(data))
['a', 'b']
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class ReducedObject:
    """A placeholder for an object whose reduction is known.

    Args:
        reduction: A return value of :meth:`object.__reduce__`.
    """

    __slots__ = ("reduction",)

    def __init__(self, reduction: tuple[Any, ...]) -> None:
        self.reduction = reduction

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduction


_OPCODES = {each.code.encode("latin-1"): each for each in pickletools.opcodes}


def iter_opcodes(data: bytes) -> Iterator[tuple[str, Any, bytes]]:
    """Yield each opcode of one pickle: its name, its argument, and the bytes of both."""
    stream, name = io.BytesIO(data), ""
    while name != "STOP":
        begin = stream.tell()
        opcode = _OPCODES.get(stream.read(1))
        if opcode is None:
            raise ValueError(f"the pickle has no valid opcode at byte {begin}")
        name, argument = opcode.name, None
        if name == "GLOBAL":  # pickletools reads only ASCII names
            argument = " ".join(stream.readline()[:-1].decode() for _ in range(2))
        elif opcode.arg is not None:
            argument = opcode.arg.reader(stream)
        yield name, argument, data[begin : stream.tell()]


class SetWriter:
    """Writes the sets of several pickles that share a memo.

    Args:
        sort: Returns the members of a set in order, or None if they are in order already.
    """

    def __init__(self, sort: Callable[[Any], list[Any] | None]) -> None:
        self._sort = sort
        self._sets: dict[int, tuple[object, ReducedObject]] = {}
        self._numbers: set[int] = set()
        self._memoized = 0
        self._unread: list[bytes] = []

    def persistent_id(self, obj: Any) -> ReducedObject | None:
        """Return the replacement of a ``set`` or ``frozenset``; None to write it as it is."""
        if id(obj) not in self._sets:
            members = self._sort(obj)
            if members is None:
                return None
            self._sets[id(obj)] = obj, ReducedObject((type(obj), (members,)))
        return self._sets[id(obj)][1]

    def sort_reduction(self, reduction: Any) -> Any:
        """Sort the members in the reduction of a user-defined set class."""
        is_plain = isinstance(reduction, tuple) and len(reduction) > 1 and len(reduction[1]) == 1
        if not is_plain or type(reduction[1][0]) is not list:
            return reduction  # the class reduces itself in its own way
        function, (members,), *rest = reduction
        return function, (self._sort(members) or members,), *rest

    def finish(self, data: bytes) -> bytes:
        """Return a pickle without the opcodes that look up the persistent ids of sets.

        Other persistent ids are tuples. Frames, which are optional (PEP 3154), are dropped because
        their lengths change.

        Args:
            data: A pickle of protocol 2 or later; the next of those that share a memo.
        """
        self._unread.append(data)
        if not self._sets:
            return data
        *_, last = (b"".join(self._without_lookups(each)) for each in self._unread)
        self._unread = []
        return last

    def _without_lookups(self, data: bytes) -> Iterator[bytes]:
        earlier = last = ""
        number = -1
        for name, argument, piece in iter_opcodes(data):
            if name == "MEMOIZE":
                number = self._memoized
                self._memoized += 1
            elif name in _PUTS or name in _GETS:
                number = argument
            # A set is written as a call, which is memoized, and then looked up as a persistent id.
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
    r"""Rename modules in a pickle.

    The new name replaces the module of each global. Because protocol 4 shares strings between
    names and values, it also replaces every string that equals the old name. Frames that contain
    an old name are dropped because their lengths change. What follows the last old name is copied:
    it can be a dict of millions of entries.

    Args:
        data: A pickle of protocol 2 or later, written by ``pickle.Pickler``.
        renames: New module paths by old module path.

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
    # The bytes of a name may also be part of a value, which only makes the walk longer.
    last = max(data.rfind(name.encode()) for name in renames)
    position = 0
    for opcode, argument, piece in iter_opcodes(data):
        if position > last:
            break
        position += len(piece)
        if opcode == "GLOBAL":
            module, _, name = argument.partition(" ")
            if module in renames:
                piece = global_opcode(renames[module], name)
        elif opcode in _TEXT and argument in renames:
            piece = text_opcode(renames[argument], opcode == "SHORT_BINUNICODE")
        if opcode != "FRAME":
            pieces.append(piece)
    return b"".join([*pieces, data[position:]])


def global_opcode(module: str, name: str) -> bytes:
    """Return a GLOBAL opcode, as protocols 2 and 3 write it."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def text_opcode(value: str, is_short: bool = False) -> bytes:
    """Return an opcode that pushes a string.

    Args:
        value: The string.
        is_short: Whether to use the short opcode of protocols 4 and 5 if the string fits.
    """
    encoded = value.encode()
    if is_short and len(encoded) < 256:
        return pickle.SHORT_BINUNICODE + bytes([len(encoded)]) + encoded
    return pickle.BINUNICODE + len(encoded).to_bytes(4, "little") + encoded
