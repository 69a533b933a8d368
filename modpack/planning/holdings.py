"""What goes along with interned code besides the code: the files that it reads, and metadata.

For an installed distribution the answer is in its own list of files: what lies in the folders of
interned packages. For the user's own code, where any file may lie beside it, one goes along only
if the source says so. Nothing is executed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from modpack.core.plan import (
    Decision,
    PlannedFile,
)
from modpack.discovery.walk import Walker
from modpack.planning.beside import record_folders
from modpack.planning.datafiles import (
    Budget,
    files_below,
    is_private,
)
from modpack.planning.gathering import Gathering, Holdings, interned, is_data
from modpack.planning.homes import Homes, Installed, record_in

__all__ = ["Holdings", "HoldingsPlanner"]


class HoldingsPlanner:
    """Decides which files go along, and keeps what was asked for.

    Args:
        walker: knows where modules were found.
        host: the distributions of this interpreter.

    Attributes:
        native: whether compiled files of distributions with interned modules go along.
        given: the files of modules whose sources were given, where they came from files.
    """

    def __init__(self, walker: Walker, host: Installed) -> None:
        self.native = False
        self.given: dict[str, Path] = {}
        self._homes = Homes(walker, host, self.given)
        self._asked: dict[str, PlannedFile] = {}
        self._asked_metadata: dict[str, str] = {}
        self._found: tuple[object, Holdings] | None = None

    def find(self, decisions: Mapping[str, Decision]) -> Holdings:
        """What goes along with the interned modules among those that were decided."""
        key = (
            frozenset((module, d.action) for module, d in decisions.items()),
            (*self._asked, *self._asked_metadata, *self.given),
            self.native,
        )
        if self._found is None or self._found[0] != key:
            gathering = Gathering(decisions, self._homes, self.native)
            self._found = key, gathering.all(self._asked.values(), self._asked_metadata)
        return self._found[1]

    def trees(self, decisions: Mapping[str, Decision]) -> list[Path]:
        """The unpacked trees of the packages that interned modules come from."""
        homes = self._homes.of(interned(decisions)).values()
        return sorted({home.package.tree for home in homes if home.package is not None})

    def own_folders(self, decisions: Mapping[str, Decision]) -> set[Path]:
        """The folders of the user's own code that is interned."""
        homes = self._homes.of(interned(decisions)).values()
        return {home.folder for home in homes if not home.is_installed and home.package is None}

    def published(self, decisions: Mapping[str, Decision]) -> Callable[[str, str, bytes], bool]:
        """Tell which files are as an index has them.

        Those that a package holds of a distribution count as well: what was not published was
        refused, or allowed, when that package was made.

        Args:
            decisions: what happens to each module.

        Returns:
            Tells that, given a file's owner, which is a module or a distribution, the file, and
            its content.
        """
        homes = self._homes.of(interned(decisions)).values()
        kept = {
            owner
            for home in homes
            if home.package is not None and home.distribution is not None
            for owner in (home.module, home.distribution.name)
        }
        host = self._homes.host
        return lambda owner, file, content: owner in kept or host.is_published(file, content)

    def add_file(self, decisions: Mapping[str, Decision], record: str, why: str) -> bool:
        """Take the file, or the files of the folder, that packaged code looked for.

        Args:
            decisions: what happens to each module.
            record: its path below the package's root, with ``/``.
            why: who asks.

        Returns:
            Whether there is such a file, it may go along without the user's word (a secret, a
            source, or what is too large may not), and it was not in the plan before.
        """
        if is_private(record):
            return False
        planned = {file.record for file in self.find(decisions).files}
        folders = record_folders(self._homes.of(interned(decisions)))
        budget = Budget()
        found = [
            PlannedFile(its_record, str(file), posixpath.dirname(its_record).replace("/", "."), why)
            for file in _looked_for(folders, PurePosixPath(record))
            for its_record in [record_in(folders, file)]
            if its_record is not None and its_record not in planned
            if is_data(file.name) and budget.admits(file)
        ]
        self._asked.update((file.record, file) for file in found)
        return bool(found)

    def add_metadata(self, decisions: Mapping[str, Decision], name: str, why: str) -> bool:
        """Let packaged code see the name, version and requirements of a distribution.

        Args:
            decisions: what happens to each module.
            name: the distribution's name.
            why: who asks.

        Returns:
            Whether it is installed here and was not in the plan before.
        """
        before = self.find(decisions).distributions
        self._asked_metadata[name] = why
        return self.find(decisions).distributions != before


def _looked_for(folders: Mapping[Path, str], record: PurePosixPath) -> list[Path]:
    """The file, or the files of the folder, that a record stands for on this machine."""
    for above in (record, *record.parents):
        name = "" if str(above) == "." else str(above)
        for folder in (real for real, its_record in folders.items() if its_record == name):
            place = folder / record.relative_to(above)
            if place.is_file():
                return [place]
            if place.is_dir() and place != folder:
                return list(files_below(place))
    return []
