"""Where signatures lie, and whether one of somebody who is trusted is there."""

import os
import zipfile
from pathlib import Path

import pytest

from modpack.archive.base import Archive
from modpack.archive.manifest import package_digest
from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter
from modpack.errors import ArchiveError, SignatureError
from modpack.security.signing import check_signatures, find_signatures, sidecar_path, sign_package
from modpack.security.signing_envelope import sign

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
def test_a_signature_of_somebody_who_is_trusted_is_enough(package, alice, bob, trusted, embed):
    sign_package(package, alice, embed=embed)
    (found,) = held(package, trusted("bob", bob), trusted("alice", alice))
    assert (found.signer, found.key_id) == ("alice", alice.key_id)
    assert found.location == (EMBEDDED if embed else f"{package}.sig")


def test_nobody_has_to_sign_if_nobody_is_asked_for(package):
    assert held(package) == ()


def test_a_stripped_signature_is_told(package, alice, trusted):
    reason = refused(package, trusted("alice", alice))
    assert reason.startswith("the package is not signed, and a signature of 'alice' is required")
    sign_package(package, alice, embed=False)
    assert "the package is not signed" in refused(package, trusted("alice", alice), at=False)


def test_an_archive_of_torch_package_cannot_be_signed(tmp_path, alice, trusted):
    path = tmp_path / "old.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("old/.data/version", b"6\n")
    sidecar_path(path).write_bytes(sign(digest_of(path), "old.pt", alice))
    assert held(path) == ()
    reason = refused(path, trusted("alice", alice))
    assert reason.startswith("a signature of 'alice' is required, but torch.package archives")


def test_one_signature_that_holds_is_enough(package, alice, bob, trusted):
    sign_package(package, alice)
    sidecar_path(package).write_bytes(b"junk")
    assert [each.signer for each in held(package, trusted("alice", alice))] == ["alice"]
    reason = refused(package, trusted("bob", bob))
    assert f"{EMBEDDED} is not from a trusted signer" in reason
    assert f"{package}.sig is not a valid envelope" in reason


def test_a_package_that_was_changed_and_manifested_anew_is_refused(write, alice, trusted):
    path = write("tea.modpack")
    sign_package(path, alice, embed=False)
    write("tea.modpack", **{"pkg/evil.py": b"import os"})
    assert "the package was changed after it was signed" in refused(path, trusted("alice", alice))


def test_a_signature_moved_to_another_package_is_refused(write, alice, trusted):
    tea, coffee = write("tea.modpack"), write("coffee.modpack", **{"pkg/a.py": b""})
    sign_package(tea, alice, embed=False)
    sidecar_path(tea).replace(sidecar_path(coffee))
    assert "named 'tea.modpack'" in refused(coffee, trusted("alice", alice))


def test_a_renamed_package_keeps_its_signature(package, alice, trusted, tmp_path):
    sign_package(package, alice)
    assert held(package.rename(tmp_path / "other.pt"), trusted("alice", alice))


def test_a_damaged_manifest_is_told_as_such(package, alice, trusted, monkeypatch):
    sign_package(package, alice)
    monkeypatch.setattr("modpack.archive.layout.MANIFEST", ".data/modpack/tensors.json")
    with pytest.raises(ArchiveError):
        held(package, trusted("alice", alice))


def test_check_signatures_of_buffer_reads_embedded_only(package, alice, trusted):
    sign_package(package, alice)
    with package.open("rb") as file, open_archive(file) as archive:
        assert check_signatures(archive, [trusted("alice", alice)])


def test_a_huge_signature_is_not_read(package, alice, trusted, monkeypatch):
    with ArchiveWriter(package) as writer:
        writer.write(".data/version", b"6\n")
        writer.commit()
    with open_archive(package) as archive:
        from modpack.archive.append import write_with_signature

        write_with_signature(archive, str(package), b" " * (1 << 20) + b"x", package)
    monkeypatch.setattr(Archive, "read", lambda *_: pytest.fail("it was read"))
    monkeypatch.setattr(
        "modpack.security.signing.package_digest", lambda archive: pytest.fail("not needed")
    )
    with open_archive(package) as archive, pytest.raises(SignatureError, match="is larger than"):
        find_signatures(archive)


def test_a_huge_file_beside_is_not_read(package, alice, trusted):
    with sidecar_path(package).open("wb") as file:
        file.truncate(1 << 40)
    assert "is larger than 1048576 bytes" in refused(package, trusted("alice", alice))


def test_what_is_no_file_beside_is_told(package, alice, trusted):
    os.mkfifo(sidecar_path(package))  # whoever opens it waits for ever
    assert "is not a regular file" in refused(package, trusted("alice", alice))
    sidecar_path(package).unlink()
    sidecar_path(package).symlink_to("/dev/zero")
    assert "is not a regular file" in refused(package, trusted("alice", alice))


def test_a_signature_record_with_damaged_content_is_told(package, alice, trusted):
    sign_package(package, alice)
    content = bytearray(package.read_bytes())
    content[content.rindex(b'"payloadType"') + 3] ^= 1
    package.write_bytes(content)
    reason = refused(package, trusted("alice", alice))
    assert f"the signature {EMBEDDED} cannot be read" in reason
    assert "CRC-32" in reason


def test_the_file_beside_a_folder_bears_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sidecar_path("a/b/").name == "b.sig"
    assert sidecar_path(".") == Path(f"{tmp_path}.sig")
    assert sidecar_path("model.modpack") == Path("model.modpack.sig")
