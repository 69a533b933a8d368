"""The codes of findings: one row each. The reference page of risks repeats this table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from modpack.report.auditing.facts import Severity

__all__ = ["CODES", "LICENCE", "FindingCode", "milder_codes"]

LICENCE: Final = "licence"
"""What gates find that name licences; an audit without one never finds it."""

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@dataclass(frozen=True)
class FindingCode:
    """A kind of finding.

    Attributes:
        name: as ``--fail-on`` names it.
        severity: how bad it is.
        meaning: what a finding of this kind says, in one sentence.
        remedy: what to do about it, in one sentence; empty if there is nothing to do.
        worse_than: the code of which this is a worse case: a gate on that one fires on this, too.
    """

    name: str
    severity: Severity
    meaning: str
    remedy: str = ""
    worse_than: str | None = None


_ROWS = (
    FindingCode(
        "mock-called",
        _ERROR,
        "The trial run really used a stand-in, which raised NotImplementedError; "
        "packaged code caught that.",
        "Intern or extern the module.",
        worse_than="mock-reachable",
    ),
    FindingCode(
        "trial-failed",
        _ERROR,
        "The package did not load, or did not compute what the live model did.",
        "Repair what the trial tells, and export again.",
        worse_than="no-trial",
    ),
    FindingCode(
        "missing-module",
        _ERROR,
        "Packaged code imports a module as soon as it is imported itself, and the package neither "
        "has that module nor lists it as extern.",
        "Export again with a rule that interns, externs, or mocks the module.",
        worse_than="import-unresolved",
    ),
    FindingCode(
        "mock-reachable",
        _WARNING,
        "What packaged code can call uses a stand-in, or was made with one, and will raise "
        "NotImplementedError then.",
        "Intern or extern the module, or make sure that it is never called.",
        worse_than="mock-import-time",
    ),
    FindingCode(
        "import-unresolved",
        _WARNING,
        "Code in an archive of torch.package imports a module that is neither in it nor extern; "
        "whether a condition around the import keeps it from running is not recorded.",
        "Export the model with modpack, which decides about every import.",
    ),
    FindingCode(
        "star-import-of-mock",
        _WARNING,
        "Packaged code takes * from a stand-in, which has no names to give.",
        "Intern or extern the module.",
    ),
    FindingCode(
        "extern-local",
        _WARNING,
        "An extern module is loose code or an editable install, or was not found at all: pip "
        "cannot install it where the package is loaded.",
        "Intern it, or install it from a distribution and export again.",
        worse_than="extern-unpinned",
    ),
    FindingCode(
        "extern-unpinned",
        _WARNING,
        "Nothing records which version of an extern module the package was made with.",
        "Export again with modpack, which records the versions.",
    ),
    FindingCode(
        "extern-needs-interned",
        _WARNING,
        "An extern module needs one that is interned: it will use another copy, or find none.",
        "Intern both, or extern both.",
    ),
    FindingCode(
        "dynamic-import",
        _WARNING,
        "Packaged code imports by a name that is known at run time only.",
        "Save what it imports by name, unless the package has it already.",
    ),
    FindingCode(
        "dead-rule",
        _WARNING,
        "A rule can match nothing, because earlier ones decide all that it could match.",
        "Take it out, or put it before the others.",
    ),
    FindingCode(
        "unused-rule",
        _WARNING,
        "A rule matched no module, although something with nearly its name is needed.",
        "Correct its pattern.",
    ),
    FindingCode(
        "files-left-out",
        _WARNING,
        "Packaged code reads files that did not go along.",
        "Save them as resources, or make sure that they are not needed.",
    ),
    FindingCode(
        "source-unreadable",
        _WARNING,
        "The source of a packaged module is no Python that this interpreter can read: what it "
        "imports and uses is unknown.",
        "Audit with the Python that made the package.",
    ),
    FindingCode(
        "pickle-unreadable",
        _WARNING,
        "A saved object's pickle cannot be followed to its end: what else it names is unknown.",
        "Make the package again, or do not load it.",
    ),
    FindingCode(
        "mock-import-time",
        _NOTE,
        "A stand-in is used only in ways that it bears: while modules are imported (base classes, "
        "decorators, annotations, calls at module level), or asked about and no more.",
        "Make sure that the model does not depend on what that would do.",
        worse_than="mock-imported",
    ),
    FindingCode(
        "mock-imported",
        _NOTE,
        "Packaged code imports a stand-in, and nothing that can run uses it.",
    ),
    FindingCode(
        "hook-override",
        _NOTE,
        "A match hook decided otherwise than the rule that matched.",
        "Make sure that it was meant.",
    ),
    FindingCode(
        "no-trial",
        _NOTE,
        "The package was not tried before it was written.",
        "Export it with example inputs.",
    ),
    FindingCode(
        "trial-structure-only",
        _NOTE,
        "The trial compared types, shapes and lengths only, because the live model does not "
        "compute the same twice.",
        "Make the model deterministic for the example inputs, and export again.",
    ),
    FindingCode(
        "process-namespace",
        _NOTE,
        "The package works under its modules' own names only: it shares them with the process "
        "that loads it.",
        "Load it in a process that has no other versions of its modules.",
    ),
    FindingCode(
        "operator-needed",
        _NOTE,
        "The model calls an operator that must be declared before it can be loaded.",
        "Import what declares the operator before the package is loaded.",
    ),
    FindingCode(
        "native-code",
        _NOTE,
        "The package holds compiled code: it loads only on the platform, and with the Python, "
        "that it was made for.",
        "Extern the module if the package must load elsewhere.",
    ),
    FindingCode(
        "licence-unknown",
        _NOTE,
        "Nothing says under which licence a distribution may be used.",
        "Ask its authors, or look into its files.",
    ),
    FindingCode(
        "dynamic-library",
        _NOTE,
        "An interned library imports by names that are known at run time only; what was loaded of "
        "it at export was taken for that.",
        "Export with example inputs: a trial run shows whether it is enough.",
    ),
    FindingCode(
        "absent",
        _NOTE,
        "Packaged code asks for a module that is not there, and copes with that.",
    ),
    FindingCode(
        "files-unknown",
        _NOTE,
        "Packaged code reads files whose names are known at run time only.",
        "Save what it needs as resources.",
    ),
    FindingCode(
        "not-recorded",
        _NOTE,
        "torch.package wrote the package: no rules, versions, licences or trials are recorded, "
        "and the audit goes by what the package contains.",
        "Export again with modpack.",
    ),
    FindingCode(
        LICENCE,
        _ERROR,
        "A distribution has a licence that a gate (licence:GPL*) names.",
        "Do without the distribution, or settle its licence.",
    ),
)

CODES: Final[Mapping[str, FindingCode]] = MappingProxyType({row.name: row for row in _ROWS})
"""Every code, by its name; the worst first."""


def milder_codes(code: str) -> Iterator[str]:
    """A code, and those of which it is a worse case.

    >>> list(milder_codes("mock-reachable"))
    ['mock-reachable', 'mock-import-time', 'mock-imported']
    """
    name: str | None = code
    while name is not None:
        yield name
        name = CODES[name].worse_than
