from __future__ import annotations

import io
import json
import sys

import pytest
import torch

import modpack
import modpack.archive.reader
from modpack.loading.weights import load_weights
from modpack.writing.writer import ArchiveWriter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.modpack"


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[k], other[k]) for k in one)


def test_load_weights_returns_the_state_dict(path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model.register_buffer("scratch", torch.ones(1), persistent=False)
    modpack.save(model, path)
    weights = load_weights(path)
    assert same(weights, model.state_dict())
    assert all(type(each) is torch.Tensor for each in weights.values())


def test_shapes_strides_types_and_sharing_are_kept(path):
    base = torch.arange(12, dtype=torch.float64).view(3, 4)
    tensors = {
        "t": base.t(),
        "row": base[1],
        "bf": torch.randn(3).to(torch.bfloat16),
        "f8": torch.randn(4).to(torch.float8_e4m3fn),
        "c": torch.randn(2, dtype=torch.complex64).conj(),
        "neg": torch.randn(2, dtype=torch.complex64).conj().imag,
        "b": torch.tensor([True, False]),
        "none": torch.zeros(0, 5),
        "wide": torch.ones(1).expand(5),
    }
    modpack.save(tensors, path)
    weights = load_weights(path)
    assert weights.keys() == tensors.keys()
    for name, tensor in tensors.items():
        again = weights[name]
        assert again.dtype == tensor.dtype and again.stride() == tensor.stride(), name
        assert again.shape == tensor.shape, name
        assert again.view(torch.uint8).equal(tensor.view(torch.uint8)) if name == "f8" else True
        assert name == "f8" or torch.equal(again, tensor), name
    weights["row"][0] = 99
    assert weights["t"][0, 1] == 99


def test_writing_to_weights_does_not_change_the_file(path):
    modpack.save(torch.nn.Linear(2, 2), path)
    before = path.read_bytes()
    load_weights(path)["weight"].zero_()
    assert path.read_bytes() == before
    assert not torch.equal(load_weights(path)["weight"], torch.zeros(2, 2))


def test_load_weights_runs_no_package_code(project, path, clean_python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the canary flies here while the model is made
    project(
        {
            "armed/__init__.py": "",
            "armed/net.py": """
                import torch
                class Net(torch.nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.l = torch.nn.Linear(2, 2)
                    def __setstate__(self, state):
                        open("canary", "w").close()
                open("canary", "w").close()
                """,
        }
    )
    from armed.net import Net

    modpack.save(Net(), path)
    clean_python(
        """
        import os, sys, modpack
        weights = modpack.load_weights(path)
        assert sorted(weights) == ["l.bias", "l.weight"], weights
        assert not os.path.exists("canary")
        assert not [name for name in sys.modules if "armed" in name]
        """,
        path=path,
    )


def test_load_weights_accepts_buffer_and_resource(tmp_path):
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.use_preset("pinned")
        exporter.save_pickle("a", "one.pkl", {"w": torch.ones(2)})
        exporter.save_pickle("a", "two.pkl", {"w": torch.zeros(2)})
    buffer.seek(0)
    weights = load_weights(buffer, package="a", resource="two.pkl", map_location="cpu")
    assert torch.equal(weights["w"], torch.zeros(2))
    buffer.seek(0)
    with pytest.raises(modpack.ModpackError, match="several saved objects"):
        load_weights(buffer)
    buffer.seek(0)
    with pytest.raises(modpack.ModpackError, match=r"'a/three\.pkl', only for 'a/one"):
        load_weights(buffer, package="a", resource="three.pkl")
    with pytest.raises(TypeError, match="package and resource must be given together"):
        load_weights(buffer, package="a")


def test_load_weights_lists_tensors_that_need_unpickling(path):
    sparse = torch.eye(3).to_sparse()
    modpack.save(
        torch.nn.ParameterDict({"a": torch.ones(1), "s": torch.nn.Parameter(sparse)}), path
    )
    with pytest.raises(modpack.ModpackError, match=r"s \(sparse\).*modpack.load"):
        load_weights(path)


def test_load_weights_without_tensor_record_raises(tmp_path):
    path = tmp_path / "old.pt"
    with ArchiveWriter(path) as writer:
        writer.write(".data/version", b"6\n")
        writer.write(".data/extern_modules", b"torch\n")
        writer.commit()
    with pytest.raises(modpack.ModpackError, match="no record of its tensors"):
        load_weights(path)


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 10**6},
        {"shape": [10**6, 2]},
        {"storage": "../0"},
        {"dtype": "no_such_type"},
        {"dtype": "Tensor"},
        {"dtype": "double"},
        {"dtype": "qint32"},
        {"device": "junk\x1b[31m"},
        {"device": ""},
        {"device": "cuda:99999999999999"},
    ],
)
def test_load_weights_rejects_forged_tensor_record(path, tmp_path, change):
    modpack.save(torch.nn.Linear(2, 2), path)
    forged = tmp_path / "forged.modpack"
    with modpack.archive.reader.open_archive(path) as archive, ArchiveWriter(forged) as writer:
        for name in archive.names():
            content = archive.read(name)
            if name.endswith("tensors.json"):
                document = json.loads(content)
                document["resources"]["__model__/model.pkl"][0].update(change)
                content = json.dumps(document).encode()
            if name.endswith(".storage"):
                writer.write_storage(name, memoryview(content))
            elif "manifest" not in name:
                writer.write(name, content)
        writer.commit()
    with pytest.raises(modpack.ModpackError) as caught:
        load_weights(forged)
    assert str(caught.value).isprintable()


def test_shared_storage_of_other_byte_order_is_swapped_once(tmp_path):
    path = tmp_path / "other.modpack"
    two = [
        {"name": "a", "dtype": "int16", "shape": [32]},
        {"name": "b", "dtype": "uint8", "shape": [65]},
    ]
    with ArchiveWriter(path) as writer:
        write_foreign(writer, two)
    with pytest.raises(modpack.ModpackError, match="needs 65 bytes"):
        load_weights(path, package="m", resource="m.pkl")
    two[1]["dtype"] = "bits16"
    two[1]["shape"] = [32]
    with ArchiveWriter(path) as writer:
        write_foreign(writer, two)
    sizes = {
        each.untyped_storage().nbytes()
        for each in load_weights(path, package="m", resource="m.pkl").values()
    }
    assert sizes == {64}


def test_alias_of_dtype_is_not_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr("modpack.core.tensors.DTYPE_ALIASES", frozenset())
    path = tmp_path / "other.modpack"
    with ArchiveWriter(path) as writer:
        write_foreign(writer, [{"name": "a", "dtype": "double", "shape": [8]}])
    with pytest.raises(modpack.ModpackError, match="does not support: 'double'"):
        load_weights(path, package="m", resource="m.pkl")


def write_foreign(writer: ArchiveWriter, tensors: list[dict]) -> None:
    plain = {"kind": "value", "requires_grad": False, "storage": "0", "offset": 0, "stride": [1]}
    document = {"version": 1, "resources": {"m/m.pkl": [{**each, **plain} for each in tensors]}}
    writer.write(".data/modpack/tensors.json", json.dumps(document).encode())
    writer.write(".data/version", b"6\n")
    writer.write(".data/extern_modules", b"torch\n")
    writer.write("byteorder", b"big" if sys.byteorder == "little" else b"little")
    writer.write_storage(".data/0.storage", memoryview(bytes(64)))
    writer.commit()
