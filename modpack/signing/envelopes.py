"""Envelopes: a statement and the signatures of it (DSSE, version 1).

An envelope may come from anywhere. Nothing in it is believed before one of the trusted keys has
signed it: key ids only tell which keys to try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modpack.core.trust import Signer
from modpack.errors import SignatureError
from modpack.signing import pem
from modpack.signing.dsse import PAYLOAD_TYPE, Envelope, encode_envelope, read_envelope, short
from modpack.signing.extra import needing_sign
from modpack.signing.keys import PrivateKey
from modpack.signing.statements import Statement, decode_statement, encode_statement

__all__ = ["HeldSignature", "check", "read_envelope", "sign"]


@dataclass(frozen=True)
class HeldSignature:
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
    payload = encode_statement(name, digest)
    others: dict[str, bytes] = {}
    if existing is not None:
        payload, others = _continued(existing, digest, source or name)
    with needing_sign():
        from securesystemslib.dsse import Envelope as Dsse
        from securesystemslib.signer import CryptoSigner, SSlibKey

    public = SSlibKey.from_crypto(private.secret.public_key(), private.key_id)
    signed = Dsse(payload, PAYLOAD_TYPE, {}).sign(CryptoSigner(private.secret, public))
    signatures = {**others, private.key_id: bytes.fromhex(signed.signature)}
    return encode_envelope(payload, signatures)


def check(
    envelope: bytes,
    digest: str,
    signers: Sequence[Signer],
    source: str,
    place: str = "its signature",
) -> tuple[HeldSignature, ...]:
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
    found = _read(envelope, source, place)
    trusted = {pem.key_id(key): (signer, key) for signer, key in map(_with_key, signers)}
    held = [key_id for key_id, (_, key) in trusted.items() if _is_signed(found, key_id, key)]
    if not held:
        raise SignatureError(source, _why_not_held(found, place, trusted))
    statement = _statement(found, source, place)
    if not statement.is_about(digest):
        raise SignatureError(source, _why_not_this(statement, digest, source, place))
    return tuple(HeldSignature(key_id, place, trusted[key_id][0].name) for key_id in held)


def _read(envelope: bytes, source: str, place: str) -> Envelope:
    try:
        return read_envelope(envelope, source, place)
    except SignatureError as failure:
        remedy = "get the signature again from whoever signed it (modpack sign)"
        raise SignatureError(source, f"{failure.reason}. Remedy: {remedy}") from failure


def _with_key(signer: Signer) -> tuple[Signer, bytes]:
    return signer, pem.public_bytes(signer.public_key, f"the key of {signer.name!r}")


def _is_signed(envelope: Envelope, key_id: str, public: bytes) -> bool:
    """Whether one of an envelope's signatures was made with a key."""
    with needing_sign():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from securesystemslib.dsse import Envelope as Dsse
        from securesystemslib.exceptions import UnverifiedSignatureError
        from securesystemslib.signer import Signature, SSlibKey

    key = SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(public), key_id)
    signed = Dsse(envelope.payload, PAYLOAD_TYPE, {}).pae()
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
            f"{place} does not hold: it names the key of {signer.name!r} ({short(claimed[0])}), "
            "which did not sign what it says now. Either what was signed or the signature was "
            "changed. Remedy: get the package again from whoever signed it"
        )
    others = [short(each.key_id) or "one without a name" for each in envelope.signatures]
    keys = f"key{'s' if len(others) > 1 else ''} {', '.join(others)}"
    known = ", ".join(
        f"{signer.name!r} ({short(key_id)})" for key_id, (signer, _) in trusted.items()
    )
    return (
        f"{place} is of nobody who is trusted: it was made with the {keys}, and trusted is "
        f"{known}. Remedy: trust that key, if you know whose it is"
    )


def _why_not_this(statement: Statement, digest: str, source: str, place: str) -> str:
    signed = ", ".join(f"{each[:16]}..." for _, each in statement.subjects)
    digests = f"signed was the digest {signed}, and its digest is {digest[:16]}..."
    if Path(source).name in dict(statement.subjects):
        return f"it was changed after it was signed: {digests} ({place})"
    return (
        f"{place} is for another package, which was called {statement.names()} when it was signed "
        f"(or this one was renamed, and changed): {digests}"
    )


def _statement(envelope: Envelope, source: str, place: str) -> Statement:
    try:
        return decode_statement(envelope.payload)
    except ValueError as failure:
        raise SignatureError(source, f"{place} says nothing about packages: {failure}") from failure


def _continued(existing: bytes, digest: str, source: str) -> tuple[bytes, dict[str, bytes]]:
    """What an existing envelope says, if it may be signed once more, and who signed it."""
    place = "the signature that is there"
    try:
        envelope = read_envelope(existing, source, place)
        statement = _statement(envelope, source, place)
        if not statement.is_about(digest):
            raise SignatureError(source, _why_not_this(statement, digest, source, place))
        if envelope.payload != encode_statement(*statement.subjects[0]):
            raise SignatureError(source, f"{place} says more than who vouches for the package")
        if not all(each.key_id for each in envelope.signatures):
            raise SignatureError(source, f"{place} does not say with which key it was made")
    except SignatureError as failure:
        reason = f"{failure.reason}. Remedy: --replace signs anew and drops it"
        raise SignatureError(source, reason) from failure
    return envelope.payload, {each.key_id: each.value for each in envelope.signatures}
