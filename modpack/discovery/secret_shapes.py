"""Known token formats, and assignments to names such as ``password`` in any notation."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

_MIN_DISTINCT = 8
"""Minimum number of distinct characters in a random token."""
_PLACEHOLDER = re.compile(
    rb"example|sample|your|changeme|change_me|placeholder|dummy|redacted|insert|replace|secret_key"
    rb"|xxx|\.\.\.|\*\*\*|0000|1234567|abcdef|abc123|test_?key|fake|todo|Eby8vdM02xNOcqFlqUwJPLlm"
    rb"|<[^<>]*>|\{[^{}]*\}|\$[{(]|\A\$|%\(|%s|%\w+%",
    re.IGNORECASE,
)
_PLACEHOLDER_RANGE = 64
"""Bytes that are searched for placeholder words. A long token may contain any short word by
chance."""


def is_placeholder(value: bytes) -> bool:
    """Return whether a value is a placeholder, such as those in documentation.

    >>> is_placeholder(b"YOUR_API_KEY"), is_placeholder(b"kq82Zs0vT1")
    (True, False)
    """
    return _PLACEHOLDER.search(value, 0, _PLACEHOLDER_RANGE) is not None


def looks_random(value: bytes) -> bool:
    """Return whether a token looks random, unlike an example in documentation."""
    return len(set(value)) >= _MIN_DISTINCT and not is_placeholder(value)


@dataclass(frozen=True)
class SecretShape:
    """A token format.

    Attributes:
        name: Kind of token, with an article.
        anchors: Substrings, one of which each token contains. They are searched first for speed.
        pattern: Pattern with the value as group 1. It starts at the anchor or before it.
        reach: Maximum number of bytes before the anchor.
        kinds: Required kinds of characters, by an example of each.
        is_exact: Whether the value itself identifies the token. Otherwise its surroundings do, as
            in examples of documentation.
    """

    name: str
    anchors: tuple[bytes, ...]
    pattern: bytes
    reach: int = 0
    kinds: str = ""
    is_exact: bool = True

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        """Compiled pattern. Compiled on demand, because all patterns take 3 ms."""
        return re.compile(self.pattern)

    def admits(self, value: bytes) -> bool:
        """Return whether a match of the pattern is a real token, not an example."""
        return all(re.search(_KINDS[kind], value) for kind in self.kinds) and looks_random(value)


_KINDS: Final = {"0": rb"[0-9]", "a": rb"[a-z]", "A": rb"[A-Z]", "x": rb"[A-Za-z]"}


def _row(
    name: str, anchors: str, pattern: str, reach: int = 0, kinds: str = "", is_exact: bool = True
) -> SecretShape:
    return SecretShape(
        name, tuple(anchors.encode().split()), pattern.encode(), reach, kinds, is_exact
    )


# A token is not followed by a character of its alphabet, and does not start within a word.
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
        "a container registry password",
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
        "a private key without PEM headers",
        "IBADANBgkqhkiG9w0BAQEFAASC",
        r"(?<![A-Za-z0-9+/])(MII[A-Za-z0-9+/]{3}IBADANBgkqhkiG9w0BAQEFAASC[A-Za-z0-9+/=]{60,8192})",
        reach=6,
    ),
    _row(
        "a credential in an HTTP header",
        "uthorization",
        r"[Aa]uthorization[\"'\]\\]{0,3}\s{0,4}[:=,]\s{0,4}[rbuf]{0,2}\\?[\"']?(?:[Bb]earer|[Bb]asic|[Tt]oken)\s"
        r"([A-Za-z0-9+/=._~-]{16,4096})",
        reach=1,
        kinds="x0",
        is_exact=False,
    ),
    _row(  # in a pickled dict, the header's name is a separate string
        "a credential in an HTTP header",
        "earer",
        r"(?<![A-Za-z])[Bb]earer\s([A-Za-z0-9+/=._~-]{16,4096})",
        reach=1,
        kinds="x0",
        is_exact=False,
    ),
    _row(
        "a login password",
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
        "a password in a netrc file",
        "machine",
        r"machine\s+[\w.-]+\s+(?:login\s+\S+\s+)?password\s+(\S{6,256})",
        is_exact=False,
    ),
)
"""Token formats in any order: a value matches only one, or several of the same name."""


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
"""Substrings, one of which each secret name contains. They are searched first for speed."""


def _owners(words: bytes) -> tuple[bytes, ...]:
    return tuple(owner + joint for owner in words.split() for joint in (b"_", b"-", b""))


_OWNERS: Final = {
    b"key": _owners(
        b"api access auth secret private account signing encryption master jwt service consumer "
        b"client app subscription storage admin hmac deploy"
    ),
    b"pass": _owners(b"db user smtp mail ftp ssh admin root login auth sql database proxy account"),
}
"""Required prefixes of ``key``, which is also a dictionary's key, and of ``pass``."""
_JOINED: Final = tuple(b"access auth api bearer client app session refresh bot shared".split())
"""Prefixes of other hints without a separator: ``clientsecret``."""
_MAX_OWNER: Final = 13
_REST: Final = {
    b"passw": rb"(?:or)?d",
    b"secret": rb"(?:[_-]?key)?",
    b"credential": rb"s?",
}
"""Optional rest of a word after its hint."""
_NUMBERED: Final = rb"(?:[_-](?:value|prod|dev|live|\d{1,2}))?"


