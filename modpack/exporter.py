"""Saving: collect objects and code, plan, and write the package.

:class:`PackageExporter` has the interface of torch.package's exporter. It collects saved objects,
lets the planner decide every module that they depend on, and writes the package when it is closed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from modpack.archive.layout import CALL_SIGNATURE, ExampleRecords, is_internal
from modpack.archive.manifest import canonical_json
from modpack.core.allowances import as_allowances
from modpack.core.graph import DependencyGraph
from modpack.core.json_values import require_type
from modpack.core.names import (
    GlobGroup,
    GlobPattern,
    parse_patterns,
    require_module_name,
    resource_record,
)
from modpack.core.plan import Plan
from modpack.core.process import (
    ProgressUnit,
    gc_paused,
    may_show_progress,
    phase,
    stacklevel_outside_package,
)
from modpack.core.rules import Action, Rule
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.scan_cache import cached_scan
from modpack.environment.importers import Importer, OrderedImporter, importer_of, sys_importer
from modpack.errors import ModpackError, ModpackWarning, SelfTestError, with_hint
from modpack.exporting.builder import PackageBuilder
from modpack.exporting.match_hooks import MatchHook, RuleMatch, require_hook
from modpack.exporting.objects import ObjectSaver
from modpack.exporting.origins import ObjectOrigins, as_importer, encode_source, iter_sources
from modpack.exporting.planner import Planner
from modpack.exporting.presets import PRESETS
from modpack.exporting.secret_guard import SecretScan
from modpack.options import (
    DEFAULT_PROTOCOL,
    Preset,
    WeightsPlace,
    is_tested_by_default,
    require_options,
)
from modpack.options import SelfTest as SelfTestChoice
from modpack.writing.writer import ArchiveWriter

if TYPE_CHECKING:
    from modpack.capturing.report import HookReport
    from modpack.core.call_signature import CallSignature
    from modpack.exporting.hook_saver import HookOptions
    from modpack.hooks.choice import HookChoice
    from modpack.selftest.object_rows import Row
    from modpack.selftest.reference import Case

_TESTED = ("dynamic-import", "nested-pickle")
"""Warnings that a passed self-test makes unnecessary."""
MAIN_PACKAGE, MAIN_RESOURCE = "__model__", "model.pkl"


def save(
    obj: object,
    path: str | os.PathLike[str] | BinaryIO,
    *,
    intern: GlobPattern = (),
    extern: GlobPattern = (),
    mock: GlobPattern = (),
    deny: GlobPattern = (),
    preset: Preset = "pinned",
    intern_native: bool = False,
    hooks: HookChoice = True,
    global_hooks: bool = False,
    example_inputs: object = None,
    example_kwargs: object = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    pickle_protocol: int = DEFAULT_PROTOCOL,
    self_test: SelfTestChoice | None = None,
    self_test_device: str | None = None,
    lazy: bool | None = None,
    allow_secrets_in: GlobPattern = (),
    progress: bool | None = None,
    importer: Importer | Sequence[Importer] = sys_importer,
    debug: bool = False,
    optimizer: object = None,
    bundle_loader: bool = False,
    weights: WeightsPlace = "inside",
) -> Plan:
    """Package a model, or any object, with its hooks and the code that it depends on.

    Args:
        obj: The model or object.
        path: Target: a path, or a binary file object open for writing.
        intern: Patterns of modules whose sources are included. Rules apply in the order deny, mock,
            extern, intern; use :class:`PackageExporter` for another order.
        extern: Patterns of modules to import from the loading environment.
        mock: Patterns of modules to replace with mocks.
        deny: Patterns of modules that the package must not need.
        preset: Rules for modules that no pattern matches. ``'pinned'``: installed distributions are
            extern, all other code is interned. ``'hermetic'``: pure-Python distributions are
            interned, too. ``'none'``: such modules are an error.
        intern_native: Whether the ``'hermetic'`` preset interns native extensions. The package then
            loads only on the same platform and Python version.
        hooks: Hooks to capture: True, False, names, or a predicate over HookSpecs.
        global_hooks: Whether to capture process-wide hooks.
        example_inputs: Inputs for the self-test. A tuple contains the positional arguments of one
            call; a mapping of parameter names contains keyword arguments; any other object is the
            only argument.
        example_kwargs: Additional keyword arguments of that call.
        dynamic: Names for the input dimensions that may vary, by argument and dimension:
            ``{'x': {0: 'batch', 1: 'length'}}``. Dimensions with the same name have the same size.
            The self-test finds the batch dimension without this option if all tensors share their
            first dimension.
        pickle_protocol: Pickle protocol, from 2 to 5. torch.package reads 3 and 4.
        self_test: Whether to test the package before it replaces the target: in an interpreter that
            cannot import the interned modules, the object must load and be equal to the live one,
            and compute the same output for example inputs. ``'warn'`` writes a package that fails,
            with a warning. None tests the package, unless the environment variable
            ``MODPACK_SELF_TEST`` is ``0``, or is ``examples`` and there are no example inputs.
        self_test_device: Device on which the self-test runs the example inputs, such as ``'cpu'``.
            By default, tensors are loaded to the devices that they were saved on. Numbers that
            another kind of device computed are compared with the tolerances of
            :func:`torch.testing.assert_close`.
        lazy: Whether to find the imports that can wait until a name is looked up, which lets the
            package start faster. This needs example inputs, a self-test that passes, and at least
            30 modules. None finds them.
        allow_secrets_in: Locations that may contain possible secrets: patterns of module paths, or
            of records if they contain ``/``. A pattern with ``#`` and a fingerprint, as shown in
            the PackagingError, allows only that text.
        progress: Whether to show progress on stderr once the work takes more than a second. None
            shows it in a terminal and in a notebook.
        importer: Importers of objects and modules, in order. The importer of a loaded package is
            added before ``sys_importer`` when an object of that package is saved.
        debug: Whether a PackagingError shows the import chain of each module.
        optimizer: The model's optimizer, which is saved with its own hooks.
        bundle_loader: Whether the package contains a loader: ``python FILE`` then shows, runs, and
            tests it where torch is installed and modpack is not. Such a package has a size limit,
            and torch.package does not read it.
        weights: Where tensors are stored: ``'inside'`` the package, or ``'external'``, in
            safetensors files next to it. Packages in the same folder share these files: tensors
            with equal bytes are stored once.

    Returns:
        The plan of the package.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value.
        PackagingError: If the package cannot be written; the error lists all reasons.
        PicklingError: If something in the object cannot be saved.
        ExampleError: If the live model fails on the example inputs.
        SelfTestError: If the self-test fails. The target is unchanged.
        ModpackError: If the package is too large for a loader. The target is unchanged.
    """
    try:
        require_target(path, "path")
    except TypeError as failure:
        if not isinstance(obj, (str, os.PathLike)):
            raise
        raise TypeError(f"{failure}. The object comes first: save(model, {obj!r})") from None
    require_options(preset=preset, progress=progress, self_test=self_test)
    # The order is that of the rules, of which the first match decides. A bad pattern is found
    # before the exporter opens the target.
    given = {"deny": deny, "mock": mock, "extern": extern, "intern": intern}
    rules = {action: parse_patterns(patterns, action) for action, patterns in given.items()}
    with ExitStack() as stack:
        if may_show_progress(progress):
            from modpack.report.progress import working

            name = path if isinstance(path, (str, os.PathLike)) else "a package"
            stack.enter_context(working(f"Saving {name}", progress))
        if self_test is None:
            # None and not False: MODPACK_SELF_TEST=examples still tests packages with example
            # inputs.
            self_test = is_tested_by_default(False) or None
        if self_test:
            from modpack.selftest.interpreters import prestart

            prestart()  # it imports torch while the object is pickled
        exporter = PackageExporter(
            path,
            importer,
            debug,
            self_test=self_test,
            self_test_device=self_test_device,
            lazy=lazy,
            allow_secrets_in=allow_secrets_in,
            bundle_loader=bundle_loader,
            weights=weights,
        )
        stack.enter_context(exporter)
        for action, patterns in rules.items():
            if patterns:
                getattr(exporter, action)(patterns)
        exporter.use_preset(preset, intern_native=intern_native)
        exporter.save_model(
            MAIN_PACKAGE,
            MAIN_RESOURCE,
            obj,
            optimizer,
            hooks=hooks,
            global_hooks=global_hooks,
            example_inputs=example_inputs,
            example_kwargs=example_kwargs,
            dynamic=dynamic,
            pickle_protocol=pickle_protocol,
        )
        return exporter.close()


class PackageExporter:
    """Writes a package: code, objects with their tensors, and files in one archive.

    The rules of :meth:`intern`, :meth:`extern`, :meth:`mock`, and :meth:`deny` decide every module
    that saved code and objects depend on; the first rule that matches wins. The standard library
    and torch are extern without a rule. The exporter reads sources and does not execute them. The
    target is replaced when the package is complete; if anything fails, the target is unchanged.

    Use the exporter as a context manager. Leaving the block writes the package, unless an
    exception was raised.

    Args:
        f: Target: a path, or a binary file object open for writing. None only plans.
        importer: Importers of objects and modules: one, or several in order; see
            :func:`modpack.save`.
        debug: Whether a :class:`PackagingError` shows the import chain of each module.
        self_test: Whether to test the package before it replaces the target; see
            :func:`modpack.save`. None tests packages with example inputs, unless the environment
            variable ``MODPACK_SELF_TEST`` is ``0``.
        self_test_device: Device on which the self-test runs the example inputs; see
            :func:`modpack.save`.
        lazy: Whether to find the imports that can wait; see :func:`modpack.save`.
        allow_secrets_in: Locations that may contain possible secrets; see :func:`modpack.save`.
        bundle_loader: Whether the package contains a loader; see :func:`modpack.save`.
        weights: Where tensors are stored; see :func:`modpack.save`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value, or external weights have no path.
        TargetError: If the target cannot be written.

    >>> import io
    >>> buffer = io.BytesIO()
    >>> with PackageExporter(buffer) as exporter:
    ...     exporter.save_source_string("greet", "def hello(): return 'hello'")
    ...     exporter.save_text("greet_data", "who.txt", "world")
    >>> len(buffer.getvalue()) > 0
    True
    """

    def __init__(
        self,
        f: str | os.PathLike[str] | BinaryIO | None,
        importer: Importer | Sequence[Importer] = sys_importer,
        debug: bool = False,
        *,
        self_test: SelfTestChoice | None = None,
        self_test_device: str | None = None,
        lazy: bool | None = None,
        allow_secrets_in: GlobPattern = (),
        bundle_loader: bool = False,
        weights: WeightsPlace = "inside",
    ) -> None:
        require_target(f)
        require_options(debug=debug, self_test=self_test, self_test_device=self_test_device)
        require_options(lazy=lazy, bundle_loader=bundle_loader, weights=weights)
        if weights == "external" and not (f is None or isinstance(f, (str, os.PathLike))):
            raise ValueError("weights='external' writes files next to the package: pass a path")
        # All arguments are checked before the writer opens the target.
        secret_scan = SecretScan(as_allowances(allow_secrets_in))
        self.importer = as_importer(importer)
        self.debug = debug
        self._secret_scan = secret_scan
        self._origins = ObjectOrigins(self.importer)
        self._installed = DistributionIndex()
        scan, environments = cached_scan(), self._origins.environments
        self._planner = Planner(environments, self._installed, self, scan)
        self._writer = ArchiveWriter(f)
        self._objects = ObjectSaver(self, self._writer, self._origins, self._planner, secret_scan)
        self._objects.needs_modpack = weights == "external"  # torch.package reads no shards
        self._builder = PackageBuilder(
            self._planner, self._writer, self._objects, self._installed, secret_scan, debug
        )
        self._plans_only = f is None
        self._self_test_device = self_test_device
        self._is_lazy = lazy is not False
        self._has_loader = bundle_loader
        self._has_shards = weights == "external"
        self._compares_objects = bool(self_test)
        self._self_test = is_tested_by_default(True) if self_test is None else self_test
        self._objects_saved: dict[tuple[str, str], tuple[Row, ...]] = {}
        self._roots: list[object] = []
        self._cases: list[Case] = []
        self._example_count = 0
        self._call_signatures: dict[tuple[str, str], CallSignature] = {}
        self._unique_ids = 0
        self._closed = False

    def intern(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Include the sources of matching modules in the package.

        Args:
            include: Patterns of module paths. ``*`` matches within one component, ``**`` matches
                across components.
            exclude: Patterns of modules that the rule does not match.
            allow_empty: Whether the rule may match no module. If False, and it matches none,
                closing raises an error.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If a pattern is not valid.
        """
        self._add_rule(Action.INTERN, include, exclude, allow_empty)

    def extern(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Import matching modules from the loading environment; see :meth:`intern`."""
        self._add_rule(Action.EXTERN, include, exclude, allow_empty)

    def mock(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Replace matching modules with mocks, which raise errors when used; see :meth:`intern`."""
        self._add_rule(Action.MOCK, include, exclude, allow_empty)

    def deny(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Reject a package that needs matching modules; see :meth:`intern`."""
        self._add_rule(Action.DENY, include, exclude, allow_empty)

    def _add_rule(
        self, action: Action, include: GlobPattern, exclude: GlobPattern, allow_empty: bool
    ) -> None:
        self._check_open()
        require_type(allow_empty, bool, "allow_empty", "a bool")
        pattern = GlobGroup(include, exclude=exclude)
        self._planner.add_rule(Rule(action, pattern, allow_empty))

    def use_preset(self, preset: Preset, *, intern_native: bool = False) -> None:
        """Add a preset's rules after all other rules.

        Args:
            preset: ``"pinned"``: installed distributions are extern, all other code is interned.
                ``"hermetic"``: pure-Python distributions are interned, too; the loading
                environment needs only torch and distributions with native code. ``"none"``: no
                rules.
            intern_native: Whether ``"hermetic"`` interns native extensions. The package then loads
                only on the same platform and Python version.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If there is no such preset.
        """
        self._check_open()
        require_options(preset=preset, intern_native=intern_native)
        self._planner.use_presets(PRESETS[preset], intern_native)

    def register_intern_hook(self, hook: MatchHook) -> Any:
        """Register a hook that is called for each module when an intern rule decides it.

        Args:
            hook: ``hook(exporter, module_name)``. If it returns None, the decision stays. If it
                returns an :class:`modpack.Action`, that overrides the decision. If it raises an
                exception, the plan has a problem for that module.

        Returns:
            A :class:`torch.utils.hooks.RemovableHandle`.

        Raises:
            TypeError: If the hook does not accept these arguments.
        """
        return self._register(Action.INTERN, hook)

    def register_extern_hook(self, hook: MatchHook) -> Any:
        """Register a hook for extern rules, including implicit ones.

        See :meth:`register_intern_hook`.
        """
        return self._register(Action.EXTERN, hook)

    def register_mock_hook(self, hook: MatchHook) -> Any:
        """Register a hook for mock rules; see :meth:`register_intern_hook`."""
        return self._register(Action.MOCK, hook)

    def register_deny_hook(self, hook: MatchHook) -> Any:
        """Register a hook for deny rules; see :meth:`register_intern_hook`."""
        return self._register(Action.DENY, hook)

    def _register(self, action: Action, hook: MatchHook) -> Any:
        from torch.utils.hooks import RemovableHandle

        self._check_open()
        require_hook(hook)
        hooks = self._planner.hooks.by_action[action]
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    @property
    def current_match(self) -> RuleMatch | None:
        """The module that a match hook is called for, its rule, and its importers."""
        return self._planner.hooks.current

    def save_module(self, module_name: str, dependencies: bool = True) -> None:
        """Intern a module regardless of the rules. The module is not imported.

        Args:
            module_name: Path of the module, or the name in ``sys.modules`` of a module from a
                loaded package.
            dependencies: Whether to follow its imports.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``module_name`` is not a module path.
        """
        self._check_module(module_name, dependencies)
        self._planner.add_module(self._own_name(module_name), dependencies)

    def add_dependency(self, module_name: str, dependencies: bool = True) -> None:
        """Let the rules decide a module, as if a saved object or saved code needed it.

        Args:
            module_name: Path of the module, as for :meth:`save_module`.
            dependencies: Whether to follow its imports if it is interned.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``module_name`` is not a module path.
        """
        self._check_module(module_name, dependencies)
        self._planner.add_dependency(self._own_name(module_name), dependencies)

    def treat_as_script(self, module_name: str) -> None:
        """Treat a module like the running script.

        Call this for a module that has side effects when it is imported. For objects saved after
        this call, the package does not include the module itself. It includes a new module that
        contains only the classes and functions that the objects need, and the definitions that
        those use.

        Args:
            module_name: Path of the module.

        Raises:
            TypeError: If ``module_name`` is not a string.
            ValueError: If ``module_name`` is not a module path.
        """
        self._check_open()
        self._objects.scripts.add(require_module_name(module_name))

    def save_source_file(
        self, module_name: str, file_or_directory: str | os.PathLike[str], dependencies: bool = True
    ) -> None:
        """Intern a source file as a module, or all ``.py`` files below a folder as a package.

        Args:
            module_name: Module path of the file, or of the folder.
            file_or_directory: The file or folder.
            dependencies: Whether to follow their imports.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``module_name`` is not a module path.
            FileNotFoundError: If the file or folder does not exist.
        """
        self._check_module(module_name, dependencies)
        require_type(file_or_directory, (str, os.PathLike), "file_or_directory", "a path")
        for module, file, is_package in iter_sources(module_name, Path(file_or_directory)):
            self._planner.package_data.given[module] = file.absolute()
            self._planner.add_source(module, file.read_bytes(), is_package, dependencies)

    def save_source_string(
        self, module_name: str, src: str, is_package: bool = False, dependencies: bool = True
    ) -> None:
        """Intern a module from a string.

        Args:
            module_name: Path of the module.
            src: Source of the module. An encoding declaration (PEP 263) sets its stored encoding.
            is_package: Whether the source is a package's ``__init__``.
            dependencies: Whether to follow its imports.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``module_name`` is not a module path.
        """
        self._check_module(module_name, dependencies)
        require_type(src, str, "src", "source text (str)")
        require_type(is_package, bool, "is_package", "a bool")
        self._planner.add_source(module_name, encode_source(src), is_package, dependencies)

    def save_pickle(
        self,
        package: str,
        resource: str,
        obj: object,
        dependencies: bool = True,
        pickle_protocol: int = DEFAULT_PROTOCOL,
    ) -> None:
        """Save an object. Its tensors are written immediately.

        Args:
            package: Python package of the resource (``"model"``).
            resource: Name of the resource (``"model.pkl"``).
            obj: The object.
            dependencies: Whether to follow the classes and functions that it refers to.
            pickle_protocol: Pickle protocol, from 2 to 5. torch.package reads 3 and 4.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument has an invalid value.
            PicklingError: If something in the object cannot be saved; the error lists the attribute
                paths. Also an ObjNotFoundError if a class or function is not found under its name,
                or an ObjMismatchError if that name leads to another object.
            ObjMismatchError: If the package would contain two versions of one library.
        """
        compares = self._compares_objects
        self._save(package, resource, obj, dependencies, pickle_protocol, None, compares)

    def save_model(
        self,
        package: str,
        resource: str,
        model: object,
        optimizer: object = None,
        *,
        hooks: HookChoice = True,
        global_hooks: bool = False,
        example_inputs: object = None,
        example_kwargs: object = None,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        pickle_protocol: int = DEFAULT_PROTOCOL,
        dependencies: bool = True,
    ) -> None:
        """Save a model with its hooks, and its optimizer if given.

        With example inputs, the model runs on them once after it is saved, in its current mode
        and with its current gradient setting. Afterwards, the attributes, hooks, tensors,
        gradients, and random states of all Python objects that belong to it are as they were.
        Files, and objects implemented in C, are not restored. Inputs and output are stored in the
        package. Closing the exporter runs the self-test with them, and :func:`modpack.self_test`
        can repeat it.

        Hooks that can be imported are stored by name, others by their source. They are pickled in
        one graph with the model, so that shared objects stay shared. For a
        DistributedDataParallel wrapper, the wrapped module is saved with the wrapper's comm hook;
        :func:`modpack.hooks.restore_comm_hook` registers that hook on a new wrapper.

        Args:
            package: Python package of the resource.
            resource: Name of the resource.
            model: The model.
            optimizer: Its optimizer. ``load_model(..., with_optimizer=True)`` returns it.
            hooks: Hooks to capture: True, False, names, or a predicate over HookSpecs.
            global_hooks: Whether to capture process-wide hooks.
            example_inputs: Inputs for the self-test. A tuple contains the positional arguments of
                one call; a mapping of parameter names contains keyword arguments; any other object
                is the only argument.
            example_kwargs: Additional keyword arguments of that call.
            dynamic: Names for the input dimensions that may vary; see :func:`modpack.save`.
            pickle_protocol: Pickle protocol, from 2 to 5. torch.package reads 3 and 4.
            dependencies: Whether to follow the classes and functions that the model refers to.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument has an invalid value, or a choice of hooks contains an
                unknown name.
            PicklingError: If something cannot be saved; the error lists the attribute paths.
            ExampleError: If the live model fails on the example inputs.
        """
        require_options(global_hooks=global_hooks, dynamic=dynamic, pickle_protocol=pickle_protocol)
        extras = {}
        if optimizer is not None:
            from torch.optim import Optimizer

            require_type(optimizer, Optimizer, "optimizer", "a torch.optim.Optimizer")
            extras["optimizer"] = optimizer
        with gc_paused():
            from modpack.exporting.hook_saver import HookOptions

        # Before the save: an invalid example is an error while nothing has been written.
        target = (package, resource)
        example = described = None
        if example_inputs is not None or example_kwargs is not None:
            from modpack.selftest.reference import as_example

            example = as_example(model, example_inputs, example_kwargs)
        if example is not None:
            from modpack.selftest.call_description import describe_call

            described = describe_call(target, model, example, dynamic)
        elif dynamic is not None:
            raise ValueError("dynamic requires example_inputs. Pass both.")
        chosen = HookOptions(hooks, global_hooks, extras)
        # Counted before the save, so that the tensors of this object are among the later ones.
        restore = partial(self._objects.restore_tensors, self._objects.generation)
        compares = self._compares_objects or bool(example and self._self_test)
        self._save(package, resource, model, dependencies, pickle_protocol, chosen, compares)
        if described is None or example is None:
            return
        self._call_signatures[target] = described
        if not self._self_test:
            return
        records = ExampleRecords(self._example_count)
        self._example_count += 1
        # The classes of the arguments are included like the model's.
        edges = self._objects.save(records.inputs, (example.args, example.kwargs), pickle_protocol)
        self._planner.add_resource(f"<{records.inputs}>", edges, follow=True)
        if not self._plans_only:
            from modpack.selftest.reference import Case, record_case

            # The model runs only now: its values are in the file, from which they can be restored.
            case = Case(target, records, model, example, global_hooks, restore, described)
            self._cases.append(record_case(self._writer, case))

    def save_text(self, package: str, resource: str, text: str) -> None:
        """Save text in UTF-8 as a resource of a Python package.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``package`` or ``resource`` is not a valid name.
        """
        require_type(text, str, "text", "a str")
        self.save_binary(package, resource, text.encode())

    def save_binary(self, package: str, resource: str, binary: bytes) -> None:
        """Save bytes as a resource of a Python package.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``package`` or ``resource`` is not a valid name.
        """
        self._check_open()
        record = _record_of(package, resource)
        require_type(binary, (bytes, bytearray, memoryview), "binary", "bytes")
        data = bytes(binary)
        self._writer.write(record, data)
        self._secret_scan.scan_resource(record, data)
        self._planner.add_folder(record)

    def hook_report(self) -> HookReport:
        """Return the status of every hook found so far; see :class:`modpack.HookStatus`."""
        from modpack.capturing.report import HookReport

        return HookReport(tuple(self._objects.hook_statuses))

    def plan(self) -> Plan:
        """Return the current plan: all decisions, problems, and warnings.

        Does not write the package, and does not raise errors for problems.
        """
        return self._builder.preview()

    def interned_modules(self) -> list[str]:
        """Return the modules that are interned so far, sorted."""
        return self._decided(Action.INTERN)

    def externed_modules(self) -> list[str]:
        """Return the modules that are externed so far, sorted."""
        return self._decided(Action.EXTERN)

    def mocked_modules(self) -> list[str]:
        """Return the modules that are mocked so far, sorted."""
        return self._decided(Action.MOCK)

    def denied_modules(self) -> list[str]:
        """Return the modules that are denied so far, sorted."""
        return self._decided(Action.DENY)

    def _decided(self, action: Action) -> list[str]:
        decisions = self._planner.decisions()
        return sorted(module for module, d in decisions.items() if d.action is action)

    def get_rdeps(self, module_name: str) -> list[str]:
        """Return the dependents of a module: modules, and resources as ``<package/resource>``."""
        require_type(module_name, str, "module_name", "a module path")
        return list(self._settled_graph().predecessors(module_name))

    def all_paths(self, src: str, dst: str) -> str:
        """Return all import chains from one node to another, in the DOT language.

        Takes time linear in the size of the graph, even with cycles.

        Args:
            src: Start of the chains: a module path, or a resource as ``<package/resource>``.
            dst: End of the chains.
        """
        require_type(src, str, "src", "a module path")
        require_type(dst, str, "dst", "a module path")
        return self._settled_graph().between(src, dst).to_dot()

    def dependency_graph_string(self) -> str:
        """Return the whole dependency graph in the DOT language."""
        return self._settled_graph().to_dot()

    def _settled_graph(self) -> DependencyGraph:
        self._planner.decisions()
        return self._planner.walker.graph

    def get_unique_id(self) -> str:
        """Return a number, as text, that no other call on this exporter returns."""
        self._unique_ids += 1
        return str(self._unique_ids - 1)

    def close(self) -> Plan:
        """Write the package and replace the target.

        Returns:
            The plan of the package.

        Raises:
            PackagingError: If the plan has problems; the error lists all of them. The target is
                unchanged.
            EmptyMatchError: If the only problem is a rule with ``allow_empty=False``.
            TargetError: If the target cannot be written. It is unchanged.
            SelfTestError: If the self-test fails. The target is unchanged.
        """
        self._check_open()
        self._closed = True
        try:
            # Each package that is tested is written from here on, and rolled back for the next one.
            self._builder.start = self._writer.checkpoint()
            plan = self._builder.plan()
            # A passed self-test shows that dynamically imported modules are available.
            tested = _TESTED if self._cases else ()
            _warn(note for note in plan.warnings() if note.code not in tested)
            if self._plans_only:
                return plan
            if self._cases or self._objects_saved:
                try:
                    plan = self._write_tested(plan)
                except SelfTestError:
                    _warn(note for note in plan.warnings() if note.code in tested)
                    raise
            else:
                self._builder.write(plan, self._namespace(plan))
            _warn(_setting_warnings(self._builder.torch_settings))
            # Last, because the self-test finds the dimensions that may vary.
            if self._call_signatures:
                from modpack.core.call_signature import call_signatures_to_json

                document = call_signatures_to_json(self._call_signatures.values())
                self._writer.write(CALL_SIGNATURE, canonical_json(document), compress=True)
            if self._has_shards:
                from modpack.writing.shards import commit_with_shards

                commit_with_shards(self._writer, self._commit)
            else:
                self._commit(self._writer)
            return plan
        finally:
            self._writer.discard()

    def _commit(self, writer: ArchiveWriter) -> None:
        if self._has_loader:
            from modpack.writing.loader import write_loader

            write_loader(writer)
        writer.commit()

    def _write_tested(self, plan: Plan) -> Plan:
        """Write the package, run the self-test, and return the plan with its additions."""
        from modpack.exporting.collecting import Collector
        from modpack.selftest.judge import Judge

        judge = Judge(self._cases, self._objects_saved, self._roots, self._self_test_device)
        importer, namespace = OrderedImporter(*self._origins.importers), self._namespace(plan)
        collector = Collector(
            self._builder, plan, judge, self._roots, importer, namespace, self._is_lazy
        )
        tested, warnings = collector.run(write_anyway=self._self_test == "warn")
        self._call_signatures.update({c.resource: c for c in judge.call_signatures})
        new = (note for note in tested.warnings() if note not in plan.notes)
        _warn(note for note in new if note.code not in _TESTED)
        _warn(warnings)
        return tested

    def _describe_saved(self) -> tuple[Row, ...]:
        """Describe the object that was saved last, as it is now."""
        from modpack.selftest.object_state import DescriptionOptions, describe_object

        saved = self._objects.last
        assert saved is not None
        hooks = {each.name for each in saved.hooks if each.status not in ("captured", "native")}
        options = DescriptionOptions(self._objects.scripts.names, hooks.__contains__)
        self._roots.append(saved.root)
        return describe_object(saved.root, saved.extras, options)

    def _namespace(self, plan: Plan) -> str:
        """Return the namespace that pickles and re-exported packages require."""
        required = (getattr(i, "_recommended_namespace", None) for i in self._origins.importers)
        is_process = "process" in required or self._objects.needs_process_namespace(plan)
        return "process" if is_process else "private"

    def __enter__(self) -> PackageExporter:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            if not self._closed:
                self.close()
            return
        self._closed = True
        self._writer.discard()

    def _check_open(self) -> None:
        if self._closed:
            raise ModpackError("this PackageExporter is closed", hint="Create a new one.")

    def _check_module(self, module_name: str, dependencies: bool) -> None:
        self._check_open()
        require_module_name(module_name)
        require_type(dependencies, bool, "dependencies", "a bool")

    def _save(
        self,
        package: str,
        resource: str,
        obj: object,
        dependencies: bool,
        pickle_protocol: int,
        hooks: HookOptions | None,
        compares: bool,
    ) -> None:
        self._check_open()
        record = _record_of(package, resource)
        require_type(dependencies, bool, "dependencies", "a bool")
        require_type(pickle_protocol, int, "pickle_protocol", "an int from 2 to 5")
        if pickle_protocol not in range(2, 6):
            raise ValueError(f"pickle_protocol must be 2, 3, 4, or 5, not {pickle_protocol!r}")
        with phase(f"saving {record}", ProgressUnit.BYTES, is_major=True):
            edges = self._objects.save(record, obj, pickle_protocol, hooks, dependencies)
        self._objects.add_to_index(package, resource, main=hooks is not None)
        self._planner.add_folder(record)
        self._planner.add_resource(f"<{record}>", edges, dependencies)
        if "torch" in sys.modules:
            from modpack.loading.torch_settings import changed_settings

            self._builder.torch_settings.update(changed_settings())
        # Not on close, because the script may change the object until then.
        if compares and not self._plans_only:
            self._objects_saved[package, resource] = self._describe_saved()

    def _own_name(self, module_name: str) -> str:
        """Return the path of a module, which may be given by its name in ``sys.modules``."""
        live = sys.modules.get(module_name)
        if live is None or importer_of(live) is None:
            return module_name
        local = self._objects.module_name(live)
        self._origins.pin(self._planner.walker)
        return local


def _setting_warnings(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if the saved objects may depend on settings of this process."""
    if settings:
        from modpack.loading.torch_settings import statements_for

        shown = ", ".join(f"{name} {value or 'none'}" for name, value in settings.items())
        yield with_hint(
            f"this process has settings of torch that its defaults do not have, and the model may "
            f"compute something else without them: {shown}",
            "Processes that load the package are told about differences. Set them there, too: "
            f"{statements_for(settings)}",
        )


def require_target(f: object, argument: str = "f") -> None:
    """Check that an argument is a target: a path, a file object, or None.

    Args:
        f: The argument's value.
        argument: The argument's name.

    Raises:
        TypeError: If it is none of these.
    """
    if f is not None and not isinstance(f, (str, os.PathLike)) and not hasattr(f, "write"):
        raise TypeError(
            f"{argument} must be a path, a binary file object, or None, not {type(f).__name__}"
        )


def _record_of(package: object, resource: object) -> str:
    record = resource_record(package, resource)
    if is_internal(record):
        raise ValueError(f"resource {record!r} is a reserved name of the archive format")
    return record


def _warn(messages: Iterable[object]) -> None:
    """Emit warnings that point to the user's line that called modpack."""
    for message in messages:
        warnings.warn(str(message), ModpackWarning, stacklevel=stacklevel_outside_package())
