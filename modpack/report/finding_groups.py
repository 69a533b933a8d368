"""The groups in which reports show findings: by severity and code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from modpack.core.names import root_of
from modpack.core.text import counted
from modpack.diagnostics import Diagnostic, Severity


class FindingGroup(NamedTuple):
    """Findings with the same severity and code.

    Attributes:
        severity: Their severity.
        code: Their code.
        findings: The findings, in their original order.
        hint: The hint that all of them share. Empty if their hints differ.
    """

    severity: Severity
    code: str
    findings: tuple[Diagnostic, ...]
    hint: str

    def roots(self, start: int = 0) -> tuple[str, ...]:
        """Return the top-level names of their subjects, from the finding at ``start`` on."""
        # They show whether the findings concern the reader's own code.
        return tuple(dict.fromkeys(root_of(each.subject) for each in self.findings[start:]))


def group_findings(findings: Iterable[Diagnostic]) -> tuple[FindingGroup, ...]:
    """Return the findings by severity and code, the most severe first.

    Args:
        findings: The findings. Groups of one severity are in the order of their first finding.
    """
    groups: dict[tuple[Severity, str], list[Diagnostic]] = {}
    for each in sorted(findings, key=lambda each: each.severity.rank):
        groups.setdefault((each.severity, each.code), []).append(each)
    hints = {key: {each.hint for each in found} for key, found in groups.items()}
    return tuple(
        FindingGroup(*key, tuple(found), hints[key].pop() if len(hints[key]) == 1 else "")
        for key, found in groups.items()
    )


def count_findings(findings: Iterable[Diagnostic]) -> str:
    """Return the numbers of findings by severity, for people."""
    numbers = Counter(each.severity for each in findings)
    counts = (counted(numbers[each], each.value) for each in Severity if numbers[each])
    return ", ".join(counts) or "no findings"
