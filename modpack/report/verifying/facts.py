"""What a verification tells, as values; nothing here reads files or prints."""

from __future__ import annotations

from dataclasses import dataclass

from modpack.report.auditing.facts import Finding, Severity
from modpack.security.code_listing import CodeListing

__all__ = ["CheckFacts", "SignatureFacts", "VerifyFacts"]


@dataclass(frozen=True)
class CheckFacts:
    """One kind of check.

    Attributes:
        name: what was checked (``digests``).
        count: how many things were.
        unit: what they are, in the plural (``records``).
        is_passed: whether nothing was wrong with any of them.
    """

    name: str
    count: int
    unit: str
    is_passed: bool


@dataclass(frozen=True)
class SignatureFacts:
    """One signature that holds.

    Attributes:
        key_id: names the key (hex).
        place: the record or the file that it was found in.
        signer: the name under which the policy or the user knows the key; empty if under none.
    """

    key_id: str
    place: str
    signer: str = ""


@dataclass(frozen=True)
class VerifyFacts:
    """What came of verifying one package.

    Attributes:
        subject: the package's file.
        format: ``modpack 1`` or ``torch.package``; empty if it could not be told.
        digest: the package's digest; empty if it could not be told.
        size_bytes: of the file, or of all files of a folder; 0 if it could not be told.
        checks: what was checked, in order.
        findings: what was found, errors first; codes as in audits.
        signatures: the signatures that were asked for and hold.
        code: what of the package is code; None if that could not be told.
    """

    subject: str
    format: str
    digest: str
    size_bytes: int
    checks: tuple[CheckFacts, ...] = ()
    findings: tuple[Finding, ...] = ()
    signatures: tuple[SignatureFacts, ...] = ()
    code: CodeListing | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether nothing was found that speaks against loading the package."""
        return all(each.severity is not Severity.ERROR for each in self.findings)
