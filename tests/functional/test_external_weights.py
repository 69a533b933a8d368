"""Weights next to packages: shards that other tools read, and that packages share."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import torch
import torch.package
from click.testing import CliRunner
from safetensors import safe_open

import modpack
import modpack.writing.shards
from modpack.archive import layout
from modpack.archive.base import BufferBytes
from modpack.archive.reader import ZipArchive, open_archive
from modpack.archive.sharded import read_shard_header
from modpack.cli import cli
from modpack.core.policy import Signer, TrustPolicy
from modpack.errors import ArchiveError, RepackedError, UnsupportedVersionError
from modpack.loading.cache_maintenance import list_entries
from modpack.report.audit import audit_package
from modpack.report.package_info import package_facts
from modpack.report.verify import verify_package
from modpack.security.signing import sign_package
from modpack.security.signing_keys import generate
from modpack.writing.writer import ArchiveWriter
from tests.models_with_shards import BASE_BYTES, Adapted, Kinds
from tests.range_server import serve_folder


def save(model: object, path: Path, **options: object) -> Path:
    modpack.save(model, path, weights="external", self_test=False, **options)
    return path


def shards_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def findings(path: Path) -> list[tuple[str, str]]:
    found = verify_package(path).findings
    return [(each.code, each.subject) for each in found if each.severity.name == "ERROR"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return save(Adapted(1), tmp_path / "net.modpack")


def test_tensors_of_all_kinds_keep_values_strides_and_sharing(tmp_path):
    model = Kinds()
    loaded = modpack.load(save(model, tmp_path / "kinds.modpack"))
    for name, tensor in model.state_dict().items():
        found = loaded.state_dict()[name]
        assert found.dtype == tensor.dtype and found.stride() == tensor.stride(), name
        assert bytes(found.untyped_storage()) == bytes(tensor.untyped_storage()), name
        assert found.is_conj() == tensor.is_conj()
    assert loaded.tied is loaded.plain
    assert loaded.first.untyped_storage()._cdata == loaded.second.untyped_storage()._cdata
    assert findings(tmp_path / "kinds.modpack") == []


def test_storages_with_equal_bytes_do_not_share_memory(tmp_path):
    save(Kinds(), tmp_path / "first.modpack")
    loaded = modpack.load(save(Kinds(), tmp_path / "kinds.modpack"))
    loaded.ones.zero_()
    assert loaded.other_ones.eq(1).all()
    assert modpack.load(tmp_path / "kinds.modpack").ones.eq(1).all()


def test_safetensors_library_reads_the_shards_of_the_index(tmp_path):
    model = Adapted(1)
    save(model, tmp_path / "model.modpack")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == model.state_dict().keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in model.state_dict().values())
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, "pt") as shard:
            assert shard.metadata()["format"] == "pt"
            assert torch.equal(shard.get_tensor(name), model.state_dict()[name])


def test_parameter_with_the_name_of_a_key_of_the_format_is_kept(tmp_path):
    state = {"__metadata__": torch.arange(100.0), "b": torch.arange(9)}
    loaded = modpack.load(save(state, tmp_path / "state.modpack"))
    assert torch.equal(loaded["__metadata__"], state["__metadata__"])


def test_ten_adapters_take_the_base_once(tmp_path):
    for seed in range(1, 11):
        save(Adapted(seed), tmp_path / f"adapter{seed}.modpack")
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert BASE_BYTES < size < BASE_BYTES + 10 * 40_000
    for seed in (1, 10):
        loaded, saved = modpack.load(tmp_path / f"adapter{seed}.modpack"), Adapted(seed)
        assert all(map(torch.equal, loaded.parameters(), saved.parameters()))


def test_base_with_other_tensor_names_is_shared(tmp_path):
    base = torch.nn.Linear(512, 512)
    save(base, tmp_path / "base.modpack")
    save(torch.nn.Sequential(base, torch.nn.ReLU()), tmp_path / "more.modpack")
    assert len(shards_in(tmp_path)) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loaded_packages_map_the_same_file(tmp_path):
    models = [modpack.load(save(Adapted(s), tmp_path / f"{s}.modpack")) for s in (1, 2)]
    base = max(shards_in(tmp_path), key=lambda file: file.stat().st_size)
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split()[4] for line in lines if line.endswith(str(base))]
    assert len(mapped) == 2 and set(mapped) == {str(base.stat().st_ino)}
    models[0].base.weight.data.zero_()
    assert torch.equal(models[1].base.weight, Adapted(2).base.weight)


def test_loaded_model_is_saved_again_without_its_weights(tmp_path, package):
    loaded = modpack.load(package)
    with torch.no_grad():
        loaded.adapter.weight.add_(1)
    before = shards_in(tmp_path)
    again = save(loaded, tmp_path / "again.modpack")
    (new,) = set(shards_in(tmp_path)) - set(before)
    assert new.stat().st_size < 10_000
    assert torch.equal(modpack.load(again).adapter.weight, loaded.adapter.weight)


def test_package_works_with_every_reader(tmp_path, package):
    expected = Adapted(1).state_dict()
    assert torch.equal(modpack.load_weights(package)["base.weight"], expected["base.weight"])
    full = modpack.load(
        package, policy=TrustPolicy(allow_code=True, verify="full"), map_location="cpu"
    )
    assert torch.equal(full.base.weight, expected["base.weight"])
    facts = package_facts(package)
    assert [shard.problem for shard in facts.shards] == [None]
    assert findings(package) == []
    with zipfile.ZipFile(package) as zipped:
        zipped.extractall(tmp_path / "unzipped")
    assert torch.equal(modpack.load(tmp_path / "unzipped").base.weight, expected["base.weight"])


def test_package_with_examples_is_tested_and_run(tmp_path):
    source = "import torch\nclass Net(torch.nn.Linear):\n    pass\n"
    (tmp_path / "scaling.py").write_text(source)
    (tmp_path / "pack.py").write_text(
        "import modpack, scaling, torch\n"
        "model = scaling.Net(2, 2)\n"
        "torch.nn.init.eye_(model.weight), torch.nn.init.zeros_(model.bias)\n"
        "modpack.save(model, 'net.modpack', example_inputs=torch.ones(1, 2), weights='external',"
        " bundle_loader=True)\n"
    )
    subprocess.run([sys.executable, "pack.py"], cwd=tmp_path, check=True)
    (tmp_path / "scaling.py").unlink()
    (tmp_path / "rows.json").write_text("[[1, 2]]")
    for command in ([], ["-m", "modpack", "run"]):
        out = ["net.modpack", "rows.json", "-o", f"{len(command)}.json"]
        subprocess.run([sys.executable, *command, *out], cwd=tmp_path, check=True)
        answer = json.loads((tmp_path / f"{len(command)}.json").read_text())
        assert answer == {"output": [[1.0, 2.0]]}


def test_symlink_to_a_package_finds_the_shards(tmp_path, package):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "net.modpack"
    link.symlink_to(package)
    assert torch.equal(modpack.load(link).base.weight, Adapted(1).base.weight)


def _remove(shard: Path) -> None:
    shard.unlink()


def _truncate(shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size - 1)


def _change_header(shard: Path) -> None:
    content = shard.read_bytes()
    shard.write_bytes(content.replace(b'"F32"', b'"I32"', 1))


def _empty(shard: Path) -> None:
    shard.write_bytes(b"")


def _replace_by_another(shard: Path) -> None:
    other = save(torch.nn.Linear(3, 3), shard.parent / "other.modpack")
    (new,) = set(shards_in(other.parent)) - {shard}
    new.replace(shard)


@pytest.mark.parametrize(
    "damage", [_remove, _truncate, _change_header, _empty, _replace_by_another]
)
def test_bad_shard_is_an_error_before_code_runs(tmp_path, monkeypatch, damage):
    (tmp_path / "printing.py").write_text(
        "import os, torch\n"
        "os.environ['RAN'] = os.environ.get('RAN', '') + 'x'\n"
        "class Net(torch.nn.Linear):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RAN", "")
    package = save(importlib.import_module("printing").Net(4, 4), tmp_path / "net.modpack")
    (shard,) = shards_in(tmp_path)
    damage(shard)
    monkeypatch.setenv("RAN", "")
    for load in (modpack.load, modpack.load_weights, modpack.PackageImporter):
        with pytest.raises(ArchiveError, match="Copy the package's shards") as raised:
            load(package)
        assert shard.name in str(raised.value)
    assert os.environ["RAN"] == ""
    assert findings(package) == [("shard-invalid", shard.name)]
    assert "shard-invalid" in {each.code for each in audit_package(package).findings}
    assert package_facts(package).shards[0].problem is not None
    shown = CliRunner().invoke(cli, ["inspect", str(package)]).output
    assert shard.name in "".join(shown.split())  # the column may be narrower than the name


def test_changed_bytes_are_found_by_full_verification(tmp_path, package):
    shard = max(shards_in(tmp_path), key=lambda file: file.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert [code for code, _ in findings(package)] == ["record-corrupt"]
    with pytest.raises(ArchiveError, match="SHA-256 does not match"):
        modpack.load(package, verify="full")


def test_damaged_shard_is_not_reused_but_repaired(tmp_path, package):
    (shard,) = shards_in(tmp_path)
    intact = shard.read_bytes()
    shard.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    save(Adapted(1), tmp_path / "again.modpack")
    assert findings(tmp_path / "again.modpack") == []
    shard.write_bytes(intact[:-1])
    save(Adapted(1), tmp_path / "net.modpack")
    assert findings(package) == []


def test_signature_covers_tensors_in_shards(tmp_path, package):
    key = generate()
    sign_package(package, key)
    signer = Signer("team", key.public_key)
    policy = TrustPolicy(allow_code=True, require_signature_from=(signer,), verify="full")
    assert modpack.load(package, policy=policy) is not None
    save(Adapted(2), tmp_path / "other.modpack")
    # A record that refers to another shard does not match the signed manifest.
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(tmp_path / "net2.modpack", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(layout.SHARDS):
                with zipfile.ZipFile(tmp_path / "other.modpack") as other:
                    data = other.read(name)
            new.writestr(name, data)
    with pytest.raises((ArchiveError, RepackedError)):
        modpack.load(tmp_path / "net2.modpack", policy=policy)


SHARD = "a" * 64 + ".safetensors"


@pytest.mark.parametrize(
    "storages",
    [
        {".data/5.storage": ["../" + SHARD, 0, 6]},
        {".data/5.storage": ["/tmp/" + SHARD, 0, 6]},
        {".data/5.storage": ["..", 0, 6]},
        {".data/5.storage": ["a.safetensors", 0, 6]},
        {".data/5.storage": [SHARD + "\n", 0, 6]},
        {".data/5.storage": [SHARD, -4, 6]},
        {".data/5.storage": [SHARD, 4, -1]},
        {".data/5.storage": [SHARD, 0, 6], ".data/6.storage": [SHARD, 5, 1]},
        {".data/0.storage": [SHARD, 0, 6]},
        {".data/../x.storage": [SHARD, 0, 6]},
        {".data/5.storage": [SHARD, 0, "6"]},
        {".data/5.storage": [SHARD, 0]},
        [SHARD],
        None,
    ],
)
def test_hostile_record_of_shards_is_refused(storages):
    with pytest.raises(ArchiveError, match=r"shards\.json"):
        open_archive(_with_record({"version": 1, "storages": storages}))


def test_storage_that_is_no_tensor_of_the_shard_is_refused(tmp_path, package):
    (shard,) = shards_in(tmp_path)
    content = _with_record(
        {"version": 1, "storages": {".data/5.storage": [shard.name, 0, 8]}}
    ).getvalue()
    (tmp_path / "hostile.modpack").write_bytes(content)
    archive = open_archive(tmp_path / "hostile.modpack")
    with archive, pytest.raises(ArchiveError, match="not in " + shard.name):
        archive.require_shards()


SHA = "0" * 64


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b"",
        json.dumps({"__metadata__": {}, "a": {"data_offsets": [0, 8]}}).encode(),
        json.dumps({"__metadata__": {"sha256:a": 3}, "a": {"data_offsets": [0, 8]}}).encode(),
        json.dumps({"__metadata__": {"sha256:a": SHA}, "a": {"data_offsets": [-9, 8]}}).encode(),
        json.dumps({"__metadata__": {"sha256:a": SHA}, "a": {"data_offsets": [8, 0]}}).encode(),
        json.dumps({"__metadata__": {"sha256:a": SHA}, "a": {"data_offsets": [0, 9]}}).encode(),
        json.dumps({"__metadata__": {"sha256:a": SHA}, "a": {"data_offsets": [0.0, 8]}}).encode(),
        json.dumps({"__metadata__": {"sha256:a": SHA}, "a": {"data_offsets": [8]}}).encode(),
        json.dumps({"__metadata__": {"sha256:a": SHA}, "a": 8}).encode(),
    ],
)
def test_hostile_header_of_a_shard_is_refused(header, tmp_path):
    content = len(header).to_bytes(8, "little") + header
    name = f"{hashlib.sha256(content).hexdigest()}.safetensors"
    with pytest.raises(ArchiveError):
        read_shard_header(name, BufferBytes(content + b"12345678"))
    # Another user's file in the folder does not stop a save, and is not used.
    (tmp_path / name).write_bytes(content + b"12345678")
    save(torch.nn.Linear(2, 2), tmp_path / "net.modpack")
    assert name not in (tmp_path / "net.safetensors.index.json").read_text()


@pytest.mark.parametrize("length", [0, 9, 1 << 40, (1 << 64) - 1])
def test_length_of_a_header_beyond_the_shard_is_refused(length):
    with pytest.raises(ArchiveError, match="header is damaged"):
        read_shard_header(SHARD, BufferBytes(length.to_bytes(8, "little") + b"{}"))


def test_newer_record_of_shards_is_refused():
    with pytest.raises(UnsupportedVersionError):
        open_archive(_with_record({"version": 2, "storages": {}}))


def _with_record(record: object) -> io.BytesIO:
    buffer = io.BytesIO()
    with ArchiveWriter(buffer) as writer:
        writer.write(layout.VERSION, layout.VERSION_CONTENT)
        writer.write(layout.EXTERN_MODULES, b"")
        writer.write_storage(".data/0.storage", memoryview(b"12345678"))
        writer.write(layout.SHARDS, json.dumps(record).encode())
        writer.commit()
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("step", ["_write_shard", "_write_index", "_write_rest"])
def test_interrupted_save_leaves_no_incomplete_file(tmp_path, monkeypatch, step):
    before = save(Adapted(1), tmp_path / "net.modpack").read_bytes()
    listed = set(tmp_path.iterdir())

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(modpack.writing.shards, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(Adapted(2), tmp_path / "net.modpack")
    is_last = step == "_write_index"
    assert ((tmp_path / "net.modpack").read_bytes() == before) is not is_last
    assert all(file.suffix == ".safetensors" for file in set(tmp_path.iterdir()) - listed)
    assert findings(save(Adapted(2), tmp_path / "next.modpack")) == []


def test_interrupt_within_a_shard_removes_it(tmp_path, monkeypatch):
    read = ZipArchive.chunks

    def interrupted(archive: ZipArchive, name: str) -> Iterator[bytes | memoryview]:
        yield from read(archive, name)
        if layout.is_storage(name):
            raise KeyboardInterrupt

    monkeypatch.setattr(ZipArchive, "chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(Adapted(1), tmp_path / "net.modpack")
    assert list(tmp_path.iterdir()) == []


def test_torch_package_refuses_a_package_with_shards(package):
    with pytest.raises(ImportError, match=r"modpack\.load"):
        torch.package.PackageImporter(str(package))


def test_two_saves_at_once_write_complete_files(tmp_path):
    (tmp_path / "pack.py").write_text(
        "import sys, torch, modpack\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Linear(1024, 1024)\n"
        "modpack.save(model, sys.argv[1], weights='external', self_test=False)\n"
    )
    names = ["a.modpack", "b.modpack"]
    running = [subprocess.Popen([sys.executable, "pack.py", n], cwd=tmp_path) for n in names]
    assert [process.wait() for process in running] == [0, 0]
    assert [findings(tmp_path / name) for name in names] == [[], []]
    assert len(shards_in(tmp_path)) == 1


def test_external_weights_need_a_path(package):
    with pytest.raises(ValueError, match="pass a path"):
        modpack.save(Adapted(1), io.BytesIO(), weights="external")
    with pytest.raises(ValueError, match="'inside' or 'external'"):
        modpack.save(Adapted(1), package, weights="outside")
    with pytest.raises(ArchiveError, match="package is in memory"):
        modpack.load(io.BytesIO(package.read_bytes()))


def test_weights_are_inside_by_default(tmp_path):
    modpack.save(Adapted(1), tmp_path / "net.modpack", self_test=False)
    assert [file.name for file in tmp_path.iterdir()] == ["net.modpack"]


def test_object_without_tensors_has_no_shards(tmp_path):
    package = save({"a": 1}, tmp_path / "plain.modpack")
    assert [file.name for file in tmp_path.iterdir()] == ["plain.modpack"]
    assert modpack.load(package) == {"a": 1}


def test_command_writes_external_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("build.py").write_text("import torch\nmodel = torch.nn.Linear(2, 2)\n")
    arguments = ["export", "build.py:model", "-o", "net.modpack", "--weights", "external"]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert len(shards_in(tmp_path)) == 1


def test_packages_at_urls_download_a_shard_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    for seed in (1, 2):
        save(Adapted(seed), tmp_path / "files" / f"{seed}.modpack")
    files = fsspec.filesystem("memory")
    for file in (tmp_path / "files").iterdir():
        files.pipe(f"/shared/{file.name}", file.read_bytes())
    for seed in (1, 2):
        loaded = modpack.load(f"memory://shared/{seed}.modpack")
        assert torch.equal(loaded.adapter.weight, Adapted(seed).adapter.weight)
    assert sum(file.stat().st_size > BASE_BYTES for file in _distinct(tmp_path / "cache")) == 1
    listed = sum(entry.size_bytes for entry in list_entries(tmp_path / "cache"))
    assert BASE_BYTES < listed < 2 * BASE_BYTES
    assert verify_package("memory://shared/1.modpack").passed
    for name in [file.name for file in shards_in(tmp_path / "files")]:
        files.rm(f"/shared/{name}")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(ArchiveError, match="missing"):
        modpack.load("memory://shared/1.modpack")


def test_inspecting_a_url_reads_headers_of_shards_only(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    save(Adapted(1), tmp_path / "files" / "net.modpack")
    with serve_folder(tmp_path / "files") as server:
        url = server.url("net.modpack")
        facts = package_facts(url)
        assert [shard.problem for shard in facts.shards] == [None]
        assert server.sent < BASE_BYTES / 4
        assert torch.equal(modpack.load(url).base.weight, Adapted(1).base.weight)
        sent = server.sent
        modpack.load(url)
        assert server.sent - sent < BASE_BYTES / 4
        for shard in shards_in(tmp_path / "files"):
            _truncate(shard)
        with pytest.raises(ArchiveError, match="truncated"):
            modpack.load(url)


def _distinct(folder: Path) -> list[Path]:
    """Return files, each inode once."""
    return list({f.stat().st_ino: f for f in folder.rglob("*") if f.is_file()}.values())
