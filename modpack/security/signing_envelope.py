"""What a signature says and how it is written: an in-toto statement in a DSSE envelope.

The statement (https://in-toto.io/Statement/v1) has nothing but what it is about, so that the same
package gives the same statement at any time and on any machine. The envelope is JSON (DSSE,
version 1), and may come from anywhere: reading it checks its form and nothing else. Nothing in it
is believed before one of the trusted keys has signed it; key ids only tell which keys to try.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.manifest import canonical_json
from modpack.core.codec import json_keys, record_to_json
from modpack.core.policy import Signer
from modpack.errors import SignatureError
from modpack.security.signing_keys import PrivateKey, key_id, public_bytes, requiring_sign_extra

_STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE: Final = "urn:x-modpack:package:v1"
"""That whoever signed vouches for a package, and that the digest is that of its manifest."""
_PREDICATE: Final = {"digestOf": layout.MANIFEST}
_MAX_SHOWN: Final = 3
_MAX_CHARACTERS: Final = 80
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
MAX_BYTES: Final = 1 << 20
_MAX_SIGNATURES: Final = 100
_URL_SAFE: Final = str.maketrans("-_", "+/")


class Subject(NamedTuple):
    """What a statement is about.

    Attributes:
        name: what the file was called when it was signed.
        digest: the package's digest.
    """

    name: str
    digest: str


def _encode_statement(name: str, digest: str) -> bytes:
    """The statement that whoever signs it vouches for a package.

    Args:
        name: what the package's file is called; it helps people, and is not checked. What is no
            text in it becomes a question mark.
        digest: the package's digest, the sha256 of its manifest in hex.
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
    """What a statement is about.

    Raises:
        ValueError: it is no statement about packages; the text says why, in a part of a sentence.
    """
    document = _strict_json(payload)
    if not isinstance(document, dict) or document.get("_type") != _STATEMENT_TYPE:
        raise ValueError("what was signed is no in-toto statement of version 1")
    if document.get("predicateType") != _PREDICATE_TYPE:
        raise ValueError(
            f"its statement is of the type {_shown(document.get('predicateType'))}, which does not "
            "vouch for a package"
        )
    if document.get("predicate") != _PREDICATE:
        raise ValueError("its predicate does not say that the digest is that of the manifest")
    subjects = document.get("subject")
    if not isinstance(subjects, list) or not subjects:
        raise ValueError("its statement has no subject")
    return tuple(map(_subject, subjects))


def _strict_json(content: bytes) -> object:
    """A JSON value that has one reading.

    Raises:
        ValueError: it is none; or has a key twice, a number that is none, or too many levels.
    """
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_number,
        )
    except RecursionError as failure:
        raise ValueError("its JSON has too many levels") from failure


def _shown(value: object) -> str:
    """A value of a document of unknown origin, for messages: short, and text only."""
    if not isinstance(value, str):
        return "no text"
    return repr(value if len(value) <= _MAX_CHARACTERS else value[:_MAX_CHARACTERS] + "...")


