"""Which modules may mention a name or take one from another module, without parsing anything."""

from __future__ import annotations

import keyword
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from modpack.core.graph import DependencyGraph
from modpack.core.names import root_of
from modpack.core.scan import ImportKind

_SPACED = bytes(c if c > 127 or chr(c).isalnum() or chr(c) == "_" else 32 for c in range(256))
_KEYWORDS = "|".join((*keyword.kwlist, *keyword.softkwlist)).encode()
_BEFORE = re.compile(rb"(?:\A|[^\w \t\f`]|(?:%b)[ \t\f])[ \t\f]*\Z" % _KEYWORDS)
_AFTER = re.compile(rb"(?!\w)[ \t\f]*(?:$|[^\w \t\f`]|(?:%b)(?!\w))" % _KEYWORDS, re.MULTILINE)
_TOP_LEVEL = re.compile(rb"(?!def |class |async )[\w@][^#]*\Z")
_COMPUTED_NAME = re.compile(rb"""["'](\w*[A-Za-z]_)(?:\{|%|["']\s*[+%])""")
_LOOKED_BACK = 40
_LONGEST_LINE = 1000
_MAX_MENTIONING = 8
_NO_IMPORTS = (ImportKind.PARENT, ImportKind.TYPE_CHECKING, ImportKind.PICKLE)


class Texts:
    """The sources of a package, which are searched for names.

    Args:
        sources: all interned modules, as for :func:`.find_uses`.
    """

    def __init__(self, sources: Mapping[str, tuple[bytes, bool]]) -> None:
        self.sources = sources

    @cached_property
    def _having(self) -> Mapping[bytes, Sequence[str]]:
        # Each module that uses mocks asks for several. Searching all texts each time took three
        # quarters of the time in a project of a thousand modules of which a tenth does. It is all
        # kept, since it is smaller than the sources: 15 MB for 25 MB of them.
        having: dict[bytes, list[str]] = {}
        for module, (source, _) in self.sources.items():
            for word in set(source.translate(_SPACED).split()):
                having.setdefault(word, []).append(module)
        return having

    def having(self, word: str) -> Sequence[str]:
        """The modules that have a word."""
        return self._having.get(word.encode(), ())

    def takes(self, module: str, name: str) -> bool:
        """Whether there is ``.name``, or a text that getattr may be given, in a module."""
        source, text = self.sources[module][0], name.encode()
        for start in _find_all(source, text):
            before, after = source[max(0, start - _LOOKED_BACK) : start], start + len(text)
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
        for module in self.having(name):
            source = self.sources[module][0]
            for start in _find_all(source, text):
                if _may_be_code(source, start, start + len(text)):
                    found[module] = None
                    if _is_at_top_level(source, start) or len(found) > _MAX_MENTIONING:
                        return None
        return list(found)

    def may_be_computed(self, name: str) -> bool:
        """Whether a name may be put together at run time: ``getattr(self, f"visit_{kind}")``."""
        return any(name.startswith(beginning) for beginning in self._computed)

    @cached_property
    def _computed(self) -> frozenset[str]:
        texts = (source for source, _ in self.sources.values() if b"getattr" in source)
        return frozenset(each.decode() for text in texts for each in _COMPUTED_NAME.findall(text))


def _find_all(source: bytes, name: bytes) -> Iterator[int]:
    start = source.find(name)
    while start >= 0:
        yield start
        start = source.find(name, start + len(name))


def _may_be_code(source: bytes, start: int, end: int) -> bool:
    """Whether something is where code, or a text that is a name, can have it.

    In prose, there are words next to it. In code there are only keywords. That spares most modules
    the parsing, if the name is a common word.
    """
    before = source[max(0, start - _LOOKED_BACK) : start]
    return bool(_AFTER.match(source, end) and _BEFORE.search(before))


def _is_at_top_level(source: bytes, start: int) -> bool:
    line = source.rfind(b"\n", max(0, start - _LONGEST_LINE), start) + 1
    is_line = line > 0 or start < _LONGEST_LINE
    return is_line and _TOP_LEVEL.match(source[line:start]) is not None


class ImporterIndex:
    """The modules of a package that may take something from another one, by imports and texts.

    Args:
        texts: all interned modules.
        graph: who imports whom.
    """

    def __init__(self, texts: Texts, graph: DependencyGraph) -> None:
        self._texts = texts
        self._importers: dict[str, dict[str, set[str]]] = defaultdict(dict)
        self._near: dict[str, dict[str, None]] = defaultdict(dict)
        self._path_writers: dict[str, Sequence[str]] = {}
        for module in texts.sources:
            self._near[root_of(module)][module] = None
        for edge in graph.edges():
            if edge.kind not in _NO_IMPORTS and edge.importer in texts.sources:
                names = self._importers[edge.imported].setdefault(edge.importer, set())
                names.update(edge.names or [""])  # an empty name is the module itself
                self._near[root_of(edge.imported)][edge.importer] = None

    def of_mock(self, module: str) -> Iterator[str]:
        """The modules that may have a mocked module, or something of it."""
        yield from self._importers.get(module, ())
        yield from self._who_write_path(module)

    def of_name(self, module: str, name: str) -> Iterator[str]:
        """The modules that may take a name from a module."""
        last = module.rpartition(".")[2]
        for importer, names in self._importers.get(module, {}).items():
            has_module = "" in names and (
                self._texts.takes(importer, name) or self._hands_on(importer, last)
            )
            if has_module or name in names or "*" in names:
                yield importer
        yield from (each for each in self._who_write_path(module) if self._texts.takes(each, name))

    def of_alias(self, module: str, alias: str, names: Collection[str]) -> Iterator[str]:
        """The modules that may take one of several names from what a module has as an alias."""
        for each in self.of_name(module, alias):
            if any(self._texts.takes(each, name) for name in names):
                yield each

    def _hands_on(self, module: str, name: str) -> bool:
        """Whether a module that has another one as a name lets others have it."""
        if any(name in names for names in self._importers.get(module, {}).values()):
            return True
        source = self._texts.sources[module][0]
        # Without anything before the name, which is found several times as fast.
        return re.search(re.escape(name.encode()) + rb"\s+as\b", source) is not None

    def _who_write_path(self, module: str) -> Sequence[str]:
        """Those who may write ``package.module``, without an import of just that."""
        if module not in self._path_writers:
            head, _, last = module.rpartition(".")
            near = self._near.get(root_of(module), {}) if head else {}
            having = self._texts.having(last) if near else ()
            self._path_writers[module] = [
                each for each in having if each in near and self._texts.takes(each, last)
            ]
        return self._path_writers[module]
