"""Key files, as far as they can be told apart without any cryptography."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from modpack.core.publickeys import ED25519, PUBLIC_LABEL, pem_block, public_key_bytes
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
ENCRYPTED_LABEL: Final = "ENCRYPTED PRIVATE KEY"
PRIVATE_LABELS: Final = ("PRIVATE KEY", ENCRYPTED_LABEL)

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
    with _telling(source):
        return public_key_bytes(text)


def require_private(text: str, source: str) -> str:
    """The label of a private key: one of :data:`PRIVATE_LABELS`.

    Raises:
        KeyFileError: it is no private key in PKCS #8 form.
    """
    with _telling(source):
        label, _ = pem_block(text)
    if label == PUBLIC_LABEL:
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
    return hashlib.sha256(ED25519 + public).hexdigest()


def normalised(public: bytes) -> str:
    """A public key as PEM, always the same text for the same key."""
    content = base64.b64encode(ED25519 + public).decode("ascii")
    return f"-----BEGIN {PUBLIC_LABEL}-----\n{content}\n-----END {PUBLIC_LABEL}-----\n"


@contextmanager
def _telling(source: str) -> Iterator[None]:
    """Say which key it is about, when something is wrong with one."""
    try:
        yield
    except ValueError as failure:
        raise KeyFileError(source, str(failure)) from failure
