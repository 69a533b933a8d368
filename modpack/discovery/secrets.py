"""Search for secrets in bytes: every shape and every assignment, in bounded time and memory.

In a pickle, texts are looked through without the opcodes around them, which may be letters and
digits themselves. ``.env`` files say which values must stay out of the code, and out of packages.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from modpack.discovery.secret_shapes import (
    HINTS,
    SHAPES,
    assigned,
    assigned_bare,
    assigned_in_pickle,
    is_secret_name,
    is_secret_value,
)
from modpack.discovery.secret_words import Places, Words, places_in

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
_KEY_BEGIN: Final = b"-----BEGIN "
_ANCHORS: Final = (_KEY_BEGIN, *(anchor for shape in SHAPES for anchor in shape.anchors))
_WORDS: Final = Words(_ANCHORS, HINTS)
_SIZES: Final = {b"X": 4, b"\x8c": 1, b"\x8d": 8, b"B": 4, b"C": 1, b"\x8e": 8}
"""For each opcode of a text or of bytes, how many bytes tell their size (:mod:`pickletools`)."""
_LONGEST_TEXT: Final = 256 << 10
_AROUND: Final = 8 << 10
"""Bytes before and after a place whose text cannot be told from its surroundings."""
_MAX_TRIES: Final = 64
_KEY_HEAD: Final = re.compile(rb"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
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
    is_utf16 = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    if is_utf16 and kind not in (TextKind.SOURCE, TextKind.PICKLE):
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    found: dict[int, tuple[str, bytes]] = {}
    for start in range(0, max(len(data), 1), _PIECE):
        piece = data[start : start + _PIECE + _OVERLAP]
        for at, what, value in _in_piece(piece, kind, known or {}):
            found.setdefault(start + at, (what, value))
    binary = kind is TextKind.PICKLE or b"\0" in data[:_OVERLAP]
    secrets = []
    end, line, counted = -1, 1, 0
    for at in sorted(found):
        what, value = found[at]
        if at < end:  # a part of the one before
            continue
        end = at + len(value)
        if not binary:
            line, counted = line + data.count(b"\n", counted, at), at
        if binary or not _is_allowed(data, at):
            secrets.append(_secret(at, None if binary else line, what, value))
    return tuple(secrets)


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
    texts = _pickled_texts(piece, words) if kind is TextKind.PICKLE else _texts(piece)
    for start, text in texts:
        for at, what, value in _in_text(text, words, kind is TextKind.PUBLISHED):
            yield start + at, what, value
    hints = tuple(hint for hint in HINTS if hint in words)
    if kind in (TextKind.DESCRIPTION, TextKind.PUBLISHED) or not hints:
        return
    named = list(assigned(piece, hints))  # in a pickle, functions travel by their source
    if kind is TextKind.PICKLE:
        named += assigned_in_pickle(piece, hints)
    if kind is TextKind.DATA:
        named += assigned_bare(piece, hints)
    for at, value in named:
        yield at, "a secret by its name", value


def _pickled_texts(data: bytes, words: Places) -> Iterator[tuple[int, bytes]]:
    """The texts of a pickle that have an anchor in them, each with its position.

    A text that cannot be told from its surroundings is given with these.
    """
    given: set[tuple[int, int]] = set()
    for anchor in filter(words.__contains__, _ANCHORS):
        places, end = words[anchor], 0
        for at in places_in(data, anchor) if places is None else places:
            if at >= end:
                start, end = _text_at(data, at)
                if (start, end) not in given:
                    given.add((start, end))
                    yield start, data[start:end]


def _text_at(data: bytes, at: int) -> tuple[int, int]:
    """Where the text begins and ends that a place is in."""
    found = [each for opcode in _SIZES for each in _by_opcode(data, at, opcode)]
    return max(found, default=(max(0, at - _AROUND), min(len(data), at + _AROUND)))


def _by_opcode(data: bytes, at: int, opcode: bytes) -> Iterator[tuple[int, int]]:
    """The nearest text of an opcode that spans a place: its size says so."""
    width = _SIZES[opcode]
    lowest = max(0, at - (_LONGEST_TEXT if width > 1 else 256))
    place = data.rfind(opcode, lowest, at)
    for _ in range(_MAX_TRIES):
        if place < 0:
            return
        start = place + 1 + width
        end = start + int.from_bytes(data[place + 1 : start], "little")
        if start <= at < end <= len(data):
            yield start, end
            return
        place = data.rfind(opcode, lowest, place)


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
        end = text.find(b"-----", head.end(), head.end() + _LONGEST_KEY)
        body = text[head.end() : end if end >= 0 else head.end() + _LONGEST_KEY]
        key = _NOT_BASE64.sub(b"", body)
        if len(key) >= _SHORTEST_KEY and len(set(key)) >= _FEWEST_IN_KEY:
            yield at, "a private key", key


# Kept as texts, and compiled by re where there is a file to read: few folders have one.
_LINE: Final = (
    rb"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*"
    rb"(?:'([^'\n]*)'|\"([^\"\n]*)\"|([^\s#'\"][^\n#]*))"
)
_NO_SECRETS: Final = (".example", ".sample", ".template", ".dist", ".defaults", ".schema")
_NAME: Final = re.compile(r"(?:.*\.)?env(?:\.[\w.-]+)?", re.IGNORECASE)
_LABEL_PART: Final = rb"(?:[A-Za-z]+\d{0,4}|\d{1,4}[A-Za-z]{0,2})"
_LIKE_A_LABEL: Final = rb"(?:%b[_./:+-])*%b" % (_LABEL_PART, _LABEL_PART)
"""What a variable that is not called a secret often holds: ``shop-models-2024``."""
_IN_URL: Final = rb"[a-z][a-z0-9+.-]*://[^\s:/@]*:([^\s/@]{6,})@"
_MAX_BYTES: Final = 1 << 20
_SHORTEST: Final = 8
_PROJECT_MARKS: Final = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_MAX_PARENTS: Final = 12


def is_env_file(name: str) -> bool:
    """Whether a file is one by its name.

    >>> is_env_file(".env"), is_env_file("prod.env"), is_env_file(".env.example")
    (True, True, False)
    """
    is_one = _NAME.fullmatch(name) is not None and "." in name
    return is_one and not name.lower().endswith(_NO_SECRETS)


def values_in(data: bytes) -> Iterator[tuple[str, bytes]]:
    r"""The values of a ``.env`` file that are secret, each with its name.

    >>> list(values_in(b"DEBUG=1\nDB_PASSWORD='Tr0ub4dor&3'"))
    [('DB_PASSWORD', b'Tr0ub4dor&3')]
    """
    for match in re.finditer(_LINE, data, re.MULTILINE):
        name, value = match[1], (match[2] or match[3] or match[4] or b"").strip()
        in_url = re.match(_IN_URL, value)
        if in_url is not None:
            value = in_url[1]
        elif not is_secret_value(value, b"password" if is_secret_name(name) else b"value"):
            continue
        elif not is_secret_name(name) and (b"/" in value or re.fullmatch(_LIKE_A_LABEL, value)):
            continue  # a path, or a name
        if len(value) >= _SHORTEST:
            yield name.decode("ascii"), value


def known_values(folder: str) -> dict[bytes, str]:
    """The secret values of the ``.env`` files in a folder, and which variable each is of."""
    found: dict[bytes, str] = {}
    with contextlib.suppress(OSError):  # what cannot be read cannot have got into the code
        # pathlib's glob takes ten times as long, and each export looks into some ten folders.
        names = os.listdir(folder)  # noqa: PTH208
        likely = sorted(n for n in names if ".env" in os.path.normcase(n))
        for file in (Path(folder, name) for name in likely if is_env_file(name)):
            if file.is_file() and file.stat().st_size <= _MAX_BYTES:
                for name, value in values_in(file.read_bytes()):
                    found.setdefault(value, f"the value of {name} in {file}")
    return found


def is_project(folder: str) -> bool:
    """Whether a folder is the outermost one of a project."""
    return any(map(os.path.exists, [f"{folder}/{mark}" for mark in _PROJECT_MARKS]))


def folders_around(folder: str, is_project: Callable[[str], bool] = is_project) -> Sequence[str]:
    """A folder, and those around it up to the project's; only itself if it is in no project.

    Args:
        folder: the folder, as :class:`pathlib.Path` writes it; a path of each around it would take
            longer than looking into them.
        is_project: tells the project's; who asks for many folders may remember the answers.
    """
    around = [folder]
    while not is_project(around[-1]):
        # What is around a single relative name is the current folder.
        outer = os.path.dirname(around[-1]) or "."  # noqa: PTH120
        if outer == around[-1] or len(around) == _MAX_PARENTS:
            return [folder]
        around.append(outer)
    return around
