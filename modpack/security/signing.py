"""Signing of packages, and verification of their signatures.

An embedded signature is a record of the package. A detached signature is a file next to the
package, with the suffix ``.sig`` appended to its name or URL.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.folder_reader import FolderArchive
from modpack.archive.manifest import package_digest, read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.archive.sharded import ShardedArchive
from modpack.core.names import url_of
from modpack.core.policy import Signer
from modpack.errors import ArchiveError, SignatureError, TargetError
from modpack.remote import detached_signature
from modpack.security.signing_envelope import ValidSignature, check, read_envelope, sign
from modpack.security.signing_keys import PrivateKey
from modpack.writing.append import write_with_signature
from modpack.writing.target import write_atomically


class FoundSignature(NamedTuple):
    """A signature envelope that was not verified yet.

    Attributes:
        location: The record or file that contains it.
        content: The envelope.
    """

    location: str
    content: bytes


def find_signatures(
    archive: Archive, path: str | os.PathLike[str] | None = None
) -> tuple[FoundSignature, ...]:
    """Return the embedded and the detached envelope of a package, as far as they exist.

    Args:
        archive: The package.
        path: Its file, folder, or URL, or None if it has none.

    Raises:
        SignatureError: If an envelope is too large or cannot be read.
    """
    contents: list[tuple[str, bytes | None]] = [(layout.SIGNATURE, _read_embedded(archive))]
    url = url_of(os.fspath(path)) if path is not None else None
    if url is not None:
        contents.append(detached_signature(url) or ("", None))
    elif path is not None:
        file = sidecar_path(path)
        contents.append((str(file), _read_detached(file, archive.path)))
    return tuple(FoundSignature(location, each) for location, each in contents if each is not None)


def check_signatures(
    archive: Archive, signers: Sequence[Signer], path: str | os.PathLike[str] | None = None
) -> tuple[ValidSignature, ...]:
    """Verify that at least one of the signers signed a package.

    A signature covers the package digest, which is the digest of the manifest. The caller must
    also check the records against the manifest.

    Args:
        archive: The package.
        signers: Trusted signers. One of them must have signed. If empty, nothing is verified.
        path: The package's file, folder, or URL, or None if it has none.

    Returns:
        The valid signatures, embedded before detached.

    Raises:
        SignatureError: If there is no valid signature.
        KeyFileError: If a signer's key is not an Ed25519 public key.
        ArchiveError: If the package is damaged.
        ModpackError: If the extra ``sign`` is not installed.
    """
    if not signers:
        return ()
    wanted = " or ".join(repr(signer.name) for signer in signers)
    # Without digests of the records, a signature would cover nothing.
    if read_manifest(archive) is None:
        raise SignatureError(
            archive.path,
            f"a signature of {wanted} is required, but torch.package archives cannot be signed, "
            "because they have no manifest",
            hint="Export the model with modpack.",
        )
    found = find_signatures(archive, path)
    if not found:
        raise SignatureError(
            archive.path,
            f"the package is not signed, and a signature of {wanted} is required",
            hint="Ask the publisher for a signed package (modpack sign), or for its .sig file.",
        )
    digest = package_digest(archive)
    valid: list[ValidSignature] = []
    failures: list[SignatureError] = []
    for each in found:
        try:
            valid += check(each.content, digest, signers, archive.path, each.location)
        except SignatureError as failure:
            # One valid signature is enough: a second file may be of another publisher.
            failures.append(failure)
    if not valid:
        hints = dict.fromkeys(failure.hint for failure in failures if failure.hint)
        reason = "; ".join(failure.reason for failure in failures)
        raise SignatureError(archive.path, reason, hint=" ".join(hints))
    return tuple(valid)


def sidecar_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a package's detached signature.

    >>> sidecar_path("model.modpack").name
    'model.modpack.sig'
    """
    file = Path(path)
    if file.name in ("", ".."):
        file = file.resolve()
    return file.with_name(file.name + layout.DETACHED_SIGNATURE)


