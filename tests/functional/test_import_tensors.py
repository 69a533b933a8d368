"""Loading of every kind of tensor."""

from __future__ import annotations

import io
import re
import tracemalloc

import pytest
import torch

import modpack
from modpack.errors import ArchiveError

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
NARROW = {dtype for dtype in DTYPES if re.fullmatch(r"torch\.u?int[1-7]", str(dtype))}
"""Element types of which torch cannot save tensors."""


def round_trip(obj, **options):
    """Return an object that was saved to a package in memory and loaded from it."""
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.save_pickle("m", "obj.pkl", obj)
    buffer.seek(0)
    with modpack.PackageImporter(buffer) as importer:
        return importer.load_pickle("m", "obj.pkl", **options)


def some_values(dtype):
    """Return a tensor of 24 elements with various bytes, or None if torch cannot create it."""
    raw = torch.arange(24 * torch.empty((), dtype=dtype).element_size()) % 2
    try:
        return raw.to(torch.uint8).view(dtype).reshape(2, -1)
    except (RuntimeError, NotImplementedError):
        return None


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in QUANTIZED | NARROW], ids=str)
def test_every_element_type_keeps_its_bytes(dtype, tmp_path):
    tensor = some_values(dtype)
    if tensor is None:  # torch cannot create views of bit types
        assert "bits" in str(dtype)
        tensor = torch.empty(0, dtype=dtype)
    with modpack.PackageExporter(tmp_path / "t.pt") as exporter:
        exporter.save_pickle("m", "t.pkl", tensor)
    with modpack.PackageImporter(tmp_path / "t.pt") as importer:
        loaded = importer.load_pickle("m", "t.pkl")
    assert (loaded.dtype, loaded.shape) == (tensor.dtype, tensor.shape)
    assert bytes(loaded.untyped_storage()) == bytes(tensor.untyped_storage())


def test_loaded_tensors_share_storages():
    base = torch.arange(12.0).reshape(3, 4)
    whole = {
        "base": base,
        "row": base[1],
        "transposed": base.t(),
        "strided": base[:, ::2],
        "as_ints": base.view(torch.int32),
        "expanded": torch.ones(1).expand(1000),
        "storage": base.untyped_storage(),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(7),
    }
    loaded = round_trip(whole)
    for name in ("row", "transposed", "strided", "expanded", "empty", "scalar", "as_ints"):
        assert torch.equal(loaded[name], whole[name])
        assert loaded[name].stride() == whole[name].stride()
    loaded["base"][1, 0] = 100.0
    assert loaded["row"][0] == loaded["transposed"][0, 1] == loaded["strided"][1, 0] == 100.0
    assert loaded["storage"].data_ptr() == loaded["as_ints"].data_ptr()
    assert loaded["expanded"].untyped_storage().nbytes() == 4


def test_sparse_quantized_and_nested_tensors_load():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        loaded = round_trip(dense.to_sparse(layout=layout))
        assert loaded.layout is layout
        assert torch.equal(loaded.to_dense(), dense)
    quantized = torch.quantize_per_tensor(dense, 0.5, 1, torch.qint8)
    per_channel = torch.quantize_per_channel(
        dense, torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.quint8
    )
    for tensor in (quantized, per_channel):
        loaded = round_trip(tensor)
        assert loaded.qscheme() == tensor.qscheme()
        assert torch.equal(loaded.int_repr(), tensor.int_repr())
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=layout)
        parts = round_trip(nested).unbind()
        assert [part.tolist() for part in parts] == [[1.0, 1.0], [0.0, 0.0, 0.0]]


def test_conjugates_gradients_and_formats_are_restored():
    conjugate = torch.tensor([1 + 2j]).conj()
    loaded = round_trip({"c": conjugate, "n": torch.tensor([1 + 2j]).conj().imag})
    assert loaded["c"].tolist() == [1 - 2j]
    assert loaded["n"].tolist() == [-2.0]
    leaf = torch.ones(2, requires_grad=True)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    buffer = torch.nn.Buffer(torch.ones(1), persistent=False)
    loaded = round_trip([leaf, frozen, buffer])
    assert [tensor.requires_grad for tensor in loaded] == [True, False, False]
    assert type(loaded[1]) is torch.nn.Parameter
    assert isinstance(loaded[2], torch.nn.Buffer) and not loaded[2].persistent
    channels_last = torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last)
    assert round_trip(channels_last).is_contiguous(memory_format=torch.channels_last)


