"""Public keys of signers, in PEM form, as far as they can be told apart without any cryptography.

PEM is RFC 7468; public keys are SubjectPublicKeyInfo, which RFC 8410 makes the same 12 bytes and
then the key for every Ed25519 key.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

__all__ = ["ED25519", "PUBLIC_LABEL", "pem_block", "public_key_bytes"]

PUBLIC_LABEL: Final = "PUBLIC KEY"
ED25519: Final = bytes.fromhex("302a300506032b6570032100")
"""How the SubjectPublicKeyInfo of an Ed25519 key starts."""
_KEY_BYTES: Final = 32
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s(.*?)-----END \1-----", re.DOTALL)
_MAKE_ONE: Final = "Remedy: make a pair with modpack keygen"


def public_key_bytes(text: str) -> bytes:
    """The 32 bytes of an Ed25519 public key.

    Args:
        text: the key, as PEM.

    Raises:
        ValueError: it is none; the text says why, and what to do.
    """
    label, body = pem_block(text)
    if "PRIVATE" in label:
        raise ValueError(
            "it is a private key, which nobody but its owner should have. Remedy: give the public "
            "one, which modpack keygen writes as NAME.pub"
        )
    if label != PUBLIC_LABEL:
        raise ValueError(f"it holds a {label}, and no public key. {_MAKE_ONE}")
    try:
        content = base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error as failure:
        raise ValueError(f"its PEM is damaged. {_MAKE_ONE}") from failure
    if len(content) != len(ED25519) + _KEY_BYTES or not content.startswith(ED25519):
        raise ValueError(f"it is a public key, but not one of Ed25519. {_MAKE_ONE}")
    return content[len(ED25519) :]


def pem_block(text: str) -> tuple[str, str]:
    """Label and body of the one PEM block in a text.

    Raises:
        ValueError: there is none, or more than one; the text says what to do.
    """
    found = _BLOCK.findall(text)
    if "OPENSSH PRIVATE KEY" in text or text.lstrip().startswith("ssh-"):
        raise ValueError(f"it is a key of OpenSSH, and PEM is needed. {_MAKE_ONE}")
    if not found:
        raise ValueError(f"it is no key in PEM form. {_MAKE_ONE}")
    if len(found) > 1:
        raise ValueError("it holds more than one key. Remedy: give each its own file")
    label, body = found[0]
    return label, body
