"""Pickles made at random, given to the closed unpickler: it makes data, or refuses.

Half of them are good ones in which opcodes were dropped, doubled, swapped or replaced; half are
programs of opcodes that know the closed table, and some names beyond it.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import itertools
import pickle
import pickletools
import random
import resource
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch._subclasses.schema_check_mode  # which torch imports at its first odd tensor
from packages import Tally

from modpack.errors import ModpackError
from modpack.pickling.allowlist import DATA
from modpack.pickling.data_unpickler import unpickle_data
from modpack.pickling.tensor_loading import StorageLoader

_OUTSIDE: Final = (
    "builtins.eval",
    "builtins.getattr",
    "functools.partial",
    "os.system",
    "torch.load",
)
_QUIET: Final = frozenset(
    {"builtins.id", "object.__getattr__", "pickle.find_class", "sys._getframe"}
)
"""Events of Python's audit hooks that change nothing."""
_SLOWEST: Final = 2.0
"""Seconds that one pickle of some hundred bytes may take."""
_MAX_MEMORY: Final = 1 << 30
"""Bytes by which the process may grow meanwhile."""


def fuzz(tries: int, seed: int = 0) -> Tally:
    """Give pickles made at random to the closed unpickler.

    Args:
        tries: how many.
        seed: of the random numbers.
    """
    result = Tally()
    pickles = _pickles(random.Random(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in range(200):  # what is imported the first time is no effect of a pickle
            _load(next(pickles) if each else pickle.dumps(_GOOD, 4))
        _watch()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(tries):
            _try(next(pickles), result)
        _EVENTS.clear()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > _MAX_MEMORY:
        result.wrong.append(f"the process grew by {grown:,} bytes")
    return result


def _try(data: bytes, result: Tally) -> None:
    result.tries += 1
    _EVENTS.clear()
    _WATCHING[0] = True
    start = time.monotonic()
    try:
        made = _load(data)
    except Exception as failure:  # anything else than a refusal is a defect
        result.wrong.append(f"{type(failure).__name__}: {failure}, by {data!r:.300}")
        return
    finally:
        _WATCHING[0] = False
    if _EVENTS:
        result.wrong.append(f"{_EVENTS[0]}, by {data!r:.300}")
    if time.monotonic() - start > _SLOWEST:
        result.wrong.append(f"more than {_SLOWEST} s, by {data!r:.300}")
    if made is not _REFUSED:
        result.counts["accepted"] += 1
        if odd := _first_odd(made):
            result.wrong.append(f"a {odd} was made, by {data!r:.300}")


_REFUSED: Final = object()


def _load(data: bytes) -> Any:
    storages = StorageLoader(_NoRecords(), None, "x.pkl")
    try:
        return unpickle_data(data, resource="x.pkl", storages=storages)
    except ModpackError:
        return _REFUSED


class _NoRecords:
    source = "nothing"

    def has(self, name: str) -> bool:
        return False


_EVENTS: list[str] = []
_WATCHING = [False]


def _watch() -> None:
    if not _EVENTS_ARE_SEEN:
        _EVENTS_ARE_SEEN.append(True)
        sys.addaudithook(_note)


_EVENTS_ARE_SEEN: list[bool] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _WATCHING[0] and event not in _QUIET:
        _EVENTS.append(f"{event}{arguments!r:.100}")


_PLAIN: Final = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(...)),
    *(type(NotImplemented), decimal.Decimal, datetime.date, datetime.datetime, datetime.time),
    *(datetime.timedelta, datetime.timezone, torch.dtype, torch.device, torch.layout),
    *(torch.qscheme, type, type(torch._utils._rebuild_tensor_v2), type(len)),
)
_CONTAINERS: Final = (
    *(list, tuple, set, frozenset, dict, collections.OrderedDict, collections.Counter),
    *(collections.defaultdict, collections.deque, torch.Size),
)


def _first_odd(made: Any) -> str | None:
    """The type of the first thing in some data that is none."""
    seen: set[int] = set()
    todo = [made]
    while todo:
        each = todo.pop()
        kind = type(each)
        if id(each) in seen or kind in _PLAIN or issubclass(kind, type):
            continue
        seen.add(id(each))
        if kind in (torch.Tensor, torch.nn.Parameter):
            todo += vars(each).values()
        elif kind in _CONTAINERS:
            todo += each.values() if isinstance(each, dict) else each
        else:
            return kind.__name__
    return None


