"""Signing packages, and finding and checking their signatures.

An embedded signature is a record of the package. A detached one is a file next to the package, with
its name and ``.sig``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.append import write_with_signature
from modpack.archive.base import Archive
from modpack.archive.folder_reader import FolderArchive
from modpack.archive.manifest import find_damage, package_digest, read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.target import write_atomically
from modpack.core.policy import Signer
from modpack.errors import ArchiveError, SignatureError, TargetError
from modpack.security.signing_envelope import MAX_BYTES, ValidSignature, check, read_envelope, sign
from modpack.security.signing_keys import PrivateKey

_SUFFIX: Final = ".sig"


class FoundSignature(NamedTuple):
    """An envelope, as it was found: not checked.

    Attributes:
        place: the record or the file that it was found in.
        content: the envelope.
    """

    place: str
    content: bytes


def find_signatures(
    archive: Archive, path: str | os.PathLike[str] | None = None
) -> tuple[FoundSignature, ...]:
    """Return the embedded and the detached envelope of a package, as far as they exist.

    Args:
        archive: the package.
        path: its file or folder; None if it has none.

    Raises:
        SignatureError: one of them is too large, or cannot be read.
    """
    contents = [(layout.SIGNATURE, _read_embedded(archive))]
    if path is not None:
        file = sidecar_path(path)
        contents.append((str(file), _read_detached(file, archive.path)))
    return tuple(FoundSignature(place, each) for place, each in contents if each is not None)


def check_signatures(
    archive: Archive, signers: Sequence[Signer], path: str | os.PathLike[str] | None = None
) -> tuple[ValidSignature, ...]:
    """Which of the signers vouch for a package.

    The signature is over the package's digest, which is the manifest's. Whether the records are as
    the manifest says has to be checked as well.

    Args:
        archive: the package.
        signers: who may vouch for it; one of them has to. None of them asks for nothing.
        path: the package's file or folder; None if it has none.

    Returns:
        The valid signatures, embedded before detached.

    Raises:
        SignatureError: there is no signature, or none that holds.
        KeyFileError: a signer's key is no Ed25519 public key.
        ArchiveError: the package is damaged.
        ModpackError: the extra ``sign`` is not installed.
    """
    if not signers:
        return ()
    wanted = " or ".join(repr(signer.name) for signer in signers)
    if read_manifest(archive) is None:
        raise SignatureError(
            archive.path,
            f"a signature of {wanted} is demanded, and archives of torch.package cannot be "
            "signed, since no manifest says what belongs to them. Remedy: export the model with "
            "modpack",
        )
    found = find_signatures(archive, path)
    if not found:
        raise SignatureError(
            archive.path,
            f"it carries no signature, and one of {wanted} is demanded. Remedy: get it from "
            "whoever signed it (modpack sign), with its .sig file if there is one",
        )
    digest = package_digest(archive)
    held: list[ValidSignature] = []
    reasons: list[str] = []
    for each in found:
        try:
            held += check(each.content, digest, signers, archive.path, each.place)
        except SignatureError as failure:
            reasons.append(failure.reason)
    if not held:
        raise SignatureError(archive.path, "; ".join(reasons))
    return tuple(held)


def sidecar_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a package's detached signature.

    >>> sidecar_path("model.modpack").name
    'model.modpack.sig'
    """
    file = Path(path)
    if file.name in ("", ".."):
        file = file.resolve()
    return file.with_name(file.name + _SUFFIX)


