"""Verifying a package: everything that reading can tell against loading it, at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import (
    Manifest,
    find_damage,
    find_unreadable,
    package_digest,
    read_manifest,
)
from modpack.archive.reader import open_archive
from modpack.core.codec import json_keys
from modpack.core.policy import (
    CODE_FROM_ANYONE,
    HOW_TO_REQUIRE_A_SIGNATURE,
    PATTERN_FIELDS,
    Signer,
    TrustPolicy,
)
from modpack.core.process import phase, usable_cores
from modpack.core.text import counted, human_size, printable
from modpack.diagnostics import Diagnostic, Severity
from modpack.errors import (
    ArchiveError,
    ModpackError,
    NotAPackageError,
    RepackedError,
    SignatureError,
    UnsupportedVersionError,
)
from modpack.report.audit_findings import pickle_findings
from modpack.report.audit_text import by_severity, code_part, hint_line, left_out
from modpack.report.format import indented, table
from modpack.report.verify_records import (
    PackageMetadata,
    check_agreement,
    check_manifest_form,
    check_metadata,
    check_storages,
    check_texts,
    read_own_records,
)
from modpack.security.code_listing import CodeListing, find_package_violations, list_code
from modpack.security.signing import check_signatures, find_signatures
from modpack.security.signing_envelope import ValidSignature, read_envelope

_TOLD_BY_OTHERS: Final = frozenset({"pickle-missing"})
"""Findings about pickles that digests, or the records of the format, tell better."""
_MAX_OF_A_CODE: Final = 20


@json_keys({"is_passed": "passed"})
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
    findings: tuple[Diagnostic, ...] = ()
    signatures: tuple[ValidSignature, ...] = ()
    code: CodeListing | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether nothing was found that speaks against loading the package."""
        return all(each.severity is not Severity.ERROR for each in self.findings)


def restrictions(policy: TrustPolicy) -> int:
    """How many things a policy restricts; who must have signed is another check."""
    patterns = [getattr(policy, field) for field in PATTERN_FIELDS]
    others = (not policy.allow_native, not policy.allow_code)
    return sum(each is not None for each in patterns) + sum(others)


def _check_policy(
    archive: Archive, policy: TrustPolicy, code: CodeListing | None
) -> Iterator[Diagnostic]:
    """What a package asks for and a policy does not allow."""
    if policy.allow_code and not policy.require_signature_from:
        yield Diagnostic.from_code(
            "policy-allows-any-code",
            archive.path,
            CODE_FROM_ANYONE,
            hint=HOW_TO_REQUIRE_A_SIGNATURE,
        )
    if code is None and not policy.allow_code:
        text = "a damaged record prevents modpack from listing the package's code"
        yield Diagnostic.from_code("policy-violation", archive.path, text)
    try:
        violations = find_package_violations(archive, policy, None if policy.allow_code else code)
    except ModpackError as failure:
        text = f"a damaged record prevents modpack from checking the trust policy: {failure}"
        yield Diagnostic.from_code("policy-violation", archive.path, text)
        return
    for each in violations:
        yield Diagnostic.from_code("policy-violation", each.subject, each.message, hint=each.hint)


def _unchecked_signatures(
    archive: Archive, path: str | os.PathLike[str] | None
) -> Iterator[Diagnostic]:
    """Signatures that nobody asked for: there is no key to check them with."""
    try:
        signatures = find_signatures(archive, path)
    except SignatureError as failure:
        yield Diagnostic.from_code("record-invalid", layout.SIGNATURE, failure.reason)
        return
    for each in signatures:
        try:
            envelope = read_envelope(each.content, archive.path, each.place)
        except SignatureError as failure:
            # A file beside the package may be another tool's.
            is_ours = each.place == layout.SIGNATURE
            code = "record-invalid" if is_ours else "signature-unchecked"
            yield Diagnostic.from_code(code, each.place, failure.reason)
            continue
        keys = ", ".join(key.key_id[:16] or "without an ID" for key in envelope.signatures)
        text = f"the signature names the key {keys}, which was not given"
        yield Diagnostic.from_code("signature-unchecked", each.place, text)


def verify_package(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    policy: TrustPolicy | None = None,
    keys: Sequence[Signer] = (),
    workers: int | None = None,
) -> VerifyFacts:
    """Verify a package: read all of it, run nothing of it, unpickle nothing.

    The archive's structure; every record against its digest, tensors included; every record of
    the format by its reader; the records against each other; signatures, and what a policy allows,
    if there is one. An archive whose structure is damaged cannot be read any further; everything
    else is told at once. What of the package is code is listed, and not judged.

    Args:
        source: a package file, a binary file object, or the folder of an unzipped package;
            modpack's, or torch.package's, which has no digests to compare with.
        policy: what the loader allows.
        keys: if there are any, a valid signature of one of them is demanded.
        workers: threads that compute digests; one for each core by default.

    Returns:
        What was checked and found. That the package is refused is no exception.

    Raises:
        TypeError: ``source`` is none of these.
        ValueError: ``workers`` is no number from 1.
        NotAPackageError: there is no such file, or it is no package at all.
        UnsupportedVersionError: it is written in a format newer than this modpack.
        ModpackError: signatures are to be checked, and what checks them is not installed.
    """
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise ValueError(f"workers must be a number from 1, not {workers!r}")
    try:
        archive = open_archive(source)
    except NotAPackageError:
        raise
    except ArchiveError as failure:
        return _refused_at_once(failure, source)
    with archive, phase("verifying"):
        path = source if isinstance(source, (str, os.PathLike)) else None
        return _Verification(archive, path, policy, keys, workers or usable_cores()).facts()


