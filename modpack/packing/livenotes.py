"""Notes about modules that do not hold here what their sources define: what is packaged differs."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.machinery import SourceFileLoader
from types import ModuleType

from modpack.core.actions import Action
from modpack.core.defined import Defined, Setting
from modpack.core.imports import ImportKind
from modpack.core.location import CodeKind, Location
from modpack.core.plan import Note, NoteKind, Plan
from modpack.discovery.walk import Walker
from modpack.packing.deviations import Deviation, LiveModule
from modpack.packing.edited import is_awake
from modpack.resolution.live import contents_of

__all__ = ["live_notes"]

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
