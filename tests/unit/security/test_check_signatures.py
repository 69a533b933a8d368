"""Locations of signatures, and verification by trusted signers."""

import os
import zipfile
from pathlib import Path

import pytest

from modpack.archive.base import Archive
from modpack.archive.manifest import package_digest
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, SignatureError
from modpack.security.signing import check_signatures, find_signatures, sidecar_path, sign_package
from modpack.security.signing_envelope import sign
from modpack.writing.writer import ArchiveWriter

EMBEDDED = ".data/modpack/signature.json"


def digest_of(path):
    with open_archive(path) as archive:
        return package_digest(archive)


def held(path, *signers, at=True):
    with open_archive(path) as archive:
        return check_signatures(archive, signers, path if at else None)


def refused(path, *signers, at=True):
    with pytest.raises(SignatureError) as caught:
        held(path, *signers, at=at)
    assert caught.value.path == str(path)
    return caught.value.reason


def test_find_signatures_returns_embedded_and_detached(package, alice):
    with open_archive(package) as archive:
        assert find_signatures(archive, package) == ()
    sign_package(package, alice)
    sign_package(package, alice, embed=False)
    with open_archive(package) as archive:
        embedded, detached = find_signatures(archive, package)
        assert find_signatures(archive) == (embedded,)
    assert embedded.location == EMBEDDED
    assert detached.location == f"{package}.sig"
    assert embedded.content == detached.content


@pytest.mark.parametrize("embed", [True, False])
def test_check_signatures_accepts_one_trusted_signer(package, alice, bob, trusted, embed):
    sign_package(package, alice, embed=embed)
    (found,) = held(package, trusted("bob", bob), trusted("alice", alice))
    assert (found.signer, found.key_id) == ("alice", alice.key_id)
    assert found.location == (EMBEDDED if embed else f"{package}.sig")


def test_check_signatures_without_signers_returns_empty(package):
    assert held(package) == ()


def test_check_signatures_rejects_stripped_signature(package, alice, trusted):
    reason = refused(package, trusted("alice", alice))
    assert reason.startswith("the package is not signed, and a signature of 'alice' is required")
    sign_package(package, alice, embed=False)
    assert "the package is not signed" in refused(package, trusted("alice", alice), at=False)


def test_check_signatures_rejects_torch_package_archive(tmp_path, alice, trusted):
    path = tmp_path / "old.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("old/.data/version", b"6\n")
    sidecar_path(path).write_bytes(sign(digest_of(path), "old.pt", alice))
    assert held(path) == ()
    reason = refused(path, trusted("alice", alice))
    assert reason.startswith("a signature of 'alice' is required, but torch.package archives")


def test_check_signatures_needs_one_valid_signature(package, alice, bob, trusted):
    sign_package(package, alice)
    sidecar_path(package).write_bytes(b"junk")
    assert [each.signer for each in held(package, trusted("alice", alice))] == ["alice"]
    reason = refused(package, trusted("bob", bob))
    assert f"{EMBEDDED} is not from a trusted signer" in reason
    assert f"{package}.sig is not a valid envelope" in reason


def test_check_signatures_rejects_new_manifest(write, alice, trusted):
    path = write("tea.modpack")
    sign_package(path, alice, embed=False)
    write("tea.modpack", **{"pkg/evil.py": b"import os"})
    assert "the package was changed after it was signed" in refused(path, trusted("alice", alice))


def test_check_signatures_rejects_moved_signature(write, alice, trusted):
    tea, coffee = write("tea.modpack"), write("coffee.modpack", **{"pkg/a.py": b""})
    sign_package(tea, alice, embed=False)
    sidecar_path(tea).replace(sidecar_path(coffee))
    assert "named 'tea.modpack'" in refused(coffee, trusted("alice", alice))


def test_check_signatures_accepts_renamed_package(package, alice, trusted, tmp_path):
    sign_package(package, alice)
    assert held(package.rename(tmp_path / "other.pt"), trusted("alice", alice))


def test_check_signatures_reports_damaged_manifest(package, alice, trusted, monkeypatch):
    sign_package(package, alice)
    monkeypatch.setattr("modpack.archive.layout.MANIFEST", ".data/modpack/tensors.json")
    with pytest.raises(ArchiveError):
        held(package, trusted("alice", alice))


def test_check_signatures_of_buffer_reads_embedded_only(package, alice, trusted):
    sign_package(package, alice)
    with package.open("rb") as file, open_archive(file) as archive:
        assert check_signatures(archive, [trusted("alice", alice)])


def test_huge_embedded_signature_is_not_read(package, alice, trusted, monkeypatch):
    with ArchiveWriter(package) as writer:
        writer.write(".data/version", b"6\n")
        writer.commit()
    with open_archive(package) as archive:
        from modpack.writing.append import write_with_signature

        write_with_signature(archive, str(package), b" " * (1 << 20) + b"x", package)
    monkeypatch.setattr(Archive, "read", lambda *_: pytest.fail("it was read"))
    monkeypatch.setattr(
        "modpack.security.signing.package_digest", lambda archive: pytest.fail("not needed")
    )
    with open_archive(package) as archive, pytest.raises(SignatureError, match="is larger than"):
        find_signatures(archive)


def test_huge_detached_signature_is_not_read(package, alice, trusted):
    with sidecar_path(package).open("wb") as file:
        file.truncate(1 << 40)
    assert "larger than 1048576 bytes" in refused(package, trusted("alice", alice))


def test_detached_signature_must_be_regular_file(package, alice, trusted):
    os.mkfifo(sidecar_path(package))  # opening it blocks
    assert "is not a regular file" in refused(package, trusted("alice", alice))
    sidecar_path(package).unlink()
    sidecar_path(package).symlink_to("/dev/zero")
    assert "is not a regular file" in refused(package, trusted("alice", alice))


def test_damaged_signature_record_is_reported(package, alice, trusted):
    sign_package(package, alice)
    content = bytearray(package.read_bytes())
    content[content.rindex(b'"payloadType"') + 3] ^= 1
    package.write_bytes(content)
    reason = refused(package, trusted("alice", alice))
    assert f"the signature {EMBEDDED} cannot be read" in reason
    assert "CRC-32" in reason


def test_sidecar_path_of_folder_has_folder_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sidecar_path("a/b/").name == "b.sig"
    assert sidecar_path(".") == Path(f"{tmp_path}.sig")
    assert sidecar_path("model.modpack") == Path("model.modpack.sig")
