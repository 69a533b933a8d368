"""What secrets look like: one row for each shape that is known by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["SHAPES", "Shape", "is_placeholder", "looks_random"]

_FEWEST_CHARACTERS = 8
"""Different characters that a random token has at least."""
_PLACEHOLDER = re.compile(
    rb"example|sample|your|changeme|change_me|placeholder|dummy|redacted|insert|replace|secret_key"
    rb"|xxx|\.\.\.|\*\*\*|0000|1234567|abcdef|abc123|test_?key|fake|todo|<|>|\{|\}|\$|%\(|%s",
    re.IGNORECASE,
)


def is_placeholder(value: bytes) -> bool:
    """Whether a text only stands for a secret, as it does in documentation.

    >>> is_placeholder(b"YOUR_API_KEY"), is_placeholder(b"kq82Zs0vT1")
    (True, False)
    """
    return _PLACEHOLDER.search(value) is not None


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
        mixed: whether a real one has digits and letters of both cases.
    """

    name: str
    anchors: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    reach: int = 0
    mixed: bool = False

    def admits(self, value: bytes) -> bool:
        """Whether a text of this shape is a secret, and no example of one."""
        if self.mixed and not all(kind.search(value) for kind in _KINDS):
            return False
        return looks_random(value)


_KINDS: Final = tuple(map(re.compile, (rb"[0-9]", rb"[a-z]", rb"[A-Z]")))


def _row(name: str, anchors: str, pattern: str, reach: int = 0, mixed: bool = False) -> Shape:
    expression = re.compile(pattern.encode())
    return Shape(name, tuple(anchors.encode().split()), expression, reach, mixed)


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
        mixed=True,
    ),
    _row(
        "a Stripe key",
        "k_live_",
        r"(?<![A-Za-z0-9])([sr]k_live_[A-Za-z0-9]{20,255})(?![A-Za-z0-9])",
        reach=1,
    ),
    _row("an npm token", "npm_", r"(?<![A-Za-z0-9_])(npm_[A-Za-z0-9]{36})(?![A-Za-z0-9_])"),
    _row("a PyPI token", "pypi-AgE", r"(pypi-AgE[A-Za-z0-9_-]{50,2048})"),
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
    _row(
        "a password in a URL",
        "://",
        r"://[A-Za-z0-9_.+-]{1,64}:([^\s:/@'\"<>{}()\[\]$%`]{8,128})@[A-Za-z0-9-]{1,63}[.:/]",
        mixed=True,
    ),
    _row(
        "a password of a netrc file",
        "machine",
        r"machine\s+[\w.-]+\s+(?:login\s+\S+\s+)?password\s+(\S{6,256})",
    ),
)
"""The order does not matter: no text has two of these shapes."""
