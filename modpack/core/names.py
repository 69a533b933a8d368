"""Names of modules, resources and records; patterns over them; and file names as a tree.

In patterns, ``*`` stays within one component, and ``**`` stands for any number of whole
components, none included. The notation is torch.package's.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

MAX_COMPONENTS: Final = 64
"""Components of the longest module path, as of the longest name of a record."""
_MAX_CHARACTERS: Final = 4096
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
    if module.count(".") >= MAX_COMPONENTS:
        return
    head, _, _ = module.rpartition(".")
    while head:
        yield head
        head, _, _ = head.rpartition(".")


def dotted(path: str, name: str) -> str:
    """A path of module or attribute names, which may be empty, with one more name.

    >>> dotted("a.b", "c"), dotted("", "c")
    ('a.b.c', 'c')
    """
    return f"{path}.{name}" if path else name


def is_within(module: str, package: str) -> bool:
    """Whether ``module`` is ``package`` or lies below it.

    >>> is_within("a.b", "a"), is_within("ab", "a")
    (True, False)
    """
    return module == package or module.startswith(package + ".")


RUNTIME_ROOTS = frozenset({"torch", "torchgen", "functorch", "modpack"})
"""What the torch distribution installs, and modpack: present wherever a package is loaded."""


def is_stdlib(module: str) -> bool:
    """Whether a module belongs to the standard library of this Python.

    >>> is_stdlib("sys"), is_stdlib("concurrent.futures"), is_stdlib("torch")
    (True, True, False)
    """
    root = root_of(module)
    return root in sys.stdlib_module_names or root in sys.builtin_module_names


def is_everywhere(module: str) -> bool:
    """Whether a module is there wherever a package is loaded: of Python, of torch, or modpack.

    So is ``__main__``, whatever runs there.

    >>> is_everywhere("os.path"), is_everywhere("torch.nn"), is_everywhere("numpy")
    (True, True, False)
    """
    return is_stdlib(module) or root_of(module) in (*RUNTIME_ROOTS, "__main__")


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
    if len(module) > _MAX_CHARACTERS:
        return f"it has {len(module)} characters, and {_MAX_CHARACTERS} are allowed"
    components = module.count(".") + 1
    if components > MAX_COMPONENTS:
        return f"it has {components} components, and {MAX_COMPONENTS} are allowed"
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


def normalized_distribution(name: str) -> str:
    """A distribution's name as PEP 503 compares it.

    >>> normalized_distribution("Typing_Extensions")
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


GlobPattern = str | Iterable[str]
"""One pattern, or several of which any may match."""


class GlobGroup:
    """A set of patterns: matches what an include pattern matches and no exclude pattern does.

    Args:
        include: one pattern or several; of an empty list, nothing matches.
        exclude: one pattern or several; none by default.
        separator: what parts components: ``"."`` for module paths, ``"/"`` for files.

    Raises:
        TypeError: a pattern is no string.
        ValueError: a pattern has an empty component, or ``**`` is only a part of one.

    >>> group = GlobGroup("mylib.**", exclude="mylib.tests.**")
    >>> group.matches("mylib"), group.matches("mylib.net.conv"), group.matches("mylib.tests.t1")
    (True, True, False)
    >>> GlobGroup("mylib.*").matches("mylib.net.conv")
    False
    """

    def __init__(
        self, include: GlobPattern, *, exclude: GlobPattern = (), separator: str = "."
    ) -> None:
        self.separator = separator
        self.include = _patterns(include, "include", separator)
        self.exclude = _patterns(exclude, "exclude", separator)

    @cached_property
    def _included(self) -> re.Pattern[str] | None:
        """Compiled when it is needed: whoever reads a plan matches nothing."""
        return _compiled(self.include, self.separator)

    @cached_property
    def _excluded(self) -> re.Pattern[str] | None:
        return _compiled(self.exclude, self.separator)

    def matches(self, candidate: str) -> bool:
        """Whether the group matches a whole module path or file path."""
        text = self.separator + candidate
        if not (self._included and self._included.fullmatch(text)):
            return False
        return not (self._excluded and self._excluded.fullmatch(text))

    def literally(self, root: str) -> GlobGroup:
        """The group with only those include patterns that have ``root`` as first component.

        >>> GlobGroup(["torch.**", "**"]).literally("torch")
        GlobGroup('torch.**')
        """
        literal = [p for p in self.include if p.partition(self.separator)[0] == root]
        return GlobGroup(literal, exclude=self.exclude, separator=self.separator)

    def spells(self, candidate: str) -> bool:
        """Whether it matches by a pattern that has the first component literally.

        >>> GlobGroup("torch.**").spells("torch.nn"), GlobGroup("**").spells("torch.nn")
        (True, False)
        """
        root = candidate.partition(self.separator)[0]
        return self.matches(candidate) and self.literally(root).matches(candidate)

    def __str__(self) -> str:
        shown = _shown(self.include)
        return f"{shown}, exclude={_shown(self.exclude)}" if self.exclude else shown

    def __repr__(self) -> str:
        return f"GlobGroup({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return (self.separator, self.include, self.exclude)


def _shown(patterns: tuple[str, ...]) -> str:
    if len(patterns) == 1:
        return repr(patterns[0])
    return "[" + ", ".join(map(repr, patterns)) + "]"


def _patterns(given: GlobPattern, argument: str, separator: str) -> tuple[str, ...]:
    return tuple(_checked(pattern, argument, separator) for pattern in _listed(given, argument))


