"""Unpickling of plain data with the allowlist."""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import pickle
import struct

import pytest
import torch

from modpack.errors import UnpicklingError
from modpack.pickling.data_unpickler import unpickle_data
from modpack.pickling.tensor_loading import StorageLoader
from tests.hostile_pickles import HOSTILE_PICKLES

VALUES = {
    "plain": [None, True, 1, -(2**70), 2.5, "ü", b"x", (1, (2,), ()), {"a": [1]}],
    "sets": [{1, "a"}, frozenset((2, 3)), bytearray(b"12")],
    "numbers": [1 + 2j, decimal.Decimal("1.50"), range(1, 9, 2), slice(1, None)],
    "times": [
        datetime.date(2020, 1, 2),
        datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.timezone.utc),
        datetime.timedelta(1, 2, 3),
        datetime.time(1, 2),
    ],
    "containers": [
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
        collections.defaultdict(list, {1: [2]}),
        collections.deque([1, 2], 3),
    ],
    "constants": [..., NotImplemented, torch.float8_e4m3fn, torch.device("cpu"), torch.Size([1])],
}


class Nothing:
    """An archive without records."""

    source = "nothing"

    def has(self, name: str) -> bool:
        return False


def load(data: bytes, **more: object) -> object:
    storages = StorageLoader(Nothing(), None, "x.pkl")  # type: ignore[arg-type]
    return unpickle_data(data, resource="x.pkl", storages=storages, **more)  # type: ignore[arg-type]


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def whole(*body: bytes) -> bytes:
    return b"\x80\x04" + b"".join(body) + b"."


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", VALUES)
def test_unpickle_data_restores_values(name, protocol):
    value = VALUES[name]
    again = load(pickle.dumps(value, protocol))
    assert again == value and list(map(type, again)) == list(map(type, value))


def test_unpickle_data_keeps_shared_and_circular_references():
    value: list = [[1]]
    value += [value[0], value]
    again = load(pickle.dumps(value, 4))
    assert again[0] is again[1] and again[2] is again


def test_unpickle_data_rejects_hostile_pickles():
    accepted = {}
    for each in HOSTILE_PICKLES:
        with contextlib.suppress(UnpicklingError):
            accepted[each.name] = load(each.data)
    inert = (bytes, bytearray, list)  # a pickle inside of bytes is bytes
    assert {name: obj for name, obj in accepted.items() if type(obj) not in inert} == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((named("os", "system"),), "'os.system' is not allowed"),
        ((named("torch", "nn.Linear"),), "'torch.nn.Linear' is not allowed"),
        ((named("torch", "Tensor.backward"),), "'torch.Tensor.backward' is not"),
        ((named("collections", "OrderedDict"), b")\x81"), "creating an object of OrderedDict"),
        ((named("torch.storage", "UntypedStorage"), b"J\0\0\0\x7f\x85R"), "calling UntypedStorage"),
        ((named("torch", "Tensor"), b"J\0\0\0\x7f\x85R"), "calling Tensor"),
        ((named("builtins", "int"), b"K\1\x85R"), "calling int"),
        ((named("builtins", "range"), text("a"), b"\x85R"), "not an integer"),
        ((b"]", b"K\1\x85R"), "calling list"),
        ((b"]", b"}b"), "setting the state of a list"),
        ((named("builtins", "set"), b")R", b"}b"), "setting the state of a set"),
        ((named("collections", "OrderedDict"), b")R", b"K\1b"), "the state of a OrderedDict"),
        ((b"}", b"]K\1s"), "a key has type list"),
        ((b"}", b"\x8a\x09", b"\xff" * 8 + b"\0", b"K\1s"), "more than 61 bits"),
        ((b"K\1", b"K\2a"), "appending to a int"),
        ((b"]", b"(K\1u", b""), "a key has no value"),
        ((named("builtins", "bytearray"), b"J\0\0\0\x7f\x85R"), "not made of bytes"),
        ((named("_codecs", "encode"), text("a"), text("rot13"), b"\x86R"), "arguments of encode"),
        (
            (named("collections", "defaultdict"), named("torch", "device"), b"\x85R"),
            "the factory of a defaultdict",
        ),
        ((text("odd"), b"Q"), "does not name a storage"),
        ((b"I1\n",), "belongs to protocol 0 or 1"),
        ((b"N", b"N"), "more than one value"),
    ],
)
def test_unpickle_data_rejects_other_names_and_arguments(body, message):
    with pytest.raises(UnpicklingError, match=message):
        load(whole(*body))


