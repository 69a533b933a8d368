"""Files next to the code that a source reads, as far as that can be seen without running it.

Paths are followed from where a module learns its own place (``__file__``, ``__path__``,
``importlib.resources``, ``pkgutil.get_data``) through the functions of :mod:`os.path` and
:mod:`pathlib`, and through names that are assigned once. A mistake here costs little: a path counts
only if there is a file, and a file that is not found is found by a self-test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from modpack.core.scan import FileRead, ReadKind
from modpack.discovery.syntax import ParsedSource, dotted_name, resolve_relative

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_PATHS = frozenset({ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.JoinedStr, ast.Call})
"""The kinds of expressions that may stand for a path."""
_OWN_FILE = "\0"
"""Stands for the module's own file as the last part of a path."""
_WILD = frozenset("*?[")

_SAME_PATH = frozenset(
    {"os.fspath", "os.path.abspath", "os.path.expanduser", "os.path.normpath", "os.path.realpath"}
    | {"pathlib.Path", "pathlib.PosixPath", "pathlib.PurePath", "pathlib.PurePosixPath", "str"}
)
_LISTING = frozenset({"glob.glob", "glob.iglob", "os.listdir", "os.scandir", "os.walk"})
_SAME_PATH_METHODS = frozenset(
    {"absolute", "as_posix", "exists", "expanduser", "is_dir", "is_file", "open", "read_bytes"}
    | {"read_text", "resolve"}
)
_LISTING_METHODS = frozenset({"glob", "iterdir", "rglob", "walk"})
_RESOURCE_OF_PACKAGE = frozenset(
    {"get_data", "open_binary", "open_text", "read_binary", "read_text", "is_resource", "path"}
    | {"resource_exists", "resource_filename", "resource_stream", "resource_string"}
)
_FOLDER_OF_PACKAGE = frozenset({"contents", "files", "resource_listdir"})
_OF_PACKAGE = _RESOURCE_OF_PACKAGE | _FOLDER_OF_PACKAGE
_PLACES = ("__file__", "__path__", "__spec__", "get_data")
_RESOURCES = re.compile(r"importlib[._]resources|from importlib import .*resources|resource_\w+\(")
_FILE_NAME = re.compile(r"[\w.][\w .+@=-]*(/[\w.+@=-]+)*")
_NO_READ = frozenset({"sys.path.append", "sys.path.insert", "sys.path.remove", "os.chdir"})


@dataclass(frozen=True)
class SourcePath:
    """A path: where it starts, what follows, and whether that is all of it."""

    parts: tuple[str, ...] = ()
    module: str | None = None
    is_open: bool = False

    def up(self) -> SourcePath:
        if self.is_open:
            return self
        above = self.parts[:-1] if self.parts and self.parts[-1] != ".." else (*self.parts, "..")
        return replace(self, parts=above)

    def down(self, text: str | None) -> SourcePath:
        """What a text appended to the path makes of it; None is one that is not known."""
        if self.is_open:
            return self
        if text is None:
            return replace(self, is_open=True)
        place = self
        for part in text.split("/"):
            if _WILD & set(part):
                return replace(place, is_open=True)
            if part == "..":
                place = place.up()
            elif part not in ("", "."):
                place = replace(place, parts=(*place.parts, part))
        return place

    @property
    def is_own_file(self) -> bool:
        return _OWN_FILE in self.parts


