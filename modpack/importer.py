"""The importer: open a package, check it, import its code, unpickle its objects.

:class:`PackageImporter` has torch.package's names, and reads torch.package's archives as well
as modpack's own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from modpack.archive import layout
from modpack.archive.manifest import contents_digest, package_digest, read_manifest
from modpack.archive.module_index import IndexEntry, IndexEntryKind, ModuleIndex
from modpack.archive.reader import RecordReader, open_archive
from modpack.archive.records import load_environment, read_externs, read_plan, read_specs
from modpack.core.json_values import require_type
from modpack.core.names import (
    Directory,
    GlobPattern,
    package_folder,
    require_module_name,
    resource_record,
    root_of,
)
from modpack.core.process import phase
from modpack.discovery.importers import Importer, sys_importer
from modpack.errors import ArchiveError, DisallowedModuleError, ModpackError
from modpack.loading.cache import unpack
from modpack.loading.checks import (
    check_environment,
    compare_environment,
    find_entry,
    find_namespace,
    level_of,
    refuse_other_platforms,
    require_contents,
    require_on_mismatch,
    require_policy,
    require_trust,
)
from modpack.loading.finder import FolderResources, PackageEnvironment
from modpack.loading.namespace import NAMESPACES, open_namespace

if TYPE_CHECKING:
    from modpack.archive.base import Archive
    from modpack.core.environment import RecordedEnvironment
    from modpack.core.hookspec import HookSpec
    from modpack.core.policy import TrustPolicy
    from modpack.hooks.describe import HookChoice
    from modpack.loading.objects import LoadedObject

__all__ = ["PackageImporter", "loader_of", "loader_of_part"]


class PackageImporter(Importer):
    """Loads code and objects from a package.

    Loading a package runs the code in it: load only what you trust. Opening one does not: the
    archive's structure is checked, the records that hold code and pickles are compared with
    their digests, and the code is unpacked into the cache. Code runs when something is
    imported or unpickled.

    Packaged modules are real files that Python imports itself. In the private namespace
    (default) they live under a package of their own, named by the package's digest, so that
    packages never meet each other or what is installed. In the process namespace they have
    their real names, for code that looks itself up by them. In neither is an interned module
    ever taken from the host.

    Args:
        file_or_buffer: a package file, a binary file object, the folder of an unzipped package, or
            an open ``torch._C.PyTorchFileReader``.
        module_allowed: asked for each extern module whether it may be used.
        namespace: ``"auto"``, ``"private"`` or ``"process"``. ``"auto"`` uses the namespace in
            which the package passed its self-test, which is private if it was not tested.
        on_mismatch: What to do if Python, torch, the platform, or the distributions of extern
            modules differ from those recorded at export. ``"warn"`` emits one
            :class:`modpack.EnvironmentMismatchWarning` per package and disregards Python patch
            releases and local build labels; ``"error"`` rejects every difference; ``"ignore"``
            does neither.
        policy: what the package may ask for; checked before anything of it runs, and again by each
            import and each name in a pickle. It is not a sandbox.
        verify: what is compared with its digests before anything is used: ``"code"`` for all but
            the tensors, which are mapped and not read; ``"full"`` for the tensors too, which takes
            as long as to read them. What the policy says counts if it is more.

    Attributes:
        hook_handles: torch's handles of the hooks that the latest loads registered, by name.
        hooks: those hooks themselves: their closures and attributes hold their state.

    Raises:
        TypeError, ValueError: an argument is none of these.
        ArchiveError: it is no package, or a damaged one.
        DisallowedModuleError: ``module_allowed`` refused a module.
        TrustError, SignatureError: it asks for what the policy does not allow, or the signature
            that the policy demands is missing or does not hold.
        EnvironmentMismatchError: If ``on_mismatch="error"`` and anything differs.
        PlatformMismatchError: it holds compiled modules that cannot run here.
        NamespaceConflictError: real names are asked for, but some are taken.
        CacheError: there is no place to unpack the code into.
    """

    def __init__(
        self,
        file_or_buffer: str | os.PathLike[str] | BinaryIO | RecordReader,
        module_allowed: Callable[[str], bool] = lambda module_name: True,
        *,
        namespace: str = "auto",
        on_mismatch: str = "warn",
        policy: TrustPolicy | None = None,
        verify: str = "code",
    ) -> None:
        _require_arguments(file_or_buffer, module_allowed, namespace)
        require_on_mismatch(on_mismatch)
        require_policy(policy)
        self._policy, self._verify = policy, level_of(verify, policy)
        self._archive = open_archive(file_or_buffer)
        try:
            self._open(file_or_buffer, module_allowed, namespace, on_mismatch)
        except BaseException:
            self._archive.close()
            raise

    def close(self) -> None:
        """Forget the package: its modules leave ``sys.modules``, its file is closed.

        What was loaded keeps working as long as it imports nothing more.
        """
        for key, (_, importer) in list(_LOADERS.items()):
            if importer is self:
                _LOADERS.pop(key, None)
        self._namespace.close()
        self._archive.close()

    def __enter__(self) -> PackageImporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PackageImporter({self.filename!r})"

    def _repr_html_(self) -> str | None:
        """What notebooks show: what the package holds. Runs nothing of it."""
        from modpack.report.package_info import facts_of
        from modpack.report.text import package_html

        try:
            return package_html(facts_of(self._archive, read_manifest(self._archive)))
        except ArchiveError:  # closed, or unreadable: what repr() says must do
            return None

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Import a module of the package, or an extern one that it may use.

        Args:
            name: its path as the packaged code knows it, or the full name that a loaded object
                carries in ``__module__``; relative if it starts with a dot.
            package: what a relative name is relative to.

        Raises:
            ModuleNotFoundError: the package has no such module and may not take it from here.
        """
        if str(name).startswith(".") and package is not None:
            name = importlib.util.resolve_name(name, require_module_name(package, "package"))
        if "torch" not in sys.modules:
            return self._namespace.import_module(require_module_name(name, "name"))
        from modpack.loading.objects import operator_conflicts_explained  # it needs torch

        with operator_conflicts_explained(self.filename):
            return self._namespace.import_module(require_module_name(name, "name"))

    def get_source(self, module_name: str) -> str:
        """The source text of a packaged module; nothing is imported.

        Raises:
            ModuleNotFoundError: the package holds no source of that name.
            ArchiveError: what it holds is no text.
        """
        entry = self._entry(require_module_name(module_name))
        if entry is None or entry.kind is not IndexEntryKind.SOURCE:
            raise ModuleNotFoundError(
                f"{self.filename} holds no source of {module_name!r}", name=module_name
            )
        try:
            return importlib.util.decode_source(self._archive.read(entry.record))
        except (SyntaxError, UnicodeError, LookupError) as failure:  # codecs raise them all
            reason = f"it is no source text: {failure}"
            raise ArchiveError(self.filename, reason, entry.record) from failure

    @property
    def modules(self) -> dict[str, ModuleType]:
        """The modules of the package that are loaded by now, by the paths that its code knows."""
        known = ((name, self.loaded_module(name)) for name in self._index.entries)
        return {name: module for name, module in known if module is not None}

    @property
    def code_builtins(self) -> dict[str, Any]:
        """What the package's code sees as builtins: its imports find what the package holds."""
        return self._namespace.builtins

    @property
    def environment(self) -> PackageEnvironment:
        """The package as a place that an exporter takes modules from."""
        return PackageEnvironment(
            self.filename, self._index, self._archive.read, self._tree, self._data_files
        )

    def get_name(self, obj: object, name: str | None = None) -> tuple[str, str]:
        """How an object of this package, or of a module it takes from here, is found in it.

        Raises:
            ObjNotFoundError, ObjMismatchError: it is not the package's.
        """
        carried = str(getattr(obj, "__module__", None) or "")
        is_own = root_of(self._namespace.local_name(carried)) in self._index.roots
        if is_own or not self._index.allows_host_import(carried):
            return super().get_name(obj, name)
        return sys_importer.get_name(obj, name)

    def whichmodule(self, obj: object, name: str) -> str:
        """The path of the module that an object says it lives in, as packaged code knows it."""
        return self._namespace.local_name(super().whichmodule(obj, name))

    def loaded_module(self, module_name: str) -> ModuleType | None:
        """A module of the package if it is loaded already."""
        entry = self._entry(module_name)
        if entry is None or entry.kind is IndexEntryKind.EXTERN:
            return None
        module = sys.modules.get(self._namespace.full_name(module_name))
        own = getattr(module, "__dict__", {}).get("__modpack__", self) is self
        return module if own else None

    def has_unloaded(self, module_name: str) -> bool:
        """Whether the package has a module that is not loaded, so that no live object is of it."""
        entry = self._entry(module_name)
        is_code = entry is not None and entry.is_code
        return is_code and self.loaded_module(module_name) is None

    def hides(self, module_name: str) -> bool:
        """Whether a packaged module cannot be found in ``sys.modules`` under its real name."""
        entry = self._index.entries.get(module_name)
        return bool(self._namespace.prefix) and entry is not None and entry.is_code

    def _ready_module(self, name: str) -> ModuleType | None:
        """What :meth:`import_module` gives for an absolute name, if that is imported already.

        A pickle asks for the same few modules again and again.
        """
        is_usual = type(self).import_module is PackageImporter.import_module
        return self._namespace.ready(name) if is_usual else None

    def _data_files(self) -> dict[str, str]:
        """The files that the package's code reads, with what they belong to."""
        if not self._archive.has(layout.GRAPH):
            return {}
        from modpack.core.plan import FileKind  # saving again needs it, loading does not

        plan = read_plan(self._archive, None)
        return {file.record: file.owner for file in plan.files if file.kind is FileKind.DATA}

    def load_pickle(
        self, package: str | ModuleType, resource: str, map_location: Any = None
    ) -> Any:
        """Load an object that was saved with ``save_pickle``.

        Tensors are mapped from the file where possible: they cost no copy and no memory until
        they are used, and writing to them does not change the file. Each call gives objects
        of its own. Safe to call from several threads.

        Args:
            package: the package that the resource belongs to: its path, or the loaded module.
            resource: its name.
            map_location: where tensors go; see :func:`torch.load`.

        Raises:
            TypeError, ValueError: an argument is none of these.
            RecordNotFoundError: there is no such resource.
            ExternNotFoundError: the object needs a module that is not installed here.
            UnpicklingError: the pickle is damaged, or names something that is not there.
        """
        return self._load(package, resource, map_location, True, False).obj

    def load_model(
        self,
        package: str,
        resource: str,
        map_location: Any = None,
        *,
        hooks: HookChoice = True,
        with_optimizer: bool = False,
        global_hooks: bool = False,
    ) -> Any:
        """Load a model with its hooks registered again.

        Args:
            package: the package that the resource belongs to.
            resource: its name.
            map_location: where tensors go; see :func:`torch.load`.
            hooks: which hooks to register: True, False, names, or a predicate over specs.
            with_optimizer: Whether to return the optimizer that was saved with it, too.
            global_hooks: whether to register process-wide hooks that were captured.

        Returns:
            The model; with ``with_optimizer=True``, the model and its optimizer, or None.

        Raises:
            RecordNotFoundError: there is no such resource.
            UnpicklingError: a pickle is damaged, or names something that is not there.
            ValueError: no hook has a name that ``hooks`` gives.
        """
        loaded = self._load(package, resource, map_location, hooks, global_hooks)
        return (loaded.obj, loaded.extras.get("optimizer")) if with_optimizer else loaded.obj

    def hook_specs(self, package: str, resource: str) -> tuple[HookSpec, ...]:
        """The hooks of a saved object, as they were captured; nothing is executed.

        Raises:
            ModpackError: the specs are damaged or of an unknown version.
        """
        return read_specs(self._archive, self._record(package, resource))

    def hook_state(self, name: str) -> dict[str, Any]:
        """What a registered hook carries along, by name: its collected lists, its parameters.

        Args:
            name: the hook's name, as :meth:`hook_specs` gives it.

        Returns:
            The live objects: closure variables, attributes of callable objects (a bound method's
            object is ``"self"``), arguments bound by partial.

        Raises:
            ModpackError: no load registered a hook of that name.
        """
        from modpack.hooks.describe import hook_state

        if name not in self.hooks:
            known = ", ".join(map(repr, self.hooks)) or "none"
            raise ModpackError(f"no load registered a hook {name!r}; there are: {known}")
        return hook_state(self.hooks[name])

    def main_resource(self) -> tuple[str, str]:
        """The saved object that :func:`modpack.load` loads: the main one, or the only one.

        Raises:
            ModpackError: there is none, or there are several; they are listed.
        """
        return find_entry(self._archive)

    def _load(
        self,
        package: str | ModuleType,
        resource: str,
        map_location: Any,
        hooks: HookChoice,
        global_hooks: bool,
    ) -> LoadedObject:
        from modpack.loading.objects import load_object

        record = self._record(package, resource)
        with phase(f"loading {record}", is_major=True):
            loaded = load_object(
                self,
                self._archive,
                record,
                map_location,
                hooks,
                global_hooks,
                self._policy,
            )
        self.hook_handles.update(loaded.handles)
        self.hooks.update(loaded.hooks)
        torch = sys.modules["torch"]
        for made in (loaded.obj, *loaded.extras.values()):
            if isinstance(made, (torch.nn.Module, torch.optim.Optimizer)):
                _remember(made, self)
        return loaded

    def load_binary(self, package: str | ModuleType, resource: str) -> bytes:
        """The bytes of a resource; see :meth:`load_text`.

        Raises:
            RecordNotFoundError: there is no such resource.
        """
        return self._archive.read(self._record(package, resource))

    def load_text(
        self,
        package: str | ModuleType,
        resource: str,
        encoding: str = "utf-8",
        errors: str = "strict",
    ) -> str:
        """The text of a resource.

        Args:
            package: the package that the resource belongs to: its path, or the loaded module.
            resource: its name.
            encoding: how to decode it.
            errors: what to do with bytes that cannot be decoded; see :meth:`bytes.decode`.

        Raises:
            RecordNotFoundError: there is no such resource.
            UnicodeDecodeError: it is no text in that encoding.
        """
        for argument, value in (("encoding", encoding), ("errors", errors)):
            if not isinstance(value, str):
                raise TypeError(f"{argument} must be str, not {type(value).__name__}")
        return self.load_binary(package, resource).decode(encoding, errors)

    def file_structure(
        self, *, include: GlobPattern = "**", exclude: GlobPattern = ()
    ) -> Directory:
        """The files of the package as a tree.

        Args:
            include: patterns over paths; ``*`` within a component, ``**`` across.
            exclude: patterns for files to leave out.
        """
        return Directory.of(self.filename, self._archive.names(), include, exclude)

    def get_resource_reader(self, fullname: str) -> FolderResources | None:
        """The resources of a package, for :mod:`importlib.resources`; None for an unknown one."""
        name = require_module_name(fullname, "fullname")
        folder = self._tree / package_folder(self._namespace.local_name(name))
        return FolderResources(folder) if folder.is_dir() else None

    def id(self) -> str:
        """The name of this package's namespace, unique in this process; an identifier."""
        return self._namespace.name

    @property
    def recommended_namespace(self) -> str:
        """The namespace in which the package says that it works: ``"private"`` or ``"process"``.

        A self-test finds that out when a package is made; :func:`modpack.load` uses it.
        """
        return find_namespace(self._archive)

    def python_version(self) -> str | None:
        """The Python that wrote the package, such as ``"3.11.7"``; None if not recorded."""
        if not self._archive.has(layout.PYTHON_VERSION):
            return None
        return self._archive.read(layout.PYTHON_VERSION).decode("utf-8", "replace").strip()

    def _open(
        self,
        given: object,
        module_allowed: Callable[[str], bool],
        namespace: str,
        on_mismatch: str,
    ) -> None:
        self.filename = self._archive.path
        require_contents(self._archive, self._verify)
        digest = package_digest(self._archive)
        self.extern_modules = read_externs(self._archive)
        refused = tuple(name for name in self.extern_modules if not module_allowed(name))
        if refused:
            raise DisallowedModuleError(self.filename, refused)
        if self._policy is not None:
            require_trust(self._archive, self._policy, given)
        recorded = load_environment(self._archive, None)
        refuse_other_platforms(self.filename, recorded)
        missing = self._check_environment(recorded, digest, on_mismatch)
        sizes = {n: size for n, size in self._archive.sizes().items() if not layout.is_internal(n)}
        providers = {module: recorded.provider_of(module) for module in self.extern_modules}
        self._index = ModuleIndex.build(
            sizes,
            {module: found and found.requirement for module, found in providers.items()},
            recorded.has_distribution_metadata,
            missing,
            self._policy,
        )
        self._tree = self._unpacked(sizes)
        self._namespace = open_namespace(
            find_namespace(self._archive) if namespace == "auto" else namespace,
            digest,
            self.filename,
            self._index,
            self._tree,
            self,
        )
        self.zip_reader = ZipReader(self._archive)
        self.hook_handles: dict[str, Any] = {}
        self.hooks: dict[str, Any] = {}

    def _unpacked(self, sizes: dict[str, int]) -> Path:
        """The folder with the package's files."""
        digest = contents_digest(self._archive, sizes)
        return unpack(digest, sizes, self._archive.read, Path(self.filename).name)

    def _check_environment(
        self, recorded: RecordedEnvironment, digest: str, on_mismatch: str
    ) -> Mapping[str, str | None]:
        """Compare what the package was made with to what is here.

        Returns:
            The extern modules that are missing, the outermost of each, with what to give to pip.
        """
        comparison = compare_environment(self._archive, recorded, self.extern_modules)
        check_environment(self.filename, digest, comparison, on_mismatch)
        return {row.modules[0]: row.requirement for row in comparison.missing if row.modules}

    def _record(self, package: object, resource: object) -> str:
        """The record of a resource; its package may be a module, or the name that one carries."""
        name = package.__name__ if isinstance(package, ModuleType) else package
        name = self._namespace.local_name(name) if isinstance(name, str) else name
        return resource_record(name, resource)

    def _entry(self, module: str) -> IndexEntry | None:
        return self._index.find(self._namespace.local_name(module))


