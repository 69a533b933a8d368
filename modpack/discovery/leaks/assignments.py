"""Values whose names say that they are secret: ``password = "..."`` in any notation."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from modpack.discovery.leaks.shapes import is_placeholder

__all__ = [
    "HINTS",
    "assigned",
    "assigned_bare",
    "assigned_in_pickle",
    "is_secret_name",
    "is_secret_value",
]

HINTS: Final = (
    b"passw",
    b"passphrase",
    b"pass",
    b"pwd",
    b"secret",
    b"token",
    b"key",
    b"credential",
)
"""What every such name contains: looked for first, because that is fast."""


def _owners(words: bytes) -> tuple[bytes, ...]:
    return tuple(owner + joint for owner in words.split() for joint in (b"_", b"-", b""))


_OWNERS: Final = {
    b"key": _owners(
        b"api access auth secret private account signing encryption master jwt service consumer "
        b"client app subscription storage admin hmac deploy"
    ),
    b"pass": _owners(b"db user smtp mail ftp ssh admin root login auth sql database proxy account"),
}
"""What a key must belong to, since the keys of dictionaries are none; what a pass must."""
_JOINED: Final = tuple(b"access auth api bearer client app session refresh bot shared".split())
"""What may go before the other words without a joint: ``clientsecret``."""
_LONGEST_OWNER: Final = 13
_REST: Final = {
    b"passw": rb"(?:or)?d",
    b"secret": rb"(?:[_-]?key)?",
    b"credential": rb"s?",
}
"""What may follow a hint in the word."""
_NUMBERED: Final = rb"(?:[_-](?:value|prod|dev|live|\d{1,2}))?"


@cache
def _after_hint(hint: bytes, tail: bytes) -> re.Pattern[bytes]:
    """An expression for lower-cased bytes; it begins with plain letters, and a tail ends it.

    Compiled when a hint is there: all of them take 6 ms, and most of what is saved has none.
    """
    return re.compile(hint + _REST.get(hint, b"") + _NUMBERED + tail, re.DOTALL)


_QUOTED: Final = (
    rb"[\"'\])\\]{0,4}\s{0,4}(?::\s{0,4}[\w.\[\]|]{1,40}\s{0,4}(?:\|\s?none\s{0,4})?=|=>|:=|==?|[:,]|or\s)"
    rb"\s{0,4}(?:(?:[\w.]{0,24}(?:secret|str|bytes|quote|quote_plus))?\(\s{0,40})?"
    rb"[rbuf]{0,2}\\{0,3}([\"'])(?P<value>[!-~]{8,256}?)\\{0,3}\1(?!\s{0,4}[%.\[(])"
)
"""A name and a text in quotes, in Python or JSON, or in a text that is in quotes itself."""
_BARE: Final = (
    rb"[\"']?[ \t]{0,4}[=:][ \t]{0,4}(?P<value>[^\s\"'#,;{}\[\]()]{8,256})"
    rb"(?=[ \t]{0,4}(?:[,}\r\n]|\Z|[ \t][#;]))"
)
_TAGGED: Final = rb">(?P<value>[^\s<>\"']{8,256})</"
_DELIMITED: Final = rb"=(?P<value>[^\s\"'`;&<>{}()\[\]$%,\\]{8,256})(?=[\s\"'`;&\\]|\Z)"
_VALUE: Final = rb"(?:[xXbB](?P<long>..\0\0)|[\x8ccC](?P<short>.))(?P<value>[!-~]{8,256})"
_PICKLED: Final = rb"(?:q.|r.{4}|\x94)?" + _VALUE
_REMEMBERED: Final = rb"(?:q(?P<byte>.)|r(?P<word>.{4}))"
_MOST_REMEMBERED: Final = 64
# Kept as texts, too: re compiles them for the first match of an expression above.
_LINE_START: Final = rb"(?:[ \t]*(?:-[ \t]+)?(?:export[ \t]+)?|.*[{,][ \t]*)[\"']?[A-Za-z0-9_.-]*"
_DELIMITER: Final = rb"(?:[;&?]|--)[A-Za-z0-9_.-]{0,32}\Z"
_NAME_END: Final = rb"\Z"
_LIKE_A_NAME: Final = rb"(?:[A-Za-z]*(?:\[-?\d{1,3}\])?[_./:+ -])*[A-Za-z]*\d{0,3}"
_RANGE: Final = rb"\[[^\]]*(?:a-z|A-Z|0-9)"
"""What a regular expression has, such as that of a token in a grammar."""
_UUID: Final = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FEWEST_BITS: Final = 3.0
"""Shannon entropy per character that a drawn value has at least; 16 drawn hex digits have 3.3."""
_NEAR: Final = 12
_LONGEST_LINE_START: Final = 200
_LONGEST_NAME: Final = 40


def is_secret_name(name: bytes) -> bool:
    """Whether a name says that its value is secret.

    >>> is_secret_name(b"DB_PASSWORD"), is_secret_name(b"tokenizer"), is_secret_name(b"api_key")
    (True, False, True)
    """
    lowered = name.lower()
    return any(
        _begins_word(name, lowered, match.start())
        for hint in HINTS
        for match in _after_hint(hint, _NAME_END).finditer(lowered)
    )


def is_secret_value(value: bytes, word: bytes) -> bool:
    """Whether a value is what somebody would keep secret, and no word, path or placeholder.

    Args:
        value: the value.
        word: what its name calls it; a password may be shorter than a key.

    >>> is_secret_value(b"Tr0ub4dor&3", b"password"), is_secret_value(b"layer_norm_2", b"token")
    (True, False)
    """
    if is_placeholder(value) or re.fullmatch(_LIKE_A_NAME, value):
        return False
    if re.search(_RANGE, value) or re.fullmatch(_UUID, value, re.IGNORECASE):
        return False
    if not re.search(rb"[0-9]", value) or not re.search(rb"[A-Za-z]", value):
        return False
    if word.lower().startswith((b"pass", b"pwd")):
        return len(set(value)) >= 6 and b"/" not in value
    return len(value) >= 16 and _bits(value) >= _FEWEST_BITS and value.count(b".") < 3


def _bits(value: bytes) -> float:
    """Shannon entropy per character."""
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts)


def assigned(data: bytes, hints: Iterable[bytes] = HINTS) -> Iterator[tuple[int, bytes]]:
    """Quoted values of secret names: where each begins, and what it is.

    Those within a text as well that is a command line, a query or a list of settings.

    Args:
        data: where to look.
        hints: those of :data:`HINTS` that are known to occur; others are not looked for.
    """
    for match, value in _matches(data, _QUOTED, hints):
        if is_secret_value(value, match[0]):
            yield match.start("value"), value
    for match, value in _matches(data, _DELIMITED, hints):
        before = data[max(0, match.start() - _LONGEST_NAME) : match.start()]
        if re.search(_DELIMITER, before) and is_secret_value(value, match[0]):
            yield match.start("value"), value


def assigned_bare(data: bytes, hints: Iterable[bytes] = HINTS) -> Iterator[tuple[int, bytes]]:
    """The same for values without quotes, of names that begin a line or an entry, and in tags."""
    for match, value in _matches(data, _TAGGED, hints):
        if is_secret_value(value, match[0]):
            yield match.start("value"), value
    for match, value in _matches(data, _BARE, hints):
        at = match.start()
        nearest = max(0, at - _LONGEST_LINE_START)
        start = max(nearest, data.rfind(b"\n", nearest, at) + 1)
        if re.compile(_LINE_START).fullmatch(data, start, at) and is_secret_value(value, match[0]):
            yield match.start("value"), value


def assigned_in_pickle(data: bytes, hints: Iterable[bytes] = HINTS) -> Iterator[tuple[int, bytes]]:
    """The same for texts in a pickle: a name, perhaps remembered, and at once its value."""
    for match, value in _matches(data, _PICKLED, hints):
        yield from _pickled(data, match, value, match[0])
    for get, word in _remembered(data, hints).items():
        for match in re.finditer(re.escape(get) + _VALUE, data, re.DOTALL):
            yield from _pickled(data, match, match["value"], word)


def _pickled(
    data: bytes, match: re.Match[bytes], value: bytes, word: bytes
) -> Iterator[tuple[int, bytes]]:
    """A value in a pickle, as long as its opcode says."""
    start, end = match.span("long" if match["long"] is not None else "short")
    size = int.from_bytes(data[start:end], "little")
    if len(value) >= size and is_secret_value(value[:size], word):
        yield match.start("value"), value[:size]


def _remembered(data: bytes, hints: Iterable[bytes]) -> dict[bytes, bytes]:
    """The names that a pickle remembers: how it comes back to each, and what it says."""
    found: dict[bytes, bytes] = {}
    for match, _ in _matches(data, _REMEMBERED, hints, "byte"):
        is_short = match["byte"] is not None
        start, end = match.span("byte" if is_short else "word")
        if len(found) < _MOST_REMEMBERED:
            found[(b"h" if is_short else b"j") + data[start:end]] = match[0]
    return found


def _matches(
    data: bytes, tail: bytes, hints: Iterable[bytes], group: str = "value"
) -> Iterator[tuple[re.Match[bytes], bytes]]:
    """What stands behind words that make a name a secret's, and its value as it is written."""
    lowered = data.lower()
    for hint in hints:
        for match in _after_hint(hint, tail).finditer(lowered):
            if _begins_word(data, lowered, match.start()):
                start, end = match.span(group)
                yield match, data[start:end]


def _begins_word(data: bytes, lowered: bytes, at: int) -> bool:
    """Whether a word stands at the beginning of a name, or after another word of it."""
    if b"::" in lowered[max(0, at - _NEAR) : at]:
        return False  # "Vendor::Service::ApiKey" is a type
    if lowered.startswith((b"passw", b"passp"), at):
        return True  # no other word has that in it
    start = max(0, at - _LONGEST_OWNER)
    for word, owners in _OWNERS.items():
        if lowered.startswith(word, at):
            return lowered.endswith(owners, start, at)
    before = data[at - 1 : at]
    is_hump = data[at : at + 1].isupper() and before.islower()
    return is_hump or not before.isalnum() or lowered.endswith(_JOINED, start, at)
