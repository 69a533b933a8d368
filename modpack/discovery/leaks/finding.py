"""Looking for secrets in bytes: every shape and every assignment, in bounded time and memory."""

from __future__ import annotations

import hashlib
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from modpack.discovery.leaks.assignments import (
    HINTS,
    assigned,
    assigned_bare,
    assigned_in_pickle,
)
from modpack.discovery.leaks.pickled import pickled_texts
from modpack.discovery.leaks.shapes import SHAPES
from modpack.discovery.leaks.words import Places, Words, places_in

__all__ = ["ALLOWED_HERE", "Secret", "TextKind", "find_secrets"]

ALLOWED_HERE: Final = b"modpack: not a secret"
"""What a line says on which something only looks like a secret."""
_SHOWN: Final = 4
_PIECE: Final = 4 << 20
_OVERLAP: Final = 32 << 10
"""More than the longest secret has bytes: what begins in a piece ends in it or in this."""
_SHORTEST_RUN: Final = 16
"""Printable bytes in a row, in data that are no text, that are worth a look."""
_MARGIN: Final = 64
_PRINTABLE: Final = bytes(
    120 if 32 <= code < 127 or code in b"\t\n\r" else 0 for code in range(256)
)
_TEXT_BYTES: Final = bytes(code for code in range(256) if _PRINTABLE[code])
_BOMS: Final = (BOM_UTF16_LE, BOM_UTF16_BE)
_KEY_BEGIN: Final = b"-----BEGIN "
_ANCHORS: Final = (_KEY_BEGIN, *(anchor for shape in SHAPES for anchor in shape.anchors))
_WORDS: Final = Words(_ANCHORS, HINTS)
_KEY_HEAD: Final = re.compile(rb"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END: Final = b"-----"
_LONGEST_KEY: Final = 16 << 10
_NOT_BASE64: Final = re.compile(rb"\\[nr]|[A-Za-z0-9-]{2,20}: [^\n\\]*|[^A-Za-z0-9+/=]")
_SHORTEST_KEY: Final = 60
_FEWEST_IN_KEY: Final = 16
"""Different characters in a key's text; an example of dots and letters has fewer."""


class TextKind(str, Enum):
    """What bytes are: it tells in which notation names have values."""

    SOURCE = "source"
    DATA = "data"
    PICKLE = "pickle"
    DESCRIPTION = "description"
    """Metadata of a distribution, where names of values say little, such as that of a token in the
    address of a badge."""
    PUBLISHED = "published"
    """A file that anybody can get: what is a secret only by its name, or by what is around it, is
    an example there."""


@dataclass(frozen=True)
class Secret:
    """Something that looks like a secret.

    Attributes:
        what: what it looks like, with its article.
        position: where it begins, in bytes from the start.
        line: its 1-based line; None in what has no lines.
        shown: its first characters and how long it is, safe to show.
        fingerprint: tells it apart from others without telling it: 12 hex digits.
        value: the whole of it; never to be shown.
    """

    what: str
    position: int
    line: int | None
    shown: str
    fingerprint: str
    value: bytes = field(repr=False)


def find_secrets(
    data: bytes, kind: TextKind, known: Mapping[bytes, str] | None = None
) -> tuple[Secret, ...]:
    r"""All secrets in a source, a file, or a pickle, in order.

    Lines that say :data:`ALLOWED_HERE` are left out.

    Args:
        data: the bytes.
        kind: what they are.
        known: values that are secret whatever they look like, and where they come from.

    >>> text = b"x = 1\npassword = 'Tr0ub4dor&3'"
    >>> [(s.line, s.what, s.shown) for s in find_secrets(text, TextKind.SOURCE)]
    [(2, 'a secret by its name', "'Tr0u...' (11 characters)")]
    """
    if kind not in (TextKind.SOURCE, TextKind.PICKLE) and data.startswith(_BOMS):
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    found: dict[int, tuple[str, bytes]] = {}
    for start in range(0, max(len(data), 1), _PIECE):
        piece = data[start : start + _PIECE + _OVERLAP]
        for at, what, value in _in_piece(piece, kind, known or {}):
            found.setdefault(start + at, (what, value))
    binary = kind is TextKind.PICKLE or b"\0" in data[:_OVERLAP]
    places = list(_outermost(found))
    lines = [None] * len(places) if binary else list(_lines(data, places))
    secrets = (_secret(at, line, *found[at]) for at, line in zip(places, lines, strict=True))
    return tuple(s for s in secrets if binary or not _is_allowed(data, s.position))


def _outermost(found: Mapping[int, tuple[str, bytes]]) -> Iterator[int]:
    """The places of those that are not a part of one that was found before them."""
    end = -1
    for at in sorted(found):
        if at >= end:
            yield at
            end = at + len(found[at][1])


def _lines(data: bytes, places: Iterable[int]) -> Iterator[int]:
    """The 1-based line of each place; places come in order."""
    line, counted = 1, 0
    for at in places:
        line += data.count(b"\n", counted, at)
        counted = at
        yield line


def _secret(at: int, line: int | None, what: str, value: bytes) -> Secret:
    begin = value[: min(_SHOWN, (len(value) + 1) // 3)].decode("ascii", "replace")
    shown = f"'{begin}...' ({len(value)} characters)"
    return Secret(what, at, line, shown, hashlib.sha256(value).hexdigest()[:12], value)


def _is_allowed(data: bytes, at: int) -> bool:
    start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
    return ALLOWED_HERE in data[start : end if end >= 0 else len(data)]


def _in_piece(
    piece: bytes, kind: TextKind, known: Mapping[bytes, str]
) -> Iterator[tuple[int, str, bytes]]:
    for value, origin in known.items():
        for at in places_in(piece, value):
            yield at, origin, value
    words = _WORDS.places(piece)  # most pieces have few of them, and much is not looked for then
    for start, text in _pickled(piece, words) if kind is TextKind.PICKLE else _texts(piece):
        for at, what, value in _in_text(text, words, kind is TextKind.PUBLISHED):
            yield start + at, what, value
    hints = tuple(hint for hint in HINTS if hint in words)
    if kind in (TextKind.DESCRIPTION, TextKind.PUBLISHED) or not hints:
        return
    named = assigned_in_pickle(piece, hints) if kind is TextKind.PICKLE else assigned(piece, hints)
    for at, value in named:
        yield at, "a secret by its name", value
    if kind is TextKind.PICKLE:  # functions travel by their source
        for at, value in assigned(piece, hints):
            yield at, "a secret by its name", value
    if kind is TextKind.DATA:
        for at, value in assigned_bare(piece, hints):
            yield at, "a secret by its name", value


def _pickled(piece: bytes, words: Places) -> Iterator[tuple[int, bytes]]:
    """The texts of a piece of a pickle that need a look; arrays in it hold none."""
    anchors = {anchor: words[anchor] for anchor in _ANCHORS if anchor in words}
    if not anchors:
        return
    is_mostly_numbers = 2 * len(piece.translate(None, _TEXT_BYTES)) > len(piece)
    if not is_mostly_numbers:
        yield from pickled_texts(piece, anchors)
        return
    for start, part in _texts(piece):
        for at, text in pickled_texts(part, dict.fromkeys(anchors)):
            yield start + at, text


def _texts(piece: bytes) -> Iterator[tuple[int, bytes]]:
    """The piece, or of one that is no text, those parts that are."""
    if b"\0" not in piece:
        yield 0, piece
        return
    marks, run = piece.translate(_PRINTABLE), b"x" * _SHORTEST_RUN
    at = marks.find(run)
    while at >= 0:
        end = marks.find(b"\0", at)
        end = len(piece) if end < 0 else end
        begin = max(0, at - _MARGIN)
        yield begin, piece[begin : end + _MARGIN]
        at = marks.find(run, end)


def _in_text(
    text: bytes, words: Container[bytes], exact_only: bool
) -> Iterator[tuple[int, str, bytes]]:
    if _KEY_BEGIN in words:
        yield from _private_keys(text)
    for shape in SHAPES:
        if exact_only and not shape.is_exact:
            continue
        for anchor in shape.anchors:
            for at in places_in(text, anchor) if anchor in words else ():
                match = shape.compiled.match(text, max(0, at - shape.reach))
                if match is not None and shape.admits(match[1]):
                    yield match.start(1), shape.name, match[1]


def _private_keys(text: bytes) -> Iterator[tuple[int, str, bytes]]:
    for at in places_in(text, _KEY_BEGIN):
        head = _KEY_HEAD.match(text, at)
        if head is None:
            continue
        end = text.find(_KEY_END, head.end(), head.end() + _LONGEST_KEY)
        body = text[head.end() : end if end >= 0 else head.end() + _LONGEST_KEY]
        key = _NOT_BASE64.sub(b"", body)
        if len(key) >= _SHORTEST_KEY and len(set(key)) >= _FEWEST_IN_KEY:
            yield at, "a private key", key
