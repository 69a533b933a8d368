"""The secret scan, which runs before anything is written.

Saved objects and resources are scanned when they are saved; sources and included files when the
package is planned. Tensor storages and native code are skipped: they are large, and credentials are
not written into them by hand.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from modpack.core.allowances import Allowance
from modpack.core.graph import DependencyGraph
from modpack.core.names import is_within, parents, root_of
from modpack.core.plan import FileKind, PackagingErrorReason, Plan, PlannedFile
from modpack.core.process import current_folder, normalize_path
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import InstalledDistribution
from modpack.discovery.secrets import (
    Secret,
    env_file_secrets,
    env_secrets_in,
    find_secrets,
    folders_up_to_project,
    is_env_file,
    is_project,
)
from modpack.discovery.walk import Walker
from modpack.exporting.module_records import interned_records
from modpack.exporting.package_data import PackageDataPlanner
from modpack.exporting.problems import file_of

PlaceOf: TypeAlias = Callable[[str], str]

_log = logging.getLogger("modpack")
_SCRIPT_CODE = (".py", ".pkl", ".json", ".txt")


class _Leak(NamedTuple):
    """A secret in something that is to be packaged.

    Attributes:
        subject: The module or the record.
        secret: The secret.
        place: Its location.
        is_file: Whether it is in a data file.
        publisher: The distribution whose release contains it.
    """

    subject: str
    secret: Secret
    place: str
    is_file: bool = False
    publisher: InstalledDistribution | None = None

    def note(self) -> Diagnostic:
        """Return the note about a secret that a distribution publishes."""
        pin = "" if self.publisher is None else self.publisher.pin
        text = f"{self.secret.description}, {self.secret.excerpt}, which {pin} contains as released"
        return Diagnostic.from_code("published-secret", self.subject, text, self.place)

    def problem(self, graph: DependencyGraph, saved: bool = False) -> Diagnostic:
        """Return the problem that stops the export.

        Args:
            graph: The import graph.
            saved: Whether the user saved it as a resource.
        """
        secret, allow = self.secret, f"{self.subject}#{self.secret.fingerprint}"
        module = None if saved else self.subject
        if self.is_file and not saved:  # the nearest package around it that anything leads to
            reached, folders = graph.reachable_nodes(), parents(self.subject.replace("/", "."))
            module = next((folder for folder in folders if folder in reached), None)
        chain = graph.shortest_path(f"<{self.subject}>" if module is None else module)
        hints = [
            f"If it is not a secret, pass allow_secrets_in=[{allow!r}], or "
            f"--allow-secrets-in '{allow}'."
        ]
        pattern = _mock_pattern(module, chain, graph) if module is not None else None
        if pattern is not None:
            hints.append(f"To exclude it, call mock({pattern!r}).")
        return Diagnostic.from_code(
            PackagingErrorReason.POSSIBLE_SECRET,
            self.subject,
            f"{secret.description}, {secret.excerpt}",
            self.place,
            chain=chain,
            hint=" ".join(hints),
        )


def _mock_pattern(module: str, chain: tuple[str, ...], graph: DependencyGraph) -> str | None:
    """Return the pattern of a mock rule for a module, or None if a saved object needs it.

    A library is mocked as a whole, because its remaining modules would not work.
    """
    if len(chain) < 2:
        return None
    root = root_of(module)
    is_library = any(not each.startswith("<") and root_of(each) != root for each in chain)
    within = root if is_library else module
    for node in graph.reachable_nodes():
        if is_within(node, within):
            if any(edge.kind is ImportKind.PICKLE for edge in graph.edges_to(node)):
                return None
    return f"{root}.**" if is_library else module


class SecretScan:
    """Searches what one exporter saves for secrets.

    Args:
        allowed: Findings that the user allows.
    """

    def __init__(self, allowed: Sequence[Allowance]) -> None:
        self._allowed = tuple(allowed)
        self._saved: dict[str, tuple[_Leak, ...]] = {}
        self._found: dict[tuple[bytes, int], tuple[Secret, ...]] = {}
        self._values: dict[str, dict[bytes, str]] = {}
        self._is_project = cache(is_project)

    def scan_resource(self, record: str, data: bytes) -> None:
        """Scan a text or bytes that the user saves."""
        found = [*_scan_file_name(record, data), *find_secrets(data, self._known)]
        self._saved[record] = tuple(_Leak(record, s, _locate(record, s)) for s in found)

    def scan_pickle(
        self, record: str, data: bytes, places: Callable[[Sequence[bytes]], Mapping[bytes, str]]
    ) -> None:
        """Scan an object's pickle.

        Args:
            record: The record of the pickle.
            data: The pickle and the records that continue it.
            places: Returns the attribute path of each text in the live object.
        """
        found = find_secrets(data, self._known, is_pickle=True)
        unique = {secret.value: secret for secret in found}
        # Only a finding is worth the walk over the live object.
        paths = places(list(unique)) if unique else {}
        self._saved[record] = tuple(
            _Leak(record, secret, paths.get(value) or _locate(record, secret))
            for value, secret in unique.items()
        )

    def scan_torchscript(self, record: str, data: bytes) -> None:
        """Scan the code and attributes of a serialized TorchScript module."""
        leaks = []
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                if name.endswith(_SCRIPT_CODE):
                    is_pickle = name.endswith(".pkl")
                    found = find_secrets(archive.read(name), self._known, is_pickle=is_pickle)
                    leaks += [_Leak(record, s, _locate(f"{record}/{name}", s)) for s in found]
        self._saved[record] = tuple(leaks)

    def findings(
        self, plan: Plan, walker: Walker, package_data: PackageDataPlanner, place: PlaceOf
    ) -> Iterator[Diagnostic]:
        """Yield a problem for each secret in a plan that is not allowed.

        A token in an unchanged file of a library from an index is no leak of this package, so it
        is a note. A value of a ``.env`` file is a problem anywhere.

        Args:
            plan: The plan.
            walker: Provides the sources.
            package_data: Provides the folders of the user's code and the files of distributions.
            place: Maps a location to the file that the user knows.
        """
        own_folders = map(str, package_data.own_folders(plan.decisions))
        known = {**self._known, **dict(self._nearby_values(own_folders))}
        leaks = [leak for saved in self._saved.values() for leak in saved]
        for module in interned_records(plan, walker):
            source = walker.source(module)
            # The scan cache knows sources without tokens, but not the values of .env files.
            if walker.scan(module).is_clean and not any(value in source for value in known):
                continue
            file = file_of(walker, module)
            for secret in self._search(source, known):
                is_known = secret.value in known
                publisher = None if is_known else package_data.publisher_of(module, source)
                where = place(_locate(file, secret))
                leaks.append(_Leak(module, secret, where, publisher=publisher))
        for each in plan.files:
            leaks += self._scan_file(each, known, package_data)
        for leak in leaks:
            if any(a.admits(leak.subject, leak.secret.fingerprint) for a in self._allowed):
                _log.info("%s: %s is allowed", leak.place, leak.secret.description)
            elif leak.publisher is not None:
                yield leak.note()
            else:
                yield leak.problem(plan.graph, leak.subject in self._saved)

    def _scan_file(
        self, file: PlannedFile, known: Mapping[bytes, str], package_data: PackageDataPlanner
    ) -> Iterator[_Leak]:
        if file.kind is FileKind.NATIVE:
            return
        try:
            data = Path(file.source).read_bytes()
        except OSError:  # reported when the file is written
            return
        for secret in _scan_file_name(file.record, data):
            yield _Leak(file.record, secret, _locate(file.source, secret), True)
        for secret in self._search(data, known):
            is_known = secret.value in known
            publisher = None if is_known else package_data.publisher_of(file, data)
            yield _Leak(file.record, secret, _locate(file.source, secret), True, publisher)

    def _search(self, data: bytes, known: Mapping[bytes, str]) -> tuple[Secret, ...]:
        """Search a text, with a cache for packages that are planned several times."""
        # Known values are only added during an export, so their number identifies them.
        key = hashlib.blake2b(data, digest_size=20).digest(), len(known)
        if key not in self._found:
            self._found[key] = find_secrets(data, known)
        return self._found[key]

    @cached_property
    def _known(self) -> Mapping[bytes, str]:
        """The secret values of the ``.env`` files in the folders of the running code."""
        return dict(self._nearby_values(_own_folders()))

    def _nearby_values(self, own_folders: Iterable[str]) -> Iterator[tuple[bytes, str]]:
        folder_groups = (folders_up_to_project(own, self._is_project) for own in set(own_folders))
        for folder in {folder for folders in folder_groups for folder in folders}:
            if folder not in self._values:
                self._values[folder] = env_secrets_in(folder)
            yield from self._values[folder].items()


def _own_folders() -> set[str]:
    """Return the current folder, the script's folder, and the folders on the import path."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    starts = {normalize_path(each) for each in sys.path if each and os.path.isdir(each)}  # noqa: PTH112
    if isinstance(script, str):
        starts.add(os.path.dirname(normalize_path(script)) or ".")  # noqa: PTH120
    here = current_folder()
    if here is not None:
        inside = (str(here) if each == "." else os.path.join(here, each) for each in starts)  # noqa: PTH118
        starts = {str(here), *inside}
    return {each for each in starts if not _is_installed(each)}


@lru_cache(maxsize=1024)
def _is_installed(folder: str) -> bool:
    """Return whether a folder of the import path contains installed code or the stdlib."""
    own_files = ("os.py", "_struct.py", "lib-dynload")
    names = {"site-packages", "dist-packages", "lib-dynload"}
    return os.path.basename(folder) in names or any(  # noqa: PTH119
        os.path.exists(f"{folder}/{each}")  # noqa: PTH110 - called for the whole import path
        for each in own_files
    )


def _scan_file_name(record: str, data: bytes) -> Iterator[Secret]:
    """Yield a finding for a ``.env`` file, whatever its values look like."""
    if is_env_file(record.rpartition("/")[2]) and any(env_file_secrets(data)):
        whole = find_secrets(data, {data: "a .env file"})
        yield from whole[:1]


def _locate(file: str, secret: Secret) -> str:
    if secret.line is not None:
        return f"{file}:{secret.line}"
    return f"{file}, byte {secret.position:,}"
