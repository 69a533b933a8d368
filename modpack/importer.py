"""Loading: open a package, check it, import its code, and unpickle its objects.

:class:`PackageImporter` has the interface of torch.package's importer, and also reads archives of
torch.package.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

from modpack import services
from modpack.archive import layout
from modpack.archive.manifest import contents_digest, package_digest
from modpack.archive.module_index import IndexEntry, IndexEntryKind, ModuleIndex
from modpack.archive.reader import local_source, open_archive
from modpack.archive.records import (
    load_environment,
    read_call_signatures,
    read_externs,
    read_plan,
    read_specs,
)
from modpack.core.json_values import require_type
from modpack.core.names import (
    Directory,
    GlobPattern,
    file_name,
    join_record,
    package_folder,
    require_module_name,
    resource_record,
    root_of,
    url_of,
)
from modpack.core.process import gc_paused, may_show_progress, phase
from modpack.environment.importers import Importer, sys_importer
from modpack.errors import ArchiveError, DisallowedModuleError, ModpackError, listed
from modpack.loading.cache import unpack
from modpack.loading.checks import (
    check_environment,
    compare_environment,
    find_entry,
    find_namespace,
    refuse_other_platforms,
    require_contents,
    require_trust,
    stricter_level,
)
from modpack.loading.finder import FolderResources, PackageEnvironment
from modpack.loading.namespace import Namespace, open_namespace
from modpack.loading.package_record import PackageRecord, leave_record, namespace_name
from modpack.options import (
    NamespaceKind,
    OnMismatch,
    VerifyLevel,
    require_object_choice,
    require_options,
)

if TYPE_CHECKING:
    from modpack.archive.base import Archive
    from modpack.core.call_signature import CallSignature
    from modpack.core.hookspec import HookSpec
    from modpack.core.policy import TrustPolicy
    from modpack.hooks.choice import HookChoice
    from modpack.loading.objects import LoadedObject


def load(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    package: str | None = None,
    resource: str | None = None,
    map_location: Any = None,
    hooks: HookChoice = True,
    global_hooks: bool = False,
    with_optimizer: bool = False,
    policy: TrustPolicy | None = None,
    verify: VerifyLevel = "code",
    on_mismatch: OnMismatch = "warn",
    namespace: NamespaceKind = "auto",
    lazy: bool | None = None,
    progress: bool | None = None,
) -> Any:
    """Load a package's main object and re-register its hooks.

    Loading a package executes its code: only load packages you trust. The package stays open for
    later imports of its code; to close it, use :class:`PackageImporter`. It is closed at once if
    the object is data without packaged code. Tensors are mapped from the file: replace the file by
    renaming another one, and never write to it.

    Args:
        path: Package file, binary file object, folder of an unzipped package, or URL.
        package: Package of the saved object. Pass it together with ``resource``. The default is the
            main resource, or the only saved object.
        resource: Name of the saved object in ``package``.
        map_location: Device of the tensors; see :func:`torch.load`.
        hooks: Hooks to register: True, False, names, or a predicate over HookSpecs.
        global_hooks: Whether to register the process-wide hooks that were captured.
        with_optimizer: Whether to also return the optimizer that was saved with the model.
        policy: Trust policy, which modpack checks before any code of the package runs, and again
            for each import and each name in a pickle. It is not a sandbox. None allows everything.
        verify: Records to compare with their digests first: ``'code'`` for all records except
            tensors, which are mapped and not read; ``'full'`` for all records, which takes as long
            as reading them. The policy's level applies if it is stricter.
        on_mismatch: Reaction if Python, torch, the platform, or the distributions of extern modules
            differ from those at export. ``'warn'`` emits one EnvironmentMismatchWarning per package
            and ignores Python patch releases and local build labels; ``'error'`` rejects every
            difference; ``'ignore'`` does neither.
        namespace: Names of the package's modules in ``sys.modules``. ``'private'`` puts them below
            a package named by the digest, so that packages never conflict; ``'process'`` uses their
            real names. ``'auto'`` uses the namespace in which the package passed its self-test, or
            ``'private'`` without a self-test.
        lazy: Whether imports at module level of packaged code wait until a name is looked up, as in
            PEP 810. None lets imports wait if the package's self-test found that they can. A policy
            that restricts imports lets none wait. The environment variable ``MODPACK_LAZY`` changes
            the default: ``0`` lets none wait, ``1`` all.
        progress: Whether to show progress on stderr once the work takes more than a second. None
            shows it in a terminal and in a notebook.

    Returns:
        The object; with ``with_optimizer=True``, a tuple of the object and its optimizer or None.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value, or ``hooks`` contains an unknown name.
        EnvironmentMismatchError: If ``on_mismatch="error"`` and a version differs. No code has run.
        TrustError: If the policy does not allow something that the package requires. No code has
            run if the package declares this requirement.
        SignatureError: If the policy requires a signature that is missing or invalid. No code has
            run.
        ModpackError: If the package cannot be loaded, or has several objects and no main one.
    """
    require_object_choice(package, resource)
    require_options(global_hooks=global_hooks, with_optimizer=with_optimizer, progress=progress)
    with ExitStack() as stack:
        if may_show_progress(progress):
            name = path if isinstance(path, (str, os.PathLike)) else "a package"
            stack.enter_context(services.installed.working(f"Loading {name}", progress))
        # Packaged code is imported with garbage collection (benchmark row first-load).
        stack.enter_context(gc_paused())
        importer = PackageImporter(
            path,
            policy=policy,
            verify=verify,
            on_mismatch=on_mismatch,
            namespace=namespace,
            lazy=lazy,
        )
        try:
            if package is None or resource is None:
                package, resource = importer.main_resource()
            loaded = importer.load_model(
                package,
                resource,
                map_location,
                hooks=hooks,
                global_hooks=global_hooks,
                with_optimizer=with_optimizer,
            )
        except BaseException:
            # _discard and not close, which would execute the imports that wait: no object needs
            # them.
            importer._discard()
            raise
        if not importer._namespace.is_used:  # the importer cannot be reached from the object
            importer._discard()
        return loaded


def _allow_all(module_name: str) -> bool:
    return True


class PackageImporter(Importer):
    """Loads code and objects from a package.

    Loading a package executes its code: only load packages you trust. Opening one does not execute
    code: it checks the structure of the file, compares the records with their digests, and unpacks
    the code into the cache. Importing a module or unpickling an object executes code.

    Packaged modules are real files, which Python's own machinery imports. In the private namespace
    they are below :mod:`modpack.packages` and a package named by the digest, so that packages
    conflict neither with each other nor with installed modules, and other processes of this user
    can unpickle their objects. In the process namespace they have their real names, for code that
    looks itself up by name. Interned modules are never imported from the loading environment.

    Args:
        file_or_buffer: Package file, binary file object, folder of an unzipped package, or URL.
        module_allowed: Called with each extern module; returns whether the package may use it.
        policy: Trust policy; see :func:`modpack.load`. None allows everything.
        verify: Records to compare with their digests first: ``'code'`` for all records except
            tensors, ``'full'`` for all records.
        on_mismatch: Reaction if the environment differs from that of the export: ``'warn'``,
            ``'error'``, or ``'ignore'``; see :func:`modpack.load`.
        namespace: Names of the package's modules in ``sys.modules``: ``'private'``, ``'process'``,
            or ``'auto'``; see :func:`modpack.load`.
        lazy: Whether imports of packaged code wait; see :func:`modpack.load`.

    Attributes:
        hook_handles: torch's handles of the hooks that the latest loads registered, by name.
        hooks: Those hooks by name. Their closures and attributes contain their state.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value.
        ArchiveError: If the file is not a package, or is damaged.
        DisallowedModuleError: If ``module_allowed`` rejects a module.
        TrustError: If the policy does not allow something that the package requires.
        SignatureError: If the policy requires a signature that is missing or invalid.
        EnvironmentMismatchError: If ``on_mismatch="error"`` and a version differs.
        PlatformMismatchError: If the package contains native extensions for another platform.
        NamespaceConflictError: If ``namespace="process"`` and a module's name is taken.
        CacheError: If the code cannot be unpacked.
    """

    def __init__(
        self,
        file_or_buffer: str | os.PathLike[str] | BinaryIO,
        module_allowed: Callable[[str], bool] = _allow_all,
        *,
        policy: TrustPolicy | None = None,
        verify: VerifyLevel = "code",
        on_mismatch: OnMismatch = "warn",
        namespace: NamespaceKind = "auto",
        lazy: bool | None = None,
    ) -> None:
        if not hasattr(file_or_buffer, "read"):
            expected = "a path or a binary file object"
            require_type(file_or_buffer, (str, os.PathLike), "file_or_buffer", expected)
        if not callable(module_allowed):
            raise TypeError(f"module_allowed must be callable, not {type(module_allowed).__name__}")
        require_options(policy=policy, verify=verify, on_mismatch=on_mismatch, namespace=namespace)
        require_options(lazy=lazy)
        self._policy = policy
        self._verify = stricter_level(verify, policy)
        self._on_mismatch = on_mismatch
        self._lazy = lazy
        file = local_source(file_or_buffer)
        # Messages name the URL, not the file in the cache that is opened instead.
        label = None if file is file_or_buffer else url_of(str(file_or_buffer))
        self._archive = open_archive(file, label=label)
        try:
            self._open(file, module_allowed, namespace)
            self._defer_imports(lazy)
        except BaseException:
            self._archive.close()
            raise

    def close(self) -> None:
        """Close the file and remove the package's modules from ``sys.modules``.

        Loaded objects keep working as long as they import no more modules. Imports that wait are
        executed first.
        """
        # Loaded objects stay in use. Once the modules are gone, an import that still waits would
        # fail.
        self._namespace.end_deferral(self)
        self._discard()

    def _discard(self) -> None:
        """Close the package, whose objects nothing uses."""
        # An entry would keep this importer alive, and find_load is to return open ones only.
        for key, (_, importer, _) in list(_LOADERS.items()):
            if importer is self:
                _LOADERS.pop(key, None)
        self._namespace.close(self)
        self._archive.close()

    def __enter__(self) -> PackageImporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def __repr__(self) -> str:
        return f"PackageImporter({self.filename!r})"

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Import a module of the package, or an extern module that it may use.

        Args:
            name: Path that packaged code uses, or the full name in ``__module__`` of a loaded
                object. A name that starts with a dot is relative.
            package: Package that a relative name refers to.

        Raises:
            ModuleNotFoundError: If the package has no such module and may not import it from the
                loading environment.
        """
        if str(name).startswith(".") and package is not None:
            name = importlib.util.resolve_name(name, require_module_name(package, "package"))
        # Plain code does not need torch, whose import takes more than a second.
        if "torch" not in sys.modules:
            return self._namespace.import_module(require_module_name(name, "name"))
        from modpack.loading.objects import operator_conflicts_explained  # imports torch

        with operator_conflicts_explained(self.filename):
            return self._namespace.import_module(require_module_name(name, "name"))

    def get_source(self, module_name: str) -> str:
        """Return the source text of a packaged module without importing it.

        Raises:
            ModuleNotFoundError: If the package has no source of that module.
            ArchiveError: If the source cannot be decoded.
        """
        entry = self._entry(require_module_name(module_name))
        if entry is None or entry.kind is not IndexEntryKind.SOURCE:
            raise ModuleNotFoundError(
                f"{self.filename}: no source for module {module_name!r}", name=module_name
            )
        try:
            return importlib.util.decode_source(self._archive.read(entry.record))
        except (SyntaxError, UnicodeError, LookupError) as failure:  # codecs raise all of them
            reason = f"the source cannot be decoded: {failure}"
            raise ArchiveError(self.filename, reason, entry.record) from failure

    @property
    def modules(self) -> dict[str, ModuleType]:
        """The loaded modules of the package, by the paths that packaged code uses."""
        known = ((name, self.loaded_module(name)) for name in self._index.entries)
        return {name: module for name, module in known if module is not None}

    @property
    def _code_builtins(self) -> dict[str, Any]:
        """The builtins of packaged code, whose imports find the package's modules."""
        self._namespace.is_used = True
        return self._namespace.builtins

    @property
    def _environment(self) -> PackageEnvironment:
        """The package as a source of modules for an exporter."""
        return PackageEnvironment(
            self.filename, self._index, self._archive.read, self._tree, self._data_files
        )

    def get_name(self, obj: object, name: str | None = None) -> tuple[str, str]:
        """Return module and qualified name of an object of this package or an extern module.

        Raises:
            ObjNotFoundError: If the package has no object of that name.
            ObjMismatchError: If the package has another object of that name.
        """
        carried = str(getattr(obj, "__module__", None) or "")
        # An object of an extern module belongs to the loading environment, under its real name
        # there.
        is_own = root_of(self._namespace.local_name(carried)) in self._index.roots
        if is_own or not self._index.allows_host_import(carried):
            return super().get_name(obj, name)
        return sys_importer.get_name(obj, name)

    def whichmodule(self, obj: object, name: str) -> str:
        """Return the path of an object's module, as packaged code uses it."""
        return self._namespace.local_name(super().whichmodule(obj, name))

    def loaded_module(self, module_name: str) -> ModuleType | None:
        """Return a module of the package if it is loaded, or None."""
        entry = self._entry(module_name)
        if entry is None or entry.kind is IndexEntryKind.EXTERN:
            return None
        module = sys.modules.get(self._namespace.full_name(module_name))
        own = getattr(module, "__dict__", {}).get("__modpack__", self) is self
        return module if own else None

    def has_unloaded(self, module_name: str) -> bool:
        """Return whether the package has a module that is not loaded and has no live objects."""
        entry = self._entry(module_name)
        is_code = entry is not None and entry.is_code
        return is_code and self.loaded_module(module_name) is None

    def hides(self, module_name: str) -> bool:
        """Return whether a packaged module is missing in ``sys.modules`` under its real name."""
        entry = self._index.entries.get(module_name)
        return bool(self._namespace.prefix) and entry is not None and entry.is_code

    def _ready_module(self, name: str) -> ModuleType | None:
        """Return an already imported module, or None. Pickles import the same modules often."""
        # A subclass may override import_module, and every import of a pickle has to reach it.
        is_inherited = type(self).import_module is PackageImporter.import_module
        return self._namespace.ready(name) if is_inherited else None

    def _data_files(self) -> dict[str, str]:
        """Return the data files of the package, with the modules or distributions that own them."""
        if not self._archive.has(layout.GRAPH):
            return {}
        from modpack.core.plan import FileKind  # only needed for re-export

        plan = read_plan(self._archive, None)
        return {file.record: file.owner for file in plan.files if file.kind is FileKind.DATA}

    def load_pickle(
        self, package: str | ModuleType, resource: str, map_location: Any = None
    ) -> Any:
        """Load an object that was saved with ``save_pickle``.

        Tensors are mapped from the file where possible: they are not copied and take no memory
        until they are used, and writing to them does not change the file. Each call returns new
        objects. Several threads can call this method at the same time.

        Args:
            package: Python package of the resource: its path, or the loaded module.
            resource: Name of the resource.
            map_location: Device of the tensors; see :func:`torch.load`.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument has an invalid value.
            RecordNotFoundError: If the resource does not exist.
            ExternNotFoundError: If the object needs a module that is not installed.
            UnpicklingError: If the pickle is damaged, or refers to a missing object.
        """
        return self._load(package, resource, map_location, True, False).obj

    def load_model(
        self,
        package: str,
        resource: str,
        map_location: Any = None,
        *,
        hooks: HookChoice = True,
        global_hooks: bool = False,
        with_optimizer: bool = False,
    ) -> Any:
        """Load a model and re-register its hooks.

        Args:
            package: Python package of the resource.
            resource: Name of the resource.
            map_location: Device of the tensors; see :func:`torch.load`.
            hooks: Hooks to register: True, False, names, or a predicate over HookSpecs.
            global_hooks: Whether to register the process-wide hooks that were captured.
            with_optimizer: Whether to also return the optimizer that was saved with the model.

        Returns:
            The model; with ``with_optimizer=True``, a tuple of the model and its optimizer or None.

        Raises:
            TypeError: If an argument has the wrong type.
            RecordNotFoundError: If the resource does not exist.
            UnpicklingError: If a pickle is damaged, or refers to a missing object.
            ValueError: If ``hooks`` contains an unknown name.
        """
        require_options(global_hooks=global_hooks, with_optimizer=with_optimizer)
        loaded = self._load(package, resource, map_location, hooks, global_hooks)
        if with_optimizer:
            return loaded.obj, loaded.extras.get("optimizer")
        return loaded.obj

    def hook_specs(self, package: str, resource: str) -> tuple[HookSpec, ...]:
        """Return the specs of a saved object's hooks without executing code.

        Raises:
            ModpackError: If the specs are damaged or have an unknown version.
        """
        return read_specs(self._archive, self._record(package, resource))

    def call_signature(self, package: str, resource: str) -> CallSignature | None:
        """Return the arguments and outputs of a saved object's call without executing code.

        Returns:
            The call signature, or None if the object was saved without example inputs.

        Raises:
            TypeError: If an argument has the wrong type.
            RecordNotFoundError: If the resource does not exist.
            ArchiveError: If the record of call signatures is damaged.
        """
        record = self._record(package, resource)
        self._archive.size(record)  # raises RecordNotFoundError
        return find_call_signature(self._archive, record)

    def hook_state(self, name: str) -> dict[str, Any]:
        """Return the state of a registered hook, such as its collected lists and parameters.

        Args:
            name: Name of the hook, as in :meth:`hook_specs`.

        Returns:
            The live objects by name: closure variables, attributes of callable objects (a bound
            method's object is ``"self"``), and arguments bound by partial.

        Raises:
            ModpackError: If no load registered a hook of that name.
        """
        from modpack.hooks.choice import hook_state

        if name not in self.hooks:
            known = listed(map(repr, self.hooks), 10) or "none"
            raise ModpackError(f"no hook named {name!r} is registered; registered hooks: {known}")
        return hook_state(self.hooks[name])

    def main_resource(self) -> tuple[str, str]:
        """Return package and resource of the object that :func:`modpack.load` loads.

        Raises:
            ModpackError: If there is no saved object, or several without a main one; the error
                lists them.
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
        # importer_of finds a model of torch's own classes by this entry only. Without is_used, load
        # would close the package, which looks like plain data.
        torch = sys.modules["torch"]
        for each in (loaded.obj, *loaded.extras.values()):
            if isinstance(each, (torch.nn.Module, torch.optim.Optimizer)):
                self._namespace.is_used = True
                _remember(each, self, record)
        return loaded

    def load_binary(self, package: str | ModuleType, resource: str) -> bytes:
        """Return the bytes of a resource; see :meth:`load_text`.

        Raises:
            RecordNotFoundError: If the resource does not exist.
        """
        return self._archive.read(self._record(package, resource))

    def load_text(
        self,
        package: str | ModuleType,
        resource: str,
        encoding: str = "utf-8",
        errors: str = "strict",
    ) -> str:
        """Return the text of a resource.

        Args:
            package: Python package of the resource: its path, or the loaded module.
            resource: Name of the resource.
            encoding: Encoding of the text.
            errors: Error handler of the decoder; see :meth:`bytes.decode`.

        Raises:
            RecordNotFoundError: If the resource does not exist.
            UnicodeDecodeError: If the bytes are not valid in that encoding.
        """
        require_type(encoding, str, "encoding", "a str")
        require_type(errors, str, "errors", "a str")
        return self.load_binary(package, resource).decode(encoding, errors)

    def file_structure(
        self, *, include: GlobPattern = "**", exclude: GlobPattern = ()
    ) -> Directory:
        """Return the files of the package as a tree.

        Args:
            include: Patterns of paths; ``*`` matches within a component, ``**`` across components.
            exclude: Patterns of files to omit.
        """
        return Directory.from_names(self.filename, self._archive.names(), include, exclude)

    def get_resource_reader(self, fullname: str) -> FolderResources | None:
        """Return the resources of a Python package for :mod:`importlib.resources`, or None."""
        name = require_module_name(fullname, "fullname")
        folder = self._tree / package_folder(self._namespace.local_name(name))
        return FolderResources(folder) if folder.is_dir() else None

    def id(self) -> str:
        """Return the name of this package's namespace, unique in this process."""
        return self._namespace.name

    @property
    def _recommended_namespace(self) -> str:
        """The namespace in which the package passed its self-test."""
        return find_namespace(self._archive)

    def python_version(self) -> str | None:
        """Return the Python version of the export, such as ``"3.11.7"``; None if not recorded."""
        if not self._archive.has(layout.PYTHON_VERSION):
            return None
        return self._archive.read(layout.PYTHON_VERSION).decode("utf-8", "replace").strip()

    def _open(
        self,
        file_or_buffer: object,
        module_allowed: Callable[[str], bool],
        kind: NamespaceKind,
    ) -> None:
        self.filename = self._archive.path
        # First, so that everything below reads records that match the manifest.
        require_contents(self._archive, self._verify)
        digest = self._digest()
        # Everything that can refuse the package comes before the cache and the namespace change.
        self.extern_modules = read_externs(self._archive)
        refused = tuple(name for name in self.extern_modules if not module_allowed(name))
        if refused:
            raise DisallowedModuleError(self.filename, refused)
        if self._policy is not None:
            require_trust(self._archive, self._policy, file_or_buffer)
        recorded = load_environment(self._archive, None)
        refuse_other_platforms(self.filename, recorded)
        comparison = compare_environment(self._archive, recorded, self.extern_modules)
        settings = recorded.torch_settings
        check_environment(self.filename, digest, comparison, self._on_mismatch, settings)
        # The requirement of each missing extern module, without submodules of missing modules.
        missing = {row.modules[0]: row.requirement for row in comparison.missing if row.modules}
        sizes = {n: size for n, size in self._archive.sizes().items() if not layout.is_internal(n)}
        providers = {module: recorded.provider_of(module) for module in self.extern_modules}
        self._index = ModuleIndex.build(
            sizes,
            {module: found and found.requirement for module, found in providers.items()},
            recorded.has_distribution_metadata,
            missing,
            self._policy,
        )
        # This digest leaves tensors out: checkpoints of one training share the unpacked code.
        records = contents_digest(self._archive, sizes), sizes, self._archive.read
        self._tree = unpack(*records, file_name(self.filename))
        name = namespace_name(digest, self._policy, module_allowed is not _allow_all)
        self._namespace = self._open_namespace(
            find_namespace(self._archive) if kind == "auto" else kind, name
        )
        # A buffer has no path for other processes, and modules of the process namespace have real
        # names, which do not lead to a package.
        if self._namespace.prefix and isinstance(file_or_buffer, (str, os.PathLike)):
            path = os.path.abspath(file_or_buffer)  # noqa: PTH100 - Path is slower
            sent = self._verify, self._on_mismatch, self._policy, self._lazy
            leave_record(name, PackageRecord(digest, path, *sent))
        self.zip_reader = ZipReader(self._archive)
        self.hook_handles: dict[str, Any] = {}
        self.hooks: dict[str, Any] = {}

    def _defer_imports(self, is_lazy: bool | None) -> None:
        """Let imports wait if the caller, the environment, or else the package chooses so."""
        if is_lazy is None:
            is_lazy = {"0": False, "1": True}.get(os.environ.get("MODPACK_LAZY", ""))
        if is_lazy is None:
            is_lazy = self._archive.has(layout.WAITING)
        is_restricted = self._policy is not None and self._policy.restricts_imports
        if not is_lazy or is_restricted or self._namespace.finder.imports is not None:
            return
        from modpack.loading.lazy import read_plan  # most packages record none

        try:
            self._namespace.defer_imports(read_plan(self._archive))
        # The caller closes just the file, but the namespace is in sys.modules already.
        except ArchiveError:
            self._namespace.close(self)
            raise

    def _digest(self) -> str:
        return package_digest(self._archive)

    def _open_namespace(self, kind: str, name: str) -> Namespace:
        return open_namespace(kind, name, self.filename, self._index, self._tree, self)

    def _record(self, package: object, resource: object) -> str:
        """Return the record of a resource. Its package is a path, a full name, or a module."""
        name = package.__name__ if isinstance(package, ModuleType) else package
        name = self._namespace.local_name(name) if isinstance(name, str) else name
        return resource_record(name, resource)

    def _entry(self, module: str) -> IndexEntry | None:
        return self._index.find(self._namespace.local_name(module))


