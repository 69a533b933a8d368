"""Whether the metadata of distributions is what a package says about it, and about its files."""

from __future__ import annotations

import base64
import binascii
import csv
import io
from collections.abc import Iterator
from typing import Final

from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest
from modpack.core.coremetadata import headers
from modpack.core.names import normalised_distribution
from modpack.core.plan import Plan, PlannedDistribution
from modpack.report.auditing.facts import Finding
from modpack.report.verifying.codes import found

__all__ = ["check_metadata"]

_SUFFIX: Final = ".dist-info"
_MOST_BYTES: Final = 16 << 20


def check_metadata(
    archive: Archive, manifest: Manifest, plan: Plan, damaged: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Hold the metadata of distributions against the plan and against the records it lists.

    Args:
        archive: the package.
        manifest: its manifest.
        plan: what it says about how it was made.
        damaged: records whose content is not to be relied upon.
    """
    for each in plan.distributions:
        if f"{each.folder}/METADATA" not in damaged:
            yield from _check_headers(archive, each)
        if f"{each.folder}/RECORD" not in damaged:
            yield from _check_listing(archive, manifest, f"{each.folder}/RECORD")
    known = {each.folder for each in plan.distributions}
    for folder in dict.fromkeys(name.partition("/")[0] for name in archive.names()):
        if folder.endswith(_SUFFIX) and folder not in known:
            text = "packaged code takes it for an installed distribution, and nothing decided that"
            yield found("code-undecided", folder, text)


def _check_headers(archive: Archive, distribution: PlannedDistribution) -> Iterator[Finding]:
    """Name and version stand in the metadata as the plan has them."""
    record = f"{distribution.folder}/METADATA"
    if not archive.has(record) or archive.size(record) > _MOST_BYTES:
        return
    said = headers(_text(archive, record))
    name, version = (said.get(each, [""])[0].strip() for each in ("name", "version"))
    is_same = normalised_distribution(name) == normalised_distribution(distribution.name)
    if not is_same or version != distribution.version:
        text = (
            f"it is of {name!r:.80} {version!r:.40}, and should be of {distribution.name!r:.80} "
            f"{distribution.version!r:.40}"
        )
        yield found("inconsistent", record, text)


def _check_listing(archive: Archive, manifest: Manifest, record: str) -> Iterator[Finding]:
    """What a RECORD lists (PEP 376) is there, with that digest."""
    if not archive.has(record):
        return
    if archive.size(record) > _MOST_BYTES:
        yield found("record-unreadable", record, "it is too large for a list of files")
        return
    try:
        for row in csv.reader(io.StringIO(_text(archive, record))):
            reason = _row_problem(manifest, record, row)
            if reason is not None:
                yield found("inconsistent", record, reason)
    except csv.Error as failure:
        yield found("record-unreadable", record, f"it is no list of files: {failure}")


def _row_problem(manifest: Manifest, record: str, row: list[str]) -> str | None:
    if not row or row[0] == record:
        return None
    listed = manifest.records.get(row[0])
    if listed is None:
        return f"it lists {row[0]!r:.120}, which is not there"
    algorithm, _, value = row[1].partition("=") if len(row) > 1 else ("", "", "")
    if algorithm == "sha256" and _hex(value) != listed.sha256:
        return f"it states another sha256 of {row[0]!r:.120} than the manifest"
    return None


def _hex(digest: str) -> str:
    try:
        return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    except (ValueError, binascii.Error):
        return ""


def _text(archive: Archive, record: str) -> str:
    return archive.read(record).decode("utf-8", "replace")
