"""Ed25519 signing keys: generating, writing, and reading them.

A private key is a PKCS #8 PEM file that only its owner can read. A public key is a
SubjectPublicKeyInfo PEM file. ``openssl genpkey -algorithm ed25519`` and ``openssl pkey -pubout``
write the same formats. Identifying files needs no cryptography; everything else needs the extra
``sign``.
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

from modpack.core.policy import (
    CREATE_KEY,
    ED25519,
    PUBLIC_LABEL,
    Signer,
    pem_block,
    public_key_bytes,
)
from modpack.errors import KeyFileError, ModpackError, TargetError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAX_BYTES: Final = 1 << 14
_ENCRYPTED_LABEL: Final = "ENCRYPTED PRIVATE KEY"
_PRIVATE_LABELS: Final = ("PRIVATE KEY", _ENCRYPTED_LABEL)
_OWNER_ONLY: Final = 0o600
_FOR_ALL: Final = 0o644


def _read_key_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        reason = getattr(failure, "strerror", None) or str(failure)
        hint = ""
        if isinstance(failure, FileNotFoundError):
            hint = "Check the path, or create a key pair with: modpack keygen NAME"
        raise KeyFileError(str(path), f"the key cannot be read: {reason}", hint=hint) from failure
    # A weights file that is passed by mistake must not be read as text.
    if len(content) > _MAX_BYTES:
        raise KeyFileError(str(path), "the file is too large for a key", hint=CREATE_KEY)
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as failure:
        reason = "the file is not a key in PEM format"
        raise KeyFileError(str(path), reason, hint=CREATE_KEY) from failure


def public_bytes(text: str, path: str) -> bytes:
    """Return the 32 bytes of an Ed25519 public key.

    Args:
        text: The key as PEM.
        path: Its file, or a description of its owner, for messages.

    Raises:
        KeyFileError: If the text is not an Ed25519 public key.
    """
    with _reporting_key(path):
        return public_key_bytes(text)


def _require_private(text: str, path: str) -> str:
    """Return the PEM label of a private key in PKCS #8 format."""
    with _reporting_key(path):
        label, _ = pem_block(text)
    if label == PUBLIC_LABEL:
        raise KeyFileError(
            path,
            "this is a public key, and signing needs the private key",
            hint="Pass the private key, which modpack keygen writes as NAME without .pub.",
        )
    if label not in _PRIVATE_LABELS:
        raise KeyFileError(path, f"the file contains a {label}, not a private key", hint=CREATE_KEY)
    return label


def key_id(public: bytes) -> str:
    """Return a key's identifier: the SHA-256 of its SubjectPublicKeyInfo in DER, in hex.

    ``openssl pkey -pubin -in NAME.pub -outform DER | sha256sum`` prints the same.

    >>> key_id(bytes(32))[:16]
    '722abd12e99a5367'
    """
    return hashlib.sha256(ED25519 + public).hexdigest()


def normalized(public: bytes) -> str:
    """Return the canonical PEM encoding of a public key."""
    content = base64.b64encode(ED25519 + public).decode("ascii")
    return f"-----BEGIN {PUBLIC_LABEL}-----\n{content}\n-----END {PUBLIC_LABEL}-----\n"


@contextmanager
def _reporting_key(path: str) -> Iterator[None]:
    """Convert a ValueError about a key into a KeyFileError."""
    try:
        yield
    except ValueError as failure:
        raise KeyFileError(path, str(failure)) from failure


@contextmanager
def requiring_sign_extra() -> Iterator[None]:
    """Convert failing imports of the extra ``sign`` into an error that names it.

    The block must contain only imports of the extra's libraries.

    Raises:
        ModpackError: If the extra is missing or cannot be imported.
    """
    try:
        yield
    except (ImportError, AttributeError, OSError) as failure:  # raised by imports of broken wheels
        if isinstance(failure, ModuleNotFoundError) and _is_missing(failure.name or ""):
            raise ModpackError(
                f"signatures need securesystemslib[crypto] 1.1 or newer ({failure})",
                hint="Run: pip install 'modpack[sign]'",
            ) from failure
        raise ModpackError(
            "signatures need securesystemslib[crypto] 1.1 or newer, and the installed version "
            f"cannot be imported ({type(failure).__name__}: {failure})",
            hint="Run: pip install --force-reinstall 'securesystemslib[crypto]>=1.1'",
        ) from failure


def _is_missing(module: str) -> bool:
    """Return whether a whole library of the extra is missing, not just a module in it."""
    root = module.partition(".")[0]
    return root in ("securesystemslib", "cryptography") and sys.modules.get(root) is None


@dataclass(frozen=True)
class PrivateKey:
    """A private key for signing.

    Attributes:
        key_id: Identifier of the key: a SHA-256 of the public key, in hex.
        public_key: The public key as PEM.
        secret: The key itself.
    """

    key_id: str
    public_key: str
    secret: Ed25519PrivateKey = field(repr=False, compare=False)


def generate() -> PrivateKey:
    """Generate a key.

    Raises:
        ModpackError: If the extra ``sign`` is not installed.
    """
    with requiring_sign_extra():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return _make_private_key(Ed25519PrivateKey.generate())