def _read_detached(file: Path, path: str) -> bytes | None:
    """Return the content of a signature file, or None if it does not exist.

    Raises:
        SignatureError: If the file cannot be read.
    """
    try:
        # A pipe of that name would block, and a device may never end.
        if not stat.S_ISREG(file.stat().st_mode):
            raise SignatureError(path, f"the signature {file} is not a regular file")
        with file.open("rb") as opened:
            # One byte more than allowed: a larger file is refused, and not read completely.
            return opened.read(layout.MAX_SIGNATURE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failure:
        reason = f"the signature {file} cannot be read: {failure.strerror}"
        raise SignatureError(path, reason) from failure


def _read_embedded(archive: Archive) -> bytes | None:
    if not archive.has(layout.SIGNATURE):
        return None
    if archive.size(layout.SIGNATURE) > layout.MAX_SIGNATURE_BYTES:
        reason = (
            f"the signature {layout.SIGNATURE} is larger than {layout.MAX_SIGNATURE_BYTES} bytes"
        )
        raise SignatureError(archive.path, reason)
    try:
        content = archive.read(layout.SIGNATURE)
        manifest = read_manifest(archive)
    except ArchiveError as failure:
        raise SignatureError(
            archive.path, f"the signature {layout.SIGNATURE} cannot be read: {failure.reason}"
        ) from failure
    if manifest is not None:
        # The digest does not cover this record, so it must not carry anything else.
        if read_envelope(content, archive.path, layout.SIGNATURE).encoded() != content:
            reason = f"the signature {layout.SIGNATURE} is not in the form that modpack writes"
            raise SignatureError(archive.path, reason)
    return content


class SignedPackage(NamedTuple):
    """A package that was signed.

    Attributes:
        path: The package, as the user named it.
        digest: Digest of the package, which the signature covers.
        key_id: Key of the new signature.
        placement: Whether the signature is in the package or in a separate file.
        signature_path: File that contains the signature: the package itself if embedded.
        key_ids: Keys of all signatures, in order.
    """

    path: str
    digest: str
    key_id: str
    placement: Literal["embedded", "detached"]
    signature_path: str
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
    """Sign a package after checking all its records against its manifest.

    Args:
        path: The package's file, or the folder of an unzipped one.
        private: The private key.
        embed: Whether to write the signature as a record of the package. Otherwise it is a file
            next to it, with ``.sig`` appended to the package's name.
        output: File to write instead of the package or the ``.sig`` file.
        replace: Whether to remove existing signatures. By default they are kept.
        workers: Number of threads that check records.

    Raises:
        ArchiveError: If the file is not a package, or is damaged.
        SignatureError: If torch.package wrote the package, or no signature can be added to the
            existing ones.
        TargetError: If the signature cannot be written.
        ModpackError: If the extra ``sign`` is not installed.
    """
    file = os.fspath(path)
    with open_archive(file) as archive:
        digest = _verified_digest(archive, workers)
        # Signatures that are kept are those in the place of the new one.
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
            target = (
                os.fspath(output) if output is not None else _require_no_link(sidecar_path(file))
            )
            write_atomically(target, envelope)
    placement: Literal["embedded", "detached"] = "embedded" if embed else "detached"
    return SignedPackage(file, digest, private.key_id, placement, target, key_ids)


def _require_no_link(target: Path) -> str:
    """Check that a path that the user did not name is not a symlink; return it."""
    if target.is_symlink():
        raise TargetError(
            f"cannot write {target}: this is a symlink", hint="Remove it, or pass --output."
        )
    return str(target)


def _verified_digest(archive: Archive, workers: int) -> str:
    """Return the package digest after checking all records against the manifest."""
    manifest = read_manifest(archive)
    if manifest is None:
        raise SignatureError(
            archive.path,
            "torch.package wrote this package. A signature covers the SHA-256 digests of all "
            "records, but torch.package stores only CRC-32 checksums",
            hint="Export the model with modpack.",
        )
    digest = package_digest(archive)
    # A signature vouches for all records, so none may differ from the manifest.
    verify_records(archive, manifest, manifest.records, workers)
    # Between the check and the signature, another process may have replaced the file.
    archive.check_unchanged()
    return digest


def _write_embedded(
    archive: Archive, path: str, envelope: bytes, output: str | os.PathLike[str] | None
) -> str:
    folder = archive.inner if isinstance(archive, ShardedArchive) else archive
    if not isinstance(folder, FolderArchive):
        target = path if output is None else os.fspath(output)
        write_with_signature(archive, path, envelope, target)
        return target
    if output is not None:
        reason = "the signature of an unzipped package is written into its folder"
        raise SignatureError(path, reason, hint="Remove --output.")
    target = folder.record_path(layout.SIGNATURE)
    if Path(target).is_symlink():  # writing would replace the file that it points to
        reason = f"the signature {layout.SIGNATURE} is a symlink"
        raise SignatureError(path, reason, hint="Remove it.")
    write_atomically(target, envelope)
    return path
