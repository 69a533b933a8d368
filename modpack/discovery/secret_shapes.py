"""Token formats that identify a secret by its own text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
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
    """

    name: str
    anchors: tuple[bytes, ...]
    pattern: bytes
    reach: int = 0
    kinds: str = ""

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        """Compiled pattern. Compiled on demand, because all patterns take 3 ms."""
        return re.compile(self.pattern)

    def admits(self, value: bytes) -> bool:
        """Return whether a match of the pattern is a real token, not an example."""
        return all(re.search(_KINDS[kind], value) for kind in self.kinds) and looks_random(value)


_KINDS: Final = {"0": rb"[0-9]", "a": rb"[a-z]", "A": rb"[A-Z]"}


def _row(name: str, anchors: str, pattern: str, reach: int = 0, kinds: str = "") -> SecretShape:
    return SecretShape(name, tuple(anchors.encode().split()), pattern.encode(), reach, kinds)


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
    _row("a Docker token", "dckr_pat_", r"(dckr_pat_[A-Za-z0-9_-]{27,64})"),
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
)
"""Token formats in any order: a value matches only one, or several of the same name."""
