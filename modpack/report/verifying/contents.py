"""Whether the contents of records are what they should be."""

from __future__ import annotations

from collections.abc import Iterator

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.comparing import find_damage, find_unreadable
from modpack.archive.documents import read_json
from modpack.archive.manifest import Manifest, canonical_json
from modpack.report.auditing.facts import Finding
from modpack.report.verifying.codes import found

__all__ = ["check_contents", "check_manifest_form", "check_readable"]


def check_contents(archive: Archive, manifest: Manifest, workers: int) -> Iterator[Finding]:
    """Compare every record with the manifest, storages included.

    Args:
        archive: the package.
        manifest: its manifest.
        workers: threads that read at the same time.
    """
    damage = find_damage(archive, manifest, archive.names(), workers)
    for record, reason in damage.items():
        yield found("record-damaged", record, reason)


def check_readable(archive: Archive, workers: int) -> Iterator[Finding]:
    """Read every record, which checks it against its crc32 where there is one.

    Args:
        archive: a package without a manifest to go by.
        workers: threads that read at the same time.
    """
    for record, reason in find_unreadable(archive, archive.names(), workers).items():
        yield found("record-damaged", record, reason)


def check_manifest_form(archive: Archive, manifest: Manifest) -> Iterator[Finding]:
    """Whether the manifest is the one text that says what it says.

    Two texts for the same list would be two digests of one package.
    """
    if not _is_canonical(archive, manifest):
        text = "it is no canonical JSON: keys are not sorted, or there are blanks"
        yield found("manifest", layout.MANIFEST, text)


def _is_canonical(archive: Archive, manifest: Manifest) -> bool:
    content = archive.read(layout.MANIFEST)
    if content == manifest.encoded():
        return True
    try:  # it may say more than this modpack knows of
        return canonical_json(read_json(archive, layout.MANIFEST)) == content
    except ValueError:  # infinities, lone surrogates, or far too much
        return False
