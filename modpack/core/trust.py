"""What a loader trusts: policies, which belong to whoever loads a package and never to the package.

Without code a package is data, and cannot do anything. With code it can do everything: a policy is
no sandbox.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from modpack.core.arguments import require_type
from modpack.core.frames import frames_of_ours
from modpack.core.globs import GlobGroup
from modpack.core.hookspec import HOOK_KINDS
from modpack.core.names import root_of
from modpack.core.publickeys import public_key_bytes
from modpack.errors import ModpackWarning

__all__ = [
    "CODE_FROM_ANYBODY",
    "PATTERN_FIELDS",
    "VERIFY_LEVELS",
    "Signer",
    "TrustPolicy",
    "require_exact_name",
    "require_pattern",
]

VERIFY_LEVELS: Final = ("code", "all")
"""What can be compared with its digests on loading, from less to more."""

PATTERN_FIELDS: Final = ("externs", "standard_library", "hook_kinds")
"""The fields of a policy that hold patterns."""
_RUNTIME: Final = frozenset({"torch", "torchgen", "functorch", "modpack"})
"""What is there wherever a package is loaded."""
_LANGUAGE: Final = frozenset({"builtins", "__future__"})
"""What no module can do without."""
CODE_FROM_ANYBODY: Final = (
    "the policy allows code and demands no signature: whoever makes a package can do anything in "
    "the process that loads it. Remedy: name signers, or leave allow_code out"
)
_SIGNER_OBJECTS: Final = "Signer objects: modpack.Signer(name, public_key)"


@dataclass(frozen=True)
class Signer:
    """Someone whose signature a policy accepts.

    Attributes:
        name: what people call the key's owner.
        public_key: the Ed25519 public key, as PEM text (SubjectPublicKeyInfo).

    Raises:
        TypeError: one of them is no text.
        ValueError: the name is empty, or the key is no Ed25519 public key.
    """

    name: str
    public_key: str

    def __post_init__(self) -> None:
        require_type(self.name, str, "name", "a str")
        require_type(self.public_key, str, "public_key", "PEM text (str)")
        if not self.name.strip():
            raise ValueError("name must say whose key it is; it is empty")
        public_key_bytes(self.public_key)


@dataclass(frozen=True, kw_only=True)
class TrustPolicy:
    """What a package may ask of the process that loads it; checked before any of its code runs.

    By default a package may hold data, and no code. What is data is a short list of exact names
    (tensors, containers, numbers, texts); everything else is code: sources, hooks, ScriptModules,
    compiled modules, pickles that name anything else. Most models need code, and code runs with
    all rights of the process: ``allow_code=True`` says that you trust whoever made the package.
    ``signers`` says who that is.

    The other restrictions are patterns in the language of rules (``numpy.**``): one, several, or
    None for no restriction. They tell apart honest packages; code that wants to get around them
    can. torch and modpack are always there, and so is the language itself (``builtins``).

    Attributes:
        allow_code: whether the package may hold code. Without signers that is code from anybody,
            and a :class:`ModpackWarning` says so.
        externs: modules from outside the package that its code and its pickles may import, but for
            the standard library.
        standard_library: the same for modules of the standard library.
        pickle_globals: exact names (``numpy.dtype``) that pickles of a package without code may
            take besides the list. They are called as the pickle wants: whoever adds
            ``functools.partial`` adds code.
        hook_kinds: kinds of hooks that it may have (``forward``, ``optimizer.*``).
        signers: if there are any, a valid signature of one of them is demanded. Without any, none
            is: an empty tuple is the default, and demands nothing.
        native: whether compiled modules and libraries may travel in it.
        verify: ``"code"`` compares everything but tensors with its digests on loading, ``"all"``
            the tensors as well. By default ``"all"`` if signatures are demanded, for they speak
            for the tensors too, else ``"code"``.

    Raises:
        TypeError, ValueError: a value is none of these, or two do not go together; they are named.

    >>> policy = TrustPolicy(externs="numpy.**", hook_kinds=("forward", "forward_pre"))
    >>> policy.allows_extern("numpy.linalg"), policy.allows_extern("requests")
    (True, False)
    >>> TrustPolicy(hook_kinds="forwards")
    Traceback (most recent call last):
    ValueError: hook_kinds: no kind of hook matches 'forwards'. Did you mean 'forward'?
    """

    allow_code: bool = False
    externs: tuple[str, ...] | None = None
    standard_library: tuple[str, ...] | None = None
    pickle_globals: tuple[str, ...] = ()
    hook_kinds: tuple[str, ...] | None = None
    signers: tuple[Signer, ...] = ()
    native: bool = True
    verify: str = ""

    def __post_init__(self) -> None:
        for name in PATTERN_FIELDS:
            object.__setattr__(self, name, _patterns(getattr(self, name), name))
        require_type(self.allow_code, bool, "allow_code", "a bool")
        object.__setattr__(self, "pickle_globals", _exact_names(self.pickle_globals))
        if self.allow_code and self.pickle_globals:
            raise ValueError(
                "pickle_globals adds names for packages without code; with allow_code=True pickles "
                "may name everything. Remedy: give one of the two"
            )
        object.__setattr__(self, "signers", _signers(self.signers))
        require_type(self.native, bool, "native", "a bool")
        require_type(self.verify, str, "verify", "'code' or 'all'")
        if self.verify not in ("", *VERIFY_LEVELS):
            raise ValueError(f"verify must be 'code' or 'all', not {self.verify!r}")
        level = self.verify or ("all" if self.signers else "code")
        object.__setattr__(self, "verify", level)
        if self.allow_code and not self.signers:
            warnings.warn(CODE_FROM_ANYBODY, ModpackWarning, stacklevel=frames_of_ours())

    @staticmethod
    def from_toml(path: str | os.PathLike[str]) -> TrustPolicy:
        """Read a policy from the table ``[trust]`` of a TOML file.

        Args:
            path: the file. Paths of keys in it are relative to its folder.

        Raises:
            PolicyNotFoundError: there is no such file; a FileNotFoundError, too.
            PolicyError: it cannot be read, or something in it is wrong; all of it is told.
        """
        from modpack.core.trustfile import read_policy

        return read_policy(path)

    def allows_extern(self, module: str) -> bool:
        """Whether a module from outside the package may be imported.

        >>> TrustPolicy(externs=()).allows_extern("os")
        True
        >>> TrustPolicy(standard_library=("math", "collections.**")).allows_extern("os")
        False
        """
        root = root_of(module)
        if root in _RUNTIME or module in _LANGUAGE:
            return True
        is_standard = root in sys.stdlib_module_names
        patterns = self._standard_library if is_standard else self._externs
        return patterns is None or patterns.matches(module)

    def allows_hook(self, kind: str) -> bool:
        """Whether a package may have hooks of a kind."""
        return self._hook_kinds is None or self._hook_kinds.matches(kind)

    @cached_property
    def _externs(self) -> GlobGroup | None:
        return None if self.externs is None else GlobGroup(self.externs)

    @cached_property
    def _standard_library(self) -> GlobGroup | None:
        return None if self.standard_library is None else GlobGroup(self.standard_library)

    @cached_property
    def _hook_kinds(self) -> GlobGroup | None:
        return None if self.hook_kinds is None else GlobGroup(self.hook_kinds)


def _patterns(given: object, argument: str) -> tuple[str, ...] | None:
    """The patterns of an argument, each of which is one."""
    if given is None:
        return None
    listed = [given] if isinstance(given, str) else given
    if isinstance(listed, (bytes, bytearray)) or not isinstance(listed, Iterable):
        kind = type(given).__name__
        raise TypeError(f"{argument} must be a pattern, several patterns or None, not {kind}")
    patterns = tuple(listed)
    for pattern in patterns:
        require_type(pattern, str, argument, "patterns (str)")
        try:
            require_pattern(pattern, argument)
        except ValueError as failure:
            raise ValueError(f"{argument}: {failure}") from failure
    return patterns


def _exact_names(given: object) -> tuple[str, ...]:
    """The names of ``pickle_globals``, each of which is a whole one."""
    listed = [given] if isinstance(given, str) else given
    if isinstance(listed, (bytes, bytearray)) or not isinstance(listed, Iterable):
        kind = type(given).__name__
        raise TypeError(f"pickle_globals must be a name or several names, not {kind}")
    names = tuple(listed)
    for name in names:
        require_type(name, str, "pickle_globals", "names (str)")
        require_exact_name(name)
    return names


def require_exact_name(name: str) -> None:
    """Check a name of ``pickle_globals``.

    Raises:
        ValueError: it is a pattern, or no name of something in a module.
    """
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(
            f"pickle_globals: {name!r} is no exact name such as 'numpy.dtype'; patterns are not "
            "allowed here, for nobody knows all that they match"
        )


def require_pattern(pattern: str, field: str) -> None:
    """Check a pattern of a policy.

    Args:
        pattern: the pattern.
        field: the field of :class:`TrustPolicy` that it is for. One for kinds of hooks has to match
            one: a misspelled kind would allow nothing, and nobody would know why.

    Raises:
        ValueError: it is none; does not name the field.
    """
    try:
        group = GlobGroup(pattern)
    except ValueError as failure:
        raise ValueError(str(failure).removeprefix("include: ")) from failure
    if field != "hook_kinds" or any(map(group.matches, HOOK_KINDS)):
        return
    similar = difflib.get_close_matches(pattern, sorted(HOOK_KINDS), n=1)
    hint = f"Did you mean {similar[0]!r}?" if similar else "There are forward, forward_pre and more"
    raise ValueError(f"no kind of hook matches {pattern!r}. {hint}")


def _signers(given: object) -> tuple[Signer, ...]:
    listed = [given] if isinstance(given, Signer) else given
    if isinstance(listed, (str, bytes, Mapping)) or not isinstance(listed, Iterable):
        raise TypeError(f"signers must be {_SIGNER_OBJECTS}, not {type(given).__name__}")
    signers = tuple(listed)
    for signer in signers:
        require_type(signer, Signer, "signers", _SIGNER_OBJECTS)
    return signers
