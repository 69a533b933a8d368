"""Values whose names say that they are secret: ``password = "..."`` in any notation."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from modpack.discovery.leaks.shapes import is_placeholder

__all__ = ["assigned", "assigned_bare", "assigned_in_pickle", "is_secret_name", "is_secret_value"]

_HINTS: Final = (b"passw", b"passphrase", b"pwd", b"secret", b"token", b"key", b"credential")
"""What every such name contains: looked for first, because that is fast."""
_OWNERS: Final = tuple(
    owner + joint
    for owner in (b"api", b"access", b"auth", b"secret", b"private", b"account", b"signing")
    for joint in (b"_", b"-", b"")
)
"""What a key must belong to; the keys of dictionaries are none."""
_REST: Final = {
    b"passw": rb"(?:or)?d",
    b"secret": rb"(?:[_-]?key)?",
    b"credential": rb"s?",
}
"""What may follow a hint in the word."""
_NUMBERED: Final = rb"(?:[_-](?:value|prod|dev|live|\d{1,2}))?"


def _after_hints(tail: bytes) -> tuple[re.Pattern[bytes], ...]:
    """An expression for each hint, over lower-cased bytes: each begins with plain letters."""
    return tuple(
        re.compile(hint + _REST.get(hint, b"") + _NUMBERED + tail, re.DOTALL) for hint in _HINTS
    )


_QUOTED: Final = _after_hints(
    rb"[\"'\]]{0,3}\s{0,4}(?::\s{0,4}str\s{0,4})?(?:=>|:=|[=:,])\s{0,4}[rbu]{0,2}"
    rb"([\"'])(?P<value>[!-~]{8,256}?)\1(?!\s{0,4}[%.\[(])"
)
_BARE: Final = _after_hints(
    rb"[\"']?[ \t]{0,4}[=:][ \t]{0,4}(?P<value>[^\s\"'#,;{}\[\]()]{8,256})[ \t]{0,4}\r?(?:\n|\Z)"
)
_PICKLED: Final = _after_hints(
    rb"(?:q.|r.{4}|\x94)?(?:[xb](?P<long>..\0\0)|[\x8cc](?P<short>.))(?P<value>[!-~]{8,256})"
)
_LINE_START: Final = re.compile(rb"[ \t]*(?:export[ \t]+)?[\"']?[A-Za-z0-9_.-]*")
_NAMES: Final = _after_hints(rb"\Z")
_LIKE_A_NAME: Final = re.compile(rb"(?:[A-Za-z]*[_./:+ -]+)*[A-Za-z]*\d{0,3}")
_UUID: Final = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_FEWEST_BITS: Final = 3.0
"""Shannon entropy per character that a drawn value has at least; 16 drawn hex digits have 3.3."""
_NEAR: Final = 12
_LONGEST_LINE_START: Final = 200


def is_secret_name(name: bytes) -> bool:
    """Whether a name says that its value is secret.

    >>> is_secret_name(b"DB_PASSWORD"), is_secret_name(b"tokenizer"), is_secret_name(b"api_key")
    (True, False, True)
    """
    lowered = name.lower()
    return any(
        _begins_word(name, lowered, match.start())
        for word in _NAMES
        for match in word.finditer(lowered)
    )


def is_secret_value(value: bytes, word: bytes) -> bool:
    """Whether a value is what somebody would keep secret, and no word, path or placeholder.

    Args:
        value: the value.
        word: what its name calls it; a password may be shorter than a key.

    >>> is_secret_value(b"Tr0ub4dor&3", b"password"), is_secret_value(b"layer_norm_2", b"token")
    (True, False)
    """
    if is_placeholder(value) or _LIKE_A_NAME.fullmatch(value):
        return False
    if _UUID.fullmatch(value):
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


def assigned(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Quoted values of secret names: where each begins, and what it is."""
    for match, value in _matches(data, _QUOTED):
        if is_secret_value(value, match[0]):
            yield match.start("value"), value


def assigned_bare(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The same for values without quotes, of names that begin a line."""
    for match, value in _matches(data, _BARE):
        at = match.start()
        start = data.rfind(b"\n", max(0, at - _LONGEST_LINE_START), at) + 1
        if _LINE_START.fullmatch(data, start, at) and is_secret_value(value, match[0]):
            yield match.start("value"), value


def assigned_in_pickle(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The same for texts in a pickle: a name, perhaps remembered, and at once its value."""
    for match, value in _matches(data, _PICKLED):
        start, end = match.span("long" if match["long"] is not None else "short")
        size = int.from_bytes(data[start:end], "little")
        if len(value) >= size and is_secret_value(value[:size], match[0]):
            yield match.start("value"), value[:size]


def _matches(
    data: bytes, words: tuple[re.Pattern[bytes], ...]
) -> Iterator[tuple[re.Match[bytes], bytes]]:
    """What stands behind words that make a name a secret's, and its value as it is written."""
    lowered = data.lower()
    for word in words:
        for match in word.finditer(lowered):
            if _begins_word(data, lowered, match.start()):
                start, end = match.span("value")
                yield match, data[start:end]


def _begins_word(data: bytes, lowered: bytes, at: int) -> bool:
    """Whether a word stands at the beginning of a name, or after another word of it."""
    if b"::" in lowered[max(0, at - _NEAR) : at]:
        return False  # "Vendor::Service::ApiKey" is a type
    if lowered.startswith(b"key", at):
        return lowered.endswith(_OWNERS, max(0, at - 8), at)
    before = data[at - 1 : at]
    is_hump = data[at : at + 1].isupper() and before.islower()
    return is_hump or not before.isalnum()
