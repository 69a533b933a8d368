"""What a package asks for and a policy does not allow, read off its records."""

from __future__ import annotations

from collections.abc import Mapping

from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.archive.records import read_externs, read_specs
from modpack.core.policy import TrustPolicy, Violation, violations
from modpack.security.code_listing import CodeListing, code_kinds, native_records

_SPECS_START, _SPECS_END = hook_records("\0")[0].split("\0")


def package_violations(
    archive: Archive, policy: TrustPolicy, code: CodeListing | None
) -> tuple[Violation, ...]:
    """Everything that a package asks for and a policy does not allow; nothing is executed.

    Args:
        archive: the package; its records are as its manifest says.
        policy: what the loader allows.
        code: what of the package is code; None if the policy allows code.

    Raises:
        ModpackError: a record is damaged.
    """
    return violations(
        policy,
        code=() if code is None else code_kinds(code, policy.pickle_globals),
        externs=read_externs(archive),
        hook_kinds=_hook_kinds(archive),
        native_records=() if policy.native else tuple(native_records(archive)),
    )


def _hook_kinds(archive: Archive) -> Mapping[str, list[str]]:
    """The names of all hooks, by kind."""
    found: dict[str, list[str]] = {}
    for name in archive.names():
        if name.startswith(_SPECS_START) and name.endswith(_SPECS_END):
            record = name[len(_SPECS_START) : -len(_SPECS_END)]
            for spec in read_specs(archive, record):
                found.setdefault(spec.kind, []).append(spec.name)
    return found
