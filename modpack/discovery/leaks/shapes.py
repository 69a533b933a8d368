"""What secrets look like: one row for each shape that is known by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

__all__ = ["SHAPES", "Shape", "is_placeholder", "looks_random"]

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


_KINDS: Final = {
    "0": rb"[0-9]",
    "a": rb"[a-z]",
    "A": rb"[A-Z]",
    "x": rb"[A-Za-z]",
}


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