def _from_error(code: str, subject: str, failure: ArchiveError | SignatureError) -> Diagnostic:
    """Return an error as a diagnostic. The error's own hint takes precedence over the code's."""
    hint = failure.hint or None
    return Diagnostic.from_code(code, subject, failure.reason, hint=hint)


def _refused_at_once(
    failure: ArchiveError, source: str | os.PathLike[str] | BinaryIO
) -> VerifyFacts:
    """What is told of an archive that cannot be opened."""
    subject = failure.record or failure.path
    told = _from_error("archive-invalid", subject, failure)
    check = CheckFacts("structure", 0, "records", False)
    size = _bytes_at(source) if isinstance(source, (str, os.PathLike)) else 0
    return VerifyFacts(failure.path, "", "", size, (check,), (told,))


def _bytes_at(path: str | os.PathLike[str]) -> int:
    """Bytes of a file, or of all files in a folder; 0 if that cannot be told."""
    place = Path(path)
    try:
        files = [place] if place.is_file() else [f for f in place.rglob("*") if f.is_file()]
        return sum(file.lstat().st_size for file in files)
    except OSError:  # it goes away just now
        return 0


def _damaged(reasons: Mapping[str, str]) -> list[Diagnostic]:
    return [
        Diagnostic.from_code("record-corrupt", record, reason) for record, reason in reasons.items()
    ]


@dataclass
class _Verification:
    """One open package being verified."""

    archive: Archive
    path: str | os.PathLike[str] | None
    policy: TrustPolicy | None
    keys: Sequence[Signer]
    workers: int
    checks: list[CheckFacts] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    signatures: dict[ValidSignature, None] = field(default_factory=dict)
    code: CodeListing | None = None

    def facts(self) -> VerifyFacts:
        archive = self.archive
        form = digest = ""
        self._told("structure", len(archive.names()), "records", ())
        try:
            manifest = read_manifest(archive)
        except UnsupportedVersionError:
            raise
        except ArchiveError as failure:
            self._check_what_can_be_read(failure)
        else:
            if manifest is not None:
                form, digest = f"modpack {manifest.format}", package_digest(archive)
                self._check_own(manifest)
            else:
                form = "torch.package"
                if self._check_foreign():
                    digest = package_digest(archive)
            self._check_trust()
        return VerifyFacts(
            archive.path,
            form,
            digest,
            archive.stored_bytes(),
            tuple(self.checks),
            tuple(sorted(self.findings, key=lambda each: each.severity.rank)),
            tuple(self.signatures),
            self.code,
        )

    def _check_own(self, manifest: Manifest) -> None:
        archive = self.archive
        form = check_manifest_form(archive, manifest)
        self._told("manifest", len(manifest.records), "records", form)
        damage = find_damage(archive, manifest, archive.names(), self.workers)
        self._told("digests", len(manifest.records), "records", _damaged(damage))
        damaged = frozenset(damage)
        own = read_own_records(archive, manifest, damaged)
        texts = list(check_texts(archive, damaged))
        self._told("records of the format", own.count, "records", [*own.findings, *texts])
        agreement = list(check_agreement(archive, own, damaged))
        if own.plan is not None:
            agreement += check_metadata(archive, manifest, own.plan, damaged)
        decisions = len(own.plan.decisions) if own.plan is not None else 0
        self._told("agreement", decisions, "decisions", agreement)
        self._check_objects(manifest, own)

    def _check_foreign(self) -> bool:
        """Check a package of torch.package; tells whether all of it can be read."""
        archive = self.archive
        damaged = self._check_readable()
        self._told("records of the format", 0, "records", check_texts(archive, damaged))
        self._check_objects(None, PackageMetadata())
        text = "torch.package wrote it, which records no digests"
        self.findings.append(Diagnostic.from_code("torch-package-no-digests", archive.path, text))
        return not damaged

    def _check_what_can_be_read(self, failure: ArchiveError) -> None:
        """Without a manifest to go by, only crc32 can tell what else is damaged."""
        code = "archive-repacked" if isinstance(failure, RepackedError) else "manifest-invalid"
        record = failure.record or layout.MANIFEST
        told = _from_error(code, record, failure)
        self._told("manifest", 0, "records", [told])
        self._check_readable()

    def _check_readable(self) -> frozenset[str]:
        """Read every record, which checks it against its crc32; the records that are damaged."""
        names = self.archive.names()
        damage = find_unreadable(self.archive, names, self.workers)
        self._told("crc32", len(names), "records", _damaged(damage))
        return frozenset(damage)

    def _check_objects(self, manifest: Manifest | None, own: PackageMetadata) -> None:
        """Whether pickles can be read, and whether their storages are there."""
        archive = self.archive
        try:
            listing = list_code(archive, manifest)
            findings = list(pickle_findings(archive, manifest, listing))
        except ArchiveError as failure:
            self._told("pickles", 0, "pickles", self._unread(failure))
        else:
            self.code = listing
            findings = [each for each in findings if each.code not in _TOLD_BY_OTHERS]
            self._told("pickles", len(listing.pickles), "pickles", findings)
        count = sum(map(layout.is_storage, archive.names()))
        self._told("storages", count, "storages", check_storages(archive, own, self.code))

    def _unread(self, failure: ArchiveError) -> Iterator[Diagnostic]:
        """A record that keeps the pickles from being read; it may have been told already."""
        record = failure.record or failure.path
        if all(each.subject != record for each in self.findings):
            yield Diagnostic.from_code("record-invalid", record, failure.reason)
        text = f"record {record!r} is damaged, so modpack could not read all pickles"
        yield Diagnostic.from_code("scan-unfinished", record, text)

    def _check_trust(self) -> None:
        policy = self.policy
        if self.keys:
            self._check_signature("signature", self.keys)
        if policy is not None and policy.require_signature_from:
            asking = "the policy's signers" if self.keys else ""
            self._check_signature("policy's signature", policy.require_signature_from, asking)
        if not (self.keys or (policy is not None and policy.require_signature_from)):
            self.findings += _unchecked_signatures(self.archive, self.path)
        if policy is not None:
            findings = _check_policy(self.archive, policy, self.code)
            self._told("policy", restrictions(policy), "restrictions", findings)

    def _check_signature(self, name: str, signers: Sequence[Signer], asking: str = "") -> None:
        """Look for the signature of one of some signers; ``asking`` is who demands it."""
        findings = []
        try:
            held = check_signatures(self.archive, signers, self.path)
        except SignatureError as failure:
            found = _from_error("signature-invalid", self.archive.path, failure)
            message = f"{asking}: {found.message}" if asking else found.message
            findings.append(replace(found, message=message))
        else:
            self.signatures |= dict.fromkeys(held)
        self._told(name, len(signers), "trusted signers", findings)

    def _told(self, name: str, count: int, unit: str, findings: Iterable[Diagnostic]) -> None:
        """Keep what came of one kind of check: its name, how many things were checked, and what."""
        listed = list(findings)
        has_passed = all(each.severity is not Severity.ERROR for each in listed)
        self.checks.append(CheckFacts(name, count, unit, has_passed))
        self.findings += listed


