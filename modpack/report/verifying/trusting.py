"""Signatures, and what a policy allows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.core.trust import Signer, TrustPolicy
from modpack.errors import ModpackError, SignatureError
from modpack.report.auditing.facts import Finding
from modpack.report.trusting import package_violations
from modpack.report.verifying.codes import found
from modpack.report.verifying.facts import SignatureFacts
from modpack.signing.envelopes import read_envelope
from modpack.signing.finding import FoundSignature, check_signatures, find_signatures

__all__ = ["SignatureCheck", "check_policy", "verify_signatures"]


@dataclass(frozen=True)
class SignatureCheck:
    """What came of the signatures.

    Attributes:
        signatures: those that hold.
        findings: what is wrong with the others, or with there being none.
    """

    signatures: tuple[SignatureFacts, ...] = ()
    findings: tuple[Finding, ...] = ()


def verify_signatures(
    archive: Archive,
    path: str | os.PathLike[str] | None,
    demands: Sequence[Sequence[Signer]],
) -> SignatureCheck:
    """Look for the signatures that are demanded.

    That the records are as the manifest says, which is what is signed, is another check.

    Args:
        archive: the package.
        path: its file or folder; None if it has none.
        demands: of each of these, one has to have signed; those without signers ask for nothing.

    Raises:
        ModpackError: what checks signatures is not installed, or a signer's key is none.
    """
    if not any(demands):
        return SignatureCheck(findings=tuple(_unchecked(archive, path)))
    signatures: dict[SignatureFacts, None] = {}
    findings: dict[Finding, None] = {}
    for signers in filter(None, demands):
        try:
            for held in check_signatures(archive, signers, path):
                signatures[SignatureFacts(held.key_id, held.place, held.signer)] = None
        except SignatureError as failure:
            findings[found("signature", archive.source, failure.reason)] = None
    return SignatureCheck(tuple(signatures), tuple(findings))


def check_policy(archive: Archive, policy: TrustPolicy) -> Iterator[Finding]:
    """What a package asks for and a policy does not allow; names in pickles are the scan's.

    Args:
        archive: the package.
        policy: what the loader allows.
    """
    try:
        violations = package_violations(archive, policy)
    except ModpackError as failure:
        text = f"what it asks for cannot be told, since a record is damaged: {failure}"
        yield found("policy", archive.source, text)
        return
    for each in violations:
        row = found("policy", each.subject, each.text)
        yield Finding(row.code, row.severity, row.subject, row.text, None, each.remedy)


def _unchecked(archive: Archive, path: str | os.PathLike[str] | None) -> Iterator[Finding]:
    """Signatures that nobody asked for: there is no key to check them with."""
    try:
        signatures = find_signatures(archive, path)
    except SignatureError as failure:
        yield found("record-unreadable", layout.SIGNATURE, failure.reason)
        return
    for each in signatures:
        yield from _unchecked_one(archive, each)


def _unchecked_one(archive: Archive, signature: FoundSignature) -> Iterator[Finding]:
    try:
        envelope = read_envelope(signature.content, archive.source, signature.place)
    except SignatureError as failure:
        # A file beside the package may be another tool's.
        is_ours = signature.place == layout.SIGNATURE
        code = "record-unreadable" if is_ours else "signature-unchecked"
        yield found(code, signature.place, failure.reason)
        return
    keys = ", ".join(each.key_id[:16] or "one without a name" for each in envelope.signatures)
    text = f"it claims to be made with the key {keys}, which was not given"
    yield found("signature-unchecked", signature.place, text)
