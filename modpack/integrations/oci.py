"""Packages in OCI registries: push and pull.

The layers of a package are ranges of its file: weights, code, and records. A registry stores a
layer once, so that a new version uploads what has changed. ``oci://`` URLs, which all other
functions take, are read by :mod:`modpack.integrations.oci_registry`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import CHUNK_BYTES, Archive, ByteSource, FileBytes
from modpack.archive.manifest import canonical_json, package_digest, read_manifest, verify_records
from modpack.archive.reader import ZipArchive, open_archive
from modpack.archive.sharded import SHARD_NAME, ShardedArchive, require_intact_shard
from modpack.core.process import Phase, ProgressUnit, phase, usable_cores
from modpack.diagnostics import Severity
from modpack.errors import ArchiveError, ModpackError
from modpack.integrations.oci_registry import (
    FILE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    PACKAGE_TYPE,
    SIGNATURE_TYPE,
    TITLE,
    Descriptor,
    Repository,
    digest_of,
    fallback_tag,
    parse_address,
)
from modpack.remote import PIN, require_pinned, split_pin
from modpack.report.audit import audit_package
from modpack.report.audit_facts import AuditFacts
from modpack.security.signing import find_signatures, sidecar_path
from modpack.writing.target import Sink, open_sink, write_atomically

_WEIGHTS: Final = "application/vnd.modpack.weights"
_CODE: Final = "application/vnd.modpack.code"
_RECORDS: Final = "application/vnd.modpack.records"
_ENVELOPE: Final = "application/vnd.dsse.envelope.v1+json"
_EMPTY: Final = {
    "mediaType": "application/vnd.oci.empty.v1+json",
    "digest": digest_of(b"{}"),
    "size": 2,
}
_KEY: Final = "io.github.modpack"
_LAYER_BYTES: Final = 16 << 20
_SMALL_BYTES: Final = 1 << 16
"""Smaller parts of another type are in one layer, because each layer is a request for readers."""
_LAYERS: Final = 1000
"""The number of layers from which on they are larger: a manifest lists all of them."""


class Pushed(NamedTuple):
    """A package that was pushed.

    Attributes:
        path: The package, as the user named it.
        url: URL of the package with its digest.
        manifest: Digest of the artifact's manifest.
        layers: Number of layers.
        uploaded: Number of layers that the registry did not have.
        size_bytes: Size of all layers.
        uploaded_bytes: Size of the layers that the registry did not have.
        signed: Whether a signature was pushed.
    """

    path: str
    url: str
    manifest: str
    layers: int
    uploaded: int
    size_bytes: int
    uploaded_bytes: int
    signed: bool


class Pulled(NamedTuple):
    """A package that was pulled.

    Attributes:
        path: The file that was written.
        url: URL of the package with its digest.
        manifest: Digest of the artifact's manifest.
        size_bytes: Size of the file and its shards.
        shards: Names of the shards, which are next to the file.
        signature_path: File of the detached signature. Null if there is none.
    """

    path: str
    url: str
    manifest: str
    size_bytes: int
    shards: tuple[str, ...]
    signature_path: str | None


class _Layer(NamedTuple):
    """A range of a file.

    Attributes:
        content: The file.
        start: Offset of the first byte.
        size: Size in bytes.
        descriptor: The descriptor in the manifest.
    """

    content: ByteSource
    start: int
    size: int
    descriptor: Mapping[str, Any]


def push(package: str | os.PathLike[str], address: str) -> Pushed:
    """Push a package, its shards, and its signature to a registry, after checking all digests.

    Args:
        package: The package's file. A detached signature is read from the file next to it.
        address: The address, ``REGISTRY/REPOSITORY:TAG``.

    Raises:
        ArchiveError: If the file is not a package or is damaged, or the registry cannot be
            reached or refuses.
        SignatureError: If the signature cannot be read.
        ModpackError: If the address is malformed.
    """
    target, path = parse_address(address), os.fspath(package)
    if ":" in target.reference or target.file:
        reason = "packages are pushed to a tag"
        raise ModpackError(f"{target.url}: {reason}", hint="Pass REGISTRY/REPOSITORY:TAG.")
    name = Path(path).absolute().name
    with open_archive(path) as archive:
        file, shards = _verified_files(archive)
        digest, signatures = package_digest(archive), find_signatures(archive, path)
        annotations = {TITLE: name, f"{_KEY}.digest": digest, **_summary(audit_package(path))}
        repository = Repository(target)
        layers = list(_split(name, file, _starts_of_records(archive)))
        for shard, content in shards.items():
            layers += _split(shard, content, [(0, _WEIGHTS)])
        uploaded = _upload(repository, layers)
        archive.check_unchanged()
    manifest = _manifest(PACKAGE_TYPE, [each.descriptor for each in layers], annotations)
    repository.put_blob(digest_of(b"{}"), b"{}")
    # The manifest comes last, so that the tag never names a package that is incomplete.
    repository.put_manifest(target.reference, manifest)
    if signatures:
        # Embedded ones come first. The detached one has been added later.
        _push_signature(repository, manifest, name, signatures[-1].content)
    return Pushed(
        path,
        f"{target.url}{PIN}{digest}",
        digest_of(manifest),
        len(layers),
        len(uploaded),
        sum(each.size for each in layers),
        sum(each.size for each in uploaded),
        bool(signatures),
    )


def pull(address: str, output: str | os.PathLike[str]) -> Pulled:
    """Pull a package to a file, with its shards and its detached signature next to it.

    The file is replaced when all digests were checked.

    Args:
        address: The address, ``REGISTRY/REPOSITORY:TAG`` or ``REGISTRY/REPOSITORY@DIGEST``, which
            may end with ``#sha256=`` and the package's digest.
        output: The file.

    Raises:
        PackageNotFoundError: If the registry has no such repository or tag.
        ArchiveError: If it is not a package, is damaged or not the pinned one, or the registry
            cannot be reached or refuses.
        TargetError: If a file cannot be written.
        ModpackError: If the address is malformed.
    """
    text, pinned = split_pin(address)
    source, path = parse_address(text), os.fspath(output)
    repository = Repository(source)
    artifact = repository.artifact
    found = repository.find_signature(artifact.digest)
    shards = tuple(sorted(filter(SHARD_NAME.fullmatch, artifact.files)))
    size = sum(layer.size for name in ("", *shards) for layer in artifact.files[name])
    with open_sink(path) as sink:
        with phase("downloading", ProgressUnit.BYTES, size, is_major=True) as pulling:
            _receive(repository, artifact.files[""], sink, pulling)
            with open_archive(sink.path(), label=source.url) as archive:
                digest = require_pinned(archive, pinned)
                embedded = archive.read(layout.SIGNATURE) if archive.has(layout.SIGNATURE) else None
            # Before the package, which never refers to a file that does not exist.
            for name in shards:
                file = Path(path).with_name(name)
                _write_shard(repository, artifact.files[name], file, pulling)
        signature_path = None
        if found is not None:
            envelope = repository.read_range(found, 0, found.size)
            if envelope != embedded:
                signature_path = str(sidecar_path(path))
                write_atomically(signature_path, envelope)
        sink.publish()
    url = f"{source.url}{PIN}{digest}"
    return Pulled(path, url, artifact.digest, size, shards, signature_path)


def _verified_files(archive: Archive) -> tuple[ByteSource, dict[str, ByteSource]]:
    """Return the package's file, and its shards by name, after checking all digests."""
    manifest = read_manifest(archive)
    if manifest is None:
        reason = "torch.package wrote the package, without digests, so it cannot be pushed"
        raise ArchiveError(archive.path, reason, hint="Export the model with modpack.")
    package = archive.inner if isinstance(archive, ShardedArchive) else archive
    if not isinstance(package, ZipArchive):
        reason = "this is the folder of an unzipped package, and registries store files"
        raise ArchiveError(archive.path, reason, hint="Pass the package's file.")
    archive.require_shards()
    verify_records(archive, manifest, archive.names(), usable_cores())
    shards = {}
    if isinstance(archive, ShardedArchive):
        shards = {shard.name: archive.open_shard(shard.name) for shard in archive.shards()}
        for name, content in shards.items():
            require_intact_shard(name, content)
    return package.content, shards


