"""The statements of a script or notebook that bind names, and a module generated from them.

A script defines classes and functions, and then does its work. An object needs only the
definitions. :class:`Script` finds the statements that bind a name, and the names that they use.
Statements are compiled, but never run, to tell local, global, and closure names apart.
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
from typing import NamedTuple

from modpack.discovery.conditions import catches_import_error
from modpack.discovery.syntax import (
    Function,
    ParsedSource,
    bindings,
    bodies,
    import_bindings,
    is_main_guard,
    is_type_checking,
    parse_source,
    resolve_relative,
    uses_dunder_name,
)

_OPTIMIZED = 0x1  # CO_OPTIMIZED: a function's code, not that of a class or a module
_INLINE_CODE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters")
_GLOBAL_OPCODES = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"})
_NAME_OPCODES = frozenset({"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_MODULE_ATTRIBUTES = frozenset(
    {"__name__", "__qualname__", "__module__", "__file__", "__doc__", "__builtins__"}
    | {"__spec__", "__package__", "__loader__", "__annotations__"}
)


class NameUses(NamedTuple):
    """Module-level names that a statement uses.

    Attributes:
        eager: Names used when the statement runs: in decorators, base classes, default values, and
            class bodies.
        late: Names used when its functions are called or its annotations are evaluated.
    """

    eager: frozenset[str]
    late: frozenset[str]


def _global_names(code: CodeType, eager: bool) -> Iterator[tuple[str, bool]]:
    own: set[str] = set()  # names that the class body has bound so far
    # The compiler, not the tree, tells local names from global ones in all versions of Python.
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation == "STORE_NAME":
            own.add(name)
        elif operation in _GLOBAL_OPCODES or (operation in _NAME_OPCODES and name not in own):
            yield name, eager
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            # Class bodies and comprehensions run with the code around them, functions when called.
            runs_at_once = not inner.co_flags & _OPTIMIZED or inner.co_name.startswith(_INLINE_CODE)
            yield from _global_names(inner, eager and runs_at_once)


def _annotation_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names in annotations, including quoted ones, because code may evaluate them."""
    for inner in ast.walk(node):
        for note in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            if isinstance(note, ast.expr):
                yield from _names_in_annotation(note)


def _names_in_annotation(note: ast.expr) -> Iterator[str]:
    for part in ast.walk(note):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                yield from _names_in_annotation(ast.parse(part.value.strip(), mode="eval").body)
            except (SyntaxError, ValueError, RecursionError):  # a string that is not an annotation
                continue


class Cell(NamedTuple):
    """The file of a script, or a cell of a notebook.

    Attributes:
        file: File name in the code objects.
        text: Source.
    """

    file: str
    text: str


class StatementKind(Enum):
    """The kind of a top-level statement."""

    FUNCTION = "function"
    CLASS = "class"
    IMPORT = "import"
    IMPORT_BLOCK = "import block"
    """An ``if`` or ``try`` that contains only imports."""
    ASSIGNMENT = "assignment"
    OTHER = "other"
    """Another statement that binds names, such as a loop."""


