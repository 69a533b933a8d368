"""Compile packaged modules, ahead of their import where that is faster, and keep their code.

``import mylib.ops`` in a packaged function means the packaged ``mylib``. When Python runs the
statement, the module's own ``__import__`` sees to that. A tracer such as torch.compile does not
run it: it reads the bytecode and imports by itself, under the real name, from the host. A
relative import cannot be taken for anything else, so that is what such a statement is compiled
into. The source file, its line numbers and the imports at module level stay as they are.
``sys.modules["mylib"]`` means the packaged ``mylib`` as well: ``sys.modules`` becomes a name that
packaged modules find among their builtins, and that knows the package's names.

The code that one import has compiled goes into one file: two thousand files take longer to make
than all their contents to write. Code is kept only if its source was the package's; what is taken
from there needs no look at the source, whose tree was compared when the package was opened. Each
piece has a digest, so that one that was cut off or changed is compiled again.

A first import of 1,000 modules takes 1.33 s instead of 1.04 without the helper, another process
that compiles from the far end what the import will ask for (benchmark rows import-1000 and
import-3000). It compiles only sources that are the package's, and its answers have the digests of
their pieces: they are believed as files in the cache are. Whatever becomes of a helper costs time
only. Both processes map one file, in which the import notes what it compiles itself; the answers
are another, which the import reads where it has grown. Neither file has a name.
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
from typing import IO, TYPE_CHECKING, Final

from modpack.archive.module_index import MODULES_NAME, IndexEntryKind, ModuleIndex, keeps
from modpack.core.cache_dir import make_private, require_trusted_folder
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

# Not compiled here: most loads find all code compiled, and compile nothing (row first-load).
_SYS_MODULES = rb"sys\s*\.\s*modules"
_IMPORTED = rb"\bfrom\b([\w.\s]+?)\bimport\b|\bimport\b([^;#\r]*)"
"""What a line of source imports: ``from THIS import``, or ``import THIS, AND_THIS as that``."""
_ABSOLUTE = rb"\s*(\w+(?:\s*\.\s*\w+)*)(?:\s+as\s+\w+)?\s*"
_UNUSED = "_modpack_imported"
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@gc_paused()
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
    # A tree costs twice what compiling the text does: most sources need none.
    looks_up = re.search(_SYS_MODULES, source) is not None
    if looks_up or _may_import_ours(source, is_ours):
        try:
            tree = ast.parse(source, file)
            changed = _make_relative(tree, package.count(".") + 1, is_ours)
            renaming = _RelativeImportTransformer()
            if looks_up:
                renaming.visit(tree)
            if changed or renaming.changed:
                code: CodeType = compile(tree, file, "exec", dont_inherit=True, optimize=optimize)
                return code
        except RecursionError:  # nested too deeply for a tree; compiling text goes deeper
            pass
    return _compiled(source, file, optimize)


def _compiled(source: bytes, file: str, optimize: int) -> CodeType:
    code: CodeType = compile(source, file, "exec", dont_inherit=True, optimize=optimize)
    return code


def _may_import_ours(source: bytes, is_ours: Callable[[str], bool]) -> bool:
    """Whether a statement that is not at the margin may import a packaged module.

    Judged by the lines in which the word stands, in docstrings as well: only a No is sure.
    """
    for word in re.finditer(rb"import", source):
        start, end = source.rfind(b"\n", 0, word.start()) + 1, source.find(b"\n", word.end())
        line = source[start : end if end >= 0 else len(source)]
        if b"\\" in line or b"\\" in source[max(start - 3, 0) : start]:  # of several lines
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


class _RelativeImportTransformer(ast.NodeTransformer):
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
        relative = [new for old in block for new in _relative(old, level, is_ours)]
        if relative != block:
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


def _relative(statement: ast.stmt, level: int, is_ours: Callable[[str], bool]) -> list[ast.stmt]:
    """The statements in place of one, which is the only one if it imports nothing packaged."""
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
    """``import a.b.c``, or ``import a.b.c as d``."""
    parent, _, last = alias.name.rpartition(".")
    if alias.asname:
        bound = ast.ImportFrom(parent or None, [ast.alias(last, alias.asname)], level)
    else:
        bound = ast.ImportFrom(None, [ast.alias(root_of(alias.name))], level)
    return [
        # Every module has a __doc__: this imports a.b.c, whatever a.b says that its c is.
        ast.ImportFrom(alias.name, [ast.alias("__doc__", _UNUSED)], level),
        ast.Delete([ast.Name(_UNUSED, ast.Del())]),
        bound,
    ]


_FORM = 1
"""Counts up whenever files of this kind, or the code in them, are made in another way."""
_SUFFIX = ".code"
_SMALL = 64 << 10
"""Bytes of a file up to which reading it is faster than mapping it."""
_HEADER = struct.Struct("<Q32s")
"""Size and sha256 of the list of what is in a file. The list follows, then the pieces of code."""

_Key = tuple[str, str]
"""A module's path, and its record."""
_Piece = tuple[memoryview, bytes]
"""Marshalled code in the content of a file, and its sha256."""


