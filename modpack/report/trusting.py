"""What a package asks for and a policy does not allow, read off its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.externs import read_externs
from modpack.archive.specs import read_specs
from modpack.core.hookspec import hook_records
from modpack.core.native import is_machine_code
from modpack.core.trust import TrustPolicy, is_pattern
from modpack.core.trusting import Violation, violations
from modpack.report.auditing.facts import Finding
from modpack.report.scanning.allowing import NAMING

__all__ = ["is_of_name", "name_remedy", "package_violations"]

_SPECS_START, _SPECS_END = hook_records("\0")[0].split("\0")


def package_violations(archive: Archive, policy: TrustPolicy) -> tuple[Violation, ...]:
    """Everything that a package asks for and a policy does not allow, but for names in pickles.

    Nothing is executed. What the package does not tell is not known here: names in pickles and
    imports are checked again when they happen.

    Args:
        archive: the package; its records are as its manifest says.
        policy: what the loader allows.

    Raises:
        ModpackError: a record is damaged.
    """
    return violations(
        policy,
        externs=read_externs(archive),
        hook_kinds=_hook_kinds(archive),
        native_records=() if policy.native else tuple(_native_records(archive)),
    )


def is_of_name(found: Finding) -> bool:
    """Whether a finding of the scan is about a name in a pickle, which a policy can allow."""
    return found.code in NAMING


def name_remedy(found: Finding, policy: TrustPolicy) -> str:
    """What to add to a policy that is to allow what a finding is about; its own remedy otherwise.

    Args:
        found: a finding of the scan.
        policy: the policy that was scanned with.
    """
    name = found.subject
    if not is_of_name(found) or not is_pattern(name, "pickle_globals"):
        return found.remedy.removesuffix(".")
    if policy.pickle_globals is None:
        return found.remedy.removesuffix(".")
    return f"add {name!r} to pickle_globals of the policy, if you trust it"


def _hook_kinds(archive: Archive) -> Mapping[str, list[str]]:
    """The names of all hooks, by kind."""
    found: dict[str, list[str]] = {}
    for name in archive.names():
        if name.startswith(_SPECS_START) and name.endswith(_SPECS_END):
            record = name[len(_SPECS_START) : -len(_SPECS_END)]
            for spec in read_specs(archive, record):
                found.setdefault(spec.kind, []).append(spec.name)
    return found


def _native_records(archive: Archive) -> Iterator[str]:
    for name in archive.names():
        if not layout.is_storage(name) and is_machine_code(name, archive.start(name, 4096)):
            yield name