@dataclass(frozen=True, eq=False)
class TopLevelStatement:
    """A statement that binds module-level names.

    Attributes:
        cell: Cell that contains the statement.
        number: Position among all such statements of the script, in execution order.
        kind: Kind of statement.
        node: Syntax tree.
        binds: Bound names; ``*`` for those of a star import.
        enclosing: First lines of the enclosing compound statements, outermost first.
        flags: Compiler flags of the active ``from __future__`` statements.
    """

    cell: Cell
    number: int
    kind: StatementKind
    node: ast.stmt
    binds: tuple[str, ...]
    enclosing: tuple[str, ...]
    flags: int

    @property
    def line(self) -> int:
        """First 1-based line in the cell, including decorators."""
        decorators: list[ast.expr] = getattr(self.node, "decorator_list", [])
        return min([self.node.lineno, *(each.lineno for each in decorators)])

    @property
    def location(self) -> str:
        """Location as ``file:line``."""
        return f"{self.cell.file}:{self.line}"

    @cached_property
    def uses(self) -> NameUses:
        """Module-level names that the statement uses.

        Raises:
            SyntaxError: If the statement does not compile.
            ValueError: If the statement does not compile.
            RecursionError: If the statement is nested too deeply.
        """
        if self.kind is StatementKind.IMPORT:
            return NameUses(frozenset(), frozenset())
        # Notebook cells may await at the top level. The script's ``__future__`` statements apply,
        # and not those of this module (``dont_inherit``).
        module, flags = ast.Module([self.node], []), self.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        found = list(
            _global_names(compile(module, "<script>", "exec", flags, dont_inherit=True), True)
        )
        eager = {name for name, is_eager in found if is_eager}
        late = {name for name, is_eager in found if not is_eager} | set(
            _annotation_names(self.node)
        )
        return NameUses(frozenset(eager - _MODULE_ATTRIBUTES), frozenset(late - _MODULE_ATTRIBUTES))

    @cached_property
    def decorated_by(self) -> frozenset[str]:
        """Names with a decorator as attribute: ``f`` in ``@f.register(int)``."""
        found = set()
        for decorator in getattr(self.node, "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                found.add(called.value.id)
        return frozenset(found)

    @cached_property
    def value(self) -> ast.expr | None:
        """Value of a ``name = value`` statement; None for any other statement."""
        if isinstance(self.node, ast.Assign):
            targets = self.node.targets
            is_one_name = len(targets) == 1 and isinstance(targets[0], ast.Name)
            return self.node.value if is_one_name else None
        if isinstance(self.node, ast.AnnAssign) and isinstance(self.node.target, ast.Name):
            return self.node.value
        return None


class Script:
    """The source of a script, in execution order.

    Args:
        cells: Cells of the script. Those that do not parse never ran and are ignored.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells: dict[Cell, ast.Module] = {}
        self._statements: list[TopLevelStatement] = []
        self._by_name: dict[str, list[TopLevelStatement]] = {}
        flags = 0  # in a notebook, a cell's flags also apply to the following cells
        for cell in cells:
            tree = _tree_of(cell.text)
            if tree is not None:
                self.cells[cell] = tree
                flags |= _future_flags(tree)
                self._read(cell, tree.body, (), flags)
        for statement in self._statements:
            for name in dict.fromkeys(statement.binds):
                self._by_name.setdefault(name, []).append(statement)

    def _read(
        self, cell: Cell, body: Sequence[ast.stmt], enclosing: tuple[str, ...], flags: int
    ) -> None:
        for node in body:
            kind, binds = _classify(node)
            if kind is not None and binds:
                number = len(self._statements)
                self._statements.append(
                    TopLevelStatement(cell, number, kind, node, binds, enclosing, flags)
                )
            # Definitions in an ``if`` or a loop bind module-level names, too.
            if kind in (None, StatementKind.OTHER):
                first_line = cell.text.split("\n")[node.lineno - 1].strip()
                for _, _, block in bodies(node):
                    self._read(cell, block, (*enclosing, first_line), flags)

    def find_bindings(self, name: str) -> Sequence[TopLevelStatement]:
        """Return the statements that bind a name, in execution order."""
        return tuple(self._by_name.get(name, ()))

    def statement(self, number: int) -> TopLevelStatement:
        """Return a statement by its number."""
        return self._statements[number]

    def additions(self, definition: TopLevelStatement) -> Sequence[TopLevelStatement]:
        """Return the statements that extend or wrap a definition.

        Examples are ``@f.register`` on another function, and ``Net = compiled(Net)``.
        """
        (name,) = definition.binds
        found = [
            each
            for each in self.find_bindings(name)
            if each.kind is StatementKind.ASSIGNMENT
            and each.number > definition.number
            and name in each.uses.eager
        ]
        return (*found, *(each for each in self._statements if name in each.decorated_by))

    @property
    def star_imports(self) -> Sequence[TopLevelStatement]:
        """Star imports in execution order."""
        return self.find_bindings("*")

    @cached_property
    def patched(self) -> frozenset[tuple[str, str]]:
        """Attributes that statements outside of functions set: ``Net.scale = 2``."""
        parts = (part for tree in self.cells.values() for part in _walk_outside_functions(tree))
        return frozenset(
            (part.value.id, part.attr)
            for part in parts
            if isinstance(part, ast.Attribute)
            and isinstance(part.ctx, ast.Store)
            and isinstance(part.value, ast.Name)
        )


def has_side_effects(source: str) -> bool:
    r"""Return whether a module does more than import and define when it is imported.

    >>> has_side_effects("import os\ndef f(): return os.sep\nSIZE = 3")
    False
    >>> has_side_effects("model = build()")
    True
    """
    tree = _tree_of(source)
    return tree is not None and not all(map(_is_definition, tree.body))


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, (Function, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return not any(isinstance(part, ast.Call) for part in ast.walk(node))
    return is_import_block(node) or is_main_guard(node)


def _future_flags(tree: ast.Module) -> int:
    """Return the compiler flags of a source's ``from __future__`` statements."""
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                feature = getattr(__future__, alias.name, None)
                flags |= feature.compiler_flag if feature is not None else 0
    return flags


def _tree_of(source: str) -> ast.Module | None:
    parsed = parse_source(source)
    return parsed.tree if isinstance(parsed, ParsedSource) else None


def _classify(node: ast.stmt) -> tuple[StatementKind | None, tuple[str, ...]]:
    """Return the kind of a statement and the names that it binds; None if it binds none."""
    if isinstance(node, Function):
        return StatementKind.FUNCTION, (node.name,)
    if isinstance(node, ast.ClassDef):
        return StatementKind.CLASS, (node.name,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        # The generated module gets a future statement of its own if it needs one.
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        names = () if future else tuple(name for name, _ in import_bindings(node, ""))
        return StatementKind.IMPORT, names
    if is_import_block(node):
        return StatementKind.IMPORT_BLOCK, tuple(_names_bound_in_block(node))
    header = [part for each in _header_parts(node) for part in _walk_outside_functions(each)]
    named = [part.target.id for part in header if isinstance(part, ast.NamedExpr)]
    names = (*(name for name, _ in bindings(node)), *named)
    assigns = isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
    if assigns or type(node).__name__ == "TypeAlias":  # Python 3.12
        return StatementKind.ASSIGNMENT, names
    return (StatementKind.OTHER, names) if names else (None, ())


def _names_bound_in_block(block: ast.stmt) -> Iterator[str]:
    for _, _, inner in bodies(block):
        for node in inner:
            yield from _classify(node)[1] or _names_bound_in_block(node)


def _walk_outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    pending: list[ast.AST] = [node]
    while pending:
        part = pending.pop()
        yield part
        if not isinstance(part, (Function, ast.Lambda, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(part))


def _header_parts(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a compound statement that are not blocks; a simple statement itself."""
    if not any(bodies(node)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child


_MAX_LINE = 96

DEFINITION = "definition"
IMPORTS = "imports"


class ModulePiece(NamedTuple):
    """A part of a generated module.

    Attributes:
        number: Position among the parts.
        text: Source lines.
        group: Group of the part. Groups are separated by blank lines.
        origin: File and first line in the script, for lines that are copied from it.
    """

    number: int
    text: str
    group: str = ""
    origin: tuple[str, int] | None = None


class ModuleText(NamedTuple):
    """A generated module.

    Attributes:
        text: Source.
        origins: Lines of each copied part, with file and first line in the script.
    """

    text: str
    origins: tuple[tuple[range, tuple[str, int]], ...] = ()

    def script_location(self, line: int) -> str | None:
        """Return ``file:line`` in the script for a line of the module; None if it is not copied."""
        for lines, (file, start) in self.origins:
            if line in lines:
                return f"{file}:{start + line - lines.start}"
        return None


def module_text(
    header: str, pieces: Iterable[ModulePiece], postpone_annotations: bool
) -> ModuleText:
    """Assemble a module.

    Args:
        header: Comments at the top.
        pieces: Parts in any order.
        postpone_annotations: Whether to postpone the evaluation of annotations (PEP 563).
    """
    text = header.rstrip("\n") + "\n"
    if postpone_annotations:
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


def statement_text(
    statement: TopLevelStatement, names: frozenset[str], package: str
) -> tuple[str, int]:
    """Return the text of a statement for the top level of a module.

    A statement from a block keeps its indentation, under an ``if True:`` line with a comment.

    Args:
        statement: Statement to copy.
        names: Names of an import to keep. All others are removed from it.
        package: Python package that relative imports start from; empty if there is none.

    Returns:
        The text, and the script's line that corresponds to its first line.
    """
    if isinstance(statement.node, (ast.Import, ast.ImportFrom)):
        changed = _select_names(statement.node, names, package)
        if changed is not None or statement.enclosing:
            return ast.unparse(changed or statement.node), statement.line
    lines = statement.cell.text.split("\n")
    first, last = statement.line - 1, (statement.node.end_lineno or statement.node.lineno) - 1
    # Whole lines keep comments and layout, but may contain parts of other statements.
    if _shares_lines(statement, lines[first], lines[last]):
        text = ast.get_source_segment(statement.cell.text, statement.node) or ""
        text = f"    {text}" if statement.enclosing else text
        start = statement.node.lineno - 1
    else:
        start = first - _count_comments_above(lines, first)
        text = "\n".join(lines[start : last + 1])
    branch = ""
    if statement.enclosing:
        branch = f"if True:  # in the script: {' '.join(statement.enclosing)}\n"
    # The added ``if`` takes the line above the text.
    return branch + text, start + 1 - bool(branch)


def value_comment(statement: TopLevelStatement | None, name: str) -> str:
    """Return a comment for a name whose value is saved with the objects."""
    note = "the value is saved with the objects"
    if statement is None:
        return f"# {name}: {note}"
    return f"# {name} ({note}): {_abridged(statement)}"


def literal_text(statement: TopLevelStatement | None, name: str, value: str) -> str:
    """Return an assignment of a literal, with the script's statement as a comment."""
    note = f"# in the script: {_abridged(statement)}" if statement is not None else ""
    line = f"{name} = {value}"
    if note and len(line) + len(note) > _MAX_LINE:
        return f"{note}\n{line}"
    return f"{line}  {note}".rstrip()


def _abridged(statement: TopLevelStatement) -> str:
    source = ast.get_source_segment(statement.cell.text, statement.node) or ""
    first, *others = source.split("\n")
    return f"{first.rstrip()} ..." if others or len(first) > 80 else first.rstrip()


def _select_names(
    node: ast.Import | ast.ImportFrom, names: frozenset[str], package: str
) -> ast.stmt | None:
    """Return an absolute import of the wanted names only; None if it is one already."""
    bound = zip(node.names, import_bindings(node, package), strict=True)
    wanted = [alias for alias, (name, _) in bound if name in names]
    # What a star import binds would depend on the loading environment.
    if any(alias.name == "*" for alias in node.names):
        wanted = [ast.alias(name) for name in sorted(names)]
    if isinstance(node, ast.Import):
        return ast.Import(wanted) if len(wanted) < len(node.names) else None
    if wanted == node.names and not node.level:
        return None
    module = resolve_relative(package, node.level, node.module or "")
    return ast.ImportFrom(module or node.module, wanted, 0)


def _shares_lines(statement: TopLevelStatement, first: str, last: str) -> bool:
    """Return whether a statement shares its lines with other statements."""
    node = statement.node
    decorated = statement.line < node.lineno
    # Columns count bytes of UTF-8.
    before = "" if decorated else first.encode()[: node.col_offset].decode()
    after = last.encode()[node.end_col_offset :].decode()
    return bool(before.strip()) or after.lstrip().startswith(";")


def _count_comments_above(lines: Sequence[str], first: int) -> int:
    """Return the number of comment lines directly above a line, at its indentation."""
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
    """Return whether a statement is an ``if`` or a ``try`` that only imports."""
    if isinstance(node, ast.If):
        is_plain = is_type_checking(node.test) or _consists_of(node.test, _PLAIN_TEST)
        # The generated module has another ``__name__``, so such a block may not bind its names.
        is_plain = is_plain and not uses_dunder_name(node.test)
        return is_plain and _only_imports([*node.body, *node.orelse])
    if isinstance(node, ast.Try):
        handled = [each for handler in node.handlers for each in handler.body]
        guards = all(catches_import_error(handler.type) for handler in node.handlers)
        everything = [*node.body, *handled, *node.orelse, *node.finalbody]
        return guards and bool(node.handlers) and _only_imports(everything)
    return False


def _only_imports(body: list[ast.stmt]) -> bool:
    """Return whether a body consists of imports, and of fallback values for failed imports."""
    leaves = list(_leaves(body))
    others = [leaf for leaf in leaves if not isinstance(leaf, (ast.Import, ast.ImportFrom))]
    return len(others) < len(leaves) and all(map(_is_fallback, others))


def _leaves(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)) and is_import_block(node):
            handled = [each for handler in getattr(node, "handlers", []) for each in handler.body]
            yield from _leaves([*node.body, *handled, *node.orelse])
        else:
            yield node


def _is_fallback(node: ast.stmt) -> bool:
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
