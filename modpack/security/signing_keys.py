"""Ed25519 keys to sign with: made, written, and read again.

A private key is a PEM file in PKCS #8 form that its owner alone can read, a public one a PEM file
in SubjectPublicKeyInfo form, as ``openssl genpkey -algorithm ed25519`` and ``openssl pkey -pubout``
write them. Files are told apart without any cryptography; all else needs the extra ``sign``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modpack.core.policy import ED25519, PUBLIC_LABEL, Signer, pem_block, public_key_bytes
from modpack.errors import KeyFileError, ModpackError, TargetError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAX_BYTES: Final = 1 << 14
_ENCRYPTED_LABEL: Final = "ENCRYPTED PRIVATE KEY"
_PRIVATE_LABELS: Final = ("PRIVATE KEY", _ENCRYPTED_LABEL)
_OWNER_ONLY: Final = 0o600
_FOR_ALL: Final = 0o644
_MAKE_ONE: Final = "Remedy: make a pair with modpack keygen"


def _read_key_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        reason = getattr(failure, "strerror", None) or str(failure)
        raise KeyFileError(str(path), f"the key cannot be read: {reason}") from failure
    if len(content) > _MAX_BYTES:
        raise KeyFileError(str(path), f"it is too large for a key. {_MAKE_ONE}")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as failure:
        raise KeyFileError(str(path), f"it is no key in PEM form. {_MAKE_ONE}") from failure


def public_bytes(text: str, source: str) -> bytes:
    """The 32 bytes of an Ed25519 public key.

    Args:
        text: the key, as PEM.
        source: whose key it is, or its file; for messages.

    Raises:
        KeyFileError: it is none.
    """
    with _telling(source):
        return public_key_bytes(text)


def _require_private(text: str, source: str) -> str:
    """The label of a private key in PKCS #8 form."""
    with _telling(source):
        label, _ = pem_block(text)
    if label == PUBLIC_LABEL:
        raise KeyFileError(
            source,
            "it is a public key, with which nothing can be signed. Remedy: give the private one, "
            "which modpack keygen writes as NAME, without .pub",
        )
    if label not in _PRIVATE_LABELS:
        raise KeyFileError(source, f"it holds a {label}, and no private key. {_MAKE_ONE}")
    return label


def key_id(public: bytes) -> str:
    """What a key is called: the sha256 of its SubjectPublicKeyInfo in DER, in hex.

    ``openssl pkey -pubin -in NAME.pub -outform DER | sha256sum`` tells the same.

    >>> key_id(bytes(32))[:16]
    '722abd12e99a5367'
    """
    return hashlib.sha256(ED25519 + public).hexdigest()


def normalized(public: bytes) -> str:
    """A public key as PEM, always the same text for the same key."""
    content = base64.b64encode(ED25519 + public).decode("ascii")
    return f"-----BEGIN {PUBLIC_LABEL}-----\n{content}\n-----END {PUBLIC_LABEL}-----\n"


@contextmanager
def _telling(source: str) -> Iterator[None]:
    """Say which key it is about, when something is wrong with one."""
    try:
        yield
    except ValueError as failure:
        raise KeyFileError(source, str(failure)) from failure


@contextmanager
def requiring_sign_extra() -> Iterator[None]:
    """Say which extra of modpack is missing or broken, where an import fails for that.

    Nothing but imports of what is in the extra belongs into it.

    Raises:
        ModpackError: it is missing, or cannot be imported.
    """
    try:
        yield
    except (ImportError, AttributeError, OSError) as failure:  # what imports of broken wheels raise
        if isinstance(failure, ModuleNotFoundError) and _is_missing(failure.name or ""):
            raise ModpackError(
                f"signatures need securesystemslib[crypto] 1.1 or newer ({failure}). "
                "Remedy: pip install 'modpack[sign]'"
            ) from failure
        raise ModpackError(
            "signatures need securesystemslib[crypto] 1.1 or newer, and what is installed cannot "
            f"be imported ({type(failure).__name__}: {failure}). Remedy: "
            "pip install --force-reinstall 'securesystemslib[crypto]>=1.1'"
        ) from failure


def _is_missing(module: str) -> bool:
    """Whether a library of the extra is not there at all, rather than a part of it."""
    root = module.partition(".")[0]
    return root in ("securesystemslib", "cryptography") and sys.modules.get(root) is None


@dataclass(frozen=True)
class PrivateKey:
    """A key to sign with.

    Attributes:
        key_id: names the key: the sha256 of its public half, in hex.
        public_key: that half, as PEM.
        secret: the key itself.
    """

    key_id: str
    public_key: str
    secret: Ed25519PrivateKey = field(repr=False, compare=False)


def generate() -> PrivateKey:
    """A new key.

    Raises:
        ModpackError: the extra ``sign`` is not installed.
    """
    with requiring_sign_extra():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return _described(Ed25519PrivateKey.generate())


def read_public(path: str | os.PathLike[str], name: str = "") -> Signer:
    """Someone whose signatures shall count, by the file of their public key.

    Args:
        path: the file.
        name: what to call them; by default the file's name, without its suffix.

    Raises:
        KeyFileError: the file cannot be read, or holds no Ed25519 public key.
    """
    file = Path(path)
    public = public_bytes(_read_key_file(file), str(file))
    return Signer(name or file.stem, normalized(public))


