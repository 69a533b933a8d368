"""Verifying a package: everything that reading can tell against loading it, at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.comparing import default_workers
from modpack.archive.manifest import Manifest, package_digest, read_manifest
from modpack.archive.reader import open_archive
from modpack.core.progress import phase
from modpack.core.trust import Signer, TrustPolicy
from modpack.errors import (
    ArchiveError,
    NotAPackageError,
    RepackedError,
    UnsupportedVersionError,
)
from modpack.report.auditing.facts import Finding, Severity
from modpack.report.codelisting import pickle_findings
from modpack.security.packagecode import list_package
from modpack.report.verifying.agreement import check_agreement
from modpack.report.verifying.codes import found, found_with_remedy
from modpack.report.verifying.contents import (
    check_contents,
    check_manifest_form,
    check_readable,
)
from modpack.report.verifying.facts import CheckFacts, SignatureFacts, VerifyFacts
from modpack.report.verifying.metadata import check_metadata
from modpack.report.verifying.ownrecords import OwnRecords, check_texts, read_own_records
from modpack.report.verifying.storages import (
    check_pickled_storages,
    check_trial_storages,
    check_unused_storages,
    script_storages,
)
from modpack.report.verifying.trusting import (
    check_policy,
    restrictions,
    unchecked_signatures,
    verify_signatures,
)
from modpack.security.code_listing import CodeListing

__all__ = ["verify_package"]

_SEVERITIES: Final = list(Severity)
_OF_TORCH_PACKAGE: Final = "torch.package"
_UNKNOWN: Final = ""
_TOLD_BY_OTHERS: Final = frozenset({"pickle-missing"})
"""Findings about pickles that digests, or the records of the format, tell better."""


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
        return _Verification(archive, path, policy, keys, workers or default_workers()).facts()


def _refused_at_once(
    failure: ArchiveError, source: str | os.PathLike[str] | BinaryIO
) -> VerifyFacts:
    """What is told of an archive that cannot be opened."""
    subject = failure.record or failure.source
    finding = found_with_remedy("structure", subject, failure.reason)
    check = CheckFacts("structure", 0, "records", False)
    size = _bytes_at(source) if isinstance(source, (str, os.PathLike)) else 0
    return VerifyFacts(failure.source, _UNKNOWN, "", size, (check,), (finding,))


def _bytes_at(path: str | os.PathLike[str]) -> int:
    """Bytes of a file, or of all files in a folder; 0 if that cannot be told."""
    place = Path(path)
    try:
        files = [place] if place.is_file() else [f for f in place.rglob("*") if f.is_file()]
        return sum(file.lstat().st_size for file in files)
    except OSError:  # it goes away just now
        return 0


class _Verification:
    """One open package being verified."""

    def __init__(
        self,
        archive: Archive,
        path: str | os.PathLike[str] | None,
        policy: TrustPolicy | None,
        keys: Sequence[Signer],
        workers: int,
    ) -> None:
        self._archive = archive
        self._path = path
        self._policy = policy
        self._keys = keys
        self._workers = workers
        self._checks: list[CheckFacts] = []
        self._findings: list[Finding] = []
        self._signatures: dict[SignatureFacts, None] = {}
        self._code: CodeListing | None = None

    def facts(self) -> VerifyFacts:
        archive = self._archive
        self._told("structure", len(archive.names()), "records", ())
        try:
            manifest = read_manifest(archive)
        except UnsupportedVersionError:
            raise
        except ArchiveError as failure:
            self._check_what_can_be_read(failure)
            return self._facts(_UNKNOWN, "")
        if manifest is None:
            is_readable = self._check_foreign()
            self._check_trust()
            digest = package_digest(archive) if is_readable else ""
            return self._facts(_OF_TORCH_PACKAGE, digest)
        digest = package_digest(archive)
        self._check_own(manifest)
        self._check_trust()
        return self._facts(f"modpack {manifest.format}", digest)

    def _facts(self, form: str, digest: str) -> VerifyFacts:
        archive = self._archive
        findings = sorted(self._findings, key=lambda each: _SEVERITIES.index(each.severity))
        return VerifyFacts(
            archive.source,
            form,
            digest,
            archive.stored_bytes(),
            tuple(self._checks),
            tuple(findings),
            tuple(self._signatures),
            self._code,
        )

    def _check_own(self, manifest: Manifest) -> None:
        archive = self._archive
        form = check_manifest_form(archive, manifest)
        self._told("manifest", len(manifest.records), "records", form)
        contents = list(check_contents(archive, manifest, self._workers))
        self._told("digests", len(manifest.records), "records", contents)
        damaged = frozenset(each.subject for each in contents)
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
        archive = self._archive
        readable = list(check_readable(archive, self._workers))
        self._told("crc32", len(archive.names()), "records", readable)
        damaged = frozenset(each.subject for each in readable)
        self._told("records of the format", 0, "records", check_texts(archive, damaged))
        self._check_objects(None, OwnRecords())
        text = "torch.package wrote it: it records no digests to compare with"
        self._findings.append(found("no-digests", archive.source, text))
        return not readable

    def _check_what_can_be_read(self, failure: ArchiveError) -> None:
        """Without a manifest to go by, only crc32 can tell what else is damaged."""
        code = "repacked" if isinstance(failure, RepackedError) else "manifest"
        finding = found_with_remedy(code, failure.record or layout.MANIFEST, failure.reason)
        self._told("manifest", 0, "records", [finding])
        names = self._archive.names()
        self._told("crc32", len(names), "records", check_readable(self._archive, self._workers))

    def _check_objects(self, manifest: Manifest | None, own: OwnRecords) -> None:
        """Whether pickles can be read, and whether their storages are there."""
        archive = self._archive
        trials = check_trial_storages(archive, own)
        try:
            listing = list_package(archive, manifest)
            findings = list(pickle_findings(archive, manifest, listing))
        except ArchiveError as failure:
            self._told("pickles", 0, "pickles", self._unread(failure))
            self._told("storages", self._storages(), "storages", trials)
            return
        self._code = listing
        findings = [each for each in findings if each.code not in _TOLD_BY_OTHERS]
        self._told("pickles", len(listing.pickles), "pickles", findings)
        pickled = {r: each.storages for r, each in listing.pickles.items() if each.storages}
        pickled |= script_storages(archive)
        storages = [
            *trials,
            *check_pickled_storages(archive, pickled),
            *check_unused_storages(archive, pickled, own),
        ]
        self._told("storages", self._storages(), "storages", storages)

    def _unread(self, failure: ArchiveError) -> Iterator[Finding]:
        """A record that keeps the pickles from being read; it may have been told already."""
        record = failure.record or failure.source
        if all(each.subject != record for each in self._findings):
            yield found("record-unreadable", record, failure.reason)
        text = f"pickles were not looked at to the end, because of {record!r}"
        yield found("scan-unfinished", record, text)

    def _storages(self) -> int:
        return sum(map(layout.is_storage, self._archive.names()))

    def _check_trust(self) -> None:
        policy = self._policy
        if self._keys:
            self._check_signature("signature", self._keys)
        if policy is not None and policy.signers:
            asking = "the policy's signers" if self._keys else ""
            self._check_signature("policy's signature", policy.signers, asking)
        if not (self._keys or (policy is not None and policy.signers)):
            self._findings += unchecked_signatures(self._archive, self._path)
        if policy is not None:
            findings = check_policy(self._archive, policy, self._code)
            self._told("policy", restrictions(policy), "restrictions", findings)

    def _check_signature(self, name: str, signers: Sequence[Signer], asking: str = "") -> None:
        signed = verify_signatures(self._archive, self._path, signers, asking)
        self._signatures |= dict.fromkeys(signed.signatures)
        self._told(name, len(signers), "trusted signers", signed.findings)

    def _told(
        self,
        name: str,
        count: int,
        unit: str,
        findings: Iterable[Finding],
    ) -> None:
        """Keep what came of one kind of check.

        Args:
            name: what was checked.
            count: how many things were.
            unit: what they are.
            findings: what is wrong with them.
        """
        listed = list(findings)
        has_passed = all(each.severity is not Severity.ERROR for each in listed)
        self._checks.append(CheckFacts(name, count, unit, has_passed))
        self._findings += listed