def _read_detached(file: Path, source: str) -> bytes | None:
    """Return the content of a signature file; None if the file does not exist.

    Raises:
        SignatureError: it is too large, or cannot be read.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise SignatureError(source, f"the signature {file} is no regular file")
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failure:
        reason = f"the signature {file} cannot be read: {failure.strerror}"
        raise SignatureError(source, reason) from failure
    if len(content) > MAX_BYTES:
        raise SignatureError(source, f"the signature {file} is larger than {MAX_BYTES} bytes")
    return content


def _read_embedded(archive: Archive) -> bytes | None:
    if not archive.has(layout.SIGNATURE):
        return None
    if archive.size(layout.SIGNATURE) > MAX_BYTES:
        reason = f"the signature {layout.SIGNATURE} is larger than {MAX_BYTES} bytes"
        raise SignatureError(archive.path, reason)
    try:
        content = archive.read(layout.SIGNATURE)
        manifest = read_manifest(archive)
    except ArchiveError as failure:
        raise SignatureError(
            archive.path, f"the signature {layout.SIGNATURE} cannot be read: {failure.reason}"
        ) from failure
    if manifest is not None and manifest.format >= layout.CANONICAL_ZIP_FROM:
        if read_envelope(content, archive.path, layout.SIGNATURE).encoded() != content:
            reason = f"the signature {layout.SIGNATURE} is not written as modpack writes it"
            raise SignatureError(archive.path, reason)
    return content


class SignedPackage(NamedTuple):
    """A package that was signed.

    Attributes:
        digest: what was signed: the package's digest.
        file: the file that was written: the package, or the detached signature.
        is_embedded: whether the signature is a record of the package.
        key_ids: of all signatures that are there now.
    """

    digest: str
    file: str
    is_embedded: bool
    key_ids: tuple[str, ...]


def sign_package(
    path: str | os.PathLike[str],
    private: PrivateKey,
    *,
    embed: bool = True,
    output: str | os.PathLike[str] | None = None,
    replace: bool = False,
    workers: int = 1,
) -> SignedPackage:
    """Vouches for a package, after comparing all of its records with its manifest.

    Args:
        path: its file, or the folder of an unzipped one.
        private: the key.
        embed: whether the signature becomes a record of the package; else it becomes a file
            next to it, with the package's name and ``.sig``.
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
        if replace:
            existing = None
        elif embed:
            existing = _read_embedded(archive)
        else:
            detached = sidecar_path(path) if output is None else Path(output)
            existing = _read_detached(detached, archive.path)
        name = Path(file).absolute().name
        envelope = sign(digest, name, private, existing, file)
        key_ids = tuple(each.key_id for each in read_envelope(envelope, file).signatures)
        if embed:
            target = _write_embedded(archive, file, envelope, output)
        else:
            target = os.fspath(output) if output is not None else _own(sidecar_path(file))
            write_atomically(target, envelope)
    return SignedPackage(digest, target, embed, key_ids)


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
            archive.path,
            "torch.package wrote it, and no manifest says what belongs to it: a signature could "
            "not tell its tensors. Remedy: export the model with modpack",
        )
    digest = package_digest(archive)
    damage = find_damage(archive, manifest, manifest.records, workers)
    if damage:
        listed = "; ".join(f"{name!r}: {reason}" for name, reason in sorted(damage.items()))
        raise ArchiveError(archive.path, f"it is damaged and was not signed: {listed}")
    if archive.has_changed():
        reason = "it was changed while it was looked at. Remedy: sign it when nobody writes to it"
        raise ArchiveError(archive.path, reason)
    return digest


def _write_embedded(
    archive: Archive, path: str, envelope: bytes, output: str | os.PathLike[str] | None
) -> str:
    if not isinstance(archive, FolderArchive):
        target = path if output is None else os.fspath(output)
        write_with_signature(archive, path, envelope, target)
        return target
    if output is not None:
        reason = "it is a folder, whose signature is written into it. Remedy: leave --output out"
        raise SignatureError(path, reason)
    place = archive.record_path(layout.SIGNATURE)
    if Path(place).is_symlink():  # what it leads to would be overwritten
        reason = f"its signature {layout.SIGNATURE} is a link. Remedy: remove that"
        raise SignatureError(path, reason)
    write_atomically(place, envelope)
    return path