def is_readable_by_others(path: str | os.PathLike[str]) -> bool:
    """Whether a private key's file lets in others than its owner."""
    return os.name == "posix" and bool(Path(path).stat().st_mode & 0o077)


def read_private(
    path: str | os.PathLike[str], passphrase: str | Callable[[], str] | None = None
) -> PrivateKey:
    """A key to sign with.

    Args:
        path: its file.
        passphrase: opens it, if it is encrypted; or something to call for it then.

    Raises:
        KeyFileError: the file cannot be read, holds no Ed25519 private key, or is encrypted and
            the passphrase is missing or wrong.
        ModpackError: the extra ``sign`` is not installed.
    """
    source, text = str(Path(path)), _read_key_file(Path(path))
    is_locked = _require_private(text, source) == _ENCRYPTED_LABEL
    with requiring_sign_extra():
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

    opened_by = _opened_by(source, passphrase) if is_locked else None
    try:
        key = load_pem_private_key(text.encode(), opened_by)
    except (ValueError, TypeError, UnsupportedAlgorithm) as failure:
        reason = "the passphrase is wrong, or the key is damaged" if is_locked else "it is damaged"
        raise KeyFileError(source, reason) from failure
    if not isinstance(key, Ed25519PrivateKey):
        reason = "it is a private key, but not one of Ed25519"
        raise KeyFileError(source, f"{reason}. Remedy: make a pair with modpack keygen")
    return _described(key)


def write_pair(
    key: PrivateKey,
    path: str | os.PathLike[str],
    *,
    passphrase: str | None = None,
    overwrite: bool = False,
) -> tuple[Path, Path]:
    """Writes a key to ``path`` and its public half beside it, as ``path`` with ``.pub``.

    Args:
        key: the key.
        path: where; only the owner can read it there.
        passphrase: encrypts it, if there is one.
        overwrite: whether keys that are there already may be lost.

    Returns:
        Both paths.

    Raises:
        TargetError: one of the files is there already, or cannot be written.
        ModpackError: the extra ``sign`` is not installed.
    """
    _require_name(path)
    private, public = Path(path), public_file(path)
    if not overwrite:
        refuse_taken(path)
    contents = {
        private: (_private_pem(key, passphrase), _OWNER_ONLY),
        public: (key.public_key.encode(), _FOR_ALL),
    }
    staged = {file: file.with_name(f".{file.name}.{secrets.token_hex(8)}") for file in contents}
    try:
        for file, (content, mode) in contents.items():
            _create(staged[file], file, content, mode)
        for file, temporary in staged.items():
            _place(temporary, file, overwrite)
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)
    return private, public


def refuse_taken(path: str | os.PathLike[str]) -> None:
    """Makes sure that no key would be overwritten.

    Raises:
        TargetError: a key of that name is there, or something else is.
    """
    _require_name(path)
    for file in (Path(path), public_file(path)):
        if os.path.lexists(file):
            raise TargetError(
                f"{file} is there already, and nothing can be signed any more with a key that is "
                "lost. Remedy: choose another name, or --force if it is not needed any more"
            )


def public_file(path: str | os.PathLike[str]) -> Path:
    """Where the public half of a key is written.

    >>> public_file("keys/release").name
    'release.pub'
    """
    file = Path(path)
    return file.with_name(f"{file.name}.pub")


def _require_name(path: str | os.PathLike[str]) -> None:
    if Path(path).name in ("", ".."):
        raise TargetError(f"cannot write {os.fspath(path)!r}: that names no file")


def _described(secret: Ed25519PrivateKey) -> PrivateKey:
    public = secret.public_key().public_bytes_raw()
    return PrivateKey(key_id(public), normalized(public), secret)


def _private_pem(key: PrivateKey, passphrase: str | None) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        KeySerializationEncryption,
        NoEncryption,
        PrivateFormat,
    )

    locked: KeySerializationEncryption = NoEncryption()
    if passphrase:
        locked = BestAvailableEncryption(_encoded(passphrase))
    return key.secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)


def _opened_by(source: str, passphrase: str | Callable[[], str] | None) -> bytes:
    given = passphrase() if callable(passphrase) else passphrase
    if not given:
        raise KeyFileError(source, "the key is encrypted. Remedy: give its passphrase")
    return _encoded(given)


def _encoded(passphrase: str) -> bytes:
    return passphrase.encode("utf-8", "surrogateescape")


def _create(path: Path, target: Path, content: bytes, mode: int) -> None:
    """Writes a file that was not there, with ``mode`` from its first byte on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with _reporting(target), os.fdopen(os.open(path, flags, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _place(temporary: Path, target: Path, overwrite: bool) -> None:
    """Gives a file its name; one that somebody else has just written survives, unless it may go."""
    with _reporting(target):
        if overwrite:
            temporary.replace(target)
            return
        try:
            target.hardlink_to(temporary)
        except FileExistsError:
            raise
        except OSError:  # a file system without links; what is there was looked at just before
            temporary.rename(target)


@contextmanager
def _reporting(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        reason = getattr(failure, "strerror", None) or str(failure)
        raise TargetError(f"cannot write {target}: {reason}") from failure
