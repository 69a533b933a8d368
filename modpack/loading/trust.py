"""A loader's policy, enforced: on what a package says, and again on what happens."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from modpack.archive.base import Archive
from modpack.archive.manifest import read_manifest
from modpack.core.json_values import require_type
from modpack.core.policy import TrustPolicy, violations
from modpack.errors import SignatureError, TrustError


def require_policy(policy: object) -> None:
    """Check a public argument that is a policy, or None.

    Raises:
        TypeError: it is something else.
    """
    expected = "a TrustPolicy or None; TrustPolicy.from_toml reads one from a file"
    require_type(policy, (TrustPolicy, type(None)), "policy", expected)


def require_trust(archive: Archive, policy: TrustPolicy, path: object) -> None:
    """Refuse a package that asks for what a policy does not allow; nothing of it is executed.

    Args:
        archive: the package; all but its tensors is as its manifest says.
        policy: what the loader allows.
        path: its file or folder, which a signature may lie beside; anything else if it has none.

    Raises:
        TrustError: tells all that is not allowed.
        SignatureError: nothing is wrong but the signature.
        ArchiveError: a record is damaged.
    """
    from modpack.security.code_listing import list_package  # most loads do without
    from modpack.security.policy_check import package_violations

    code = None if policy.allow_code else list_package(archive, read_manifest(archive))
    problems = [str(each) for each in package_violations(archive, policy, code)]
    try:
        require_signature(archive, policy, path)
    except SignatureError as failure:
        if not problems:
            raise
        raise TrustError(archive.source, (failure.reason, *problems)) from failure
    if problems:
        raise TrustError(archive.source, tuple(problems))


def require_signature(archive: Archive, policy: TrustPolicy, path: object) -> None:
    """Refuse a package that nobody of those signed who have to, if anybody has to.

    Raises:
        SignatureError: there is no signature, or none that holds.
        ModpackError: the extra ``sign`` is not installed.
    """
    if policy.signers:
        from modpack.security.signing import check_signatures

        file = path if isinstance(path, (str, os.PathLike)) else None
        check_signatures(archive, policy.signers, file)


@dataclass(frozen=True)
class ObjectTrust:
    """What the objects of a package may be and have, by a policy.

    Attributes:
        archive: the package.
        policy: what the loader allows.
    """

    archive: Archive
    policy: TrustPolicy

    @property
    def restricts_hooks(self) -> bool:
        """Whether not all kinds of hooks are allowed."""
        return self.policy.hook_kinds is not None

    def require_hooks(self, kinds: Iterable[tuple[str, str]]) -> None:
        """Refuse hooks of kinds that are not allowed.

        Args:
            kinds: the kind and the name of each hook.

        Raises:
            TrustError: names them.
        """
        found: dict[str, list[str]] = {}
        for kind, name in kinds:
            found.setdefault(kind, []).append(name)
        problems = violations(self.policy, hook_kinds=found)
        if problems:
            raise TrustError(self.archive.source, tuple(map(str, problems)))
