"""Loading with ``verify="full"``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import modpack
from modpack import importer
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError
from modpack.writing.writer import ArchiveWriter

ROOT = Path(__file__).parents[2]
ANCESTOR = ROOT / "fixtures/archives/torch_package/torch-2.13-py3.11/tiny_model.pt"

PROJECT = {
    "verifiednet.py": """\
        import os
        import torch

        if "VERIFIED_CANARY" in os.environ:
            open(os.environ["VERIFIED_CANARY"], "w")

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first = torch.nn.Linear(3, 3)
                self.second = torch.nn.Linear(3, 3)

            def forward(self, x):
                return self.second(self.first(x))
        """
}


@pytest.fixture
def package(project, tmp_path) -> Path:
    project(PROJECT)
    import verifiednet

    file = tmp_path / "net.modpack"
    with modpack.PackageExporter(file) as exporter:
        exporter.use_preset("pinned")
        exporter.save_model("model", "model.pkl", verifiednet.Net())
        exporter.save_pickle("other", "values.pkl", {"values": torch.ones(3)})
    return file


def damage(package, *keys):
    """Change a byte of storages in place."""
    content = bytearray(package.read_bytes())
    with open_archive(package) as archive:
        for key in keys:
            content[archive.data_range(f".data/{key}.storage").offset] ^= 1
    package.write_bytes(content)


def test_intact_package_loads_at_both_levels(package):
    for level in ("code", "full"):
        model = modpack.load(package, package="model", resource="model.pkl", verify=level)
        assert model(torch.ones(1, 3)).shape == (1, 3)


def test_changed_tensors_are_named_before_code_runs(package, clean_python, tmp_path):
    damage(package, 0, 2)
    canary = tmp_path / "canary"
    code = """
        import os, modpack
        from modpack.errors import ArchiveError
        os.environ["VERIFIED_CANARY"] = str(canary)
        try:
            modpack.load(file, package="model", resource="model.pkl", verify="full")
        except ArchiveError as failure:
            print(failure)
        print(canary.exists())
        modpack.load(file, package="model", resource="model.pkl")
        print(canary.exists())
        """
    message, before, after = clean_python(code, file=package, canary=canary).stdout.splitlines()
    assert "'.data/0.storage': the SHA-256 does not match the manifest" in message
    assert "'.data/2.storage': the SHA-256 does not match the manifest" in message
    assert "'.data/1.storage'" not in message
    assert (before, after) == ("False", "True")


def test_policy_can_require_verification(package):
    damage(package, 0)
    policy = modpack.TrustPolicy(allow_code=True, verify="full")
    with pytest.raises(ArchiveError, match=r"0\.storage"):
        modpack.PackageImporter(package, policy=policy)
    with pytest.raises(ArchiveError, match=r"0\.storage"):
        modpack.load_weights(package, package="model", resource="model.pkl", policy=policy)
    with pytest.raises(ArchiveError, match=r"0\.storage"):
        modpack.PackageImporter(package, policy=modpack.TrustPolicy(allow_code=True), verify="full")


def test_load_weights_verifies_returned_tensors(package):
    damage(package, 1, 3)
    with pytest.raises(ArchiveError, match=r"1\.storage.*3\.storage"):
        modpack.load_weights(package, package="model", resource="model.pkl", verify="full")
    weights = modpack.load_weights(package, package="other", resource="values.pkl", verify="full")
    assert weights["values"].tolist() == [1, 1, 1]
    assert modpack.load_weights(package, package="model", resource="model.pkl")


def test_load_weights_rejects_changed_record(package):
    content = package.read_bytes()
    changed = content.replace(b'["model","model.pkl"]', b'["other","value.pkl"]')
    assert changed != content
    package.write_bytes(changed)
    with pytest.raises(ArchiveError, match=r"entry\.json"):
        modpack.load_weights(package)


def test_folder_and_buffer_are_verified(package, tmp_path):
    import io
    import zipfile

    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "unzipped")
    damage(package, 0)
    with pytest.raises(ArchiveError, match=r"0\.storage"):
        modpack.PackageImporter(io.BytesIO(package.read_bytes()), verify="full")
    folder = tmp_path / "unzipped"
    modpack.PackageImporter(folder, verify="full").close()
    storage = next(folder.rglob("0.storage"))
    storage.write_bytes(bytes(storage.stat().st_size))
    with pytest.raises(ArchiveError, match=r"0\.storage"):
        modpack.PackageImporter(folder, verify="full")


def test_torch_package_archive_is_verified_by_crc32(tmp_path):
    modpack.PackageImporter(ANCESTOR, verify="full").close()
    copy = tmp_path / "tiny_model.pt"
    copy.write_bytes(ANCESTOR.read_bytes())
    damage(copy, 0)
    with pytest.raises(ArchiveError, match=r"0\.storage.*CRC-32"):
        modpack.PackageImporter(copy, verify="full")


def test_self_test_rejects_changed_tensors(project, tmp_path):
    project(PROJECT)
    import verifiednet

    file = tmp_path / "tried.modpack"
    modpack.save(verifiednet.Net(), file, example_inputs=torch.ones(1, 3))
    damage(file, 0)
    with pytest.raises(ArchiveError, match=r"0\.storage"):
        modpack.self_test(file, verify="full")


@pytest.mark.parametrize(("level", "error"), [("most", ValueError), (True, TypeError)])
def test_unknown_verify_level_is_rejected(package, level, error):
    for load in (modpack.load, modpack.load_weights, modpack.PackageImporter, modpack.self_test):
        with pytest.raises(error, match="verify must be 'code' or 'full'"):
            load(package, verify=level)


def unzipped(package: Path, folder: Path) -> Path:
    with open_archive(package) as archive:
        for name in archive.names():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(name))
    return folder


def overwritten(package: Path, folder: Path) -> None:
    """Overwrite an unzipped package with another, including its manifest."""
    with open_archive(package) as archive, ArchiveWriter(package.with_name("evil")) as writer:
        for name in archive.names():
            if not name.startswith(".data/modpack/manifest."):
                content = archive.read(name)
                writer.write(name, b"raise SystemExit(9)" if name.endswith(".py") else content)
        writer.commit()
    unzipped(package.with_name("evil"), folder)


def test_record_changed_after_check_is_neither_loaded_nor_cached(package, tmp_path, monkeypatch):
    folder = unzipped(package, tmp_path / "folder")
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    asked = importer.load_environment

    def overwriting(*arguments):
        overwritten(package, folder)
        return asked(*arguments)

    monkeypatch.setattr(importer, "load_environment", overwriting)
    with pytest.raises(ArchiveError, match=r"verifiednet\.py.*not the declared|has \d+ bytes"):
        modpack.load(folder, package="model", resource="model.pkl")
    monkeypatch.undo()
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    model = modpack.load(package, package="model", resource="model.pkl")
    assert model(torch.ones(3)).shape == (3,)


def test_pickle_changed_after_check_is_not_loaded(package, tmp_path):
    folder = unzipped(package, tmp_path / "folder")
    with modpack.PackageImporter(folder) as opened:
        (folder / "other/values.pkl").write_bytes(b"cos\ngetcwd\n)R.")
        with pytest.raises(ArchiveError, match=r"other/values\.pkl"):
            opened.load_pickle("other", "values.pkl")
