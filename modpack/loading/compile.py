"""Compiling packaged modules, and their code kept beside the tree from one process to the next.

``import mylib.ops`` in a packaged function means the packaged ``mylib``. When Python runs the
statement, the module's own ``__import__`` sees to that. A tracer such as torch.compile does not
run it: it reads the bytecode and imports by itself, under the real name, from the host. A
relative import cannot be taken for anything else, so that is what such a statement is compiled
into. The source file, its line numbers and the imports at module level stay as they are.
``sys.modules["mylib"]`` means the packaged ``mylib`` as well: ``sys.modules`` becomes a name that
packaged modules find among their builtins, and that knows the package's names.

Python keeps a file of bytecode for each module. Here, what one import has compiled goes into one
file, for it takes longer to make two thousand files than to write all that is in them. What is
taken from there needs no look at the source, whose tree was compared when the package was opened.
Code is kept only if its source was what the package has. Each piece has a digest, so that one that
was cut off or changed is compiled again.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import itertools
import logging
import marshal
import mmap
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from types import CodeType

from modpack.core.cache_dir import make_private, refuse_others
from modpack.core.process import collection_paused
from modpack.loading.cache import CODE, FILES, read_record
from modpack.loading.redirect import MODULES_NAME

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


_log = logging.getLogger(__name__)
_FORM = 1
"""Counts up whenever files of this kind, or the code in them, are made in another way."""
_SUFFIX = ".code"
_SMALL = 64 << 10
"""Bytes of a file up to which reading it is faster than mapping it."""
_HEADER = struct.Struct("<Q32s")
"""Size and sha256 of the list of what is in a file. The list follows, then the pieces of code."""

_Key = tuple[str, str]
"""A module's path, and its record."""

_Place = tuple[memoryview, int, int, bytes]
"""Where a piece is: the content of a file, the first byte and how many; and its sha256."""


def code_store(tree: Path, kind: str) -> CodeStore | None:
    """Where the code of a package's modules is kept; None if it is not.

    Args:
        tree: the folder with its files.
        kind: the kind of namespace that the code is compiled for.
    """
    is_of_this_process = tree.name != FILES
    if is_of_this_process or sys.implementation.cache_tag is None:
        return None
    return CodeStore(tree, kind)


class CodeStore:
    """The code of one tree, for one Python and one kind of namespace.

    Args:
        tree: the folder with the package's files.
        kind: the kind of namespace that the code is compiled for.
    """

    def __init__(self, tree: Path, kind: str) -> None:
        python = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"
        variant = f"{python}-{kind}{_FORM}-{sys.flags.optimize}"
        self._tree = tree
        self._folder = tree.parent / CODE / variant
        self._owner = f"{variant} {tree}"  # code knows the path of its source
        self._kept: Mapping[_Key, _Place] | None = None
        self._new: dict[_Key, bytes] = {}
        self._sources: Mapping[str, tuple[int, str]] | None = None

    def get(self, module: str, file: str) -> CodeType | None:
        """The code of a module; None if it is not kept.

        Args:
            module: its path.
            file: its source.
        """
        if self._kept is None:
            self._kept = self._places()
        place = self._kept.get((module, self._record(file)))
        if place is None:
            return None
        content, start, length, digest = place
        piece = content[start : start + length]
        if _sha256(piece) != digest:
            return None
        try:
            found = marshal.loads(piece)
        except (EOFError, TypeError, ValueError):  # whole, but of another make
            return None
        return found if isinstance(found, CodeType) else None

    def put(self, module: str, file: str, source: bytes, code: CodeType) -> None:
        """Keep code, from the next :meth:`write` on; unless it is not of the package's source.

        Args:
            module: the module's path.
            file: its source.
            source: what was compiled.
            code: what has become of it.
        """
        record = self._record(file)
        if self._known_sources().get(record) == (len(source), hashlib.sha256(source).hexdigest()):
            with contextlib.suppress(ValueError):  # nested too deeply
                self._new[module, record] = marshal.dumps(code)

    def write(self) -> None:
        """An import has ended: write what is new, if the cache can be written to."""
        if self._new:
            new, self._new = self._new, {}
            try:
                self._write(new)
            except OSError as failure:
                _log.debug("compiled code is not kept in %s: %s", self._folder, failure)

    def _known_sources(self) -> Mapping[str, tuple[int, str]]:
        if self._sources is None:
            known = read_record(self._tree.parent)
            self._sources = known.files if known is not None else {}
        return self._sources

    def _record(self, file: str) -> str:
        return file[len(str(self._tree)) + 1 :].replace(os.sep, "/")

    def _places(self) -> dict[_Key, _Place]:
        """Where all pieces are."""
        places = dict[_Key, _Place]()
        with contextlib.suppress(OSError):
            for folder in (self._folder.parent, self._folder):
                refuse_others(folder)
            for name in os.listdir(self._folder):  # noqa: PTH208 - a folder may have many
                if name.endswith(_SUFFIX):
                    places.update(_read(f"{self._folder}{os.sep}{name}", self._owner))
        return places

    def _write(self, new: Mapping[_Key, bytes]) -> None:
        make_private(self._folder)
        # Of processes that have imported the same, each writes the same file.
        name = hashlib.blake2b(repr(sorted(new)).encode(), digest_size=16).hexdigest()
        making = self._folder / f"{os.urandom(8).hex()}.tmp"
        try:
            making.write_bytes(_written(new, self._owner))
            making.replace(self._folder / f"{name}{_SUFFIX}")
        finally:
            making.unlink(missing_ok=True)


def _written(pieces: Mapping[_Key, bytes], owner: str) -> bytes:
    listed = [(key, len(piece), _sha256(piece)) for key, piece in pieces.items()]
    contents = marshal.dumps((owner, listed))
    header = _HEADER.pack(len(contents), _sha256(contents))
    return b"".join([header, contents, *pieces.values()])


def _read(file: str, owner: str) -> Mapping[_Key, _Place]:
    """The pieces in a file; none if it is damaged, or of another tree."""
    try:
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - a folder may have many
            content = _content(opened)
        size, digest = _HEADER.unpack_from(content)
        position = _HEADER.size + size
        contents = content[_HEADER.size : position]
        its_owner, listed = marshal.loads(contents) if _sha256(contents) == digest else ("", ())
    except (OSError, ValueError, struct.error) as failure:  # gone, or empty
        _log.debug("%s holds no code: %s", file, failure)
        return {}
    if its_owner != owner or not listed:
        return {}
    keys, lengths, digests = zip(*listed, strict=True)  # in columns: there may be thousands
    starts = itertools.accumulate(lengths, initial=position)
    places = zip(itertools.repeat(content), starts, lengths, digests, strict=False)
    return dict(zip(keys, places, strict=True))


def _content(opened: FileIO) -> memoryview:
    """A file's content: mapped if it is large, since of many modules few may be wanted."""
    if os.fstat(opened.fileno()).st_size <= _SMALL:
        return memoryview(opened.read())
    return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def _sha256(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()
