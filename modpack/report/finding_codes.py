"""The codes of findings: one row each. The reference page of risks repeats this table.

The codes of what verifying finds besides what its scan does: one row each.

The reference page of risks repeats this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from modpack.report.audit_facts import Finding, Severity

LICENCE: Final = "licence"
"""What gates find that name licences; an audit without one never finds it."""

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
_DO_NOT: Final = "Do not load the package"


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
        "pickle-dangerous-name",
        _ERROR,
        "A pickle names something that no honest package needs: what runs programs or texts, opens "
        "files, or imports by name.",
        f"{_DO_NOT}, unless you trust whoever made it.",
    ),
    FindingCode(
        "pickle-missing",
        _ERROR,
        "A saved object of the package is not there.",
        "Get the package again from whoever made it.",
    ),
    FindingCode(
        "pickle-malformed",
        _ERROR,
        "A pickle cannot be read to its end, or takes a name that is not in it: what it does "
        "cannot be listed.",
        f"{_DO_NOT}.",
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
        "storage-mostly-unused",
        _WARNING,
        "Saved tensors use a small part of a large storage, which is stored in full.",
        "Save copies of them (.clone()), unless they shall share the rest with others.",
    ),
    FindingCode(
        "heavy-distribution",
        _WARNING,
        "Most of the code and data files belong to a distribution that saved objects do not name.",
        "Mock the module that leads to it, if the model does not need that module.",
    ),
    FindingCode(
        "nested-pickle",
        _WARNING,
        "A saved object contains pickles made by its own code; these name packaged modules.",
        "Load the package with namespace='process'.",
    ),
    FindingCode(
        "registered-outside",
        _WARNING,
        "A module that the package leaves out registered something in a packaged module.",
        "Import that module in a packaged module.",
    ),
    FindingCode(
        "source-edited",
        _WARNING,
        "A packaged module was edited after the process that saved it had imported it: the saved "
        "objects did what its source said before.",
        "Save again from a new process, or check that the edit is meant.",
    ),
    FindingCode(
        "live-changed",
        _WARNING,
        "The process that saved held something else than a packaged module's source says: a "
        "replaced function, another value. The package does what the source says.",
        "Change it in the source, or in a module that the model's code imports, and save again.",
    ),
    FindingCode(
        "extern-patched",
        _WARNING,
        "The process that saved had replaced a function of an extern module, which packaged code "
        "uses.",
        "Call the other function in your own code, and save again.",
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
        "import-effect-process",
        _WARNING,
        "Packaged code starts another program when it is imported.",
        "Look at the place, and make sure that it is meant.",
    ),
    FindingCode(
        "import-effect-network",
        _WARNING,
        "Packaged code asks for, or offers, something over a network when it is imported.",
        "Look at the place, and make sure that it is meant.",
    ),
    FindingCode(
        "import-effect-native",
        _WARNING,
        "Packaged code loads machine code by hand when it is imported.",
        "Look at the place, and make sure that it is meant.",
    ),
    FindingCode(
        "code-process",
        _WARNING,
        "A function in a pickle starts another program when it is called.",
        "Look at the place, and make sure that it is meant.",
    ),
    FindingCode(
        "code-network",
        _WARNING,
        "A function in a pickle asks for, or offers, something over a network when it is called.",
        "Look at the place, and make sure that it is meant.",
    ),
    FindingCode(
        "code-native",
        _WARNING,
        "A function in a pickle loads machine code by hand when it is called.",
        "Look at the place, and make sure that it is meant.",
    ),
    FindingCode(
        "trial-unfilled-table",
        _WARNING,
        "A table of a module named a class of the model where the package was made, and not in the "
        "trial run: a constructor may fill it, which loading does not call.",
        "Construct one object of the class after loading.",
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
        "trial-imported",
        _NOTE,
        "Extern code imported a distribution in the trial run that nothing in the package names.",
        "Install it where the package is loaded; modpack requirements lists it.",
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
        "live-state",
        _NOTE,
        "Code of a packaged module had changed its own state while it ran. In the package it "
        "begins as the source says.",
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
        "pickle-undeclared",
        _NOTE,
        "A record is a pickle, and no saved object that the package tells of.",
    ),
    FindingCode(
        "import-effect-eval",
        _NOTE,
        "Packaged code runs a text as code, or loads serialised objects when it is imported.",
        "Look at the place, if you do not know the code.",
    ),
    FindingCode(
        "import-effect-write",
        _NOTE,
        "Packaged code writes, moves or removes files when it is imported.",
        "Look at the place, if you do not know the code.",
    ),
    FindingCode(
        "code-eval",
        _NOTE,
        "A function in a pickle runs a text as code or loads serialised objects when it is called.",
        "Look at the place, if you do not know the code.",
    ),
    FindingCode(
        "code-write",
        _NOTE,
        "A function in a pickle writes, moves or removes files when it is called.",
        "Look at the place, if you do not know the code.",
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


_REMEDY: Final = ". Remedy: "
_GET_IT_AGAIN: Final = "Get the package again from whoever made it."

_VERIFY_ROWS = (
    FindingCode(
        "structure",
        _ERROR,
        "The archive is damaged, ambiguous or unsafe: nothing in it was read.",
        _GET_IT_AGAIN,
    ),
    FindingCode(
        "manifest",
        _ERROR,
        "The list of all records is missing, damaged, or not written as modpack writes it.",
        _GET_IT_AGAIN,
    ),
    FindingCode(
        "repacked",
        _ERROR,
        "Another program packed the package again: what lies around the contents is not what "
        "modpack writes there.",
        "Unzip it and verify the folder, or get the package again from whoever made it.",
    ),
    FindingCode(
        "record-damaged",
        _ERROR,
        "A record is missing, not declared, cannot be read, or is not what the manifest says.",
        _GET_IT_AGAIN,
    ),
    FindingCode(
        "record-unreadable",
        _ERROR,
        "A record of the format is not as modpack writes it, although it is what the manifest "
        "says.",
        "Do not load the package: no modpack has made it like that.",
    ),
    FindingCode(
        "inconsistent",
        _ERROR,
        "Two records of the package contradict each other.",
        "Do not load the package: no modpack has made it like that.",
    ),
    FindingCode(
        "storage-missing",
        _ERROR,
        "A tensor lies in a storage that is not there, or that is too small for it.",
        _GET_IT_AGAIN,
    ),
    FindingCode(
        "scan-unfinished",
        _ERROR,
        "Pickles could not be looked at to the end, because a record is damaged.",
        _GET_IT_AGAIN,
    ),
    FindingCode(
        "signature",
        _ERROR,
        "A signature is demanded, and there is none that holds.",
        "Get the package from whoever signs it, or give the key that it was signed with.",
    ),
    FindingCode(
        "policy",
        _ERROR,
        "The package asks for something that the policy does not allow.",
        "Do not load the package, or allow it in the policy.",
    ),
    FindingCode(
        "policy-allows-any-code",
        _WARNING,
        "The policy allows code and demands no signature: whoever makes a package can do anything "
        "in the process that loads it.",
        "Name signers in the policy, or leave allow_code out.",
    ),
    FindingCode(
        "code-undecided",
        _WARNING,
        "A record can be imported as code, and nothing was decided about it: audits do not "
        "tell of it.",
        "Look at it before the package is loaded.",
    ),
    FindingCode(
        "record-unknown",
        _WARNING,
        "A record lies where the format keeps its own, and this modpack does not know it.",
        "Verify with the modpack that made the package.",
    ),
    FindingCode(
        "storage-unused",
        _NOTE,
        "No saved object refers to a storage of the package.",
    ),
    FindingCode(
        "signature-unchecked",
        _NOTE,
        "The package is signed, and nobody said whose signature counts.",
        "Give the signer's public key.",
    ),
    FindingCode(
        "no-digests",
        _NOTE,
        "torch.package wrote the package, which records no digests: that nothing was changed on "
        "purpose cannot be told.",
        "Export again with modpack.",
    ),
)

VERIFY_CODES: Final[Mapping[str, FindingCode]] = MappingProxyType(
    {row.name: row for row in _VERIFY_ROWS}
)
"""Every code, by its name; the worst first."""


def found(code: str, subject: str, text: str, place: str | None = None) -> Finding:
    """A finding with the severity and the remedy that its code has.

    Args:
        code: a key of :data:`VERIFY_CODES`.
        subject: the record that it is about, or the package.
        text: what was found, in one sentence.
        place: where it shows, if that is more than the subject.
    """
    row = VERIFY_CODES[code]
    return Finding(code, row.severity, subject, text, place, row.remedy)


def found_with_remedy(code: str, subject: str, reason: str) -> Finding:
    """A finding by the reason of an error, whose own remedy counts more than that of the code.

    Args:
        code: a key of :data:`VERIFY_CODES`.
        subject: the record that it is about, or the package.
        reason: what was found; "Remedy: " may follow.

    >>> each = found_with_remedy("structure", "a", "it is b. Remedy: do c")
    >>> each.text, each.remedy
    ('it is b', 'Do c.')
    """
    if reason.count(_REMEDY) != 1:
        return found(code, subject, reason)
    text, _, remedy = reason.partition(_REMEDY)
    return replace(found(code, subject, text), remedy=as_sentence(remedy))


def as_sentence(remedy: str) -> str:
    """A remedy as findings have it: a sentence."""
    return f"{remedy[:1].upper()}{remedy[1:].removesuffix('.')}."