def _starts_of_records(archive: Archive) -> list[tuple[int, str]]:
    """Return the offsets of a package's records, and the types of their layers."""
    starts = []
    for record, offset in archive.offsets().items():
        kind = _RECORDS
        if layout.is_storage(record):
            kind = _WEIGHTS
        elif record.startswith(layout.HOOKS) or not layout.is_internal(record):
            kind = _CODE
        starts.append((offset, kind))
    return sorted(starts)


def _split(name: str, content: ByteSource, starts: Sequence[tuple[int, str]]) -> Iterator[_Layer]:
    """Yield the layers of a file: runs of records of one type, of similar sizes."""
    least = max(_LAYER_BYTES, content.size // _LAYERS)
    ranges: list[tuple[int, int, str]] = []
    for (start, kind), (end, _) in pairwise([*starts, (content.size, "")]):
        # A layer of a large record is a part of it, because oras reads layers into memory.
        for first in range(start, end, 4 * least):
            last = min(first + 4 * least, end)
            before = ranges.pop() if ranges else (first, first, kind)
            is_same = before[2] == kind or len(ranges) > 2 * _LAYERS
            if before[1] - before[0] < (least if is_same else _SMALL_BYTES):
                ranges.append((before[0], last, kind if is_same else _RECORDS))
            else:
                ranges += [before, (first, last, kind)]
    for number, (start, end, kind) in enumerate(ranges):
        digest = hashlib.sha256()
        for first in range(start, end, CHUNK_BYTES):
            digest.update(content.read_at(first, min(CHUNK_BYTES, end - first)))
        descriptor = {
            "mediaType": kind,
            "digest": f"sha256:{digest.hexdigest()}",
            "size": end - start,
            # Tools that write each layer to a file of its title leave parts for `cat`.
            "annotations": {TITLE: f"{name}.{number:04}" if len(ranges) > 1 else name, FILE: name},
        }
        yield _Layer(content, start, end - start, descriptor)


def _upload(repository: Repository, layers: Sequence[_Layer]) -> list[_Layer]:
    """Upload the layers that the registry does not have, and return them."""
    uploaded = []
    size = sum(each.size for each in layers)
    with phase("uploading", ProgressUnit.BYTES, size, is_major=True) as uploading:
        for each in layers:
            if not repository.blob_exists(each.descriptor, repository.container):
                content = each.content.read_at(each.start, each.size)
                repository.put_blob(each.descriptor["digest"], content)
                uploaded.append(each)
            uploading.advance(each.size)
    return uploaded


def _push_signature(repository: Repository, subject: bytes, name: str, envelope: bytes) -> None:
    """Push a signature as a referrer of a manifest."""
    title = {TITLE: name + layout.DETACHED_SIGNATURE}
    blob = {**_described(_ENVELOPE, envelope), "annotations": title}
    repository.put_blob(blob["digest"], envelope)
    package = _described(MANIFEST_TYPE, subject)
    referrer = _manifest(SIGNATURE_TYPE, [blob], {}, subject=package)
    answer = repository.put_manifest(digest_of(referrer), referrer)
    if "OCI-Subject" in answer.headers:
        return
    # The registry keeps no list of referrers. The index with this tag replaces it (OCI
    # distribution specification, section "Unavailable Referrers API").
    tag = fallback_tag(package["digest"])
    found = repository.read_manifest(tag)
    index: dict[str, Any] = json.loads(found[1]) if found is not None else {"schemaVersion": 2}
    others = [
        each for each in index.get("manifests") or () if each.get("artifactType") != SIGNATURE_TYPE
    ]
    entry = {**_described(MANIFEST_TYPE, referrer), "artifactType": SIGNATURE_TYPE}
    index |= {"mediaType": INDEX_TYPE, "manifests": [*others, entry]}
    repository.put_manifest(tag, canonical_json(index), INDEX_TYPE)


def _manifest(
    kind: str, layers: Sequence[Mapping[str, Any]], annotations: Mapping[str, str], **others: Any
) -> bytes:
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": kind,
            "config": _EMPTY,
            "layers": layers,
            "annotations": annotations,
            **others,
        }
    )