def code_store(tree: Path, prefix: str, index: ModuleIndex) -> BytecodeCache | None:
    """Where the code of a package's modules is kept; None if it is not.

    Args:
        tree: the folder with its files.
        prefix: what goes before the package's module paths, or ``""`` for real names.
        index: the package's modules.
    """
    is_of_this_process = tree.name != FILES
    if is_of_this_process or sys.implementation.cache_tag is None:
        return None
    return BytecodeCache(tree, prefix, index)


class BytecodeCache:
    """The code of one tree, for one Python and one kind of namespace; see :func:`code_store`."""

    def __init__(self, tree: Path, prefix: str, index: ModuleIndex) -> None:
        python = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"
        kind = "private" if prefix else "process"
        variant = f"{python}-{kind}{_FORM}-{sys.flags.optimize}"
        self._tree = tree
        self._index = index
        self._folder = tree.parent / CODE / variant
        self._owner = f"{variant} {tree}"  # code knows the path of its source
        self._kept: Mapping[_Key, _Piece] | None = None
        self._new: dict[_Key, bytes] = {}
        self._sources: Mapping[str, tuple[int, str]] | None = None
        self._ahead = CompileAhead(tree, prefix, index)

    def get(self, module: str, file: str) -> CodeType | None:
        """The code of a module; None if it is not kept, and was not compiled ahead either.

        Args:
            module: its path.
            file: its source.
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
        self._ahead.end()
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

    def _waiting(self) -> list[Task]:
        """The modules whose code is not kept."""
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


def _read(file: Path, owner: str) -> Mapping[_Key, _Piece]:
    """The pieces in a file; none if it is damaged, or of another tree."""
    try:
        with file.open("rb", buffering=0) as opened:
            if os.fstat(opened.fileno()).st_size <= _SMALL:
                content = memoryview(opened.read())
            else:  # of many modules few may be wanted
                content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        size, digest = _HEADER.unpack_from(content)
        start = _HEADER.size + size
        contents = content[_HEADER.size : start]
        its_owner, listed = marshal.loads(contents) if _sha256(contents) == digest else ("", ())
    except (OSError, ValueError, struct.error) as failure:  # gone, or empty
        _log.debug("%s holds no code: %s", file, failure)
        return {}
    pieces = dict[_Key, _Piece]()
    for key, length, digest in listed if its_owner == owner else ():
        pieces[key] = content[start : start + length], digest
        start += length
    return pieces


def _code(piece: bytes | memoryview) -> CodeType | None:
    try:
        found = marshal.loads(piece)
    except (EOFError, TypeError, ValueError):  # whole, but of another make
        return None
    return found if isinstance(found, CodeType) else None


def _sha256(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()


_ANSWER = struct.Struct("<II32s")
"""Before each piece of code: the number of its task, and the piece's size and sha256."""
_LINES = compile("name = 0", "", "exec").co_linetable.hex()
PYTHON = f"{sys.implementation.cache_tag} {importlib.util.MAGIC_NUMBER.hex()} {_LINES}"
"""For whom code is; it may know the columns of tracebacks or not (``-X no_debug_ranges``)."""

