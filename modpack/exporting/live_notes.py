"""Notes about modules that do not hold here what their sources define: what is packaged differs.

Functions of extern modules that other code has replaced here: the package would use the first.

A module may well hold functions of others, which it has imported. So what it holds is compared with
where that is from, and, if it is from elsewhere, with what the module's own source imports.

What modules outside of a package registered in packaged ones, by being imported.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.machinery import SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any, Final

from modpack.core.graph import CodeKind, Location
from modpack.core.names import root_of
from modpack.core.plan import Note, NoteKind, Plan
from modpack.core.rules import Action, Owner
from modpack.core.scan import Defined, ImportKind, Setting
from modpack.discovery.finder import is_a
from modpack.discovery.importers import contents_of
from modpack.discovery.walk import Walker
from modpack.exporting.edited_sources import is_awake
from modpack.exporting.live_state import Deviation, LiveModule, shown
from modpack.exporting.presets import InstalledOwnership

_SHOWN = 4


def live_notes(plan: Plan, walker: Walker, told: Container[str]) -> Iterator[Note]:
    """A note for each interned module that holds something else here than its source defines.

    A note is a warning if something from outside made it so: then the package does something else
    than the object that is saved. State that the module's own code makes while it runs is told
    without one.

    Args:
        plan: which modules are interned, and where they are.
        walker: has their sources.
        told: modules of which is known that their files have changed since.
    """
    package = _Package(plan, walker)
    for module in package.modules:
        location = plan.decisions[module].location
        if location is None or module in told:
            continue
        live = _running(location)
        if not live:
            continue
        defined = walker.scan(module).defined
        file = location.file if type(live.get("__loader__")) is SourceFileLoader else None
        is_plain = type(sys.modules.get(module)) is ModuleType
        found = list(LiveModule(live, defined, file, package, is_plain).deviations())
        if found:
            yield from _notes(module, location.file, found, package)


def _running(location: Location) -> Mapping[str, object]:
    """What a module holds that runs here and comes from a place; nothing if none does."""
    module = sys.modules.get(location.module)
    if location.kind is not CodeKind.SOURCE or not is_awake(module):
        return {}
    live = contents_of(module)
    return live if location.file in (live.get("__file__"), _loaded_from(live)) else {}


def _loaded_from(live: Mapping[str, object]) -> object:
    """The file that a module's loader read, where that is another than its spec said."""
    return contents_of(live.get("__loader__")).get("path")


def _notes(
    module: str, file: str | None, found: Sequence[Deviation], package: _Package
) -> Iterator[Note]:
    theirs, own = [], []
    for each in found:
        when = package.when(module, each)
        if when is Setting.ON_REQUEST:
            theirs.append(each)
        elif when is Setting.RUNNING:
            own.append(each)
    if theirs:
        text = (
            f"{module} does not hold here what its source says: {_listed(theirs)}. The package "
            f"does what the source says. {_remedy(module, theirs)}"
        )
        yield Note(NoteKind.LIVE_CHANGED, module, text, f"{file}:{theirs[0].line}")
    if own:
        text = (
            f"code of {module} has changed while it ran: {_listed(own)}. In the package it begins "
            "as its source says"
        )
        yield Note(NoteKind.LIVE_STATE, module, text, f"{file}:{own[0].line}")


def _listed(found: Sequence[Deviation]) -> str:
    parts = [f"{each.path} (line {each.line}) {each.what}" for each in found[:_SHOWN]]
    if len(found) > _SHOWN:
        parts.append(f"{len(found) - _SHOWN} more")
    *first, last = parts
    return f"{'; '.join(first)}; and {last}" if first else last


def _remedy(module: str, found: Sequence[Deviation]) -> str:
    return (
        "Change it in the source, or set it in a module that the model's code imports; "
        f"PackageExporter.only_definitions({module!r}) takes what is here"
    )