@cache
def _after_hint(hint: bytes, tail: bytes) -> re.Pattern[bytes]:
    """Return a pattern for lowercase bytes that starts with a literal hint and ends with a tail.

    Compiled on demand: all patterns take 6 ms, and most files contain no hint.
    """
    return re.compile(hint + _REST.get(hint, b"") + _NUMBERED + tail, re.DOTALL)


_QUOTED: Final = (
    rb"[\"'\])\\]{0,4}\s{0,4}(?::\s{0,4}[\w.\[\]|]{1,40}\s{0,4}(?:\|\s?none\s{0,4})?=|=>|:=|==?|[:,]|or\s)"
    rb"\s{0,4}(?:(?:[\w.]{0,24}(?:secret|str|bytes|quote|quote_plus))?\(\s{0,40})?"
    rb"[rbuf]{0,2}\\{0,3}([\"'])(?P<value>[!-~]{8,256}?)\\{0,3}\1(?!\s{0,4}[%.\[(])"
)
"""A name and a quoted string, in Python or JSON, or inside another quoted string."""
_BARE: Final = (
    rb"[\"']?[ \t]{0,4}[=:][ \t]{0,4}(?P<value>[^\s\"'#,;{}\[\]()]{8,256})"
    rb"(?=[ \t]{0,4}(?:[,}\r\n]|\Z|[ \t][#;]))"
)
_TAGGED: Final = rb">(?P<value>[^\s<>\"']{8,256})</"
_DELIMITED: Final = rb"=(?P<value>[^\s\"'`;&<>{}()\[\]$%,\\]{8,256})(?=[\s\"'`;&\\]|\Z)"
_VALUE: Final = rb"(?:[xXbB](?P<long>..\0\0)|[\x8ccC](?P<short>.))(?P<value>[!-~]{8,256})"
_PICKLED: Final = rb"(?:q.|r.{4}|\x94)?" + _VALUE
_MEMOIZED: Final = rb"(?:q(?P<byte>.)|r(?P<word>.{4}))"
_MAX_MEMOIZED: Final = 64
# Also strings: re compiles them on first use, after a match of a pattern above.
_LINE_START: Final = rb"(?:[ \t]*(?:-[ \t]+)?(?:export[ \t]+)?|.*[{,][ \t]*)[\"']?[A-Za-z0-9_.-]*"
_DELIMITER: Final = rb"(?:[;&?]|--)[A-Za-z0-9_.-]{0,32}\Z"
_NAME_END: Final = rb"\Z"
_LIKE_A_NAME: Final = rb"(?:[A-Za-z]*(?:\[-?\d{1,3}\])?[_./:+ -])*[A-Za-z]*\d{0,3}"
_RANGE: Final = rb"\[[^\]]*(?:a-z|A-Z|0-9)"
"""A character class of a regular expression, such as a token in a grammar."""
_UUID: Final = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_MIN_ENTROPY: Final = 3.0
"""Minimum Shannon entropy per character of a random value; 16 random hex digits have 3.3."""
_LOOKBEHIND: Final = 12
_MAX_LINE_START: Final = 200
_MAX_NAME: Final = 40


def is_secret_name(name: bytes) -> bool:
    """Return whether a name indicates a secret value.

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
    """Return whether a value may be secret, not a word, a path, or a placeholder.

    Args:
        value: Value to check.
        word: Matched word of its name. A password may be shorter than a key.

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
    return len(value) >= 16 and _entropy(value) >= _MIN_ENTROPY and value.count(b".") < 3


