"""Where the signatures of a package are, and whether somebody who is trusted made one.

A signature is a record of the package (inside), or a file beside it under its name and ``.sig``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import package_digest, read_manifest
from modpack.core.trust import Signer
from modpack.errors import ArchiveError, SignatureError
from modpack.signing.dsse import MOST_BYTES, read_envelope
from modpack.signing.envelopes import HeldSignature, check

__all__ = ["FoundSignature", "beside", "check_signatures", "find_signatures", "read_beside"]

_SUFFIX: Final = ".sig"


@dataclass(frozen=True)
class FoundSignature:
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
    """The envelopes of a package: that inside, and that beside it.

    Args:
        archive: the package.
        path: its file or folder; None if it has none.

    Raises:
        SignatureError: one of them is too large, or cannot be read.
    """
    found = []
    if archive.has(layout.SIGNATURE):
        found.append(FoundSignature(layout.SIGNATURE, _inside(archive)))
    if path is not None:
        file = beside(path)
        content = read_beside(file, archive.source)
        if content is not None:
            found.append(FoundSignature(str(file), content))
    return tuple(found)


def check_signatures(
    archive: Archive, signers: Sequence[Signer], path: str | os.PathLike[str] | None = None
) -> tuple[HeldSignature, ...]:
    """Which of the signers vouch for a package.

    The signature is over the package's digest, which is the manifest's. Whether the records are as
    the manifest says has to be checked as well.

    Args:
        archive: the package.
        signers: who may vouch for it; one of them has to. None of them asks for nothing.
        path: the package's file or folder; None if it has none.

    Returns:
        The signatures that hold, inside before beside.

    Raises:
        SignatureError: there is no signature, or none that holds.
        KeyFileError: a signer's key is no Ed25519 public key.
        ArchiveError: the package is damaged.
        ModpackError: the extra ``sign`` is not installed.
    """
    if not signers:
        return ()
    if read_manifest(archive) is None:
        raise SignatureError(archive.source, _why_never(signers))
    found = find_signatures(archive, path)
    if not found:
        raise SignatureError(archive.source, _why_none(signers))
    digest = package_digest(archive)
    held: list[HeldSignature] = []
    reasons: list[str] = []
    for each in found:
        try:
            held += check(each.content, digest, signers, archive.source, each.place)
        except SignatureError as failure:
            reasons.append(failure.reason)
    if not held:
        raise SignatureError(archive.source, "; ".join(reasons))
    return tuple(held)


def beside(path: str | os.PathLike[str]) -> Path:
    """The file with the signature of a package that has none inside.

    >>> beside("model.modpack").name
    'model.modpack.sig'
    """
    file = Path(path)
    if file.name in ("", ".."):
        file = file.resolve()
    return file.with_name(file.name + _SUFFIX)


def read_beside(file: Path, source: str) -> bytes | None:
    """The content of a signature's file; None if there is no such file.

    Raises:
        SignatureError: it is too large, or cannot be read.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise SignatureError(source, f"the signature {file} is no regular file")
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failure:
        reason = f"the signature {file} cannot be read: {failure.strerror}"
        raise SignatureError(source, reason) from failure
    if len(content) > MOST_BYTES:
        raise SignatureError(source, f"the signature {file} is larger than {MOST_BYTES} bytes")
    return content


def _inside(archive: Archive) -> bytes:
    if archive.size(layout.SIGNATURE) > MOST_BYTES:
        reason = f"the signature {layout.SIGNATURE} is larger than {MOST_BYTES} bytes"
        raise SignatureError(archive.source, reason)
    try:
        content = archive.read(layout.SIGNATURE)
        manifest = read_manifest(archive)
    except ArchiveError as failure:
        raise SignatureError(
            archive.source, f"the signature {layout.SIGNATURE} cannot be read: {failure.reason}"
        ) from failure
    if manifest is not None and manifest.format >= layout.OWN_FORM_FROM:
        if read_envelope(content, archive.source, layout.SIGNATURE).encoded() != content:
            reason = f"the signature {layout.SIGNATURE} is not written as modpack writes it"
            raise SignatureError(archive.source, reason)
    return content


def _why_none(signers: Sequence[Signer]) -> str:
    return (
        f"it carries no signature, and one of {_wanted(signers)} is demanded. Remedy: get it from "
        "whoever signed it (modpack sign), with its .sig file if there is one"
    )


def _why_never(signers: Sequence[Signer]) -> str:
    return (
        f"a signature of {_wanted(signers)} is demanded, and archives of torch.package cannot be "
        "signed, since no manifest says what belongs to them. Remedy: export the model with modpack"
    )


def _wanted(signers: Sequence[Signer]) -> str:
    return " or ".join(repr(signer.name) for signer in signers)
