"""An importer whose package can grow while it is tried."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from modpack.archive.layout import is_internal
from modpack.core.environment import RecordedEnvironment
from modpack.core.trust import TrustPolicy
from modpack.hermetic.finder import PackageFinder
from modpack.hermetic.index import Entry, EntryKind, ModuleIndex
from modpack.hermetic.namespace import Namespace
from modpack.importer import PackageImporter

__all__ = ["GrowingImporter"]


class GrowingImporter(PackageImporter):
    """Takes in modules and files that the package lacks.

    Args:
        file: the package.
        namespace: in which namespace it is loaded.
        tree: the folder that its code goes to, of this trial alone. What the round before left
            there is used again, bytecode included: most of it is the same.
        policy: what it may ask for; None for anything.
    """

    def __init__(
        self, file: str, namespace: str, tree: Path, policy: TrustPolicy | None = None
    ) -> None:
        self._folder = tree
        self._taken: set[str] = set()
        super().__init__(file, namespace=namespace, policy=policy)

    def _check_environment(
        self, recorded: RecordedEnvironment, digest: str, strict: bool
    ) -> Mapping[str, str | None]:
        """Whoever started this interpreter has compared it: this one has the same."""
        return {}

    def _unpacked(self, sizes: dict[str, int]) -> Path:
        known = {self._folder / record: record for record in sizes}
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in [each for each in self._folder.rglob("*") if each.is_file()]:
            if file not in known and "__pycache__" not in file.parts:
                file.unlink()
        for file, record in known.items():
            self._put(file, self._archive.read(record))
        _remove_empty(self._folder)
        return self._folder

    def _put(self, file: Path, content: bytes) -> None:
        """Write a file that is not there as it should be, and drop the bytecode of another."""
        if file.is_file() and file.read_bytes() == content:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            old.unlink()
        file.write_bytes(content)

    @property
    def tree(self) -> Path:
        """The folder with the package's files."""
        return self._tree

    @property
    def namespace(self) -> Namespace:
        """The names under which its modules live."""
        return self._namespace

    @property
    def finder(self) -> PackageFinder:
        """What finds its modules."""
        return self._namespace.finder

    @property
    def module_index(self) -> ModuleIndex:
        """What it holds by now."""
        return self._index

    def take(self, files: Mapping[str, bytes], externs: Iterable[str] = ()) -> None:
        """Add files, sources among them, and modules that may be imported from here.

        Args:
            files: contents by record.
            externs: module paths.
        """
        for record, content in files.items():
            self._put(self._tree / record, content)
        self._taken.update(files)
        listed = [name for name in self._archive.names() if not is_internal(name)]
        known: dict[str, str | None] = {**self._index.externs, **dict.fromkeys(externs)}
        hides = self._index.hides_distributions
        records = [*listed, *sorted(self._taken)]
        index = ModuleIndex.build(records, known, hides, policy=self._index.policy)
        # A local import of what was not known when it was compiled asks for it by this name.
        entries = {name: Entry(name, EntryKind.EXTERN) for name in externs}
        self._index = replace(index, entries={**entries, **index.entries})
        self._namespace.use(self._index)


def _remove_empty(folder: Path) -> None:
    """Folders that held only files of another round: a package must not be found there."""
    for place in sorted(folder.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        if place.is_dir() and place.name != "__pycache__":
            if not any(inside.name != "__pycache__" for inside in place.iterdir()):
                shutil.rmtree(place)
