"""The form of envelopes: DSSE, version 1, as JSON.

An envelope may come from anywhere: reading it checks its form, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from modpack.archive.manifest import canonical_json
from modpack.errors import SignatureError
from modpack.signing.statements import shown, strict_json

__all__ = [
    "MOST_BYTES",
    "PAYLOAD_TYPE",
    "Envelope",
    "EnvelopeSignature",
    "encode_envelope",
    "read_envelope",
    "short",
]

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
MOST_BYTES: Final = 1 << 20
_MOST_SIGNATURES: Final = 100
_URL_SAFE: Final = str.maketrans("-_", "+/")


@dataclass(frozen=True)
class EnvelopeSignature:
    """One signature, as an envelope states it: not checked.

    Attributes:
        key_id: names the key, if it is the signer's habit; else empty.
        value: the signature.
    """

    key_id: str
    value: bytes


@dataclass(frozen=True)
class Envelope:
    """What an envelope states: not checked.

    Attributes:
        payload: what was signed.
        signatures: by whom.
    """

    payload: bytes
    signatures: tuple[EnvelopeSignature, ...]

    def encoded(self) -> bytes:
        """The one text for it that modpack writes."""
        return encode_envelope(self.payload, {each.key_id: each.value for each in self.signatures})


def read_envelope(content: bytes, source: str, place: str = "its signature") -> Envelope:
    """What an envelope states; nothing of it is checked but its form.

    Args:
        content: the envelope, as JSON.
        source: the package, for messages.
        place: where the envelope was found, for messages.

    Raises:
        SignatureError: it is no envelope of an in-toto statement.
    """
    try:
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES} bytes")
        if not content.strip():
            raise ValueError("it is empty")
        return _envelope(strict_json(content))
    except ValueError as failure:
        raise SignatureError(source, f"{place} is no envelope: {failure}") from failure


def encode_envelope(payload: bytes, signatures: Mapping[str, bytes]) -> bytes:
    """An envelope as JSON.

    Args:
        payload: what was signed.
        signatures: by key id.
    """
    listed = [
        {"keyid": key_id, "sig": base64.b64encode(value).decode("ascii")}
        for key_id, value in sorted(signatures.items())
    ]
    document = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": listed,
    }
    return canonical_json(document) + b"\n"


def _envelope(document: object) -> Envelope:
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    payload_type, signatures = document.get("payloadType"), document.get("signatures")
    if payload_type != PAYLOAD_TYPE:
        raise ValueError(f"its payloadType is {shown(payload_type)}, not {PAYLOAD_TYPE!r}")
    if not isinstance(signatures, list) or not signatures:
        raise ValueError("it has no signatures")
    if len(signatures) > _MOST_SIGNATURES:
        raise ValueError(f"it has more than {_MOST_SIGNATURES} signatures")
    read = tuple(_signature(each) for each in signatures)
    named = [each.key_id for each in read if each.key_id]
    for key_id in named:
        if named.count(key_id) > 1:
            raise ValueError(f"it has two signatures of the key {short(key_id)}")
    return Envelope(_base64(document.get("payload"), "its payload"), read)


def _signature(value: object) -> EnvelopeSignature:
    if not isinstance(value, dict):
        raise ValueError("a signature in it is no JSON object")
    key_id = value.get("keyid") or ""
    if not isinstance(key_id, str) or not key_id.isprintable():
        raise ValueError("the keyid of a signature in it is no plain text")
    return EnvelopeSignature(key_id, _base64(value.get("sig"), "a signature in it"))


def _base64(value: object, what: str) -> bytes:
    """What a text stands for; DSSE allows both alphabets."""
    try:
        if not isinstance(value, str):
            raise ValueError("no text")
        return base64.b64decode(value.translate(_URL_SAFE), validate=True)
    except (ValueError, binascii.Error) as failure:
        raise ValueError(f"{what} is no base64") from failure


def short(key_id: str) -> str:
    """The beginning of a key id, for messages."""
    return f"{key_id[:16]}..." if len(key_id) > 16 else key_id
