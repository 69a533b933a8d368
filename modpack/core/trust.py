"""What a loader trusts: policies, which belong to whoever loads a package and never to the package.

A policy is not a sandbox: what it lets through runs with all rights of the process.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from modpack.core.arguments import require_type
from modpack.core.globs import GlobGroup
from modpack.core.hookspec import HOOK_KINDS
from modpack.core.names import root_of
from modpack.core.publickeys import public_key_bytes

__all__ = [
    "PATTERN_FIELDS",
    "VERIFY_LEVELS",
    "Signer",
    "TrustPolicy",
    "is_pattern",
    "require_pattern",
]

VERIFY_LEVELS: Final = ("code", "all")
"""What can be compared with its digests on loading, from less to more."""

PATTERN_FIELDS: Final = ("externs", "standard_library", "pickle_globals", "hook_kinds")
"""The fields of a policy that hold patterns."""
_RUNTIME: Final = frozenset({"torch", "torchgen", "functorch", "modpack"})
"""What is there wherever a package is loaded."""
_LANGUAGE: Final = frozenset({"builtins", "__future__"})
"""What no module can do without."""
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

    Restrictions are patterns in the language of rules (``numpy.**``): one, several, or None for no
    restriction. torch and modpack are always there, and so is the language itself (``builtins``).

    A policy says what a package may ask for, and refuses what asks for more. It is not a sandbox:
    code that is let in runs with all rights of the process.

    Attributes:
        externs: modules from outside the package that its code and its pickles may import, but for
            the standard library.
        standard_library: the same for modules of the standard library.
        pickle_globals: what its pickles may name (``collections.OrderedDict``, ``numpy.**``) beyond
            what the built-in list knows to be harmless and what the package's own modules define;
            an empty tuple allows nothing beyond these, None allows everything.
        hook_kinds: kinds of hooks that it may have (``forward``, ``optimizer.*``).
        signers: if there are any, a valid signature of one of them is demanded. Without any, none
            is: an empty tuple is the default, and demands nothing.
        native: whether compiled modules and libraries may travel in it.
        verify: ``"code"`` compares everything but tensors with its digests on loading, ``"all"``
            the tensors as well. By default ``"all"`` if signatures are demanded, for they speak
            for the tensors too, else ``"code"``.

    Raises:
        TypeError, ValueError: a value is none of these; it is named.

    >>> policy = TrustPolicy(externs="numpy.**", hook_kinds=("forward", "forward_pre"))
    >>> policy.allows_extern("numpy.linalg"), policy.allows_extern("requests")
    (True, False)
    >>> TrustPolicy(hook_kinds="forwards")
    Traceback (most recent call last):
    ValueError: hook_kinds: no kind of hook matches 'forwards'. Did you mean 'forward'?
    """

    externs: tuple[str, ...] | None = None
    standard_library: tuple[str, ...] | None = None
    pickle_globals: tuple[str, ...] | None = None
    hook_kinds: tuple[str, ...] | None = None
    signers: tuple[Signer, ...] = ()
    native: bool = True
    verify: str = ""

    def __post_init__(self) -> None:
        for name in PATTERN_FIELDS:
            object.__setattr__(self, name, _patterns(getattr(self, name), name))
        object.__setattr__(self, "signers", _signers(self.signers))
        require_type(self.native, bool, "native", "a bool")
        require_type(self.verify, str, "verify", "'code' or 'all'")
        if self.verify not in ("", *VERIFY_LEVELS):
            raise ValueError(f"verify must be 'code' or 'all', not {self.verify!r}")
        level = self.verify or ("all" if self.signers else "code")
        object.__setattr__(self, "verify", level)

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

    def allows_global(self, module: str, name: str) -> bool:
        """Whether a pickle may name something that no built-in list knows.

        Args:
            module: where it is taken from.
            name: what is taken, dotted; empty for the module itself.
        """
        if self._pickle_globals is None:
            return True
        return self._pickle_globals.matches(f"{module}.{name}" if name else module)

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
    def _pickle_globals(self) -> GlobGroup | None:
        return None if self.pickle_globals is None else GlobGroup(self.pickle_globals)

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


def is_pattern(text: str, field: str) -> bool:
    """Whether a text can be a pattern in a field of a policy; see :func:`require_pattern`."""
    try:
        require_pattern(text, field)
    except ValueError:
        return False
    return True


def _signers(given: object) -> tuple[Signer, ...]:
    listed = [given] if isinstance(given, Signer) else given
    if isinstance(listed, (str, bytes, Mapping)) or not isinstance(listed, Iterable):
        raise TypeError(f"signers must be {_SIGNER_OBJECTS}, not {type(given).__name__}")
    signers = tuple(listed)
    for signer in signers:
        require_type(signer, Signer, "signers", _SIGNER_OBJECTS)
    return signers
