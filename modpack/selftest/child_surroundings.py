"""Isolation of the self-test's interpreter from the host, and requests for missing resources.

Modules, distributions, and files are hidden from all code in the interpreter. An extern library
must not find a hidden module either, because the loading environment may not have it.

Missing resources are requested at the point where the import system or the operating system would
report them as missing. One run therefore finds as many as possible, whatever packaged code does
next (``try``, a default).
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

from modpack.archive.layout import is_internal
from modpack.archive.module_index import IndexEntry, IndexEntryKind, ModuleIndex
from modpack.core.names import is_within, namespace_of
from modpack.core.policy import TrustPolicy
from modpack.core.process import calling_frames
from modpack.core.selftest import WaitingImports
from modpack.environment.importers import module_dict
from modpack.importer import PackageImporter
from modpack.loading.metadata import VisibleDistributions, distribution_name
from modpack.loading.namespace import Namespace
from modpack.options import NamespaceKind
from modpack.selftest.object_rows import Row
from modpack.selftest.process import (
    HiddenModules,
    ProbeLevel,
    ResolvedResources,
    ResourceKind,
    ResourceRequest,
    Responder,
)

_READ_EVENTS = frozenset({"open", "os.listdir", "os.scandir", "os.chdir"})
"""Audit events of reading a file or a folder. Their first argument is the path."""
_SPEC_LOOKUP_MODULES = ("importlib.util", "modpack.loading.namespace")
# Taken before `_patch_stat` replaces it: tests by the monitor itself must not cause requests.
_stat = os.stat


class HostIsolation:
    """Hides modules, distributions, and paths, and records the code that looked for them.

    Args:
        hidden: What to hide.

    Attributes:
        distributions: The normalized names of hidden distributions.
        blocked: Each hidden name that was looked for, with the first module that did so.
        requested_by: Each top-level module that was looked for, with the first module that did so.
    """

    def __init__(self, hidden: HiddenModules) -> None:
        self.blocked: dict[str, str] = {}
        self.requested_by: dict[str, str] = {}
        self._hidden = hidden
        self.distributions = frozenset(hidden.distributions)
        self._hidden_paths = tuple(f"{path}{os.sep}" for path in hidden.paths)
        # An installation inside a hidden folder, such as a project's ``.venv``, stays readable.
        kept = (*sys.path, sys.prefix, sys.base_prefix)
        self._allowed = tuple(
            f"{p}{os.sep}" for p in kept if f"{p}{os.sep}".startswith(self._hidden_paths)
        )

    def install(self) -> None:
        """Install the import and audit hooks. They stay active for the life of the process."""
        # Built-in and frozen modules are part of every interpreter, so their finders hide nothing.
        sys.meta_path[:] = [
            finder if finder in (BuiltinImporter, FrozenImporter) else FilteredFinder(finder, self)
            for finder in sys.meta_path
        ]
        if self._hidden_paths:
            sys.addaudithook(self._audit)

    def hides(self, module: str) -> bool:
        """Return whether to hide a module, and record the lookup if so."""
        if not any(is_within(module, name) for name in self._hidden.modules):
            return False
        self.blocked.setdefault(module, _module_name(_requesting_frame()))
        return True

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        path = _absolute_path(arguments[0]) if event in _READ_EVENTS else None
        if path is None:
            return
        slashed = f"{path}{os.sep}"
        if slashed.startswith(self._hidden_paths) and not slashed.startswith(self._allowed):
            self.blocked.setdefault(path, _module_name(_requesting_frame()))
            # An exception from an audit hook ends the operation, so code sees a missing file.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class FilteredFinder:
    """A finder that does not find hidden modules and distributions."""

    def __init__(self, finder: Any, isolation: HostIsolation) -> None:
        self.original = finder
        self._isolation = isolation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._isolation.hides(fullname):
            return None
        if "." not in fullname and fullname not in self._isolation.requested_by:
            self._isolation.requested_by[fullname] = _module_name(_requesting_frame())
        found: ModuleSpec | None = self.original.find_spec(fullname, path, target)
        return found

    def find_distributions(self, *context: Any) -> Iterable[Any]:
        find = getattr(self.original, "find_distributions", None)
        hidden = self._isolation.distributions
        found = () if find is None else find(*context)
        return (each for each in found if distribution_name(each) not in hidden)

    def __getattr__(self, name: str) -> Any:
        # For example, importlib.invalidate_caches calls a method of each finder.
        return getattr(self.original, name)


def _requesting_frame() -> FrameType | None:
    """Return the innermost frame outside the import system and modpack."""
    frames = calling_frames(sys._getframe(1))
    return next((frame for frame in frames if not _is_import_machinery(frame)), None)


def _is_import_machinery(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith("<frozen") or file == "<string>":
        return True
    name = str(frame.f_globals.get("__name__", ""))
    machinery = ("modpack.", "importlib.", "genericpath", "posixpath", "ntpath")
    # Modules in a private namespace have names below ``modpack.``, too.
    return name.startswith(machinery) and not namespace_of(name)


def _absolute_path(named: Any) -> str | None:
    """Return the absolute path that a file is opened or tested by, or None for a descriptor."""
    is_path = isinstance(named, (str, bytes, os.PathLike))
    return os.path.abspath(os.fsdecode(named)) if is_path else None


def _module_name(frame: FrameType | None) -> str:
    return str(frame.f_globals.get("__name__", "?")) if frame is not None else "the interpreter"


class IncrementalImporter(PackageImporter):
    """An importer that accepts modules and files which the package lacks.

    Args:
        file: The package.
        namespace: The namespace to load it in.
        policy: The trust policy. None allows everything.
        lazy: Whether imports may wait; None for what the package records.
        trial: What a trial of waiting imports depends on.
    """

    def __init__(
        self,
        file: str,
        namespace: str,
        policy: TrustPolicy | None = None,
        lazy: bool | None = None,
        trial: WaitingImports | None = None,
    ) -> None:
        self._added: set[str] = set()
        self._trial = trial
        kind = cast("NamespaceKind", namespace)
        # The parent has compared the environment, and this interpreter is the same.
        super().__init__(file, namespace=kind, policy=policy, lazy=lazy, on_mismatch="ignore")

    def _defer_imports(self, is_lazy: bool | None) -> None:
        if self._trial is None:
            super()._defer_imports(is_lazy)
            return
        from modpack.loading.lazy import plan_of  # few runs are trials

        self._namespace.defer_imports(plan_of(self._trial))

    def describe(self, package: str, resource: str) -> tuple[tuple[Row, ...], str]:
        """Load an object, and return its description, and why it cannot be copied."""
        from modpack.saving.copies import why_not_copyable  # imports torch
        from modpack.selftest.object_state import describe_object

        # Not to the device of the model, whose memory may not be enough for a second copy.
        loaded = self._load(package, resource, "cpu", True, False)
        return describe_object(loaded.obj, loaded.extras), why_not_copyable(loaded.obj)

    def describe_modules(self, names: Mapping[str, Sequence[str]]) -> tuple[Row, ...]:
        """Describe names in those modules that are loaded; see :func:`.describe_modules`."""
        from modpack.selftest.module_state import describe_modules

        loaded = {name: sys.modules.get(self._namespace.full_name(name)) for name in names}
        found = {name: module_dict(module) for name, module in loaded.items() if module is not None}
        packaged = {name for name, each in found.items() if each.get("__modpack__") is self}
        return describe_modules(found, names, packaged, [str(self._tree)])

    @property
    def tree(self) -> Path:
        """The folder with the package's files."""
        return self._tree

    @property
    def records(self) -> frozenset[str]:
        """The records of the package."""
        return frozenset(self._archive.names())

    @property
    def namespace(self) -> Namespace:
        """The namespace of the package's modules."""
        return self._namespace

    def add_resources(self, files: Mapping[str, bytes], externs: Iterable[str] = ()) -> None:
        """Add files, including sources, and modules that may be imported from the host.

        Args:
            files: Contents by record.
            externs: Module paths.
        """
        for record, content in files.items():
            file = self._tree / record
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        self._added.update(files)
        listed = [name for name in self._archive.names() if not is_internal(name)]
        known: dict[str, str | None] = {**self._index.externs, **dict.fromkeys(externs)}
        hides = self._index.hides_distributions
        records = [*listed, *sorted(self._added)]
        index = ModuleIndex.build(records, known, hides, policy=self._index.policy)
        # Code compiled before a module became known imports it by this name.
        entries = {name: IndexEntry(name, IndexEntryKind.EXTERN) for name in externs}
        self._index = index._replace(entries={**entries, **index.entries})
        self._namespace.use(self._index)