Task = tuple[str, str, bool, int, str]
"""A module's path, its record, whether it is a package; size and sha256 of its source."""
Job = tuple[str, str, str, int, tuple[str, ...], tuple[str, ...], list[Task]]
""":data:`PYTHON`, the tree, the namespace's prefix, the level of optimization, the first components
of the package's modules and of its extern ones, and the tasks."""
_START: Final = f"{FIND_MODPACK}; from modpack.loading.compile import main; main()"
_MISSES: Final = 8
"""Modules that one import had to compile, before more of them are expected."""
_WORTH_A_START: Final = 200
"""Modules that wait. A helper compiles its first one when the import has compiled a hundred."""


class CompileAhead:
    """Has a package's modules compiled before they are asked for, where that is faster.

    Args:
        tree: the folder with the package's files.
        prefix: what goes before the package's module paths, or ``""`` for real names.
        index: the package's modules.
    """

    def __init__(self, tree: Path, prefix: str, index: ModuleIndex) -> None:
        self._tree = tree
        self._prefix = prefix
        self._index = index
        self._helper: _Helper | None = None
        self._misses = 0
        self._is_off = not hasattr(os, "pread")  # Windows

    def take(self, key: _Key, waiting: Callable[[], list[Task]]) -> bytes | None:
        """The marshalled code of a module; None if it is to be compiled here.

        Args:
            key: the module.
            waiting: gives all modules whose code is not kept, in the order in which they will
                probably be asked for.
        """
        if self._helper is None:
            self._misses += 1
            if self._is_off or self._misses != _MISSES:
                return None
            self._helper = self._start(waiting)
        helper = self._helper  # another thread may end it
        return None if helper is None else helper.take(key)

    def end(self) -> None:
        """An import has come to its end: so does the helper, wherever it is."""
        helper, self._helper, self._misses = self._helper, None, 0
        if helper is not None:
            helper.end()
            self._is_off = not helper.has_helped  # imports are too short for it

    def _start(self, waiting: Callable[[], list[Task]]) -> _Helper | None:
        tasks = waiting() if usable_cores() >= 2 and helpers_enabled() else []
        if len(tasks) < _WORTH_A_START:
            return None
        roots, externs = tuple(self._index.roots), tuple(self._index.extern_roots)
        optimize = sys.flags.optimize
        job = (PYTHON, str(self._tree), self._prefix, optimize, roots, externs, tasks)
        helper = start_if_possible(partial(_Helper, job), "compiling")
        if helper is None:
            self._is_off = True
        return helper


