"""Generating, writing, and reading keys, and identifying other files."""

import base64
import hashlib
import os
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from modpack.core.policy import Signer
from modpack.errors import KeyFileError, TargetError
from modpack.security import signing_keys
from modpack.security.signing_keys import (
    generate,
    is_readable_by_others,
    public_file,
    read_private,
    read_public,
    require_unused,
    write_pair,
)

PEM = serialization.Encoding.PEM
PKCS8 = serialization.PrivateFormat.PKCS8
SPKI = serialization.PublicFormat.SubjectPublicKeyInfo
PLAIN = serialization.NoEncryption()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def pair(tmp_path, alice):
    return write_pair(alice, tmp_path / "release")


def test_key_pair_round_trips(pair, alice):
    private, public = pair
    assert read_private(private) == alice
    assert read_public(public) == Signer("release", alice.public_key)
    assert read_public(public, "the team").name == "the team"


def test_private_key_is_readable_by_owner_only(pair):
    private, public = pair
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert not is_readable_by_others(private)
    assert stat.S_IMODE(public.stat().st_mode) & 0o400
    private.chmod(0o640)
    assert is_readable_by_others(private)


def test_write_pair_leaves_no_other_files(pair, tmp_path):
    assert names_in(tmp_path) == ["release", "release.pub"]


def test_key_id_is_sha256_of_der(pair, alice):
    body = "".join(pair[1].read_text().splitlines()[1:-1])
    assert hashlib.sha256(base64.b64decode(body)).hexdigest() == alice.key_id


def test_private_key_repr_hides_secret(alice):
    secret = alice.secret.private_bytes_raw().hex()
    assert secret not in repr(alice)
    assert "secret" not in repr(alice)


def test_encrypted_key_needs_passphrase(tmp_path, alice):
    private, _ = write_pair(alice, tmp_path / "k", passphrase="ähm \udcff")
    assert b"ENCRYPTED" in private.read_bytes()
    assert read_private(private, "ähm \udcff") == alice
    assert read_private(private, lambda: "ähm \udcff") == alice
    for given in (None, ""):
        with pytest.raises(KeyFileError, match=r"is encrypted\. Pass its passphrase"):
            read_private(private, given)
    with pytest.raises(KeyFileError, match="the passphrase is wrong"):
        read_private(private, "other")


def test_unencrypted_key_asks_no_passphrase(pair, alice):
    def ask():
        raise AssertionError("asked")

    assert read_private(pair[0], ask) == alice


@pytest.mark.parametrize("taken", ["release", "release.pub"])
def test_write_pair_keeps_existing_key(tmp_path, alice, taken):
    (tmp_path / taken).write_text("mine")
    with pytest.raises(TargetError, match=f"{taken} already exists.*Choose another name"):
        write_pair(alice, tmp_path / "release")
    assert names_in(tmp_path) == [taken]
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize("taken", ["release", "release.pub"])
def test_write_pair_keeps_key_that_is_created_at_the_same_time(tmp_path, alice, taken, monkeypatch):
    flush = os.fsync

    def create_another(descriptor):
        flush(descriptor)
        (tmp_path / taken).write_text("mine")

    monkeypatch.setattr(os, "fsync", create_another)
    with pytest.raises(TargetError, match=rf"cannot write .*{taken}: File exists"):
        write_pair(alice, tmp_path / "release")
    assert names_in(tmp_path) == [taken]
    assert (tmp_path / taken).read_text() == "mine"


def test_write_pair_rejects_dangling_symlink(tmp_path, alice):
    (tmp_path / "release").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TargetError, match="already exists"):
        write_pair(alice, tmp_path / "release")


def test_write_pair_overwrites_if_requested(pair, bob):
    pair[0].chmod(0o644)
    write_pair(bob, pair[0], overwrite=True)
    assert read_private(pair[0]) == bob
    assert read_public(pair[1]).public_key == bob.public_key
    assert stat.S_IMODE(pair[0].stat().st_mode) == 0o600


def test_failed_write_pair_keeps_old_pair(pair, alice, bob, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TargetError, match=r"cannot write .*release: No space left"):
        write_pair(bob, pair[0], overwrite=True)
    assert read_private(pair[0]) == alice
    assert names_in(pair[0].parent) == ["release", "release.pub"]


def test_write_pair_reports_missing_folder(tmp_path, alice):
    with pytest.raises(TargetError, match=r"cannot write .*nowhere/k: No such file"):
        write_pair(alice, tmp_path / "nowhere" / "k")