class _Package(Mapping[str, Defined]):
    """What the sources of all interned modules define; and what that does by itself."""

    def __init__(self, plan: Plan, walker: Walker) -> None:
        self.modules = plan.modules(Action.INTERN)
        self._decisions = plan.decisions
        self._walker = walker

    def __getitem__(self, module: str) -> Defined:
        if module not in self._known:
            raise KeyError(module)
        return self._walker.scan(module).defined

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.modules)

    def when(self, module: str, found: Deviation) -> Setting:
        """When a name came to deviate: if code of the package does so anyway, if it ran, or else.

        A function that no module of the package has was never set by the package's own code.
        """
        if found.home and found.home not in self._decisions:
            return Setting.ON_REQUEST
        if self[module].is_dynamic or self._comes_by_star(module, found):
            return Setting.AT_IMPORT
        name = found.path.rpartition(".")[2]
        when = {*self._settings.get(f".{name}", ())}
        setters = {*self._setters.get(f".{name}", ())}
        if not found.is_attribute:
            when |= {self[module].settings[n] for n in (name,) if n in self[module].settings}
            setters |= {f for f, names in self[module].setters.items() if name in names}
        setters |= self._setters.get("*", set()) & set(self[module].called)
        if setters & self._called or Setting.AT_IMPORT in when:
            return Setting.AT_IMPORT if found.home else Setting.RUNNING
        if found.is_own:
            when.add(Setting.RUNNING)
        return Setting.RUNNING if when == {Setting.RUNNING} else Setting.ON_REQUEST

    @cached_property
    def _settings(self) -> Mapping[str, set[int]]:
        """For attributes, when code of the package sets them."""
        found: dict[str, set[int]] = {}
        for defined in self.values():
            for name, when in defined.settings.items():
                found.setdefault(name, set()).add(when)
        return found

    @cached_property
    def _setters(self) -> Mapping[str, set[str]]:
        """For attributes, the functions of the package that set them."""
        found: dict[str, set[str]] = {}
        for defined in self.values():
            for function, names in defined.setters.items():
                for name in names:
                    found.setdefault(name, set()).add(function)
        return found

    @cached_property
    def _called(self) -> frozenset[str]:
        return frozenset(name for defined in self.values() for name in defined.called)

    def _comes_by_star(self, module: str, found: Deviation) -> bool:
        """Whether a name stands for what a star import gives."""
        if found.is_attribute:
            return False
        here = contents_of(sys.modules.get(module)).get(found.path)
        for statement in self._walker.scan(module).imports:
            if statement.names == ("*",) and statement.kind is not ImportKind.TYPE_CHECKING:
                there = contents_of(sys.modules.get(statement.module))
                if found.path in there and there[found.path] is here:
                    return True
        return False


_STANDARD: Final = sys.stdlib_module_names


def extern_notes(plan: Plan, walker: Walker) -> Iterator[Note]:
    """A note for each extern function that was replaced here and that packaged code uses.

    Args:
        plan: which modules are extern, and which classes saved objects have.
        walker: has the sources of those that are interned, and reads others.
    """
    kinds = list(_classes(plan))
    for module, live in _modules(plan, kinds):
        values = list(live.values())
        before = _UNCHANGED.get(module, ())
        if len(before) == len(values) and all(map(operator.is_, before, values)):
            continue
        own = True
        for name, function in _foreign(live, root_of(module)):
            if _is_packaged(_home(function), plan):
                own = False  # what replaces it is in the package, and replaces it there as well
                continue
            is_imported = _imports(walker, module, function)
            own = own and is_imported
            if not is_imported and _is_used(name, plan, walker, kinds):
                yield _note(f"{module}.{name}", function)
        if own:
            _UNCHANGED[module] = values
    for each in dict.fromkeys(each for kind in kinds for each in kind.__mro__[:-1]):
        home = each.__module__
        if _is_packaged(home, plan) or root_of(home) in _STANDARD:
            continue
        for name, function in _foreign(vars(each), root_of(home)):
            if not _imports(walker, home, function) and not _is_packaged(_home(function), plan):
                yield _note(f"{home}.{each.__qualname__}.{name}", function)


def _foreign(names: Mapping[str, Any], root: str) -> Iterator[tuple[str, FunctionType]]:
    """The functions that are neither of a library nor of the standard library, nor generated."""
    others = [
        (name, value)
        for name, value in list(names.items())
        if type(value) is FunctionType and value.__globals__ is not names
    ]
    for name, function in others:
        home = _home(function)
        if home.startswith(root) and root_of(home) == root:
            continue
        if root_of(home) not in _STANDARD and home in sys.modules:  # others are generated
            yield name, function


def _home(function: FunctionType) -> str:
    return str(function.__globals__.get("__name__"))