class MissingResourceMonitor:
    """Detects missing resources and requests them from the parent.

    Args:
        importer: The package.
        send: Function that sends a request and returns the response.
        probe_level: Which resources to request.

    Attributes:
        has_skipped_probes: Whether a higher probe level would have requested more.
    """

    def __init__(
        self, importer: IncrementalImporter, send: Responder, probe_level: ProbeLevel
    ) -> None:
        self.has_skipped_probes = False
        self._importer = importer
        self._send = send
        self._probe_level = probe_level
        self._requested: set[tuple[str, str]] = set()
        self._placeholders: set[str] = set()
        self._tree = f"{importer.tree}{os.sep}"
        self._state = threading.local()
        # Reentrant: an exchange may itself trigger the hooks, in the same thread.
        self._lock = threading.RLock()

    def install(self) -> None:
        """Install the finders and hooks. They stay active for the life of the process."""
        place = sys.meta_path.index(self._importer.namespace.finder)
        # A placeholder must be replaced before the package's finder sees the file; all other
        # modules are requested only after that finder has failed.
        sys.meta_path.insert(place + 1, _FallbackFinder(self, only_placeholders=False))
        sys.meta_path.insert(place, _FallbackFinder(self, only_placeholders=True))
        # An import of an unknown top-level name is refused before any finder is asked.
        self._importer.namespace.on_miss = self.request_module
        sys.addaudithook(self._audit)
        _patch_metadata(self)
        _patch_stat(self)

    def request_module(self, name: str) -> None:
        """Request a module by the path that packaged code uses."""
        for place in self._candidate_paths(name):
            self._remove_placeholder(place)
        if not _is_probe() or self._may_probe():
            self.request("module", name)

    def request_file(self, path: str) -> None:
        """Request a missing file of the package's tree."""
        if path.startswith(self._tree):
            self._remove_placeholder(path)
            if not _exists(path):
                self.request("file", self._record_name(path))

    def probe_file(self, path: str) -> None:
        """Request a file that packaged code tests for, before it is reported as missing."""
        if path.startswith(self._tree) and not _exists(path) and self._may_probe():
            self.request_file(path)

    def list_folder(self, path: str) -> None:
        """Create placeholders for everything that the original of a listed folder contains.

        The contents are requested when packaged code imports or opens a placeholder.
        """
        if not f"{path}{os.sep}".startswith(self._tree) or not self._may_probe():
            return
        response = self._exchange("folder", self._record_name(path))
        for name in response.names if response is not None else ():
            place = os.path.join(path, name)
            if name.endswith("/"):
                if not _exists(place):
                    os.mkdir(place)
                    self._placeholders.add(place.rstrip("/"))
            elif not _exists(place):
                with self._busy(), open(place, "xb"):
                    self._placeholders.add(place)

    def _may_probe(self) -> bool:
        """Return whether to request resources whose existence is only tested."""
        probes = self._probe_level is ProbeLevel.PROBES
        self.has_skipped_probes |= not probes
        return probes

    def _remove_placeholder(self, path: str) -> None:
        """Remove a placeholder before the resource itself is requested."""
        if path in self._placeholders:
            self._placeholders.discard(path)
            if not os.path.isdir(path):
                os.unlink(path)

    def is_placeholder(self, module: str) -> bool:
        """Return whether a module's file is a placeholder, and its content must be requested."""
        return not self._placeholders.isdisjoint(self._candidate_paths(module))

    def _candidate_paths(self, module: str) -> tuple[str, str, str]:
        place = self._tree + module.replace(".", os.sep)
        return place, f"{place}.py", f"{place}{os.sep}__init__.py"

    def _record_name(self, path: str) -> str:
        return path[len(self._tree) :].replace(os.sep, "/")

    def request(self, kind: ResourceKind, name: str) -> bool:
        """Request a resource and return whether the parent provided it."""
        response = self._exchange(kind, name)
        if response is None or not (response.files or response.externs):
            return False
        with self._busy():
            self._importer.add_resources(response.files, response.externs)
        return True

    def _exchange(self, kind: ResourceKind, name: str) -> ResolvedResources | None:
        """Return the response, or None for a repeated request or one made during another."""
        with self._lock:
            if getattr(self._state, "is_busy", False) or (kind, name) in self._requested:
                return None
            self._requested.add((kind, name))
            with self._busy():
                return self._send(ResourceRequest(kind, name, *self._requester()))

    @contextmanager
    def _busy(self) -> Any:
        self._state.is_busy = True
        try:
            yield
        finally:
            self._state.is_busy = False

    def _requester(self) -> tuple[str | None, int | None]:
        """Return the packaged module that is running, and its line."""
        for frame in calling_frames(_requesting_frame()):
            if frame.f_globals.get("__modpack__") is self._importer:
                name = str(frame.f_globals.get("__name__"))
                return self._importer.namespace.local_name(name), frame.f_lineno
        return None, None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.listdir", "os.scandir") or _is_called_by_importlib():
            return
        path = _absolute_path(arguments[0])
        if path is not None and event != "open":
            self.list_folder(path)
        # os.open has flags and no mode. It may be reading.
        elif path is not None and (not isinstance(arguments[1], str) or "r" in arguments[1]):
            self.request_file(path)