def _plain(name: str) -> str:
    """A name that UTF-8 can hold; those of files may have bytes that are no text."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _subject(value: object) -> Subject:
    if isinstance(value, dict):
        name, digest = value.get("name", ""), value.get("digest")
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if isinstance(name, str) and isinstance(sha256, str) and _SHA256.fullmatch(sha256):
            return Subject(_plain(name), sha256)
    raise ValueError("a subject of its statement has no sha256")


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is there twice")
    return document


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number")


@json_keys({"key_id": "keyid", "value": "sig"})
class EnvelopeSignature(NamedTuple):
    """One signature, as an envelope states it: not checked.

    Attributes:
        key_id: names the key, if it is the signer's habit; else empty.
        value: the signature.
    """

    key_id: str
    value: bytes


class Envelope(NamedTuple):
    """What an envelope states: not checked.

    Attributes:
        payload: what was signed.
        signatures: by whom.
    """

    payload: bytes
    signatures: tuple[EnvelopeSignature, ...]

    def encoded(self) -> bytes:
        """The one text for it that modpack writes, with one signature of each key."""
        by_key = {each.key_id: each for each in self.signatures}
        ordered = self._replace(signatures=tuple(by_key[key] for key in sorted(by_key)))
        document = {"payloadType": _PAYLOAD_TYPE, **record_to_json(ordered)}
        return canonical_json(document) + b"\n"


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
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        if not content.strip():
            raise ValueError("it is empty")
        return _envelope(_strict_json(content))
    except ValueError as failure:
        raise SignatureError(source, f"{place} is no envelope: {failure}") from failure


def _envelope(document: object) -> Envelope:
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    payload_type, signatures = document.get("payloadType"), document.get("signatures")
    if payload_type != _PAYLOAD_TYPE:
        raise ValueError(f"its payloadType is {_shown(payload_type)}, not {_PAYLOAD_TYPE!r}")
    if not isinstance(signatures, list) or not signatures:
        raise ValueError("it has no signatures")
    if len(signatures) > _MAX_SIGNATURES:
        raise ValueError(f"it has more than {_MAX_SIGNATURES} signatures")
    read = tuple(_signature(each) for each in signatures)
    named = [each.key_id for each in read if each.key_id]
    for each in named:
        if named.count(each) > 1:
            raise ValueError(f"it has two signatures of the key {_short(each)}")
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
    except ValueError as failure:
        raise ValueError(f"{what} is no base64") from failure


def _short(key_id: str) -> str:
    """The beginning of a key id, for messages."""
    return f"{key_id[:16]}..." if len(key_id) > 16 else key_id


class ValidSignature(NamedTuple):
    """A signature that holds.

    Attributes:
        key_id: names the key: the sha256 of its SubjectPublicKeyInfo, in hex.
        place: the record or the file in which the signature was found.
        signer: the name under which the key is known.
    """

    key_id: str
    place: str
    signer: str


def sign(
    digest: str,
    name: str,
    private: PrivateKey,
    existing: bytes | None = None,
    source: str = "",
) -> bytes:
    """An envelope in which a key vouches for a package. The same arguments give the same bytes.

    Args:
        digest: the package's digest.
        name: what its file is called.
        private: the key.
        existing: an envelope for the same package, whose signatures stay.
        source: the package, for messages; by default ``name``.

    Raises:
        SignatureError: the existing envelope is damaged, or says something else.
        ModpackError: the extra ``sign`` is not installed.
    """
    if existing is not None:
        envelope = _continued(existing, digest, source or name)
    else:
        envelope = Envelope(_encode_statement(name, digest), ())
    with requiring_sign_extra():
        from securesystemslib.dsse import Envelope as Dsse
        from securesystemslib.signer import CryptoSigner, SSlibKey

    public = SSlibKey.from_crypto(private.secret.public_key(), private.key_id)
    signed = Dsse(envelope.payload, _PAYLOAD_TYPE, {}).sign(CryptoSigner(private.secret, public))
    made = EnvelopeSignature(private.key_id, bytes.fromhex(signed.signature))
    return envelope._replace(signatures=(*envelope.signatures, made)).encoded()


def check(
    envelope: bytes,
    digest: str,
    signers: Sequence[Signer],
    source: str,
    place: str = "its signature",
) -> tuple[ValidSignature, ...]:
    """Which of the signers vouch for a package.

    Args:
        envelope: the envelope, as JSON.
        digest: the package's digest.
        signers: who may vouch; one of them has to.
        source: the package, for messages.
        place: where the envelope was found.

    Returns:
        The signatures that hold, in the order of ``signers``; at least one.

    Raises:
        SignatureError: none does: the envelope is damaged, nobody of the signers signed it, it was
            changed afterwards, or it is for another package.
        KeyFileError: a signer's key is no Ed25519 public key.
        ModpackError: the extra ``sign`` is not installed.
    """
    try:
        found = read_envelope(envelope, source, place)
    except SignatureError as failure:
        remedy = "get the signature again from whoever signed it (modpack sign)"
        raise SignatureError(source, f"{failure.reason}. Remedy: {remedy}") from failure
    trusted: dict[str, tuple[Signer, bytes]] = {}
    for signer in signers:
        key = public_bytes(signer.public_key, f"the key of {signer.name!r}")
        trusted[key_id(key)] = signer, key
    held = [key_id for key_id, (_, key) in trusted.items() if _is_signed(found, key_id, key)]
    if not held:
        raise SignatureError(source, _why_not_held(found, place, trusted))
    _require_about(found, digest, source, place)
    return tuple(ValidSignature(key_id, place, trusted[key_id][0].name) for key_id in held)


def _is_signed(envelope: Envelope, key_id: str, public: bytes) -> bool:
    """Whether one of an envelope's signatures was made with a key."""
    with requiring_sign_extra():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from securesystemslib.dsse import Envelope as Dsse
        from securesystemslib.exceptions import UnverifiedSignatureError
        from securesystemslib.signer import Signature, SSlibKey

    key = SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(public), key_id)
    signed = Dsse(envelope.payload, _PAYLOAD_TYPE, {}).pae()
    for each in envelope.signatures:
        try:
            key.verify_signature(Signature(key_id, each.value.hex()), signed)
            return True
        except UnverifiedSignatureError:
            continue
    return False


