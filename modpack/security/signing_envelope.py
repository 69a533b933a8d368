"""The signature format: an in-toto statement in a DSSE envelope.

The statement (https://in-toto.io/Statement/v1) contains only its subject, so it depends on nothing
but the package. The envelope (DSSE version 1) is untrusted JSON, and reading it checks only its
form. Its content is trusted only after a signature by a trusted key was verified. Key IDs only
select the keys to try.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.manifest import canonical_json
from modpack.core.codec import json_keys, record_to_json
from modpack.core.json_values import parse_json
from modpack.core.policy import Signer
from modpack.errors import SignatureError, listed
from modpack.security.signing_keys import PrivateKey, key_id, public_bytes, requiring_sign_extra

_STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE: Final = "urn:x-modpack:package:v1"
"""States that the signer published the package, and that the digest is that of its manifest."""
_PREDICATE: Final = {"digestOf": layout.MANIFEST}
_MAX_CHARACTERS: Final = 80
CHANGED: Final = "the package was changed after it was signed"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_MAX_SIGNATURES: Final = 100
_URL_SAFE: Final = str.maketrans("-_", "+/")


class Subject(NamedTuple):
    """The subject of a statement.

    Attributes:
        name: File name of the package when it was signed.
        digest: Package digest.
    """

    name: str
    digest: str


def _encode_statement(name: str, digest: str) -> bytes:
    """Return the statement for a package.

    Args:
        name: File name of the package, for display only. Bytes that are not text become ``?``.
        digest: Package digest: the SHA-256 of its manifest, in hex.
    """
    return canonical_json(
        {
            "_type": _STATEMENT_TYPE,
            "subject": [{"name": _plain(name), "digest": {"sha256": digest}}],
            "predicateType": _PREDICATE_TYPE,
            "predicate": _PREDICATE,
        }
    )


def _decode_statement(payload: bytes) -> tuple[Subject, ...]:
    """Return the subjects of a statement.

    Raises:
        ValueError: If this is not a statement about packages. The text is a clause with the reason.
    """
    # With repeated keys, two readers could see two different statements.
    document = parse_json(payload, unique_keys=True)
    if not isinstance(document, dict) or document.get("_type") != _STATEMENT_TYPE:
        raise ValueError("the payload is not an in-toto statement of version 1")
    if document.get("predicateType") != _PREDICATE_TYPE:
        raise ValueError(
            f"expected the predicateType {_PREDICATE_TYPE!r}, "
            f"got {_shortened(document.get('predicateType'))}"
        )
    if document.get("predicate") != _PREDICATE:
        raise ValueError("the predicate does not declare the digest to be that of the manifest")
    subjects = document.get("subject")
    if not isinstance(subjects, list) or not subjects:
        raise ValueError("the statement has no subject")
    return tuple(map(_subject, subjects))


def _shortened(value: object) -> str:
    """Return an untrusted value for messages, shortened."""
    if not isinstance(value, str):
        return type(value).__name__
    return repr(value if len(value) <= _MAX_CHARACTERS else value[:_MAX_CHARACTERS] + "...")


def _plain(name: str) -> str:
    """Return a name that can be encoded as UTF-8, unlike file names with undecodable bytes."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _subject(value: object) -> Subject:
    if isinstance(value, dict):
        name, digest = value.get("name", ""), value.get("digest")
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if isinstance(name, str) and isinstance(sha256, str) and _SHA256.fullmatch(sha256):
            return Subject(_plain(name), sha256)
    raise ValueError("a subject of the statement has no SHA-256")


@json_keys({"key_id": "keyid", "value": "sig"})
class EnvelopeSignature(NamedTuple):
    """One unverified signature in an envelope.

    Attributes:
        key_id: Identifier of the key, or empty if the envelope does not name it.
        value: The signature.
    """

    key_id: str
    value: bytes


class Envelope(NamedTuple):
    """The unverified content of a DSSE envelope.

    Attributes:
        payload: The signed statement.
        signatures: The signatures.
    """

    payload: bytes
    signatures: tuple[EnvelopeSignature, ...]

    def encoded(self) -> bytes:
        """Return the canonical encoding, with one signature per key."""
        # A key that signs again replaces its signature.
        by_key = {each.key_id: each for each in self.signatures}
        ordered = self._replace(signatures=tuple(by_key[key] for key in sorted(by_key)))
        document = {"payloadType": _PAYLOAD_TYPE, **record_to_json(ordered)}
        return canonical_json(document) + b"\n"


