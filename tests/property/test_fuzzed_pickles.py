"""Random pickles are loaded as plain data without effects, or rejected."""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import functools
import io
import itertools
import pickle
import pickletools
import resource
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modpack.errors import ModpackError
from modpack.pickling import data_unpickler
from modpack.pickling.allowlist import DATA
from modpack.pickling.data_unpickler import unpickle_data
from modpack.pickling.tensor_loading import StorageLoader, storage_record
from tests.hostile_pickles import build, call, many, mapping, new, number, text, values, whole
from tests.property_settings import examples

OUTSIDE = ("builtins.eval", "builtins.getattr", "functools.partial", "os.system", "torch.load")
QUIET = {"builtins.id", "object.__getattr__", "pickle.find_class", "sys._getframe"}
"""Events of Python's audit hooks without effects."""
SLOWEST = 2.0
"""Maximum CPU seconds for a pickle of some hundred bytes."""
MAX_MEMORY = 1 << 30
"""Maximum growth of the process in bytes."""


STORAGES: dict[str, bytes] = {}
"""The storages of the good pickles, by record."""


class Records:
    """An archive with the storages of the good pickles."""

    path = "nothing"

    def has(self, name: str) -> bool:
        return name in STORAGES

    def read(self, name: str) -> bytes:
        return STORAGES[name]

    def read_copy(self, name: str) -> bytearray:
        return bytearray(STORAGES[name])

    def data_range(self, name: str) -> None:
        return None

    def has_changed(self) -> bool:
        return False


EVENTS: list[str] | None = None
"""Recorded events, or None while nothing is recorded."""


def record_event(event: str, arguments: tuple[Any, ...]) -> None:
    if EVENTS is not None and event not in QUIET:
        EVENTS.append(f"{event}{arguments!r:.100}")


REJECTED = object()


def loaded(data: bytes) -> Any:
    storages = StorageLoader(Records(), None, "x.pkl")  # type: ignore[arg-type]
    try:
        return unpickle_data(data, resource="x.pkl", storages=storages)
    except ModpackError:
        return REJECTED


def check(data: bytes) -> None:
    """Load a pickle, and fail unless it is data without effects, or rejected."""
    global EVENTS
    events = EVENTS = []
    start = time.process_time()
    try:
        obj = loaded(data)
    finally:
        EVENTS = None
    assert events == []
    assert time.process_time() - start < SLOWEST
    if obj is not REJECTED:
        assert non_data(obj) == []


@pytest.fixture(scope="module", autouse=True)
def recorder() -> Iterator[None]:
    """Record events during checks. Imports of torch that a first use triggers are done before."""
    import torch._dynamo
    import torch._subclasses.schema_check_mode  # noqa: F401

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for opcodes in good_pickles():
            loaded(b"".join(opcodes))
        sys.addaudithook(record_event)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MAX_MEMORY


PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(...)),
    *(type(NotImplemented), decimal.Decimal, datetime.date, datetime.datetime, datetime.time),
    *(datetime.timedelta, datetime.timezone, torch.dtype, torch.device, torch.layout),
    *(torch.storage.TypedStorage, torch.UntypedStorage, torch.qscheme, type),
    *(type(torch._utils._rebuild_tensor_v2), type(len)),
)
CONTAINERS = (
    *(list, tuple, set, frozenset, dict, collections.OrderedDict, collections.Counter),
    *(collections.defaultdict, collections.deque, torch.Size),
)


def non_data(value: Any) -> list[str]:
    """Return the objects in a value, and its attributes that protocols look up."""
    found: list[str] = []
    seen: set[int] = set()
    todo = [value]
    while todo:
        each = todo.pop()
        kind = type(each)
        if id(each) in seen or kind in PLAIN or issubclass(kind, type):
            continue
        seen.add(id(each))
        attributes = getattr(each, "__dict__", {})
        for name in attributes:
            is_protocol = name.startswith("__") or (name.startswith("_") and name.endswith("_"))
            if is_protocol or hasattr(kind, name):
                found.append(f"the attribute {name}")
        todo += attributes.values()
        if kind in (torch.Tensor, torch.nn.Parameter):
            read_elements(each)
        elif kind in CONTAINERS:
            todo += each.values() if isinstance(each, dict) else each
        else:
            found.append(f"an object of {kind.__name__}")
    return found