def _entropy(value: bytes) -> float:
    """Return the Shannon entropy per character."""
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts)


def find_assigned(data: bytes, hints: Iterable[bytes] = HINTS) -> Iterator[tuple[int, bytes]]:
    """Yield the position and value of quoted assignments to secret names.

    This includes assignments in a string that is a command line, a query, or a list of settings.

    Args:
        data: Bytes to search.
        hints: Hints of :data:`HINTS` that occur in the data. Others are not searched.
    """
    for match, value in _matches(data, _QUOTED, hints):
        if is_secret_value(value, match[0]):
            yield match.start("value"), value
    for match, value in _matches(data, _DELIMITED, hints):
        before = data[max(0, match.start() - _MAX_NAME) : match.start()]
        if re.search(_DELIMITER, before) and is_secret_value(value, match[0]):
            yield match.start("value"), value


def find_assigned_bare(data: bytes, hints: Iterable[bytes] = HINTS) -> Iterator[tuple[int, bytes]]:
    """Yield unquoted values of names at the start of a line or an entry, and values in tags."""
    for match, value in _matches(data, _TAGGED, hints):
        if is_secret_value(value, match[0]):
            yield match.start("value"), value
    for match, value in _matches(data, _BARE, hints):
        position = match.start()
        nearest = max(0, position - _MAX_LINE_START)
        start = max(nearest, data.rfind(b"\n", nearest, position) + 1)
        if re.compile(_LINE_START).fullmatch(data, start, position) and is_secret_value(
            value, match[0]
        ):
            yield match.start("value"), value


def find_assigned_in_pickle(
    data: bytes, hints: Iterable[bytes] = HINTS
) -> Iterator[tuple[int, bytes]]:
    """Yield values that directly follow a secret name, or its memoized reference, in a pickle."""
    for match, value in _matches(data, _PICKLED, hints):
        yield from _sized_value(data, match, value, match[0])
    for get, word in _memoized_names(data, hints).items():
        for match in re.finditer(re.escape(get) + _VALUE, data, re.DOTALL):
            yield from _sized_value(data, match, match["value"], word)


def _sized_value(
    data: bytes, match: re.Match[bytes], value: bytes, word: bytes
) -> Iterator[tuple[int, bytes]]:
    """Yield a value in a pickle with the length that its opcode declares."""
    start, end = match.span("long" if match["long"] is not None else "short")
    size = int.from_bytes(data[start:end], "little")
    if len(value) >= size and is_secret_value(value[:size], word):
        yield match.start("value"), value[:size]


def _memoized_names(data: bytes, hints: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the opcode that refers to each memoized name in a pickle, with the matched word."""
    found: dict[bytes, bytes] = {}
    for match, _ in _matches(data, _MEMOIZED, hints, "byte"):
        is_short = match["byte"] is not None
        start, end = match.span("byte" if is_short else "word")
        if len(found) < _MAX_MEMOIZED:
            found[(b"h" if is_short else b"j") + data[start:end]] = match[0]
    return found


def _matches(
    data: bytes, tail: bytes, hints: Iterable[bytes], group: str = "value"
) -> Iterator[tuple[re.Match[bytes], bytes]]:
    """Yield the matches of secret names followed by a tail, with the original value."""
    lowered = data.lower()
    for hint in hints:
        for match in _after_hint(hint, tail).finditer(lowered):
            if _begins_word(data, lowered, match.start()):
                start, end = match.span(group)
                yield match, data[start:end]


def _begins_word(data: bytes, lowered: bytes, position: int) -> bool:
    """Return whether a match starts a name, or a word of it."""
    if b"::" in lowered[max(0, position - _LOOKBEHIND) : position]:
        return False  # "Vendor::Service::ApiKey" is a type
    if lowered.startswith((b"passw", b"passp"), position):
        return True  # no other word contains these
    start = max(0, position - _MAX_OWNER)
    for word, owners in _OWNERS.items():
        if lowered.startswith(word, position):
            return lowered.endswith(owners, start, position)
    before = data[position - 1 : position]
    is_camel_case = data[position : position + 1].isupper() and before.islower()
    return is_camel_case or not before.isalnum() or lowered.endswith(_JOINED, start, position)
