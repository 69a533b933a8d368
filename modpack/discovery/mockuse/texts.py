"""Which modules mention a name, for all that their texts show: nothing is parsed for that."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

__all__ = ["Texts"]

_SPACED = bytes(c if c > 127 or chr(c).isalnum() or chr(c) == "_" else 32 for c in range(256))
_KEYWORDS = "|".join((*keyword.kwlist, *keyword.softkwlist)).encode()
_BEFORE = re.compile(rb"(?:\A|[^\w \t\f`]|(?:%b)[ \t\f])[ \t\f]*\Z" % _KEYWORDS)
_AFTER = re.compile(rb"(?!\w)[ \t\f]*(?:$|[^\w \t\f`]|(?:%b)(?!\w))" % _KEYWORDS, re.MULTILINE)
_TOP_LEVEL = re.compile(rb"(?!def |class |async )[\w@][^#]*\Z")
_COMPUTED_NAME = re.compile(rb"""["'](\w*[A-Za-z]_)(?:\{|%|["']\s*[+%])""")
_LOOKED_BACK = 40
_LONGEST_LINE = 1000
_MOST_MENTIONING = 8


class Texts:
    """The sources of a package, which are searched for names.

    Args:
        sources: all interned modules, as for :func:`.find_uses`.
    """

    def __init__(self, sources: Mapping[str, tuple[bytes, bool]]) -> None:
        self._sources = sources

    @cached_property
    def _having(self) -> Mapping[bytes, Sequence[str]]:
        """For each word, the modules that it stands in."""
        # Each module that uses mocks asks for several. Searching all texts each time took three
        # quarters of the time in a project of a thousand modules of which a tenth does. It is all
        # kept, since it is smaller than the sources: 15 MB for 25 MB of them.
        having: dict[bytes, list[str]] = {}
        for module, (source, _) in self._sources.items():
            for word in set(source.translate(_SPACED).split()):
                having.setdefault(word, []).append(module)
        return having

    def taking(self, name: str) -> Iterator[str]:
        """The modules that may take an attribute of that name from anything."""
        return (
            module for module in self._having.get(name.encode(), ()) if self.takes(module, name)
        )

    def takes(self, module: str, name: str) -> bool:
        """Whether there is ``.name``, or a text that getattr may be given, in a module."""
        source, text = self._sources[module][0], name.encode()
        for place in _places(source, text):
            before, after = source[max(0, place - _LOOKED_BACK) : place], place + len(text)
            is_part = before.rstrip()[-1:] in (b".", b"'", b'"')
            if is_part and not source[after : after + 1].isalnum():
                return True
        return False

    def mentioning(self, name: str) -> list[str] | None:
        """The modules that may mention a name; None if it is called without a doubt.

        It is if a statement of some module's top level says it. It nearly always is if very many
        modules do, and finding that out would take parsing them all.
        """
        text = name.encode()
        found: dict[str, None] = {}
        for module in self._having.get(text, ()):
            source = self._sources[module][0]
            for place in _places(source, text):
                if _may_be_code(source, place, place + len(text)):
                    found[module] = None
                    if _is_at_top_level(source, place) or len(found) > _MOST_MENTIONING:
                        return None
        return list(found)

    def may_be_computed(self, name: str) -> bool:
        """Whether a name may be put together at run time: ``getattr(self, f"visit_{kind}")``."""
        return any(name.startswith(beginning) for beginning in self._computed)

    @cached_property
    def _computed(self) -> frozenset[str]:
        texts = (source for source, _ in self._sources.values() if b"getattr" in source)
        found = {each.decode() for text in texts for each in _COMPUTED_NAME.findall(text)}
        return frozenset(found)


def _places(source: bytes, name: bytes) -> Iterator[int]:
    place = source.find(name)
    while place >= 0:
        yield place
        place = source.find(name, place + len(name))


def _may_be_code(source: bytes, place: int, end: int) -> bool:
    """Whether something stands where code, or a text that is a name, can have it.

    In prose, words stand beside it. In code there are only keywords. That spares most modules the
    parsing, if the name is a common word.
    """
    before = source[max(0, place - _LOOKED_BACK) : place]
    return bool(_AFTER.match(source, end) and _BEFORE.search(before))


def _is_at_top_level(source: bytes, place: int) -> bool:
    start = source.rfind(b"\n", max(0, place - _LONGEST_LINE), place) + 1
    is_line = start > 0 or place < _LONGEST_LINE
    return is_line and _TOP_LEVEL.match(source[start:place]) is not None