def _listed(given: object, argument: str) -> list[object]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise TypeError(
            f"{argument} must be a pattern or several patterns, not {type(given).__name__}"
        )
    return list(given)


def _checked(pattern: object, argument: str, separator: str) -> str:
    if not isinstance(pattern, str):
        raise TypeError(f"{argument} must hold patterns (str), not {type(pattern).__name__}")
    for component in pattern.split(separator):
        if not component:
            raise ValueError(f"{argument}: the pattern {pattern!r} has an empty component")
        if "**" in component and component != "**":
            raise ValueError(
                f"{argument}: in the pattern {pattern!r}, '**' must be a whole component"
            )
    return pattern


def _compiled(patterns: Sequence[str], separator: str) -> re.Pattern[str] | None:
    """One expression for all patterns, over candidates that start with a separator."""
    if not patterns:
        return None
    mark, rest = re.escape(separator), f"[^{re.escape(separator)}]"

    def component(text: str) -> str:
        if text == "**":
            return f"(?:{mark}{rest}+)*"
        return mark + f"{rest}*".join(map(re.escape, text.split("*")))

    each = ("".join(map(component, pattern.split(separator))) for pattern in patterns)
    return re.compile("|".join(f"(?:{expression})" for expression in each))


class Directory:
    """A folder or a file in a package. Printing it shows the tree.

    Attributes:
        name: its name, without the path to it.
        is_dir: whether it is a folder.
        children: what is in it, by name, sorted.

    >>> tree = Directory.of("net", ["mylib/__init__.py", "mylib/net.py"])
    >>> print(tree)
    net
    └── mylib
        ├── __init__.py
        └── net.py
    >>> tree.has_file("mylib/net.py"), tree.has_file("mylib/other.py")
    (True, False)
    """

    def __init__(self, name: str, is_dir: bool) -> None:
        self.name = name
        self.is_dir = is_dir
        self.children: dict[str, Directory] = {}

    @staticmethod
    def of(
        name: str, files: Iterable[str], include: GlobPattern = "**", exclude: GlobPattern = ()
    ) -> Directory:
        """Build the tree of some files.

        Args:
            name: the name of the top folder.
            files: paths with ``/``, relative to it.
            include: patterns over whole paths; ``**`` crosses folders.
            exclude: patterns for files to leave out.
        """
        wanted = GlobGroup(include, exclude=exclude, separator="/")
        top = Directory(name, True)
        for file in sorted(files):
            if wanted.matches(file):
                top._add(file)
        return top

    def has_file(self, filename: str) -> bool:
        """Whether the tree holds a file or folder, given by its path from here.

        Raises:
            TypeError: ``filename`` is no string.
        """
        if not isinstance(filename, str):
            raise TypeError(f"filename must be a path (str), not {type(filename).__name__}")
        found: Directory | None = self
        for part in filename.split("/"):
            found = found.children.get(part) if found is not None else None
        return found is not None

    def _add(self, file: str) -> None:
        folder = self
        *parents, name = file.split("/")
        for parent in parents:
            folder = folder.children.setdefault(parent, Directory(parent, True))
        folder.children[name] = Directory(name, False)

    def __str__(self) -> str:
        return "\n".join([self.name, *self._lines("")])

    def __repr__(self) -> str:
        return f"<Directory {self.name!r} with {len(self.children)} children>"

    def _lines(self, indent: str) -> Iterable[str]:
        last = len(self.children) - 1
        for position, child in enumerate(self.children.values()):
            branch, below = ("└── ", "    ") if position == last else ("├── ", "│   ")
            yield indent + branch + child.name
            yield from child._lines(indent + below)


class Allowance(NamedTuple):
    """Where something may be that looks like a secret.

    Attributes:
        where: a pattern of module paths, or, with a ``/`` in it, of records.
        fingerprint: of the only text that may be there; None for any.

    >>> Allowance("shop.*", None).admits("shop.till", "0" * 12)
    True
    """

    where: str
    fingerprint: str | None

    def admits(self, place: str, fingerprint: str) -> bool:
        """Whether a text may be in a module or a record."""
        if self.fingerprint not in (None, fingerprint):
            return False
        if self.where == "**":
            return True
        separator = "/" if "/" in self.where else "."
        if separator == "." and "/" in place:
            return False  # a pattern of modules, whose * would match a whole path
        return GlobGroup(self.where, separator=separator).matches(place)


def as_allowances(given: GlobPattern, argument: str = "allow_secrets_in") -> tuple[Allowance, ...]:
    """Allowances as a user writes them: ``PATTERN``, or ``PATTERN#FINGERPRINT``.

    Args:
        given: one or several.
        argument: what to call them in errors.

    Raises:
        TypeError, ValueError: it is none.

    >>> as_allowances("shop.till#0123456789ab")
    (Allowance(where='shop.till', fingerprint='0123456789ab'),)
    """
    return tuple(_allowance(each, argument) for each in _listed(given, argument))


def _allowance(given: object, argument: str) -> Allowance:
    if not isinstance(given, str):
        raise TypeError(f"{argument} must hold patterns (str), not {type(given).__name__}")
    where, mark, fingerprint = given.partition("#")
    if mark and not re.fullmatch("[0-9a-f]{12}", fingerprint):
        raise ValueError(
            f"{argument}: in {given!r}, what follows # must be a fingerprint: 12 hex digits, as "
            "the message about the secret shows them"
        )
    return Allowance(_checked(where, argument, "/" if "/" in where else "."), fingerprint or None)
