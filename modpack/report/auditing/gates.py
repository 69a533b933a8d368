"""Gates: what an audit must not find, as a CI says it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from modpack.report.auditing.codes import CODES, LICENCE, milder_codes
from modpack.report.auditing.facts import AuditFacts, DistributionFacts, Finding, Severity
from modpack.report.auditing.findings import finding
from modpack.report.auditing.licences import is_licensed_under

__all__ = ["Gate", "Verdict", "judge", "parse_gate"]

_LICENCE_WORDS: Final = (LICENCE, "license")
_SEVERITIES: Final = tuple(severity.value for severity in Severity)


@dataclass(frozen=True)
class Gate:
    """One thing that an audit must not find.

    Attributes:
        text: the gate, as it was given.
        code: the code that it fires on, with all that are worse cases of it; None if it goes by
            severity.
        severity: the least severity that it fires on; None if it goes by code.
        licence: the glob of licences that it fires on; None for all other gates.
    """

    text: str
    code: str | None = None
    severity: Severity | None = None
    licence: str | None = None

    def findings(self, audit: AuditFacts) -> tuple[Finding, ...]:
        """What makes the gate fire; empty if it does not."""
        if self.licence is not None:
            return tuple(_licensed(audit.distributions, self.licence))
        return tuple(found for found in audit.findings if self._stops(found))

    def _stops(self, found: Finding) -> bool:
        if self.code is not None:
            return self.code in milder_codes(found.code)
        order = list(Severity)
        return self.severity is not None and order.index(found.severity) <= order.index(
            self.severity
        )


@dataclass(frozen=True)
class Verdict:
    """What becomes of an audit.

    Attributes:
        fired: the gates that fired, with what made them.
        errors: findings that fail every audit.
        problems: how many problems keep a plan from being carried out.
    """

    fired: tuple[tuple[Gate, tuple[Finding, ...]], ...]
    errors: tuple[Finding, ...]
    problems: int

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the package."""
        return not (self.fired or self.errors or self.problems)


def parse_gate(text: str) -> Gate:
    """A gate as ``--fail-on`` takes it.

    Args:
        text: a code (``mock-reachable``); a severity, for all findings that are at least as bad
            (``warning``); or ``licence:`` and a glob (``licence:GPL*``).

    Raises:
        ValueError: it is none of these.

    >>> parse_gate("licence:GPL*").licence
    'GPL*'
    >>> parse_gate("mock-reachible")
    Traceback (most recent call last):
        ...
    ValueError: no audit finds 'mock-reachible'. Did you mean 'mock-reachable'?
    """
    word, colon, glob = (part.strip() for part in text.partition(":"))
    if word in _LICENCE_WORDS:
        if not glob:
            raise ValueError(f"{text!r} names no licence. Write licence:GPL*, for example")
        return Gate(text, licence=glob)
    if word in _SEVERITIES and not colon:
        return Gate(text, severity=Severity(word))
    if word in CODES and not colon:
        return Gate(text, code=word)
    raise ValueError(_unknown(text, word, bool(colon)))


def judge(audit: AuditFacts, gates: Iterable[Gate] = ()) -> Verdict:
    """Whether an audit passes: no problem, no error, and no gate that fires."""
    found = ((gate, gate.findings(audit)) for gate in gates)
    fired = tuple((gate, findings) for gate, findings in found if findings)
    errors = tuple(each for each in audit.findings if each.severity is Severity.ERROR)
    return Verdict(fired, errors, len(audit.problems))


def _licensed(distributions: Iterable[DistributionFacts], glob: str) -> Iterable[Finding]:
    for each in distributions:
        if each.licence is not None and is_licensed_under(each.licence, glob):
            text = f"{each.name} {each.version} is licensed under {each.licence}"
            yield finding(LICENCE, each.name, text)


def _unknown(text: str, word: str, has_glob: bool) -> str:
    if has_glob and word in CODES:
        return f"{text!r}: only licence: takes something after a colon"
    near = get_close_matches(word, [*CODES, *_SEVERITIES], n=1)
    if near:
        meant = f"{LICENCE}:GPL*" if near[0] == LICENCE else near[0]
        return f"no audit finds {text!r}. Did you mean {meant!r}?"
    known = [*(code for code in CODES if code != LICENCE), f"{LICENCE}:GLOB", *_SEVERITIES]
    return f"no audit finds {text!r}. What there is: {', '.join(known)}"
