"""Shared storages after loading."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterable

import pytest
import torch
from torch import nn

import modpack
from tests.tensor_kinds import KINDS, described


class Package:
    """A package in memory that a function fills, and that tests read repeatedly."""

    def __init__(self, **objects: object) -> None:
        self.buffer = io.BytesIO()
        with modpack.PackageExporter(self.buffer) as exporter:
            for name, obj in objects.items():
                exporter.save_pickle("m", name, obj)

    def load(self, name: str) -> object:
        self.buffer.seek(0)
        return modpack.PackageImporter(self.buffer).load_pickle("m", name)


def memory(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return for each tensor the index of the first with the same storage."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [places.index(place) for place in places]


def dense_and_sparse():
    base = torch.arange(12.0)
    return [
        base,
        base[::3],
        base.view(torch.int32),
        base.view(3, 4).t(),
        base.as_strided((3, 3), (1, 1), 2),
        base[4:4],
        nn.Parameter(base[:2]),
        torch.sparse_coo_tensor([[0, 2]], base[1:3], (3,))._values(),
        base.view(torch.complex64).conj(),
        torch.arange(12.0),
    ]


def flat_parameters():
    flat = torch.arange(12.0)
    model = nn.ParameterList(nn.Parameter(part) for part in flat.chunk(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    for number, parameter in enumerate(model):
        optimizer.state[parameter]["momentum_buffer"] = flat[number : number + 4]
    return model, optimizer


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_views_of_every_kind_share_one_storage():
    before = dense_and_sparse()
    after = Package(o=before).load("o")
    assert memory(after) == memory(before)
    after[0][3] = 77.0
    assert after[1][1] == after[3][3, 0] == after[4][0, 1] == 77.0
    assert [t.storage_offset() for t in after] == [t.storage_offset() for t in before]


def test_model_and_optimizer_share_one_buffer(tmp_path):
    model, optimizer = flat_parameters()
    with modpack.PackageExporter(tmp_path / "m.modpack") as exporter:
        exporter.save_model("m", "model.pkl", model, optimizer)
    with modpack.PackageImporter(tmp_path / "m.modpack") as importer:
        model, optimizer = importer.load_model("m", "model.pkl", with_optimizer=True)
    kept = [optimizer.state[p]["momentum_buffer"] for p in model]
    assert set(memory([*model, *kept])) == {0}
    with torch.no_grad():
        model[0][3] = -1.0
    assert kept[0][3] == kept[1][2] == kept[2][1] == -1.0
    assert all(p is q for p, q in zip(model, optimizer.param_groups[0]["params"], strict=True))


def test_hook_shares_storage_of_its_parameter(tmp_path):
    model = nn.Linear(2, 2)
    row = model.weight.detach()[1]
    model.register_forward_hook(lambda module, inputs, output: output * 0 + row)
    modpack.save(model, tmp_path / "m.modpack")
    loaded = modpack.load(tmp_path / "m.modpack")
    with torch.no_grad():
        loaded.weight[1] = torch.tensor([5.0, 6.0])
    assert loaded(torch.ones(1, 2)).tolist() == [[5.0, 6.0]]


def test_tied_parameters_stay_tied_and_equal_ones_separate():
    shared = nn.Parameter(torch.ones(3))
    model = nn.ParameterDict({"a": shared, "b": shared, "c": nn.Parameter(torch.ones(3))})
    same_storage = nn.Parameter(shared.detach())
    loaded, other = Package(o=(model, same_storage)).load("o")
    assert loaded["a"] is loaded["b"] is not loaded["c"]
    assert memory([loaded["a"], loaded["c"], other]) == [0, 1, 0]
    assert other is not loaded["a"]


def test_separately_loaded_objects_share_no_memory():
    base = torch.zeros(4)
    package = Package(a=base, b=base[2:])
    first, second, again = package.load("a"), package.load("b"), package.load("a")
    first.fill_(1)
    assert (second.tolist(), again.tolist()) == ([0, 0], [0, 0, 0, 0])


WRITING = """
import modpack
importer = modpack.PackageImporter(path)
for tensor in importer.load_pickle("m", "o.pkl"):
    tensor.fill_(9)
print(importer.load_pickle("m", "o.pkl")[0].tolist())
"""


@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_writes_to_tensors_are_private_to_the_process(is_folder, clean_python, tmp_path):
    path = tmp_path / "o.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.save_pickle("m", "o.pkl", [torch.arange(4.0), torch.ones(100_000)])
    if is_folder:
        path = unzipped(path, tmp_path / "folder")
    content = {file: file.read_bytes() for file in [path, *path.rglob("*")] if file.is_file()}
    with modpack.PackageImporter(path) as importer:
        loaded = importer.load_pickle("m", "o.pkl")
        assert clean_python(WRITING, path=path).stdout == "[0.0, 1.0, 2.0, 3.0]\n"
        assert loaded[0].tolist() == [0, 1, 2, 3] and loaded[1].sum() == 100_000
        loaded[1].zero_()
    assert {file: file.read_bytes() for file in content} == content


def unzipped(path, folder):
    import zipfile

    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder


def test_concurrent_loads_get_separate_tensors(tmp_path):
    path = tmp_path / "o.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.save_pickle("m", "o.pkl", {kind: KINDS[kind]() for kind in ("attributes", "meta")})
    places = ["cpu", "meta", None] * 4
    found: dict[int, object] = {}

    def load(number: int) -> None:
        with modpack.PackageImporter(path) as importer:
            loaded = importer.load_pickle("m", "o.pkl", map_location=places[number])["attributes"]
            if places[number] != "meta":
                loaded.fill_(number)
            found[number] = loaded

    threads = [threading.Thread(target=load, args=(number,)) for number in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, place in enumerate(places):
        assert found[number].device.type == (place or "cpu")
        assert place == "meta" or found[number].tolist() == [number] * 3


def test_resaved_object_has_equal_records():
    before = {kind: make() for kind, make in KINDS.items() if kind.startswith("torch.float")}
    again = Package(o=Package(o=before).load("o")).load("o")
    told = [{kind: described(tensor) for kind, tensor in each.items()} for each in (before, again)]
    assert json.dumps(told[0]) == json.dumps(told[1])
