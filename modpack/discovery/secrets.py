"""A secret scan of bytes, for private keys and known token formats, in bounded time and memory.

In a pickle, strings are searched without the surrounding opcodes, which may be letters and digits
themselves. The values in ``.env`` files must not be in code or in packages.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from modpack.discovery.secret_shapes import SHAPES, is_placeholder
from modpack.discovery.secret_words import Positions, WordFinder, find_all

ALLOW_COMMENT: Final = b"modpack: not a secret"
"""Comment for a line with a false positive."""
_EXCERPT_LENGTH: Final = 4
_CHUNK: Final = 4 << 20
_OVERLAP: Final = 64 << 10
"""Bytes after a chunk that are searched too: twice the longest secret. A secret that starts in the
second half could be cut, and is left to the next chunk."""
_MIN_RUN: Final = 16
"""Minimum number of consecutive printable bytes to search in binary data."""
_MARGIN: Final = 64
_PRINTABLE: Final = bytes(
    120 if 32 <= code < 127 or code in b"\t\n\r" else 0 for code in range(256)
)
_KEY_BEGIN: Final = b"-----BEGIN "
_ANCHORS: Final = (_KEY_BEGIN, *(anchor for shape in SHAPES for anchor in shape.anchors))
_WORDS: Final = WordFinder(_ANCHORS)
_SIZES: Final = {b"X": 4, b"\x8c": 1, b"\x8d": 8, b"B": 4, b"C": 1, b"\x8e": 8}
"""Number of size bytes for each string and bytes opcode (:mod:`pickletools`)."""
_MAX_TEXT: Final = 256 << 10
_CONTEXT: Final = 8 << 10
"""Bytes to search before and after a position whose string cannot be delimited."""
_MAX_ATTEMPTS: Final = 64
_KEY_HEAD: Final = re.compile(rb"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_MAX_KEY: Final = 16 << 10
_NOT_BASE64: Final = re.compile(rb"\\[nr]|[A-Za-z0-9-]{2,20}: [^\n\\]*|[^A-Za-z0-9+/=]")
_MIN_KEY: Final = 60
_MIN_DISTINCT: Final = 16
"""Minimum number of distinct characters in a key; an example of dots and letters has fewer."""


@dataclass(frozen=True)
class Secret:
    """A possible secret.

    Attributes:
        description: Kind of secret, with an article.
        position: Offset in bytes.
        line: 1-based line; None in binary data.
        excerpt: First characters and length, safe to show.
        fingerprint: First 12 hex digits of its SHA-256 digest.
        value: Complete value; must never be shown.
    """

    description: str
    position: int
    line: int | None
    excerpt: str
    fingerprint: str
    value: bytes = field(repr=False)


def find_secrets(
    data: bytes, known: Mapping[bytes, str] | None = None, *, is_pickle: bool = False
) -> tuple[Secret, ...]:
    r"""Return all possible secrets in a source, a file, or a pickle, in order.

    Lines with :data:`ALLOW_COMMENT` are skipped.

    Args:
        data: Bytes to scan.
        known: Secret values of any form, with a description of their origin.
        is_pickle: Whether the data is a pickle.

    >>> text = b"x = 1\nlogin('Tr0ub4dor&3')"
    >>> found = find_secrets(text, {b"Tr0ub4dor&3": "the password in .env"})
    >>> [(secret.line, secret.description, secret.excerpt) for secret in found]
    [(2, 'the password in .env', "'Tr0u...' (11 characters)")]
    """
    if not is_pickle and data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    found: dict[int, tuple[str, bytes]] = {}
    for start in range(0, max(len(data), 1), _CHUNK):
        # With what is before it: a token does not start within a word.
        first = max(0, start - _MARGIN)
        chunk = data[first : start + _CHUNK + _OVERLAP]
        for at, description, value in _search_chunk(chunk, known or {}, is_pickle):
            if start <= first + at < start + _CHUNK + _OVERLAP // 2:
                found.setdefault(first + at, (description, value))
    binary = is_pickle or b"\0" in data[:_OVERLAP]
    secrets = []
    end, line, counted = -1, 1, 0
    for at in sorted(found):
        description, value = found[at]
        if at < end:  # part of the previous secret
            continue
        end = at + len(value)
        if not binary:
            line, counted = line + data.count(b"\n", counted, at), at
        if binary or not _is_allowed(data, at):
            # Of a short value, show only about a third.
            shown = value[: min(_EXCERPT_LENGTH, (len(value) + 1) // 3)].decode("ascii", "replace")
            excerpt = f"'{shown}...' ({len(value)} characters)"
            digest, place = hashlib.sha256(value).hexdigest()[:12], None if binary else line
            secrets.append(Secret(description, at, place, excerpt, digest, value))
    return tuple(secrets)


def _is_allowed(data: bytes, at: int) -> bool:
    start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
    return ALLOW_COMMENT in data[start : end if end >= 0 else len(data)]


def _search_chunk(
    chunk: bytes, known: Mapping[bytes, str], is_pickle: bool
) -> Iterator[tuple[int, str, bytes]]:
    for value, origin in known.items():
        for at in find_all(chunk, value):
            yield at, origin, value
    words = _WORDS.find(chunk)  # most chunks have few of them, which saves most searches
    if words:
        texts = _pickled_texts(chunk, words) if is_pickle else _printable_texts(chunk)
        for start, text in texts:
            for at, description, value in _search_text(text, words):
                yield start + at, description, value


def _pickled_texts(data: bytes, words: Positions) -> Iterator[tuple[int, bytes]]:
    """Yield the position and bytes of each string in a pickle that contains an anchor.

    A string that cannot be delimited is extended by the bytes around it.
    """
    given: set[tuple[int, int]] = set()
    for anchor in filter(words.__contains__, _ANCHORS):
        positions, end = words[anchor], 0
        for at in find_all(data, anchor) if positions is None else positions:
            # Searching the yielded text finds all anchors in it.
            if at >= end:
                found = [each for opcode in _SIZES for each in _text_of_opcode(data, at, opcode)]
                around = max(0, at - _CONTEXT), min(len(data), at + _CONTEXT)
                # Other bytes may fit by chance as sizes: the string that starts last is nearest.
                start, end = max(found, default=around)
                if (start, end) not in given:
                    given.add((start, end))
                    yield start, data[start:end]


def _text_of_opcode(data: bytes, at: int, opcode: bytes) -> Iterator[tuple[int, int]]:
    """Yield the nearest string of an opcode that contains a position, according to its size."""
    width = _SIZES[opcode]
    # A string with one size byte has at most 255 bytes.
    lowest = max(0, at - (_MAX_TEXT if width > 1 else 256))
    position = data.rfind(opcode, lowest, at)
    # Any byte may look like the opcode. The limit bounds the time for a hostile pickle.
    for _ in range(_MAX_ATTEMPTS):
        if position < 0:
            return
        start = position + 1 + width
        end = start + int.from_bytes(data[position + 1 : start], "little")
        if start <= at < end <= len(data):
            yield start, end
            return
        position = data.rfind(opcode, lowest, position)


def _printable_texts(chunk: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the chunk, or only the printable parts of binary data."""
    if b"\0" not in chunk:
        yield 0, chunk
        return
    marks, run = chunk.translate(_PRINTABLE), b"x" * _MIN_RUN
    at = marks.find(run)
    while at >= 0:
        end = marks.find(b"\0", at)
        end = len(chunk) if end < 0 else end
        begin = max(0, at - _MARGIN)
        yield begin, chunk[begin : end + _MARGIN]
        at = marks.find(run, end)