class PathResolver:
    """Tells which paths a source's expressions stand for.

    Args:
        tree: the source.
        module: the module's name.
        package: the package that it is in, or is.

    Attributes:
        used: the names that are read anywhere.
        values: name -> every expression that it is bound to, None for what is no expression.
        docstrings: the expressions (by id) that are statements of their own.
    """

    def __init__(self, tree: ast.Module, module: str, package: str) -> None:
        self.used: set[str] = set()
        self.values: dict[str, list[ast.expr | None]] = {}
        self.docstrings: set[int] = set()
        self._own_names = {"__name__": module, "__package__": package}
        self._module = module
        self._package = package
        self._aliases: dict[str, str] = {}
        self._functions: dict[str, list[_Function]] = {}
        self._returns: dict[str, list[ast.expr | None]] = {}
        self._following: set[str] = set()
        self._no_paths: set[int] = set()
        for node in ast.walk(tree):
            self._learn(node)

    def _learn(self, node: ast.AST) -> None:
        """Note the names that a node binds or reads, wherever in the source it is."""
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.used.add(node.id)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._learn_value(target, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._learn_value(node.target, node.value)
        elif isinstance(node, (ast.For, ast.comprehension, ast.AugAssign)):
            self._learn_value(node.target, None)
        elif isinstance(node, ast.withitem):
            self._learn_value(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.arg):
            self.values.setdefault(node.arg, []).append(None)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):
                self.docstrings.add(id(node.value))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                self._aliases[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            source = resolve_relative(self._package, node.level, node.module or "")
            for alias in node.names:
                self._aliases[alias.asname or alias.name] = f"{source or ''}.{alias.name}"

    def _learn_value(self, target: ast.expr | None, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.values.setdefault(target.id, []).append(value)

    def of(self, node: ast.AST | None) -> SourcePath | None:
        """The path that an expression stands for; None if it is none that is known."""
        if isinstance(node, ast.Name):
            return SourcePath((_OWN_FILE,)) if node.id == "__file__" else self.named(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.BinOp):
            return self._joined(node)
        if isinstance(node, ast.JoinedStr):
            return self._formatted(node)
        return self._call(node) if isinstance(node, ast.Call) else None

    def _joined(self, node: ast.BinOp) -> SourcePath | None:
        """``path / a / b`` and ``path + a + b``, however many there are."""
        chain: list[ast.BinOp] = []
        first: ast.expr = node
        while isinstance(first, ast.BinOp) and id(first) not in self._no_paths:
            chain.append(first)
            first = first.left
        joins = all(isinstance(each.op, (ast.Add, ast.Div)) for each in chain)
        place = self.of(first) if joins and not isinstance(first, ast.BinOp) else None
        if place is None:
            self._no_paths.update(map(id, chain))
            return None
        return self._below(place, [each.right for each in reversed(chain)])

    def named(self, name: str) -> SourcePath | None:
        values = self.values.get(name)
        return self._sole(name, values) if values else None

    def _sole(self, name: str, values: list[ast.expr | None]) -> SourcePath | None:
        """The path that several ways to get at a value agree on."""
        if not values or None in values or name in self._following or len(values) > 3:
            return None
        self._following.add(name)
        try:
            places = {self.of(value) for value in values}
        finally:
            self._following.discard(name)
        return places.pop() if len(places) == 1 else None

    def _returned(self, function: str) -> list[ast.expr | None]:
        if function not in self._returns:
            nodes = (node for each in self._functions[function] for node in ast.walk(each))
            found = [node.value for node in nodes if isinstance(node, ast.Return)]
            self._returns[function] = found
        return self._returns[function]

    def _attribute(self, node: ast.Attribute) -> SourcePath | None:
        if node.attr in ("__file__", "origin"):
            return self._of_module(node.value)
        place = self.of(node.value)
        return place.up() if place is not None and node.attr == "parent" else None

    def _of_module(self, node: ast.expr) -> SourcePath | None:
        """``package.__file__`` and ``__spec__.origin``."""
        name = self.qualified(node)
        if name == "__spec__":
            return SourcePath((_OWN_FILE,))
        root = name.partition(".")[0] if name is not None else ""
        is_imported = root in {alias.partition(".")[0] for alias in self._aliases.values()}
        return SourcePath((_OWN_FILE,), name) if name and is_imported else None

    def _subscript(self, node: ast.Subscript) -> SourcePath | None:
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not isinstance(index, int):
            return None
        value = node.value
        if isinstance(value, ast.Name) and value.id == "__path__":
            return SourcePath()
        if isinstance(value, ast.Attribute) and value.attr == "__path__":
            found = self._of_module(value.value)
            return found and found.up()
        if isinstance(value, ast.Attribute) and value.attr == "parents":
            place = self.of(value.value)
            for _ in range(min(index, 20) + 1):
                place = place and place.up()
            return place
        is_split = isinstance(value, ast.Call) and self.qualified(value.func) == "os.path.split"
        if isinstance(value, ast.Call) and is_split and value.args and index == 0:
            place = self.of(value.args[0])
            return place and place.up()
        return None

    def _formatted(self, node: ast.JoinedStr) -> SourcePath | None:
        first, *rest = node.values or [ast.Constant("")]
        place = self.of(first.value) if isinstance(first, ast.FormattedValue) else None
        if place is None:
            return None
        known = ""
        for piece in rest:
            if not isinstance(piece, ast.Constant):  # the last part is not known to its end
                return place.down(known.rpartition("/")[0]).down(None)
            known += str(piece.value)
        return place.down(known)

    def _call(self, node: ast.Call) -> SourcePath | None:
        name = self.qualified(node.func)
        if name is not None and node.args:
            place = self._called(name, node.args)
            if place is not None:
                return place
        if name is not None and name.endswith("resources.files") and not node.args:
            return SourcePath()
        if isinstance(node.func, ast.Name) and node.func.id in self._functions:
            return self._sole(f"{node.func.id}()", self._returned(node.func.id))
        return self._method(node.func, node.args) if isinstance(node.func, ast.Attribute) else None

    def _called(self, name: str, arguments: list[ast.expr]) -> SourcePath | None:
        """What a function of the standard library makes of its arguments."""
        last = name.rpartition(".")[2]
        is_of_package = "." in name and last in _OF_PACKAGE
        if is_of_package and ("resources." in name or last.startswith(("resource_", "get_data"))):
            return self._resource(last, arguments)
        place = self.of(arguments[0])
        if place is None:
            return None
        if name == "os.path.dirname":
            return place.up()
        if name in _SAME_PATH or name == "os.path.join" or name.endswith("resources.as_file"):
            return self._below(place, arguments[1:])
        return place.down(None) if name in _LISTING else None

    def _resource(self, function: str, arguments: list[ast.expr]) -> SourcePath | None:
        anchor = self._text(arguments[0]) or self.qualified(arguments[0])
        if anchor is None:
            return None
        place = SourcePath((), None if anchor == self._module else anchor)
        if function == "files":
            return place
        if function in _FOLDER_OF_PACKAGE or len(arguments) < 2:
            return place.down(None)
        return place.down(self._text(arguments[1]))

    def _method(self, method: ast.Attribute, arguments: list[ast.expr]) -> SourcePath | None:
        place = self.of(method.value)
        if place is None or method.attr in _SAME_PATH_METHODS:
            return place
        if method.attr in _LISTING_METHODS:
            return place.down(None)
        if method.attr in ("joinpath", "with_name"):
            place = place.up() if method.attr == "with_name" else place
            return self._below(place, arguments)
        return None

    def _below(self, place: SourcePath, arguments: list[ast.expr]) -> SourcePath:
        for argument in arguments:
            place = place.down(self._text(argument))
        return place

    def _text(self, node: ast.expr) -> str | None:
        """The text that an expression stands for, if it is known."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            if node.id in self._own_names:
                return self._own_names[node.id]
            values = self.values.get(node.id, [])
            sole = values[0] if len(values) == 1 else None
            return self._text(sole) if isinstance(sole, ast.Constant) else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._text(node.left), self._text(node.right)
            return left + right if left is not None and right is not None else None
        if isinstance(node, ast.JoinedStr):
            pieces = [self._text(piece) for piece in node.values]
            return None if None in pieces else "".join(filter(None, pieces))
        return self._text(node.value) if isinstance(node, ast.FormattedValue) else None

    def qualified(self, node: ast.expr) -> str | None:
        """The dotted name that a chain of names stands for, imports' aliases resolved."""
        root, dot, rest = dotted_name(node).partition(".")
        return f"{self._aliases.get(root, root)}{dot}{rest}" if root else None


def find_reads(parsed: ParsedSource, module: str, package: str) -> tuple[FileRead, ...]:
    """The files and folders beside the code that a source reads, in source order.

    Args:
        parsed: the source.
        module: the module's name.
        package: the package that it is in, or is.
    """
    knows_place = any(word in parsed.text for word in _PLACES)
    if not knows_place and ("resource" not in parsed.text or not _RESOURCES.search(parsed.text)):
        return ()  # as most
    try:
        places = PathResolver(parsed.tree, module, package)
        found = dict.fromkeys(_reads(parsed.tree, places))
    except RecursionError:  # a table of thousands of calls in one expression: no path is in there
        return ()
    return tuple(sorted(found, key=lambda read: read.line))


def _reads(tree: ast.Module, places: PathResolver) -> Iterator[FileRead]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        place = places.of(node) if type(node) in _PATHS else None
        if place is not None:
            if not place.is_own_file:
                is_folder = place.is_open or not place.parts or place.parts[-1] == ".."
                kind = ReadKind.FOLDER if is_folder else ReadKind.FILE
                line = getattr(node, "lineno", 1)
                yield FileRead(kind, "/".join(place.parts), line, place.module)
        elif isinstance(node, ast.Constant):
            if id(node) not in places.docstrings and _may_name_file(node.value):
                yield FileRead(ReadKind.NAME, str(node.value), node.lineno)
        elif isinstance(node, ast.Call) and places.qualified(node.func) in _NO_READ:
            continue  # it only tells Python where to look for modules
        elif not _names_path(node, places):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _may_name_file(text: object) -> bool:
    if not isinstance(text, str) or len(text) > 200:
        return False
    has_form = "." in text or "/" in text or text.isupper()
    return has_form and _FILE_NAME.fullmatch(text) is not None


def _names_path(node: ast.AST, places: PathResolver) -> bool:
    """Whether a node gives a path a name: then it counts where the name is used."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Name) or target.id not in places.used:
        return False
    place = places.of(node.value)
    is_whole = place is not None and not place.is_open
    return is_whole and places.named(target.id) is not None
