"""The text of a module made of a script's definitions: their own text, in their own order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modpack.discovery.definitions import Statement, imported_as

__all__ = [
    "DEFINITION",
    "IMPORTS",
    "ModuleText",
    "Piece",
    "literal_text",
    "module_text",
    "text_of_statement",
    "value_comment",
]

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
