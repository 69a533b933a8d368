"""What the classes of a package derive from, read off the sources.

Which modules mention a name, for all that their texts show: nothing is parsed for that.

Which modules may take a name from another one, judged by their imports and their texts.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from modpack.core.graph import DependencyGraph
from modpack.core.names import parents, root_of
from modpack.core.scan import ImportKind
from modpack.discovery.mock_scopes import Assigned, Defined, Imported, ModuleTable, NameScope

_MOST_STEPS = 40
"""From a name to what it stands for: more would be a circle."""
_UNKNOWN = ""


@dataclass(frozen=True)
class Bases:
    """All ancestors of a class, as far as they are known.

    Attributes:
        inside: those in the package.
        outside: dotted names of the others; empty text for one that is not known. Mocked classes
            are left out: nothing comes from them.
    """

    inside: tuple[NameScope, ...] = ()
    outside: tuple[str, ...] = ()


class BaseFinder:
    """Follows the names of base classes.

    Args:
        read: gives the table of an interned module; None if it cannot be parsed.
        interned: the interned modules.
        mocked: the mocked modules.
    """

    def __init__(
        self,
        read: Callable[[str], ModuleTable | None],
        interned: Collection[str],
        mocked: Collection[str],
    ) -> None:
        self._read = read
        self._interned = interned
        self._mocked = mocked
        self._known: dict[NameScope, Bases] = {}

    def bases_of(self, body: NameScope) -> Bases:
        """The ancestors of a class."""
        if body not in self._known:
            self._known[body] = self._find(body)
        return self._known[body]

    def _find(self, body: NameScope) -> Bases:
        inside: dict[NameScope, None] = {}
        outside: dict[str, None] = {}
        waiting = [body]
        while waiting:
            for found in self._direct_bases(waiting.pop()):
                if isinstance(found, str):
                    outside[found] = None
                elif found not in inside and found is not body:
                    inside[found] = None
                    waiting.append(found)
        names = (name for name in outside if not self._is_mocked(name))
        return Bases(tuple(inside), tuple(names))

    def _direct_bases(self, body: NameScope) -> Iterator[NameScope | str]:
        if body.definition is not None and body.parent is not None:
            for base in body.definition.bases:
                yield self._resolved(base, body.parent)

    def _resolved(self, node: ast.expr, scope: NameScope) -> NameScope | str:
        """A class of the package, or the dotted name of another."""
        attributes: list[str] = []
        for _ in range(_MOST_STEPS):
            while isinstance(node, (ast.Attribute, ast.Subscript)):
                if isinstance(node, ast.Attribute):
                    attributes.insert(0, node.attr)
                node = node.value  # Base[T] derives from Base
            if not isinstance(node, ast.Name):
                return _UNKNOWN
            binder = scope.binder(node.id)
            if binder is None:
                is_builtin = hasattr(builtins, node.id) and not attributes
                return f"builtins.{node.id}" if is_builtin else _UNKNOWN
            meanings = binder.bindings.get(node.id, [])
            meaning = meanings[0] if meanings else None
            if isinstance(meaning, Defined):
                return meaning.body if not attributes else _UNKNOWN
            if isinstance(meaning, Imported):
                named = (meaning.module, meaning.name, *attributes)
                return self._imported(".".join(filter(None, named)))
            if not isinstance(meaning, Assigned):
                return _UNKNOWN
            node, scope = meaning.value, meaning.scope
        return _UNKNOWN

    def _imported(self, path: str) -> NameScope | str:
        """What a dotted path leads to, through as many modules of the package as it takes."""
        for _ in range(_MOST_STEPS):
            home = next((each for each in parents(path) if each in self._interned), None)
            if home is None:
                return path
            name, _, rest = path[len(home) + 1 :].partition(".")
            table = self._read(home)
            meanings = table.scope.bindings.get(name, []) if table is not None else []
            meaning = meanings[0] if meanings else None
            if isinstance(meaning, Defined):
                return meaning.body if not rest else _UNKNOWN
            if not isinstance(meaning, Imported):
                return self._from_stars(table, name) if not rest else _UNKNOWN
            path = ".".join(filter(None, (meaning.module, meaning.name, rest)))
        return _UNKNOWN

    def _from_stars(self, table: ModuleTable | None, name: str) -> NameScope | str:
        """What a name is that only a star import can have bound."""
        for star in table.scope.stars if table is not None else ():
            other = self._read(star) if star in self._interned else None
            for meaning in other.scope.bindings.get(name, []) if other is not None else ():
                if isinstance(meaning, Defined):
                    return meaning.body
        return _UNKNOWN

    def _is_mocked(self, name: str) -> bool:
        return any(each in self._mocked for each in (name, *parents(name)))


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


_NO_IMPORTS = (ImportKind.PARENT, ImportKind.TYPE_CHECKING, ImportKind.PICKLE)


class Takers:
    """Answers for one package, without parsing anything.

    Args:
        sources: all interned modules, as for :func:`.find_uses`.
        texts: the same, to be searched.
        graph: who imports whom.
    """

    def __init__(
        self, sources: Mapping[str, tuple[bytes, bool]], texts: Texts, graph: DependencyGraph
    ) -> None:
        self._sources = sources
        self._texts = texts
        self._importers: dict[str, dict[str, set[str]]] = defaultdict(dict)
        self._near: dict[str, dict[str, None]] = defaultdict(dict)
        self._path_writers: dict[str, Sequence[str]] = {}
        for module in sources:
            self._near[root_of(module)][module] = None
        for edge in graph.edges():
            if edge.kind not in _NO_IMPORTS and edge.importer in sources:
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

    def that_write(self, modules: Iterable[str], names: Collection[str]) -> Iterator[str]:
        """Those of some modules that take one of several names from something."""
        return (each for each in modules if any(self._texts.takes(each, name) for name in names))

    def _hands_on(self, module: str, name: str) -> bool:
        """Whether a module that has another one as a name lets others have it."""
        if any(name in names for names in self._importers.get(module, {}).values()):
            return True
        source = self._sources[module][0]
        # Without anything before the name, which is found several times as fast.
        return re.search(re.escape(name.encode()) + rb"\s+as\b", source) is not None

    def _who_write_path(self, module: str) -> Sequence[str]:
        """Those who may write ``package.module``, without an import of just that."""
        if module not in self._path_writers:
            head, _, last = module.rpartition(".")
            near = self._near.get(root_of(module), {}) if head else {}
            takers = self._texts.taking(last) if near else ()
            self._path_writers[module] = [each for each in takers if each in near]
        return self._path_writers[module]