def _search_text(text: bytes, words: Container[bytes]) -> Iterator[tuple[int, str, bytes]]:
    if _KEY_BEGIN in words:
        yield from _private_keys(text)
    for shape in SHAPES:
        for anchor in shape.anchors:
            for at in find_all(text, anchor) if anchor in words else ():
                match = shape.compiled.match(text, max(0, at - shape.reach))
                if match is not None and shape.admits(match[1]):
                    yield match.start(1), shape.name, match[1]


def _private_keys(text: bytes) -> Iterator[tuple[int, str, bytes]]:
    for at in find_all(text, _KEY_BEGIN):
        head = _KEY_HEAD.match(text, at)
        if head is None:
            continue
        end = text.find(b"-----", head.end(), head.end() + _MAX_KEY)
        body = text[head.end() : end if end >= 0 else head.end() + _MAX_KEY]
        # Sources spell line ends as escapes, and PEM headers may precede the key.
        key = _NOT_BASE64.sub(b"", body)
        if len(key) >= _MIN_KEY and len(set(key)) >= _MIN_DISTINCT:
            yield at, "a private key", key


# Strings that re compiles on first use: few folders have an .env file.
_ASSIGNMENT: Final = (
    rb"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*"
    rb"(?:'([^'\n]*)'|\"([^\"\n]*)\"|([^\s#'\"][^\n#]*))"
)
_EXAMPLE_SUFFIXES: Final = (".example", ".sample", ".template", ".dist", ".defaults", ".schema")
_ENV_FILE_NAME: Final = re.compile(r"(?:.*\.)?env(?:\.[\w.-]+)?", re.IGNORECASE)
_LABEL_PART: Final = rb"(?:[A-Za-z]+\d{0,4}|\d{1,4}[A-Za-z]{0,2})"
_LABEL: Final = rb"[~./]*(?:%b[_./:+-]+)*%b/?" % (_LABEL_PART, _LABEL_PART)
"""A value that is not a secret, although its name may suggest one: ``shop-models-2024``, a path."""
_SECRET_NAME: Final = rb"(?i)pass|pwd|secret|token|key|credential"
_URL_PASSWORD: Final = rb"[a-z][a-z0-9+.-]*://[^\s:/@]*:([^\s/@]*)@"
_MAX_BYTES: Final = 1 << 20
_MIN_VALUE: Final = 8
_PROJECT_MARKS: Final = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_MAX_PARENTS: Final = 12