class _FallbackFinder(MetaPathFinder):
    """Requests modules that the package's finder does not find.

    Args:
        monitor: Sends the requests.
        only_placeholders: Whether to request placeholders only. Such a finder comes before the
            package's finder, which would import the placeholder itself.
    """

    def __init__(self, monitor: MissingResourceMonitor, only_placeholders: bool) -> None:
        self._monitor = monitor
        self._only_placeholders = only_placeholders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        monitor = self._monitor
        finder = monitor._importer.namespace.finder
        module = fullname[len(finder.prefix) :]
        is_ours = bool(finder.prefix) and fullname.startswith(finder.prefix)
        if not is_ours and module.partition(".")[0] not in finder.index.roots:
            return None
        if self._only_placeholders and not monitor.is_placeholder(module):
            return None
        monitor.request_module(module)
        return finder.find_spec(fullname, path, target)


def _is_probe() -> bool:
    """Return whether the caller only tests whether a module exists."""
    for frame in calling_frames(sys._getframe(1)):
        name = frame.f_code.co_name
        # The innermost frame decides: find_spec imports the parents of a module, which it needs.
        if name in ("import_statement", "load", "_find_and_load", "_gcd_import"):
            return False
        if name == "find_spec" and frame.f_globals.get("__name__") in _SPEC_LOOKUP_MODULES:
            return True
    return False