def test_attributes_of_tensors_are_restored():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.tag = "special"
    assert round_trip(parameter).tag == "special"
    assert round_trip(torch.ones(3, device="meta")).device.type == "meta"


def test_modules_keep_ties_buffers_hooks_and_mode():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("kept", torch.ones(1))
    model.register_buffer("dropped", torch.ones(1), persistent=False)
    model.eval()
    loaded = round_trip(model)
    assert loaded[1].weight is loaded[0].weight
    assert not loaded.training
    assert [name for name, _ in loaded.named_buffers()] == ["kept", "dropped"]
    assert list(loaded.state_dict()) == list(model.state_dict())
    loaded.load_state_dict(model.state_dict())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimizer_resumes(kind):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.1, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def step(model, optimizer, scheduler):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
        return model.weight.detach().clone()

    step(model, optimizer, scheduler)
    loaded = round_trip({"m": model, "o": optimizer, "s": scheduler})
    assert loaded["o"].param_groups[0]["params"][0] is loaded["m"].weight
    after = step(loaded["m"], loaded["o"], loaded["s"])
    assert torch.equal(after, step(model, optimizer, scheduler))


def test_packaged_tensor_subclasses_and_registries_load(project, tmp_path):
    project(
        {
            "kinds_of_tensors.py": """
            import torch
            class Tagged(torch.Tensor):
                pass
            class Wrapper(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.by_name = torch.nn.ParameterDict({"a": torch.ones(1)})
                    self.by_place = torch.nn.ParameterList([torch.ones(2), torch.zeros(1)])
            """
        }
    )
    import kinds_of_tensors as kinds

    tagged = torch.ones(2).as_subclass(kinds.Tagged)
    tagged.tag = "t"
    with modpack.PackageExporter(tmp_path / "k.pt") as exporter:
        exporter.intern("kinds_of_tensors")
        exporter.save_pickle("m", "k.pkl", (tagged, kinds.Wrapper()))
    with modpack.PackageImporter(tmp_path / "k.pt") as importer:
        own = importer.import_module("kinds_of_tensors")
        again, wrapper = importer.load_pickle("m", "k.pkl")
    assert (type(again), again.tag) == (own.Tagged, "t")
    assert wrapper.by_name["a"].tolist() == [1.0]
    assert [tuple(p.shape) for p in wrapper.by_place] == [(2,), (1,)]


@pytest.fixture
def saved(tmp_path):
    with modpack.PackageExporter(tmp_path / "t.pt") as exporter:
        exporter.save_pickle("m", "t.pkl", {"a": torch.arange(4.0), "b": torch.ones(2).half()})
    return tmp_path / "t.pt"


