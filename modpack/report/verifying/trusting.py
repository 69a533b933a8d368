"""Signatures, and what a policy allows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.core.trust import CODE_FROM_ANYBODY, PATTERN_FIELDS, Signer, TrustPolicy
from modpack.errors import ModpackError, SignatureError
from modpack.report.auditing.facts import Finding
from modpack.report.trusting import package_violations
from modpack.report.verifying.codes import as_sentence, found, found_with_remedy
from modpack.report.verifying.facts import SignatureFacts
from modpack.security.code_listing import CodeListing
from modpack.signing.envelopes import read_envelope
from modpack.signing.finding import FoundSignature, check_signatures, find_signatures

__all__ = [
    "SignatureCheck",
    "check_policy",
    "restrictions",
    "unchecked_signatures",
    "verify_signatures",
]


@dataclass(frozen=True)
class SignatureCheck:
    """What came of one demand for a signature.

    Attributes:
        signatures: those that hold.
        findings: why there is none.
    """

    signatures: tuple[SignatureFacts, ...] = ()
    findings: tuple[Finding, ...] = ()


def verify_signatures(
    archive: Archive,
    path: str | os.PathLike[str] | None,
    signers: Sequence[Signer],
    asking: str = "",
) -> SignatureCheck:
    """Look for the signature of one of some signers.

    That the records are as the manifest says, which is what is signed, is another check.

    Args:
        archive: the package.
        path: its file or folder; None if it has none.
        signers: of these, one has to have signed.
        asking: who demands it, for the finding; nobody is named by default.

    Raises:
        ModpackError: what checks signatures is not installed, or a signer's key is none.
    """
    try:
        held = check_signatures(archive, signers, path)
    except SignatureError as failure:
        reason = f"{asking}: {failure.reason}" if asking else failure.reason
        return SignatureCheck(findings=(found_with_remedy("signature", archive.source, reason),))
    return SignatureCheck(
        tuple(SignatureFacts(each.key_id, each.place, each.signer) for each in held)
    )


def restrictions(policy: TrustPolicy) -> int:
    """How many things a policy restricts; who must have signed is another check."""
    patterns = [getattr(policy, field) for field in PATTERN_FIELDS]
    others = (not policy.native, not policy.allow_code)
    return sum(each is not None for each in patterns) + sum(others)


def check_policy(
    archive: Archive, policy: TrustPolicy, code: CodeListing | None
) -> Iterator[Finding]:
    """What a package asks for and a policy does not allow.

    Args:
        archive: the package.
        policy: what the loader allows.
        code: what of the package is code; None if that cannot be told.
    """
    if policy.allow_code and not policy.signers:
        yield found_with_remedy("policy-allows-any-code", archive.source, CODE_FROM_ANYBODY)
    if code is None and not policy.allow_code:
        text = "whether it holds code cannot be told, since a record is damaged"
        yield found("policy", archive.source, text)
    try:
        violations = package_violations(archive, policy, None if policy.allow_code else code)
    except ModpackError as failure:
        text = f"what it asks for cannot be told, since a record is damaged: {failure}"
        yield found("policy", archive.source, text)
        return
    for each in violations:
        row = found("policy", each.subject, each.text)
        yield replace(row, remedy=as_sentence(each.remedy))


def unchecked_signatures(
    archive: Archive, path: str | os.PathLike[str] | None
) -> Iterator[Finding]:
    """Signatures that nobody asked for: there is no key to check them with.

    Args:
        archive: the package.
        path: its file or folder; None if it has none.
    """
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