def _described(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest_of(content), "size": len(content)}


def _summary(audit: AuditFacts) -> dict[str, str]:
    """Return the result of an audit as annotations."""
    severities = Counter(each.severity for each in audit.findings)
    return {
        f"{_KEY}.audit.passed": str(audit.passed).lower(),
        f"{_KEY}.audit.errors": str(severities[Severity.ERROR]),
        f"{_KEY}.audit.warnings": str(severities[Severity.WARNING]),
        f"{_KEY}.audit.findings": ",".join(sorted({each.code for each in audit.findings})),
    }


def _receive(
    repository: Repository, layers: Sequence[Descriptor], sink: Sink, pulling: Phase
) -> None:
    for layer in layers:
        for chunk in repository.read_blob(layer):
            sink.write(chunk)
            pulling.advance(len(chunk))


def _write_shard(
    repository: Repository, layers: Sequence[Descriptor], file: Path, pulling: Phase
) -> None:
    """Write a shard, unless it is there."""
    with suppress(ArchiveError), closing(FileBytes(str(file), str(file))) as present:
        require_intact_shard(file.name, present)
        return pulling.advance(sum(each.size for each in layers))
    with open_sink(file) as sink:
        _receive(repository, layers, sink, pulling)
        with closing(FileBytes(sink.path(), repository.address.url)) as received:
            require_intact_shard(file.name, received)
        sink.publish()
