"""What cannot be avoided is avoided by none of the limits that the benchmark measures."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"


@pytest.fixture
def limits(tool, monkeypatch):
    """The module, beside which lies what is saved; and the collector, which it turns off, on."""
    monkeypatch.syspath_prepend(str(PEERS / "taken_along"))
    monkeypatch.setattr("gc.disable", lambda: None)
    return tool("limits")


@pytest.fixture
def weights(limits):
    """A model of two tensors."""
    made = importlib.import_module("benched").Weights([torch.arange(5.0), torch.ones(3)])
    yield made
    sys.modules.pop("benched", None)


def test_what_is_made_by_hand_is_the_model(limits, weights, tmp_path):
    file = str(tmp_path / "model.bare")
    limits.save_bare(weights, file)
    found = limits.map_bare(file)
    assert type(found) is type(weights)
    assert [p.tolist() for p in found.parameters()] == [p.tolist() for p in weights.parameters()]
    assert len(found.weights) == 2


@pytest.mark.parametrize("save", ["save_hashed", "save_synced"])
def test_what_is_written_beside_hashing_is_every_tensor(limits, weights, tmp_path, save):
    file = tmp_path / "written"
    getattr(limits, save)(weights, str(file))
    assert file.read_bytes() == b"".join(p.detach().numpy().tobytes() for p in weights.parameters())


def test_every_tensor_is_hashed(limits, weights, monkeypatch):
    monkeypatch.setattr(limits, "_PIECE", 1)
    batches = list(limits._batches(weights.parameters()))
    assert [len(piece) for batch in batches for piece in batch] == [20, 12]


def test_a_project_is_imported_from_one_file(tool, limits, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    tool("project").write_project(tmp_path / "site", 5)
    limits.write_code("site")
    for file in ("site.sources", "site.code"):
        limits.import_code(file)
        imported = [name for name in sys.modules if name.partition(".")[0] == "app"]
        assert len(imported) == 7
        for name in imported:
            del sys.modules[name]


def test_the_sources_of_a_library_are_found_without_importing_it(limits):
    site, files = limits.files_below("packaging.licenses")
    assert (site / "packaging" / "licenses" / "__init__.py") in files
    assert importlib.util.find_spec("packaging") is not None


def test_every_rate_is_told_for_the_same_amount(tool, monkeypatch, tmp_path):
    rates = tool("rates")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rates, "_TRIED", 1 << 16)
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
