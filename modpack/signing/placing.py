"""Signing a package: checked, vouched for, and the signature put in its place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from modpack.archive import layout
from modpack.archive.appending import write_with_signature
from modpack.archive.base import Archive
from modpack.archive.comparing import find_damage
from modpack.archive.folderarchive import FolderArchive
from modpack.archive.manifest import package_digest, read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.sinks import open_sink
from modpack.errors import ArchiveError, SignatureError, TargetError
from modpack.signing.dsse import read_envelope
from modpack.signing.envelopes import sign
from modpack.signing.finding import beside, find_signatures, read_beside
from modpack.signing.keys import PrivateKey

__all__ = ["SignedPackage", "sign_package"]


@dataclass(frozen=True)
class SignedPackage:
    """A package that was signed.

    Attributes:
        digest: what was signed: the package's digest.
        file: the file that was written.
        is_inside: whether that is the package itself, with the signature inside.
        key_ids: of all signatures that are there now.
    """

    digest: str
    file: str
    is_inside: bool
    key_ids: tuple[str, ...]


def sign_package(
    path: str | os.PathLike[str],
    private: PrivateKey,
    *,
    is_inside: bool = True,
    output: str | os.PathLike[str] | None = None,
    replace: bool = False,
    workers: int = 1,
) -> SignedPackage:
    """Vouches for a package, after comparing all of its records with its manifest.

    Args:
        path: its file, or the folder of an unzipped one.
        private: the key.
        is_inside: whether the signature becomes a record of the package; else it becomes a file
            beside it, under the package's name and ``.sig``.
        output: what to write instead: the package with its signature, or the signature.
        replace: whether signatures that are there already are dropped; else they stay.
        workers: threads that compare records at the same time.

    Raises:
        ArchiveError: it is no package, or a damaged one.
        SignatureError: torch.package wrote it, or the signature that is there does not allow
            another one.
        TargetError: the signature cannot be written.
        ModpackError: the extra ``sign`` is not installed.
    """
    file = os.fspath(path)
    with open_archive(file) as archive:
        digest = _checked_digest(archive, workers)
        existing = None if replace else _existing(archive, file, is_inside, output)
        name = Path(file).absolute().name
        envelope = sign(digest, name, private, existing, file)
        key_ids = tuple(each.key_id for each in read_envelope(envelope, file).signatures)
        if is_inside:
            target = _write_inside(archive, file, envelope, output)
        else:
            target = os.fspath(output) if output is not None else _own(beside(file))
            _write(target, envelope)
    return SignedPackage(digest, target, is_inside, key_ids)


def _own(target: Path) -> str:
    """A path that nobody has named and that is written to: no link may lead elsewhere."""
    if target.is_symlink():
        raise TargetError(str(target), "it is a link. Remedy: remove it, or say where to write")
    return str(target)


def _checked_digest(archive: Archive, workers: int) -> str:
    """The package's digest, of which all contents have been seen to be as it says."""
    manifest = read_manifest(archive)
    if manifest is None:
        raise SignatureError(
            archive.source,
            "torch.package wrote it, and no manifest says what belongs to it: a signature could "
            "not tell its tensors. Remedy: export the model with modpack",
        )
    digest = package_digest(archive)
    damage = find_damage(archive, manifest, manifest.records, workers)
    if damage:
        listed = "; ".join(f"{name!r}: {reason}" for name, reason in sorted(damage.items()))
        raise ArchiveError(archive.source, f"it is damaged and was not signed: {listed}")
    if archive.has_changed():
        reason = "it was changed while it was looked at. Remedy: sign it when nobody writes to it"
        raise ArchiveError(archive.source, reason)
    return digest


def _existing(
    archive: Archive, path: str, is_inside: bool, output: str | os.PathLike[str] | None
) -> bytes | None:
    """The envelope to which a signature is to be added, if there is one."""
    if is_inside:
        found = find_signatures(archive)
        return found[0].content if found else None
    return read_beside(beside(path) if output is None else Path(output), archive.source)


def _write_inside(
    archive: Archive, path: str, envelope: bytes, output: str | os.PathLike[str] | None
) -> str:
    if not isinstance(archive, FolderArchive):
        target = path if output is None else os.fspath(output)
        write_with_signature(archive, path, envelope, target)
        return target
    if output is not None:
        reason = "it is a folder, whose signature is written into it. Remedy: leave --output out"
        raise SignatureError(path, reason)
    place = archive.place_of(layout.SIGNATURE)
    if Path(place).is_symlink():  # what it leads to would be overwritten
        reason = f"its signature {layout.SIGNATURE} is a link. Remedy: remove that"
        raise SignatureError(path, reason)
    _write(place, envelope)
    return path


def _write(target: str, content: bytes) -> None:
    sink = open_sink(target)
    try:
        sink.write(content)
        sink.publish()
    finally:
        sink.discard()