def _why_not_held(
    envelope: Envelope, place: str, trusted: Mapping[str, tuple[Signer, bytes]]
) -> str:
    claimed = [each.key_id for each in envelope.signatures if each.key_id in trusted]
    if claimed:
        signer = trusted[claimed[0]][0]
        return (
            f"{place} does not hold: it names the key of {signer.name!r} ({_short(claimed[0])}), "
            "which did not sign what it says now. Either what was signed or the signature was "
            "changed. Remedy: get the package again from whoever signed it"
        )
    others = [_short(each.key_id) or "one without a name" for each in envelope.signatures]
    keys = f"key{'s' if len(others) > 1 else ''} {', '.join(others)}"
    known = ", ".join(
        f"{signer.name!r} ({_short(key_id)})" for key_id, (signer, _) in trusted.items()
    )
    return (
        f"{place} is of nobody who is trusted: it was made with the {keys}, and trusted is "
        f"{known}. Remedy: trust that key, if you know whose it is"
    )


def _require_about(envelope: Envelope, digest: str, source: str, place: str) -> tuple[Subject, ...]:
    """What a statement is about, a package of this digest among it."""
    try:
        subjects = _decode_statement(envelope.payload)
    except ValueError as failure:
        raise SignatureError(source, f"{place} says nothing about packages: {failure}") from failure
    if any(each.digest == digest for each in subjects):
        return subjects
    signed = ", ".join(f"{each.digest[:16]}..." for each in subjects)
    digests = f"signed was the digest {signed}, and its digest is {digest[:16]}..."
    if Path(source).name in dict(subjects):
        raise SignatureError(source, f"it was changed after it was signed: {digests} ({place})")
    names = ", ".join(_shown(each.name) for each in subjects[:_MAX_SHOWN])
    more = ", ..." if len(subjects) > _MAX_SHOWN else ""
    raise SignatureError(
        source,
        f"{place} is for another package, which was called {names}{more} when it was signed "
        f"(or this one was renamed, and changed): {digests}",
    )


def _continued(existing: bytes, digest: str, source: str) -> Envelope:
    """An existing envelope, if it may be signed once more."""
    place = "the signature that is there"
    try:
        envelope = read_envelope(existing, source, place)
        subjects = _require_about(envelope, digest, source, place)
        if envelope.payload != _encode_statement(*subjects[0]):
            raise SignatureError(source, f"{place} says more than who vouches for the package")
        if not all(each.key_id for each in envelope.signatures):
            raise SignatureError(source, f"{place} does not say with which key it was made")
    except SignatureError as failure:
        reason = f"{failure.reason}. Remedy: --replace signs anew and drops it"
        raise SignatureError(source, reason) from failure
    return envelope