def _modules(plan: Plan, kinds: Iterable[type]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Extern modules, and those whose functions the extern modules among a model's parts call."""
    wanted = dict.fromkeys(plan.modules(Action.EXTERN))
    for each in dict.fromkeys(each for kind in kinds for each in kind.__mro__[:-1]):
        forward = vars(each).get("forward")
        if type(forward) is FunctionType:
            used = map(forward.__globals__.get, forward.__code__.co_names)
            called = (contents_of(found) for found in used if type(found) is ModuleType)
            wanted.update(dict.fromkeys(str(names.get("__name__")) for names in called))
    for module in wanted:
        live = sys.modules.get(module)
        if root_of(module) not in _STANDARD and not _is_packaged(module, plan) and is_awake(live):
            yield module, contents_of(live)


def _is_packaged(module: str, plan: Plan) -> bool:
    decision = plan.decisions.get(module)
    return decision is not None and decision.action is not Action.EXTERN


def _classes(plan: Plan) -> Iterator[type]:
    """The classes that pickles name."""
    for node in plan.graph.nodes():
        if not node.startswith("<"):
            continue
        for module in plan.graph.successors(node):
            live = contents_of(sys.modules.get(module))
            for edge in plan.graph.edges_between(node, module):
                found = (live.get(name) for name in edge.names)
                yield from (each for each in found if is_a(each, type))


_UNCHANGED: dict[str, list[Any]] = {}
"""What modules held when nothing in them was replaced: torch holds two thousand names."""


def _imports(walker: Walker, module: str, function: FunctionType) -> bool:
    """Whether a module's source, or that of its package, imports from where a function is."""
    root = root_of(str(function.__globals__.get("__name__")))
    if (module, root) not in _IMPORTED:
        scans = (walker.scan(each) for each in (module, root_of(module)))
        imported = (statement.module for scan in scans for statement in scan.imports)
        _IMPORTED[module, root] = any(root_of(each) == root for each in imported)
    return _IMPORTED[module, root]


_IMPORTED: dict[tuple[str, str], bool] = {}
"""Whether loaded extern modules import from others: reading torch's takes longer than a save."""


def _is_used(name: str, plan: Plan, walker: Walker, kinds: list[type]) -> bool:
    """Whether interned code has a word for a function, or a method of a saved object calls it."""
    word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
    for module in plan.modules(Action.INTERN):
        if walker.has_source(module) and word.search(walker.source(module)):
            return True
    return any(
        type(method) is FunctionType and name in method.__code__.co_names
        for kind in kinds
        for each in kind.__mro__[:-1]
        for method in vars(each).values()
    )


def _note(path: str, function: FunctionType) -> Note:
    text = (
        f"{path} was replaced here by {shown(function)}. It is extern: where the package is "
        "loaded, packaged code uses the one that is installed there. Call the other one in your "
        "own code, or replace it in a module that the model's code imports"
    )
    return Note(NoteKind.EXTERN_PATCHED, path, text)


_SCRIPTS = ("__main__", "__mp_main__")
_MOST_ENTRIES = 10_000
"""Of one container: a larger one is data."""
_MOST_NAMES = 4


def registered_notes(plan: Plan, walker: Walker, ownership: InstalledOwnership) -> Iterator[Note]:
    """Return a note for each module of one's own that fills a registry, and is left out.

    Looks at functions and classes in the containers of live packaged modules. Runs nothing.

    Args:
        plan: What the package will contain.
        walker: Knows where modules are.
        ownership: Knows what is installed here.
    """
    found: dict[str, dict[str, None]] = {}
    for module in plan.modules(Action.INTERN):
        for holder, entry in _entries(module):
            home = getattr(entry, "__module__", None)
            if isinstance(home, str) and home != module and home not in plan.decisions:
                found.setdefault(home, {})[f"{entry.__name__} in {module}.{holder}"] = None
    for home, entries in found.items():
        if _is_own(home, walker, ownership):
            yield _registered_note(home, list(entries))


def _entries(module: str) -> Iterator[tuple[str, type | FunctionType]]:
    """The functions and classes in a live module's containers, and what these are called."""
    for name, value in list(contents_of(sys.modules.get(module)).items()):
        for path, container in _containers(module, name, value):
            for entry in _values(container):
                if is_a(entry, (type, FunctionType)):
                    yield path, entry


def _containers(module: str, name: str, value: object) -> Iterator[tuple[str, object]]:
    """A container that a module binds, or those of a class or an object that it binds."""
    yield name, value
    kind = value if is_a(value, type) else type(value)
    if type.__getattribute__(kind, "__module__") == module:
        for attribute, inner in list(contents_of(value).items()):
            yield f"{name}.{attribute}", inner


def _values(container: object) -> Sequence[object]:
    """The elements of a plain container; a class of one's own might run code when asked."""
    if is_a(container, dict):
        values = list(dict.values(container))
    elif type(container) in (list, tuple, set):
        values = list(container)  # type: ignore[call-overload]
    else:
        return ()
    return values if len(values) <= _MOST_ENTRIES else ()


def _is_own(module: str, walker: Walker, ownership: InstalledOwnership) -> bool:
    if module in _SCRIPTS or module not in sys.modules or _is_test(module):
        return False
    location = walker.locate(module)
    if location is None or location.file is None:
        return False
    return ownership.owner(module, location) is Owner.LOCAL


def _is_test(module: str) -> bool:
    parts = module.split(".")
    return any(part in ("tests", "test", "conftest") or part[:5] == "test_" for part in parts)


def _registered_note(module: str, entries: Sequence[str]) -> Note:
    more = len(entries) - _MOST_NAMES
    shown = ", ".join(entries[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    text = (
        f"{module} is not in the package, for no packaged code imports it. It is imported in this "
        f"process, and registered {shown}. Code that looks that up fails where the package is "
        f"loaded, with a KeyError for example. If the model needs it, import {module} in a "
        "packaged module"
    )
    return Note(NoteKind.REGISTERED_OUTSIDE, module, text)
