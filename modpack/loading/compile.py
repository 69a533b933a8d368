"""Compile packaged modules, and store their code.

``import mylib.ops`` in a packaged function means the packaged ``mylib``. When Python executes the
statement, the module's own ``__import__`` finds that module. A tracer such as torch.compile only
reads the bytecode, and imports the module by its real name from the host. Such statements are
therefore compiled into relative imports. The source file, its line numbers, and imports at module
level stay unchanged. ``sys.modules["mylib"]`` means the packaged ``mylib``, too: ``sys.modules``
is compiled into a builtin of packaged modules that translates the package's names.

The code that one import compiles is stored in one file: creating 2,000 files takes longer than
writing their contents. Code is stored only if its source is the package's. Stored code is used
without reading the source, because the tree was compared when the package was opened. Each piece
of code has a digest, so that a truncated or modified piece is compiled again.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import logging
import marshal
import mmap
import os
import re
import struct
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import CodeType

from modpack.archive.module_index import MODULES_NAME
from modpack.core.cache_dir import make_private, replace_file, require_trusted_folder
from modpack.core.names import root_of
from modpack.core.process import gc_paused
from modpack.loading.cache import CODE, read_record

_log = logging.getLogger(__name__)

# Not compiled to regular expressions here: most loads compile no module (row first-load).
_SYS_MODULES = rb"sys\s*\.\s*modules"
_IMPORTED = rb"\bfrom\b([\w.\s]+?)\bimport\b|\bimport\b([^;#\r]*)"
"""The modules that a line imports: ``from THIS import``, or ``import THIS, AND_THIS as that``."""
_ABSOLUTE = rb"\s*(\w+(?:\s*\.\s*\w+)*)(?:\s+as\s+\w+)?\s*"
_UNUSED = "_modpack_imported"
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@gc_paused()
def compile_module(
    source: bytes,
    file: str,
    package: str,
    is_ours: Callable[[str], bool] | None,
    optimize: int = -1,
    *,
    is_lazy: bool = False,
    waiting: Collection[str] | None = None,
    is_package: bool = False,
) -> CodeType:
    """Compile a packaged module's source.

    Args:
        source: The source, in any encoding that it declares (PEP 263).
        file: The path that tracebacks show.
        package: The module's ``__package__``, without the namespace; empty for a module at the
            top level.
        is_ours: Returns whether an absolute module path must not be imported from the host. None
            in the process namespace.
        optimize: As for :func:`compile`.
        is_lazy: Whether imports at module level may wait.
        waiting: The names that may wait; None for all that the rules of the source allow.
        is_package: Whether the module is a Python package.

    Raises:
        SyntaxError: If the source is not valid Python.
        ValueError: If the source contains null bytes.
    """
    # Building a syntax tree takes twice as long as compiling the text; most sources need none.
    code: CodeType
    looks_up = is_ours is not None and re.search(_SYS_MODULES, source) is not None
    imports_ours = is_ours is not None and _may_import_ours(source, is_ours)
    if is_lazy:
        from modpack.loading.waiting_imports import needs_change, postpone_imports

        is_lazy = needs_change(source, waiting)
    if is_lazy or looks_up or imports_ours:
        try:
            tree = ast.parse(source, file)
            changed = False
            if is_ours is not None and imports_ours:
                # As many dots as lead to the namespace. One dot is the module's own package.
                changed = _make_relative(tree, package.count(".") + 2 if package else 1, is_ours)
            transformer = _ModulesTransformer()
            if looks_up:
                transformer.visit(tree)
            if is_lazy:
                changed |= postpone_imports(tree, source, is_package, waiting)
            # If nothing changed, the text is compiled, as Python would do.
            if changed or transformer.changed:
                code = compile(tree, file, "exec", dont_inherit=True, optimize=optimize)
                return code
        except RecursionError:  # too deeply nested for a tree; compiling the text may still work
            pass
    code = compile(source, file, "exec", dont_inherit=True, optimize=optimize)
    return code


def _may_import_ours(source: bytes, is_ours: Callable[[str], bool]) -> bool:
    """Return whether an indented statement may import a packaged module.

    Looks at all lines with the word ``import``, including docstrings, so only False is certain.
    """
    for word in re.finditer(rb"import", source):
        start, end = source.rfind(b"\n", 0, word.start()) + 1, source.find(b"\n", word.end())
        line = source[start : end if end >= 0 else len(source)]
        if b"\\" in line or b"\\" in source[max(start - 3, 0) : start]:  # continued on another line
            return True
        # A statement at module level stays as it is: no tracer runs it.
        is_alone = line.startswith((b"import", b"from")) and not (b":" in line or b";" in line)
        if not is_alone and _line_imports_ours(line, is_ours):
            return True
    return False


def _line_imports_ours(line: bytes, is_ours: Callable[[str], bool]) -> bool:
    if not line.isascii():
        return True
    if line.lstrip().startswith(b">>>"):  # an example in a docstring
        return False
    for module, modules in re.findall(_IMPORTED, line):
        for text in [module] if module else modules.split(b","):
            name = re.fullmatch(_ABSOLUTE, text)
            if name is not None and is_ours(b"".join(name.group(1).split()).decode()):
                return True
    return False


class _ModulesTransformer(ast.NodeTransformer):
    """Replaces ``sys.modules``, except as the target of an assignment."""

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
    """Replace the import statements of functions in place; return whether there were any."""
    changed = False
    for block in _function_blocks(tree):
        relative = [new for old in block for new in _relative(old, level, is_ours)]
        if relative != block:
            block[:] = relative
            changed = True
    return changed


def _function_blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield all lists of statements that run in a function's scope, but not in class bodies."""
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


