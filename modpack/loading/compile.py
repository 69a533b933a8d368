"""Compile packaged modules, partly ahead of their import, and store their code.

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

A helper process compiles the modules that an import will need, starting with the last. Without it,
a first import of 1,000 modules takes 1.33 s instead of 1.04 s (benchmark rows import-1000 and
import-3000). It compiles only sources of the package, and the digests of its answers are checked
like those of files in the cache. If a helper fails, only time is lost. Both processes map one file
in which the import marks modules that it compiles itself. The answers are in another file, which
the import reads as it grows. Neither file has a name.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import hashlib
import importlib.util
import logging
import marshal
import mmap
import os
import re
import struct
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from modpack.archive.module_index import (
    MODULES_NAME,
    IndexEntryKind,
    ModuleIndex,
    is_package_import,
)
from modpack.core.cache_dir import make_private, replace_file, require_trusted_folder
from modpack.core.names import root_of
from modpack.core.process import (
    FIND_MODPACK,
    gc_paused,
    helpers_enabled,
    kill_helper,
    start_helper,
    start_if_possible,
    usable_cores,
)
from modpack.loading.cache import CODE, FILES, read_record

if TYPE_CHECKING:
    import subprocess

_log = logging.getLogger(__name__)

# Not compiled to regular expressions here: most loads compile no module (row first-load).
_SYS_MODULES = rb"sys\s*\.\s*modules"
_IMPORTED = rb"\bfrom\b([\w.\s]+?)\bimport\b|\bimport\b([^;#\r]*)"
"""The modules that a line imports: ``from THIS import``, or ``import THIS, AND_THIS as that``."""
_ABSOLUTE = rb"\s*(\w+(?:\s*\.\s*\w+)*)(?:\s+as\s+\w+)?\s*"
_UNUSED = "_modpack_imported"
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class CodeForm(NamedTuple):
    """Properties of a module that its code depends on, apart from its source and its path.

    Attributes:
        is_lazy: Whether imports at module level may wait.
        is_package: Whether the module is a Python package.
    """

    is_lazy: bool = False
    is_package: bool = False


EAGER: Final = CodeForm()
"""The form of code in which all imports are executed where they are."""


@gc_paused()
def compile_module(
    source: bytes,
    file: str,
    package: str,
    is_ours: Callable[[str], bool] | None,
    optimize: int = -1,
    form: CodeForm = EAGER,
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
        form: What else the code depends on.

    Raises:
        SyntaxError: If the source is not valid Python.
        ValueError: If the source contains null bytes.
    """
    # Building a syntax tree takes twice as long as compiling the text; most sources need none.
    looks_up = is_ours is not None and re.search(_SYS_MODULES, source) is not None
    imports_ours = is_ours is not None and _may_import_ours(source, is_ours)
    if form.is_lazy or looks_up or imports_ours:
        try:
            tree = ast.parse(source, file)
            changed = False
            if is_ours is not None and imports_ours:
                changed = _make_relative(tree, package.count(".") + 2 if package else 1, is_ours)
            transformer = _ModulesTransformer()
            if looks_up:
                transformer.visit(tree)
            if form.is_lazy:
                from modpack.loading.waiting_imports import postpone_imports

                changed |= postpone_imports(tree, source, form.is_package)
            if changed or transformer.changed:
                code: CodeType = compile(tree, file, "exec", dont_inherit=True, optimize=optimize)
                return code
        except RecursionError:  # too deeply nested for a tree; compiling the text may still work
            pass
    return _compiled(source, file, optimize)


def _compiled(source: bytes, file: str, optimize: int) -> CodeType:
    code: CodeType = compile(source, file, "exec", dont_inherit=True, optimize=optimize)
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
LAZY_FORM = "lazy2"
"""Marks code whose imports may wait. Increase it when :func:`.postpone_imports` changes."""
_SUFFIX = ".code"
_SMALL = 64 << 10
"""Size in bytes up to which reading a file is faster than mapping it."""
_HEADER = struct.Struct("<Q32s")
"""Size and SHA-256 of a file's table of contents, which follows, and then the pieces of code."""

_Key = tuple[str, str]
"""A module's path and record."""
_Piece = tuple[memoryview, bytes]
"""Marshalled code in the content of a file, and its SHA-256."""


