"""Which names of its module a statement uses: when it runs, and later.

Read off the compiled code, which knows what is local, global, or a closure's; it is never run.

The statements of a script, or of a notebook's cells, that bind names. Nothing is run.

A script defines classes and functions, and then does its work. What an object needs of it are
the definitions; :class:`Script` finds the statements that can have made a name.

The text of a module made of a script's definitions: their own text, in their own order.
"""

from __future__ import annotations
import __future__

import ast
import dis
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import CodeType

from modpack.discovery.conditions import catches_absence
from modpack.discovery.syntax import asks_for_main, bodies, is_main_guard, is_type_checking

_TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_OPTIMIZED = 0x1  # CO_OPTIMIZED: a function's code, not that of a class or a module
_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters")
_OF_MODULE = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"})
_BY_NAME = frozenset({"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_OF_EVERY_MODULE = frozenset(
    {"__name__", "__qualname__", "__module__", "__file__", "__doc__", "__builtins__"}
    | {"__spec__", "__package__", "__loader__", "__annotations__"}
)


@dataclass(frozen=True)
class Uses:
    """Names of the module that a statement uses.

    Attributes:
        eager: when it runs: in decorators, base classes, default values, bodies of classes.
        late: when the functions in it are called, or their annotations are looked at.
    """

    eager: frozenset[str]
    late: frozenset[str]


def uses_of(node: ast.stmt, flags: int) -> Uses:
    """The names of the module that a statement of its top level uses.

    Args:
        node: the statement.
        flags: compiler flags of the ``from __future__`` statements in force.

    Raises:
        SyntaxError, ValueError, RecursionError: it does not compile.
    """
    module = ast.Module([node], [])
    code = compile(module, "<script>", "exec", flags | _TOP_LEVEL_AWAIT, dont_inherit=True)
    found = list(_names(code, True))
    eager = {name for name, is_eager in found if is_eager}
    late = {name for name, is_eager in found if not is_eager} | set(_annotated(node))
    return Uses(frozenset(eager - _OF_EVERY_MODULE), frozenset(late - _OF_EVERY_MODULE))


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
            yield from _names(inner, eager and _runs_at_once(inner))


def _runs_at_once(code: CodeType) -> bool:
    return not code.co_flags & _OPTIMIZED or code.co_name.startswith(_AT_ONCE)


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


class Kind(Enum):
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
class Statement:
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
    kind: Kind
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
    def uses(self) -> Uses:
        """The names of the module that it uses, in force its cell's ``__future__``."""
        if self.kind is Kind.IMPORT:
            return Uses(frozenset(), frozenset())
        return uses_of(self.node, self.flags)

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
            return self.node.value if _is_one_name(targets) else None
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
        self._statements: list[Statement] = []
        self._by_name: dict[str, list[Statement]] = {}
        flags = 0  # those of a notebook's cell hold for the cells after it, too
        for cell in cells:
            tree = _parsed(cell)
            if tree is not None:
                self.cells[cell] = tree
                flags |= future_flags(tree)
                self._statements.extend(_Reader(cell, tree, len(self._statements), flags).read())
        for statement in self._statements:
            for name in dict.fromkeys(statement.binds):
                self._by_name.setdefault(name, []).append(statement)

    def binding(self, name: str) -> Sequence[Statement]:
        """The statements that bind a name, in the order of execution."""
        return tuple(self._by_name.get(name, ()))

    def statement(self, number: int) -> Statement:
        """The statement of a number."""
        return self._statements[number]

    def additions(self, definition: Statement) -> Sequence[Statement]:
        """Statements that add to a definition, or put what they make of it in its place.

        ``@f.register`` over another function, for one, or ``Net = compiled(Net)``.
        """
        (name,) = definition.binds
        found = [
            each
            for each in self.binding(name)
            if each.kind is Kind.ASSIGNMENT
            and each.number > definition.number
            and name in each.uses.eager
        ]
        return (*found, *(each for each in self._statements if name in each.decorated_by))

    @property
    def star_imports(self) -> Sequence[Statement]:
        """The statements that import all names of a module, in the order of execution."""
        return self.binding("*")

    @cached_property
    def patched(self) -> frozenset[tuple[str, str]]:
        """The attributes that statements outside of functions set: ``Net.scale = 2``."""
        return frozenset(pair for tree in self.cells.values() for pair in _attributes_set(tree))


def does_work(source: str) -> bool:
    r"""Whether a module does more, when it is imported, than to import and to define.

    >>> does_work("import os\ndef f(): return os.sep\nSIZE = 3")
    False
    >>> does_work("model = build()")
    True
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    return not all(map(_only_defines, body))


def _only_defines(node: ast.stmt) -> bool:
    if isinstance(node, (*_Function, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return not any(isinstance(part, ast.Call) for part in ast.walk(node))
    return is_import_block(node) or is_main_guard(node)


def future_flags(tree: ast.Module) -> int:
    """The compiler flags of a source's ``from __future__`` statements."""
    features = [
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    ]
    flags = 0
    for feature in features:
        known = getattr(__future__, feature, None)
        flags |= known.compiler_flag if known is not None else 0
    return flags


def imported_as(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, ast.alias]]:
    """The names that an import statement binds, each with the part of it that does."""
    for alias in node.names:
        if alias.asname is not None or isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, alias
        else:
            yield alias.name.partition(".")[0], alias


