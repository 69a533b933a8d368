"""Names of modules, resources, and records; patterns over them; and trees of file names.

In patterns, ``*`` matches within one component, and ``**`` matches any number of whole components,
including none. The notation is torch.package's.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Final, TypeVar

T = TypeVar("T")

MAX_COMPONENTS: Final = 64
"""Maximum number of components of a module path or a record name."""
_MAX_CHARACTERS: Final = 4096
_COMPARED = 1000


def root_of(module: str) -> str:
    """Return the first component of a module path.

    >>> root_of("torch.nn.functional")
    'torch'
    """
    return module.partition(".")[0]


def parents(module: str) -> Iterator[str]:
    """Yield the Python packages that contain a module, innermost first.

    Yields nothing for paths with too many components, because the total length of all parents
    grows with the square of the path's length.

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
    """Return a path of module or attribute names, possibly empty, with one more name.

    >>> dotted("a.b", "c"), dotted("", "c")
    ('a.b.c', 'c')
    """
    return f"{path}.{name}" if path else name


def is_within(module: str, package: str) -> bool:
    """Return whether ``module`` is ``package`` or is below it.

    >>> is_within("a.b", "a"), is_within("ab", "a")
    (True, False)
    """
    return module == package or module.startswith(package + ".")


RUNTIME_ROOTS = frozenset({"torch", "torchgen", "functorch", "modpack"})
"""Packages of the torch distribution, and modpack, which every loading environment has."""
PACKAGES: Final = "modpack.packages"
"""The Python package that contains the private namespaces of loaded packages."""
_NAMESPACE = r"\bmodpack\.packages\.p[0-9a-f]{32}\w*\."


def namespace_of(module: str) -> str:
    """Return the private namespace of a packaged module's full name; empty for other modules.

    >>> namespace_of("modpack.packages.p0123.net.layers"), namespace_of("modpack.hooks")
    ('modpack.packages.p0123', '')
    """
    if not module.startswith(f"{PACKAGES}."):
        return ""
    return ".".join(module.split(".", 3)[:3])


def strip_namespaces(text: str) -> str:
    """Return a text without the private namespaces in the names that it contains.

    >>> strip_namespaces("<class 'modpack.packages.p00112233445566778899aabbccddeeff_2.net.Layer'>")
    "<class 'net.Layer'>"
    """
    # Searching for a plain string takes a small part of the time.
    return re.sub(_NAMESPACE, "", text) if PACKAGES in text else text


def is_runtime(module: str) -> bool:
    """Return whether a module is torch's or modpack's own, and not a loaded package's.

    >>> is_runtime("torch.nn"), is_runtime("modpack.packages.p0123.net"), is_runtime("numpy")
    (True, False, False)
    """
    return root_of(module) in RUNTIME_ROOTS and not is_within(module, PACKAGES)


def is_stdlib(module: str) -> bool:
    """Return whether a module belongs to the standard library of this Python.

    >>> is_stdlib("sys"), is_stdlib("concurrent.futures"), is_stdlib("torch")
    (True, True, False)
    """
    root = root_of(module)
    return root in sys.stdlib_module_names or root in sys.builtin_module_names


def is_everywhere(module: str) -> bool:
    """Return whether a module belongs to the standard library, torch, or modpack.

    Every loading environment has these modules. ``__main__`` counts too.

    >>> is_everywhere("os.path"), is_everywhere("torch.nn"), is_everywhere("numpy")
    (True, True, False)
    """
    return is_stdlib(module) or is_runtime(module) or root_of(module) == "__main__"


def require_module_name(module: object, argument: str = "module_name") -> str:
    """Check that an argument is a module path, and return it.

    Args:
        module: The argument's value.
        argument: The argument's name, for the error.

    Raises:
        TypeError: If it is not a string.
        ValueError: If a component is empty or contains a path separator.

    >>> require_module_name("a.b")
    'a.b'
    """
    if not isinstance(module, str):
        raise TypeError(
            f"{argument} must be a module path such as 'pkg.mod', not {type(module).__name__}"
        )
    # A path separator would make the module's file one outside of its folder.
    if not module or any(not part or set(part) & set("/\\\0") for part in module.split(".")):
        raise ValueError(f"{argument} must be a module path such as 'pkg.mod', not {module!r}")
    return module