def read_public(path: str | os.PathLike[str], name: str = "") -> Signer:
    """Return a trusted signer from a public key file.

    Args:
        path: The file.
        name: Name of the signer. By default the file name without its suffix.

    Raises:
        KeyFileError: If the file cannot be read or is not an Ed25519 public key.
    """
    file = Path(path)
    public = public_bytes(_read_key_file(file), str(file))
    return Signer(name or file.stem, normalized(public))


def is_readable_by_others(path: str | os.PathLike[str]) -> bool:
    """Return whether other users can access a private key file."""
    return os.name == "posix" and bool(Path(path).stat().st_mode & 0o077)


def read_private(
    path: str | os.PathLike[str], passphrase: str | Callable[[], str] | None = None
) -> PrivateKey:
    """Read a private key.

    Args:
        path: Its file.
        passphrase: Passphrase of an encrypted key, or a function that returns it on demand.

    Raises:
        KeyFileError: If the file cannot be read, is not an Ed25519 private key, or is encrypted
            and the passphrase is missing or wrong.
        ModpackError: If the extra ``sign`` is not installed.
    """
    file, text = str(Path(path)), _read_key_file(Path(path))
    is_encrypted = _require_private(text, file) == _ENCRYPTED_LABEL
    with requiring_sign_extra():
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

    # Asked for only now: a file that is no key needs no passphrase.
    password = _require_passphrase(file, passphrase) if is_encrypted else None
    try:
        key = load_pem_private_key(text.encode(), password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as failure:
        damaged = "the key is damaged"
        reason = f"the passphrase is wrong, or {damaged}" if is_encrypted else damaged
        raise KeyFileError(file, reason) from failure
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(file, "the private key is not an Ed25519 key", hint=CREATE_KEY)
    return _make_private_key(key)


def write_pair(
    key: PrivateKey,
    path: str | os.PathLike[str],
    *,
    passphrase: str | None = None,
    overwrite: bool = False,
) -> tuple[Path, Path]:
    """Write a private key to ``path`` and its public key to the same path with ``.pub``.

    Args:
        key: The key.
        path: File of the private key, which only its owner can read.
        passphrase: Passphrase to encrypt the key with, if any.
        overwrite: Whether to overwrite existing files.

    Returns:
        Both paths.

    Raises:
        TargetError: If one of the files exists or cannot be written.
        ModpackError: If the extra ``sign`` is not installed.
    """
    _require_name(path)
    private, public = Path(path), public_file(path)
    if not overwrite:
        require_unused(path)
    contents = {
        private: (_private_pem(key, passphrase), _OWNER_ONLY),
        public: (key.public_key.encode(), _FOR_ALL),
    }
    # Both are complete before either replaces a file: a pair must stay a pair.
    staged = {file: file.with_name(f".{file.name}.{secrets.token_hex(8)}") for file in contents}
    claimed: list[Path] = []
    try:
        for file, (content, mode) in contents.items():
            _create(staged[file], file, content, mode)
        # Another process may have created a key since the check, and replacing it would lose it.
        for file in () if overwrite else contents:
            _create(file, file, b"", _OWNER_ONLY)
            claimed.append(file)
        for file, temporary in staged.items():
            with _reporting(file):
                temporary.replace(file)
    except BaseException:
        for file in claimed:
            file.unlink(missing_ok=True)
        raise
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)
    return private, public


def require_unused(path: str | os.PathLike[str]) -> None:
    """Check that no existing file would be overwritten.

    Raises:
        TargetError: If a file exists at one of the two paths.
    """
    _require_name(path)
    for file in (Path(path), public_file(path)):
        if os.path.lexists(file):
            raise TargetError(
                f"{file} already exists, and an overwritten key cannot be recovered",
                hint="Choose another name, or pass --force if the key is no longer needed.",
            )


def public_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of the public key of a private key file.

    >>> public_file("keys/release").name
    'release.pub'
    """
    file = Path(path)
    return file.with_name(f"{file.name}.pub")


def _require_name(path: str | os.PathLike[str]) -> None:
    if Path(path).name in ("", ".."):
        raise TargetError(
            f"cannot write {os.fspath(path)!r}: the path does not end with a file name",
            hint="Append a file name to the path.",
        )


def _make_private_key(secret: Ed25519PrivateKey) -> PrivateKey:
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

    encryption: KeySerializationEncryption = NoEncryption()
    if passphrase:
        encryption = BestAvailableEncryption(_encode(passphrase))
    return key.secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def _require_passphrase(path: str, passphrase: str | Callable[[], str] | None) -> bytes:
    given = passphrase() if callable(passphrase) else passphrase
    if not given:
        raise KeyFileError(
            path,
            "the key is encrypted",
            hint="Pass its passphrase, or set MODPACK_KEY_PASSPHRASE for the command line.",
        )
    return _encode(given)


def _encode(passphrase: str) -> bytes:
    return passphrase.encode("utf-8", "surrogateescape")


def _create(path: Path, target: Path, content: bytes, mode: int) -> None:
    """Write a new file that has ``mode`` from its creation on."""
    # O_EXCL follows no symlink, and the mode holds before the first byte is written.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with _reporting(target), os.fdopen(os.open(path, flags, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _reporting(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        reason = getattr(failure, "strerror", None) or str(failure)
        raise TargetError(f"cannot write {target}: {reason}") from failure
