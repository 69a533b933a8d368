"""Key files, as far as they can be told apart without any cryptography.

PEM is RFC 7468; public keys are SubjectPublicKeyInfo, which RFC 8410 makes the same 12 bytes and
then the key for every Ed25519 key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from pathlib import Path
from typing import Final

from modpack.errors import KeyFileError

__all__ = [
    "ENCRYPTED_LABEL",
    "PRIVATE_LABELS",
    "key_id",
    "normalised",
    "public_bytes",
    "read_key_file",
    "require_private",
]

_MOST_BYTES: Final = 1 << 14
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s(.*?)-----END \1-----", re.DOTALL)
_PUBLIC_LABEL: Final = "PUBLIC KEY"
ENCRYPTED_LABEL: Final = "ENCRYPTED PRIVATE KEY"
PRIVATE_LABELS: Final = ("PRIVATE KEY", ENCRYPTED_LABEL)
_ED25519: Final = bytes.fromhex("302a300506032b6570032100")
_ED25519_BYTES: Final = 32

_MAKE_ONE: Final = "Remedy: make a pair with modpack keygen"


def read_key_file(path: Path) -> str:
    """The text of a key file.

    Raises:
        KeyFileError: it cannot be read, or is no text of a key's size.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        reason = getattr(failure, "strerror", None) or str(failure)
        raise KeyFileError(str(path), f"the key cannot be read: {reason}") from failure
    if len(content) > _MOST_BYTES:
        raise KeyFileError(str(path), f"it is too large for a key. {_MAKE_ONE}")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as failure:
        raise KeyFileError(str(path), f"it is no key in PEM form. {_MAKE_ONE}") from failure


def public_bytes(text: str, source: str) -> bytes:
    """The 32 bytes of an Ed25519 public key.

    Args:
        text: the key, as PEM.
        source: whose key it is, or its file; for messages.

    Raises:
        KeyFileError: it is none.
    """
    label, body = _block(text, source)
    if "PRIVATE" in label:
        raise KeyFileError(
            source,
            "it is a private key, which nobody but its owner should have. Remedy: give the public "
            "one, which modpack keygen writes as NAME.pub",
        )
    if label != _PUBLIC_LABEL:
        raise KeyFileError(source, f"it holds a {label}, and no public key. {_MAKE_ONE}")
    content = _decoded(body, source)
    if len(content) != len(_ED25519) + _ED25519_BYTES or not content.startswith(_ED25519):
        raise KeyFileError(source, f"it is a public key, but not one of Ed25519. {_MAKE_ONE}")
    return content[len(_ED25519) :]


def require_private(text: str, source: str) -> str:
    """The label of a private key: one of :data:`PRIVATE_LABELS`.

    Raises:
        KeyFileError: it is no private key in PKCS #8 form.
    """
    label, _ = _block(text, source)
    if label == _PUBLIC_LABEL:
        raise KeyFileError(
            source,
            "it is a public key, with which nothing can be signed. Remedy: give the private one, "
            "which modpack keygen writes as NAME, without .pub",
        )
    if label not in PRIVATE_LABELS:
        raise KeyFileError(source, f"it holds a {label}, and no private key. {_MAKE_ONE}")
    return label


def key_id(public: bytes) -> str:
    """What a key is called: the sha256 of its SubjectPublicKeyInfo in DER, in hex.

    ``openssl pkey -pubin -in NAME.pub -outform DER | sha256sum`` tells the same.

    >>> key_id(bytes(32))[:16]
    '722abd12e99a5367'
    """
    return hashlib.sha256(_ED25519 + public).hexdigest()


def normalised(public: bytes) -> str:
    """A public key as PEM, always the same text for the same key."""
    content = base64.b64encode(_ED25519 + public).decode("ascii")
    return f"-----BEGIN {_PUBLIC_LABEL}-----\n{content}\n-----END {_PUBLIC_LABEL}-----\n"


def _block(text: str, source: str) -> tuple[str, str]:
    """Label and body of the one PEM block."""
    found = _BLOCK.findall(text)
    if "OPENSSH PRIVATE KEY" in text or text.lstrip().startswith("ssh-"):
        raise KeyFileError(source, f"it is a key of OpenSSH, and PEM is needed. {_MAKE_ONE}")
    if not found:
        raise KeyFileError(source, f"it is no key in PEM form. {_MAKE_ONE}")
    if len(found) > 1:
        raise KeyFileError(source, "it holds more than one key. Remedy: give each its own file")
    label, body = found[0]
    return label, body


def _decoded(body: str, source: str) -> bytes:
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error as failure:
        raise KeyFileError(source, f"its PEM is damaged. {_MAKE_ONE}") from failure