def verify_report(facts: VerifyFacts) -> RenderableType:
    """Everything about a verification, the outcome last."""
    return Group(
        _head(facts),
        "",
        _checks(facts.checks),
        *code_part(facts.code),
        *by_severity(facts.findings, _of_one_code),
        *_signatures(facts),
        "",
        _outcome(facts),
    )


def _head(facts: VerifyFacts) -> RenderableType:
    size = human_size(facts.size_bytes) if facts.size_bytes else ""
    parts = [facts.format, size, facts.digest]
    told = ", ".join(printable(part) for part in parts if part)
    return Text.assemble((printable(facts.subject), "bold"), "  ", (told, "dim"))


def _checks(checks: Sequence[CheckFacts]) -> RenderableType:
    rows = table(("", "left"), ("", "right"), ("dim", "left"), ("", "left"))
    for each in checks:
        outcome = "passed" if each.is_passed else "FAILED"
        rows.add_row(each.name, f"{each.count:,}", each.unit, outcome)
    return indented(rows, 2)


def _of_one_code(findings: Sequence[Diagnostic]) -> Iterator[RenderableType]:
    """Findings with what to do: once for all, or after each if it is not the same for all."""
    is_same = len({each.hint for each in findings}) == 1
    for each in findings[:_MAX_OF_A_CODE]:
        yield indented(Text(printable(each.summary)), 4)
        if not is_same:
            yield from hint_line(each.hint)
    if len(findings) > _MAX_OF_A_CODE:
        yield left_out(len(findings) - _MAX_OF_A_CODE)
    if is_same:
        yield from hint_line(findings[0].hint)


def _signatures(facts: VerifyFacts) -> Iterator[RenderableType]:
    if facts.signatures:
        yield ""
    for each in facts.signatures:
        signer = f" of {printable(each.signer)}" if each.signer else ""
        text = f"signed with the key {printable(each.key_id)}{signer} ({printable(each.place)})"
        yield Text(text, "green")


def _outcome(facts: VerifyFacts) -> RenderableType:
    number = Counter(each.severity for each in facts.findings)
    if not facts.is_accepted:
        return Text(f"refused: {counted(number[Severity.ERROR], 'error')}", "bold red")
    warnings = number[Severity.WARNING]
    told = f", with {counted(warnings, 'warning')}" if warnings else ""
    return Text(f"accepted{told}", "bold green")
