"""Packages at URLs: ranges are read to inspect a package, and the whole file to load it.

fsspec and the libraries of its file systems do all requests, retries, and authentication. They are
imported when the first URL is opened, and ``pip install 'modpack[remote]'`` installs them.

A URL can end with ``#sha256=DIGEST``, the digest of a package. This is the digest of its manifest,
which lists the digests of all records: ranges are enough to know it, and it pins every byte that is
read. A downloaded package is in the cache under a digest of the same content, so that any number of
URLs and processes share it. A detached signature at the package's URL is kept next to it.

URLs with ``oci://`` name packages in registries. :mod:`modpack.integrations.oci_registry` is the
file system that fsspec reads there.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modpack.archive import layout
from modpack.archive.base import Archive, ByteSource, FileBytes
from modpack.archive.manifest import find_unreadable, package_digest, read_manifest, verify_records
from modpack.archive.reader import ZipArchive, open_archive
from modpack.archive.sharded import ShardedArchive, require_intact_shard
from modpack.core.names import file_name
from modpack.core.process import ProgressUnit, phase, usable_cores
from modpack.errors import ArchiveError, ModpackError, PackageNotFoundError
from modpack.loading.cache import keep_file, link_kept

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_log = logging.getLogger(__name__)

PIN: Final = "#sha256="
_BLOCK_BYTES: Final = 1 << 18
"""Bytes of one request while records are read. The directory and all metadata of a usual package
are in two or three such blocks at its end."""
_PART_BYTES: Final = 8 << 20
_PARTS: Final = 4
"""Ranges to download at the same time, where the file system can do that."""
_VERSION_KEYS: Final = re.compile(
    "size|etag|content.?md5|digest|version.?id|generation|blob.?id|last.?modified|modified|updated|"
    "mtime|created",
    re.IGNORECASE,
)
"""Keys of what changes when an object is replaced, in the spellings of many file systems."""
_DOWNLOAD: Final = "Download the file and pass its path."
_INSTALL: Final = "Run: pip install 'modpack[remote]', which reads s3, gs, https, and hf URLs."
_REGISTRY: Final = re.compile("oci://(?![^/:@]*@)", re.IGNORECASE)
"""The start of the URL of a package in an OCI registry. fsspec has the same scheme for Oracle's
object storage, ``oci://BUCKET@NAMESPACE/``."""
_REGISTRY_FILES: Final = "modpack.integrations.oci_registry.RegistryFiles"


class RemoteBytes(ByteSource):
    """An object that fsspec reads.

    Args:
        url: Its URL.

    Raises:
        PackageNotFoundError: If the object does not exist.
        ArchiveError: If the object cannot be read, or cannot be read in ranges.
        ModpackError: If a library is missing, or the scheme is unknown.
    """

    def __init__(self, url: str) -> None:
        self.label = url
        self._files, self._path = _file_system(url)
        self._reading = threading.Lock()
        with self._errors_explained(is_open=False):
            self.version = self._find_version()
            self.size = int(str(self.version.get("size") or 0))
            self._file = self._files.open(
                self._path, "rb", block_size=_BLOCK_BYTES, cache_type="blockcache"
            )
        if not self.size:
            reason = "the server does not state the size of the object"
            raise ArchiveError(url, reason, hint=_DOWNLOAD)

    def read_at(self, offset: int, length: int) -> bytes:
        with self._errors_explained():
            if length < _BLOCK_BYTES:
                # Seeking and reading are two steps, and threads that verify records share the file.
                with self._reading:
                    self._file.seek(offset)
                    content: bytes = self._file.read(length)
            else:
                # One request instead of one per block, and at the same time as other threads.
                content = self._files.cat_file(self._path, start=offset, end=offset + length)
        self._require_length(content, length)
        return content

    def download(self, file: Path) -> None:
        """Append what is missing in a file of the size that was downloaded before."""
        with (
            file.open("ab") as out,
            phase("downloading", ProgressUnit.BYTES, self.size, is_major=True) as downloading,
        ):
            downloading.advance(out.tell())
            while out.tell() < self.size:
                starts = list(range(out.tell(), self.size, _PART_BYTES)[:_PARTS])
                ends = [min(start + _PART_BYTES, self.size) for start in starts]
                paths = [self._path] * len(starts)
                with self._errors_explained():
                    parts = self._files.cat_ranges(paths, starts, ends, on_error="raise")
                for start, stop, part in zip(starts, ends, parts, strict=True):
                    self._require_length(part, stop - start)
                    out.write(part)
                    downloading.advance(len(part))

    def has_changed(self) -> bool:
        with self._errors_explained():
            return self._find_version() != self.version

    def close(self) -> None:
        self._file.close()

    def open_next_to(self, name: str) -> ByteSource:
        address = self.label.partition("?")[0]  # a query names one object
        # In a registry, the files of a package are below its tag.
        folder = address if _REGISTRY.match(address) else address.rpartition("/")[0]
        return RemoteBytes(f"{folder}/{name}")

    def _find_version(self) -> Mapping[str, object]:
        # fsspec keeps listings, which would hide that the object was replaced.
        self._files.invalidate_cache(self._path)
        info: Mapping[str, object] = self._files.info(self._path)
        return {key: info[key] for key in info if _VERSION_KEYS.fullmatch(key)}

    @contextmanager
    def _errors_explained(self, is_open: bool = True) -> Iterator[None]:
        try:
            yield
        except ModpackError:  # registries explain their errors themselves
            raise
        except FileNotFoundError as error:
            # Some file systems raise this for any answer but the expected one.
            cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
            if is_open:
                reason = f"the object was deleted while modpack read it{cause}"
                raise ArchiveError(self.label, reason) from error
            reason = f"the object was not found{cause}"
            raise PackageNotFoundError(self.label, reason) from error
        except Exception as error:  # file systems raise the exceptions of their libraries
            reason = f"the object cannot be read ({type(error).__name__}: {error})"
            # fsspec raises ValueError for a server that does not answer range requests.
            hint = _DOWNLOAD if isinstance(error, ValueError) else ""
            raise ArchiveError(self.label, reason, hint=hint) from error

    def _require_length(self, content: bytes, length: int) -> None:
        if len(content) != length:
            reason = f"the object ends too early: {len(content)} bytes of {length} were received"
            raise ArchiveError(self.label, reason)