def test_unpickle_data_rejects_tensor_hooks_and_invalid_states():
    meta = named("torch._utils", "_rebuild_meta_tensor_no_storage")
    tensor = meta + b"(" + named("torch", "float32") + b"K\2\x85K\1\x85\x89tR"
    assert load(whole(tensor)).shape == (2,)
    hooks = named("collections", "OrderedDict") + b")R" + b"K\1" + named("torch", "device") + b"s"
    parameter = named("torch._utils", "_rebuild_parameter")
    with pytest.raises(UnpicklingError, match="a tensor has hooks"):
        load(whole(parameter, b"(", tensor, b"\x88", hooks, b"tR"))
    with_state = named("torch._utils", "_rebuild_parameter_with_state")
    with pytest.raises(UnpicklingError, match="not a dict of names"):
        load(whole(with_state, b"(", tensor, b"\x88N", b"}}\x86", b"tR"))
    retyped = named("torch._tensor", "_rebuild_from_type_v2")
    for maker in (named("torch", "device"), named("builtins", "set")):
        with pytest.raises(UnpicklingError, match="function that creates none"):
            load(whole(retyped, b"(", maker, named("torch", "Tensor"), b")", b"}", b"tR"))


def test_unpickle_data_calls_added_names_only():
    import fractions

    data = pickle.dumps(fractions.Fraction(1, 3), 2)
    assert load(data, added=("fractions.Fraction",)) == fractions.Fraction(1, 3)
    with pytest.raises(UnpicklingError, match=r"fractions\.Fraction"):
        load(data, added=("fractions.Fractions",))
    with pytest.raises(UnpicklingError, match=r"nowhere\.Thing is not available"):
        load(whole(named("nowhere", "Thing")), added=("nowhere.Thing",))


ORDERED = named("collections", "OrderedDict") + b")R"


class OneStorage(Nothing):
    """An archive with a storage of some bytes."""

    def __init__(self, size: int) -> None:
        self.content = bytes(size)


