"""The statements of a script, or a notebook, that bind names, and the module made of some of them.

A script defines classes and functions, and then does its work. What an object needs of it are
the definitions; :class:`Script` finds the statements that can have made a name, and which other
names they use: compiled code, which is never run, knows what is local, global, or a closure's.
"""

from __future__ import annotations
import __future__

import ast
import dis
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import CodeType

from modpack.discovery.conditions import catches_import_error
from modpack.discovery.syntax import (
    bodies,
    is_main_guard,
    is_type_checking,
    resolve_relative,
    uses_dunder_name,
)

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_OPTIMIZED = 0x1  # CO_OPTIMIZED: a function's code, not that of a class or a module
_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters")
_OF_MODULE = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"})
_BY_NAME = frozenset({"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_OF_EVERY_MODULE = frozenset(
    {"__name__", "__qualname__", "__module__", "__file__", "__doc__", "__builtins__"}
    | {"__spec__", "__package__", "__loader__", "__annotations__"}
)


@dataclass(frozen=True)
class NameUses:
    """Names of the module that a statement uses.

    Attributes:
        eager: when it runs: in decorators, base classes, default values, bodies of classes.
        late: when the functions in it are called, or their annotations are looked at.
    """

    eager: frozenset[str]
    late: frozenset[str]


def _names(code: CodeType, eager: bool) -> Iterator[tuple[str, bool]]:
    own: set[str] = set()  # what a class body has bound by then is its own
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation == "STORE_NAME":
            own.add(name)
        elif operation in _OF_MODULE or (operation in _BY_NAME and name not in own):
            yield name, eager
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            runs_at_once = not inner.co_flags & _OPTIMIZED or inner.co_name.startswith(_AT_ONCE)
            yield from _names(inner, eager and runs_at_once)


def _annotated(node: ast.stmt) -> Iterator[str]:
    """Names in annotations, as text or not: what looks at them needs what they name."""
    for inner in ast.walk(node):
        for note in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            if isinstance(note, ast.expr):
                yield from _named_in(note)


def _named_in(note: ast.expr) -> Iterator[str]:
    for part in ast.walk(note):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                yield from _named_in(ast.parse(part.value.strip(), mode="eval").body)
            except (SyntaxError, ValueError, RecursionError):  # text that is no annotation
                continue


@dataclass(frozen=True)
class Cell:
    """A piece of a script: its whole file, or a cell of a notebook.

    Attributes:
        file: what its code calls its file.
        text: its source.
    """

    file: str
    text: str


class StatementKind(Enum):
    """What a statement does."""

    FUNCTION = "function"
    CLASS = "class"
    IMPORT = "import"
    IMPORT_BLOCK = "import block"
    """An ``if`` or ``try`` around imports, taken as a whole."""
    ASSIGNMENT = "assignment"
    OTHER = "other"
    """One that binds names on its way, such as a loop's."""


@dataclass(frozen=True, eq=False)
class TopLevelStatement:
    """A statement that binds names of its module.

    Attributes:
        cell: where it stands.
        number: its place among all of the script, in the order of execution.
        kind: what it does.
        node: its syntax tree.
        binds: the names; ``*`` for those of a star import.
        inside: the first lines of the compound statements around it, the outermost first.
        flags: compiler flags of the ``from __future__`` statements in force.
    """

    cell: Cell
    number: int
    kind: StatementKind
    node: ast.stmt
    binds: tuple[str, ...]
    inside: tuple[str, ...]
    flags: int

    @property
    def line(self) -> int:
        """Its first line in the cell, decorators included, from 1."""
        decorators: list[ast.expr] = getattr(self.node, "decorator_list", [])
        return min([self.node.lineno, *(each.lineno for each in decorators)])

    @property
    def place(self) -> str:
        """``file:line``, for people."""
        return f"{self.cell.file}:{self.line}"

    @cached_property
    def uses(self) -> NameUses:
        """The names of the module that it uses, in force its cell's ``__future__``.

        Raises:
            SyntaxError, ValueError, RecursionError: it does not compile.
        """
        if self.kind is StatementKind.IMPORT:
            return NameUses(frozenset(), frozenset())
        module, flags = ast.Module([self.node], []), self.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        found = list(_names(compile(module, "<script>", "exec", flags, dont_inherit=True), True))
        eager = {name for name, is_eager in found if is_eager}
        late = {name for name, is_eager in found if not is_eager} | set(_annotated(self.node))
        return NameUses(frozenset(eager - _OF_EVERY_MODULE), frozenset(late - _OF_EVERY_MODULE))

    @cached_property
    def decorated_by(self) -> frozenset[str]:
        """The names whose attributes its decorators are: ``f`` in ``@f.register(int)``."""
        found = set()
        for decorator in getattr(self.node, "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                found.add(called.value.id)
        return frozenset(found)

    @cached_property
    def value(self) -> ast.expr | None:
        """What ``name = value`` binds its one name to; None for any other statement."""
        if isinstance(self.node, ast.Assign):
            targets = self.node.targets
            is_one_name = len(targets) == 1 and isinstance(targets[0], ast.Name)
            return self.node.value if is_one_name else None
        if isinstance(self.node, ast.AnnAssign) and isinstance(self.node.target, ast.Name):
            return self.node.value
        return None


class Script:
    """The source of a script, in the order in which it was executed.

    Args:
        cells: its pieces; those that do not parse were never executed, and are left out.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells: dict[Cell, ast.Module] = {}
        self._statements: list[TopLevelStatement] = []
        self._by_name: dict[str, list[TopLevelStatement]] = {}
        flags = 0  # those of a notebook's cell hold for the cells after it, too
        for cell in cells:
            tree = _parsed(cell.text)
            if tree is not None:
                self.cells[cell] = tree
                flags |= _future_flags(tree)
                self._read(cell, tree.body, (), flags)
        for statement in self._statements:
            for name in dict.fromkeys(statement.binds):
                self._by_name.setdefault(name, []).append(statement)

    def _read(
        self, cell: Cell, body: Sequence[ast.stmt], inside: tuple[str, ...], flags: int
    ) -> None:
        for node in body:
            kind, binds = _bound_by(node)
            if kind is not None and binds:
                number = len(self._statements)
                self._statements.append(
                    TopLevelStatement(cell, number, kind, node, binds, inside, flags)
                )
            if kind in (None, StatementKind.OTHER):
                first_line = cell.text.split("\n")[node.lineno - 1].strip()
                for _, _, block in bodies(node):
                    self._read(cell, block, (*inside, first_line), flags)

    def binding(self, name: str) -> Sequence[TopLevelStatement]:
        """The statements that bind a name, in the order of execution."""
        return tuple(self._by_name.get(name, ()))

    def statement(self, number: int) -> TopLevelStatement:
        """The statement of a number."""
        return self._statements[number]

    def additions(self, definition: TopLevelStatement) -> Sequence[TopLevelStatement]:
        """Statements that add to a definition, or put what they make of it in its place.

        ``@f.register`` over another function, for one, or ``Net = compiled(Net)``.
        """
        (name,) = definition.binds
        found = [
            each
            for each in self.binding(name)
            if each.kind is StatementKind.ASSIGNMENT
            and each.number > definition.number
            and name in each.uses.eager
        ]
        return (*found, *(each for each in self._statements if name in each.decorated_by))

    @property
    def star_imports(self) -> Sequence[TopLevelStatement]:
        """The statements that import all names of a module, in the order of execution."""
        return self.binding("*")

    @cached_property
    def patched(self) -> frozenset[tuple[str, str]]:
        """The attributes that statements outside of functions set: ``Net.scale = 2``."""
        parts = (part for tree in self.cells.values() for part in _outside_of_functions(tree))
        return frozenset(
            (part.value.id, part.attr)
            for part in parts
            if isinstance(part, ast.Attribute)
            and isinstance(part.ctx, ast.Store)
            and isinstance(part.value, ast.Name)
        )


def does_work(source: str) -> bool:
    r"""Whether a module does more, when it is imported, than to import and to define.

    >>> does_work("import os\ndef f(): return os.sep\nSIZE = 3")
    False
    >>> does_work("model = build()")
    True
    """
    tree = _parsed(source)
    return tree is not None and not all(map(_only_defines, tree.body))


def _only_defines(node: ast.stmt) -> bool:
    if isinstance(node, (*_Function, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return not any(isinstance(part, ast.Call) for part in ast.walk(node))
    return is_import_block(node) or is_main_guard(node)


def _future_flags(tree: ast.Module) -> int:
    """The compiler flags of a source's ``from __future__`` statements."""
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                feature = getattr(__future__, alias.name, None)
                flags |= feature.compiler_flag if feature is not None else 0
    return flags


def imported_as(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, ast.alias]]:
    """The names that an import statement binds, each with the part of it that does."""
    for alias in node.names:
        if alias.asname is not None or isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, alias
        else:
            yield alias.name.partition(".")[0], alias


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _bound_by(node: ast.stmt) -> tuple[StatementKind | None, tuple[str, ...]]:
    """What kind of statement it is, and the names that it binds; no kind, no names."""
    if isinstance(node, _Function):
        return StatementKind.FUNCTION, (node.name,)
    if isinstance(node, ast.ClassDef):
        return StatementKind.CLASS, (node.name,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        return StatementKind.IMPORT, () if future else tuple(name for name, _ in imported_as(node))
    if is_import_block(node):
        return StatementKind.IMPORT_BLOCK, tuple(_names_bound_in(node))
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        is_bare = isinstance(node, ast.AnnAssign) and node.value is None
        return StatementKind.ASSIGNMENT, () if is_bare else tuple(_stored_in(node))
    if type(node).__name__ == "TypeAlias":  # Python 3.12
        return StatementKind.ASSIGNMENT, tuple(_stored_in(node))[:1]
    header = tuple(name for part in _header_of(node) for name in _stored_in(part))
    return (StatementKind.OTHER, header) if header else (None, ())


def _names_bound_in(block: ast.stmt) -> Iterator[str]:
    for _, _, inner in bodies(block):
        for node in inner:
            yield from _bound_by(node)[1] or _names_bound_in(node)


def _stored_in(node: ast.AST) -> Iterator[str]:
    """The names that a statement or an expression assigns to, outside of functions in it."""
    for part in _outside_of_functions(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    todo: list[ast.AST] = [node]
    while todo:
        part = todo.pop()
        yield part
        if not isinstance(part, (*_Function, ast.Lambda, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(part))


def _header_of(node: ast.stmt) -> Iterator[ast.AST]:
    """The parts of a compound statement that are no blocks; a plain one itself."""
    if not any(bodies(node)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child


_WIDTH = 96

DEFINITION = "definition"
IMPORTS = "imports"


@dataclass(frozen=True, order=True)
class ModulePiece:
    """A part of the module.

    Attributes:
        number: its place among the others.
        text: its lines.
        group: what it stands together with: blank lines are between groups.
        origin: file and line of the script where its first line stands, if it does; the others
            follow it there as they do here.
    """

    number: int
    text: str
    group: str = ""
    origin: tuple[str, int] | None = None


@dataclass(frozen=True)
class ModuleText:
    """A module that was put together.

    Attributes:
        text: its source.
        origins: the lines of each part that stands in the script, and where its first one does.
    """

    text: str
    origins: tuple[tuple[range, tuple[str, int]], ...] = ()

    def place(self, line: int) -> str | None:
        """``file:line`` of the script for a line of the module; None if it has none there."""
        for lines, (file, start) in self.origins:
            if line in lines:
                return f"{file}:{start + line - lines.start}"
        return None


def module_text(header: str, pieces: Iterable[ModulePiece], postponed: bool) -> ModuleText:
    """Put a module together.

    Args:
        header: what stands above everything, comments.
        pieces: its parts, in any order.
        postponed: whether its annotations are postponed (PEP 563).
    """
    text = header.rstrip("\n") + "\n"
    if postponed:
        text += "\nfrom __future__ import annotations\n"
    before: ModulePiece | None = None
    origins = []
    for piece in sorted(pieces):
        groups = {piece.group, before.group if before is not None else None}
        text += "\n\n" if DEFINITION in groups else "\n" * (len(groups) - 1)
        first = text.count("\n") + 1
        text += piece.text.rstrip("\n") + "\n"
        if piece.origin is not None:
            origins.append((range(first, text.count("\n") + 1), piece.origin))
        before = piece
    return ModuleText(text, tuple(origins))


def text_of_statement(
    statement: TopLevelStatement, names: frozenset[str], package: str
) -> tuple[str, int]:
    """The text of a statement, as it stands at the top level of a module.

    One that stands in a branch or a block keeps its indentation, under a line that says which.

    Args:
        statement: the statement.
        names: which names of an import are wanted; all others are left out of it.
        package: the package that relative imports start from; empty if there is none.

    Returns:
        The text, and the line of the script that its first line stands for.
    """
    if isinstance(statement.node, (ast.Import, ast.ImportFrom)):
        changed = _changed_import(statement.node, names, package)
        if changed is not None or statement.inside:
            return ast.unparse(changed or statement.node), statement.line
    lines = statement.cell.text.split("\n")
    first, last = statement.line - 1, (statement.node.end_lineno or statement.node.lineno) - 1
    if _shares_lines(statement, lines[first], lines[last]):
        text = ast.get_source_segment(statement.cell.text, statement.node) or ""
        text = f"    {text}" if statement.inside else text
        start = statement.node.lineno - 1
    else:
        start = first - _comments_above(lines, first)
        text = "\n".join(lines[start : last + 1])
    branch = ""
    if statement.inside:
        branch = f"if True:  # in the script: {' '.join(statement.inside)}\n"
    return branch + text, start + 1 - bool(branch)


def value_comment(statement: TopLevelStatement | None, name: str) -> str:
    """What is said of a name whose value comes with the objects."""
    said = "its value comes with the objects"
    if statement is None:
        return f"# {name}: {said}"
    return f"# {name} ({said}): {_one_line(statement)}"


def literal_text(statement: TopLevelStatement | None, name: str, value: str) -> str:
    """A name with its value, and what the script says of it."""
    said = f"# in the script: {_one_line(statement)}" if statement is not None else ""
    line = f"{name} = {value}"
    if said and len(line) + len(said) > _WIDTH:
        return f"{said}\n{line}"
    return f"{line}  {said}".rstrip()


def _one_line(statement: TopLevelStatement) -> str:
    source = ast.get_source_segment(statement.cell.text, statement.node) or ""
    first, *others = source.split("\n")
    return f"{first.rstrip()} ..." if others or len(first) > 80 else first.rstrip()


def _changed_import(
    node: ast.Import | ast.ImportFrom, names: frozenset[str], package: str
) -> ast.stmt | None:
    """An import of the wanted names only, from the top; None if it is one already."""
    wanted = [alias for name, alias in imported_as(node) if name in names]
    if any(alias.name == "*" for alias in node.names):
        wanted = [ast.alias(name) for name in sorted(names)]
    if isinstance(node, ast.Import):
        return ast.Import(wanted) if len(wanted) < len(node.names) else None
    if wanted == node.names and not node.level:
        return None
    module = resolve_relative(package, node.level, node.module or "")
    return ast.ImportFrom(module or node.module, wanted, 0)


def _shares_lines(statement: TopLevelStatement, first: str, last: str) -> bool:
    """Whether other statements stand on its lines."""
    node = statement.node
    decorated = statement.line < node.lineno
    before = "" if decorated else first.encode()[: node.col_offset].decode()
    after = last.encode()[node.end_col_offset :].decode()
    return bool(before.strip()) or after.lstrip().startswith(";")


def _comments_above(lines: Sequence[str], first: int) -> int:
    """How many lines of comments stand right above a line, with its indentation."""
    margin = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    count = 0
    while count < first and lines[first - count - 1].startswith(f"{margin}#"):
        count += 1
    return count


_PLAIN_TEST = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Tuple),
    *(ast.Subscript, ast.Slice, ast.cmpop, ast.boolop, ast.unaryop, ast.expr_context),
)
_PLAIN_VALUE = (ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.unaryop, ast.expr_context)


def is_import_block(node: ast.stmt) -> bool:
    """Whether a statement is an ``if`` or a ``try`` that does nothing but import."""
    if isinstance(node, ast.If):
        is_plain = is_type_checking(node.test) or _consists_of(node.test, _PLAIN_TEST)
        is_plain = is_plain and not uses_dunder_name(node.test)
        return is_plain and _only_imports([*node.body, *node.orelse])
    if isinstance(node, ast.Try):
        handled = [each for handler in node.handlers for each in handler.body]
        guards = all(catches_import_error(handler.type) for handler in node.handlers)
        everything = [*node.body, *handled, *node.orelse, *node.finalbody]
        return guards and bool(node.handlers) and _only_imports(everything)
    return False


def _only_imports(body: list[ast.stmt]) -> bool:
    """Whether there are imports, and besides them only names for what is absent."""
    leaves = list(_leaves(body))
    others = [leaf for leaf in leaves if not isinstance(leaf, (ast.Import, ast.ImportFrom))]
    return len(others) < len(leaves) and all(map(_is_plain, others))


def _leaves(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)) and is_import_block(node):
            handled = [each for handler in getattr(node, "handlers", []) for each in handler.body]
            yield from _leaves([*node.body, *handled, *node.orelse])
        else:
            yield node


def _is_plain(node: ast.stmt) -> bool:
    if isinstance(node, ast.Pass):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        names = all(isinstance(target, ast.Name) for target in node.targets)
        return names and _consists_of(node.value, _PLAIN_VALUE)
    return False


def _consists_of(node: ast.expr, kinds: tuple[type[ast.AST], ...]) -> bool:
    return all(isinstance(part, kinds) for part in ast.walk(node))