def code_store(
    tree: Path, prefix: str, index: ModuleIndex, is_lazy: bool = False
) -> BytecodeCache | None:
    """Return the store of a package's compiled code; None if code is not stored.

    Args:
        tree: The folder with the package's files.
        prefix: The prefix of the package's module paths, or ``""`` for real names.
        index: The package's modules.
        is_lazy: Whether imports at module level may wait.
    """
    is_temporary = tree.name != FILES
    if is_temporary or sys.implementation.cache_tag is None:
        return None
    return BytecodeCache(tree, prefix, index, is_lazy)


class BytecodeCache:
    """The compiled code of one tree, for one Python version and one kind of namespace."""

    def __init__(self, tree: Path, prefix: str, index: ModuleIndex, is_lazy: bool = False) -> None:
        python = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"
        kind = "private" if prefix else "process"
        lazy = f"-{LAZY_FORM}" if is_lazy else ""
        variant = f"{python}-{kind}{_FORM}-{sys.flags.optimize}{lazy}"
        self._tree = tree
        self._index = index
        self._folder = tree.parent / CODE / variant
        self._owner = f"{variant} {tree}"  # code contains the path of its source
        self._kept: Mapping[_Key, _Piece] | None = None
        self._new: dict[_Key, bytes] = {}
        self._sources: Mapping[str, tuple[int, str]] | None = None
        self._ahead = CompileAhead(tree, prefix, index, is_lazy)

    def get(self, module: str, file: str) -> CodeType | None:
        """Return the code of a module; None if it is neither stored nor compiled ahead.

        Args:
            module: The module's path.
            file: Its source file.
        """
        if self._kept is None:
            self._kept = self._pieces()
        key = module, self._record(file)
        kept, digest = self._kept.get(key, (b"", b""))
        if digest and _sha256(kept) == digest:
            return _code(kept)
        piece = self._ahead.take(key, self._waiting)
        if piece is None:
            return None
        self._new[key] = piece
        return _code(piece)

    def put(self, module: str, file: str, source: bytes, code: CodeType) -> None:
        """Store code with the next :meth:`write`, unless the source is not the package's.

        Args:
            module: The module's path.
            file: Its source file.
            source: The compiled source.
            code: The resulting code.
        """
        record = self._record(file)
        if self._known_sources().get(record) == (len(source), hashlib.sha256(source).hexdigest()):
            with contextlib.suppress(ValueError):  # too deeply nested
                self._new[module, record] = marshal.dumps(code)

    def write(self) -> None:
        """Write the new code at the end of an import, if the cache is writable."""
        self._ahead.end()
        if self._new:
            new, self._new = self._new, {}
            try:
                self._write(new)
            except OSError as failure:
                _log.debug("cannot store compiled code in %s: %s", self._folder, failure)

    def _known_sources(self) -> Mapping[str, tuple[int, str]]:
        if self._sources is None:
            known = read_record(self._tree.parent)
            self._sources = known.files if known is not None else {}
        return self._sources

    def _waiting(self) -> list[Task]:
        """Return the modules whose code is not stored."""
        sources, kept, waiting = self._known_sources(), self._kept or {}, list[Task]()
        for module, entry in self._index.entries.items():
            key = module, entry.record
            is_kept = key in kept or key in self._new
            if entry.kind is IndexEntryKind.SOURCE and not is_kept and entry.record in sources:
                waiting.append((*key, entry.is_package, *sources[entry.record]))
        return waiting

    def _record(self, file: str) -> str:
        return file[len(str(self._tree)) + 1 :].replace(os.sep, "/")

    def _pieces(self) -> dict[_Key, _Piece]:
        pieces = dict[_Key, _Piece]()
        with contextlib.suppress(OSError):
            for folder in (self._folder.parent, self._folder):
                require_trusted_folder(folder)
            for name in os.listdir(self._folder):  # noqa: PTH208 - a folder may have many
                if name.endswith(_SUFFIX):
                    pieces.update(_read(self._folder / name, self._owner))
        return pieces

    def _write(self, new: Mapping[_Key, bytes]) -> None:
        make_private(self._folder)
        # Processes that import the same modules write the same file.
        name = hashlib.blake2b(repr(sorted(new)).encode(), digest_size=16).hexdigest()
        replace_file(self._folder / f"{name}{_SUFFIX}", _written(new, self._owner))


def _written(pieces: Mapping[_Key, bytes], owner: str) -> bytes:
    listed = [(key, len(piece), _sha256(piece)) for key, piece in pieces.items()]
    contents = marshal.dumps((owner, listed))
    header = _HEADER.pack(len(contents), _sha256(contents))
    return b"".join([header, contents, *pieces.values()])


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