def _is_called_by_importlib() -> bool:
    """Return whether the import system is reading, whose misses the finders handle."""
    frame: FrameType | None = sys._getframe(2)
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


def _exists(path: str) -> bool:
    try:
        _stat(path)
    except (OSError, ValueError):
        return False
    return True


def _patch_stat(monitor: MissingResourceMonitor) -> None:
    """Replace :func:`os.stat`, which raises no audit event, to notice tests for missing files."""

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        full = None if _is_called_by_importlib() else _absolute_path(path)
        if full is not None:
            monitor.probe_file(full)
        return _stat(path, *arguments, **options)

    os.stat = stat


def _patch_metadata(monitor: MissingResourceMonitor) -> None:
    """Request metadata and plugins that packaged code looks up and does not see."""
    real, real_entry_points = VisibleDistributions.all, VisibleDistributions.entry_points

    def all_distributions(self: VisibleDistributions, name: str | None = None) -> Iterator[Any]:
        found = list(real(self, name))
        if not found and name is not None and monitor.request("metadata", name):
            found = list(real(self, name))
        return iter(found)

    def entry_points(self: VisibleDistributions, group: str | None = None) -> Iterator[Any]:
        if group is not None:
            monitor.request("plugins", group)
        return real_entry_points(self, group)

    VisibleDistributions.all = all_distributions  # type: ignore[method-assign]
    VisibleDistributions.entry_points = entry_points  # type: ignore[method-assign]