_GOOD: Final = [
    [None, True, 3, -(2**40), 2.5, "text", b"bytes", (1, (2, 3)), {"a": [1], 2: ()}],
    {1, 2},
    frozenset("ab"),
    bytearray(b"12"),
    1 + 2j,
    range(3),
    slice(1, 2),
    ...,
    decimal.Decimal("1.5"),
    datetime.datetime(2020, 1, 2),
    datetime.timedelta(1),
    collections.OrderedDict(a=1),
    collections.Counter("ab"),
    collections.defaultdict(list, {1: [2]}),
    collections.deque([1], 2),
    torch.float32,
    torch.device("cpu"),
    torch.Size([1, 2]),
    torch.empty(2, 3, device="meta"),
    torch.nn.Parameter(torch.empty(2, device="meta")),
]


def _pickles(chance: random.Random) -> Iterator[bytes]:
    good = [_opcodes(pickle.dumps(each, p)) for each in [*_GOOD, _GOOD] for p in (2, 3, 4, 5)]
    while True:
        yield _mutated(chance, chance.choice(good))
        yield _program(chance)


def _opcodes(data: bytes) -> list[bytes]:
    places = [at for _, _, at in pickletools.genops(data)] + [len(data)]
    parts = [data[a:b] for a, b in itertools.pairwise(places)]
    return [part for part in parts if part[:1] != b"\x95"]  # frames would only be wrong


def _mutated(chance: random.Random, opcodes: list[bytes]) -> bytes:
    changed = list(opcodes)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(1, len(changed))
        what = chance.randrange(6)
        if what == 0 and len(changed) > 2:
            del changed[at]
        elif what == 1:
            changed.insert(at, chance.choice(opcodes))
        elif what == 2:
            other = chance.randrange(1, len(changed))
            changed[at], changed[other] = changed[other], changed[at]
        elif what == 3:
            changed[at] = _opcode(chance)
        elif what == 4:
            changed.insert(at, _opcode(chance))
        else:
            part = bytearray(changed[at])
            part[chance.randrange(len(part))] = chance.randrange(256)
            changed[at] = bytes(part)
    return b"".join(changed)


def _program(chance: random.Random) -> bytes:
    """Some calls of the table, with arguments of all kinds."""
    body = [b"\x80", bytes([chance.choice((2, 3, 4, 5))])]
    for _ in range(chance.randrange(1, 5)):
        body.append(_value(chance, 3))
        body += [_opcode(chance) for _ in range(chance.choice((0, 0, 1, 2)))]
    return b"".join(body) + (b"0" * chance.choice((0, 0, 1))) + b"."


def _value(chance: random.Random, depth: int) -> bytes:
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(_VALUES)(chance)
    inner = [_value(chance, depth - 1) for _ in range(chance.randrange(5))]
    shape = chance.randrange(6)
    if shape == 0:
        return b"(" + b"".join(inner) + b"t"
    if shape == 1:
        return b"](" + b"".join(inner) + b"e"
    if shape == 2:
        return b"}(" + b"".join(inner) + b"u"
    state = _value(chance, 1) + b"b" if shape == 5 else b""
    made = b"R" if shape > 3 else b"\x81"
    return _name(chance) + b"(" + b"".join(inner) + b"t" + made + state


def _name(chance: random.Random) -> bytes:
    full = chance.choice(_TABLE) if chance.random() < 0.97 else chance.choice(_OUTSIDE)
    module, _, name = full.rpartition(".")
    return f"c{module}\n{name}\n".encode()


def _text(chance: random.Random) -> bytes:
    data = chance.choice(_TEXTS).encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _opcode(chance: random.Random) -> bytes:
    return chance.choice((*_BARE, _name(chance), _text(chance), b"K\2", b"h\0", b"q\0", b"h\1"))


_TABLE: Final = sorted(DATA)
_TEXTS: Final = (
    *("", "a", "latin1", "cpu", "cuda:7", "torch.strided", "torch.sparse_coo", "storage", "0"),
    *("__class__", "__setstate__", "__dict__", "1e999999999", "NaN", "conj", "module", "os"),
    *("torch._inductor", "torch.onnx", "neg", "items", "detach"),
)
_BARE: Final = tuple(
    bytes([each]) for each in b"N\x88\x89)]}\x8f(0123\x94RQbaesutdl\x81\x85\x86\x87\x90\x91\x92\x93"
)
_VALUES: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    _name,
    _text,
    lambda chance: b"J" + struct.pack("<i", chance.choice((-1, 0, 1, 2, 2**30, -(2**31)))),
    lambda chance: b"\x8a\x0a" + b"\xff" * 9 + b"\x7f",
    lambda chance: b"G" + struct.pack(">d", chance.choice((0.0, 1.5, float("nan"), 1e300))),
    lambda chance: chance.choice((b"N", b"\x88", b"\x89", b")", b"]", b"}")),
    lambda chance: b"C\x02ab",
    lambda chance: _TENSOR,
)
_TENSOR: Final = (
    b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\nK\2\x85K\1\x85\x89tR"
)
