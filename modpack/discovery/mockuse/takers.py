"""Which modules may take a name from another one, judged by their imports and their texts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from modpack.core.graph import DependencyGraph
from modpack.core.imports import ImportKind
from modpack.core.names import root_of
from modpack.discovery.mockuse.texts import Texts

__all__ = ["Takers"]

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
