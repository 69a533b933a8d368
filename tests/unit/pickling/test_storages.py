"""Storages are written once, and each load maps its own copy."""

from __future__ import annotations

import dataclasses
import hashlib
import sys

import pytest
import torch

from modpack.errors import DeviceNotFoundError, UnpicklingError
from modpack.pickling.tensor_loading import StorageLoader
from modpack.saving.tensors import StorageSaver, storage_bytes


class Sink:
    """An archive writer that keeps records in memory."""

    def __init__(self):
        self.written = {}

    def write_storage(self, name, data):
        assert name not in self.written
        self.written[name] = bytes(data)

    def digest_of(self, name):
        return hashlib.sha256(self.written[name]).hexdigest()


@dataclasses.dataclass
class Place:
    path: str
    offset: int
    length: int


@dataclasses.dataclass
class Source:
    """An open archive with records in memory, some of them also in a file."""

    records: dict
    places: dict = dataclasses.field(default_factory=dict)
    changed: bool = False

    def has(self, name):
        return name in self.records

    def read(self, name):
        return self.records[name]

    def read_copy(self, name):
        return bytearray(self.records[name])

    def data_range(self, name):
        return self.places.get(name)

    def has_changed(self):
        return self.changed


def floats(*values):
    return bytes(torch.tensor(values).untyped_storage())


def loader(source, map_location=None):
    return StorageLoader(source, map_location, "m/x.pkl")


def numbers(storage):
    return torch.tensor([], dtype=storage.dtype).set_(storage).tolist()


@pytest.fixture
def mapped(tmp_path):
    """A file with two storages after 64 other bytes."""
    data = floats(1.0, 2.0)
    (tmp_path / "f.bin").write_bytes(b"?" * 64 + data + b"?" * 56 + data)
    path = str(tmp_path / "f.bin")
    places = {
        ".data/0.storage": Place(path, 64, 8),
        ".data/1.storage": Place(path, 128, 8),
        ".data/crooked.storage": Place(path, 66, 6),
        ".data/empty.storage": Place(path, 64, 0),
    }
    records = {name: b"" for name in places}
    return Source(records, places)


def test_unchanged_storage_is_written_once():
    sink = Sink()
    saver = StorageSaver(sink)
    tensor = torch.ones(3)
    keys = [saver.add(tensor.untyped_storage()), saver.add(tensor[1:].untyped_storage())]
    saver.next_object()
    keys.append(saver.add(tensor.untyped_storage()))
    assert len(set(keys)) == 1 and len(sink.written) == 1


def test_changed_storage_is_written_again():
    sink = Sink()
    saver = StorageSaver(sink)
    tensor = torch.zeros(2)
    first = saver.add(tensor.untyped_storage())
    saver.next_object()
    tensor.fill_(1)
    second = saver.add(tensor.untyped_storage())
    assert first != second
    assert list(sink.written.values()) == [floats(0.0, 0.0), floats(1.0, 1.0)]


def test_storage_bytes_returns_storage_memory():
    tensor = torch.arange(3, dtype=torch.uint8)
    view = storage_bytes(tensor.untyped_storage())
    tensor[0] = 9
    assert bytes(view) == b"\x09\x01\x02"
    assert bytes(storage_bytes(torch.UntypedStorage(0))) == b""


def test_loaded_storage_is_mapped_copy_on_write(mapped, tmp_path):
    first, second = loader(mapped), loader(mapped)
    storage = first.load(torch.FloatStorage, "0", "cpu", 2)
    assert numbers(storage) == [1.0, 2.0]
    storage[0] = 7.0
    assert numbers(first.load(torch.FloatStorage, "0", "cpu", 2)) == [7.0, 2.0]
    assert numbers(first.load(torch.FloatStorage, "1", "cpu", 2)) == [1.0, 2.0]
    assert numbers(second.load(torch.FloatStorage, "0", "cpu", 2)) == [1.0, 2.0]
    assert floats(7.0) not in (tmp_path / "f.bin").read_bytes()


