"""What cannot be avoided is avoided by none of the limits that the benchmark measures."""

import importlib.util
import os
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import modpack

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"


@pytest.fixture
def limits(tool, monkeypatch, tmp_path):
    """Imports them; beside them lies what is saved. The collector, which they turn off, is on."""
    monkeypatch.syspath_prepend(str(PEERS / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("gc.disable", lambda: None)
    before = set(sys.modules)
    yield tool
    for name in set(sys.modules) - before:
        if name.startswith("by_hand_"):
            del sys.modules[name]


@pytest.fixture
def benched(limits):
    """The module with the models."""
    yield importlib.import_module("benched")
    sys.modules.pop("benched", None)


@pytest.fixture
def weights(benched):
    """A model of two tensors."""
    return benched.Weights([torch.arange(5.0), torch.ones(3)])


def test_handmade_load_returns_model(limits, weights, tmp_path):
    file = str(tmp_path / "model.bare")
    limits("limits").save_bare(weights, file)
    found = limits("limits").map_bare(file)
    assert type(found) is type(weights)
    assert [p.tolist() for p in found.parameters()] == [p.tolist() for p in weights.parameters()]
    assert len(found.weights) == 2


@pytest.mark.parametrize("save", ["save_hashed", "save_synced"])
def test_write_and_hash_limit_writes_every_tensor(limits, weights, tmp_path, save):
    file = tmp_path / "written"
    getattr(limits("limits"), save)(weights, str(file))
    assert file.read_bytes() == b"".join(p.detach().numpy().tobytes() for p in weights.parameters())


def test_limit_starts_writeback_of_earlier_data(limits, weights, tmp_path, monkeypatch):
    told = []

    def begin_writing(*part):
        told.append(part[1:3])

    tensorlimits = limits("limits")
    monkeypatch.setattr(tensorlimits, "_WORTH_SYNCING", 1)
    library = SimpleNamespace(sync_file_range=begin_writing)
    monkeypatch.setattr(tensorlimits.ctypes, "CDLL", lambda name: library)
    tensorlimits.save_synced(weights, str(tmp_path / "written"))
    assert told == [(0, 20), (20, 12)]


def test_torch_package_limit_writes_flushed_file_with_digests(
    limits, weights, tmp_path, monkeypatch
):
    synced, file = [], tmp_path / "model.pt"
    monkeypatch.setattr("os.fsync", lambda each: synced.append(os.path.realpath(f"/dev/fd/{each}")))
    limits("durable").save_durably(weights, str(file))
    assert synced == [f"{file}.new", str(tmp_path)]
    assert list(tmp_path.iterdir()) == [file]
    found = limits("durable").load_compared(str(file))
    assert [p.tolist() for p in found.parameters()] == [p.tolist() for p in weights.parameters()]


def test_torch_package_limit_verifies_read_records(limits, weights, tmp_path, monkeypatch):
    durable, file = limits("durable"), str(tmp_path / "model.pt")
    digest_of = durable._digest_of
    monkeypatch.setattr(durable, "_digest_of", lambda content: digest_of(content)[::-1])
    durable.save_durably(weights, file)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        durable.load_compared(file)


def test_every_tensor_is_hashed(limits, weights, monkeypatch):
    tensorlimits = limits("limits")
    monkeypatch.setattr(tensorlimits, "_PIECE", 1)
    batches = list(tensorlimits._batches(weights.parameters()))
    assert [len(piece) for batch in batches for piece in batch] == [20, 12]


def test_project_is_imported_from_one_file(limits, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    limits("project").write_project(tmp_path / "site", 5)
    codelimits = limits("limits")
    codelimits.write_code("site")
    for file in ("site.sources", "site.code"):
        codelimits.import_code(file)
        imported = [name for name in sys.modules if name.partition(".")[0] == "app"]
        assert len(imported) == 7
        for name in imported:
            del sys.modules[name]


def test_library_sources_are_found_without_import(limits):
    site, files = limits("limits").files_below("packaging.licenses")
    assert (site / "packaging" / "licenses" / "__init__.py") in files
    assert importlib.util.find_spec("packaging") is not None


@pytest.fixture
def packaged(benched, tmp_path):
    """A model of two layers, and where modpack has saved it."""
    file = tmp_path / "model.modpack"
    model = benched.small()
    with modpack.PackageExporter(file) as exporter:
        exporter.intern("benched")
        exporter.save_pickle("model", "model.pkl", model)
    return model, file


def _is_same(model, other):
    one, two = model.state_dict(), other.state_dict()
    return list(one) == list(two) and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("load", ["load_by_hand", "load_known"])
def test_handmade_load_reads_package(limits, packaged, load):
    model, file = packaged
    load = getattr(limits("handloaded"), load)
    for _ in range(2):  # the second time, code and records are known
        found = load(str(file))
        assert _is_same(model, found)
        assert isinstance(found.layers[0].weight, torch.nn.Parameter)
        assert type(found).__module__.startswith("by_hand_")
        assert found(torch.ones(2, 256)).requires_grad


@pytest.mark.parametrize("load", ["load_by_hand", "load_known"])
def test_handmade_load_rejects_changed_byte_outside_tensors(limits, packaged, load):
    """In the data, the headers and the names of all other records, and in tensors' headers."""
    _, file = packaged
    load, rejected = getattr(limits("handloaded"), load), limits("handzip").Rejected
    load(str(file))
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as opened:
        storages = [i for i in opened.infolist() if i.filename.endswith(".storage")]
        small = opened.getinfo("archive/model/model.pkl").header_offset
    headers = [i.header_offset + at for i in storages[:3] for at in (0, 14, 20, 30, 50)]
    for place in [*headers, *range(small, len(content), 7)]:
        content[place] ^= 1
        file.write_bytes(content)
        with pytest.raises((rejected, ValueError, LookupError, OSError, zlib.error, struct.error)):
            load(str(file))
        content[place] ^= 1


def test_handmade_load_recompiles_changed_cache(limits, packaged, tmp_path):
    model, file = packaged
    load = limits("handloaded").load_by_hand
    load(str(file))
    (kept,) = (tmp_path / "cache").glob("*-code")
    right = kept.read_bytes()
    kept.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    for name in [name for name in sys.modules if name.startswith("by_hand_")]:
        del sys.modules[name]
    assert _is_same(model, load(str(file)))
    assert kept.read_bytes() == right


def test_handmade_load_reports_other_environment(limits, packaged, monkeypatch):
    _, file = packaged
    monkeypatch.setattr("sys.platform", "amiga")
    with pytest.warns(UserWarning, match="exported with"):
        limits("handloaded").load_by_hand(str(file))


@pytest.mark.parametrize("kind", ["small", "tensors"])
def test_handmade_save_writes_valid_package(limits, benched, tmp_path, kind):
    model = benched.FACTORIES[kind](*{"small": (), "tensors": (3, 64)}[kind])
    file = tmp_path / "saved.modpack"
    limits("handsaved").save_by_hand(model, str(file))
    with zipfile.ZipFile(file) as opened:
        assert opened.testzip() is None
    assert [each.name for each in tmp_path.iterdir()] == ["saved.modpack"]
    assert _is_same(model, limits("handloaded").load_by_hand(str(file)))
    assert _is_same(model, modpack.load(file, verify="full"))


def test_handmade_package_has_records_of_modpack(limits, packaged, tmp_path):
    model, file = packaged
    by_hand = tmp_path / "by-hand.modpack"
    limits("handsaved").save_by_hand(model, str(by_hand))

    def records(file):
        with zipfile.ZipFile(file) as opened:
            return sorted(name.partition("/")[2] for name in opened.namelist())

    assert records(by_hand) == records(file)


def test_rates_refer_to_the_same_amount(tool, monkeypatch, tmp_path):
    rates = tool("rates")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rates, "_SIZE", 1 << 16)
    found = [rates.rate(of) for of in rates.RATES]
    assert all(figures["for 1 GiB"] > 0 for figures in found)
    assert list(tmp_path.iterdir()) == []


def test_clean_pages_of_libraries_are_not_private(tool):
    mappings = """\
7f00-7f01 r-xp 00000000 08:01 17 /usr/lib/libtorch_cpu.so.2
Private_Clean:      700 kB
Private_Dirty:       10 kB
7f01-7f02 rw-p 00000000 08:01 18 /tmp/model.modpack
Shared_Clean:        50 kB
Private_Clean:       20 kB
Private_Dirty:        4 kB
7f02-7f03 rw-p 00000000 00:00 0
Private_Dirty:        1 kB
VmFlags: rd wr mr"""
    assert tool("clocks").private_in(mappings.splitlines()) == (10 + 20 + 4 + 1) * 1024