def read_envelope(content: bytes, path: str, location: str = "its signature") -> Envelope:
    """Return the content of an envelope, of which only the form is checked.

    Args:
        content: The envelope as JSON.
        path: The package, for messages.
        location: The record or file of the envelope, for messages.

    Raises:
        SignatureError: If this is not an envelope of an in-toto statement.
    """
    try:
        if len(content) > layout.MAX_SIGNATURE_BYTES:
            raise ValueError(f"larger than {layout.MAX_SIGNATURE_BYTES} bytes")
        if not content.strip():
            raise ValueError("no content")
        return _decode_envelope(parse_json(content, unique_keys=True))
    except ValueError as failure:
        raise SignatureError(path, f"{location} is not a valid envelope: {failure}") from failure


def _decode_envelope(document: object) -> Envelope:
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    payload_type, signatures = document.get("payloadType"), document.get("signatures")
    if payload_type != _PAYLOAD_TYPE:
        raise ValueError(
            f"expected the payloadType {_PAYLOAD_TYPE!r}, got {_shortened(payload_type)}"
        )
    if not isinstance(signatures, list) or not signatures:
        raise ValueError("no signatures")
    if len(signatures) > _MAX_SIGNATURES:
        raise ValueError(f"more than {_MAX_SIGNATURES} signatures")
    read = tuple(_decode_signature(each) for each in signatures)
    # Two signatures of one key have no meaning, and readers might take either.
    named = [each.key_id for each in read if each.key_id]
    for each in named:
        if named.count(each) > 1:
            raise ValueError(f"two signatures of the key {_short(each)}")
    return Envelope(_decode_base64(document.get("payload"), "the payload"), read)


def _decode_signature(value: object) -> EnvelopeSignature:
    if not isinstance(value, dict):
        raise ValueError("a signature is not a JSON object")
    key_id = value.get("keyid") or ""
    # Messages show it, and other characters could control the terminal.
    if not isinstance(key_id, str) or not key_id.isprintable():
        raise ValueError("the keyid of a signature is not printable text")
    return EnvelopeSignature(key_id, _decode_base64(value.get("sig"), "a signature"))


def _decode_base64(value: object, label: str) -> bytes:
    """Decode base64 in the standard or URL-safe alphabet, which DSSE both allows."""
    try:
        if not isinstance(value, str):
            raise ValueError("not a string")
        return base64.b64decode(value.translate(_URL_SAFE), validate=True)
    except ValueError as failure:
        raise ValueError(f"{label} is not valid base64") from failure


def _short(key_id: str) -> str:
    """Return a shortened key ID for messages."""
    return f"{key_id[:16]}..." if len(key_id) > 16 else key_id


class ValidSignature(NamedTuple):
    """A verified signature.

    Attributes:
        key_id: Identifier of the key: the SHA-256 of its SubjectPublicKeyInfo, in hex.
        location: The record or file that contains the signature.
        signer: Name of the trusted signer.
    """

    key_id: str
    location: str
    signer: str


def sign(
    digest: str,
    name: str,
    private: PrivateKey,
    existing: bytes | None = None,
    path: str = "",
) -> bytes:
    """Return an envelope with a signature of a package. The same arguments give the same bytes.

    Args:
        digest: Package digest.
        name: File name of the package.
        private: The private key.
        existing: An envelope for the same package, whose signatures are kept.
        path: The package, for messages. By default ``name``.

    Raises:
        SignatureError: If the existing envelope is invalid or for another package.
        ModpackError: If the extra ``sign`` is not installed.
    """
    if existing is not None:
        envelope = _read_existing(existing, digest, path or name)
    else:
        envelope = Envelope(_encode_statement(name, digest), ())
    with requiring_sign_extra():
        from securesystemslib.dsse import Envelope as Dsse
        from securesystemslib.signer import CryptoSigner, SSlibKey

    public = SSlibKey.from_crypto(private.secret.public_key(), private.key_id)
    signed = Dsse(envelope.payload, _PAYLOAD_TYPE, {}).sign(CryptoSigner(private.secret, public))
    signature = EnvelopeSignature(private.key_id, bytes.fromhex(signed.signature))
    return envelope._replace(signatures=(*envelope.signatures, signature)).encoded()