def is_env_file(name: str) -> bool:
    """Return whether a file name is that of an ``.env`` file with real values.

    >>> is_env_file(".env"), is_env_file("prod.env"), is_env_file(".env.example")
    (True, True, False)
    """
    is_one = _ENV_FILE_NAME.fullmatch(name) is not None and "." in name
    return is_one and not name.lower().endswith(_EXAMPLE_SUFFIXES)


def env_file_secrets(data: bytes) -> Iterator[tuple[str, bytes]]:
    r"""Yield the name and value of each secret in an ``.env`` file.

    >>> list(env_file_secrets(b"DEBUG=1\nDB_PASSWORD='Tr0ub4dor&3'"))
    [('DB_PASSWORD', b'Tr0ub4dor&3')]
    """
    for match in re.finditer(_ASSIGNMENT, data, re.MULTILINE):
        name, value = match[1], (match[2] or match[3] or match[4] or b"").strip()
        in_url = re.match(_URL_PASSWORD, value)
        # A password in a URL counts, whatever the name of the variable.
        if in_url is not None:
            value = in_url[1]
        elif not re.search(_SECRET_NAME, name):
            continue
        if len(value) >= _MIN_VALUE and not (is_placeholder(value) or re.fullmatch(_LABEL, value)):
            yield name.decode("ascii"), value


def env_secrets_in(folder: str) -> dict[bytes, str]:
    """Return the secret values in a folder's ``.env`` files, with a description of their origin."""
    found: dict[bytes, str] = {}
    with contextlib.suppress(OSError):  # an unreadable file cannot have leaked into the code
        # pathlib's glob takes ten times as long, and each export lists about ten folders.
        names = os.listdir(folder)  # noqa: PTH208
        likely = sorted(n for n in names if ".env" in os.path.normcase(n))
        for file in (Path(folder, name) for name in likely if is_env_file(name)):
            if file.is_file() and file.stat().st_size <= _MAX_BYTES:
                for name, value in env_file_secrets(file.read_bytes()):
                    found.setdefault(value, f"the value of {name} in {file}")
    return found


def is_project(folder: str) -> bool:
    """Return whether a folder is the root of a project."""
    return any(map(os.path.exists, [f"{folder}/{mark}" for mark in _PROJECT_MARKS]))


def folders_up_to_project(
    folder: str, is_project: Callable[[str], bool] = is_project
) -> Sequence[str]:
    """Return a folder and its parents up to the project root; only itself outside of a project.

    Args:
        folder: Folder in the form of :class:`pathlib.Path`, as a string: creating a path for each
            parent would take longer than listing them.
        is_project: Function that detects a project root. Callers may pass a cached one.
    """
    folders = [folder]
    while not is_project(folders[-1]):
        # The parent of a relative name without separators is the current folder.
        outer = os.path.dirname(folders[-1]) or "."  # noqa: PTH120
        if outer == folders[-1] or len(folders) == _MAX_PARENTS:
            return [folder]
        folders.append(outer)
    return folders
