"""Verification of packages: all checks that work by reading alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import (
    Manifest,
    find_damage,
    find_unreadable,
    is_repacked,
    package_digest,
    read_manifest,
)
from modpack.archive.reader import opened
from modpack.archive.zip_format import REPACKED, REPACKED_HINT
from modpack.core.codec import json_keys
from modpack.core.policy import (
    CODE_FROM_ANYONE,
    HOW_TO_REQUIRE_A_SIGNATURE,
    PATTERN_FIELDS,
    Signer,
    TrustPolicy,
)
from modpack.core.process import phase, usable_cores
from modpack.diagnostics import Diagnostic, Severity
from modpack.errors import (
    ArchiveError,
    ModpackError,
    NotAPackageError,
    RepackedError,
    SignatureError,
    UnsupportedVersionError,
    listed,
)
from modpack.report.audit_findings import loader_finding, pickle_findings, shard_findings
from modpack.report.package_info import loader_facts
from modpack.report.verify_records import (
    PackageMetadata,
    check_consistency,
    check_manifest_form,
    check_storages,
    read_own_records,
)
from modpack.security.signing import check_signatures, find_signatures
from modpack.security.signing_envelope import (
    CHANGED,
    ValidSignature,
    read_envelope,
    require_subject,
)
from modpack.trust.code_listing import CodeListing, find_package_violations, list_code

_REPORTED_BY_OTHER_CHECKS: Final = frozenset({"pickle-missing"})
"""Codes of pickle findings that the checks of digests and records cover."""
_MAX_ALIKE: Final = 5
FIRST: Final = ("archive-repacked", "signature-invalid")
"""Codes of findings that explain the others, most of all first."""


@json_keys({"is_passed": "passed"})
@dataclass(frozen=True)
class CheckFacts:
    """The result of one check.

    Attributes:
        name: The name of the check, such as ``digests``.
        count: The number of checked items.
        unit: The kind of items, in the plural, such as ``records``.
        is_passed: Whether all of them passed.
    """

    name: str
    count: int
    unit: str
    is_passed: bool


@json_keys(derived=("passed",))
@dataclass(frozen=True)
class VerifyFacts:
    """The result of verifying a package.

    Attributes:
        path: The package file.
        format: ``modpack`` and its version, or ``torch.package``. None if unknown.
        digest: The package's digest. None if unknown.
        size_bytes: The size of the file, or of all files of a folder. 0 if unknown.
        checks: The checks, in order.
        findings: The findings, the most severe first.
        signatures: The required signatures that are valid.
        code: The code in the package. None if it cannot be listed.
    """

    path: str
    format: str | None
    digest: str | None
    size_bytes: int
    checks: tuple[CheckFacts, ...] = ()
    findings: tuple[Diagnostic, ...] = ()
    signatures: tuple[ValidSignature, ...] = ()
    code: CodeListing | None = None

    @property
    def passed(self) -> bool:
        """Whether no finding is an error."""
        return all(each.severity is not Severity.ERROR for each in self.findings)


def restrictions(policy: TrustPolicy) -> int:
    """Return the number of restrictions of a policy, without required signatures."""
    patterns = [getattr(policy, field) for field in PATTERN_FIELDS]
    others = (not policy.allow_native, not policy.allow_code)
    return sum(each is not None for each in patterns) + sum(others)


def _check_policy(
    archive: Archive, policy: TrustPolicy, code: CodeListing | None
) -> Iterator[Diagnostic]:
    """Yield the violations of a trust policy."""
    if policy.allow_code and not policy.require_signature_from:
        yield Diagnostic.from_code(
            "policy-allows-any-code",
            archive.path,
            CODE_FROM_ANYONE,
            hint=HOW_TO_REQUIRE_A_SIGNATURE,
        )
    # A policy that forbids code cannot pass a package whose code is unknown.
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
    """Yield the signatures for which no key was given, and those of other contents."""
    try:
        signatures = find_signatures(archive, path)
    except SignatureError as failure:
        yield Diagnostic.from_code("record-invalid", layout.SIGNATURE, failure.reason)
        return
    for each in signatures:
        try:
            envelope = read_envelope(each.content, archive.path, each.location)
        except SignatureError as failure:
            # A file next to the package may belong to another tool.
            is_ours = each.location == layout.SIGNATURE
            code = "record-invalid" if is_ours else "signature-unchecked"
            yield Diagnostic.from_code(code, each.location, failure.reason)
            continue
        if each.location == layout.SIGNATURE:
            try:
                require_subject(envelope, package_digest(archive), archive.path, each.location)
            except SignatureError as failure:
                yield _from_error("signature-invalid", archive.path, failure)
        # Key IDs are not verified here: they only help to find the right key.
        keys = ", ".join(key.key_id[:16] or "without an ID" for key in envelope.signatures)
        text = f"the signature names the key {keys}, which was not given"
        yield Diagnostic.from_code("signature-unchecked", each.location, text)


def verify_package(
    source: str | os.PathLike[str] | BinaryIO | Archive,
    *,
    policy: TrustPolicy | None = None,
    keys: Sequence[Signer] = (),
    only_code: bool = False,
) -> VerifyFacts:
    """Verify a package without executing or unpickling its contents.

    Checks the archive's structure, the digest of every record including tensors, every metadata
    record, the consistency of the records, signatures, and the trust policy. If the structure is
    damaged, the other checks are skipped. Otherwise the result lists all findings. The package's
    code is listed, but not checked.

    Args:
        source: A package file, a binary file object, or the folder of an unzipped package, of
            modpack or torch.package; or an open one, which stays open.
        policy: The trust policy.
        keys: The trusted signers. If any are given, a valid signature of one of them is required.
        only_code: Whether tensors are not read. The digests of all other records are checked.

    Returns:
        The checks and findings. A rejected package does not raise an exception.

    Raises:
        TypeError: If ``source`` is none of these.
        NotAPackageError: If the file does not exist, or is not a package.
        UnsupportedVersionError: If a newer version of modpack wrote the package.
        ModpackError: If signatures must be checked, but the required library is not installed.
    """
    try:
        opening = opened(source)
    # Another file is not a damaged package. There is nothing to report about it.
    except NotAPackageError:
        raise
    except ArchiveError as failure:
        # What cannot be opened has no other checks.
        finding = _from_error("archive-invalid", failure.record or failure.path, failure)
        check = CheckFacts("structure", 0, "records", False)
        return VerifyFacts(failure.path, None, None, 0, (check,), (finding,))
    with opening as archive, phase("verifying"):
        path = archive.path if isinstance(source, (str, os.PathLike, Archive)) else None
        return _Verification(archive, path, policy, keys, only_code).facts()


def _from_error(code: str, subject: str, failure: ArchiveError | SignatureError) -> Diagnostic:
    """Return an error as a diagnostic. The error's own hint takes precedence over the code's."""
    hint = failure.hint or None
    return Diagnostic.from_code(code, subject, failure.reason, hint=hint)


def _damaged(reasons: Mapping[str, str]) -> Iterator[Diagnostic]:
    repacked = [record for record, reason in reasons.items() if is_repacked(reason)]
    if repacked:
        hint = REPACKED_HINT
        yield Diagnostic.from_code("archive-repacked", repacked[0], REPACKED, hint=hint)
    for record, reason in reasons.items():
        if not is_repacked(reason):
            yield Diagnostic.from_code("record-corrupt", record, reason)


@dataclass
class _Verification:
    """The verification of one open package."""

    archive: Archive
    path: str | os.PathLike[str] | None
    policy: TrustPolicy | None
    keys: Sequence[Signer]
    only_code: bool
    checks: list[CheckFacts] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    signatures: dict[ValidSignature, None] = field(default_factory=dict)
    code: CodeListing | None = None
    is_changed: bool = False

    def facts(self) -> VerifyFacts:
        archive = self.archive
        form = digest = None
        self._add_check("structure", len(archive.names()), "records", ())
        try:
            manifest = read_manifest(archive)
        # A newer format is not damage, and this version cannot judge it.
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
            # Last, because signatures and policies are judged by what the other checks found.
            self._check_trust()
        return VerifyFacts(
            archive.path,
            form,
            digest,
            archive.stored_bytes(),
            checks=tuple(self.checks),
            findings=tuple(sorted(dict.fromkeys(self.findings), key=_rank)),
            signatures=tuple(self.signatures),
            code=self.code,
        )

    def _check_own(self, manifest: Manifest) -> None:
        archive = self.archive
        form = check_manifest_form(archive, manifest)
        self._add_check("manifest", len(manifest.records), "records", form)
        names, unit = self._chosen(manifest.records)
        shards = archive.shards()
        # A missing file is one finding, and not one for each of its tensors.
        lost = {shard.name for shard in shards if shard.problem is not None}
        names = [name for name in names if archive.shard_of(name) not in lost]
        damage = find_damage(archive, manifest, names, usable_cores())
        self.is_changed = bool(damage)
        self._add_check("digests", len(names), unit, _damaged(damage))
        self.findings += shard_findings(shards)
        damaged = frozenset(damage)
        # Records that the manifest does not list are reported once, and no later check reads them.
        archive.leave_out(damaged - manifest.records.keys())
        # Damaged records were reported above. Reading them again would report each twice.
        own = read_own_records(archive, manifest, damaged)
        self._add_check("records", own.count, "records", own.findings)
        consistency = check_consistency(archive, own, damaged)
        decisions = len(own.plan.decisions) if own.plan is not None else 0
        self._add_check("consistency", decisions, "decisions", consistency)
        loader = None if own.loader is None else loader_facts(archive, manifest)
        if loader is not None:
            self.findings.append(loader_finding(archive.path, loader))
        self._check_objects(manifest, own)

    def _check_foreign(self) -> bool:
        """Check a torch.package archive; return whether every record can be read."""
        damaged = self._check_readable()
        self._check_objects(None, PackageMetadata())
        text = "torch.package wrote this package, without digests of its records"
        finding = Diagnostic.from_code("torch-package-no-digests", self.archive.path, text)
        self.findings.append(finding)
        return not damaged

    def _check_what_can_be_read(self, failure: ArchiveError) -> None:
        """Check the CRC-32 of all records, which is all that is possible without a manifest."""
        code = "archive-repacked" if isinstance(failure, RepackedError) else "manifest-invalid"
        record = failure.record or layout.MANIFEST
        finding = _from_error(code, record, failure)
        self._add_check("manifest", 0, "records", [finding])
        self._check_readable()
        # Without a valid manifest, nothing shows that the content is what was signed.
        self.is_changed = True
        self.findings += self._changed_signed()

    def _check_readable(self) -> frozenset[str]:
        """Return the records that cannot be read, or do not match their CRC-32."""
        names, unit = self._chosen(self.archive.names())
        damage = find_unreadable(self.archive, names, usable_cores())
        self._add_check("crc32", len(names), unit, _damaged(damage))
        return frozenset(damage)

    def _chosen(self, names: Iterable[str]) -> tuple[list[str], str]:
        """Return the records whose contents are compared, and what they are."""
        if not self.only_code:
            return list(names), "records"
        return [name for name in names if not layout.is_storage(name)], "records without tensors"

    def _check_objects(self, manifest: Manifest | None, own: PackageMetadata) -> None:
        """Check that pickles can be read and that their storages exist."""
        archive = self.archive
        try:
            listing = list_code(archive, manifest)
            findings = list(pickle_findings(archive, manifest, listing))
        except ArchiveError as failure:
            self._add_check("pickles", 0, "pickles", self._unread(failure))
        else:
            self.code = listing
            findings = [each for each in findings if each.code not in _REPORTED_BY_OTHER_CHECKS]
            self._add_check("pickles", len(listing.pickles), "pickles", findings)
        count = sum(map(layout.is_storage, archive.names()))
        self._add_check("storages", count, "storages", check_storages(archive, own, self.code))

    def _unread(self, failure: ArchiveError) -> Iterator[Diagnostic]:
        """Yield findings about a record that prevents reading the pickles."""
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
            self._check_signature("policy-signature", policy.require_signature_from, asking)
        if not (self.keys or (policy is not None and policy.require_signature_from)):
            # Without a key, no signature is checked, but a change after signing is visible anyway.
            self.findings += self._changed_signed()
            self.findings += _unchecked_signatures(self.archive, self.path)
        if policy is not None:
            findings = _check_policy(self.archive, policy, self.code)
            self._add_check("policy", restrictions(policy), "restrictions", findings)

    def _check_signature(self, name: str, signers: Sequence[Signer], asking: str = "") -> None:
        """Check for a signature of one of the signers, which ``asking`` requires."""
        findings = list(self._changed_signed())
        try:
            held = check_signatures(self.archive, signers, self.path)
        except SignatureError as failure:
            found = _from_error("signature-invalid", self.archive.path, failure)
            message = f"{asking}: {found.message}" if asking else found.message
            findings.append(replace(found, message=message))
        else:
            # The signature covers the manifest only, and says nothing of records that differ.
            if not self.is_changed:
                self.signatures |= dict.fromkeys(held)
            elif not findings:
                findings.append(_changed(self.archive.path))
        self._add_check(name, len(signers), "trusted signers", findings)

    def _changed_signed(self) -> Iterator[Diagnostic]:
        """Yield a finding if the package was changed and has an embedded signature."""
        if self.is_changed and self.archive.has(layout.SIGNATURE):
            yield _changed(self.archive.path)

    def _add_check(self, name: str, count: int, unit: str, findings: Iterable[Diagnostic]) -> None:
        """Add the result of a check."""
        found = list(findings)
        has_passed = all(each.severity is not Severity.ERROR for each in found)
        self.checks.append(CheckFacts(name, count, unit, has_passed))
        self.findings += _merged(found)


def _merged(findings: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Yield the findings; one with a count for many that say the same of different subjects."""
    alike: dict[tuple[str, str], list[Diagnostic]] = {}
    for each in findings:
        # An unzipped folder with thousands of other files would else drown the first cause.
        alike.setdefault((each.code, each.message), []).append(each)
    for (_, message), group in alike.items():
        if len(group) <= _MAX_ALIKE:
            yield from group
            continue
        others = listed(each.subject for each in group[1:])
        yield replace(group[0], message=f"{message}, as for {len(group) - 1} others: {others}")


def _changed(path: str) -> Diagnostic:
    return Diagnostic.from_code("signature-invalid", path, CHANGED)


def _rank(finding: Diagnostic) -> tuple[int, int]:
    order = FIRST.index(finding.code) if finding.code in FIRST else len(FIRST)
    return finding.severity.rank, order
