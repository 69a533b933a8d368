"""Whether the contents of records are what they should be.

Whether the metadata of distributions is what a package says about it, and about its files.

Whether the storages of a package are those that its objects refer to.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
from collections.abc import Iterator, Mapping
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest, canonical_json, find_damage, find_unreadable
from modpack.archive.records import read_json
from modpack.core.environment import headers
from modpack.core.names import normalised_distribution
from modpack.core.plan import Plan, PlannedDistribution
from modpack.core.text import counted
from modpack.report.audit_facts import Finding
from modpack.report.finding_codes import finding
from modpack.report.verify_records import OwnRecords
from modpack.security.pickle_names import PickledStorage, read_pickle


def check_contents(archive: Archive, manifest: Manifest, workers: int) -> Iterator[Finding]:
    """Compare every record with the manifest, storages included.

    Args:
        archive: the package.
        manifest: its manifest.
        workers: threads that read at the same time.
    """
    damage = find_damage(archive, manifest, archive.names(), workers)
    for record, reason in damage.items():
        yield finding("record-damaged", record, reason)


def check_readable(archive: Archive, workers: int) -> Iterator[Finding]:
    """Read every record, which checks it against its crc32 where there is one.

    Args:
        archive: a package without a manifest to go by.
        workers: threads that read at the same time.
    """
    for record, reason in find_unreadable(archive, archive.names(), workers).items():
        yield finding("record-damaged", record, reason)


def check_manifest_form(archive: Archive, manifest: Manifest) -> Iterator[Finding]:
    """Whether the manifest is the one text that says what it says.

    Two texts for the same list would be two digests of one package.
    """
    if not _is_canonical(archive, manifest):
        text = "it is no canonical JSON: keys are not sorted, or there are blanks"
        yield finding("manifest", layout.MANIFEST, text)


def _is_canonical(archive: Archive, manifest: Manifest) -> bool:
    content = archive.read(layout.MANIFEST)
    if content == manifest.encoded():
        return True
    try:  # it may say more than this modpack knows of
        return canonical_json(read_json(archive, layout.MANIFEST)) == content
    except ValueError:  # infinities, lone surrogates, or far too much
        return False


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
            yield finding("code-undecided", folder, text)


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
        yield finding("inconsistent", record, text)


def _check_listing(archive: Archive, manifest: Manifest, record: str) -> Iterator[Finding]:
    """What a RECORD lists (PEP 376) is there, with that digest."""
    if not archive.has(record):
        return
    if archive.size(record) > _MOST_BYTES:
        yield finding("record-unreadable", record, "it is too large for a list of files")
        return
    try:
        for row in csv.reader(io.StringIO(_text(archive, record))):
            reason = _row_problem(manifest, record, row)
            if reason is not None:
                yield finding("inconsistent", record, reason)
    except csv.Error as failure:
        yield finding("record-unreadable", record, f"it is no list of files: {failure}")


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


_SHOWN: Final = 4
_ANCESTORS_SCRIPTS: Final = ".data/ts_code/"
"""ScriptModules in packages of torch.package: their keys are the names of records."""
_ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Untyped", "Byte", "Char", "Bool", "QUInt8", "QInt8"), 1),
    **dict.fromkeys(("QUInt4x2", "QUInt2x4"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "Float", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of one element, by the name of torch's storage class without ``Storage``."""


def check_pickled_storages(
    archive: Archive, storages: Mapping[str, tuple[PickledStorage, ...]]
) -> Iterator[Finding]:
    """Whether the storages that pickles refer to are there, and large enough.

    Args:
        archive: the package.
        storages: what each pickle refers to, by its record.
    """
    for pickle, of_one in storages.items():
        for each in of_one:
            reason = _problem(archive, each, _record(pickle, each))
            if reason is not None:
                place = f"{pickle}, byte {each.position}"
                yield finding("storage-missing", pickle, reason, place)


def script_storages(archive: Archive) -> Mapping[str, tuple[PickledStorage, ...]]:
    """The storages of ScriptModules in a package of torch.package, by the record of the pickle.

    Args:
        archive: the package.
    """
    records = (
        name
        for name in archive.names()
        if name.startswith(_ANCESTORS_SCRIPTS) and name.endswith(".pkl")
    )
    return {record: read_pickle(archive.read(record)).storages for record in records}


def check_trial_storages(archive: Archive, own: OwnRecords) -> Iterator[Finding]:
    """Whether the tensors of recorded outputs are there in full.

    Args:
        archive: the package.
        own: its records, decoded.
    """
    for record, output in own.outputs.items():
        for tensor in output.tensors:
            if not layout.is_storage(tensor.record) or not archive.has(tensor.record):
                yield finding("storage-missing", record, f"{tensor.record!r:.120} is not there")
            elif tensor.size_bytes not in (None, archive.size(tensor.record)):
                text = (
                    f"{tensor.record!r} should have {tensor.size_bytes} bytes, and has "
                    f"{archive.size(tensor.record)}"
                )
                yield finding("storage-missing", record, text)


def check_unused_storages(
    archive: Archive, storages: Mapping[str, tuple[PickledStorage, ...]], own: OwnRecords
) -> Iterator[Finding]:
    """Which storages nothing refers to.

    Args:
        archive: the package.
        storages: what each pickle refers to, by its record.
        own: its records, decoded.
    """
    used = {_record(pickle, each) for pickle, of_one in storages.items() for each in of_one}
    used |= {tensor.record for output in own.outputs.values() for tensor in output.tensors}
    unused = [name for name in archive.names() if layout.is_storage(name) and name not in used]
    if unused:
        more = f" and {len(unused) - _SHOWN} more" if len(unused) > _SHOWN else ""
        size = sum(map(archive.size, unused))
        text = (
            f"no saved object refers to {', '.join(unused[:_SHOWN])}{more} "
            f"({counted(size, 'byte')})"
        )
        yield finding("storage-unused", unused[0], text)


def _record(pickle: str, storage: PickledStorage) -> str:
    """The record of a storage that a pickle refers to."""
    is_script = pickle.startswith(_ANCESTORS_SCRIPTS)
    return layout.storage_name(storage.key.removesuffix(".storage") if is_script else storage.key)


def _problem(archive: Archive, storage: PickledStorage, record: str) -> str | None:
    """Why a pickle cannot have a storage; None if it can."""
    if not layout.is_storage(record) or not archive.has(record):
        return f"it refers to the storage {record!r:.120}, which is not there"
    item = _ITEM_BYTES.get(storage.kind.rpartition(".")[2].removesuffix("Storage"))
    if item is None or storage.size is None:
        return None
    if storage.size < 0 or storage.size * item > archive.size(record):
        return (
            f"it needs {storage.size * item} bytes of the storage {record!r}, which has "
            f"{archive.size(record)}"
        )
    return None
