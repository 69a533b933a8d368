"""Whether a source has the words that effects take: most have not, and need no parsing."""

from __future__ import annotations

import re
import string
import unicodedata
from typing import Final

from modpack.discovery._effectnames import KINDS, METHODS, MODULES, OPENERS

__all__ = ["may_have_effects"]

_IN_WORDS: Final = f"{string.ascii_letters}{string.digits}_".encode()
_APART: Final = bytes(byte if byte in _IN_WORDS else 32 for byte in range(256))
"""Leaves words, with blanks between them: to split that takes a quarter of looking for words."""
_CALLED_OR_RENAMED: Final = rb"(?:(?<![\w.]....)(?:\s|\\\n)*\(|(?:(?<==....)|(?<== ....))\b)"
"""What is around a word of four letters that is called, or given another name."""
_USED: Final = (
    rb"(?<!\w.....)(?:(?:\s|\\\n)*\.(?:\s|\\\n)*(?:save|load)\b"
    rb"|(?:[ \t]|\\\n)+(?:as|import)\b|(?:(?<==.....)|(?<== .....))\b(?!(?:\s|\\\n)*\.))"
)
"""What is around torch where it saves, loads, is given another name, or gives names itself."""
_COMMON: Final = {
    **{word: re.compile(word + _CALLED_OR_RENAMED) for word in (b"eval", b"exec", b"open")},
    b"torch": re.compile(b"torch" + _USED),
}
"""Words that stand in many sources and say little alone. What stands before them is looked at last:
a search that begins with letters is fast."""
_NO_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_FOUND_OTHERWISE: Final = frozenset({"eval", "exec", "torch.save", "torch.load"})
_TELLING: Final = (
    *(name.split(".") for name in sorted(METHODS | OPENERS - {"open"})),
    *(name.split(".") for name in sorted({*KINDS} - _FOUND_OTHERWISE)),
    *(module.split(".") for module in sorted({*MODULES} - {"code"})),
    *(("code", word) for word in ("interact", "InteractiveConsole", "InteractiveInterpreter")),
)
_GROUPS: Final = tuple(frozenset(word.encode() for word in group) for group in _TELLING)
"""Words of which one group stands in every other source that does something."""
_WORDS: Final = frozenset[bytes]().union(_COMMON, *_GROUPS)


def may_have_effects(source: str | bytes) -> bool:
    r"""Whether a source may do something; that it says so by its words is all that is looked at.

    Args:
        source: text, or bytes as they lie in a file (PEP 263).

    >>> may_have_effects("import os\nos.system('ls')"), may_have_effects("system = 1")
    (True, False)
    """
    data = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    if _is_spelt_oddly(data):
        return True
    told = _WORDS.intersection(data.translate(_APART).split())
    return any(group <= told for group in _GROUPS) or any(
        word in told and pattern.search(data) is not None for word, pattern in _COMMON.items()
    )


def _is_spelt_oddly(data: bytes) -> bool:
    """Whether a source may mean other words than it seems to (PEP 263, PEP 3131)."""
    start = b"\n".join(data[:1000].split(b"\n", 2)[:2])
    if b"coding" in start and b"utf-8" not in start.lower():
        return True
    if data.isascii():
        return False
    odd = "".join(set(_NO_ASCII.findall(data.decode("utf-8", "replace"))))
    return any(unicodedata.normalize("NFKC", each).isascii() for each in odd if each.isidentifier())
