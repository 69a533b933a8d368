"""Which names a record may have.

A package must mean the same thing zipped and unzipped, on every file system: its names are
relative, and no two of them become one file where case or Unicode forms are folded.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final

from modpack.archive.limits import DEFAULT_LIMITS

__all__ = [
    "NameRegistry",
    "count_folders",
    "find_collision",
    "find_problem",
    "find_unsafe",
    "fold",
    "why_unsafe",
]

_SUSPICIOUS: Final = ("//", "./", " /", "\\", ":")
"""What names have, each between two slashes, if one has an empty component, a dot or two for one, a
component that ends with a dot or a blank, a backslash, or a drive."""
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_STORAGE: Final = re.compile(r"\.data/[0-9]{1,50}\.storage")
"""Most names of large packages."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DEVICES: Final = r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[0-9\u00b9\u00b2\u00b3])"
"""What Windows takes for devices, in whatever folder and with whatever suffix."""
_DEVICE: Final = re.compile(_DEVICES + r"(?:\..*)?", re.IGNORECASE)
_SOME_DEVICE: Final = re.compile(rf"/{_DEVICES}[./]", re.IGNORECASE)
_FEW_FOLDERS: Final = 50_000
_FEW_NAMES: Final = 128
"""So many names are remembered: packages of one project often have the same."""
_LONGEST_COMPONENT: Final = 255
"""Bytes of a file's name that every file system takes."""


@lru_cache(maxsize=4096)  # the same sources and metadata go into one package after the other
def why_unsafe(name: str) -> str | None:
    r"""What is wrong with a record's name, or None if nothing is.

    >>> why_unsafe("pkg/data.txt")
    >>> why_unsafe("../data.txt")
    "the name has a '..' component"
    """
    if _STORAGE.fullmatch(name) or (_look_safe(f"/{name}/") and not _is_long(name)):
        return None
    if "\\" in name:
        return "the name has a backslash; components are separated by '/'"
    if _CONTROL.search(name):
        return "the name has a NUL or another control character"
    if name.startswith("/"):
        return "the name is absolute"
    if not _is_encodable(name):
        return "the name cannot be written as UTF-8"
    components = name.split("/")
    if len(components) > DEFAULT_LIMITS.max_components:
        return f"the name has more than {DEFAULT_LIMITS.max_components} components"
    return next(filter(None, map(_why_unsafe_component, components)), None)


def _why_unsafe_component(component: str) -> str | None:
    if component in ("", ".", ".."):
        return f"the name has a {component!r} component"
    if _DRIVE.match(component):
        return "the name has a drive"
    if component.endswith((".", " ")):
        return f"{component!r} ends with a dot or a blank, which Windows leaves out"
    if _DEVICE.fullmatch(component):
        return f"{component!r} is a device's name on Windows"
    if len(component) * 4 > _LONGEST_COMPONENT < len(component.encode("utf-8")):
        return f"the name has a component of more than {_LONGEST_COMPONENT} bytes"
    return None


def find_problem(names: Sequence[str]) -> tuple[str, str] | None:
    """The first unsafe name, or else one that collides with another, and the reason; or None."""
    return _remembered(tuple(names)) if len(names) <= _FEW_NAMES else _found(names)


def _found(names: Sequence[str]) -> tuple[str, str] | None:
    return find_unsafe(names) or find_collision(names)


_remembered = lru_cache(maxsize=16)(_found)


def find_unsafe(names: Sequence[str]) -> tuple[str, str] | None:
    """The first unsafe name and what is wrong with it, or None.

    Looks at all names at once and goes through them one by one only if there is a reason to.
    """
    joined = f"/{'/'.join(names)}/" if names else ""
    if _look_safe(joined) and not _is_excessive(names):
        return None
    reasons = ((name, why_unsafe(name)) for name in names)
    return next(((name, reason) for name, reason in reasons if reason), None)


def _look_safe(joined: str) -> bool:
    """Whether names, each between two slashes, have nothing that an unsafe one must have."""
    is_suspicious = any(sign in joined for sign in _SUSPICIOUS) or _SOME_DEVICE.search(joined)
    return joined.isprintable() and not is_suspicious


def _is_excessive(names: Sequence[str]) -> bool:
    """Whether a name may have too many components, or too long ones."""
    longest = max(map(len, names))
    return longest > _LONGEST_COMPONENT // 4 and any(map(_is_long, names))


def _is_long(name: str) -> bool:
    if len(name) <= _LONGEST_COMPONENT // 4:
        return False
    components = name.split("/")
    few = len(components) <= DEFAULT_LIMITS.max_components
    return not few or max(map(len, components)) > _LONGEST_COMPONENT // 4


def fold(name: str) -> str:
    """What a name becomes on a file system that ignores case and Unicode forms.

    >>> fold("pkg/README") == fold("PKG/readme")
    True
    """
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def find_collision(names: Collection[str]) -> tuple[str, str] | None:
    """A name that cannot be unzipped next to the others, and the reason, or None."""
    if not _collide(map(str.lower if all(map(str.isascii, names)) else fold, names)):
        return None
    registry = NameRegistry()
    refused = ((name, registry.add(name)) for name in names)
    return next(((name, reason) for name, reason in refused if reason), None)


class NameRegistry:
    """Names that arrive one at a time, each checked against all before it."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def add(self, name: str) -> str | None:
        """Takes a name in; returns the reason instead if it collides with an earlier one."""
        folded = fold(name)
        twin = self._files.get(folded)
        if twin is not None:
            return "it is there twice" if twin == name else f"it differs only in form from {twin!r}"
        if folded in self._folders:
            return f"it would have to be a folder too, for {self._folders[folded]!r}"
        if folded.rpartition("/")[0] in self._folders:  # as of nearly all names
            self._files[folded] = name
            return None
        parents = _parents(folded)
        blocked = next((parent for parent in parents if parent in self._files), None)
        if blocked is not None:
            return f"{self._files[blocked]!r} would have to be a folder too"
        self._files[folded] = name
        for parent in parents:
            self._folders.setdefault(parent, name)
        return None

    def forget_after(self, count: int) -> None:
        """Forgets every name but the first ``count`` that were taken in."""
        for folded in list(self._files)[count:]:
            del self._files[folded]
        kept = set(self._files.values())
        self._folders = {folder: of for folder, of in self._folders.items() if of in kept}


def count_folders(names: Collection[str]) -> int:
    """How many folders some names have in all; counted for each name where that is few.

    >>> count_folders(["a/b/c", "a/b/d", "e"])
    4
    """
    at_most = sum(name.count("/") for name in names)
    if at_most <= _FEW_FOLDERS:
        return at_most
    folders = sorted(folder.split("/") for folder in {name.rpartition("/")[0] for name in names})
    shared = itertools.starmap(_shared, itertools.pairwise(folders))
    return sum(map(len, folders)) - sum(shared) - folders.count([""])


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many components two paths have in common at their beginnings."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _collide(folded: Iterable[str]) -> bool:
    """Whether two names are the same, or one is a folder of another.

    In an order in which the separator comes first, what lies in a folder follows its name.
    """
    ordered = sorted(name.replace("/", "\0") for name in folded)
    return any(
        later.startswith(name) and later[len(name) : len(name) + 1] in ("", "\0")
        for name, later in itertools.pairwise(ordered)
    )


def _parents(name: str) -> list[str]:
    parents = []
    while name := name.rpartition("/")[0]:
        parents.append(name)
    return parents


def _is_encodable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
