"""Static detection of data files next to the code.

Paths are resolved from the module's own location (``__file__``, ``__path__``,
``importlib.resources``, ``pkgutil.get_data``) through the functions of :mod:`os.path` and
:mod:`pathlib`, and through names that are assigned once. Errors are cheap: a path counts only if
the file exists, and the self-test finds files that this search misses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from modpack.core.scan import FileRead, ReadKind
from modpack.discovery.syntax import Function, ParsedSource, dotted_name, resolve_relative

_PATH_NODES = frozenset(
    {ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.JoinedStr, ast.Call}
)
"""Types of expressions that may be a path."""
_OWN_FILE = "\0"
"""Placeholder for the module's own file as the last part of a path."""
_WILDCARDS = frozenset("*?[")

_KEEPS_PATH = frozenset(
    {"os.fspath", "os.path.abspath", "os.path.expanduser", "os.path.normpath", "os.path.realpath"}
    | {"pathlib.Path", "pathlib.PosixPath", "pathlib.PurePath", "pathlib.PurePosixPath", "str"}
)
_LISTING = frozenset({"glob.glob", "glob.iglob", "os.listdir", "os.scandir", "os.walk"})
_KEEPS_PATH_METHODS = frozenset(
    {"absolute", "as_posix", "exists", "expanduser", "is_dir", "is_file", "open", "read_bytes"}
    | {"read_text", "resolve"}
)
_LISTING_METHODS = frozenset({"glob", "iterdir", "rglob", "walk"})
_RESOURCE_READERS = frozenset(
    {"get_data", "open_binary", "open_text", "read_binary", "read_text", "is_resource", "path"}
    | {"resource_exists", "resource_filename", "resource_stream", "resource_string"}
)
_RESOURCE_LISTERS = frozenset({"contents", "files", "resource_listdir"})
_PACKAGE_READERS = _RESOURCE_READERS | _RESOURCE_LISTERS
_OWN_PATH_NAMES = ("__file__", "__path__", "__spec__", "get_data")
_RESOURCES = re.compile(r"importlib[._]resources|from importlib import .*resources|resource_\w+\(")
_FILE_NAME = re.compile(r"[\w.][\w .+@=-]*(/[\w.+@=-]+)*")
_NOT_READS = frozenset({"sys.path.append", "sys.path.insert", "sys.path.remove", "os.chdir"})


@dataclass(frozen=True)
class SourcePath:
    """A path relative to a module's folder.

    Attributes:
        parts: Components of the path.
        module: Module whose folder the path starts from; None for the scanned module.
        is_partial: Whether the rest of the path is unknown.
    """

    parts: tuple[str, ...] = ()
    module: str | None = None
    is_partial: bool = False

    def parent(self) -> SourcePath:
        if self.is_partial:
            return self
        above = self.parts[:-1] if self.parts and self.parts[-1] != ".." else (*self.parts, "..")
        return replace(self, parts=above)

    def joined(self, text: str | None) -> SourcePath:
        """Return the path with a relative path appended; None is an unknown one."""
        if self.is_partial:
            return self
        if text is None:
            return replace(self, is_partial=True)
        path = self
        for part in text.split("/"):
            if _WILDCARDS & set(part):
                return replace(path, is_partial=True)
            if part == "..":
                path = path.parent()
            elif part not in ("", "."):
                path = replace(path, parts=(*path.parts, part))
        return path

    @property
    def is_own_file(self) -> bool:
        return _OWN_FILE in self.parts


