"""What the trial's interpreter must not see: everything that the package holds instead."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modpack.core.actions import Action
from modpack.core.location import Location
from modpack.core.names import is_within, root_of
from modpack.core.plan import Decision, Plan
from modpack.core.planjson import Json
from modpack.planning.ownership import InstalledOwnership
from modpack.resolution.distributions import RUNTIME_ROOTS, is_stdlib, normalised

__all__ = ["Hidden", "clean_path", "hidden_from", "hidden_from_json"]


@dataclass(frozen=True)
class Hidden:
    """What is hidden from everybody in an interpreter.

    Attributes:
        modules: module paths; what is below them is hidden too.
        distributions: normalised names of distributions, which :mod:`importlib.metadata` must
            not find.
        places: files and folders of this machine that must not be read.
    """

    modules: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """As a record; :func:`hidden_from_json` reads it back."""
        return {
            "modules": list(self.modules),
            "distributions": list(self.distributions),
            "places": list(self.places),
        }


def hidden_from_json(record: dict[str, Json]) -> Hidden:
    """Read back what :meth:`Hidden.to_json` made.

    Raises:
        KeyError, TypeError: it made something else.
    """

    def texts(key: str) -> tuple[str, ...]:
        listed = record[key]
        if not isinstance(listed, list):
            raise TypeError(f"{key} is no list")
        return tuple(map(str, listed))

    return Hidden(texts("modules"), texts("distributions"), texts("places"))


def hidden_from(plan: Plan, ownership: InstalledOwnership, scripts: Sequence[str] = ()) -> Hidden:
    """What a plan takes along, as it must be hidden to see whether the package stands alone.

    A root of which something is extern has to be installed where the package is loaded; of
    such a root nothing is hidden. Neither is anything that comes with torch or modpack.

    Args:
        plan: what is taken along.
        ownership: knows what is installed here.
        scripts: files of scripts of which definitions are taken along.
    """
    staying = {root_of(d.module) for d in _of(plan, Action.EXTERN)}
    always = ownership.always_installed()
    interned = [d for d in _of(plan, Action.INTERN) if root_of(d.module) not in staying]
    providers = {d.module: ownership.distribution_of(d.module, d.location) for d in interned}
    hidden = [
        d
        for d in interned
        for provider in [providers[d.module]]
        if provider is None or normalised(provider.name) not in always
    ]
    names = {
        normalised(found.name) for d in hidden for found in [providers[d.module]] if found
    } - _of_externs(plan, ownership)
    roots = sorted({root_of(d.module) for d in hidden})
    places = {place for root in roots for place in _places(plan.decisions.get(root))}
    places |= {str(Path(file).absolute()) for file in scripts}
    return Hidden(tuple(roots), tuple(sorted(names)), tuple(sorted(places)))


def clean_path(plan: Plan, hidden: Hidden) -> list[str]:
    """``sys.path`` for the trial: this one, without what only serves hidden code.

    The working folder, the folder of the running script, and folders in which hidden modules
    were found are left out, unless something that the package takes from its surroundings is
    found in them too.
    """
    needed = {_folder_above(d.location) for d in _of(plan, Action.EXTERN) if d.location}
    needed |= {str(Path(__file__).parents[2]), *_installation()}
    unwanted = {str(Path.cwd()), *_script_folder(), *map(_parent, hidden.places)}
    entries = [str(Path(entry or Path.cwd()).absolute()) for entry in sys.path]
    return [entry for entry in entries if entry in needed or entry not in unwanted]


def _of(plan: Plan, action: Action) -> Iterator[Decision]:
    for decision in plan.decisions.values():
        root = root_of(decision.module)
        if decision.action is action and root not in RUNTIME_ROOTS:
            if action is Action.INTERN or not is_stdlib(root):
                yield decision


def _of_externs(plan: Plan, ownership: InstalledOwnership) -> set[str]:
    found = (ownership.distribution_of(d.module, d.location) for d in _of(plan, Action.EXTERN))
    return {normalised(distribution.name) for distribution in found if distribution is not None}


def _places(decision: Decision | None) -> Iterator[str]:
    """The folder or file of a root, as far as it holds nothing else."""
    location = decision.location if decision is not None else None
    if location is not None and location.is_package:
        yield from (str(Path(folder).absolute()) for folder in location.search)
    elif location is not None and location.file is not None:
        yield str(Path(location.file).absolute())


def _folder_above(location: Location) -> str:
    """The entry of ``sys.path`` below which a module was found."""
    place = Path(location.file or next(iter(location.search), "."))
    steps = location.module.count(".") + (1 if location.is_package and location.file else 0)
    return str(place.absolute().parents[min(steps, len(place.absolute().parents) - 1)])


def _installation() -> Iterable[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    zipped = [entry for entry in sys.path if entry.endswith(".zip")]
    return [*map(sysconfig.get_path, names), *zipped, *_sites()]


def _sites() -> list[str]:
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    return [*site.getsitepackages(), *([user] if user else [])]


def _script_folder() -> list[str]:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return [str(Path(file).absolute().parent)] if file else []


def _parent(place: str) -> str:
    return str(Path(place).parent)


def is_hidden(module: str, hidden: Hidden) -> bool:
    """Whether a module must not be found.

    >>> is_hidden("shop.till", Hidden(("shop",))), is_hidden("shopping", Hidden(("shop",)))
    (True, False)
    """
    return any(is_within(module, name) for name in hidden.modules)
