"""The globals that pickles name, and unreadable pickles."""

from __future__ import annotations

import collections
import pickle
import pickletools

import pytest
import torch

from modpack.pickling.allowlist import DATA, is_dangerous
from modpack.trust.pickle_names import PickleReader, read_pickle
from tests.hostile_pickles import HOSTILE_PICKLES


def names(data: bytes) -> list[str]:
    return [str(name) for name in read_pickle(data).names]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_read_pickle_finds_names_in_all_protocols(protocol):
    obj = [torch.nn.Linear(1, 1), collections.Counter("ab"), {1: (b"x", 2.5, "ü", -(2**70))}]
    data = pickle.dumps(obj, protocol)
    found = read_pickle(data)
    assert found.unreadable is None
    expected = {a.replace(" ", ".") for op, a, _ in pickletools.genops(data) if op.name == "GLOBAL"}
    if protocol < 4:  # later ones take names from the stack
        old = {"__builtin__": "builtins", "copy_reg": "copyreg"}
        module_of = {n: old.get(n.partition(".")[0], n.partition(".")[0]) for n in expected}
        expected = {f"{module_of[n]}.{n.partition('.')[2]}" for n in expected}
        assert set(map(str, found.names)) == expected
    assert "torch.nn.modules.linear.Linear" in map(str, found.names)
    assert "collections.Counter" in map(str, found.names)


def test_read_pickle_maps_python_2_names():
    assert names(b"c__builtin__\neval\n.") == ["builtins.eval"]
    assert names(b"\x80\x03c__builtin__\neval\n.") == ["__builtin__.eval"]


def test_read_pickle_lists_modules_as_names():
    held = b"\x80\x04\x8c\x06module\x8c\x02os\x86Q."
    assert names(held) == ["os"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "truncated"),
        (b"no pickle at all", "is not an opcode"),
        (b"\x80\x04\x95", "truncated"),
        (b"\x80\x04\x95\xff\0\0\0\0\0\0\0N.", "a frame extends past"),
        (b"\x80\x04\x95\x01\0\0\0\0\0\0\0K\x01.", "an opcode crosses the end of its frame"),
        (b"\x80\x04N\x80\x02.", "the protocol changes"),
        (b"\x80\x09N.", "protocol 9 is unknown"),
        (b"\x80\x02h\x07.", "a memo entry does not exist"),
        (b"\x80\x04\x93.", "takes more values than"),
        (b"\x80\x04\x8c\x02os\x8c\x01a\x8c\x01bR\x93.", "a global name is not a string"),
        (b"\x80\x04\x8c\x02osS'a\\x62'\n\x93.", "a global name is not a string"),
        (b"\x80\x02\x82\x01.", "copyreg extension code"),
        (b"\x80\x05\x97.", "out-of-band buffer"),
        (b"\x80\x04NN.", "more than one value is left"),
        (b"\x80\x04N.N", "1 bytes follow the end"),
        (b"\x80\x04}(K\x01u.", "a key has no value"),
        (b"\x80\x04\x8c\x03oddQ.", "has an unknown kind"),
    ],
)
def test_read_pickle_reports_problem_and_position(data, told):
    import re

    contents = read_pickle(data)
    assert contents.unreadable is not None and re.search(told, contents.unreadable)
    assert 0 <= contents.position <= len(data)


def test_consecutive_pickles_share_memo():
    reader = PickleReader()
    reader.read(b"\x80\x04\x8c\x02os\x94.")
    assert reader.read(b"\x80\x04h\0\x8c\x06system\x93.").unreadable is None
    assert [str(n) for n in reader.read(b"\x80\x04h\0\x8c\x06system\x93.").names] == ["os.system"]
    assert read_pickle(b"\x80\x04h\0\x8c\x06system\x93.").unreadable is not None


def test_hostile_pickles_are_not_data():
    """Pickles with only data names contain bytes, or call a name that cannot be called."""
    contents = {each.name: read_pickle(each.data) for each in HOSTILE_PICKLES}
    data = {n for n, found in contents.items() if not found.code_names and not found.unreadable}
    assert data == {"a pickle in bytes", "a pickle in a bytearray", "calls a list", "a codec"}


def test_nested_tuples_use_bounded_memory():
    """A traversal without sharing would visit the innermost tuple 2 to the 500 times."""
    doubled = b"\x80\x04)" + b"2\x86" * 500 + b"."
    assert read_pickle(doubled).unreadable is None


def test_allowlist_contains_no_dangerous_names():
    for full in DATA:
        module, _, name = full.rpartition(".")
        assert not is_dangerous(module, name), full


TENSOR = b"ctorch\nTensor\n"
ORDERED = b"ccollections\nOrderedDict\n)R"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (TENSOR + b")}X\5\0\0\0cdataK\7s\x92", "torch.Tensor"),
        (TENSOR + b")\x81", "torch.Tensor"),
        (TENSOR + b"K\1\x85R", "torch.Tensor"),
        (b"ctorch.storage\nUntypedStorage\n)}\x92", "torch.storage.UntypedStorage"),
        (b"ctorch\nFloatStorage\n)R", "torch.FloatStorage"),
        (b"cdatetime\ndate\n)R}b", "datetime.date"),
        (b"ccollections\ndeque\n)R}b", "collections.deque"),
        (b"ccollections\nOrderedDict\n)\x81", "collections.OrderedDict"),
        (ORDERED + b"N}\x86b", "collections.OrderedDict"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R}b", "torch._utils._rebuild_tensor_v2"),
    ],
)
def test_misused_data_names_are_code(data, name):
    found = read_pickle(b"\x80\x02" + data + b".")
    assert found.unreadable is None
    assert [str(each) for each in found.code_names] == [name]


@pytest.mark.parametrize(
    "data",
    [ORDERED + b"}b", TENSOR, b"ctorch._utils\n_rebuild_tensor_v2\n)RNN}\x87b", ORDERED + b"\x85"],
)
def test_data_names_are_not_code(data):
    found = read_pickle(b"\x80\x02" + data + b".")
    assert (found.unreadable, found.code_names) == (None, ())


@pytest.mark.parametrize("size", [2**60, 2**61 - 1, -1])
def test_read_pickle_rejects_invalid_storage_size(size):
    number = size.to_bytes(9, "little", signed=True)
    parts = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpu"
    told = read_pickle(b"\x80\x02" + parts + b"\x8a\x09" + number + b"tQ.").unreadable
    assert told == "a storage has an invalid size"