class RemoteArchive(ZipArchive):
    """A package at a URL. Its path is the pinned URL, once the digest is known.

    Args:
        url: The URL, with or without a pin.

    Raises:
        PackageNotFoundError: If the object does not exist.
        ArchiveError: If it cannot be read, is not a package, or is not the pinned one.
        ModpackError: If a library is missing, or the pin is malformed.
    """

    def __init__(self, url: str) -> None:
        address, pinned = split_pin(url)
        self.content: RemoteBytes = RemoteBytes(address)
        try:
            super().__init__(self.content)
            self._require_pinned(pinned)
        except BaseException:
            self.content.close()
            raise

    def _require_pinned(self, pinned: str | None) -> None:
        manifest = read_manifest(self)
        if manifest is not None:
            digest = require_pinned(self, pinned)
            self.verify_with(manifest)
            self.path += PIN + digest
        elif pinned is not None:
            reason = "torch.package wrote the package, without digests, so it cannot be pinned"
            raise ArchiveError(self.path, reason)

    def finish(self) -> None:
        # One request at the end, not one for each range. Ranges of two versions do not match, which
        # can look like a damaged record.
        self.check_unchanged()


def downloaded(url: str) -> str:
    """Return the path of a package in the cache, and download it first if it is not there.

    All digests are verified before the file gets its final path. One process downloads, others that
    want the same package wait for it. A download that was interrupted is continued.

    Args:
        url: The URL, with or without a pin.

    Raises:
        PackageNotFoundError: If the object does not exist.
        ArchiveError: If it cannot be read, is not a package, is damaged, or is not the pinned one.
        CacheError: If the cache cannot be used.
        ModpackError: If a library is missing, or the pin is malformed.
    """
    with open_archive(url) as archive:
        inner = archive.inner if isinstance(archive, ShardedArchive) else archive
        assert isinstance(inner, RemoteArchive)
        content, found = inner.content, detached_signature(url)
        signature = found[1] if found is not None else None
        key = _key_of(archive, content, signature)

        def fill(file: Path) -> None:
            # Where processes that get the path look for it: workers, and those that reopen it.
            if signature is not None:
                file.with_name(file.name + layout.DETACHED_SIGNATURE).write_bytes(signature)
            content.download(file)

        def check(file: Path) -> None:
            with open_archive(file) as kept:
                kept.path = archive.path
                if _key_of(kept, content, signature) != key:
                    raise ArchiveError(archive.path, "the downloaded file has another digest")
                _require_intact(kept)

        path = keep_file(key, file_name(url), content.size, fill, check)
        if isinstance(archive, ShardedArchive):
            for shard in archive.shards():
                _keep_shard(archive, shard.name, path.with_name(shard.name))
        return str(path)


