"""What to write into a policy that is to allow everything that a package's pickles name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from modpack.core.trust import is_pattern
from modpack.discovery.pickles import PickledName
from modpack.report.auditing.facts import Finding
from modpack.report.scanning.judging import Judge

__all__ = ["NAMING", "names_to_allow", "with_line_to_add"]

NAMING: Final = frozenset({"pickle-unknown-global", "pickle-call", "pickle-extern-call"})
"""Findings about a name in a pickle, which a policy can allow."""
_MOST: Final = 200
"""Names in a line; whoever needs more will use patterns."""


def with_line_to_add(findings: Sequence[Finding], names: Iterable[str]) -> tuple[Finding, ...]:
    """Findings about names, with the whole line that a policy needs to allow them all.

    Args:
        findings: of the scan of one package.
        names: what its pickles name and only a policy can allow, once there is a list in it.
    """
    if not any(map(_is_to_be_allowed, findings)):
        return tuple(findings)
    line = _line(names)
    return tuple(
        replace(each, remedy=_remedy(line)) if line and _is_to_be_allowed(each) else each
        for each in findings
    )


def names_to_allow(names: Iterable[tuple[PickledName, bool]], judge: Judge) -> Iterator[str]:
    """Names that speak against a package, or would as soon as a policy has a list.

    Args:
        names: with whether each is in a pickle of a ScriptModule.
        judge: of the package.
    """
    for named, is_script in names:
        if any(True for _ in judge.judge(named, is_script)):
            yield str(named)


def _is_to_be_allowed(found: Finding) -> bool:
    return found.code in NAMING and _can_be_listed(found.subject)


def _line(names: Iterable[str]) -> str:
    patterns = [name for name in dict.fromkeys(names) if _can_be_listed(name)]
    if not 0 < len(patterns) <= _MOST:
        return ""
    listed = ", ".join(f'"{name}"' for name in sorted(patterns))
    return f"pickle_globals = [{listed}]"


def _remedy(line: str) -> str:
    return f"Do not load the package, or add {line} to a policy, if you trust it."


def _can_be_listed(name: str) -> bool:
    """Whether a name can be written into a policy as it is: in a pickle, it may be anything."""
    return is_pattern(name, "pickle_globals") and '"' not in name and "\\" not in name
