"""A fuzzer for the unpickling of plain data, which must return data or reject a pickle.

A third of the pickles are good ones with dropped, doubled, swapped, or replaced opcodes. In another
third, opcodes that push a value are replaced by other values: huge numbers, names, calls in calls,
and attributes that protocols look up. The others are random programs of opcodes that use names of
the allowlist, and a few others.
"""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import io
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
import torch._dynamo
import torch._subclasses.schema_check_mode  # torch imports both lazily
from packages import Tally

from modpack.errors import ModpackError
from modpack.pickling.allowlist import DATA
from modpack.pickling.data_unpickler import unpickle_data
from modpack.pickling.tensor_loading import StorageLoader, storage_record

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
"""Events of Python's audit hooks without effects."""
_SLOWEST: Final = 2.0
"""Maximum seconds per pickle of some hundred bytes."""
_MAX_MEMORY: Final = 1 << 30
"""Maximum growth of the process in bytes."""


def fuzz(tries: int, seed: int = 0) -> Tally:
    """Load random pickles with the closed unpickler.

    Args:
        tries: Number of pickles.
        seed: Seed of the random generator.
    """
    result = Tally()
    good = _good()
    pickles = _pickles(random.Random(seed), good)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unchanged = (b"".join(opcodes) for opcodes in good)
        for each in (*unchanged, *itertools.islice(pickles, 200)):
            _load(each)  # lazy imports are not an effect of a pickle
        _install_audit_hook()
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
    _IS_RECORDING[0] = True
    start = time.monotonic()
    try:
        loaded = _load(data)
    except Exception as error:  # the only valid error is a rejection
        result.wrong.append(f"{type(error).__name__}: {error}, from {data!r:.300}")
        return
    finally:
        _IS_RECORDING[0] = False
    if _EVENTS:
        result.wrong.append(f"{_EVENTS[0]}, from {data!r:.300}")
    if time.monotonic() - start > _SLOWEST:
        result.wrong.append(f"more than {_SLOWEST} s, from {data!r:.300}")
    if loaded is not _REJECTED:
        result.counts["accepted"] += 1
        if found := _find_non_data(loaded):
            result.wrong.append(f"loaded {found}, from {data!r:.300}")


_REJECTED: Final = object()


def _load(data: bytes) -> Any:
    storages = StorageLoader(_Records(), None, "x.pkl")
    try:
        return unpickle_data(data, resource="x.pkl", storages=storages)
    except ModpackError:
        return _REJECTED


_STORAGES: Final[dict[str, bytes]] = {}
"""The storages of the good pickles, by record."""


class _Records:
    """An archive with the storages of the good pickles."""

    path = "nothing"

    def has(self, name: str) -> bool:
        return name in _STORAGES

    def read(self, name: str) -> bytes:
        return _STORAGES[name]

    def read_copy(self, name: str) -> bytearray:
        return bytearray(_STORAGES[name])

    def data_range(self, name: str) -> None:
        return None

    def has_changed(self) -> bool:
        return False


_EVENTS: list[str] = []
_IS_RECORDING = [False]


def _install_audit_hook() -> None:
    if not _HAS_HOOK:
        _HAS_HOOK.append(True)
        sys.addaudithook(_record_event)


_HAS_HOOK: list[bool] = []


def _record_event(event: str, arguments: tuple[Any, ...]) -> None:
    if _IS_RECORDING[0] and event not in _QUIET:
        _EVENTS.append(f"{event}{arguments!r:.100}")


_PLAIN: Final = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(...)),
    *(type(NotImplemented), decimal.Decimal, datetime.date, datetime.datetime, datetime.time),
    *(datetime.timedelta, datetime.timezone, torch.dtype, torch.device, torch.layout),
    *(
        torch.storage.TypedStorage,
        torch.UntypedStorage,
        torch.qscheme,
        type,
        type(torch._utils._rebuild_tensor_v2),
        type(len),
    ),
)
_CONTAINERS: Final = (
    *(list, tuple, set, frozenset, dict, collections.OrderedDict, collections.Counter),
    *(collections.defaultdict, collections.deque, torch.Size),
)


def _find_non_data(value: Any) -> str | None:
    """Return what in a value is not data: an object, or an attribute that a protocol looks up."""
    seen: set[int] = set()
    todo = [value]
    while todo:
        each = todo.pop()
        kind = type(each)
        if id(each) in seen or kind in _PLAIN or issubclass(kind, type):
            continue
        seen.add(id(each))
        attributes = getattr(each, "__dict__", {})
        for name in attributes:
            is_protocol = name.startswith("__") or (name.startswith("_") and name.endswith("_"))
            if is_protocol or hasattr(kind, name):
                return f"the attribute {name}"
        todo += attributes.values()
        if kind in (torch.Tensor, torch.nn.Parameter):
            _use(each)
        elif kind in _CONTAINERS:
            todo += each.values() if isinstance(each, dict) else each
        else:
            return f"an object of {kind.__name__}"
    return None


