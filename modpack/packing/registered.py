"""What modules outside of a package registered in packaged ones, by being imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FunctionType

from modpack.core.actions import Action, Owner
from modpack.core.plan import Note, NoteKind, Plan
from modpack.discovery.walk import Walker
from modpack.planning.ownership import InstalledOwnership
from modpack.resolution.live import contents_of, is_a

__all__ = ["registered_notes"]

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
            yield _note(home, list(entries))


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


def _note(module: str, entries: Sequence[str]) -> Note:
    more = len(entries) - _MOST_NAMES
    shown = ", ".join(entries[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    text = (
        f"{module} is not in the package, for no packaged code imports it. It is imported in this "
        f"process, and registered {shown}. Code that looks that up fails where the package is "
        f"loaded, with a KeyError for example. If the model needs it, import {module} in a "
        "packaged module"
    )
    return Note(NoteKind.REGISTERED_OUTSIDE, module, text)