def check(
    envelope: bytes,
    digest: str,
    signers: Sequence[Signer],
    path: str,
    location: str = "its signature",
) -> tuple[ValidSignature, ...]:
    """Verify that at least one of the signers signed a package.

    Args:
        envelope: The envelope as JSON.
        digest: Package digest.
        signers: Trusted signers. One of them must have signed.
        path: The package, for messages.
        location: The record or file of the envelope.

    Returns:
        The valid signatures, in the order of ``signers``; at least one.

    Raises:
        SignatureError: If there is no valid signature: the envelope is damaged, no trusted signer
            signed it, it was changed after signing, or it is for another package.
        KeyFileError: If a signer's key is not an Ed25519 public key.
        ModpackError: If the extra ``sign`` is not installed.
    """
    try:
        found = read_envelope(envelope, path, location)
    except SignatureError as failure:
        hint = "Ask the publisher for the signature again (modpack sign)."
        raise SignatureError(path, failure.reason, hint=hint) from failure
    # Trusted keys are tried, and not those that the envelope names: its names are not signed.
    trusted: dict[str, tuple[Signer, bytes]] = {}
    for signer in signers:
        key = public_bytes(signer.public_key, f"the key of {signer.name!r}")
        trusted[key_id(key)] = signer, key
    valid = [key_id for key_id, (_, key) in trusted.items() if _is_signed_by(found, key_id, key)]
    if not valid:
        raise _no_valid_signature(found, path, location, trusted)
    # After the signature: the payload of an unsigned envelope must not choose the message.
    require_subject(found, digest, path, location)
    return tuple(ValidSignature(key_id, location, trusted[key_id][0].name) for key_id in valid)


def _is_signed_by(envelope: Envelope, key_id: str, public: bytes) -> bool:
    """Return whether an envelope has a valid signature of a key."""
    with requiring_sign_extra():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from securesystemslib.dsse import Envelope as Dsse
        from securesystemslib.exceptions import UnverifiedSignatureError
        from securesystemslib.signer import Signature, SSlibKey

    key = SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(public), key_id)
    signed = Dsse(envelope.payload, _PAYLOAD_TYPE, {}).pae()
    # Key IDs are not signed, so they exclude no signature.
    for each in envelope.signatures:
        try:
            key.verify_signature(Signature(key_id, each.value.hex()), signed)
            return True
        except UnverifiedSignatureError:
            continue
    return False


def _no_valid_signature(
    envelope: Envelope, path: str, location: str, trusted: Mapping[str, tuple[Signer, bytes]]
) -> SignatureError:
    # An attack and a wrong key look alike, except for the key that the signature claims.
    claimed = [each.key_id for each in envelope.signatures if each.key_id in trusted]
    if claimed:
        signer = trusted[claimed[0]][0]
        reason = (
            f"{location} is invalid: it names the key of {signer.name!r} ({_short(claimed[0])}), "
            "but that key did not sign this content. The content or the signature was changed"
        )
        return SignatureError(path, reason, hint="Ask the publisher for the package again.")
    others = [_short(each.key_id) or "an unnamed one" for each in envelope.signatures]
    keys = f"key{'s' if len(others) > 1 else ''} {listed(others)}"
    known = ", ".join(
        f"{signer.name!r} ({_short(key_id)})" for key_id, (signer, _) in trusted.items()
    )
    reason = (
        f"{location} is not from a trusted signer: it was made with the {keys}, and the trusted "
        f"keys are {known}"
    )
    return SignatureError(path, reason, hint="Trust that key if you know its owner.")


def require_subject(
    envelope: Envelope, digest: str, path: str, location: str
) -> tuple[Subject, ...]:
    """Return the subjects of a statement, one of which must have this digest.

    Raises:
        SignatureError: If the statement is for another package, or for an earlier form of this one.
    """
    try:
        subjects = _decode_statement(envelope.payload)
    except ValueError as failure:
        raise SignatureError(path, f"{location} is not for a package: {failure}") from failure
    if any(each.digest == digest for each in subjects):
        return subjects
    signed = listed(f"{each.digest[:16]}..." for each in subjects)
    digests = f"the signed digest is {signed}, and the package digest is {digest[:16]}..."
    # A file name is only a hint: it tells a renamed package from a changed one.
    if location == layout.SIGNATURE or Path(path).name in dict(subjects):
        reason = f"{CHANGED}: {digests} ({location})"
        raise SignatureError(path, reason)
    names = listed(_shortened(each.name) for each in subjects)
    raise SignatureError(
        path,
        f"{location} is for another package, named {names} when it was signed (or this "
        f"package was renamed and changed): {digests}",
    )


def _read_existing(existing: bytes, digest: str, path: str) -> Envelope:
    """Return an existing envelope if another signature can be added to it."""
    location = "the existing signature"
    try:
        envelope = read_envelope(existing, path, location)
        subjects = require_subject(envelope, digest, path, location)
        # All signatures cover one payload. Ours must not vouch for statements of other tools.
        if envelope.payload != _encode_statement(*subjects[0]):
            raise SignatureError(path, f"{location} has a statement that modpack does not write")
        if not all(each.key_id for each in envelope.signatures):
            raise SignatureError(path, f"{location} does not name its key")
    except SignatureError as failure:
        hint = "Pass --replace to remove it and sign again."
        raise SignatureError(path, failure.reason, hint=hint) from failure
    return envelope