def made_of(kind: str, size: int, *body: bytes) -> object:
    """Unpickle data with storages of a given size."""

    class Storages:
        def load(self, storage_type: object, key: str, location: str, count: int) -> object:
            return torch.storage.TypedStorage(
                wrap_storage=torch.UntypedStorage(size), dtype=getattr(torch, kind), _internal=True
            )

    return unpickle_data(whole(*body), resource="x.pkl", storages=Storages())  # type: ignore[arg-type]


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def tuple_of(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


STORAGE = tuple_of(text("storage"), named("torch", "FloatStorage"), text("0"), text("cpu"), b"K\2")
STORAGE += b"Q"


def tensor(*more: bytes, hooks: bytes = ORDERED) -> bytes:
    parts = (STORAGE, b"K\0", tuple_of(b"K\1"), tuple_of(b"K\1"), b"\x88", hooks, *more)
    return named("torch._utils", "_rebuild_tensor_v2") + tuple_of(*parts) + b"R"


@pytest.mark.parametrize("name", ["torch._inductor", "torch.nn", "torch.strided2"])
def test_layout_lookup_imports_no_modules(clean_python, name):
    code = """
    import sys, torch
    from tests.unit.pickling.test_data_unpickler import load, named, text, whole
    from modpack.errors import UnpicklingError
    before = set(sys.modules)
    pickled = whole(named("torch.serialization", "_get_layout"), text(name), b"\\x85R")
    try:
        load(pickled)
    except UnpicklingError as failure:
        print("unknown layout" in str(failure), "torch._inductor" in set(sys.modules) - before)
    """
    assert "True False" in clean_python(code, name=name).stdout


def test_unpickled_tensor_has_its_own_hook_dict():
    hooks = ORDERED + b"q\x00"
    made = made_of(
        "float32", 8, tensor(hooks=hooks), b"h\x00K\0", named("builtins", "list"), b"s\x86"
    )
    assert made[0]._backward_hooks == {}  # type: ignore[index]
    (made[0] * 2).sum().backward()  # type: ignore[index]


@pytest.mark.parametrize("name", ["items", "keys", "__len__", "update"])
def test_unpickle_data_rejects_attributes_that_replace_methods(name):
    with pytest.raises(UnpicklingError, match=f"an attribute replaces '{name}' of its class"):
        load(whole(ORDERED, b"}", text(name), b"K\5sb"))
    state = b"}" + text("detach") + b"K\5s"
    retyped = named("torch._tensor", "_rebuild_from_type_v2")
    inner = tuple_of(STORAGE, b"K\0", tuple_of(b"K\1"), tuple_of(b"K\1"), b"\x89", ORDERED)
    parts = (named("torch._utils", "_rebuild_tensor_v2"), named("torch", "Tensor"), inner, state)
    with pytest.raises(UnpicklingError, match="an attribute replaces 'detach' of its class"):
        made_of("float32", 8, retyped, tuple_of(*parts), b"R")


def test_unpickle_data_limits_keys_with_same_hash():
    keys = []
    prime = (11400714785074694791, 14029467366897019727, 2870177450012600261)
    mask, inverse = 2**64 - 1, [pow(each, -1, 2**64) for each in prime]

    def rotated(x: int, bits: int) -> int:
        return ((x << bits) | (x >> (64 - bits))) & mask

    needed = rotated(12345 * inverse[0] & mask, 33)
    for first in range(1, 200_000):  # pairs with the same hash in Python's xxHash of tuples
        lane = rotated((prime[2] + first * prime[1]) & mask, 31) * prime[0] & mask
        second = (needed - lane) * inverse[1] & mask
        second -= 2**64 if second >= 2**63 else 0
        if abs(second) < 2**61 - 2 and second != -1:
            keys.append((first, second))
    keys = keys[:1001]
    assert len({hash(key) for key in keys}) == 1
    assert len(load(pickle.dumps(dict.fromkeys(keys[:1000]), 4))) == 1000  # type: ignore[arg-type]
    with pytest.raises(UnpicklingError, match="more than 1000 keys share a hash"):
        load(pickle.dumps(dict.fromkeys(keys), 4))


PROTOCOL_NAMES = [
    *("__array_interface__", "__array_struct__", "__array__", "__array_priority__"),
    *("__cuda_array_interface__", "__dlpack__", "__dlpack_device__", "__buffer__"),
    *("__torch_function__", "__deepcopy__", "__copy__", "__reduce_ex__", "__getattr__"),
    *("__dataclass_fields__", "__wrapped__", "__index__", "__html__", "__private"),
    *("_repr_html_", "_repr_mimebundle_", "_ipython_display_", "_as_parameter_", "_fields_"),
    *("", "a b", "1", "a.b", "\0"),
]


@pytest.mark.parametrize("name", PROTOCOL_NAMES)
def test_unpickle_data_rejects_attributes_that_protocols_look_up(name):
    value = torch.ones(2)
    state = b"}" + text(name) + b"K\5s"
    expected = "reserved or invalid name|replaces"
    with pytest.raises(UnpicklingError, match=expected):
        load(whole(ORDERED, state, b"b"))
    inner = tuple_of(STORAGE, b"K\0", tuple_of(b"K\1"), tuple_of(b"K\1"), b"\x89", ORDERED)
    retyped = named("torch._tensor", "_rebuild_from_type_v2")
    parts = (named("torch._utils", "_rebuild_tensor_v2"), named("torch", "Tensor"), inner, state)
    with pytest.raises(UnpicklingError, match=expected):
        made_of("float32", 8, retyped, tuple_of(*parts), b"R")
    parameter = named("torch._utils", "_rebuild_parameter_with_state")
    with pytest.raises(UnpicklingError, match=expected):
        made_of("float32", 8, parameter, tuple_of(tensor(), b"\x88", ORDERED, state), b"R")
    assert value.sum() == 2


def test_unpickle_data_restores_other_attributes(tmp_path):
    weight = torch.nn.Parameter(torch.ones(2))
    weight.ignored, weight._no_weight_decay = 1, True
    module = torch.nn.Linear(2, 2)
    import modpack

    modpack.save({"weight": weight, "state": module.state_dict()}, tmp_path / "w.modpack")
    policy = modpack.TrustPolicy(allow_code=False)
    loaded = modpack.load(tmp_path / "w.modpack", policy=policy)
    assert vars(loaded["weight"]) == {"ignored": 1, "_no_weight_decay": True}
    assert loaded["state"]._metadata == module.state_dict()._metadata


HUNGRY = {
    "lists": b"]",
    "dicts": b"}",
    "sets": b"\x8f",
    "lists of one item": b"]Na",
    "dicts of one item": b"}NNs",
    "tuples of one item": b"N\x85",
    "deques": b"h\0)R",
    "meta tensors": b"h\1h\2R",
}


@pytest.mark.parametrize("name", HUNGRY)
def test_unpickle_data_limits_memory_of_containers(name):
    repeated = HUNGRY[name] * (10_000_000 // len(HUNGRY[name]))
    deque = named("collections", "deque") + b"q\0" + b"0"
    meta = named("torch._utils", "_rebuild_meta_tensor_no_storage") + b"q\1" + b"0"
    arguments = tuple_of(named("torch", "float32"), b")", b")", b"\x89") + b"q\2" + b"0"
    with pytest.raises(UnpicklingError, match="the containers of the pickle require more than 192"):
        load(whole(deque, meta, arguments, b"](" + repeated + b"e"))


@pytest.mark.parametrize(
    "body",
    [
        b"h\0)R" * 1000 + b"a" * 999,
        b"h\1)RK\0" * 1000 + b"N" + b"s" * 1000,
        b"h\2" * 1000 + b"N" + b"NN\x87R" * 1000,
        b"h\0" * 1000 + b"]" + b"\x85\x85R" * 1000,
        # from the outside to the inside: each is nested before it gets a member
        b"h\0)Rq\3" + b"h\0)Rq\4ah\4h\0)Ra",
    ],
)
def test_unpickle_data_limits_depth_of_containers_that_recurse_in_c(body):
    kinds = (("collections", "deque"), ("collections", "defaultdict"), ("builtins", "slice"))
    names = b"".join(named(*kind) + b"q" + bytes([i]) + b"0" for i, kind in enumerate(kinds))
    with pytest.raises(UnpicklingError, match="is nested too deeply"):
        load(whole(names, body))


def test_unpickle_data_restores_nested_containers():
    value = collections.deque([collections.deque([collections.deque()]), slice(1)])
    assert load(pickle.dumps(value, 4)) == value
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    data = b"]" * 100_000 + b"a" * 99_999
    assert type(load(whole(data))) is list


def expanded(count: int) -> bytes:
    """An int64 tensor of one number, expanded to many."""
    storage = STORAGE.replace(b"FloatStorage", b"LongStorage")
    parts = (storage, b"K\0", tuple_of(number(count)), tuple_of(b"K\0"), b"\x89", ORDERED)
    return named("torch._utils", "_rebuild_tensor_v2") + tuple_of(*parts) + b"R"


def test_unpickle_data_rejects_indices_without_memory():
    nested = named("torch._utils", "_rebuild_nested_tensor")
    count = 2**30
    with pytest.raises(UnpicklingError, match="require 8589934592 bytes, but 8 are stored"):
        made_of("int64", 8, nested, tuple_of(*[expanded(count)] * 4), b"R")
    layout = named("torch.serialization", "_get_layout") + text("torch.sparse_coo") + b"\x85R"
    size = named("torch", "Size") + tuple_of(tuple_of(b"K\1")) + b"R"
    sparse = tuple_of(layout, tuple_of(expanded(count), expanded(count), size, b"\x88"))
    with pytest.raises(UnpicklingError, match="are stored"):
        made_of("int64", 8, named("torch._utils", "_rebuild_sparse_tensor"), sparse, b"R")


def test_unpickle_data_rejects_flags_that_crash_torch():
    noted = b"}" + text("neg") + b"\x88s"
    with pytest.raises(UnpicklingError, match="the flags of a tensor are invalid"):
        made_of("quint8", 8, tensor(noted).replace(b"\x88" + ORDERED, b"\x89" + ORDERED))
    assert made_of("float32", 8, tensor(noted)).is_neg()  # type: ignore[attr-defined]


def test_invalid_sparse_tensor_leaves_no_pending_validation():
    rebuild = torch._utils._rebuild_sparse_tensor
    from modpack.pickling.tensor_loading import UnsoundTensorError, checked_functions

    ours = checked_functions(False)(rebuild)
    pending = torch._utils._sparse_tensors_to_validate
    before = list(pending)
    indices, values = torch.tensor([[0, 99]]), torch.ones(2)
    with pytest.raises(UnsoundTensorError):
        ours(torch.sparse_coo, (indices, values, torch.Size([3]), False))
    ours(torch.sparse_coo, (indices, values, torch.Size([100]), False))
    rows = (torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2, 0, 0), torch.Size([2, 3]))
    with pytest.raises(UnsoundTensorError, match="empty blocks"):
        ours(torch.sparse_bsr, rows)
    assert pending == before
