"""Text search for modules that may mention a name or access it in another module."""

from __future__ import annotations

import keyword
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from modpack.core.graph import DependencyGraph
from modpack.core.names import root_of
from modpack.core.scan import ImportKind

_WORDS_ONLY = bytes(c if c > 127 or chr(c).isalnum() or chr(c) == "_" else 32 for c in range(256))
_KEYWORDS = "|".join((*keyword.kwlist, *keyword.softkwlist)).encode()
_BEFORE = re.compile(rb"(?:\A|[^\w \t\f`]|(?:%b)[ \t\f])[ \t\f]*\Z" % _KEYWORDS)
_AFTER = re.compile(rb"(?!\w)[ \t\f]*(?:$|[^\w \t\f`]|(?:%b)(?!\w))" % _KEYWORDS, re.MULTILINE)
_TOP_LEVEL = re.compile(rb"(?!def |class |async )[\w@][^#]*\Z")
_COMPUTED_NAME = re.compile(rb"""["'](\w*[A-Za-z]_)(?:\{|%|["']\s*[+%])""")
_MAX_LOOKBEHIND = 40
_MAX_LINE = 1000
_MAX_MENTIONS = 8
_NO_IMPORTS = (ImportKind.PARENT, ImportKind.TYPE_CHECKING, ImportKind.PICKLE)


class SourceIndex:
    """A word index of a package's sources.

    Args:
        sources: All interned modules, as for :func:`.find_uses`.
    """

    def __init__(self, sources: Mapping[str, tuple[bytes, bool]]) -> None:
        self.sources = sources

    @cached_property
    def _modules_by_word(self) -> Mapping[bytes, Sequence[str]]:
        # Each module that uses mocks needs several searches. Without the index, they took three
        # quarters of the time in a project of 1,000 modules, 100 of which use mocks. The index is
        # smaller than the sources: 15 MB for 25 MB.
        by_word: dict[bytes, list[str]] = {}
        for module, (source, _) in self.sources.items():
            for word in set(source.translate(_WORDS_ONLY).split()):
                by_word.setdefault(word, []).append(module)
        return by_word

    def modules_containing(self, word: str) -> Sequence[str]:
        """Return the modules whose source contains a word."""
        return self._modules_by_word.get(word.encode(), ())

    def may_access(self, module: str, name: str) -> bool:
        """Return whether a source contains ``.name``, or the name as a string, as for getattr."""
        source, text = self.sources[module][0], name.encode()
        for start in _find_all(source, text):
            before, after = source[max(0, start - _MAX_LOOKBEHIND) : start], start + len(text)
            is_part = before.rstrip()[-1:] in (b".", b"'", b'"')
            if is_part and not source[after : after + 1].isalnum():
                return True
        return False

    def find_mentions(self, name: str) -> list[str] | None:
        """Return the modules that may mention a name; None if the name counts as called.

        A name counts as called if a top-level statement mentions it. It also does if very many
        modules mention it: then it almost always is called, and parsing them all would be slow.
        """
        text = name.encode()
        found: dict[str, None] = {}
        for module in self.modules_containing(name):
            source = self.sources[module][0]
            for start in _find_all(source, text):
                if _may_be_code(source, start, start + len(text)):
                    found[module] = None
                    if _is_at_top_level(source, start) or len(found) > _MAX_MENTIONS:
                        return None
        return list(found)

    def may_be_computed(self, name: str) -> bool:
        """Return whether code may compute a name: ``getattr(self, f"visit_{kind}")``."""
        return any(name.startswith(beginning) for beginning in self._computed_prefixes)

    @cached_property
    def _computed_prefixes(self) -> frozenset[str]:
        texts = (source for source, _ in self.sources.values() if b"getattr" in source)
        return frozenset(each.decode() for text in texts for each in _COMPUTED_NAME.findall(text))


def _find_all(source: bytes, name: bytes) -> Iterator[int]:
    start = source.find(name)
    while start >= 0:
        yield start
        start = source.find(name, start + len(name))


def _may_be_code(source: bytes, start: int, end: int) -> bool:
    """Return whether a word may be a name in code, or a string that is a name.

    In prose, other words are next to it; in code, only keywords are. This avoids parsing most
    modules if the name is a common word.
    """
    before = source[max(0, start - _MAX_LOOKBEHIND) : start]
    return bool(_AFTER.match(source, end) and _BEFORE.search(before))


def _is_at_top_level(source: bytes, start: int) -> bool:
    line = source.rfind(b"\n", max(0, start - _MAX_LINE), start) + 1
    is_line = line > 0 or start < _MAX_LINE
    return is_line and _TOP_LEVEL.match(source[line:start]) is not None


class ImporterIndex:
    """An index of the modules that may use names of other modules, by imports and sources.

    Args:
        index: Sources of all interned modules.
        graph: Dependency graph.
    """

    def __init__(self, index: SourceIndex, graph: DependencyGraph) -> None:
        self._index = index
        self._importers: dict[str, dict[str, set[str]]] = defaultdict(dict)
        self._related: dict[str, dict[str, None]] = defaultdict(dict)
        self._cached_path_users: dict[str, Sequence[str]] = {}
        for module in index.sources:
            self._related[root_of(module)][module] = None
        for edge in graph.edges():
            if edge.kind not in _NO_IMPORTS and edge.importer in index.sources:
                names = self._importers[edge.imported].setdefault(edge.importer, set())
                names.update(edge.names or [""])  # an empty name is the module itself
                self._related[root_of(edge.imported)][edge.importer] = None

    def find_mock_users(self, module: str) -> Iterator[str]:
        """Yield the modules that may use a mocked module or its attributes."""
        yield from self._importers.get(module, ())
        yield from self._path_users(module)

    def find_name_users(self, module: str, name: str) -> Iterator[str]:
        """Yield the modules that may use a name of a module."""
        last = module.rpartition(".")[2]
        for importer, names in self._importers.get(module, {}).items():
            has_module = "" in names and (
                self._index.may_access(importer, name) or self._may_reexport(importer, last)
            )
            if has_module or name in names or "*" in names:
                yield importer
        yield from (each for each in self._path_users(module) if self._index.may_access(each, name))

    def find_alias_users(self, module: str, alias: str, names: Collection[str]) -> Iterator[str]:
        """Yield the modules that may access one of several names through an alias in a module."""
        for each in self.find_name_users(module, alias):
            if any(self._index.may_access(each, name) for name in names):
                yield each

    def _may_reexport(self, module: str, name: str) -> bool:
        """Return whether a module may let others use a module that it has under a name."""
        if any(name in names for names in self._importers.get(module, {}).values()):
            return True
        source = self._index.sources[module][0]
        # A pattern that starts with the literal name is several times as fast.
        return re.search(re.escape(name.encode()) + rb"\s+as\b", source) is not None

    def _path_users(self, module: str) -> Sequence[str]:
        """Return the modules that may contain ``package.module`` without importing that module."""
        if module not in self._cached_path_users:
            head, _, last = module.rpartition(".")
            related = self._related.get(root_of(module), {}) if head else {}
            modules = self._index.modules_containing(last) if related else ()
            self._cached_path_users[module] = [
                each for each in modules if each in related and self._index.may_access(each, last)
            ]
        return self._cached_path_users[module]