def test_storage_key_is_one_storage_for_all_dtypes(mapped):
    load = loader(mapped).load
    as_floats = load(torch.FloatStorage, "0", "cpu", 2)
    as_bytes = load(torch.UntypedStorage, "0", "cpu", 8)
    assert as_bytes.data_ptr() == as_floats.data_ptr()
    assert type(as_bytes) is torch.UntypedStorage


def test_unmappable_storage_is_copied(mapped):
    crooked = ".data/crooked.storage"
    mapped.records[crooked] = bytes(6)
    assert loader(mapped).load(torch.ByteStorage, "crooked", "cpu", 6).tolist() == [0] * 6
    source = Source({".data/0.storage": floats(3.0)})
    assert numbers(loader(source).load(torch.FloatStorage, "0", "cpu", 1)) == [3.0]
    assert numbers(loader(mapped).load(torch.FloatStorage, "empty", "cpu", 0)) == []


def test_replaced_file_is_not_mapped(mapped):
    mapped.changed = True
    mapped.records[".data/0.storage"] = floats(5.0, 6.0)
    assert numbers(loader(mapped).load(torch.FloatStorage, "0", "cpu", 2)) == [5.0, 6.0]


def test_missing_file_raises_unpickling_error(mapped, tmp_path):
    (tmp_path / "f.bin").unlink()
    with pytest.raises(UnpicklingError, match=r"f\.bin cannot be mapped"):
        loader(mapped).load(torch.FloatStorage, "0", "cpu", 2)


def test_foreign_byte_order_is_swapped():
    other = "big" if sys.byteorder == "little" else "little"
    data = {torch.FloatStorage: 4, torch.ShortStorage: 2, torch.ComplexFloatStorage: 4}
    for kind, width in data.items():
        content = floats(1.0, 2.0)
        turned = b"".join(content[at : at + width][::-1] for at in range(0, len(content), width))
        source = Source({".data/0.storage": turned, "byteorder": other.encode() + b"\n"})
        count = 8 // torch._utils._element_size(kind.dtype)
        loaded = loader(source).load(kind, "0", "cpu", count)
        assert bytes(loaded.untyped()) == content
    source = Source({".data/0.storage": b"\x01\x02", "byteorder": other.encode()})
    assert loader(source).load(torch.ByteStorage, "0", "cpu", 2).tolist() == [1, 2]


@pytest.mark.parametrize("wrong", [3, 1.5, ["cpu"], ("cpu",)], ids=repr)
def test_map_location_of_other_type_raises_type_error(wrong):
    with pytest.raises(TypeError, match="map_location"):
        loader(Source({}), wrong)


def test_map_location_without_device_raises_value_error():
    with pytest.raises(ValueError, match="'gpu' is not a device"):
        loader(Source({}), "gpu")


@pytest.mark.parametrize("order", ["little", "big"])
def test_storage_size_is_checked_on_every_load(order):
    load = loader(Source({".data/0.storage": bytes(64), "byteorder": order.encode()})).load
    load(torch.ShortStorage, "0", "cpu", 32)
    with pytest.raises(UnpicklingError, match="has 64 bytes, but 512 are required"):
        load(torch.DoubleStorage, "0", "cpu", 64)


@pytest.mark.parametrize("place", ["cuda:99999999999999", "junk\x1b[31m", ""])
@pytest.mark.parametrize("map_location", [None, {"elsewhere": "cpu"}])
def test_unavailable_device_is_reported_with_escaped_name(place, map_location):
    source = Source({".data/0.storage": bytes(4)})
    with pytest.raises(
        DeviceNotFoundError, match=r"0\.storage' cannot be moved to .*map_location"
    ) as caught:
        loader(source, map_location).load(torch.FloatStorage, "0", place, 1)
    assert str(caught.value).isprintable()


def test_error_of_map_location_function_is_not_wrapped():
    def nowhere(storage, place):
        raise RuntimeError("the caller's own")

    source = Source({".data/0.storage": bytes(4)})
    with pytest.raises(RuntimeError, match="the caller's own"):
        loader(source, nowhere).load(torch.FloatStorage, "0", "cpu", 1)