def _relative(statement: ast.stmt, level: int, is_ours: Callable[[str], bool]) -> list[ast.stmt]:
    """Return the statements that replace one, or only that one if it imports nothing packaged."""
    made: list[ast.stmt] = []
    if isinstance(statement, ast.ImportFrom) and not statement.level:
        if is_ours(statement.module or ""):
            made.append(ast.ImportFrom(statement.module, statement.names, level))
    elif isinstance(statement, ast.Import) and any(is_ours(a.name) for a in statement.names):
        for alias in statement.names:
            made += _imports(alias, level) if is_ours(alias.name) else [ast.Import([alias])]
    placed = (ast.copy_location(each, statement) for each in made)
    return [ast.fix_missing_locations(each) for each in placed] or [statement]


def _imports(alias: ast.alias, level: int) -> list[ast.stmt]:
    """Return the replacement of ``import a.b.c``, or of ``import a.b.c as d``."""
    parent, _, last = alias.name.rpartition(".")
    if alias.asname:
        bound = ast.ImportFrom(parent or None, [ast.alias(last, alias.asname)], level)
    else:
        bound = ast.ImportFrom(None, [ast.alias(root_of(alias.name))], level)
    return [
        # Every module has a __doc__, so this imports the module a.b.c even if a.b.c is also an
        # attribute of a.b that is not a module.
        ast.ImportFrom(alias.name, [ast.alias("__doc__", _UNUSED)], level),
        ast.Delete([ast.Name(_UNUSED, ast.Del())]),
        bound,
    ]


_FORM = 1
"""Version of the files and of the code in them. Increase it with every change."""
_LAZY_FORM = "lazy5"
"""Marks code whose imports may wait. Increase it when :func:`.postpone_imports` changes."""
_SUFFIX = ".code"
_SMALL = 64 << 10
"""Size in bytes up to which reading a file is faster than mapping it."""
_HEADER = struct.Struct("<Q32s")
"""Size and SHA-256 of a file's table of contents, which follows, and then the pieces of code."""

_Key = tuple[str, str, str]
"""A module's path, its record, and the names that may wait in it."""
_Piece = tuple[memoryview, bytes]
"""Marshalled code in the content of a file, and its SHA-256."""


