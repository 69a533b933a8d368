"""Weights next to a package: safetensors files that packages with equal tensors share.

A package is complete, and tested, before its weights are moved out. Storages whose bytes are in a
shard of the target's folder are not written again; the others are written to new shards.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive, open_file_next_to
from modpack.archive.manifest import Manifest, canonical_json, read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.records import read_tensors
from modpack.archive.sharded import (
    DIGEST_KEY,
    MAX_HEADER_BYTES,
    SHARD_NAME,
    ShardTensor,
    is_intact,
    read_shard_header,
)
from modpack.archive.zip_format import ALIGNMENT
from modpack.core.process import ProgressUnit, phase
from modpack.core.tensors import ITEM_BYTES, TensorFacts
from modpack.errors import ArchiveError, ModpackError
from modpack.writing.target import open_sink, write_atomically
from modpack.writing.writer import ArchiveWriter

_DTYPES: Final[Mapping[str, str]] = {
    **{"bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "complex64": "C64"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{f"float{bits}": f"F{bits}" for bits in (32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
"""torch's dtypes as safetensors files name them. Storages of others stay in the package."""
_INDEX_SUFFIX: Final = ".safetensors.index.json"


class _Entry(NamedTuple):
    """A storage, as the safetensors format describes it.

    Attributes:
        record: Its record in the package.
        name: The name of the tensor.
        dtype: The tensor's dtype in the format's spelling.
        shape: The tensor's shape.
        size: Size in bytes.
        sha256: SHA-256 of the bytes, in hex.
    """

    record: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    sha256: str


class _Place(NamedTuple):
    """The location of equal bytes in a shard."""

    shard: str
    tensor: str
    offset: int


def commit_with_shards(complete: ArchiveWriter, commit: Callable[[ArchiveWriter], None]) -> None:
    """Write a package, its shards, and their index.

    Args:
        complete: Has all records of the package. Its target is a path.
        commit: Completes a writer that has the records without the weights in shards.

    Raises:
        TargetError: If a file cannot be written. The package at the path is unchanged.
        ModpackError: If this machine stores numbers in another byte order than safetensors files.
    """
    if sys.byteorder != "little":
        reason = "safetensors files are little-endian, and this machine is not"
        raise ModpackError(f"{complete.path}: {reason}", hint="Save with weights='inside'.")
    path = os.path.realpath(complete.path)
    with complete.open_preview() as preview, open_archive(preview) as archive:
        manifest = read_manifest(archive)
        assert manifest is not None
        entries = list(_entries(read_tensors(archive, manifest) or {}, manifest))
        places, new = _find_existing(entries, path)
        # The shard first: a package never refers to a file that does not exist. If a later step
        # fails, the shard is complete, and the next save uses it.
        if new:
            places |= _write_shard(archive, new, os.path.dirname(path))
        with ArchiveWriter(complete.path) as writer:
            _write_rest(archive, manifest, writer, places)
            commit(writer)
        if places:
            _write_index(path, entries, places)