def read_elements(tensor: torch.Tensor) -> None:
    """Read all elements of a tensor: one outside of its storage may crash the process."""
    if tensor.numel() <= 1000:
        try:
            copy.copy(tensor.detach()).clone()
            repr(tensor)
        except (RuntimeError, NotImplementedError):  # torch has not all operations for all layouts
            pass


DATA_OBJECTS: list[Any] = [
    [None, True, 3, -(2**40), 2.5, "text", b"bytes", (1, (2, 3)), {"a": [1], 2: ()}],
    *({1, 2}, frozenset("ab"), bytearray(b"12"), 1 + 2j, range(3), slice(1, 2), ...),
    *(decimal.Decimal("1.5"), datetime.datetime(2020, 1, 2), datetime.timedelta(1)),
    *(collections.OrderedDict(a=1), collections.Counter("ab"), collections.deque([1], 2)),
    collections.defaultdict(list, {1: [2]}),
    *(torch.float32, torch.device("cpu"), torch.Size([1, 2])),
    torch.empty(2, 3, device="meta"),
    torch.nn.Parameter(torch.empty(2, device="meta")),
]


def tagged(tensor: torch.Tensor) -> torch.Tensor:
    tensor.tag = collections.OrderedDict(a=1)  # type: ignore[attr-defined]
    tensor.note = "text"  # type: ignore[attr-defined]
    return tensor


def stored_tensors() -> list[torch.Tensor]:
    """Return tensors of all kinds, whose storages are in the archive."""
    floats = torch.arange(16.0).view(4, 4)
    scales, zeros = torch.ones(4), torch.zeros(4, dtype=torch.int64)
    return [
        floats[1:, ::2],
        torch.arange(8),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(4, dtype=torch.complex64).conj(),
        torch.nn.Parameter(floats),
        tagged(floats[:2]),
        tagged(torch.nn.Parameter(floats)),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.nested.nested_tensor([floats[0], floats[1, :2]]),
        torch.quantize_per_tensor(floats, 0.5, 3, torch.quint8),
        torch.quantize_per_channel(floats, scales, zeros, 0, torch.qint8),
    ]


class Pickler(pickle.Pickler):
    """Stores tensors as packages do."""

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.storage.TypedStorage):
            return None
        content = bytes(obj._untyped_storage.tolist())
        key = next(
            (k for k, each in enumerate(STORAGES.values()) if each == content), len(STORAGES)
        )
        STORAGES.setdefault(storage_record(str(key)), content)
        return "storage", getattr(torch, obj._pickle_storage_type()), str(key), "cpu", obj._size()