def _use(tensor: torch.Tensor) -> None:
    """Read all elements of a tensor: a crash ends the run."""
    if tensor.numel() <= 1000:
        try:
            copy.copy(tensor.detach()).clone()
            repr(tensor)
        except (RuntimeError, NotImplementedError):  # torch has not all operations for all layouts
            pass


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


def _tagged(tensor: torch.Tensor) -> torch.Tensor:
    tensor.tag = collections.OrderedDict(a=1)  # type: ignore[attr-defined]
    tensor.note = "text"  # type: ignore[attr-defined]
    return tensor


def _stored() -> list[torch.Tensor]:
    """Return tensors of all kinds, whose storages are in the archive."""
    floats = torch.arange(16.0).view(4, 4)
    scales, zeros = torch.ones(4), torch.zeros(4, dtype=torch.int64)
    return [
        floats[1:, ::2],
        torch.arange(8),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(4, dtype=torch.complex64).conj(),
        torch.nn.Parameter(floats),
        _tagged(floats[:2]),
        _tagged(torch.nn.Parameter(floats)),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.nested.nested_tensor([floats[0], floats[1, :2]]),
        torch.quantize_per_tensor(floats, 0.5, 3, torch.quint8),
        torch.quantize_per_channel(floats, scales, zeros, 0, torch.qint8),
    ]


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.storage.TypedStorage):
            return None
        content = bytes(obj._untyped_storage.tolist())
        record = next((r for r, each in _STORAGES.items() if each == content), None)
        if record is None:
            record = storage_record(str(len(_STORAGES)))
            _STORAGES[record] = content
        key = str(list(_STORAGES).index(record))
        return "storage", getattr(torch, obj._pickle_storage_type()), key, "cpu", obj._size()


def _pickled(value: Any, protocol: int) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol).dump(value)
    return file.getvalue()


def _good() -> list[list[bytes]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objects = [*_GOOD, _GOOD, *_stored()]
        return [_opcodes(_pickled(each, p)) for each in objects for p in (2, 3, 4, 5)]


def _pickles(chance: random.Random, good: list[list[bytes]]) -> Iterator[bytes]:
    while True:
        yield _mutated(chance, chance.choice(good))
        yield _with_other_values(chance, chance.choice(good))
        yield _program(chance)


def _opcodes(data: bytes) -> list[bytes]:
    offsets = [offset for _, _, offset in pickletools.genops(data)] + [len(data)]
    parts = [data[a:b] for a, b in itertools.pairwise(offsets)]
    return [part for part in parts if part[:1] != b"\x95"]  # mutations invalidate frame sizes


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


def _with_other_values(chance: random.Random, opcodes: list[bytes]) -> bytes:
    """Return a pickle that makes the same calls with some other values."""
    changed = list(opcodes)
    values = [i for i, each in enumerate(opcodes) if each[:1] in _PUSHES_VALUE]
    for at in chance.sample(values, min(len(values), chance.choice((1, 1, 2, 4)))):
        is_text = changed[at][:1] in (b"X", b"\x8c")
        is_same_kind = is_text and chance.random() < 0.5
        changed[at] = _text(chance) if is_same_kind else _value(chance, chance.choice((0, 0, 1, 2)))
    return b"".join(changed)


def _program(chance: random.Random) -> bytes:
    """Return some calls of names in the table, with arguments of all kinds."""
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
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__torch_function__"),
    *("__dlpack__", "__index__", "_as_parameter_", "_repr_html_", "_fields", "tag", "grad", "_x"),
)
_BARE: Final = tuple(
    bytes([each]) for each in b"N\x88\x89)]}\x8f(0123\x94RQbaesutdl\x81\x85\x86\x87\x90\x91\x92\x93"
)
_PUSHES_VALUE: Final = frozenset(
    code.code.encode("latin1")
    for code in pickletools.opcodes
    if not code.stack_before and len(code.stack_after) == 1 and code.name not in ("MARK", "PERSID")
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
    lambda chance: _TENSOR + b"}" + _text(chance) + b"K\1sb",
)
_TENSOR: Final = (
    b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\nK\2\x85K\1\x85\x89tR"
)
