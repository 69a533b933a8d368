"""Tensors: each storage is saved once, with its content at the time of saving."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch
from torch import nn

from modpack import PackageExporter, PackageImporter


class Package:
    """A package in memory: filled by one function, read back as often as needed."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()
        self.exporter = PackageExporter(self.buffer)

    def save(self, name: str, obj: object) -> Package:
        self.exporter.save_pickle("t", name, obj)
        return self

    def closed(self) -> PackageImporter:
        self.exporter.close()
        self.buffer.seek(0)
        return PackageImporter(self.buffer)

    def storages(self) -> dict[str, int]:
        """The size in bytes of each storage record."""
        with zipfile.ZipFile(self.buffer) as archive:
            return {
                entry.filename.rpartition("/")[2]: entry.file_size
                for entry in archive.infolist()
                if entry.filename.endswith(".storage")
            }


def round_trip(obj: object) -> object:
    return Package().save("o.pkl", obj).closed().load_pickle("t", "o.pkl")


TENSORS = {
    "zero size": torch.empty(0),
    "zero size in two dimensions": torch.empty(3, 0, 2),
    "scalar": torch.tensor(3.5),
    "non-contiguous": torch.arange(12.0).reshape(3, 4).t(),
    "strided view": torch.arange(12)[2::3],
    "expanded": torch.tensor([1.0]).expand(5, 5),
    "channels last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "negated": torch.tensor([1 + 2j]).conj().imag,
    "half": torch.rand(3).half(),
    "bfloat16": torch.rand(3).bfloat16(),
    "float8": torch.rand(3).to(torch.float8_e4m3fn),
    "uint16": torch.tensor([1, 2], dtype=torch.uint16),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "sparse": torch.eye(3).to_sparse(),
    "needs grad": torch.rand(3, requires_grad=True),
    "parameter": nn.Parameter(torch.rand(2), requires_grad=False),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_every_kind_of_tensor_loads_equal(tensor):
    again = round_trip([tensor])[0]
    assert type(again) is type(tensor) and again.dtype == tensor.dtype
    assert again.shape == tensor.shape and again.requires_grad == tensor.requires_grad
    assert again.layout == tensor.layout
    if tensor.layout == torch.strided:
        assert again.stride() == tensor.stride()
        assert again.storage_offset() == tensor.storage_offset()
    plain = [t.detach() for t in (again, tensor)]
    if tensor.dtype == torch.float8_e4m3fn:
        plain = [t.float() for t in plain]
    if tensor.layout != torch.strided:
        plain = [t.to_dense() for t in plain]
    assert torch.equal(*plain)


def test_meta_tensor_keeps_its_shape_and_needs_no_storage():
    package = Package().save("o.pkl", torch.empty(10_000, 10_000, device="meta"))
    again = package.closed().load_pickle("t", "o.pkl")
    assert again.is_meta and again.shape == (10_000, 10_000)
    assert package.storages() == {}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
def test_bare_storage_stays_shared_with_its_tensor():
    tensor = torch.arange(3, dtype=torch.uint8)
    storage, again = round_trip([tensor.untyped_storage(), tensor])
    assert again.tolist() == [0, 1, 2]
    assert storage.data_ptr() == again.data_ptr()


def test_views_share_their_storage_after_loading_and_it_is_stored_once():
    whole = torch.arange(100.0)
    package = Package().save(
        "o.pkl", {"whole": whole, "part": whole[10:20], "turned": whole.view(10, 10).t()}
    )
    again = package.closed().load_pickle("t", "o.pkl")
    assert list(package.storages().values()) == [400]
    again["part"][0] = -1
    assert again["whole"][10] == -1 and again["turned"][0, 1] == -1
    assert whole[10] == 10


def test_view_is_stored_with_all_of_its_storage():
    part = torch.arange(1000.0)[5:7]
    package = Package().save("o.pkl", part)
    assert torch.equal(package.closed().load_pickle("t", "o.pkl"), part)
    assert list(package.storages().values()) == [4000]


def test_tied_parameters_stay_tied():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    package = Package().save("o.pkl", model)
    again = package.closed().load_pickle("t", "o.pkl")
    assert again["head"].weight is again["embed"].weight
    assert len(package.storages()) == 1


def test_storage_that_two_pickles_share_is_stored_once():
    shared = torch.rand(50)
    package = Package().save("a.pkl", shared).save("b.pkl", [shared, shared[3:]])
    importer = package.closed()
    assert len(package.storages()) == 1
    first, (second, part) = (importer.load_pickle("t", name) for name in ("a.pkl", "b.pkl"))
    assert torch.equal(first, shared) and torch.equal(second, shared)
    second[3] = -1
    assert part[0] == -1 and first[3] == shared[3], "each load has memory of its own"


def test_tensor_changed_between_saves_is_stored_twice():
    tensor = torch.zeros(10)
    package = Package().save("before.pkl", tensor)
    tensor[4] = 1
    package.save("after.pkl", tensor).save("same.pkl", tensor)
    importer = package.closed()
    tensor.fill_(7)
    assert importer.load_pickle("t", "before.pkl").tolist() == [0.0] * 10
    for name in ("after.pkl", "same.pkl"):
        assert importer.load_pickle("t", name).tolist() == [0.0] * 4 + [1.0] + [0.0] * 5
    assert len(package.storages()) == 2


def test_tensor_is_saved_as_it_is_at_the_moment_of_the_call():
    tensor = torch.zeros(3)
    package = Package().save("o.pkl", tensor)
    tensor.fill_(9)
    assert package.closed().load_pickle("t", "o.pkl").tolist() == [0.0, 0.0, 0.0]


def test_tensor_in_reused_memory_is_distinct():
    package = Package()
    for number in range(20):
        package.save(f"{number}.pkl", torch.full((1000,), float(number)))
    importer = package.closed()
    for number in range(20):
        assert importer.load_pickle("t", f"{number}.pkl").unique().tolist() == [float(number)]


def test_resized_storage_is_stored_again():
    tensor = torch.ones(4)
    package = Package().save("small.pkl", tensor)
    tensor.resize_(8).fill_(2)
    package.save("large.pkl", tensor)
    importer = package.closed()
    assert importer.load_pickle("t", "small.pkl").tolist() == [1.0] * 4
    assert importer.load_pickle("t", "large.pkl").tolist() == [2.0] * 8


def test_plan_accepts_changed_tensors():
    tensor = torch.zeros(10)
    with PackageExporter(None) as exporter:
        exporter.save_pickle("t", "a.pkl", tensor)
        tensor.fill_(1)
        exporter.save_pickle("t", "b.pkl", tensor)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_torch_package_loads_the_tensors_too(protocol):
    from torch.package import PackageImporter as TorchImporter

    shared = torch.rand(5)
    package = Package()
    package.exporter.save_pickle(
        "t", "o.pkl", {"a": shared, "b": shared[2:]}, pickle_protocol=protocol
    )
    package.closed()
    package.buffer.seek(0)
    again = TorchImporter(package.buffer).load_pickle("t", "o.pkl")
    assert torch.equal(again["a"], shared) and torch.equal(again["b"], shared[2:])
    again["b"][0] = -1
    assert again["a"][2] == -1