def _parsed(cell: Cell) -> ast.Module | None:
    try:
        return ast.parse(cell.text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_one_name(targets: Sequence[ast.expr]) -> bool:
    return len(targets) == 1 and isinstance(targets[0], ast.Name)


@dataclass
class _Reader:
    """Reads the statements of one cell."""

    cell: Cell
    tree: ast.Module
    first: int
    flags: int
    found: list[Statement] = field(default_factory=list)

    def read(self) -> list[Statement]:
        """All statements that bind names, in order."""
        self._read(self.tree.body, ())
        return self.found

    def _read(self, body: Sequence[ast.stmt], inside: tuple[str, ...]) -> None:
        for node in body:
            kind, binds = _bound_by(node)
            if kind is not None and binds:
                self._note(kind, node, binds, inside)
            if kind in (None, Kind.OTHER):
                header = (*inside, self._first_line(node))
                for _, _, block in bodies(node):
                    self._read(block, header)

    def _note(
        self, kind: Kind, node: ast.stmt, binds: tuple[str, ...], inside: tuple[str, ...]
    ) -> None:
        number = self.first + len(self.found)
        self.found.append(Statement(self.cell, number, kind, node, binds, inside, self.flags))

    def _first_line(self, node: ast.stmt) -> str:
        return self.cell.text.split("\n")[node.lineno - 1].strip()


_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def _bound_by(node: ast.stmt) -> tuple[Kind | None, tuple[str, ...]]:
    """What kind of statement it is, and the names that it binds; no kind, no names."""
    if isinstance(node, _Function):
        return Kind.FUNCTION, (node.name,)
    if isinstance(node, ast.ClassDef):
        return Kind.CLASS, (node.name,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        return Kind.IMPORT, () if future else tuple(name for name, _ in imported_as(node))
    if is_import_block(node):
        return Kind.IMPORT_BLOCK, tuple(_names_bound_in(node))
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        is_bare = isinstance(node, ast.AnnAssign) and node.value is None
        return Kind.ASSIGNMENT, () if is_bare else tuple(_stored_in(node))
    if type(node).__name__ == "TypeAlias":  # Python 3.12
        return Kind.ASSIGNMENT, tuple(_stored_in(node))[:1]
    header = tuple(name for part in _header_of(node) for name in _stored_in(part))
    return (Kind.OTHER, header) if header else (None, ())


def _names_bound_in(block: ast.stmt) -> Iterator[str]:
    for _, _, inner in bodies(block):
        for node in inner:
            yield from _bound_by(node)[1] or _names_bound_in(node)


def _stored_in(node: ast.AST) -> Iterator[str]:
    """The names that a statement or an expression assigns to, outside of functions in it."""
    todo: list[ast.AST] = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
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


def _attributes_set(tree: ast.Module) -> Iterator[tuple[str, str]]:
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name):
                yield node.value.id, node.attr
        if not isinstance(node, (*_Function, ast.Lambda, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(node))


_WIDTH = 96

DEFINITION = "definition"
IMPORTS = "imports"


@dataclass(frozen=True, order=True)
class Piece:
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


def module_text(header: str, pieces: Iterable[Piece], postponed: bool) -> ModuleText:
    """Put a module together.

    Args:
        header: what stands above everything, comments.
        pieces: its parts, in any order.
        postponed: whether its annotations are postponed (PEP 563).
    """
    text = header.rstrip("\n") + "\n"
    if postponed:
        text += "\nfrom __future__ import annotations\n"
    before: Piece | None = None
    origins = []
    for piece in sorted(pieces):
        text += _gap(before, piece)
        first = text.count("\n") + 1
        text += piece.text.rstrip("\n") + "\n"
        if piece.origin is not None:
            origins.append((range(first, text.count("\n") + 1), piece.origin))
        before = piece
    return ModuleText(text, tuple(origins))


def _gap(before: Piece | None, piece: Piece) -> str:
    if before is None or piece.group != before.group:
        around = DEFINITION in (piece.group, before.group if before is not None else "")
        return "\n\n" if around else "\n"
    return "\n\n" if piece.group == DEFINITION else ""


def text_of_statement(statement: Statement, names: frozenset[str], package: str) -> tuple[str, int]:
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
    branch = _branch(statement)
    return branch + text, start + 1 - bool(branch)


def value_comment(statement: Statement | None, name: str) -> str:
    """What is said of a name whose value comes with the objects."""
    said = "its value comes with the objects"
    if statement is None:
        return f"# {name}: {said}"
    return f"# {name} ({said}): {_one_line(statement)}"


def literal_text(statement: Statement | None, name: str, value: str) -> str:
    """A name with its value, and what the script says of it."""
    said = f"# in the script: {_one_line(statement)}" if statement is not None else ""
    line = f"{name} = {value}"
    if said and len(line) + len(said) > _WIDTH:
        return f"{said}\n{line}"
    return f"{line}  {said}".rstrip()


def _one_line(statement: Statement) -> str:
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
    return ast.ImportFrom(_absolute(node, package), wanted, 0)


def _absolute(node: ast.ImportFrom, package: str) -> str | None:
    """The module that an import names, from the top."""
    if not node.level:
        return node.module
    base = package.rsplit(".", node.level - 1)[0] if package else ""
    return ".".join(filter(None, (base, node.module)))


def _branch(statement: Statement) -> str:
    """The line over a statement that stands inside another one."""
    if not statement.inside:
        return ""
    return f"if True:  # in the script: {' '.join(statement.inside)}\n"


def _shares_lines(statement: Statement, first: str, last: str) -> bool:
    """Whether other statements stand on its lines."""
    node = statement.node
    decorated = statement.line < node.lineno
    before = "" if decorated else first.encode()[: node.col_offset].decode()
    after = last.encode()[node.end_col_offset :].decode()
    return bool(before.strip()) or after.lstrip().startswith(";")


def _comments_above(lines: Sequence[str], first: int) -> int:
    """How many lines of comments stand right above a line, with its indentation."""
    indentation = re.match(r"\s*", lines[first])
    margin = indentation[0] if indentation else ""
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
        plain = is_type_checking(node.test) or _consists_of(node.test, _PLAIN_TEST)
        return plain and not asks_for_main(node.test) and _only_imports([*node.body, *node.orelse])
    if isinstance(node, ast.Try):
        handled = [each for handler in node.handlers for each in handler.body]
        guards = all(catches_absence(handler.type) for handler in node.handlers)
        everything = [*node.body, *handled, *node.orelse, *node.finalbody]
        return guards and bool(node.handlers) and _only_imports(everything)
    return False


def _only_imports(body: list[ast.stmt]) -> bool:
    """Whether there are imports, and besides them only names for what is absent."""
    leaves = list(_leaves(body))
    imports = [leaf for leaf in leaves if isinstance(leaf, (ast.Import, ast.ImportFrom))]
    others = [leaf for leaf in leaves if not isinstance(leaf, (ast.Import, ast.ImportFrom))]
    return bool(imports) and all(_is_plain(leaf) for leaf in others)


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