def _entries(objects: Mapping[str, Iterable[TensorFacts]], manifest: Manifest) -> Iterator[_Entry]:
    """Yield the storages that safetensors files can contain, each by its best tensor.

    A tensor that is its whole storage keeps its name and shape, so that other tools find it. The
    storage of other tensors, such as views and transposed ones, is a row of numbers with the name
    of a tensor and ``.storage``. Storages without a plain tensor stay in the package, such as
    those of quantized tensors, whose values other tools would misread.
    """
    names = {"__metadata__"}  # a key of the format
    found: dict[str, _Entry] = {}
    special: set[str] = set()
    for resource, tensor in ((r, each) for r, listed in objects.items() for each in listed):
        if tensor.storage is None:
            continue
        record = layout.storage_name(tensor.storage)
        declared, dtype = manifest.records[record], _DTYPES.get(tensor.dtype)
        if dtype is None or tensor.form not in ("", "subclass"):
            special.add(record)
            continue
        item, size = ITEM_BYTES[tensor.dtype], declared.size
        is_whole = tensor.offset == 0 and tensor.size_bytes == size
        if is_whole and tensor.is_contiguous:
            name, shape = tensor.name, tensor.shape or ()
        else:
            name, shape = f"{tensor.name}.storage", (size // item,)
        is_better = record not in found or (
            found[record].name.endswith(".storage") and name == tensor.name
        )
        if name in names:
            name = f"{resource}:{name}"
        if size and size % item == 0 and name not in names and is_better:
            names.add(name)
            found[record] = _Entry(record, name, dtype, shape, size, declared.sha256)
    yield from (entry for record, entry in found.items() if record not in special)


def _find_existing(entries: Iterable[_Entry], path: str) -> tuple[dict[str, _Place], list[_Entry]]:
    """Return the places of equal bytes in shards, by record, and the storages without one."""
    by_digest: dict[str, list[_Place]] = {}
    for name in sorted(filter(SHARD_NAME.fullmatch, os.listdir(os.path.dirname(path)))):
        try:
            with closing(open_file_next_to(path, path, name)) as content:
                tensors = read_shard_header(name, content)
        except ArchiveError:
            continue  # a damaged shard is a problem of the packages that refer to it
        for tensor, stored in tensors.items():
            place = _Place(name, tensor, stored.offset)
            by_digest.setdefault(stored.sha256, []).append(place)
    places, new = {}, []
    for entry in entries:
        candidates = by_digest.get(entry.sha256, [])
        for place in sorted(candidates, key=lambda each: each.tensor != entry.name):
            # The header states the digest, but does not show whether the bytes are damaged.
            with closing(open_file_next_to(path, path, place.shard)) as content:
                is_usable = is_intact(content, ShardTensor(place.offset, entry.size, entry.sha256))
            if is_usable:
                # Two storages never share a place: writing to one would change the other.
                candidates.remove(place)
                places[entry.record] = place
                break
        else:
            new.append(entry)
    return places, new


def _write_shard(archive: Archive, entries: list[_Entry], folder: str) -> dict[str, _Place]:
    """Write a shard, and return the places of its storages by record."""
    # The format allows no gaps. Sizes that are multiples of 64 come first, then those of 32, and so
    # on, which keeps tensors aligned for mapping. The rest is small, and loaded as copies.
    entries.sort(key=lambda e: -min(e.size & -e.size, ALIGNMENT))
    metadata = {"format": "pt", **{DIGEST_KEY + e.name: e.sha256 for e in entries}}
    document: dict[str, object] = {"__metadata__": metadata}
    offsets = list(accumulate((e.size for e in entries), initial=0))
    for e, extent in zip(entries, pairwise(offsets), strict=True):
        document[e.name] = {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": extent}
    text = canonical_json(document)
    text += b" " * (-(len(text) + 8) % ALIGNMENT)  # the format allows spaces at the end
    if len(text) > MAX_HEADER_BYTES:
        raise ModpackError("the names of the tensors are too long for a safetensors file")
    header = len(text).to_bytes(8, "little") + text
    name = f"{hashlib.sha256(header).hexdigest()}.safetensors"
    with open_sink(os.path.join(folder, name)) as sink:
        sink.write(header)
        with phase("writing weights", ProgressUnit.BYTES, offsets[-1]) as writing:
            for chunk in chain.from_iterable(archive.chunks(e.record) for e in entries):
                sink.write(chunk)
                writing.advance(len(chunk))
        sink.publish()
    starts = zip(entries, offsets, strict=False)  # the last offset is the end
    return {e.record: _Place(name, e.name, len(header) + start) for e, start in starts}


def _write_index(path: str, entries: Iterable[_Entry], places: Mapping[str, _Place]) -> None:
    """Write the index of a package's shards, in the layout that other tools read.

    It has the names that tensors have in the shards, which another package may have chosen.
    """
    files = {places[e.record].tensor: places[e.record].shard for e in entries}
    document = {"metadata": {"total_size": sum(e.size for e in entries)}, "weight_map": files}
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    write_atomically(os.path.splitext(path)[0] + _INDEX_SUFFIX, text.encode() + b"\n")


def _write_rest(
    archive: Archive, manifest: Manifest, writer: ArchiveWriter, places: Mapping[str, _Place]
) -> None:
    """Write all records but those that are in shards, and the record of the shards."""
    for name, digest in manifest.records.items():
        if name in places:
            writer.declare(name, digest)
        elif layout.is_storage(name):
            writer.write_storage(name, memoryview(archive.read(name)))
        else:
            writer.write(name, archive.read(name), compress=bool(digest.deflated))
    if places:
        storages = {
            record: (place.shard, place.offset, manifest.records[record].size)
            for record, place in places.items()
        }
        document = {"version": layout.SHARDS_VERSION, "storages": storages}
        writer.write(layout.SHARDS, canonical_json(document), compress=True)
