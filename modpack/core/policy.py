"""Trust policies: restrictions that the loader, never the package, sets.

A package without code is data and cannot execute anything. Code can do everything that the process
can: a policy is not a sandbox. A policy file is a TOML document with the table ``[trust]``:

.. code-block:: toml

    [trust]
    allow_code = true
    allow_externs = ["numpy.**"]
    allow_native = false
    require_signature_from = [{ name = "release", key = "keys/release.pub" }]

Each key is the name of a field of :class:`TrustPolicy`, so that errors about a field also apply to
a file. Missing keys have the defaults of :class:`TrustPolicy`.

Public keys are SubjectPublicKeyInfo in PEM form (RFC 7468). For Ed25519, RFC 8410 makes that a
constant prefix of 12 bytes and then the key, so modpack parses them without a crypto library.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, NamedTuple

from modpack.core.json_values import (
    BrokenTomlError,
    kind_in_toml,
    read_toml,
    require_type,
    unknown_keys,
)
from modpack.core.names import GlobGroup, is_runtime, one_or_several, root_of
from modpack.core.process import stacklevel_outside_package
from modpack.errors import ModpackWarning, PolicyError, PolicyNotFoundError, listed, with_hint

PUBLIC_LABEL: Final = "PUBLIC KEY"
ED25519: Final = bytes.fromhex("302a300506032b6570032100")
"""The constant prefix of the SubjectPublicKeyInfo of an Ed25519 key."""
_KEY_BYTES: Final = 32
_BLOCK: Final = r"(?s:-----BEGIN ([A-Z0-9 ]+)-----\s(.*?)-----END \1-----)"
CREATE_KEY: Final = "Create a key pair with: modpack keygen NAME"


def public_key_bytes(text: str) -> bytes:
    """Return the 32 bytes of an Ed25519 public key.

    Args:
        text: The key, as PEM.

    Raises:
        ValueError: If it is not an Ed25519 public key; the text includes the fix.
    """
    label, body = pem_block(text)
    if "PRIVATE" in label:
        raise ValueError(
            "expected a public key, got a private key, which only its owner should have. Use the "
            "public key, which modpack keygen writes to NAME.pub."
        )
    if label != PUBLIC_LABEL:
        raise ValueError(f"expected a public key, got {label!r}. {CREATE_KEY}")
    try:
        # Without `validate`, invalid characters are skipped, and damaged data could be another key.
        content = base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error as failure:
        raise ValueError(f"the PEM data is damaged. {CREATE_KEY}") from failure
    if len(content) != len(ED25519) + _KEY_BYTES or not content.startswith(ED25519):
        raise ValueError(f"the public key is not an Ed25519 key. {CREATE_KEY}")
    public = content[len(ED25519) :]
    if _has_small_order(public):
        raise ValueError(f"the public key is weak: anyone can sign for it. {CREATE_KEY}")
    return public


def _has_small_order(public: bytes) -> bool:
    """Return whether eight times the point of an Ed25519 key is zero.

    Signatures of such keys are valid for messages that nobody signed. With ``x^2 + y^2 = 0`` for a
    point whose double has the order 4, these are the roots of the curve's equation (RFC 8032).
    """
    y = int.from_bytes(public, "little") % (1 << 255)
    root = y * (y * y - 1) * (121665 * y**4 - 121666 * (2 * y * y - 1))
    return root % ((1 << 255) - 19) == 0


def pem_block(text: str) -> tuple[str, str]:
    """Return label and body of the only PEM block in a text.

    Raises:
        ValueError: If there is no block, or more than one; the text includes the fix.
    """
    found = re.findall(_BLOCK, text)
    if "OPENSSH PRIVATE KEY" in text or text.lstrip().startswith("ssh-"):
        raise ValueError(f"expected a key in PEM form, got an OpenSSH key. {CREATE_KEY}")
    if not found:
        raise ValueError(f"no key in PEM form found. {CREATE_KEY}")
    # Which of several keys is meant would depend on their order.
    if len(found) > 1:
        raise ValueError(f"expected one key, got {len(found)}. Store each key in its own file.")
    label, body = found[0]
    return label, body


VERIFY_LEVELS: Final = ("code", "full")
"""The levels of verification on loading, the stricter one last."""

PATTERN_FIELDS: Final = ("allow_externs", "allow_stdlib")
"""The fields of a policy that contain patterns."""
_LANGUAGE: Final = frozenset({"builtins", "__future__"})
"""Modules that every module needs."""
CODE_FROM_ANYONE: Final = (
    "the trust policy allows code without a signature: any package can execute any code"
)
HOW_TO_REQUIRE_A_SIGNATURE: Final = "Set require_signature_from, or remove allow_code."
_LEVELS: Final = "'code', 'full', or None"
_SIGNER_OBJECTS: Final = "Signer objects: modpack.Signer(name, public_key)"


@dataclass(frozen=True)
class Signer:
    """A signer whose signature a policy accepts.

    Attributes:
        name: Name of the key's owner, used in messages.
        public_key: The Ed25519 public key, as PEM text (SubjectPublicKeyInfo).

    Raises:
        TypeError: If a field is not a string.
        ValueError: If the name is empty, or the key is not an Ed25519 public key.
    """

    name: str
    public_key: str

    def __post_init__(self) -> None:
        require_type(self.name, str, "name", "a str")
        require_type(self.public_key, str, "public_key", "PEM text (str)")
        if not self.name.strip():
            raise ValueError("name must not be empty")
        try:
            public_key_bytes(self.public_key)
        except ValueError as failure:
            raise ValueError(f"public_key: {failure}") from failure


@dataclass(frozen=True, kw_only=True)
class TrustPolicy:
    """Restrictions on a package, which modpack checks before any of its code runs.

    By default, a package may contain data but no code. Data consists of tensors, containers,
    numbers, and strings, from a short list of exact names. Everything else is code: sources,
    hooks, ScriptModules, native extensions, and pickles with other names. Most models need code,
    and code has all permissions of the process: set ``allow_code=True`` only if you trust the
    publisher, and name the publisher's key in ``require_signature_from``.

    The other restrictions are patterns as in rules (``numpy.**``): one, several, or None for no
    restriction. They describe honest packages; malicious code can evade them. torch, modpack, and
    the language itself (``builtins``) are always allowed.

    Attributes:
        allow_code: Whether the package may contain code. Unless a signature is required, that
            is code from anyone, and a :class:`ModpackWarning` says so.
        allow_externs: Extern modules that packaged code and pickles may import, except those of
            the standard library.
        allow_stdlib: Modules of the standard library that they may import.
        allow_pickle_globals: Exact names (``numpy.dtype``) that pickles of a package without code
            may use in addition to the built-in list. Pickles can call them with any arguments:
            allowing ``functools.partial`` allows code.
        require_signature_from: Signers, one of whom must have signed the package. The default, an
            empty tuple, requires no signature.
        allow_native: Whether the package may contain native extensions and libraries.
        verify: Records to compare with their digests on loading: ``"code"`` for all except
            tensors, ``"full"`` for all. The default, None, means ``"full"`` if a signature is
            required, because signatures cover the tensors, and ``"code"`` otherwise.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is invalid, or two values contradict each other.

    >>> policy = TrustPolicy(allow_externs="numpy.**")
    >>> policy.allows_extern("numpy.linalg"), policy.allows_extern("requests")
    (True, False)
    >>> TrustPolicy(allow_externs="numpy..linalg")
    Traceback (most recent call last):
    ValueError: allow_externs: the pattern 'numpy..linalg' has an empty component
    """

    allow_code: bool = False
    allow_externs: tuple[str, ...] | None = None
    allow_stdlib: tuple[str, ...] | None = None
    allow_pickle_globals: tuple[str, ...] = ()
    require_signature_from: tuple[Signer, ...] = ()
    allow_native: bool = True
    verify: Literal["code", "full"] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _checked(field.name, getattr(self, field.name)))
        if self.allow_code and self.allow_pickle_globals:
            raise ValueError(
                "allow_pickle_globals is for packages without code, but allow_code is True. Set "
                "only one of the two."
            )
        level = self.verify or ("full" if self.require_signature_from else "code")
        # Resolved here, so that the field shows what a load checks.
        object.__setattr__(self, "verify", level)
        if self.allow_code and not self.require_signature_from:
            warnings.warn(
                with_hint(CODE_FROM_ANYONE, HOW_TO_REQUIRE_A_SIGNATURE),
                ModpackWarning,
                stacklevel=stacklevel_outside_package(),
            )

    @staticmethod
    def from_toml(path: str | os.PathLike[str]) -> TrustPolicy:
        """Read a policy from the table ``[trust]`` of a TOML file.

        Args:
            path: The file. Paths of keys in it are relative to its folder.

        Raises:
            PolicyNotFoundError: If the file does not exist. Also a FileNotFoundError.
            PolicyError: If the file is unreadable or invalid; the error lists all problems.
        """
        file = Path(path)
        try:
            document = read_toml(file)
        except FileNotFoundError as failure:
            raise PolicyNotFoundError(str(file), ("the file does not exist",)) from failure
        except BrokenTomlError as failure:
            raise PolicyError(str(file), (str(failure),)) from failure
        except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
            reason = getattr(failure, "strerror", None) or str(failure)
            raise PolicyError(str(file), (f"cannot read the policy: {reason}",)) from failure
        problems: list[str] = []
        policy = _policy_in(document, file.parent, problems)
        if policy is None:
            raise PolicyError(str(file), tuple(problems))
        return policy

    def allows_extern(self, module: str) -> bool:
        """Return whether a package may import a module of the loading environment.

        >>> TrustPolicy(allow_externs=()).allows_extern("os")
        True
        >>> TrustPolicy(allow_stdlib=("math", "collections.**")).allows_extern("os")
        False
        """
        if is_runtime(module) or module in _LANGUAGE:
            return True
        is_standard = root_of(module) in sys.stdlib_module_names
        patterns = self.allow_stdlib if is_standard else self.allow_externs
        return patterns is None or _group(patterns).matches(module)

    @property
    def restricts_imports(self) -> bool:
        """Whether an import of a module of the loading environment can be refused."""
        return self.allow_externs is not None or self.allow_stdlib is not None


@lru_cache(maxsize=64)
def _group(patterns: tuple[str, ...]) -> GlobGroup:
    return GlobGroup(patterns)


def _checked(field: str, value: object) -> object:
    """Return the checked value of a field of :class:`TrustPolicy`.

    Raises:
        TypeError: If it has the wrong type; the text starts with the field.
        ValueError: If it is not valid.
    """
    if field in ("allow_code", "allow_native"):
        require_type(value, bool, field, "a bool")
        return value
    if field == "verify":
        require_type(value, (str, NoneType), field, _LEVELS)
        if value not in (None, *VERIFY_LEVELS):
            raise ValueError(f"{field} must be {_LEVELS}, not {value!r}")
        return value
    if field == "require_signature_from":
        signers = one_or_several(value, Signer, field, _SIGNER_OBJECTS)
        for signer in signers:
            require_type(signer, Signer, field, _SIGNER_OBJECTS)
        return signers
    # None allows everything, and an empty tuple nothing.
    if value is None and field in PATTERN_FIELDS:
        return None
    noun, several = "pattern", ", several patterns or None"
    if field == "allow_pickle_globals":
        noun, several = "name", " or several names"
    texts = one_or_several(value, str, field, f"a {noun}{several}")
    for text in texts:
        require_type(text, str, field, f"{noun}s (str)")
        try:
            _check_text(text, field)
        except ValueError as failure:
            raise ValueError(f"{field}: {failure}") from failure
    return texts


def _check_text(text: str, field: str) -> None:
    """Check a pattern or a name of a field; the error does not name the field.

    Raises:
        ValueError: If it is not valid.
    """
    if field == "allow_pickle_globals":
        parts = text.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            raise ValueError(
                f"{text!r} is not an exact name such as 'numpy.dtype'. Patterns are not allowed, "
                "because they could match names that execute code."
            )
        return
    try:
        GlobGroup(text)
    except ValueError as failure:
        # GlobGroup names its own argument, and the caller names the field.
        raise ValueError(str(failure).removeprefix("include: ")) from failure


_TABLE: Final = "trust"
_SIGNERS: Final = "require_signature_from"
_MAX_KEY_BYTES: Final = 1 << 16


def _policy_in(
    document: Mapping[str, object], folder: Path, problems: list[str]
) -> TrustPolicy | None:
    """Return the policy in a document, or None if there are problems, which are all collected.

    Args:
        document: The parsed file.
        folder: Its folder, from which paths of keys start.
        problems: The list to extend.
    """
    table = document.get(_TABLE)
    if not isinstance(table, Mapping):
        found = f"must be a table, not {kind_in_toml(table)}"
        problems.append(f"the table [{_TABLE}] {found if _TABLE in document else 'is missing'}")
        return None
    others = [key for key in document if key != _TABLE]
    problems += [f"{key}: unexpected key outside the table [{_TABLE}]" for key in others]
    known = [field.name for field in fields(TrustPolicy)]
    # An error, because a misspelled restriction would restrict nothing.
    problems += unknown_keys(table, known, _TABLE)
    values: dict[str, Any] = {}
    for key in filter(table.__contains__, known):
        try:
            if key == _SIGNERS:
                values[key] = _read_signers(table[key], folder, problems)
            else:
                values[key] = _checked(key, table[key])
        except (TypeError, ValueError) as failure:
            problems.append(f"{_TABLE}.{failure}")
    try:
        return None if problems else TrustPolicy(**values)
    except ValueError as failure:  # two fields contradict each other
        problems.append(f"{_TABLE}.{failure}")
        return None


def _read_signers(value: object, folder: Path, problems: list[str]) -> list[Signer]:
    if not isinstance(value, list):
        raise TypeError(f"{_SIGNERS} must be an array of tables, not {kind_in_toml(value)}")
    # An empty list would require no signature, which is hardly what its author expects.
    if not value:
        raise ValueError(
            f"{_SIGNERS}: the array is empty. Name a signer, or remove the key to require no "
            "signature."
        )
    signers = []
    for index, table in enumerate(value):
        path = f"{_TABLE}.{_SIGNERS}[{index}]"
        if not isinstance(table, Mapping):
            example = '{ name = "release", key = "release.pub" }'
            problems.append(f"{path} must be a table such as {example}, not {kind_in_toml(table)}")
            continue
        problems += unknown_keys(table, ("name", "key"), path)
        name, key = table.get("name"), table.get("key")
        if not (isinstance(name, str) and name.strip() and isinstance(key, str) and key.strip()):
            problems.append(f"{path} must have a name and a key, which are non-empty strings")
            continue
        file = folder / key
        try:
            signers.append(Signer(name, _read_key(file)))
        except OSError as failure:
            problems.append(f"{path}.key: {file}: {failure.strerror or failure}")
        except ValueError as failure:
            reason = str(failure).removeprefix("public_key: ")
            problems.append(f"{path}.key: {file}: {reason}")
    return signers


def _read_key(path: Path) -> str:
    with path.open("rb") as file:
        # Limited, because the path may lead to a device without an end.
        content = file.read(_MAX_KEY_BYTES + 1)
    if len(content) > _MAX_KEY_BYTES:
        raise ValueError(f"the file is larger than {_MAX_KEY_BYTES} bytes, so it is not a key")
    return content.decode("ascii", "replace")  # other text is reported as "no key in PEM form"


_MAX_CHARACTERS: Final = 100


class PolicyViolation(NamedTuple):
    """Something that a package requires and a trust policy does not allow.

    Attributes:
        field: The restricting field of :class:`TrustPolicy`.
        subject: The module or record.
        message: The problem, as a clause.
        hint: How to fix it.
    """

    field: str
    subject: str
    message: str
    hint: str

    def __str__(self) -> str:
        return with_hint(self.message, self.hint)


def violations(
    policy: TrustPolicy,
    *,
    code: Sequence[str] = (),
    externs: Iterable[str] = (),
    native_records: Sequence[str] = (),
) -> tuple[PolicyViolation, ...]:
    """Return everything that a package requires and a policy does not allow.

    Args:
        policy: The policy.
        code: A short description of each kind of code in the package.
        externs: The extern modules of the package.
        native_records: The records with native extensions or libraries.

    >>> found = violations(TrustPolicy(allow_externs=()), externs=["torch.nn", "yaml"])
    >>> [each.message for each in found]
    ["extern module 'yaml' is not allowed by the trust policy"]
    """
    found: list[PolicyViolation] = []
    if code and not policy.allow_code:
        hint = (
            "Load only packages that contain data. If you trust the publisher, set allow_code to "
            "true and name trusted signers in require_signature_from. If only names that you know "
            "to be harmless are rejected, add them to allow_pickle_globals."
        )
        message = f"code is not allowed by the trust policy: {listed(code, between='; ')}"
        found.append(PolicyViolation("allow_code", code[0], message, hint))
    # One line for each top-level name: a package may declare hundreds of submodules.
    by_root: dict[str, list[str]] = {}
    for module in dict.fromkeys(externs):
        if not policy.allows_extern(module):
            by_root.setdefault(root_of(module), []).append(module)
    for root, modules in by_root.items():
        pattern = modules[0] if modules == [root] else f"{root}.**"
        found.append(_extern_violation(root, modules, pattern))
    if native_records and not policy.allow_native:
        message = (
            "native extensions and libraries are not allowed by the trust policy: "
            f"{_shown_names(native_records)}"
        )
        hint = "Load only packages without native code, or set allow_native to true."
        found.append(PolicyViolation("allow_native", native_records[0], message, hint))
    return tuple(found)


def import_violation(policy: TrustPolicy, module: str) -> PolicyViolation | None:
    """Return why a policy does not allow an extern module; None if it allows the module."""
    return None if policy.allows_extern(module) else _extern_violation(module, [module], module)


def _extern_violation(subject: str, modules: Sequence[str], pattern: str) -> PolicyViolation:
    is_standard = root_of(subject) in sys.stdlib_module_names
    noun = "standard-library module" if is_standard else "extern module"
    verb = "is" if len(modules) == 1 else "are"
    nouns = noun if len(modules) == 1 else f"{noun}s"
    message = f"{nouns} {_shown_names(modules)} {verb} not allowed by the trust policy"
    field = "allow_stdlib" if is_standard else "allow_externs"
    hint = f"If you trust the package, add {_quoted(pattern)} to {field}."
    return PolicyViolation(field, subject, message, hint)


def _shown_names(names: Sequence[str]) -> str:
    return listed([_quoted(name) for name in names], 5)


def _quoted(name: str) -> str:
    """Return the quoted, shortened form of a name from a package."""
    text = repr(name)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
