"""Module names, resource names and the record names that they become in an archive."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from typing import Final

__all__ = [
    "MOST_COMPONENTS",
    "is_within",
    "join_record",
    "module_record",
    "normalised_distribution",
    "package_folder",
    "parents",
    "require_module_name",
    "resource_record",
    "root_of",
    "similar_modules",
    "why_too_long",
]

MOST_COMPONENTS: Final = 64
"""Components of the longest module path, as of the longest name of a record."""
_MOST_CHARACTERS: Final = 4096
_COMPARED = 1000


def root_of(module: str) -> str:
    """The first component of a module path.

    >>> root_of("torch.nn.functional")
    'torch'
    """
    return module.partition(".")[0]


def parents(module: str) -> Iterator[str]:
    """The packages that contain a module, innermost first.

    A path that is too deep for any module has none: all of them together would be as long as the
    square of the path.

    >>> list(parents("a.b.c"))
    ['a.b', 'a']
    """
    if module.count(".") >= MOST_COMPONENTS:
        return
    head, _, _ = module.rpartition(".")
    while head:
        yield head
        head, _, _ = head.rpartition(".")


def is_within(module: str, package: str) -> bool:
    """Whether ``module`` is ``package`` or lies below it.

    >>> is_within("a.b", "a"), is_within("ab", "a")
    (True, False)
    """
    return module == package or module.startswith(package + ".")


def require_module_name(module: object, argument: str = "module_name") -> str:
    """Check an argument that must be a module path, and return it.

    Args:
        module: the argument's value.
        argument: its name, for the error.

    Raises:
        TypeError: it is no string.
        ValueError: a component is empty, or holds a path separator.

    >>> require_module_name("a.b")
    'a.b'
    """
    if not isinstance(module, str):
        raise TypeError(
            f"{argument} must be a module path such as 'pkg.mod', not {type(module).__name__}"
        )
    if not module or any(not part or set(part) & set("/\\\0") for part in module.split(".")):
        raise ValueError(f"{argument} must be a module path such as 'pkg.mod', not {module!r}")
    return module


def why_too_long(module: str) -> str | None:
    """Why a text is too long for a module path, or None if it is not.

    >>> why_too_long("a.b")
    >>> why_too_long("a" + 64 * ".b")
    'it has 65 components, and 64 are allowed'
    """
    if len(module) > _MOST_CHARACTERS:
        return f"it has {len(module)} characters, and {_MOST_CHARACTERS} are allowed"
    components = module.count(".") + 1
    if components > MOST_COMPONENTS:
        return f"it has {components} components, and {MOST_COMPONENTS} are allowed"
    return None


def package_folder(package: str) -> str:
    """The folder of a package in an archive.

    >>> package_folder("a.b")
    'a/b'
    """
    return package.replace(".", "/")


def module_record(module: str, is_package: bool) -> str:
    """The record that holds a module's source.

    >>> module_record("a.b", True), module_record("a.b", False)
    ('a/b/__init__.py', 'a/b.py')
    """
    return package_folder(module) + ("/__init__.py" if is_package else ".py")


def normalised_distribution(name: str) -> str:
    """A distribution's name as PEP 503 compares it.

    >>> normalised_distribution("Typing_Extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def join_record(folder: str, name: str) -> str:
    """A record name from a folder, which may be empty, and a name in it."""
    return f"{folder}/{name}" if folder else name


def resource_record(package: object, resource: object) -> str:
    """The record that holds a resource.

    Args:
        package: the package it belongs to, as a module path; ``""`` is the top folder.
        resource: its name; ``/`` makes subfolders.

    Raises:
        TypeError: one of them is no string.
        ValueError: one of them is no proper name, or leads outside the package.

    >>> resource_record("a.b", "vocabulary.txt")
    'a/b/vocabulary.txt'
    """
    if not isinstance(resource, str):
        raise TypeError(f"resource must be a file name, not {type(resource).__name__}")
    if package != "":
        require_module_name(package, "package")
    parts = resource.split("/")
    if "\\" in resource or "\0" in resource or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"resource must be a file name inside the package, not {resource!r}")
    return join_record(package_folder(str(package)), resource)


def similar_modules(module: str, known: Collection[str]) -> list[str]:
    """Up to three known module paths that somebody may have meant, the likeliest first.

    Args:
        module: what they wrote.
        known: the module paths that there are.

    >>> similar_modules("shop.tll", ["shop", "shop.till", "numpy"])
    ['shop.till', 'shop']
    >>> similar_modules("till", ["shop", "shop.till", "numpy"])
    ['shop.till']
    >>> similar_modules("shop.till.Till.ring", ["shop", "shop.till", "numpy"])
    ['shop.till']
    """
    around = [package for package in parents(module) if package in known][:1]
    last = module.rpartition(".")[2]
    same_end = [each for each in known if each.rpartition(".")[2] == last]
    # Comparing is slow: of many modules, those in the same package are compared, then others.
    package, root = module.rpartition(".")[0], root_of(module)
    near = sorted(known, key=lambda m: (m.rpartition(".")[0] != package, root_of(m) != root))
    close = difflib.get_close_matches(module, near[:_COMPARED], n=3, cutoff=0.7)
    return list(dict.fromkeys([*same_end, *close, *around]))[:3]