class BytecodeCache:
    """The compiled code of one tree, for one Python version and one kind of namespace.

    Args:
        tree: The folder with the package's files.
        prefix: The prefix of the package's module paths, or ``""`` for real names.
        waiting: For modules that a trial run has loaded, the names that may wait. None if no
            import waits.
    """

    def __init__(
        self, tree: Path, prefix: str, waiting: Mapping[str, Collection[str]] | None = None
    ) -> None:
        python = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"
        kind = "private" if prefix else "process"
        lazy = f"-{_LAZY_FORM}" if waiting is not None else ""
        variant = f"{python}-{kind}{_FORM}-{sys.flags.optimize}{lazy}"
        self._tree = tree
        self._waiting = waiting or {}
        self._folder = tree.parent / CODE / variant
        self._owner = f"{variant} {tree}"  # code contains the path of its source
        self._kept: Mapping[_Key, _Piece] | None = None
        self._new: dict[_Key, bytes] = {}
        self._sources: Mapping[str, tuple[int, str]] | None = None

    def get(self, module: str, file: str) -> CodeType | None:
        """Return the stored code of a module, or None.

        Args:
            module: The module's path.
            file: Its source file.
        """
        if self._kept is None:
            self._kept = self._pieces()
        kept, digest = self._kept.get(self._key(module, file), (b"", b""))
        # Each piece is checked when it is needed: of many modules, a process may import a few.
        if not digest or _sha256(kept) != digest:
            return None
        try:
            found = marshal.loads(kept)
        except (EOFError, TypeError, ValueError):  # intact, but written by another version
            return None
        return found if isinstance(found, CodeType) else None

    def put(self, module: str, file: str, source: bytes, code: CodeType) -> None:
        """Store code with the next :meth:`write`, unless the source is not the package's.

        Args:
            module: The module's path.
            file: Its source file.
            source: The compiled source.
            code: The resulting code.
        """
        if self._sources is None:
            known = read_record(self._tree.parent)
            self._sources = known.files if known is not None else {}
        key = self._key(module, file)
        if self._sources.get(key[1]) == (len(source), hashlib.sha256(source).hexdigest()):
            with contextlib.suppress(ValueError):  # too deeply nested
                self._new[key] = marshal.dumps(code)

    def write(self) -> None:
        """Write the new code at the end of an import, if the cache is writable."""
        if not self._new:
            return
        new, self._new = self._new, {}
        listed = [(key, len(piece), _sha256(piece)) for key, piece in new.items()]
        contents = marshal.dumps((self._owner, listed))
        header = _HEADER.pack(len(contents), _sha256(contents))
        # Processes that import the same modules write the same file.
        name = hashlib.blake2b(repr(sorted(new)).encode(), digest_size=16).hexdigest()
        try:
            make_private(self._folder)
            content = b"".join([header, contents, *new.values()])
            replace_file(self._folder / f"{name}{_SUFFIX}", content)
        except OSError as failure:
            _log.debug("cannot store compiled code in %s: %s", self._folder, failure)

    def _key(self, module: str, file: str) -> _Key:
        record = file[len(str(self._tree)) + 1 :].replace(os.sep, "/")
        names = self._waiting.get(module, "*")  # all that the rules of the source allow
        return module, record, " ".join(sorted(names))

    def _pieces(self) -> dict[_Key, _Piece]:
        pieces = dict[_Key, _Piece]()
        with contextlib.suppress(OSError):
            for folder in (self._folder.parent, self._folder):
                # A user who can write here could run code in this process.
                require_trusted_folder(folder)
            for name in os.listdir(self._folder):  # noqa: PTH208 - a folder may have many
                if name.endswith(_SUFFIX):
                    pieces.update(_read(self._folder / name, self._owner))
        return pieces


def _read(file: Path, owner: str) -> Mapping[_Key, _Piece]:
    """Return the pieces in a file; none if it is damaged or belongs to another tree."""
    try:
        with file.open("rb", buffering=0) as opened:
            if os.fstat(opened.fileno()).st_size <= _SMALL:
                content = memoryview(opened.read())
            else:  # only a few of many modules may be needed
                content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        size, digest = _HEADER.unpack_from(content)
        start = _HEADER.size + size
        contents = content[_HEADER.size : start]
        its_owner, listed = marshal.loads(contents) if _sha256(contents) == digest else ("", ())
    except (OSError, ValueError, struct.error) as failure:  # gone, or empty
        _log.debug("%s: cannot read compiled code: %s", file, failure)
        return {}
    pieces = dict[_Key, _Piece]()
    for key, length, digest in listed if its_owner == owner else ():
        pieces[key] = content[start : start + length], digest
        start += length
    return pieces


def _sha256(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()