def why_too_long(module: str) -> str | None:
    """Return the reason why a text is too long for a module path, or None.

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
    """Return the folder of a Python package in an archive.

    >>> package_folder("a.b")
    'a/b'
    """
    return package.replace(".", "/")


def module_record(module: str, is_package: bool) -> str:
    """Return the record of a module's source.

    >>> module_record("a.b", True), module_record("a.b", False)
    ('a/b/__init__.py', 'a/b.py')
    """
    return package_folder(module) + ("/__init__.py" if is_package else ".py")


def normalized(name: str) -> str:
    """Return a distribution's name, normalized according to PEP 503.

    >>> normalized("Typing_Extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def join_record(folder: str, name: str) -> str:
    """Return the record name of a folder, which may be empty, and a name in it."""
    return f"{folder}/{name}" if folder else name


def resource_record(package: object, resource: object) -> str:
    """Return the record of a resource.

    Args:
        package: Module path of the resource's Python package; ``""`` for the top folder.
        resource: Name of the resource; ``/`` separates folders.

    Raises:
        TypeError: If one of them is not a string.
        ValueError: If one of them is not a valid name, or leads outside the package.

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
    """Return up to three known module paths that are similar to a module path, closest first.

    Args:
        module: The module path.
        known: The known module paths.

    >>> similar_modules("shop.tll", ["shop", "shop.till", "numpy"])
    ['shop.till', 'shop']
    >>> similar_modules("till", ["shop", "shop.till", "numpy"])
    ['shop.till']
    >>> similar_modules("shop.till.Till.ring", ["shop", "shop.till", "numpy"])
    ['shop.till']
    """
    # The name may be an attribute of a known module: the innermost known parent is suggested, too.
    parent = [package for package in parents(module) if package in known][:1]
    last = module.rpartition(".")[2]
    same_end = [each for each in known if each.rpartition(".")[2] == last]
    # Comparing is slow: modules in the same package come first, and only _COMPARED are compared.
    package, root = module.rpartition(".")[0], root_of(module)
    near = sorted(known, key=lambda m: (m.rpartition(".")[0] != package, root_of(m) != root))
    close = difflib.get_close_matches(module, near[:_COMPARED], n=3, cutoff=0.7)
    return list(dict.fromkeys([*same_end, *close, *parent]))[:3]


GlobPattern = str | Iterable[str]
"""One pattern or several."""


class GlobGroup:
    """A set of patterns: matches names that an include pattern and no exclude pattern matches.

    Args:
        include: One pattern or several. An empty list matches nothing.
        exclude: One pattern or several; none by default.
        separator: Separator of components: ``"."`` for module paths, ``"/"`` for files.

    Raises:
        TypeError: If a pattern is not a string.
        ValueError: If a pattern has an empty component, or ``**`` is only part of a component.

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
        self.include = parse_patterns(include, "include", separator)
        self.exclude = parse_patterns(exclude, "exclude", separator)

    @cached_property
    def _included(self) -> re.Pattern[str] | None:
        """Compiled on first use: reading a plan matches no names."""
        return compiled(self.include, self.separator)

    @cached_property
    def _excluded(self) -> re.Pattern[str] | None:
        return compiled(self.exclude, self.separator)

    def matches(self, candidate: str) -> bool:
        """Return whether the group matches a whole module path or file path."""
        text = self.separator + candidate
        if not (self._included and self._included.fullmatch(text)):
            return False
        return not (self._excluded and self._excluded.fullmatch(text))

    def __str__(self) -> str:
        shown = _quoted_patterns(self.include)
        return f"{shown}, exclude={_quoted_patterns(self.exclude)}" if self.exclude else shown

    def __repr__(self) -> str:
        return f"GlobGroup({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return (self.separator, self.include, self.exclude)


def _quoted_patterns(patterns: tuple[str, ...]) -> str:
    if len(patterns) == 1:
        return repr(patterns[0])
    return "[" + ", ".join(map(repr, patterns)) + "]"


def parse_patterns(given: GlobPattern, argument: str, separator: str = ".") -> tuple[str, ...]:
    """Return the checked patterns of an argument.

    Raises:
        TypeError: If a pattern is not a string.
        ValueError: If a pattern is not valid.
    """
    return tuple(
        check_pattern(pattern, argument, separator) for pattern in list_patterns(given, argument)
    )


def list_patterns(given: object, argument: str) -> tuple[object, ...]:
    """Return one pattern or several, not yet checked."""
    return one_or_several(given, str, argument, "a pattern or several patterns")


def one_or_several(given: object, kind: type[T], argument: str, expected: str) -> tuple[T, ...]:
    """Return the items of an argument that is one item or several, not yet checked."""
    items = [given] if isinstance(given, kind) else given
    # These are iterable, too, but their items are not what is meant.
    if isinstance(items, (str, bytes, bytearray, Mapping)) or not isinstance(items, Iterable):
        raise TypeError(f"{argument} must be {expected}, not {type(given).__name__}")
    return tuple(items)


def check_pattern(pattern: object, argument: str, separator: str = ".") -> str:
    """Return a pattern if it is valid."""
    if not isinstance(pattern, str):
        raise TypeError(f"{argument} must contain patterns (str), not {type(pattern).__name__}")
    for component in pattern.split(separator):
        if not component:
            raise ValueError(f"{argument}: the pattern {pattern!r} has an empty component")
        if "**" in component and component != "**":
            raise ValueError(
                f"{argument}: in the pattern {pattern!r}, '**' must be a whole component"
            )
    return pattern


@lru_cache(maxsize=256)
def compiled(
    patterns: tuple[str, ...], separator: str, unmatched: str = ""
) -> re.Pattern[str] | None:
    """Compile all patterns into one expression over candidates that start with a separator.

    Args:
        patterns: The patterns.
        separator: The separator of their components.
        unmatched: A letter that ``*`` does not match.
    """
    if not patterns:
        return None
    # Each component includes the separator before it, so that `**` can match no component at all.
    mark = re.escape(separator)

    def component(text: str) -> str:
        if text == "**":
            return f"(?:{mark}[^{mark}]+)*"
        return mark + f"[^{mark}{unmatched}]*".join(map(re.escape, text.split("*")))

    each = ("".join(map(component, pattern.split(separator))) for pattern in patterns)
    return re.compile("|".join(f"(?:{expression})" for expression in each))


_PUNCTUATION_OF_SCHEMES: Final = str.maketrans("", "", "+-.")


def url_of(path: str) -> str | None:
    """Return a path that is a URL, with two slashes after its scheme; None for other paths.

    A file whose path looks like a URL is not one.

    >>> url_of("s3:/models/net.modpack")  # as pathlib writes it
    's3://models/net.modpack'
    >>> url_of("C:/models/net.modpack")
    """
    scheme, separator, rest = path.partition(":/")
    # A scheme of one letter is a drive on Windows.
    plain = scheme.translate(_PUNCTUATION_OF_SCHEMES)
    if not (separator and len(scheme) > 1 and plain.isascii() and plain.isalnum()):
        return None
    if os.path.lexists(path):
        return None
    # `file:/models` and `file:///models` are the same (RFC 8089).
    start = "/" if scheme.lower() == "file" and not rest.startswith("/") else ""
    return f"{scheme}://{start}{rest.removeprefix('/')}"


def file_name(path: str) -> str:
    """Return the last component of a path or of a URL.

    >>> file_name("https://example.org/net.modpack?version=2#sha256=d34d")
    'net.modpack'
    >>> file_name("oci://ghcr.io/team/net:1.0")
    'net'
    """
    url = url_of(path)
    name = os.path.basename(path if url is None else re.split("[?#]", url)[0])  # noqa: PTH119
    # The tag or digest of a package in a registry is not a part of its name.
    is_tagged = url is not None and url.lower().startswith("oci://")
    return re.split("[:@]", name)[0] if is_tagged else name


class Directory:
    """A folder or a file in a package. Printing a folder shows its tree.

    Attributes:
        name: Name without the path.
        is_dir: Whether it is a folder.
        children: Contents of the folder by name, sorted.

    >>> tree = Directory.from_names("net", ["mylib/__init__.py", "mylib/net.py"])
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
    def from_names(
        name: str, files: Iterable[str], include: GlobPattern = "**", exclude: GlobPattern = ()
    ) -> Directory:
        """Build the tree of some files.

        Args:
            name: Name of the top folder.
            files: Paths relative to the top folder, with ``/`` as separator.
            include: Patterns over whole paths; ``**`` matches across folders.
            exclude: Patterns of files to omit.
        """
        wanted = GlobGroup(include, exclude=exclude, separator="/")
        top = Directory(name, True)
        for file in sorted(files):
            if wanted.matches(file):
                top._add(file)
        return top

    def has_file(self, filename: str) -> bool:
        """Return whether the tree contains a file or folder with this relative path.

        Raises:
            TypeError: If ``filename`` is not a string.
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


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a question about the most similar of the known names.

    Args:
        name: The unknown name.
        known: The known names.
        otherwise: Text to return if none is similar.

    >>> did_you_mean("extern", ["externs", "native"])
    "Did you mean 'externs'?"
    """
    similar = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {similar[0]!r}?" if similar else otherwise
