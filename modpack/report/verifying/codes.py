"""The codes of what verifying finds besides what its scan does: one row each.

The reference page of risks repeats this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from modpack.report.auditing.codes import FindingCode
from modpack.report.auditing.facts import Finding, Severity

__all__ = ["VERIFY_CODES", "as_sentence", "found", "found_with_remedy"]

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
_REMEDY: Final = ". Remedy: "
_GET_IT_AGAIN: Final = "Get the package again from whoever made it."

_ROWS = (
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

VERIFY_CODES: Final[Mapping[str, FindingCode]] = MappingProxyType({row.name: row for row in _ROWS})
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