@functools.cache
def good_pickles() -> list[list[bytes]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objects = [*DATA_OBJECTS, DATA_OBJECTS, *stored_tensors()]
        return [opcodes(pickled(each, protocol)) for each in objects for protocol in (2, 3, 4, 5)]


def pickled(obj: Any, protocol: int) -> bytes:
    file = io.BytesIO()
    Pickler(file, protocol).dump(obj)
    return file.getvalue()


def opcodes(data: bytes) -> list[bytes]:
    starts = [offset for _, _, offset in pickletools.genops(data)] + [len(data)]
    parts = [data[start:end] for start, end in itertools.pairwise(starts)]
    return [part for part in parts if part[:1] != b"\x95"]  # changes invalidate the sizes of frames


BARE = [
    bytes([each]) for each in b"N\x88\x89)]}\x8f(0123\x94RQbaesutdl\x81\x85\x86\x87\x90\x91\x92\x93"
]
PUSHES_VALUE = {
    code.code.encode("latin1")
    for code in pickletools.opcodes
    if not code.stack_before and len(code.stack_after) == 1 and code.name not in ("MARK", "PERSID")
}
TEXTS = [
    *("", "a", "latin1", "cpu", "cuda:7", "torch.strided", "torch.sparse_coo", "storage", "0"),
    *("__class__", "__setstate__", "__dict__", "1e999999999", "NaN", "conj", "module", "os"),
    *("torch._inductor", "torch.onnx", "neg", "items", "detach"),
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__torch_function__"),
    *("__dlpack__", "__index__", "_as_parameter_", "_repr_html_", "_fields", "tag", "grad", "_x"),
]
TENSOR = b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\nK\2\x85K\1\x85\x89tR"


def named(full: str) -> bytes:
    module, _, name = full.rpartition(".")
    return f"c{module}\n{name}\n".encode()


texts = st.sampled_from(TEXTS).map(text)
names = st.sampled_from([*sorted(DATA), *OUTSIDE]).map(named)
leaves = st.one_of(
    names,
    texts,
    st.sampled_from((-1, 0, 1, 2, 2**30, -(2**31))).map(number),
    st.sampled_from((0.0, 1.5, float("nan"), 1e300)).map(
        lambda each: b"G" + struct.pack(">d", each)
    ),
    st.sampled_from((b"N", b"\x88", b"\x89", b")", b"]", b"}", b"C\x02ab", TENSOR)),
    st.just(b"\x8a\x0a" + b"\xff" * 9 + b"\x7f"),  # an integer of 80 bits
    texts.map(lambda name: TENSOR + b"}" + name + b"K\1sb"),  # a tensor with an attribute
)


def combined(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return containers of values, and calls with them."""
    items = st.lists(inner, max_size=4)
    calls = st.builds(
        lambda how, name, each: how(name, *each), st.sampled_from((call, new)), names, items
    )
    return st.one_of(
        st.builds(lambda make, each: make(*each), st.sampled_from((values, many, mapping)), items),
        calls,
        st.builds(build, calls, inner),
    )


random_values = st.recursive(leaves, combined, max_leaves=8)
random_opcodes = st.one_of(
    st.sampled_from(BARE), names, texts, st.sampled_from((b"K\2", b"h\0", b"q\0", b"h\1"))
)
good = st.deferred(lambda: st.sampled_from(good_pickles()))


@st.composite
def edited_pickles(draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """Draw a good pickle with dropped, doubled, swapped, or replaced opcodes."""
    parts = list(draw(good))
    for edit in draw(st.lists(st.sampled_from(EDITS), min_size=1, max_size=8)):
        at = draw(st.integers(1, len(parts) - 1))
        if edit == "drop" and len(parts) > 2:
            del parts[at]
        elif edit == "swap":
            other = draw(st.integers(1, len(parts) - 1))
            parts[at], parts[other] = parts[other], parts[at]
        elif edit == "double":
            parts.insert(at, draw(st.sampled_from(parts)))
        elif edit == "replace":
            parts[at] = draw(random_opcodes)
        elif edit == "insert":
            parts.insert(at, draw(random_opcodes))
        elif edit == "change a byte":
            part = bytearray(parts[at])
            part[draw(st.integers(0, len(part) - 1))] = draw(st.integers(0, 255))
            parts[at] = bytes(part)
    return b"".join(parts)


EDITS = ("drop", "swap", "double", "replace", "insert", "change a byte")


@st.composite
def pickles_of_other_values(draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """Draw a good pickle that makes the same calls with some other values."""
    parts = list(draw(good))
    places = [at for at, part in enumerate(parts) if part[:1] in PUSHES_VALUE]
    for at in draw(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True)):
        is_text = parts[at][:1] in (b"X", b"\x8c")
        parts[at] = draw(texts | random_values if is_text else random_values)
    return b"".join(parts)


programs = st.builds(
    lambda protocol, body: whole(*body, protocol=protocol),
    st.integers(2, 5),
    st.lists(random_values | random_opcodes, min_size=1, max_size=6),
)
"""Calls of allowed names, and of a few others, with arguments of all kinds."""


@examples(340)
@given(edited_pickles())
def test_edited_pickle_is_data_or_rejected(data):
    check(data)


@examples(340)
@given(pickles_of_other_values())
def test_pickle_of_other_values_is_data_or_rejected(data):
    check(data)


@examples(340)
@given(programs)
def test_random_program_is_data_or_rejected(data):
    check(data)


def test_check_finds_call_with_effect(monkeypatch):
    """An allowed name that runs the shell would be found."""

    def run_shell(*parts: object) -> complex:
        subprocess.run("true", shell=True)
        return 1j

    monkeypatch.setitem(data_unpickler._MADE, complex, run_shell)
    with pytest.raises(AssertionError, match=r"subprocess\.Popen"):
        check(pickled(1j, 4))


def test_check_finds_attribute_that_protocol_looks_up():
    tensor = torch.ones(2)
    vars(tensor)["__array_interface__"] = {}
    assert non_data([tensor]) == ["the attribute __array_interface__"]


def test_every_good_pickle_is_accepted():
    assert [each for each in good_pickles() if loaded(b"".join(each)) is REJECTED] == []
