"""Packages at URLs: ranges are read to inspect a package, and the whole file to load it.

fsspec and the libraries of its file systems do all requests, retries, and authentication. They are
imported when the first URL is opened, and ``pip install 'modpack[remote]'`` installs them.

A URL can end with ``#sha256=DIGEST``, the digest of a package. This is the digest of its manifest,
which lists the digests of all records: ranges are enough to know it, and it pins every byte that is
read. A downloaded package is in the cache under a digest of the same content, so that any number of
URLs and processes share it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from modpack.archive import layout
from modpack.archive.base import Archive, ByteSource
from modpack.archive.layout import Limits
from modpack.archive.manifest import (
    find_unreadable,
    package_digest,
    read_manifest,
    verify_records,
)
from modpack.archive.reader import ZipArchive, open_archive, open_content
from modpack.core.process import ProgressUnit, phase, usable_cores
from modpack.errors import ArchiveError, ModpackError, PackageNotFoundError
from modpack.loading.cache import keep_file

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PIN: Final = "#sha256="
_BLOCK_BYTES: Final = 1 << 18
"""Bytes of one request while records are read. The directory and all metadata of a usual package
are in two or three such blocks at its end."""
_PART_BYTES: Final = 8 << 20
_PARTS: Final = 4
"""Ranges to download at the same time, where the file system can do that."""
_CONTENT_KEYS: Final = {"size", "etag", "contentmd5", "digest", "versionid", "generation", "blobid"}
_TIME_KEYS: Final = {"lastmodified", "modified", "updated", "mtime", "created"}
"""Keys of what changes when an object is replaced, in the plain spelling of many file systems."""
_INSTALL: Final = "Run: pip install 'modpack[remote]', which reads s3, gs, https, and hf URLs."


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
        if not (self.size and self._file.seekable()):
            reason = "the server does not state the size of the file, or does not send ranges of it"
            raise ArchiveError(url, reason, hint="Download the file and pass its path.")

    def read_at(self, offset: int, length: int) -> bytes:
        with self._errors_explained():
            if length < _BLOCK_BYTES:
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
                end = min(out.tell() + _PARTS * _PART_BYTES, self.size)
                starts = list(range(out.tell(), end, _PART_BYTES))
                ends = [min(start + _PART_BYTES, end) for start in starts]
                paths = [self._path] * len(starts)
                with self._errors_explained():
                    parts = self._files.cat_ranges(paths, starts, ends, on_error="raise")
                for start, stop, part in zip(starts, ends, parts, strict=True):
                    self._require_length(part, stop - start)
                    out.write(part)
                    downloading.advance(len(part))
            out.flush()
            os.fsync(out.fileno())
        if self.has_changed():
            raise self._replaced()

    def has_changed(self) -> bool:
        with self._errors_explained():
            return self._find_version() != self.version

    def close(self) -> None:
        self._file.close()

    def _find_version(self) -> Mapping[str, object]:
        self._files.invalidate_cache(self._path)
        info: Mapping[str, object] = self._files.info(self._path)
        spelled = {key.lower().replace("-", "").replace("_", ""): info[key] for key in info}
        return {key: spelled[key] for key in (_CONTENT_KEYS | _TIME_KEYS) & spelled.keys()}

    @contextmanager
    def _errors_explained(self, is_open: bool = True) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            # Some file systems raise this for any answer but the expected one.
            cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
            if is_open:
                reason = f"the object was deleted while modpack read it{cause}"
                raise ArchiveError(self.label, reason) from error
            reason = f"the object was not found{cause}"
            raise PackageNotFoundError(self.label, reason) from error
        except ImportError as error:
            raise ModpackError(f"{self.label}: {error}", hint=_INSTALL) from error
        except Exception as error:  # file systems raise the exceptions of their libraries
            reason = f"the object cannot be read ({type(error).__name__}: {error})"
            raise ArchiveError(self.label, reason) from error

    def _require_length(self, content: bytes, length: int) -> None:
        if len(content) != length:
            reason = f"the object ends too early: {len(content)} bytes of {length} were received"
            raise self._replaced() if self.has_changed() else ArchiveError(self.label, reason)

    def _replaced(self) -> ArchiveError:
        reason = "the object was replaced while modpack read it"
        return ArchiveError(self.label, reason, hint="Try again.")


class RemoteArchive(ZipArchive):
    """A package at a URL. Its path is the pinned URL, once the digest is known."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # One request at the end, not one for each range. Ranges of two versions do not match, which
        # can look like a damaged record.
        try:
            if kind is None or issubclass(kind, ArchiveError):
                self.check_unchanged()
        finally:
            self.close()


def open_remote(url: str, limits: Limits) -> Archive:
    """Open the package at a URL for reading in ranges.

    Args:
        url: The URL, with or without a pin.
        limits: Limits on the archive's sizes.

    Raises:
        PackageNotFoundError: If the object does not exist.
        ArchiveError: If it cannot be read, is not a package, or is not the pinned one.
        ModpackError: If a library is missing.
    """
    address, _, pinned = url.partition(_PIN)
    content = RemoteBytes(address)
    archive = open_content(content, limits, RemoteArchive)
    try:
        _require_pinned(archive, pinned)
    except BaseException:
        archive.close()
        raise
    return archive


def _require_pinned(archive: Archive, pinned: str) -> None:
    """Compare the digest with the pinned one, and name the archive by its pinned URL."""
    manifest = read_manifest(archive)
    if manifest is None:
        if pinned:
            reason = "torch.package wrote the package, without digests, so it cannot be pinned"
            raise ArchiveError(archive.path, reason)
        return
    digest = package_digest(archive)
    if pinned not in ("", digest):
        reason = f"the package's digest is {digest}, and the URL pins {pinned}"
        raise ArchiveError(archive.path, reason, hint="Inspect the new package before using it.")
    archive.verify_with(manifest)
    archive.path += _PIN + digest


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
        ModpackError: If a library is missing.
    """
    address, _, pinned = url.partition(_PIN)
    content = RemoteBytes(address)
    with open_content(content, layout.DEFAULT_LIMITS, RemoteArchive) as archive:
        _require_pinned(archive, pinned)
        key = _key_of(archive, content)

        def check(file: Path) -> None:
            with open_archive(file) as found:
                found.path = archive.path
                if _key_of(found, content) != key:
                    raise ArchiveError(archive.path, "the downloaded file has another digest")
                _require_intact(found)

        name = address.partition("?")[0].rpartition("/")[2]
        return str(keep_file(key, name, content.size, content.download, check))


def _require_intact(archive: Archive) -> None:
    manifest, names = read_manifest(archive), archive.names()
    if manifest is not None:
        return verify_records(archive, manifest, names, usable_cores(), with_crc=False)
    for name, reason in find_unreadable(archive, names, usable_cores()).items():
        raise ArchiveError(archive.path, reason, name)


def _key_of(archive: Archive, content: RemoteBytes) -> str:
    """Return a digest of all that a package's bytes follow from."""
    parts = [package_digest(archive).encode(), str(content.size).encode()]
    if archive.has(layout.SIGNATURE):
        parts.append(archive.read(layout.SIGNATURE))
    if read_manifest(archive) is None:  # its digest covers tensors by CRC-32 only
        parts.append(repr((content.label, sorted(content.version.items()))).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the URL's path in it."""
    try:
        import fsspec

        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        reason = f"{url}: URLs need fsspec and a library for their scheme ({error})"
        raise ModpackError(reason, hint=_INSTALL) from error
    except ValueError as error:
        raise ModpackError(f"{url}: {error}", hint="Pass a URL that fsspec opens.") from error
    return files, path