def _code(piece: bytes | memoryview) -> CodeType | None:
    try:
        found = marshal.loads(piece)
    except (EOFError, TypeError, ValueError):  # intact, but written by another version
        return None
    return found if isinstance(found, CodeType) else None


def _sha256(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()


_ANSWER = struct.Struct("<II32s")
"""Header of each piece of code: the number of its task, and the piece's size and SHA-256."""
_LINES = compile("name = 0", "", "exec").co_linetable.hex()
PYTHON = f"{sys.implementation.cache_tag} {importlib.util.MAGIC_NUMBER.hex()} {_LINES}"
"""The kind of code that this Python compiles, with or without columns (``-X no_debug_ranges``)."""

Task = tuple[str, str, bool, int, str]
"""A module's path, its record, whether it is a package, and size and SHA-256 of its source."""
Job = tuple[str, str, str, int, bool, tuple[str, ...], tuple[str, ...], list[Task]]
""":data:`PYTHON`, the tree, the namespace's prefix, the optimization level, whether imports may
wait, the first components of the package's modules and of its extern modules, and the tasks."""
_START: Final = f"{FIND_MODPACK}; from modpack.loading.compile import main; main()"
_MISSES: Final = 8
"""Number of modules that an import compiles itself before it starts a helper."""
_WORTH_A_START: Final = 200
"""Number of waiting modules that justify a helper. Starting one takes as long as compiling 100."""


class CompileAhead:
    """Compiles a package's modules in a helper process before they are imported.

    Args:
        tree: The folder with the package's files.
        prefix: The prefix of the package's module paths, or ``""`` for real names.
        index: The package's modules.
        is_lazy: Whether imports at module level may wait.
    """

    def __init__(self, tree: Path, prefix: str, index: ModuleIndex, is_lazy: bool = False) -> None:
        self._tree = tree
        self._is_lazy = is_lazy
        self._prefix = prefix
        self._index = index
        self._helper: _Helper | None = None
        self._misses = 0
        self._is_off = not hasattr(os, "pread")  # Windows

    def take(self, key: _Key, waiting: Callable[[], list[Task]]) -> bytes | None:
        """Return the marshalled code of a module; None if the caller has to compile it.

        Args:
            key: The module.
            waiting: Returns all modules without stored code, in the probable order of import.
        """
        if self._helper is None:
            self._misses += 1
            if self._is_off or self._misses != _MISSES:
                return None
            self._helper = self._start(waiting)
        helper = self._helper  # another thread may end it
        return None if helper is None else helper.take(key)

    def end(self) -> None:
        """Stop the helper at the end of an import."""
        helper, self._helper, self._misses = self._helper, None, 0
        if helper is not None:
            helper.end()
            self._is_off = not helper.has_helped  # imports are too short for a helper

    def _start(self, waiting: Callable[[], list[Task]]) -> _Helper | None:
        tasks = waiting() if usable_cores() >= 2 and helpers_enabled() else []
        if len(tasks) < _WORTH_A_START:
            return None
        roots, externs = tuple(self._index.roots), tuple(self._index.extern_roots)
        optimize = sys.flags.optimize
        kind = (self._prefix, optimize, self._is_lazy)
        job = (PYTHON, str(self._tree), *kind, roots, externs, tasks)
        helper = start_if_possible(partial(_Helper, job), "compiling")
        if helper is None:
            self._is_off = True
        return helper


class _Helper:
    """A process that compiles modules, and its answers.

    Attributes:
        has_helped: Whether an answer was used.

    Raises:
        OSError: If no process can be started.
        RuntimeError: If no process can be started.
        ValueError: If no process can be started.
    """

    def __init__(self, job: Job) -> None:
        tasks = job[-1]
        self.has_helped = False
        self._numbers = {task[:2]: number for number, task in enumerate(tasks)}
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._position = 0
        self._answers: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        try:
            self._process, self._is_taken = _start(job, self._answers)
        except BaseException:
            self._answers.close()
            raise
        self._owner = os.getpid()

    def take(self, key: _Key) -> bytes | None:
        number = self._numbers.get(key)
        if number is None:
            return None
        if number not in self._pieces:
            self._read_answers()
        piece = self._pieces.pop(number, None)
        if piece is None:
            self._is_taken[number] = 1
        else:
            self.has_helped = True
        return piece

    def end(self) -> None:
        """Stop the process. A forked child leaves this to its parent."""
        if os.getpid() != self._owner:
            self._process.returncode = 0
            self._answers.close()
            return
        kill_helper(self._process)
        with self._lock:
            self._answers.close()

    def _read_answers(self) -> None:
        """Read the answers that were written since the last call."""
        # Do not block: no thread releases a lock that a forked child inherited locked.
        if not self._lock.acquire(blocking=False):
            return
        try:
            file = self._answers.fileno()
            grown = os.fstat(file).st_size - self._position
            if grown > 0:
                self._parse(os.pread(file, grown, self._position))
        except (OSError, ValueError) as failure:  # closed, or damaged
            self._position = sys.maxsize
            _log.debug("cannot read more answers of a helper: %s", failure)
        finally:
            self._lock.release()

    def _parse(self, data: bytes) -> None:
        position = 0
        while len(data) - position >= _ANSWER.size:
            number, size, digest = _ANSWER.unpack_from(data, position)
            start = position + _ANSWER.size
            if number >= len(self._numbers):
                raise ValueError(f"unknown task {number}")
            if len(data) - start < size:  # still being written
                break
            piece = data[start : start + size]
            if _sha256(piece) != digest:
                raise ValueError(f"digest mismatch in the answer to task {number}")
            self._pieces[number] = piece
            position = start + size
        self._position += position


def _start(job: Job, answers: IO[bytes]) -> tuple[subprocess.Popen[bytes], mmap.mmap]:
    """Start the process; return it and the shared marks of modules that the import compiles."""
    count = len(job[-1])
    with tempfile.TemporaryFile() as file:
        file.write(bytes(count) + marshal.dumps(job))
        file.flush()
        file.seek(0)
        marks = mmap.mmap(file.fileno(), count)
        return start_helper(_START, [str(count), str(os.getpid())], file, answers), marks


def main() -> None:
    """Compile the modules of a job on stdin, and write their code to stdout.

    The input is a file that both processes map: a byte for each task, then the job. The importing
    process sets the byte when it compiles the module itself.
    """
    count, owner = int(sys.argv[2]), int(sys.argv[3])
    gc.disable()  # syntax trees have no cycles
    # Skip modules with compiler warnings, so that the importing process shows the warnings.
    warnings.simplefilter("error")
    shared = memoryview(mmap.mmap(0, 0, access=mmap.ACCESS_READ))
    job: Job = marshal.loads(shared[count:])
    if job[0] == PYTHON:
        compile_all(job, shared, lambda: os.getppid() == owner, _answer)


def compile_all(
    job: Job,
    is_done: Sequence[int],
    is_wanted: Callable[[], bool],
    answer: Callable[[int, bytes], None],
) -> None:
    """Compile the modules of a job, the last one first.

    Args:
        job: The modules, and everything that their code depends on.
        is_done: For each task, whether the importing process has taken it.
        is_wanted: Returns whether to continue; called before each task.
        answer: Called with the number of a task and its marshalled code.
    """
    _, tree, prefix, optimize, is_lazy, roots, extern_roots, tasks = job
    stays = partial(is_package_import, roots=frozenset(roots), extern_roots=frozenset(extern_roots))
    for number in reversed(range(len(tasks))):
        if not is_wanted():
            return
        if not is_done[number]:
            try:
                is_ours = stays if prefix else None
                piece = _compiled_for(tasks[number], tree, is_ours, optimize, is_lazy)
            except Exception:  # the importing process raises it
                continue
            if piece is not None:
                answer(number, piece)


def _compiled_for(
    task: Task, tree: str, is_ours: Callable[[str], bool] | None, optimize: int, is_lazy: bool
) -> bytes | None:
    """Return the marshalled code of a module; None if its source is not the package's."""
    module, record, is_package, size, sha256 = task
    file = f"{tree}{os.sep}{record.replace('/', os.sep)}"
    source = Path(file).read_bytes()
    if (len(source), hashlib.sha256(source).hexdigest()) != (size, sha256):
        return None
    package = module if is_package else module.rpartition(".")[0]
    form = CodeForm(is_lazy, is_package)
    return marshal.dumps(compile_module(source, file, package, is_ours, optimize, form))


def _answer(number: int, piece: bytes) -> None:
    answers = sys.stdout.buffer
    answers.write(_ANSWER.pack(number, len(piece), _sha256(piece)) + piece)
    answers.flush()
