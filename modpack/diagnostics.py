"""Diagnostics: problems, warnings, and remarks about a plan or a package.

``diagnostic_codes.json`` defines every code. The reference page of diagnostics is generated
from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType

from modpack.errors import with_hint


class Severity(str, Enum):
    """The severity of a diagnostic, the most severe first."""

    ERROR = "error"
    """Stops an export, or fails an audit or a verification."""
    WARNING = "warning"
    """The package may fail or misbehave in the loading environment."""
    INFO = "info"
    """A fact worth knowing that needs no action."""

    @property
    def rank(self) -> int:
        """Position in the order of severities; 0 is the most severe."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Diagnostic:
    """One problem, warning, or remark about a plan or a package.

    Attributes:
        severity: How severe it is.
        code: Its kind, such as ``mock-called``. The reference page of diagnostics lists them.
        subject: The module, record, resource, rule, or distribution concerned.
        message: The problem, as a clause without a final period.
        location: ``file:line`` of the problem, if known.
        chain: The shortest chain of importers that leads to the subject.
        hint: How to fix it, in complete sentences. Empty if no fix is needed.

    >>> text = "no rule matches 'till'"
    >>> print(Diagnostic.from_code("no-matching-rule", "till", text, "net.py:3"))
    net.py:3: no rule matches 'till'. Add an intern, extern, or mock rule.
    """

    severity: Severity
    code: str
    subject: str
    message: str
    location: str | None = None
    chain: tuple[str, ...] = ()
    hint: str = ""

    @classmethod
    def from_code(
        cls,
        code: str,
        subject: str,
        message: str,
        location: str | None = None,
        *,
        chain: tuple[str, ...] = (),
        hint: str | None = None,
        severity: Severity | None = None,
    ) -> Diagnostic:
        """Return a diagnostic with the severity and the hint of its code.

        Args:
            code: A key of :func:`diagnostic_codes`.
            subject: The module, record, resource, rule, or distribution concerned.
            message: The problem, as a clause without a final period.
            location: ``file:line`` of the problem, if known.
            chain: The shortest chain of importers that leads to the subject.
            hint: A more specific fix than the code's.
            severity: Another severity than the code's.
        """
        kind = diagnostic_codes()[code]
        chosen = kind.hint if hint is None else hint
        return cls(severity or kind.severity, kind.code, subject, message, location, chain, chosen)

    @property
    def summary(self) -> str:
        """Location and message. Without a location, the subject, unless the message names it."""
        if self.location:
            return f"{self.location}: {self.message}"
        is_named = re.search(rf"(?<!\w){re.escape(self.subject)}(?!\w)", self.message)
        return self.message if is_named else f"{self.subject}: {self.message}"

    def __str__(self) -> str:
        return with_hint(self.summary, self.hint)


@dataclass(frozen=True)
class DiagnosticCode:
    """A kind of diagnostic.

    Attributes:
        code: Its name, as ``--fail-on`` takes it.
        severity: The severity of its diagnostics.
        meaning: What its diagnostics report, in complete sentences.
        hint: How to fix it, in complete sentences. Empty if no fix is needed.
        implies: The milder code that this one includes: --fail-on with that code also fails on this
            one.
        where: What reports it: ``problem`` and ``note`` (of a plan), ``audit``, ``verify``.
    """

    code: str
    severity: Severity
    meaning: str
    hint: str = ""
    implies: str | None = None
    where: tuple[str, ...] = ()


@cache
def diagnostic_codes(where: str | None = None) -> Mapping[str, DiagnosticCode]:
    """Return every code, the most severe first.

    Args:
        where: Only codes of this origin: ``problem``, ``note``, ``audit``, or ``verify``.
    """
    if where is not None:
        return MappingProxyType({c: k for c, k in diagnostic_codes().items() if where in k.where})
    import json
    import pkgutil  # importlib.resources takes longer to import than everything else here

    rows = json.loads(pkgutil.get_data("modpack", "diagnostic_codes.json") or "")
    for row in rows:
        row["severity"], row["where"] = Severity(row["severity"]), tuple(row["where"])
    return MappingProxyType({row["code"]: DiagnosticCode(**row) for row in rows})


def implied_codes(code: str) -> Iterator[str]:
    """Yield a code and the milder codes that it includes.

    >>> list(implied_codes("mock-called"))
    ['mock-called', 'mock-not-observed', 'mock-used-at-import', 'mock-untouched']
    """
    name: str | None = code
    while name is not None:
        yield name
        name = diagnostic_codes()[name].implies
