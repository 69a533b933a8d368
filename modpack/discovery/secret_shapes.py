"""The shapes of secrets: one row for each that shows by itself, and names that say it of a value.

Such a name is ``password`` in ``password = "..."``, in any notation.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

_FEWEST_CHARACTERS = 8
"""Different characters that a random token has at least."""
_PLACEHOLDER = re.compile(
    rb"example|sample|your|changeme|change_me|placeholder|dummy|redacted|insert|replace|secret_key"
    rb"|xxx|\.\.\.|\*\*\*|0000|1234567|abcdef|abc123|test_?key|fake|todo|Eby8vdM02xNOcqFlqUwJPLlm"
    rb"|<[^<>]*>|\{[^{}]*\}|\$[{(]|\A\$|%\(|%s|%\w+%",
    re.IGNORECASE,
)
_WHERE_SAID = 64
"""Bytes in which a placeholder says that it is one; a long token has every short word by chance."""


def is_placeholder(value: bytes) -> bool:
    """Whether a text only stands for a secret, as it does in documentation.

    >>> is_placeholder(b"YOUR_API_KEY"), is_placeholder(b"kq82Zs0vT1")
    (True, False)
    """
    return _PLACEHOLDER.search(value, 0, _WHERE_SAID) is not None


def looks_random(value: bytes) -> bool:
    """Whether a token has been drawn, and was not made up for documentation."""
    return len(set(value)) >= _FEWEST_CHARACTERS and not is_placeholder(value)


@dataclass(frozen=True)
class Shape:
    """A shape of secrets.

    Attributes:
        name: what such a text is, with its article.
        anchors: what every one of them contains: looked for first, because that is fast.
        pattern: the whole of it, the value being group 1; begins at the anchor or before it.
        reach: how many bytes before the anchor it may begin.
        kinds: of which kinds of characters a real one has some, by an example of each.
        is_exact: whether the value shows by itself what it is; else what is around it says so,
            as it does in examples of documentation.
    """

    name: str
    anchors: tuple[bytes, ...]
    pattern: bytes
    reach: int = 0
    kinds: str = ""
    is_exact: bool = True

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        """The pattern; compiled when an anchor is there, since for all of them that takes 3 ms."""
        return re.compile(self.pattern)

    def admits(self, value: bytes) -> bool:
        """Whether a text of this shape is a secret, and no example of one."""
        return all(re.search(_KINDS[kind], value) for kind in self.kinds) and looks_random(value)


_KINDS: Final = {"0": rb"[0-9]", "a": rb"[a-z]", "A": rb"[A-Z]", "x": rb"[A-Za-z]"}


def _row(
    name: str, anchors: str, pattern: str, reach: int = 0, kinds: str = "", is_exact: bool = True
) -> Shape:
    return Shape(name, tuple(anchors.encode().split()), pattern.encode(), reach, kinds, is_exact)


# A token ends where no character of its alphabet follows, and does not begin within a word.
SHAPES: Final = (
    _row("an AWS access key", "AKIA ASIA", r"(?<![A-Za-z0-9])(A[KS]IA[A-Z2-7]{16})(?![A-Za-z0-9])"),
    _row(
        "a GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_",
        r"(?<![A-Za-z0-9_])(gh[pousr]_[A-Za-z0-9]{36,255})(?![A-Za-z0-9])",
    ),
    _row("a GitHub token", "github_pat_", r"(github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59})"),
    _row(
        "a GitLab token",
        "glpat- glrt- gldt-",
        r"(?<![A-Za-z0-9_])(gl(?:pat|rt|dt)-[A-Za-z0-9_.-]{20,64})",
    ),
    _row(
        "a Slack token",
        "xox",
        r"(?<![A-Za-z0-9_])(xox[abeprs]-(?:[0-9]+-)?[0-9]{6,}-?[A-Za-z0-9-]{10,250})",
    ),
    _row(
        "a Slack webhook",
        "hooks.slack.com/",
        r"(hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{20,32})",
    ),
    _row("a Google API key", "AIza", r"(?<![A-Za-z0-9_-])(AIza[A-Za-z0-9_-]{35})(?![A-Za-z0-9_-])"),
    _row("a Google access token", "ya29.", r"(?<![A-Za-z0-9])(ya29\.[A-Za-z0-9_-]{30,2048})"),
    _row("a Google client secret", "GOCSPX-", r"(GOCSPX-[A-Za-z0-9_-]{28})(?![A-Za-z0-9_-])"),
    _row(
        "a Hugging Face token",
        "hf_",
        r"(?<![A-Za-z0-9_])(hf_[A-Za-z0-9]{34,64})(?![A-Za-z0-9_])",
    ),
    _row(
        "an API key (sk-)",
        "sk-",
        r"(?<![A-Za-z0-9_-])(sk-[A-Za-z0-9_-]{32,256})(?![A-Za-z0-9_-])",
        kinds="0aA",
    ),
    _row(
        "an API key",
        "gsk_ r8_ nvapi-",
        r"(?<![A-Za-z0-9_-])((?:gsk_|r8_|nvapi-)[A-Za-z0-9_-]{37,128})(?![A-Za-z0-9_-])",
        kinds="0aA",
    ),
    _row(
        "a Kaggle key",
        '"username"',
        r"\"username\"\s{0,9}:\s{0,9}\"[^\"]{1,64}\"\s{0,9},\s{0,9}\"key\"\s{0,9}:\s{0,9}\"([0-9a-f]{32})\"",
        is_exact=False,
    ),
    _row("a Docker token", "dckr_pat_", r"(dckr_pat_[A-Za-z0-9_-]{27,64})"),
    _row(
        "a password of a container registry",
        '"auth"',
        r"\"auth\"\s{0,9}:\s{0,9}\"([A-Za-z0-9+/]{16,4096}={0,2})\"",
        kinds="aA",
        is_exact=False,
    ),
    _row("a Vault token", "hvs.", r"(?<![A-Za-z0-9_.])(hvs\.[A-Za-z0-9_-]{90,200})"),
    _row(
        "a Telegram token",
        ":AA",
        r"[^0-9]{0,2}(?<![A-Za-z0-9_])([0-9]{8,10}:AA[A-Za-z0-9_-]{33})(?![A-Za-z0-9_-])",
        reach=10,
    ),
    _row("an age key", "AGE-SECRET-KEY-1", r"(AGE-SECRET-KEY-1[A-Z0-9]{58})"),
    _row(
        "a private key in base64",
        "LS0tLS1CRUdJTi",
        r"(?<![A-Za-z0-9+/])(LS0tLS1CRUdJTi(?:BSU0EgUFJJVkFURSBLRV|BQUklWQVRFIEtFW|BFQyBQUklWQVRFIEtFW"
        r"|BPUEVOU1NIIFBSSVZBVEUgS0VZ|BFTkNSWVBURUQgUFJJVkFURSBLRV)[A-Za-z0-9+/=]{80,8192})",
    ),
    _row(
        "a private key without its frame",
        "IBADANBgkqhkiG9w0BAQEFAASC",
        r"(?<![A-Za-z0-9+/])(MII[A-Za-z0-9+/]{3}IBADANBgkqhkiG9w0BAQEFAASC[A-Za-z0-9+/=]{60,8192})",
        reach=6,
    ),
    _row(
        "a password in a header",
        "uthorization",
        r"[Aa]uthorization[\"'\]\\]{0,3}\s{0,4}[:=,]\s{0,4}[rbuf]{0,2}\\?[\"']?(?:[Bb]earer|[Bb]asic|[Tt]oken)\s"
        r"([A-Za-z0-9+/=._~-]{16,4096})",
        reach=1,
        kinds="x0",
        is_exact=False,
    ),
    _row(  # in a dict that is pickled, the header's name is another text
        "a password in a header",
        "earer",
        r"(?<![A-Za-z])[Bb]earer\s([A-Za-z0-9+/=._~-]{16,4096})",
        reach=1,
        kinds="x0",
        is_exact=False,
    ),
    _row(
        "a password of a login",
        "auth=( BasicAuth(",
        r"(?:auth=|BasicAuth)\(\s{0,40}[rbuf]{0,2}[\"'][^\"'\s]{1,64}[\"']\s{0,4},\s{0,40}[rbuf]{0,2}[\"']"
        r"([!-~]{8,128}?)[\"']",
        kinds="x0",
        is_exact=False,
    ),
    _row(
        "a Stripe key",
        "k_live_",
        r"(?<![A-Za-z0-9])([sr]k_live_[A-Za-z0-9]{20,255})(?![A-Za-z0-9])",
        reach=1,
    ),
    _row("an npm token", "npm_", r"(?<![A-Za-z0-9_])(npm_[A-Za-z0-9]{36})(?![A-Za-z0-9_])"),
    _row("a PyPI token", "pypi-AgE", r"(?<![A-Za-z0-9_-])(pypi-AgE[A-Za-z0-9_-]{50,2048})"),
    _row(
        "a JSON web token",
        "eyJ",
        r"(?<![A-Za-z0-9_.-])(eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,8192}"
        r"\.[A-Za-z0-9_-]{20,2048})",
    ),
    _row("a SendGrid key", "SG.", r"(?<![A-Za-z0-9_.])(SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43})"),
    _row("a DigitalOcean token", "dop_v1_", r"(dop_v1_[a-f0-9]{64})"),
    _row("a Databricks token", "dapi", r"(?<![A-Za-z0-9])(dapi[a-f0-9]{32})(?![A-Za-z0-9])"),
    _row("an Azure storage key", "AccountKey=", r"AccountKey=([A-Za-z0-9+/]{86}==)"),
    _row("an Azure access key", "SharedAccessKey=", r"SharedAccessKey=([A-Za-z0-9+/]{43}=)"),
    _row(
        "an Azure client secret",
        "Q~",
        r"(?<![A-Za-z0-9_~.-])([A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34})(?![A-Za-z0-9_~.-])",
        reach=4,
    ),
    _row(
        "a password in a URL",
        "://",
        r"://[A-Za-z0-9_.+-]{0,64}:(?!(?:[A-Za-z]*[_.+-])*[A-Za-z]*\d{0,4}@)"
        r"((?:[^\s:/@'\"<>{}()\[\]$%`\\]|%[0-9A-Fa-f]{2}){8,128})@[A-Za-z0-9-]{1,63}(?![A-Za-z0-9@-])",
        kinds="x0",
        is_exact=False,
    ),
    _row(
        "a password of a netrc file",
        "machine",
        r"machine\s+[\w.-]+\s+(?:login\s+\S+\s+)?password\s+(\S{6,256})",
        is_exact=False,
    ),
)
"""The order does not matter: no value has two of these shapes, or they have the same name."""


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
_MAX_REMEMBERED: Final = 64
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
        if len(found) < _MAX_REMEMBERED:
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
