"""An order for the members of a set that is the same in every process.

A set has the order of its members' hashes, and those of texts and of most objects differ from
process to process. A package must not: what is written is ordered by what the members are.

Sets in a pickle, written in an order of ours.

The C pickler writes a set itself, in the order of its hashes, and asks nobody but the function for
persistent ids. So that names an :class:`InOrder` as the set's persistent id, which is reduced to
the call that makes the set. Taking away the opcode that would look the persistent id up leaves what
plain pickle writes of a set, with the members in order.

>>> import io, pickle
>>> sets = SetWriting(sorted)
>>> class Pickler(pickle.Pickler):
...     def persistent_id(self, obj):
...         return sets.persistent_id(obj) if type(obj) is set else None
>>> buffer = io.BytesIO()
>>> Pickler(buffer, 3).dump({"b", "a"})
>>> data = sets.finished(buffer.getvalue())
>>> data == pickle.dumps(InOrder(set, ["a", "b"]), 3)
True
>>> sorted(pickle.loads(data))
['a', 'b']
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
from collections.abc import Callable, Collection, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from modpack.pickling.object_paths import objects_in

_SETS = (set, frozenset)
_COUNTED = frozenset({int, bool, float})
"""Their hashes are the same everywhere."""

_PROTOCOL = 4


class Ordering:
    """Orders members of sets, for one pickle.

    Members that are texts or bytes are compared as such, others by what a pickle of them alone
    would say. Where it comes to objects that are what they are by their identity, it counts where
    they are reached from the saved objects, in any other way than through a set.
    """

    def __init__(self) -> None:
        self._roots: list[object] = []
        self._places: dict[int, tuple[object, int]] = {}

    def add_root(self, root: object) -> None:
        """One more object that is saved, with everything that it holds."""
        self._roots.append(root)

    def ordered(self, members: Collection[Any]) -> list[Any] | None:
        """The members in their order; None if they have the same one everywhere as they are."""
        kinds = set(map(type, members))
        if len(members) < 2 or kinds <= _COUNTED:
            return None
        if kinds in ({str}, {bytes}):
            return sorted(members)
        return sorted(members, key=self.key)

    def key(self, member: object) -> bytes:
        """What a member is ordered by."""
        buffer = io.BytesIO()
        try:
            _Describing(buffer, self).dump(member)
        except Exception:  # an object's own methods may raise anything: saving it will tell
            return f"{type(member).__module__}.{type(member).__qualname__}".encode()
        return buffer.getvalue()

    def place(self, obj: object) -> int:
        """When an object is met on the way from the saved ones; -1 if only sets lead to it."""
        while self._roots:
            for each in objects_in(self._roots.pop(0), closed=_SETS):
                self._places.setdefault(id(each), (each, len(self._places)))
        known = self._places.get(id(obj))
        return -1 if known is None else known[1]


class _Describing(pickle.Pickler):
    """Writes what a member is, to be compared and not to be read."""

    def __init__(self, buffer: io.BytesIO, order: Ordering) -> None:
        super().__init__(buffer, _PROTOCOL)
        self._order = order

    def persistent_id(self, obj: Any) -> Any:
        """What stands for an object in the description; None to look into it."""
        kind = type(obj)
        if issubclass(kind, (type, FunctionType, BuiltinFunctionType)):
            line = getattr(getattr(obj, "__code__", None), "co_firstlineno", 0)
            return obj.__module__, obj.__qualname__, line, self._order.place(obj)
        if issubclass(kind, ModuleType):
            return (obj.__name__,)
        if issubclass(kind, _SETS):
            named = f"{kind.__module__}.{kind.__qualname__}"
            return named, sorted(map(self._order.key, obj)), getattr(obj, "__dict__", None)
        if _is_value(kind):
            return None  # equal ones are alike
        place = self._order.place(obj) if kind.__flags__ & _HEAP else -1
        if place >= 0:
            return (place,)
        return _tensor(obj) if isinstance(obj, torch.Tensor) else None


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by Python code, as lists and dicts are not


def _is_value(kind: type) -> bool:
    """Whether objects are what they hold, wherever they are."""
    own: Any = kind.__hash__
    return own is not None and own is not object.__hash__ and not issubclass(kind, torch.Tensor)


def _tensor(tensor: torch.Tensor) -> tuple[object, ...]:
    """What tells a tensor that only a set holds from others."""
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return str(tensor.dtype), list(tensor.shape), hashlib.sha256(bytes(values.tolist())).digest()


class InOrder:
    """Stands for a set while it is pickled.

    Args:
        kind: ``set`` or ``frozenset``.
        members: its members, in order.
    """

    def __init__(self, kind: type, members: list[Any]) -> None:
        self._reduced = kind, (members,)

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return self._reduced


class SetWriting:
    """Writes the sets of several pickles that share a memo.

    Args:
        ordered: gives the members of a set in order; None if they are in it as they are.
    """

    def __init__(self, ordered: Callable[[Any], list[Any] | None]) -> None:
        self._ordered = ordered
        self._met: dict[int, tuple[object, InOrder]] = {}
        self._numbers: set[int] = set()
        self._memoized = 0
        self._unread: list[bytes] = []

    def persistent_id(self, obj: Any) -> InOrder | None:
        """What stands for a ``set`` or a ``frozenset``; None if it may be written as it is."""
        if id(obj) not in self._met:
            members = self._ordered(obj)
            if members is None:
                return None
            self._met[id(obj)] = obj, InOrder(type(obj), members)
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
        *_, last = (b"".join(self._pieces(each)) for each in self._unread)
        self._unread = []
        return last

    def _pieces(self, data: bytes) -> Iterator[memoryview]:
        whole, position, start = memoryview(data), 0, 0
        earlier = last = number = -1
        while position < len(data):
            code = data[position]
            end = _end(data, position)
            if code == _FRAME or (code == _BINPERSID and self._is_set(earlier, last, number)):
                yield whole[start:position]
                start = end
            elif code in _MEMO:
                number = self._number(code, data[position + 1 : end])
            earlier, last, position = last, code, end
        yield whole[start:]

    def _is_set(self, earlier: int, last: int, number: int) -> bool:
        """Whether a persistent id is that of a set, by the opcodes before it."""
        if last in _PUTS and earlier == _REDUCE:
            self._numbers.add(number)
            return True
        return last in _GETS and number in self._numbers

    def _number(self, code: int, argument: bytes) -> int:
        """The number in the memo that an opcode sets or gets."""
        if code == _MEMOIZE:
            self._memoized += 1
            return self._memoized - 1
        return int.from_bytes(argument, "little")


def _end(data: bytes, position: int) -> int:
    """Where an opcode ends, with its argument."""
    length = _LENGTHS[data[position]]
    if length > 0:
        return position + length
    if length == 0:
        end = data.index(b"\n", position) + 1
        return data.index(b"\n", end) + 1 if data[position] == _GLOBAL else end
    begin = position + 1 - length
    return begin + int.from_bytes(data[position + 1 : begin], "little")


_ARGUMENTS = {
    None: 1,
    pickletools.UP_TO_NEWLINE: 0,
    pickletools.TAKEN_FROM_ARGUMENT1: -1,
    pickletools.TAKEN_FROM_ARGUMENT4: -4,
    pickletools.TAKEN_FROM_ARGUMENT4U: -4,
    pickletools.TAKEN_FROM_ARGUMENT8U: -8,
}


def _length_of(opcode: pickletools.OpcodeInfo) -> int:
    """Its length; 0 for lines, and minus the size of the length that it states itself."""
    size = opcode.arg.n if opcode.arg is not None else None
    return _ARGUMENTS[size] if size is None or size < 0 else 1 + size


_LENGTHS = [1] * 256
for _opcode in pickletools.opcodes:
    _LENGTHS[ord(_opcode.code)] = _length_of(_opcode)

(_FRAME,), (_BINPERSID,), (_REDUCE,), (_MEMOIZE,), (_GLOBAL,) = (
    *(pickle.FRAME, pickle.BINPERSID),
    *(pickle.REDUCE, pickle.MEMOIZE, pickle.GLOBAL),
)
_PUTS = frozenset(pickle.BINPUT + pickle.LONG_BINPUT + pickle.MEMOIZE)
_GETS = frozenset(pickle.BINGET + pickle.LONG_BINGET)
_MEMO = _PUTS | _GETS