def test_openssl_keys_are_read(tmp_path):
    key = ed25519.Ed25519PrivateKey.generate()  # as openssl genpkey -algorithm ed25519 has it
    (tmp_path / "k").write_bytes(key.private_bytes(PEM, PKCS8, PLAIN))
    public = key.public_key().public_bytes(PEM, SPKI)
    (tmp_path / "k.pub").write_bytes(b"a comment\r\n" + public.replace(b"\n", b"\r\n"))
    assert read_private(tmp_path / "k").public_key == read_public(tmp_path / "k.pub").public_key


RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OPENSSH = serialization.Encoding.OpenSSH
NOT_PUBLIC = {
    "private": (ED.private_bytes(PEM, PKCS8, PLAIN), "expected a public key, got a private key"),
    "encrypted": (
        ED.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"x")),
        "expected a public key, got a private key",
    ),
    "private of OpenSSL's old form": (
        RSA.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, PLAIN),
        "expected a public key, got a private key",
    ),
    "rsa": (RSA.public_key().public_bytes(PEM, SPKI), "the public key is not an Ed25519 key"),
    "ec": (EC.public_key().public_bytes(PEM, SPKI), "the public key is not an Ed25519 key"),
    "ssh": (
        ED.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH),
        "got an OpenSSH key",
    ),
    "ssh private": (
        ED.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN),
        "got an OpenSSH key",
    ),
    "certificate": (
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "expected a public key, got 'CERTIFICATE'",
    ),
    "damaged": (
        b"-----BEGIN PUBLIC KEY-----\n?\n-----END PUBLIC KEY-----\n",
        "PEM data is damaged",
    ),
    "two": (2 * ED.public_key().public_bytes(PEM, SPKI), "expected one key, got 2"),
    "text": (b"hello", "no key in PEM form found"),
    "nothing": (b"", "no key in PEM form found"),
    "bytes": (b"\xff\xfe\0", "not a key in PEM format"),
    "large": (b"x" * 100_000, "is too large for a key"),
}


@pytest.mark.parametrize("content, reason", NOT_PUBLIC.values(), ids=NOT_PUBLIC)
def test_read_public_identifies_other_files(tmp_path, content, reason):
    (tmp_path / "k.pub").write_bytes(content)
    with pytest.raises(KeyFileError, match=reason) as caught:
        read_public(tmp_path / "k.pub")
    assert str(caught.value).startswith(str(tmp_path / "k.pub") + ": ")
    assert str(caught.value).endswith((" modpack keygen NAME", ".pub.", "its own file."))


NOT_PRIVATE = {
    "public": (ED.public_key().public_bytes(PEM, SPKI), "this is a public key, and signing needs"),
    "rsa": (RSA.private_bytes(PEM, PKCS8, PLAIN), "the private key is not an Ed25519 key"),
    "ec": (EC.private_bytes(PEM, PKCS8, PLAIN), "the private key is not an Ed25519 key"),
    "old form": (
        RSA.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, PLAIN),
        "contains a RSA PRIVATE KEY, not a private key",
    ),
    "damaged": (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "is damaged"),
    "text": (b"hello", "no key in PEM form found"),
}


@pytest.mark.parametrize("content, reason", NOT_PRIVATE.values(), ids=NOT_PRIVATE)
def test_read_private_identifies_other_files(tmp_path, content, reason):
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(KeyFileError, match=reason):
        read_private(tmp_path / "k")


def test_unreadable_key_is_reported(tmp_path):
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        read_public(tmp_path / "nowhere.pub")
    with pytest.raises(KeyFileError, match="cannot be read: Is a directory"):
        read_private(tmp_path)


def test_public_file_appends_pub():
    assert public_file("keys/release").name == "release.pub"
    assert public_file("keys/v1.2").name == "v1.2.pub"


def test_normalized_is_canonical(alice):
    public = signing_keys.public_bytes(alice.public_key.replace("\n", "\r\n"), "a key")
    assert signing_keys.normalized(public) == alice.public_key
    assert generate().key_id != generate().key_id


@pytest.mark.parametrize("name", ["", ".", "/", ".."])
def test_write_pair_rejects_path_without_name(alice, name):
    with pytest.raises(TargetError, match="does not end with a file name"):
        write_pair(alice, name, overwrite=True)
    with pytest.raises(TargetError, match="does not end with a file name"):
        require_unused(name)
