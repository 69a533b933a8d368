"""What is changed when packaged code is compiled: local imports, and ``sys.modules``.

``import mylib.ops`` in a packaged function means the packaged ``mylib``. When Python runs the
statement, the module's own ``__import__`` sees to that. A tracer such as torch.compile does not
run it: it reads the bytecode and imports by itself, under the real name, from the host. A
relative import cannot be taken for anything else, so that is what such a statement is compiled
into. The source file, its line numbers and the imports at module level stay as they are.

``sys.modules["mylib"]`` means the packaged ``mylib`` as well: ``sys.modules`` becomes a name that
packaged modules find among their builtins, and that knows the package's names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from types import CodeType

from modpack.core.garbage import collection_paused

__all__ = ["MODULES_NAME", "compile_module"]

MODULES_NAME = "__modpack_modules__"
"""The builtin that takes the place of ``sys.modules`` in packaged code."""

_SYS_MODULES = re.compile(rb"sys\s*\.\s*modules")

_IMPORTED = re.compile(rb"\bfrom\b([\w.\s]+?)\bimport\b|\bimport\b([^;#\r]*)")
"""What a line of source imports: ``from THIS import``, or ``import THIS, AND_THIS as that``."""
_ABSOLUTE = re.compile(rb"\s*(\w+(?:\s*\.\s*\w+)*)(?:\s+as\s+\w+)?\s*")
_WORD = re.compile(rb"import")
_JOINED = re.compile(rb"[:;]")
_UNUSED = "_modpack_imported"
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def compile_module(
    source: bytes, file: str, package: str, is_ours: Callable[[str], bool], optimize: int = -1
) -> CodeType:
    """Compile a packaged module's source.

    Args:
        source: the source, in any encoding that it declares (PEP 263).
        file: the path that tracebacks show.
        package: the module's ``__package__``; its first component is the namespace.
        is_ours: whether an absolute module path must not reach the host.
        optimize: as :func:`compile` takes it.

    Raises:
        SyntaxError, ValueError: the source is no Python.
    """
    with collection_paused():
        return _compiled(source, file, package.count(".") + 1, is_ours, optimize)


def _compiled(
    source: bytes, file: str, level: int, is_ours: Callable[[str], bool], optimize: int
) -> CodeType:
    # A tree costs twice what compiling the text does: most sources need none.
    looks_up = _SYS_MODULES.search(source) is not None
    if looks_up or _may_import_ours(source, is_ours):
        try:
            tree = ast.parse(source, file)
            changed = _make_relative(tree, level, is_ours)
            if (looks_up and _rename_lookups(tree)) or changed:
                code: CodeType = compile(tree, file, "exec", dont_inherit=True, optimize=optimize)
                return code
        except RecursionError:  # nested too deeply for a tree; compiling text goes deeper
            pass
    compiled: CodeType = compile(source, file, "exec", dont_inherit=True, optimize=optimize)
    return compiled


def _may_import_ours(source: bytes, is_ours: Callable[[str], bool]) -> bool:
    """Whether a statement that is not at the margin may import a packaged module.

    Judged by the lines in which the word stands, in docstrings as well: only a No is sure.
    """
    for word in _WORD.finditer(source):
        start, end = source.rfind(b"\n", 0, word.start()) + 1, source.find(b"\n", word.end())
        line = source[start : end if end >= 0 else len(source)]
        if b"\\" in line or b"\\" in source[max(start - 3, 0) : start]:  # of several lines
            return True
        is_alone = line.startswith((b"import", b"from")) and not _JOINED.search(line)
        if not is_alone and _line_imports_ours(line, is_ours):
            return True
    return False


def _line_imports_ours(line: bytes, is_ours: Callable[[str], bool]) -> bool:
    if not line.isascii():
        return True
    if line.lstrip().startswith(b">>>"):  # an example in a docstring
        return False
    for module, modules in _IMPORTED.findall(line):
        for name in map(_ABSOLUTE.fullmatch, [module] if module else modules.split(b",")):
            if name is not None and is_ours(b"".join(name.group(1).split()).decode()):
                return True
    return False


def _rename_lookups(tree: ast.Module) -> bool:
    """Replace ``sys.modules`` in place; tells whether there was any."""
    renaming = _Renaming()
    renaming.visit(tree)
    return renaming.changed


class _Renaming(ast.NodeTransformer):
    """Reads and subscripts of ``sys.modules``; ``sys.modules = ...`` is left as it is."""

    changed = False

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        is_lookup = (
            node.attr == "modules"
            and isinstance(node.value, ast.Name)
            and node.value.id == "sys"
            and isinstance(node.ctx, ast.Load)
        )
        if not is_lookup:
            return self.generic_visit(node)
        self.changed = True
        return ast.copy_location(ast.Name(MODULES_NAME, ast.Load()), node)


def _make_relative(tree: ast.Module, level: int, is_ours: Callable[[str], bool]) -> bool:
    """Replace the import statements of functions in place; tells whether there were any."""
    changed = False
    for block in _function_blocks(tree):
        relative = [new for old in block for new in _replacement(old, level, is_ours)]
        if list(map(id, relative)) != list(map(id, block)):
            block[:] = relative
            changed = True
    return changed


def _function_blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """All lists of statements that run in a function's scope; class bodies are none."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, in_function = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            in_function = True
        elif isinstance(node, ast.ClassDef):
            in_function = False
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            waiting.extend((child, in_function) for child in block)
            if in_function and block and isinstance(block[0], ast.stmt):
                yield block


def _replacement(
    statement: ast.stmt, level: int, is_ours: Callable[[str], bool]
) -> Iterator[ast.stmt]:
    if isinstance(statement, ast.ImportFrom) and not statement.level:
        ours = is_ours(statement.module or "")
        yield _from(statement, level, statement.module, *statement.names) if ours else statement
    elif isinstance(statement, ast.Import) and any(is_ours(a.name) for a in statement.names):
        for alias in statement.names:
            yield from _imports(statement, alias, level, is_ours(alias.name))
    else:
        yield statement


def _imports(place: ast.stmt, alias: ast.alias, level: int, ours: bool) -> Iterator[ast.stmt]:
    """``import a.b.c``, or ``import a.b.c as d``."""
    if not ours:
        yield ast.copy_location(ast.Import([alias]), place)
        return
    # Every module has a __doc__: this imports a.b.c, whatever a.b says that its c is.
    yield _from(place, level, alias.name, _alias("__doc__", _UNUSED, place))
    unused = ast.copy_location(ast.Name(_UNUSED, ast.Del()), place)
    yield ast.copy_location(ast.Delete([unused]), place)
    parent, _, last = alias.name.rpartition(".")
    if alias.asname:
        yield _from(place, level, parent or None, _alias(last, alias.asname, place))
    else:
        yield _from(place, level, None, _alias(alias.name.partition(".")[0], None, place))


def _from(place: ast.stmt, level: int, module: str | None, *names: ast.alias) -> ast.stmt:
    return ast.copy_location(ast.ImportFrom(module, list(names), level), place)


def _alias(name: str, asname: str | None, place: ast.stmt) -> ast.alias:
    return ast.copy_location(ast.alias(name, asname), place)