@pytest.mark.parametrize(
    ("map_location", "device"),
    [
        (None, "cpu"),
        ("cpu", "cpu"),
        ("meta", "meta"),
        (torch.device("cpu"), "cpu"),
        (torch.device("meta"), "meta"),
        ({"cpu": "meta"}, "meta"),
        ({"cuda:0": "meta"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: None, "cpu"),
    ],
)
def test_map_location_selects_device(saved, map_location, device):
    with modpack.PackageImporter(saved) as importer:
        loaded = importer.load_pickle("m", "t.pkl", map_location=map_location)
    assert {tensor.device.type for tensor in loaded.values()} == {device}
    assert modpack.load(saved, map_location=map_location)["a"].device.type == device
    if device == "cpu":
        assert loaded["a"].tolist() == [0, 1, 2, 3]


def test_map_location_function_is_called_for_each_storage(saved):
    asked = []

    def place(storage, location):
        asked.append((location, storage.nbytes()))
        return storage

    with modpack.PackageImporter(saved) as importer:
        importer.load_pickle("m", "t.pkl", map_location=place)
    assert sorted(asked) == [("cpu", 4), ("cpu", 16)]


def test_loaded_tensors_are_independent_of_each_other_and_the_file(saved):
    before = saved.read_bytes()
    with modpack.PackageImporter(saved) as importer:
        first = importer.load_pickle("m", "t.pkl")
        second = importer.load_pickle("m", "t.pkl")
        first["a"].add_(10)
        assert second["a"].tolist() == [0, 1, 2, 3]
        assert importer.load_pickle("m", "t.pkl")["a"].tolist() == [0, 1, 2, 3]
    first["a"].mul_(2)
    assert first["a"].tolist() == [20, 22, 24, 26]
    assert saved.read_bytes() == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_file_deleted_or_replaced_after_opening_still_loads(saved, tmp_path, when):
    replacement = tmp_path / "other.pt"
    with modpack.PackageExporter(replacement) as exporter:
        exporter.save_pickle("m", "t.pkl", {"a": torch.full((400,), 9.0)})
    for change in (lambda: replacement.replace(saved), saved.unlink):
        with modpack.PackageImporter(saved) as importer:
            expected = importer.load_pickle("m", "t.pkl")["a"].clone()
            loaded = importer.load_pickle("m", "t.pkl") if when == "after" else None
            change()
            loaded = loaded or importer.load_pickle("m", "t.pkl")
            assert torch.equal(loaded["a"], expected)
            loaded["a"].zero_()


def test_file_overwritten_after_opening_is_detected(saved):
    with modpack.PackageImporter(saved) as importer:
        content = saved.read_bytes()
        values = bytes(torch.arange(4.0).untyped_storage())
        saved.write_bytes(content.replace(values, values[::-1]))
        with pytest.raises(ArchiveError, match="storage"):
            importer.load_pickle("m", "t.pkl")


def test_unzipped_package_loads_like_the_file(saved, tmp_path):
    import zipfile

    with zipfile.ZipFile(saved) as archive:
        archive.extractall(tmp_path / "folder")
    before = {p: p.read_bytes() for p in (tmp_path / "folder").rglob("*") if p.is_file()}
    with modpack.PackageImporter(tmp_path / "folder") as importer:
        loaded = importer.load_pickle("m", "t.pkl")
        loaded["a"].add_(1)
        assert loaded["a"].tolist() == [1, 2, 3, 4]
        assert importer.load_pickle("m", "t.pkl")["a"].tolist() == [0, 1, 2, 3]
    assert {p: p.read_bytes() for p in before} == before


def test_loaded_tensor_can_be_resized_viewed_by_numpy_and_saved(saved):
    with modpack.PackageImporter(saved) as importer:
        tensor = importer.load_pickle("m", "t.pkl")["a"]
    tensor.numpy()[0] = 5
    assert tensor[0] == 5
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    assert len(buffer.getvalue()) < 5000
    buffer.seek(0)
    assert torch.equal(torch.load(buffer), tensor)
    assert torch.equal(round_trip(tensor), tensor)
    clone = tensor.clone()
    clone.resize_(100)
    assert clone[:4].tolist() == tensor.tolist()


def test_tensor_in_buffer_is_copied_once():
    size = 32 << 20
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.save_pickle("m", "obj.pkl", torch.ones(size, dtype=torch.uint8))
    buffer.seek(0)
    with modpack.PackageImporter(buffer) as importer:
        tracemalloc.start()
        try:
            loaded = importer.load_pickle("m", "obj.pkl")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert loaded.sum() == size
    assert most < 1.5 * size


def with_note(tensor):
    tensor.note = "kept"
    return tensor


def facts(tensor):
    """Describe a tensor without reading its values, which would crash if it has no memory."""
    names = ("dtype", "shape", "requires_grad", "is_leaf", "__class__")
    flags = {name: getattr(tensor, name) for name in names}
    place = tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()
    return flags, place, tensor.is_conj(), getattr(tensor, "note", None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(100, 3).t(),
        lambda: torch.ones(100)[40:50],
        lambda: torch.nn.Parameter(torch.ones(4)),
        lambda: torch.ones(4).to(torch.uint16),
        lambda: torch.ones(4).to(torch.float8_e5m2).requires_grad_(),
        lambda: torch.ones(4, dtype=torch.complex64).conj(),
        lambda: with_note(torch.ones(4)),
    ],
    ids=["transposed", "slice", "parameter", "uint16", "float8", "conjugated", "note"],
)
def test_freed_tensor_loads_without_memory(make):
    tensor = make()
    tensor.untyped_storage().resize_(0)
    again, shared = round_trip([tensor, tensor.data])
    assert facts(again) == facts(tensor)
    assert again.untyped_storage()._cdata == shared.untyped_storage()._cdata


def test_freed_quantized_tensor_is_rejected():
    tensor = torch.quantize_per_tensor(torch.ones(4), 0.5, 1, torch.quint8)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(modpack.PicklingError, match="memory of the tensor was freed"):
        round_trip(tensor)


def test_empty_view_of_freed_tensor_is_an_ordinary_tensor():
    tensor = torch.ones(4)[2:2]
    tensor.untyped_storage().resize_(0)
    buffer = io.BytesIO()
    modpack.save({"nothing": tensor}, buffer)
    buffer.seek(0)
    assert modpack.load_weights(buffer)["nothing"].storage_offset() == 2
