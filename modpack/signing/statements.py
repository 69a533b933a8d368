"""What a signature says: a statement about one package's digest.

An in-toto statement, version 1 (https://in-toto.io/Statement/v1). It holds nothing but what it is
about, so that the same package gives the same statement at any time and on any machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from modpack.archive import layout
from modpack.archive.manifest import canonical_json

__all__ = [
    "PREDICATE_TYPE",
    "STATEMENT_TYPE",
    "Statement",
    "decode_statement",
    "encode_statement",
    "shown",
    "strict_json",
]

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:x-modpack:package:v1"
"""That whoever signed vouches for a package, and that the digest is that of its manifest."""
_PREDICATE: Final = {"digestOf": layout.MANIFEST}
_MOST_SHOWN: Final = 3
_MOST_CHARACTERS: Final = 80
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Statement:
    """What was signed.

    Attributes:
        subjects: name of the file when it was signed, and digest of the package.
    """

    subjects: tuple[tuple[str, str], ...]

    def names(self) -> str:
        """What its subjects were called, for messages."""
        more = ", ..." if len(self.subjects) > _MOST_SHOWN else ""
        return ", ".join(shown(name) for name, _ in self.subjects[:_MOST_SHOWN]) + more

    def is_about(self, digest: str) -> bool:
        """Whether a package of this digest is among what it is about."""
        return any(each == digest for _, each in self.subjects)


def encode_statement(name: str, digest: str) -> bytes:
    """The statement that whoever signs it vouches for a package.

    Args:
        name: what the package's file is called; it helps people, and is not checked. What is no
            text in it becomes a question mark.
        digest: the package's digest, the sha256 of its manifest in hex.
    """
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": _plain(name), "digest": {"sha256": digest}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": _PREDICATE,
        }
    )


def decode_statement(payload: bytes) -> Statement:
    """What a statement says.

    Raises:
        ValueError: it is no statement about packages; the text says why, in a part of a sentence.
    """
    document = strict_json(payload)
    if not isinstance(document, dict) or document.get("_type") != STATEMENT_TYPE:
        raise ValueError("what was signed is no in-toto statement of version 1")
    if document.get("predicateType") != PREDICATE_TYPE:
        raise ValueError(
            f"its statement is of the type {shown(document.get('predicateType'))}, which does not "
            "vouch for a package"
        )
    if document.get("predicate") != _PREDICATE:
        raise ValueError("its predicate does not say that the digest is that of the manifest")
    subjects = document.get("subject")
    if not isinstance(subjects, list) or not subjects:
        raise ValueError("its statement has no subject")
    return Statement(tuple(_subject(each) for each in subjects))


def strict_json(content: bytes) -> object:
    """A JSON value that has one reading.

    Raises:
        ValueError: it is none; or has a key twice, a number that is none, or too many levels.
    """
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_number,
        )
    except RecursionError as failure:
        raise ValueError("its JSON has too many levels") from failure


def shown(value: object) -> str:
    """A value of a document of unknown origin, for messages: short, and text only.

    >>> shown("urn:a"), shown([])
    ("'urn:a'", 'no text')
    """
    if not isinstance(value, str):
        return "no text"
    return repr(value if len(value) <= _MOST_CHARACTERS else value[:_MOST_CHARACTERS] + "...")


def _plain(name: str) -> str:
    """A name that UTF-8 can hold; those of files may have bytes that are no text."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _subject(value: object) -> tuple[str, str]:
    if isinstance(value, dict):
        name, digest = value.get("name", ""), value.get("digest")
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if isinstance(name, str) and isinstance(sha256, str) and _SHA256.fullmatch(sha256):
            return _plain(name), sha256
    raise ValueError("a subject of its statement has no sha256")


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is there twice")
    return document


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number")