class _Helper:
    """A process that compiles, and its answers.

    Attributes:
        has_helped: whether any of them was used.

    Raises:
        OSError, RuntimeError, ValueError: no process can be started.
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
            self._process, self._is_ours = _started(job, self._answers)
        except BaseException:
            self._answers.close()
            raise
        self._asker = os.getpid()

    def take(self, key: _Key) -> bytes | None:
        number = self._numbers.get(key)
        if number is None:
            return None
        if number not in self._pieces:
            self._listen()
        piece = self._pieces.pop(number, None)
        if piece is None:
            self._is_ours[number] = 1
        else:
            self.has_helped = True
        return piece

    def end(self) -> None:
        """End it. A forked child leaves it to its parent."""
        if os.getpid() != self._asker:
            self._process.returncode = 0
            self._answers.close()
            return
        kill_helper(self._process)
        with self._lock:
            self._answers.close()

    def _listen(self) -> None:
        """Take in what was said since the last time."""
        # Without waiting: a forked child has nobody who would free a lock that it got locked.
        if not self._lock.acquire(blocking=False):
            return
        try:
            file = self._answers.fileno()
            grown = os.fstat(file).st_size - self._position
            if grown > 0:
                self._note(os.pread(file, grown, self._position))
        except (OSError, ValueError) as failure:  # closed, or damaged
            self._position = sys.maxsize
            _log.debug("a helper is not heard any more: %s", failure)
        finally:
            self._lock.release()

    def _note(self, said: bytes) -> None:
        position = 0
        while len(said) - position >= _ANSWER.size:
            number, size, digest = _ANSWER.unpack_from(said, position)
            start = position + _ANSWER.size
            if number >= len(self._numbers):
                raise ValueError("it speaks of something else")
            if len(said) - start < size:  # still being written
                break
            piece = said[start : start + size]
            if _sha256(piece) != digest:
                raise ValueError("what it says is damaged")
            self._pieces[number] = piece
            position = start + size
        self._position += position


def _started(job: Job, answers: IO[bytes]) -> tuple[subprocess.Popen[bytes], mmap.mmap]:
    """The process, and the notes that it sees of what is compiled here."""
    count = len(job[-1])
    with tempfile.TemporaryFile() as file:
        file.write(bytes(count) + marshal.dumps(job))
        file.flush()
        file.seek(0)
        notes = mmap.mmap(file.fileno(), count)
        return start_helper(_START, [str(count), str(os.getpid())], file, answers), notes


def main() -> None:
    """Do what the standard input says, and put what was compiled into the standard output.

    The input is a file that both processes map: a byte for each task, then the job. The asker sets
    the byte when it compiles the module itself.
    """
    count, asked_by = int(sys.argv[2]), int(sys.argv[3])
    gc.disable()  # syntax trees have no cycles
    # Whoever imports a module is told what the compiler warns of: such modules are left to him.
    warnings.simplefilter("error")
    shared = memoryview(mmap.mmap(0, 0, access=mmap.ACCESS_READ))
    job: Job = marshal.loads(shared[count:])
    if job[0] == PYTHON:
        compile_all(job, shared, lambda: os.getppid() == asked_by, _answer)


def compile_all(
    job: Job,
    is_done: Sequence[int],
    is_wanted: Callable[[], bool],
    answer: Callable[[int, bytes], None],
) -> None:
    """Compile what is to be compiled, the last first.

    Args:
        job: the modules, and all that their code depends on.
        is_done: for each task whether somebody else has taken it.
        is_wanted: asked before each of them.
        answer: takes the number of a task, and its marshalled code.
    """
    _, tree, prefix, optimize, roots, extern_roots, tasks = job
    stays = partial(keeps, roots=frozenset(roots), extern_roots=frozenset(extern_roots))
    for number in reversed(range(len(tasks))):
        if not is_wanted():
            return
        if not is_done[number]:
            try:
                piece = _compiled_for(tasks[number], tree, prefix, optimize, stays)
            except Exception:  # whoever imports it is told
                continue
            if piece is not None:
                answer(number, piece)


def _compiled_for(
    task: Task, tree: str, prefix: str, optimize: int, stays: Callable[[str], bool]
) -> bytes | None:
    """The marshalled code of a module; None if its source is not what the package has."""
    module, record, is_package, size, sha256 = task
    file = f"{tree}{os.sep}{record.replace('/', os.sep)}"
    source = Path(file).read_bytes()
    if (len(source), hashlib.sha256(source).hexdigest()) != (size, sha256):
        return None
    if not prefix:
        return marshal.dumps(_compiled(source, file, optimize))
    name = prefix + module
    package = name if is_package else name.rpartition(".")[0]
    return marshal.dumps(compile_module(source, file, package, stays, optimize))


def _answer(number: int, piece: bytes) -> None:
    answers = sys.stdout.buffer
    answers.write(_ANSWER.pack(number, len(piece), _sha256(piece)) + piece)
    answers.flush()