class ZipReader:
    """What code written for torch.package expects to find as ``importer.zip_reader``.

    Args:
        archive: the open package.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def has_record(self, path: str) -> bool:
        """Whether there is a record of this name."""
        return self._archive.has(_require_record_name(path, "path"))

    def get_record(self, name: str) -> bytes:
        """A record's contents.

        Raises:
            TypeError: ``name`` is no string.
            RecordNotFoundError: there is no such record.
        """
        return self._archive.read(_require_record_name(name, "name"))

    def get_all_records(self) -> list[str]:
        """The names of all records."""
        return list(self._archive.names())


def _require_record_name(name: object, argument: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a record's name (str), not {type(name).__name__}")
    return name


def _require_arguments(file_or_buffer: object, module_allowed: object, namespace: object) -> None:
    is_opened = hasattr(file_or_buffer, "read") or isinstance(file_or_buffer, RecordReader)
    if not isinstance(file_or_buffer, (str, os.PathLike)) and not is_opened:
        raise TypeError(
            "file_or_buffer must be a path or a binary file object, "
            f"not {type(file_or_buffer).__name__}"
        )
    if not callable(module_allowed):
        raise TypeError(f"module_allowed must be callable, not {type(module_allowed).__name__}")
    require_type(namespace, str, "namespace", "'auto', 'private' or 'process'")
    if namespace not in ("auto", *NAMESPACES):
        raise ValueError(f"namespace must be 'auto', 'private' or 'process', not {namespace!r}")


_LOADERS: dict[int, tuple[weakref.ref[Any], PackageImporter]] = {}
"""Which importer has loaded a model, by its id: the class of a model may be torch's own."""


def _remember(made: object, importer: PackageImporter) -> None:
    key = id(made)
    _LOADERS[key] = weakref.ref(made, lambda _: _LOADERS.pop(key, None)), importer


def loader_of(obj: object) -> PackageImporter | None:
    """The open importer that has loaded this very model or optimizer; None for anything else."""
    known, importer = _LOADERS.get(id(obj), (None, None))
    return importer if known is not None and known() is obj else None


def loader_of_part(module: object) -> PackageImporter | None:
    """The open importer that has loaded a model which a module is a part of."""
    nn = sys.modules["torch.nn"]
    for known, importer in list(_LOADERS.values()):
        model = known()
        if isinstance(model, nn.Module) and any(each is module for each in model.modules()):
            return importer
    return None
