"""What a loader trusts: policies, which belong to whoever loads a package and never to the package.

A policy is not a sandbox: what it lets through runs with all rights of the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Signer", "TrustPolicy"]


@dataclass(frozen=True)
class Signer:
    """Someone whose signature a policy accepts.

    Attributes:
        name: what people call the key's owner.
        public_key: the Ed25519 public key, as PEM text (SubjectPublicKeyInfo).
    """

    name: str
    public_key: str


@dataclass(frozen=True)
class TrustPolicy:
    """What a package may ask of the process that loads it; checked before any of its code runs.

    Each of the first three is a tuple of patterns in the language of rules (``torch.**``), or None
    for no restriction.

    Attributes:
        externs: modules from outside the package that its code and its pickles may import.
        pickle_globals: what its pickles may name (``collections.OrderedDict``, ``numpy.**``) beyond
            what the built-in list knows to be harmless and what the package's own modules define;
            an empty tuple allows nothing beyond these, None allows everything.
        hook_kinds: kinds of hooks that may be registered (``forward``, ``forward_pre`` ...).
        signers: if there are any, a valid signature of one of them is demanded.
        native: whether compiled modules that travel in the package may be loaded.
        verify: ``"code"`` compares everything but tensors with its digests on loading, ``"all"``
            the tensors as well.
    """

    externs: tuple[str, ...] | None = None
    pickle_globals: tuple[str, ...] | None = None
    hook_kinds: tuple[str, ...] | None = None
    signers: tuple[Signer, ...] = field(default=())
    native: bool = True
    verify: str = "code"