def _keep_shard(archive: ShardedArchive, name: str, place: Path) -> None:
    """Download a file with weights, and link to it next to the package in the cache.

    All packages in the cache that refer to it have the same file, and so the same memory.
    """
    content = archive.open_shard(name)
    assert isinstance(content, RemoteBytes)

    def check(file: Path) -> None:
        with closing(FileBytes(str(file), content.label)) as found:
            require_intact_shard(name, found)

    link_kept(keep_file(name.partition(".")[0], name, content.size, content.download, check), place)


def detached_signature(url: str) -> tuple[str, bytes] | None:
    """Return URL and content of a signature next to a package at a URL, or None if there is none.

    A failure is the absence of a signature, which a policy that requires one reports: stores answer
    in many ways for objects that do not exist.

    Args:
        url: The package's URL, with or without a pin. A query is only right for the package: it may
            be a credential for this one object, so that there is no signature file.
    """
    address, _ = split_pin(url)
    if "?" in address:
        return None
    separator = "/" if _REGISTRY.match(address) else ""
    location = address + separator + layout.DETACHED_SIGNATURE
    try:
        with closing(RemoteBytes(location)) as content:
            # One byte more than allowed lets the check of signatures see that it is too long.
            length = min(content.size, layout.MAX_SIGNATURE_BYTES + 1)
            return location, content.read_at(0, length)
    except ArchiveError as failure:
        _log.debug("no detached signature: %s", failure)
        return None


def _require_intact(archive: Archive) -> None:
    manifest, names = read_manifest(archive), archive.names()
    if isinstance(archive, ShardedArchive):  # its shards are downloaded and checked next
        names = archive.inner.names()
    if manifest is not None:
        return verify_records(archive, manifest, names, usable_cores(), with_crc=False)
    for name, reason in find_unreadable(archive, names, usable_cores()).items():
        raise ArchiveError(archive.path, reason, name)


def _key_of(archive: Archive, content: RemoteBytes, signature: bytes | None) -> str:
    """Return a digest of all that a package's bytes follow from."""
    parts = [package_digest(archive).encode(), str(content.size).encode()]
    # The package digest does not cover signatures. A signed copy needs an entry of its own.
    if archive.has(layout.SIGNATURE):
        parts.append(archive.read(layout.SIGNATURE))
    if signature is not None:
        parts += [layout.DETACHED_SIGNATURE.encode(), signature]
    if read_manifest(archive) is None:  # its digest covers tensors by CRC-32 only
        parts.append(repr((content.label, sorted(content.version.items()))).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def require_pinned(archive: Archive, pinned: str | None) -> str:
    """Return a package's digest.

    Args:
        archive: The package.
        pinned: The digest in its URL. None allows any.

    Raises:
        ArchiveError: If the URL pins another package.
    """
    digest = package_digest(archive)
    if pinned not in (None, digest):
        reason = f"the package's digest is {digest}, and the URL pins {pinned}"
        raise ArchiveError(archive.path, reason, hint="Inspect the new package before using it.")
    return digest


def split_pin(url: str) -> tuple[str, str | None]:
    """Return a URL without its pin, and the pinned digest. A misspelled pin is never ignored."""
    found = re.search("#sha.*", url, re.IGNORECASE | re.DOTALL)
    if found is None:
        return _with_tag(url), None
    if not re.fullmatch(PIN + "[0-9a-f]{64}", found[0]):
        reason = f"{url}: the pin {found[0]!r} does not consist of {PIN!r} and 64 hex digits"
        raise ModpackError(reason, hint="Copy it from the output of modpack inspect.")
    return _with_tag(url[: found.start()]), found[0].removeprefix(PIN)


def _with_tag(url: str) -> str:
    """Return the URL of a package in a registry with a tag or a digest; any other URL as it is."""
    has_tag = re.search("[:@][^/]*$", url.partition("://")[2]) is not None
    return url if has_tag or not _REGISTRY.match(url) else f"{url}:latest"


def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the URL's path in it."""
    try:
        import fsspec

        if _REGISTRY.match(url):
            fsspec.register_implementation("oci-registry", _REGISTRY_FILES, clobber=True)
            files = fsspec.filesystem("oci-registry")
            return files, files._strip_protocol(url)
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        reason = f"{url}: URLs need fsspec and a library for their scheme ({error})"
        hint = "Run: pip install 'modpack[oci]'" if _REGISTRY.match(url) else _INSTALL
        raise ModpackError(reason, hint=hint) from error
    except ValueError as error:
        raise ModpackError(f"{url}: {error}", hint="Pass a URL that fsspec opens.") from error
    return files, path
