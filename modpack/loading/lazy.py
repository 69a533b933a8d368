"""Imports of packaged modules that wait until a name is looked up, as in PEP 810.

CPython looks a name up in a function's globals and then in its builtins. If these are a *subclass*
of dict, it calls ``__missing__`` for a name that is in neither. The builtins of a module whose
imports wait therefore import and bind the real object when a name is read for the first time, from
a function, a class body, or :func:`eval`. There are no proxies, and reading a bound name costs what
it always costs. From outside, the module's class does the same in ``__getattr__``.

The alternatives were to rewrite each use of a name, which changes code that debuggers and
torch.compile see, and proxy objects, which fail in ``isinstance``, ``except``, and torch.compile.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from modpack.archive.records import read_waiting
from modpack.core.names import PACKAGES, is_within, root_of
from modpack.environment.importers import module_dict
from modpack.loading.extern_submodules import SubmoduleHook, promise
from modpack.loading.waiting_imports import ANNOTATE_NAME, COMPILER_NAME, DEFER_NAME

if TYPE_CHECKING:
    from modpack.archive.base import Archive
    from modpack.core.selftest import WaitingImports
    from modpack.loading.namespace import Namespace

_log = logging.getLogger(__name__)
_FRAME: Final = "<import that waited>"
"""The function in tracebacks of a waiting import."""
_CONTEXT: Final = ("__name__", "__package__", "__path__", "__spec__", "__modpack__", "__file__")
"""Globals that an import statement, or an error in it, reads."""
_RAW_READERS: Final = frozenset(
    {
        "_frozen_importlib",
        "_frozen_importlib_external",
        "dataclasses",
        "importlib",
        "importlib._bootstrap",
        "importlib._bootstrap_external",
    }
)
"""Modules that read a module's ``__dict__`` to look up single names that are never imported."""
_EVALUATORS: Final = frozenset({"annotationlib", "inspect", "typing"})
"""Modules that evaluate annotations with a module's ``__dict__``."""
_raw_dict: Callable[[ModuleType], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__


class Waiting(NamedTuple):
    """An import that has not been executed.

    Attributes:
        module: The module in the import statement.
        level: The number of leading dots.
        attribute: The imported name, or ``""`` for ``import module``.
        line: The line of the statement.
        probe: The source of the ``try`` around the statement, which waits as a whole; or ``""``.
    """

    module: str
    level: int
    attribute: str
    line: int
    probe: str = ""

    def compile(self, name: str, file: str) -> CodeType:
        """Return the statement as code that binds a name."""
        statement: ast.stmt
        if self.probe:
            (statement,) = ast.parse(self.probe).body
        elif self.attribute:
            alias = ast.alias(self.attribute, name)
            statement = ast.ImportFrom(self.module or None, [alias], self.level)
        else:
            statement = ast.Import([ast.alias(self.module, name)])
        # All nodes on the line of the statement, which tracebacks then show.
        for node in ast.walk(statement):
            if "lineno" in node._attributes:
                place = {"lineno": self.line, "col_offset": 0}
                vars(node).update(place, end_lineno=self.line, end_col_offset=0)
        tree = ast.fix_missing_locations(ast.Module([statement], []))
        # Otherwise, the ``__future__`` imports of this file would apply.
        code: CodeType = compile(tree, file, "exec", dont_inherit=True)
        return code.replace(co_name=_FRAME)

    def __str__(self) -> str:
        if not self.attribute:
            return f"import {self.module}"
        return f"from {'.' * self.level}{self.module} import {self.attribute}"


class LazyPlan(NamedTuple):
    """Which imports of a package may wait.

    Attributes:
        waiting: For each module that the self-test loaded, the names that were still waiting at its
            end. Other modules were not needed: all of their imports may wait.
        loaded: Packaged modules that an eager run has loaded; None if that is not known.
        companions: For packaged modules, others that are imported with them. The key is empty for
            modules outside the package.
    """

    waiting: Mapping[str, frozenset[str]] = MappingProxyType({})
    loaded: frozenset[str] | None = None
    companions: Mapping[str, frozenset[str]] = MappingProxyType({})


NO_PLAN: Final = LazyPlan()
"""The plan without a self-test: all imports may wait."""


def read_plan(archive: Archive) -> LazyPlan:
    """Return the plan that a package records, or :data:`NO_PLAN`.

    Raises:
        ArchiveError: If the record is damaged.
    """
    record = read_waiting(archive)
    return NO_PLAN if record is None else plan_of(record)


def plan_of(record: WaitingImports) -> LazyPlan:
    """Return a plan in the form that an import looks up."""
    companions: dict[str, set[str]] = {}
    for module, companion in record.companions:
        companions.setdefault(module, set()).add(companion)
    return LazyPlan(
        {module: frozenset(names) for module, names in record.modules.items()},
        frozenset(record.loaded),
        {module: frozenset(each) for module, each in companions.items()},
    )


class LazyImports:
    """The waiting imports of one namespace.

    Args:
        namespace: The namespace.
        plan: Which imports may wait.

    Attributes:
        failed: The modules whose waiting imports have failed.
    """

    def __init__(self, namespace: Namespace, plan: LazyPlan) -> None:
        self.plan = plan
        self.namespace = namespace
        self.failed: set[str] = set()
        self._modules: dict[str, ModuleBuiltins] = {}
        self._unsettled: list[ModuleBuiltins] = []
        self._found: set[str] = set()
        self._companions = set(plan.companions.get("", ()))
        self._hooks: list[SubmoduleHook] = []
        self.is_over = False

    def make_module(self, name: str, local: str, is_package: bool) -> ModuleType:
        """Return a new module, whose imports can wait unless the plan says that none does."""
        self._companions.update(self.plan.companions.get(local, ()))
        chosen = self.plan.waiting.get(local)
        # A Python package stays lazy for its submodules, which an eager run makes its attributes.
        if self.is_over or (chosen is not None and not chosen and not is_package):
            return ModuleType(name)
        module = LazyModule(name)
        holder = ModuleBuiltins(self, module, local)
        _raw_dict(module)["__builtins__"] = holder
        self._modules[name] = holder
        self._unsettled.append(holder)
        return module

    def settle(self) -> None:
        """Make modules ordinary in which nothing waits, and import companions.

        Called at the end of an import, when no module is partially initialized.
        """
        index = self.namespace.finder.index
        while self._companions:
            # The same order in all processes: entries of tables are in the order of these imports.
            name = min(self._companions)
            self._companions.remove(name)
            if name not in index.entries and self.namespace.full_name(name) not in sys.modules:
                hook = promise(name)
                if hook is not None:
                    self._hooks.append(hook)
                    continue
            self.namespace.load(name)
        unsettled, self._unsettled = self._unsettled, []
        for holder in unsettled:
            if not holder.waiting:
                holder.settle()

    def waiting(self) -> Iterator[tuple[str, str, Waiting]]:
        """Yield path, name, and import of everything that waits."""
        for holder in list(self._modules.values()):
            for name, entry in list(holder.waiting.items()):
                yield holder.local, name, entry

    def forget(self, holder: ModuleBuiltins) -> None:
        """Remove a module in which nothing waits."""
        self._modules.pop(holder.name, None)

    def resolve_all(self) -> list[Exception]:
        """Execute everything that waits, also in modules that this loads.

        Returns:
            The errors of imports that fail. These imports still wait.
        """
        failures: list[Exception] = []
        # Each import may load modules in which others wait. A round that changes nothing ends it.
        while self._modules:
            before = list(self._modules)
            for name in before:
                if name not in sys.modules:  # the import of the module itself has failed
                    self._modules.pop(name, None)
                elif name in self._modules:
                    failures += self._modules[name].resolve_each()
            if before == list(self._modules):
                break
        return failures

    def end(self) -> list[Exception]:
        """Execute everything that waits, and defer nothing from now on.

        Returns:
            The errors of imports that fail. Each will be raised when its name is used.
        """
        # First, so that nothing waits in the modules that these imports load.
        self.is_over = True
        failures = self.resolve_all()
        for hook in self._hooks:
            try:
                hook.keep()
            except Exception as failure:  # raised again when the attribute is read
                failures.append(failure)
        for each in failures:
            _log.info("an import that waited fails: %s", each)
        # Python packages, too, which have kept their class until now.
        self._unsettled = list(self._modules.values())
        self.settle()
        return failures

    def may_wait(self, holder: ModuleBuiltins, name: str, entry: Waiting) -> bool:
        """Return whether an import that is reached may wait."""
        chosen = self.plan.waiting.get(holder.local)
        if self.is_over or (chosen is not None and name not in chosen):
            return False
        target = holder.absolute(entry)
        index = self.namespace.finder.index
        if not target or root_of(target) == "modpack" or index.is_untrusted(target):
            return False  # the import itself raises the error
        path = _raw_dict(holder.module).get("__path__")
        if path is not None and index.find(f"{holder.local}.{name}") is not None:
            # Importing the submodule binds the same name, at a time that only Python's order gives.
            return (entry.module, entry.level, entry.attribute) == ("", 1, name)
        # A name of a loaded module is bound at once: waiting would save nothing.
        loaded = sys.modules.get(self.namespace.full_name(target))
        if loaded is None:
            return self._exists(target)
        return bool(entry.attribute) and entry.attribute not in module_dict(loaded)

    def _exists(self, target: str) -> bool:
        """Return whether a library can be found: a missing one is reported when it is loaded."""
        root = root_of(target)
        if root in self._found or root in self.namespace.finder.index.roots:
            return True
        # Only the top level: to find a submodule, Python imports its parents.
        if root not in sys.modules and importlib.util.find_spec(root) is None:
            return False
        self._found.add(root)
        return True

    def submodule(self, package: ModuleBuiltins, name: str) -> ModuleType | None:
        """Import a submodule that an eager run would have loaded; None if there is none."""
        local = f"{package.local}.{name}"
        loaded, index = self.plan.loaded, self.namespace.finder.index
        entry = index.entries.get(local)
        if entry is None or not entry.is_code or (loaded is not None and local not in loaded):
            return None
        if self.namespace.full_name(local) in sys.modules:  # being imported: no attribute yet
            return None
        found: ModuleType = self.namespace.load(local)
        return found


class ModuleBuiltins(dict[str, Any]):
    """The builtins of one module, which import the names that wait in it.

    Args:
        imports: The waiting imports of the namespace.
        module: The module.
        local: Its path, as packaged code writes it.
    """

    def __init__(self, imports: LazyImports, module: ModuleType, local: str) -> None:
        # A copy for each module: `__missing__` gets a name, but not the module that reads it.
        super().__init__(imports.namespace.builtins)
        self.imports = imports
        self.module = module
        self.local = local
        self.name = module.__name__
        self.waiting: dict[str, Waiting] = {}
        self._resolving: set[tuple[str, int]] = set()
        own = {DEFER_NAME: self.defer, ANNOTATE_NAME: self.annotate, "globals": self.globals}
        self.update(own)

    def __missing__(self, name: str) -> Any:
        names = _raw_dict(self.module)
        if name in self.waiting:
            return self.resolve(name)
        if name in names:  # another thread has just bound it
            return names[name]
        return vars(builtins)[name]  # added since the module was created

    def __reduce__(self) -> Any:
        raise TypeError("the builtins of a packaged module cannot be pickled")

    def defer(
        self,
        targets: tuple[tuple[str, str, int, str], ...],
        line: int,
        has_hook: bool,
        flags: tuple[str, ...] = (),
        probe: str = "",
    ) -> bool:
        """Note an import statement, or return True if it has to be executed where it is.

        Args:
            targets: For each name that the statement binds, the module in the statement, the number
                of leading dots, and the attribute, or ``""`` for ``import module``.
            line: The line of the statement.
            has_hook: Whether the module defines ``__getattr__``.
            flags: Names that a ``try`` binds otherwise.
            probe: The source of the ``try``.
        """
        entries = {
            name: Waiting(module, level, attribute, line, probe)
            for name, module, level, attribute in targets
        }
        entries.update(dict.fromkeys(flags, next(iter(entries.values()))))
        if probe:  # which of two statements binds a name depends on what can be imported
            for name in self.waiting.keys() & entries.keys():
                self.resolve(name)
        names = _raw_dict(self.module)
        # CPython asks `__missing__` only for names that neither dict has.
        is_bound = any(name in names or name in self for name in entries)
        if is_bound or not all(self.imports.may_wait(self, *each) for each in entries.items()):
            # The statement runs now. An earlier one of the name must not replace its object later.
            for name in entries:
                self.waiting.pop(name, None)
            return True
        self.waiting.update(entries)
        # Python asks the module's own `__getattr__` before that of its class.
        if has_hook:
            self.module.__class__ = HookedLazyModule
        return False

    def annotate(
        self,
        order: tuple[str, ...],
        thunks: Mapping[str, Callable[[], Any]],
        names: tuple[str, ...],
    ) -> Callable[[Any], Any]:
        """Return a decorator that sets annotations, now or when they are read."""
        return partial(annotate, order, thunks, not self.waiting.keys().isdisjoint(names))

    def globals(self) -> dict[str, Any]:
        """Return all names of the module, for its code (:func:`globals`)."""
        self.resolve_all()
        return _raw_dict(self.module)

    def absolute(self, entry: Waiting) -> str:
        """Return the module of an import as an absolute path of packaged code; empty if none."""
        if not entry.level:
            return entry.module
        package = str(_raw_dict(self.module).get("__package__") or "")
        parts = self.imports.namespace.local_name(package).split(".")
        if entry.level > len(parts):
            return ""
        base = parts[: len(parts) - entry.level + 1]
        return ".".join([*base, *([entry.module] if entry.module else [])])

    def is_resolving(self, name: str) -> bool:
        """Return whether this thread is importing a name, which therefore does not exist yet."""
        return (name, threading.get_ident()) in self._resolving

    def resolve(self, name: str) -> Any:
        """Execute a waiting import and bind the object.

        Raises:
            KeyError: If this thread is already importing the name, or a ``try`` does not bind it.
            ImportError: If the import fails.
        """
        names, entry = _raw_dict(self.module), self.waiting.get(name)
        # A circular import: Python would not have bound the name yet, either.
        if self.is_resolving(name):
            raise KeyError(name)
        if entry is None or name in names:  # another thread was first, or the module has bound it
            self.waiting.pop(name, None)
            return names[name]
        # All names of a try wait for the same statement.
        bound = [name]
        if entry.probe:
            bound = [n for n, e in self.waiting.items() if (e.line, e.probe) == entry[3:]]
        keys = {(each, threading.get_ident()) for each in bound}
        self._resolving |= keys
        try:
            scope = self._execute(name, entry)
        except Exception:
            self.imports.failed.add(self.local)
            raise
        finally:
            self._resolving -= keys
        for each in bound:
            # First bound, then removed: other threads find one or the other.
            if each in scope:
                names.setdefault(each, scope[each])
            self.waiting.pop(each, None)
        if not self.waiting:
            self.settle()
        return names[name]

    def resolve_all(self) -> None:
        """Execute all imports that wait in this module, except those that this thread executes.

        Raises:
            ImportError: If an import fails.
        """
        for name in list(self.waiting):
            if not self.is_resolving(name):
                self._resolve_if_bound(name)

    def resolve_each(self) -> list[Exception]:
        """Execute all imports that wait in this module; return the errors of those that fail."""
        failures: list[Exception] = []
        for name in list(self.waiting):
            if not self.is_resolving(name):
                try:
                    self._resolve_if_bound(name)
                except Exception as failure:  # raised again when the name is used
                    failures.append(failure)
        return failures

    def _resolve_if_bound(self, name: str) -> None:
        with suppress(KeyError):  # an import has failed, which its try ignores
            self.resolve(name)

    def settle(self) -> None:
        """Make the module an ordinary one, unless its code is still running.

        A Python package stays as it is, because its submodules may be its attributes.
        """
        names = _raw_dict(self.module)
        is_running = getattr(names.get("__spec__"), "_initializing", False)
        if is_running or ("__path__" in names and not self.imports.is_over):
            return
        if issubclass(type(self.module), LazyModule):
            self.module.__class__ = ModuleType
        if names.get("__builtins__") is self:
            names["__builtins__"] = self.imports.namespace.builtins
        self.imports.forget(self)

    def _execute(self, name: str, entry: Waiting) -> dict[str, Any]:
        names = _raw_dict(self.module)
        # A scope of its own, so that an import that fails leaves nothing in the module.
        scope: dict[str, Any] = {each: names[each] for each in _CONTEXT if each in names}
        scope["__builtins__"] = self
        code = entry.compile(name, str(names.get("__file__")))
        try:
            exec(code, scope)
        except (AttributeError, LookupError) as failure:
            # Python would take them for the answer that the name does not exist.
            text = f"{_waited(entry, self.local)}: {type(failure).__name__}: {failure}"
            raise ImportError(text, name=entry.module) from failure
        except Exception as failure:
            if hasattr(failure, "add_note"):  # Python 3.11
                failure.add_note(f"This import waited: {_waited(entry, self.local)}")
            raise
        return scope


def _waited(entry: Waiting, module: str) -> str:
    return f"{entry} in {module}, line {entry.line}, until the name was used"


class LazyModule(ModuleType):
    """A module with imports that wait. Its class is ModuleType again when none is left."""

    def __getattr__(self, name: str) -> Any:
        holder = _holder(self)
        if holder is not None and not holder.is_resolving(name):
            if name in holder.waiting:
                with suppress(KeyError):  # a try does not bind the name
                    return holder.resolve(name)
            # Another thread has just bound it.
            if name in _raw_dict(self):
                return _raw_dict(self)[name]
            if "__path__" in _raw_dict(self) and not name.startswith("__"):
                found = holder.imports.submodule(holder, name)
                if found is not None:
                    return found
        return ModuleType.__getattribute__(self, name)  # raises Python's error

    def __setattr__(self, name: str, value: object) -> None:
        holder = _holder(self)
        # First set, then removed: other threads find one or the other.
        super().__setattr__(name, value)
        if holder is not None:
            holder.waiting.pop(name, None)

    def __delattr__(self, name: str) -> None:
        holder = _holder(self)
        if holder is not None and name in holder.waiting:
            with suppress(KeyError):
                holder.resolve(name)
        super().__delattr__(name)

    def __dir__(self) -> list[str]:
        hook = _raw_dict(self).get("__dir__")
        if hook is not None:
            return list(hook())
        holder = _holder(self)
        return [*_raw_dict(self), *(holder.waiting if holder is not None else ())]

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The module's names, for which all imports are executed unless single names are read."""
        names, holder = _raw_dict(self), _holder(self)
        # CPython looks names up in the dict itself. Only code such as ``vars(module)`` gets here.
        reader = str(sys._getframe(1).f_globals.get("__name__"))
        is_own = is_within(reader, "modpack") and not is_within(reader, PACKAGES)
        if holder is None or is_own or reader in _RAW_READERS:
            return names
        if reader in _EVALUATORS:
            return _EvaluationScope(names, holder)
        holder.resolve_all()
        return names


class HookedLazyModule(LazyModule):
    """A lazy module that defines ``__getattr__``, which is not called for names that wait."""

    def __getattribute__(self, name: str) -> Any:
        names = _raw_dict(self)
        if name not in names:
            holder = _holder(self)
            if holder is not None and name in holder.waiting and not holder.is_resolving(name):
                with suppress(KeyError):
                    return holder.resolve(name)
        return super().__getattribute__(name)


for _kind in (LazyModule, HookedLazyModule):
    _kind.__name__ = _kind.__qualname__ = "module"
    _kind.__module__ = "builtins"


def _holder(module: ModuleType) -> ModuleBuiltins | None:
    found = _raw_dict(module).get("__builtins__")
    return found if isinstance(found, ModuleBuiltins) else None


class _EvaluationScope(dict[str, Any]):
    """A copy of a module's names, which imports only those that an annotation reads."""

    def __init__(self, names: Mapping[str, Any], holder: ModuleBuiltins) -> None:
        super().__init__(names)
        self._holder = holder

    def __missing__(self, name: str) -> Any:
        self[name] = self._holder.resolve(name)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a name's value, which is imported if it waits (:meth:`dict.get`)."""
        try:
            return self[name]
        except KeyError:
            return default


def annotate(
    order: tuple[str, ...], thunks: Mapping[str, Callable[[], Any]], is_waiting: bool, function: Any
) -> Any:
    """Set the annotations of a function; evaluate them later if one names something that waits."""
    evaluate = partial(_evaluated, order, function.__annotations__, thunks)
    function.__annotations__ = _Annotations(evaluate) if is_waiting else evaluate()
    return function


def _evaluated(
    order: tuple[str, ...], known: Mapping[str, Any], thunks: Mapping[str, Callable[[], Any]]
) -> dict[str, Any]:
    return {key: thunks[key]() if key in thunks else known[key] for key in order}


class _Annotations(dict[str, Any]):
    """The annotations of a function, evaluated when they are read for the first time."""

    def __init__(self, evaluate: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._evaluate: Callable[[], dict[str, Any]] | None = evaluate

    def _fill(self) -> dict[str, Any]:
        evaluate = self._evaluate
        if evaluate is not None:
            found = evaluate()
            if self._evaluate is not None:  # otherwise, another thread was faster
                dict.update(self, found)
                self._evaluate = None
        return self

    def __reduce__(self) -> Any:
        # An ordinary dict, because the functions in this one cannot be pickled.
        return dict, (dict(self._fill()),)


def _filling(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def filled(self: _Annotations, *arguments: Any, **options: Any) -> Any:
        return method(self._fill(), *arguments, **options)

    filled.__name__ = name
    return filled


for _name in (
    *("__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__"),
    *("__ne__", "__or__", "__repr__", "__reversed__", "__ror__", "__setitem__", "clear", "copy"),
    *("get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"),
):
    setattr(_Annotations, _name, _filling(_name))


def eager_names() -> dict[str, Any]:
    """Return the builtins that compiled code needs in a module in which no import waits."""

    def defer(*entry: object) -> bool:
        return True

    def annotate_now(
        order: tuple[str, ...], thunks: Mapping[str, Callable[[], Any]], names: tuple[str, ...]
    ) -> Callable[[Any], Any]:
        return partial(annotate, order, thunks, False)

    from modpack.loading.lazy_compiler import decorate

    return {DEFER_NAME: defer, ANNOTATE_NAME: annotate_now, COMPILER_NAME: decorate}