class PathResolver:
    """A static resolver for the paths that expressions evaluate to.

    Args:
        tree: Syntax tree of the source.
        module: Absolute name of the module.
        package: Python package that contains the module, or that it is.

    Attributes:
        used: Names that are read anywhere.
        values: Expressions that each name is bound to; None for a binding without an expression.
        docstrings: Ids of constants that are expression statements.
    """

    def __init__(self, tree: ast.Module, module: str, package: str) -> None:
        self.used: set[str] = set()
        self.values: dict[str, list[ast.expr | None]] = {}
        self.docstrings: set[int] = set()
        self._own_names = {"__name__": module, "__package__": package}
        self._module = module
        self._package = package
        self._aliases: dict[str, str] = {}
        self._functions: dict[str, list[Function]] = {}
        self._returns: dict[str, list[ast.expr | None]] = {}
        self._resolving: set[str] = set()
        self._rejected: set[int] = set()
        for node in ast.walk(tree):
            self._record_names(node)

    def _record_names(self, node: ast.AST) -> None:
        """Record the names that a node binds or reads, regardless of scopes."""
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.used.add(node.id)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._record_value(target, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._record_value(node.target, node.value)
        elif isinstance(node, (ast.For, ast.comprehension, ast.AugAssign)):
            self._record_value(node.target, None)
        elif isinstance(node, ast.withitem):
            self._record_value(node.optional_vars, node.context_expr)
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

    def _record_value(self, target: ast.expr | None, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.values.setdefault(target.id, []).append(value)

    def resolve(self, node: ast.AST | None) -> SourcePath | None:
        """Resolve an expression to a path, or None if it cannot be resolved statically."""
        if isinstance(node, ast.Name):
            return SourcePath((_OWN_FILE,)) if node.id == "__file__" else self.resolve_name(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.JoinedStr):
            return self._formatted_string(node)
        return self._call(node) if isinstance(node, ast.Call) else None

    def _binary(self, node: ast.BinOp) -> SourcePath | None:
        """Resolve ``path / a / b`` and ``path + a + b`` of any length."""
        chain: list[ast.BinOp] = []
        first: ast.expr = node
        while isinstance(first, ast.BinOp) and id(first) not in self._rejected:
            chain.append(first)
            first = first.left
        joins = all(isinstance(each.op, (ast.Add, ast.Div)) for each in chain)
        path = self.resolve(first) if joins and not isinstance(first, ast.BinOp) else None
        if path is None:
            self._rejected.update(map(id, chain))
            return None
        return self._append(path, [each.right for each in reversed(chain)])

    def resolve_name(self, name: str) -> SourcePath | None:
        values = self.values.get(name)
        return self._common_path(name, values) if values else None

    def _common_path(self, name: str, values: list[ast.expr | None]) -> SourcePath | None:
        """Return the path that all values of a name or a function resolve to."""
        if not values or None in values or name in self._resolving or len(values) > 3:
            return None
        self._resolving.add(name)
        try:
            paths = {self.resolve(value) for value in values}
        finally:
            self._resolving.discard(name)
        return paths.pop() if len(paths) == 1 else None

    def _return_values(self, function: str) -> list[ast.expr | None]:
        if function not in self._returns:
            nodes = (node for each in self._functions[function] for node in ast.walk(each))
            found = [node.value for node in nodes if isinstance(node, ast.Return)]
            self._returns[function] = found
        return self._returns[function]

    def _attribute(self, node: ast.Attribute) -> SourcePath | None:
        if node.attr in ("__file__", "origin"):
            return self._module_file(node.value)
        path = self.resolve(node.value)
        return path.parent() if path is not None and node.attr == "parent" else None

    def _module_file(self, node: ast.expr) -> SourcePath | None:
        """Resolve ``package.__file__`` and ``__spec__.origin``."""
        name = self.qualified_name(node)
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
            found = self._module_file(value.value)
            return found and found.parent()
        if isinstance(value, ast.Attribute) and value.attr == "parents":
            path = self.resolve(value.value)
            for _ in range(min(index, 20) + 1):
                path = path and path.parent()
            return path
        is_split = (
            isinstance(value, ast.Call) and self.qualified_name(value.func) == "os.path.split"
        )
        if isinstance(value, ast.Call) and is_split and value.args and index == 0:
            path = self.resolve(value.args[0])
            return path and path.parent()
        return None

    def _formatted_string(self, node: ast.JoinedStr) -> SourcePath | None:
        first, *rest = node.values or [ast.Constant("")]
        path = self.resolve(first.value) if isinstance(first, ast.FormattedValue) else None
        if path is None:
            return None
        known = ""
        for piece in rest:
            if not isinstance(piece, ast.Constant):  # the last component is incomplete
                return path.joined(known.rpartition("/")[0]).joined(None)
            known += str(piece.value)
        return path.joined(known)

    def _call(self, node: ast.Call) -> SourcePath | None:
        name = self.qualified_name(node.func)
        if name is not None and node.args:
            path = self._standard_call(name, node.args)
            if path is not None:
                return path
        if name is not None and name.endswith("resources.files") and not node.args:
            return SourcePath()
        if isinstance(node.func, ast.Name) and node.func.id in self._functions:
            return self._common_path(f"{node.func.id}()", self._return_values(node.func.id))
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node.func, node.args)
        return None

    def _standard_call(self, name: str, arguments: list[ast.expr]) -> SourcePath | None:
        """Resolve a call of a standard-library function."""
        last = name.rpartition(".")[2]
        reads_package = "." in name and last in _PACKAGE_READERS
        if reads_package and ("resources." in name or last.startswith(("resource_", "get_data"))):
            return self._resource_call(last, arguments)
        path = self.resolve(arguments[0])
        if path is None:
            return None
        if name == "os.path.dirname":
            return path.parent()
        if name in _KEEPS_PATH or name == "os.path.join" or name.endswith("resources.as_file"):
            return self._append(path, arguments[1:])
        return path.joined(None) if name in _LISTING else None

    def _resource_call(self, function: str, arguments: list[ast.expr]) -> SourcePath | None:
        anchor = self._string_value(arguments[0]) or self.qualified_name(arguments[0])
        if anchor is None:
            return None
        path = SourcePath((), None if anchor == self._module else anchor)
        if function == "files":
            return path
        if function in _RESOURCE_LISTERS or len(arguments) < 2:
            return path.joined(None)
        return path.joined(self._string_value(arguments[1]))

    def _method_call(self, method: ast.Attribute, arguments: list[ast.expr]) -> SourcePath | None:
        path = self.resolve(method.value)
        if path is None or method.attr in _KEEPS_PATH_METHODS:
            return path
        if method.attr in _LISTING_METHODS:
            return path.joined(None)
        if method.attr in ("joinpath", "with_name"):
            path = path.parent() if method.attr == "with_name" else path
            return self._append(path, arguments)
        return None

    def _append(self, path: SourcePath, arguments: list[ast.expr]) -> SourcePath:
        for argument in arguments:
            path = path.joined(self._string_value(argument))
        return path

    def _string_value(self, node: ast.expr) -> str | None:
        """Return the string that an expression evaluates to, if it is known."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            if node.id in self._own_names:
                return self._own_names[node.id]
            values = self.values.get(node.id, [])
            sole = values[0] if len(values) == 1 else None
            return self._string_value(sole) if isinstance(sole, ast.Constant) else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._string_value(node.left), self._string_value(node.right)
            return left + right if left is not None and right is not None else None
        if isinstance(node, ast.JoinedStr):
            pieces = [self._string_value(piece) for piece in node.values]
            return None if None in pieces else "".join(filter(None, pieces))
        return self._string_value(node.value) if isinstance(node, ast.FormattedValue) else None

    def qualified_name(self, node: ast.expr) -> str | None:
        """Return the dotted name of a chain of attributes, with import aliases resolved."""
        root, dot, rest = dotted_name(node).partition(".")
        return f"{self._aliases.get(root, root)}{dot}{rest}" if root else None


def find_reads(parsed: ParsedSource, module: str, package: str) -> tuple[FileRead, ...]:
    """Return the files and folders next to the code that a source reads, in source order.

    Args:
        parsed: Parsed source.
        module: Absolute name of the module.
        package: Python package that contains the module, or that it is.
    """
    uses_own_path = any(word in parsed.text for word in _OWN_PATH_NAMES)
    if not uses_own_path and ("resource" not in parsed.text or not _RESOURCES.search(parsed.text)):
        return ()
    try:
        resolver = PathResolver(parsed.tree, module, package)
        found = dict.fromkeys(_reads(parsed.tree, resolver))
    except RecursionError:  # one expression with thousands of nested calls, hence not a path
        return ()
    return tuple(sorted(found, key=lambda read: read.line))


def _reads(tree: ast.Module, resolver: PathResolver) -> Iterator[FileRead]:
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        path = resolver.resolve(node) if type(node) in _PATH_NODES else None
        if path is not None:
            if not path.is_own_file:
                is_folder = path.is_partial or not path.parts or path.parts[-1] == ".."
                kind = ReadKind.FOLDER if is_folder else ReadKind.FILE
                line = getattr(node, "lineno", 1)
                yield FileRead(kind, "/".join(path.parts), line, path.module)
        elif isinstance(node, ast.Constant):
            if id(node) not in resolver.docstrings and _may_name_file(node.value):
                yield FileRead(ReadKind.NAME, str(node.value), node.lineno)
        elif isinstance(node, ast.Call) and resolver.qualified_name(node.func) in _NOT_READS:
            continue  # the call only changes where Python searches for modules
        elif not _names_path(node, resolver):
            pending.extend(reversed(list(ast.iter_child_nodes(node))))


def _may_name_file(text: object) -> bool:
    if not isinstance(text, str) or len(text) > 200:
        return False
    looks_like_file = "." in text or "/" in text or text.isupper()
    return looks_like_file and _FILE_NAME.fullmatch(text) is not None


def _names_path(node: ast.AST, resolver: PathResolver) -> bool:
    """Return whether a node assigns a path to a name, whose uses count instead."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Name) or target.id not in resolver.used:
        return False
    path = resolver.resolve(node.value)
    is_whole = path is not None and not path.is_partial
    return is_whole and resolver.resolve_name(target.id) is not None
