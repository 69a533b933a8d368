"""The exporter: gather, plan, write.

:class:`PackageExporter` has torch.package's names. It collects what the user saves, lets the
planner decide every module that this leads to, and carries out the plan when it is closed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from modpack.archive.layout import is_internal
from modpack.archive.writer import ArchiveWriter
from modpack.core.graph import DependencyGraph
from modpack.core.json_values import require_type
from modpack.core.names import (
    GlobGroup,
    GlobPattern,
    as_allowances,
    require_module_name,
    resource_record,
)
from modpack.core.plan import Plan
from modpack.core.process import ProgressUnit, gc_paused, phase, stacklevel_outside_package
from modpack.core.rules import Action, Rule
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.importers import Importer, importer_of, sys_importer
from modpack.discovery.scan_cache import cached_scan
from modpack.errors import ModpackError, ModpackWarning, SelfTestError
from modpack.exporting.builder import PackageBuilder
from modpack.exporting.match_hooks import MatchHook, RuleMatch, require_hook
from modpack.exporting.objects import DEFAULT_PROTOCOL, ObjectSaver
from modpack.exporting.origins import ObjectOrigins, as_importer, encode_source, iter_sources
from modpack.exporting.planner import Planner
from modpack.exporting.presets import preset_rules
from modpack.exporting.secret_guard import SecretScan

if TYPE_CHECKING:
    from modpack.exporting.hook_saver import HookOptions
    from modpack.hooks.describe import HookChoice
    from modpack.hooks.report import HookReport
    from modpack.selftest.reference import Case, Example, ExampleSaver

_TRIED_OUT = ("dynamic-import", "nested-pickle", "registered-outside")
"""Hazards that a self-test looks into."""


class PackageExporter:
    """Writes a package: code, objects with their tensors, and files, in one archive.

    Every module that saved code or objects lead to is matched against the rules given with
    :meth:`intern`, :meth:`extern`, :meth:`mock` and :meth:`deny`: the first that matches
    decides. The standard library and torch are extern without a rule. Deciding reads source
    texts and executes nothing. Nothing appears under the target's name before everything has
    succeeded; if anything fails, the target stays exactly as it was.

    Use it as a context manager; leaving it writes the package, unless by an exception.

    Args:
        f: where to write: a path, or a binary file object open for writing. None plans only:
            nothing is ever written.
        importer: where objects and modules come from: an importer, or several in order
            (``[old_package, sys_importer]`` to save again what was loaded from a package).
        debug: whether a :class:`PackagingError` shows how each module is reached.
        self_test: whether a package with example inputs is tried before it is put in its place: in
            an interpreter that cannot see what the package interns, it must load and compute
            what the live model did. ``"warn"`` writes a package that fails as well, with a
            warning; False runs nothing.
        allow_secrets_in: where something may be that looks like a secret: patterns of module paths,
            or, with a ``/`` in them, of records; with ``#`` and a fingerprint behind it, as the
            :class:`PackagingError` shows it, only that text.

    Raises:
        TypeError, ValueError: an argument is none of these.
        TargetError: the target cannot be written.

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
        self_test: bool | str = True,
        allow_secrets_in: GlobPattern = (),
    ) -> None:
        require_target(f)
        require_type(self_test, (bool, str), "self_test", "True, False or 'warn'")
        if isinstance(self_test, str) and self_test != "warn":
            raise ValueError(f"self-test must be True, False or 'warn', not {self_test!r}")
        require_type(debug, bool, "debug", "a bool")
        guard = SecretScan(as_allowances(allow_secrets_in))
        self.importer = as_importer(importer)
        self.debug = debug
        self._secret_scan = guard
        self._origins = ObjectOrigins(self.importer)
        self._installed = DistributionIndex()
        scan, environments = cached_scan(), self._origins.environments
        self._planner = Planner(environments, self._installed, self, scan)
        self._writer = ArchiveWriter(f)
        self._objects = ObjectSaver(self, self._writer, self._origins, self._planner, guard)
        self._builder = PackageBuilder(
            self._planner, self._writer, self._objects, self._installed, guard, debug
        )
        self._plans_only = f is None
        self._self_test = self_test
        self._examples: ExampleSaver | None = None
        self._unique_ids = 0
        self._closed = False

    def intern(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Take the source of matching modules along.

        Args:
            include: module path patterns: ``*`` within one component, ``**`` across.
            exclude: patterns for modules that do not match after all.
            allow_empty: if False, closing raises when no module matched.

        Raises:
            TypeError, ValueError: a pattern is none.
        """
        self._add_rule(Action.INTERN, include, exclude, allow_empty)

    def extern(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Import matching modules from where the package is loaded; see :meth:`intern`."""
        self._add_rule(Action.EXTERN, include, exclude, allow_empty)

    def mock(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Replace matching modules by stand-ins that fail when really used; see :meth:`intern`."""
        self._add_rule(Action.MOCK, include, exclude, allow_empty)

    def deny(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Refuse to write a package that needs matching modules; see :meth:`intern`."""
        self._add_rule(Action.DENY, include, exclude, allow_empty)

    def _add_rule(
        self, action: Action, include: GlobPattern, exclude: GlobPattern, allow_empty: bool
    ) -> None:
        self._check_open()
        require_type(allow_empty, bool, "allow_empty", "a bool")
        pattern = GlobGroup(include, exclude=exclude)
        self._planner.add_rule(Rule(action, pattern, allow_empty))

    def use_preset(self, preset: str, *, intern_native: bool = False) -> None:
        """Add a preset's rules behind all rules of one's own.

        Args:
            preset: ``"pinned"``: installed distributions are extern, all other code is
                interned; ``"hermetic"``: pure-Python distributions are interned too, so that
                only torch and what has compiled code must be installed where the package is
                loaded; ``"none"``: no rules.
            intern_native: whether hermetic takes compiled modules along as well. The package
                then loads on the same platform and Python only.

        Raises:
            ValueError: there is no such preset.
        """
        self._check_open()
        require_type(preset, str, "preset", "a preset's name")
        require_type(intern_native, bool, "intern_native", "a bool")
        self._planner.use_presets(preset_rules(preset), intern_native)

    def register_intern_hook(self, hook: MatchHook) -> Any:
        """Call a hook for each module that matches an intern rule, when it is decided.

        Args:
            hook: ``hook(exporter, module_name)``. Returning None keeps the decision, returning
                a :class:`modpack.Action` overrides it, raising refuses the module, which is
                reported with all other problems.

        Returns:
            A :class:`torch.utils.hooks.RemovableHandle`.

        Raises:
            TypeError: the hook cannot be called like that.
        """
        return self._register(Action.INTERN, hook)

    def register_extern_hook(self, hook: MatchHook) -> Any:
        """Like :meth:`register_intern_hook`, for extern rules, implicit ones included."""
        return self._register(Action.EXTERN, hook)

    def register_mock_hook(self, hook: MatchHook) -> Any:
        """Like :meth:`register_intern_hook`, for mock rules."""
        return self._register(Action.MOCK, hook)

    def register_deny_hook(self, hook: MatchHook) -> Any:
        """Like :meth:`register_intern_hook`, for deny rules."""
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
        """From inside a hook: the module, the rule that matched, and who imports it."""
        return self._planner.hooks.current

    def save_module(self, module_name: str, dependencies: bool = True) -> None:
        """Intern a module, whatever the rules say. It is found and read, not imported.

        Args:
            module_name: its path; or the name that a module of a loaded package has in
                ``sys.modules``.
            dependencies: whether to follow what it imports.

        Raises:
            TypeError, ValueError: it is no module path.
            ObjNotFoundError: If it was loaded from a package whose importer is not listed.
        """
        self._check_module(module_name, dependencies)
        self._planner.add_module(self._own_name(module_name), dependencies)

    def add_dependency(self, module_name: str, dependencies: bool = True) -> None:
        """Let the rules decide a module, as if a saved object or saved code needed it.

        Args:
            module_name: its path, as for :meth:`save_module`.
            dependencies: whether to follow its imports, if it is interned.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If ``module_name`` is not a module path.
            ObjNotFoundError: If it was loaded from a package whose importer is not listed.
        """
        self._check_module(module_name, dependencies)
        self._planner.add_dependency(self._own_name(module_name), dependencies)

    def treat_as_script(self, module_name: str) -> None:
        """Treat a module like the script that runs.

        Of what objects need from it, saved from now on, only the definitions are taken: classes
        and functions, and what those use, as a module of their own. The module itself, with the
        work that it does when it is imported, stays behind.

        Args:
            module_name: its path.

        Raises:
            TypeError, ValueError: it is no module path.
        """
        self._check_open()
        self._objects.scripts.add(require_module_name(module_name))

    def save_source_file(
        self, module_name: str, file_or_directory: str | os.PathLike[str], dependencies: bool = True
    ) -> None:
        """Intern a source file under a module path, or all ``.py`` files below a folder.

        Args:
            module_name: the module path of the file, or of the folder.
            file_or_directory: the file or folder.
            dependencies: whether to follow what they import.

        Raises:
            TypeError, ValueError: ``module_name`` is no module path.
            FileNotFoundError: there is no such file.
        """
        self._check_module(module_name, dependencies)
        require_type(file_or_directory, (str, os.PathLike), "file_or_directory", "a path")
        for module, file, is_package in iter_sources(module_name, Path(file_or_directory)):
            self._planner.package_data.given[module] = file.absolute()
            self._planner.add_source(module, file.read_bytes(), is_package, dependencies)

    def save_source_string(
        self, module_name: str, src: str, is_package: bool = False, dependencies: bool = True
    ) -> None:
        """Intern a module whose source is given.

        Args:
            module_name: its path.
            src: its source. A coding cookie in it (PEP 263) says how it is stored.
            is_package: whether it is a package's ``__init__``.
            dependencies: whether to follow what it imports.

        Raises:
            TypeError, ValueError: an argument is of the wrong type, or no module path.
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
        """Save an object. Its tensors are written at once, as they are now.

        Args:
            package: the package that the resource belongs to (``"model"``).
            resource: its name (``"model.pkl"``).
            obj: the object.
            dependencies: whether to follow the classes and functions that it refers to.
            pickle_protocol: 2 to 5; torch.package reads 3 by default, and 4.

        Raises:
            TypeError, ValueError: a name or the protocol is none.
            PicklingError: something in the object cannot be saved. Names all such things, each by
                its attribute path. It is an ObjNotFoundError or ObjMismatchError too where a class
                or function is not what its name leads to.
            ObjMismatchError: two versions of one library would have to go into the package.
        """
        self._save(package, resource, obj, dependencies, pickle_protocol, None)

    def save_model(
        self,
        package: str,
        resource: str,
        model: object,
        optimizer: object = None,
        *,
        hooks: HookChoice = True,
        global_hooks: bool = False,
        reset_hook_state: HookChoice = False,
        dependencies: bool = True,
        pickle_protocol: int = DEFAULT_PROTOCOL,
        example_inputs: object = None,
        example_kwargs: object = None,
    ) -> None:
        """Save a model with its hooks, and its optimizer if given.

        With example inputs, the model is run on them once, after it was saved and as it stands:
        in training or evaluation mode, with or without gradients. Its parameters, its buffers and
        the random states are put back afterwards; what its code or its hooks collect elsewhere
        stays. Inputs and output are stored in the package, which is tried with them on closing
        and can be tried again with :func:`modpack.self_test`.

        Hooks that can be imported are stored by their names, others by their source. They are
        pickled in one graph with the model: what they share stays shared. Of a
        DistributedDataParallel wrapper the module inside is saved, with the wrapper's comm hook;
        :func:`modpack.hooks.restore_comm_hook` registers that on a new wrapper.

        Args:
            package: the package that the resource belongs to.
            resource: its name.
            model: the model.
            optimizer: its optimizer; ``load_model(..., with_optimizer=True)`` gives it back.
            hooks: which hooks to capture: True, False, names, or a predicate over specs.
            global_hooks: whether to capture the hooks of the whole process as well.
            reset_hook_state: whether to leave behind what hooks have collected: True, False, names,
                or a predicate over specs. The lists, dicts, sets and deques among their closure
                variables, attributes and bound arguments are saved empty. The live ones stay.
            dependencies: whether to follow the classes and functions that it refers to.
            pickle_protocol: 2 to 5.
            example_inputs: what to call the model with: a tuple holds the positional arguments,
                a mapping with names of arguments the arguments by name, anything else is the
                one argument.
            example_kwargs: further arguments by name.

        Raises:
            TypeError, ValueError: an argument is none of these, or no hook has a name.
            PicklingError: something cannot be saved; named by its attribute path.
            ExampleError: the live model does not run on the example inputs.
        """
        with gc_paused():
            from modpack.exporting.hook_saver import HookOptions
            from modpack.hooks.model_parts import extra_roots, require_optimizer

        require_type(global_hooks, bool, "global_hooks", "a bool")
        require_optimizer(optimizer)
        example = self._example(model, example_inputs, example_kwargs)
        options = HookOptions(hooks, global_hooks, extra_roots(optimizer), reset_hook_state)
        since = self._objects.generation
        self._save(package, resource, model, dependencies, pickle_protocol, options)
        if example is None:
            return
        if self._examples is None:
            from modpack.selftest.reference import ExampleSaver

            self._examples = ExampleSaver(self._objects, self._writer, self._planner)
        records = self._examples.save_arguments(example, pickle_protocol)
        if not self._plans_only:
            place = (package, resource)
            self._examples.record(records, place, model, example, since, global_hooks)

    def save_text(self, package: str, resource: str, text: str) -> None:
        """Save text, in UTF-8, as a resource of a package.

        Raises:
            TypeError, ValueError: an argument is of the wrong type, or no name.
        """
        require_type(text, str, "text", "a str")
        self.save_binary(package, resource, text.encode())

    def save_binary(self, package: str, resource: str, binary: bytes) -> None:
        """Save bytes as a resource of a package.

        Raises:
            TypeError, ValueError: an argument is of the wrong type, or no name.
        """
        self._check_open()
        record = _record_of(package, resource)
        require_type(binary, (bytes, bytearray, memoryview), "binary", "bytes")
        data = bytes(binary)
        self._writer.write(record, data)
        self._secret_scan.scan_resource(record, data)
        self._planner.add_folder(record)

    def hook_report(self) -> HookReport:
        """Return the fate of every hook met so far: captured, native, or left out."""
        from modpack.hooks.report import HookReport

        return HookReport(tuple(self._objects.hook_statuses))

    def plan(self) -> Plan:
        """Every decision, and all problems and notes at once, for what was saved so far.

        Writes nothing and raises nothing for problems.
        """
        return self._builder.preview()

    def interned_modules(self) -> list[str]:
        """The modules that are interned by now, sorted."""
        return self._decided(Action.INTERN)

    def externed_modules(self) -> list[str]:
        """The modules that are externed by now, sorted."""
        return self._decided(Action.EXTERN)

    def mocked_modules(self) -> list[str]:
        """The modules that are mocked by now, sorted."""
        return self._decided(Action.MOCK)

    def denied_modules(self) -> list[str]:
        """The modules that are denied by now, sorted."""
        return self._decided(Action.DENY)

    def _decided(self, action: Action) -> list[str]:
        decisions = self._planner.decisions()
        return sorted(module for module, d in decisions.items() if d.action is action)

    def get_rdeps(self, module_name: str) -> list[str]:
        """Who depends on a module: modules, and resources as ``<package/resource>``."""
        require_type(module_name, str, "module_name", "a module path")
        return list(self._settled_graph().predecessors(module_name))

    def all_paths(self, src: str, dst: str) -> str:
        """All chains of imports from one node to another, in the DOT language.

        Linear in the size of the graph, cycles included.

        Args:
            src: where they start: a module path, or a resource as ``<package/resource>``.
            dst: where they end.
        """
        require_type(src, str, "src", "a module path")
        require_type(dst, str, "dst", "a module path")
        return self._settled_graph().between(src, dst).to_dot()

    def dependency_graph_string(self) -> str:
        """The whole dependency graph in the DOT language."""
        return self._settled_graph().to_dot()

    def _settled_graph(self) -> DependencyGraph:
        self._planner.decisions()
        return self._planner.walker.graph

    def get_unique_id(self) -> str:
        """A number that no other call on this exporter returned, as text."""
        self._unique_ids += 1
        return str(self._unique_ids - 1)

    def close(self) -> Plan:
        """Carry out the plan and put the package in its place.

        Returns:
            The plan that was carried out.

        Raises:
            PackagingError: there are problems; all are told at once. Nothing is written.
            EmptyMatchError: the only problem is a rule with ``allow_empty=False``.
            TargetError: the target cannot be written; it is as it was.
            SelfTestError: the package was tried and failed; the target is as it was.
        """
        self._check_open()
        self._closed = True
        try:
            cases = self._examples.cases if self._examples is not None else ()
            self._builder.set_checkpoint()
            plan = self._builder.plan()
            # A self-test that passes shows that what is imported by computed names is there.
            tried_out = _TRIED_OUT if cases and not self._plans_only else ()
            _warn(note for note in plan.warnings() if note.code not in tried_out)
            if self._plans_only:
                return plan
            if cases:
                try:
                    plan = self._tried(plan, cases)
                except SelfTestError:
                    _warn(note for note in plan.warnings() if note.code in tried_out)
                    raise
            else:
                self._builder.write(plan, self._namespace(plan))
            self._writer.commit()
            return plan
        finally:
            self._writer.discard()

    def _tried(self, plan: Plan, cases: Sequence[Case]) -> Plan:
        """Write the package as its self-test shows that it must be."""
        from modpack.selftest.rounds import SelfTest

        planner, installed, scripts = self._planner, self._installed, self._objects.scripts.files
        self_test = SelfTest(self._writer, plan, cases, self._builder, planner, installed, scripts)
        tried, told = self_test.run(write_anyway=self._self_test == "warn")
        new = (note for note in tried.warnings() if note not in plan.notes)
        _warn(note for note in new if note.code not in _TRIED_OUT)
        _warn(told)
        return tried

    def _namespace(self, plan: Plan) -> str:
        """The namespace in which the package works, as far as pickles tell.

        What the packages that are saved again need, this one needs.
        """
        named = (getattr(i, "recommended_namespace", None) for i in self._origins.importers)
        is_process = "process" in named or self._objects.needs_process_namespace(plan)
        return "process" if is_process else "private"

    def __enter__(self) -> PackageExporter:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            if not self._closed:
                self.close()
            return
        self._closed = True
        self._writer.discard()

    def _check_open(self) -> None:
        if self._closed:
            raise ModpackError("this PackageExporter is closed; make a new one")

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
    ) -> None:
        self._check_open()
        record = _record_of(package, resource)
        require_type(dependencies, bool, "dependencies", "a bool")
        require_type(pickle_protocol, int, "pickle_protocol", "a number from 2 to 5")
        if pickle_protocol not in range(2, 6):
            raise ValueError(f"pickle_protocol must be 2, 3, 4 or 5, not {pickle_protocol!r}")
        with phase(f"saving {record}", ProgressUnit.BYTES, is_major=True):
            edges = self._objects.save(record, obj, pickle_protocol, hooks, dependencies)
        self._objects.add_to_index(package, resource, main=hooks is not None)
        self._planner.add_folder(record)
        self._planner.add_resource(f"<{record}>", edges, dependencies)

    def _own_name(self, module_name: str) -> str:
        """The path of a module that may be given by its name in ``sys.modules``."""
        live = sys.modules.get(module_name)
        if live is None or importer_of(live) is None:
            return module_name
        local = self._objects.module_name(live)
        self._origins.pin(self._planner.walker)
        return local

    def _example(self, model: object, inputs: object, kwargs: object) -> Example | None:
        """The example to try the model with, if one was given and is wanted."""
        if inputs is None and kwargs is None:
            return None
        from modpack.selftest.reference import as_example

        example = as_example(model, inputs, kwargs)
        return example if self._self_test else None


def require_target(f: object, argument: str = "f") -> None:
    """Refuse what cannot be written to.

    Args:
        f: where to write.
        argument: what the caller calls it.

    Raises:
        TypeError: it is no path, no file object, and not None.
    """
    if f is not None and not isinstance(f, (str, os.PathLike)) and not hasattr(f, "write"):
        raise TypeError(
            f"{argument} must be a path, a binary file object, or None, not {type(f).__name__}"
        )


def _record_of(package: object, resource: object) -> str:
    record = resource_record(package, resource)
    if is_internal(record):
        raise ValueError(f"resource {record!r} is a name that the archive format needs itself")
    return record


def _warn(messages: Iterable[object]) -> None:
    """Warn the user at the line of their code that called modpack."""
    for message in messages:
        warnings.warn(str(message), ModpackWarning, stacklevel=stacklevel_outside_package())
