"""Signing of packages: checks and output."""

import os
import zipfile

import pytest

from modpack.archive.manifest import package_digest
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, NotAPackageError, SignatureError, TargetError
from modpack.security import signing
from modpack.security.signing import check_signatures, sidecar_path, sign_package
from tests.rezipped import rezipped

EMBEDDED = ".data/modpack/signature.json"


def holds(path, *signers):
    with open_archive(path) as archive:
        return [each.signer for each in check_signatures(archive, signers, path)]


def digest_of(path):
    with open_archive(path) as archive:
        return package_digest(archive)


def test_sign_package_embeds_signature_by_default(package, alice, trusted):
    digest = digest_of(package)
    signed = sign_package(package, alice)
    assert (signed.digest, signed.placement) == (digest, "embedded")
    assert signed.path == signed.signature_path == str(package)
    assert signed.key_ids == (alice.key_id,)
    assert digest_of(package) == digest
    assert not sidecar_path(package).exists()
    assert holds(package, trusted("alice", alice)) == ["alice"]


def test_sign_package_writes_detached_signature(package, alice, trusted):
    before = package.read_bytes()
    signed = sign_package(package, alice, embed=False)
    assert (signed.signature_path, signed.placement) == (f"{package}.sig", "detached")
    assert package.read_bytes() == before
    assert holds(package, trusted("alice", alice)) == ["alice"]


@pytest.mark.parametrize("embed", [True, False])
def test_sign_package_adds_or_replaces_signatures(package, alice, bob, trusted, embed):
    signers = [trusted("alice", alice), trusted("bob", bob)]
    sign_package(package, alice, embed=embed)
    both = sign_package(package, bob, embed=embed)
    assert set(both.key_ids) == {alice.key_id, bob.key_id}
    assert holds(package, *signers) == ["alice", "bob"]
    alone = sign_package(package, bob, embed=embed, replace=True)
    assert alone.key_ids == (bob.key_id,)
    assert holds(package, *signers) == ["bob"]


def test_sign_package_twice_changes_nothing(package, alice):
    sign_package(package, alice)
    once = package.read_bytes()
    sign_package(package, alice)
    assert package.read_bytes() == once


def test_sign_package_writes_package_to_output(package, alice, trusted, tmp_path):
    before, other = package.read_bytes(), tmp_path / "signed.modpack"
    assert sign_package(package, alice, output=other).signature_path == str(other)
    assert package.read_bytes() == before
    assert holds(other, trusted("alice", alice)) == ["alice"]


def test_sign_package_writes_signature_to_output(package, alice, bob, tmp_path):
    sign_package(package, alice, embed=False, output=tmp_path / "a.sig")
    both = sign_package(package, bob, embed=False, output=tmp_path / "a.sig")
    assert len(both.key_ids) == 2
    assert not sidecar_path(package).exists()


@pytest.mark.parametrize("embed", [True, False])
def test_sign_package_signs_folder(package, alice, trusted, tmp_path, embed):
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "out")
    folder = tmp_path / "out"
    sign_package(folder, alice, embed=embed)
    assert (folder / "archive" / EMBEDDED).exists() == embed
    assert holds(folder, trusted("alice", alice)) == ["alice"]
    assert digest_of(folder) == digest_of(package)
    with pytest.raises(SignatureError, match="Remove --output"):
        sign_package(folder, alice, output=tmp_path / "other")


@pytest.mark.parametrize("record", ["pkg/net.py", "pkg/é.txt", ".data/1.storage"])
def test_sign_package_rejects_damaged_package(package, alice, record):
    with open_archive(package) as archive:
        changed = bytes(archive.size(record))
    package.write_bytes(rezipped(package.read_bytes(), {record: changed}))
    before = package.read_bytes()
    with pytest.raises(ArchiveError, match=f"does not match the manifest: '{record}': the SHA-256"):
        sign_package(package, alice, workers=2)
    assert package.read_bytes() == before


def test_sign_package_rejects_undeclared_record(package, alice):
    package.write_bytes(rezipped(package.read_bytes(), {"pkg/more.py": b""}))
    with pytest.raises(ArchiveError, match="the manifest does not list the record"):
        sign_package(package, alice)


def test_sign_package_rejects_torch_package_archive(tmp_path, alice):
    with zipfile.ZipFile(tmp_path / "old.pt", "w") as archive:
        archive.writestr("old/.data/version", b"6\n")
    with pytest.raises(SignatureError, match="Export the model with modpack"):
        sign_package(tmp_path / "old.pt", alice)
    assert [each.name for each in tmp_path.iterdir()] == ["old.pt"]


def test_sign_package_rejects_other_files(tmp_path, alice):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(NotAPackageError):
        sign_package(tmp_path / "a.txt", alice)


def test_sign_package_rejects_stale_signature(write, alice, bob, trusted):
    path = write()
    sign_package(path, alice, embed=False)
    write(**{"pkg/more.py": b"x"})
    with pytest.raises(SignatureError, match=r"changed after it was signed.*Pass --replace"):
        sign_package(path, bob, embed=False)
    sign_package(path, bob, embed=False, replace=True)
    assert holds(path, trusted("bob", bob)) == ["bob"]


def test_sign_package_reports_unwritable_signature(package, alice):
    sidecar_path(package).mkdir()
    with pytest.raises(SignatureError, match="is not a regular file"):
        sign_package(package, alice, embed=False)
    with pytest.raises(TargetError, match="this is a folder"):
        sign_package(package, alice, embed=False, replace=True)


def test_sign_package_rejects_symlinked_signature(package, alice, tmp_path):
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "out")
    place = tmp_path / "out" / "archive" / EMBEDDED
    place.symlink_to("manifest.json")
    before = place.read_bytes()
    with pytest.raises(SignatureError, match="is a symlink"):
        sign_package(tmp_path / "out", alice, replace=True)
    assert place.is_symlink() and place.read_bytes() == before


@pytest.mark.parametrize("embed", [True, False])
def test_sign_package_rejects_changing_package(package, alice, monkeypatch, embed):
    def rewrite(*_):
        content = package.read_bytes()
        package.write_bytes(content[:-1])
        package.write_bytes(content)
        os.utime(package, ns=(1, 1))

    monkeypatch.setattr(signing, "verify_records", rewrite)
    with pytest.raises(ArchiveError, match="changed after it was opened"):
        sign_package(package, alice, embed=embed)
    assert not package.with_name(f"{package.name}.sig").exists()