class ZipReader:
    """The records of a package, for torch.package code that uses ``importer.zip_reader``.

    Args:
        archive: The open package.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def has_record(self, path: str) -> bool:
        """Return whether a record exists."""
        require_type(path, str, "path", "a record name (str)")
        return self._archive.has(path)

    def get_record(self, name: str) -> bytes:
        """Return a record's contents.

        Raises:
            TypeError: If ``name`` is not a string.
            RecordNotFoundError: If the record does not exist.
        """
        require_type(name, str, "name", "a record name (str)")
        return self._archive.read(name)

    def get_all_records(self) -> list[str]:
        """Return the names of all records."""
        return list(self._archive.names())


_LOADERS: dict[int, tuple[weakref.ref[Any], PackageImporter, str]] = {}
"""Importers and records of loaded models and optimizers, by id.

Their classes may be torch's own.
"""


def _remember(loaded: object, importer: PackageImporter, record: str) -> None:
    key = id(loaded)
    _LOADERS[key] = weakref.ref(loaded, lambda _: _LOADERS.pop(key, None)), importer, record


def find_load(obj: object) -> tuple[PackageImporter, str] | None:
    """Return the open importer that loaded a model or an optimizer, and its record, or None."""
    known = _LOADERS.get(id(obj))
    # An id can belong to another object now.
    return known[1:] if known is not None and known[0]() is obj else None


def call_signature_of(model: object) -> CallSignature | None:
    """Return the call signature of a model from an open package, or None without one.

    Raises:
        ArchiveError: If the record of call signatures is damaged.
    """
    load = find_load(model)
    return None if load is None else find_call_signature(load[0]._archive, load[1])


def find_call_signature(archive: Archive, record: str) -> CallSignature | None:
    """Return the call signature of a saved object, or None without one.

    Args:
        archive: The package.
        record: The record of the object.

    Raises:
        ArchiveError: If the record of call signatures is damaged.
    """
    for found in read_call_signatures(archive):
        package, resource = found.resource
        if join_record(package_folder(package), resource) == record:
            return found
    return None


def loader_of_part(module: object) -> PackageImporter | None:
    """Return the open importer that loaded a model with this submodule, or None."""
    nn = sys.modules["torch.nn"]
    # A copy: a model that is collected meanwhile removes its entry.
    for known, importer, _ in list(_LOADERS.values()):
        model = known()
        if isinstance(model, nn.Module) and any(each is module for each in model.modules()):
            return importer
    return None
