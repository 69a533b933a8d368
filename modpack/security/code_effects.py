"""What a module does to the world around it while it is imported, as far as its source shows.

Only what is written plainly is found: calls by their names, through aliases of imports, and what
the module's own functions do that it calls meanwhile. Whoever wants to hide something can; this is
for the eyes of those who read what they are about to run, and no sandbox. Most sources have none
of the words that effects take, and need no parsing.
"""

from __future__ import annotations

import ast
import re
import string
import unicodedata
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from modpack.core.scan import ScanFailure
from modpack.discovery.syntax import (
    FUNCTIONS,
    is_large,
    is_main_guard,
    is_type_checking,
    parse_source,
)


class EffectKind(str, Enum):
    """What is done to the world."""

    PROCESS = "process"
    """Another program is started."""
    NETWORK = "network"
    """Something is asked for, or offered, over a network."""
    WRITE = "write"
    """Files are written, moved or removed."""
    EVAL = "eval"
    """A text is run as code, or serialized objects are loaded, which can run any."""
    NATIVE = "native"
    """Machine code is loaded by hand."""


_EFFECTS: Final[Mapping[EffectKind, Mapping[str, str]]] = {
    EffectKind.PROCESS: {
        "*": "subprocess pty",
        "os": "system popen fork forkpty startfile posix_spawn posix_spawnp "
        "execl execle execlp execlpe execv execve execvp execvpe "
        "spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe",
        "_posixsubprocess": "fork_exec",
        "multiprocessing": "Process Pool",
        "concurrent.futures": "ProcessPoolExecutor",
        "asyncio": "create_subprocess_exec create_subprocess_shell",
    },
    EffectKind.NETWORK: {
        "*": "urllib.request http.client http.server xmlrpc ftplib smtplib poplib imaplib "
        "telnetlib nntplib socketserver webbrowser",
        "socket": "socket create_connection create_server getaddrinfo gethostbyname fromfd",
        "asyncio": "open_connection start_server",
        "torch.hub": "load load_state_dict_from_url download_url_to_file",
    },
    EffectKind.WRITE: {
        "*": "shutil",
        "os": "remove unlink rename renames replace rmdir removedirs mkdir makedirs chmod chown "
        "link symlink truncate write mkfifo mknod",
        "tempfile": "mkstemp mkdtemp NamedTemporaryFile TemporaryFile TemporaryDirectory",
        "sqlite3": "connect",
        "torch": "save",
    },
    EffectKind.EVAL: {
        "*": "runpy code",
        "": "eval exec",
        "builtins": "eval exec",
        "types": "FunctionType CodeType",
        "marshal": "load loads",
        "pickle": "load loads Unpickler",
        "shelve": "open",
        "torch": "load",
    },
    EffectKind.NATIVE: {
        "*": "ctypes torch.utils.cpp_extension",
        "imp": "load_dynamic",
        "_imp": "create_dynamic",
        "importlib.machinery": "ExtensionFileLoader",
        "torch.ops": "load_library",
        "torch.classes": "load_library",
    },
}
"""What counts, by its module; ``*`` are the modules of which every call does, but the harmless."""
_MODULES: Final = {
    module: kind for kind, names in _EFFECTS.items() for module in names["*"].split()
}
KINDS: Final = {
    f"{module}.{name}".removeprefix("."): kind
    for kind, modules in _EFFECTS.items()
    for module, names in modules.items()
    for name in names.split()
    if module != "*"
}
_HARMLESS: Final = frozenset(
    {"shutil.which", "shutil.get_terminal_size", "shutil.disk_usage"}
    | {"subprocess.list2cmdline", "urllib.request.url2pathname", "urllib.request.pathname2url"}
    | {"ctypes.sizeof", "ctypes.POINTER", "ctypes.pointer", "ctypes.byref", "ctypes.CFUNCTYPE"}
    | {"ctypes.alignment", "ctypes.addressof", "ctypes.util.find_library"}
)
_HARMLESS_STARTS: Final = ("ctypes.c_", "ctypes.wintypes.")
METHODS: Final = frozenset(
    {"write_text", "write_bytes", "symlink_to", "hardlink_to", "touch", "extractall"}
)
"""Methods whose names tell enough: those of paths and archives."""
OPENERS: Final = frozenset({"open", "io.open", "builtins.open", "codecs.open", "os.fdopen"})
"""They write only if they are asked to."""
_IN_WORDS: Final = f"{string.ascii_letters}{string.digits}_".encode()
_APART: Final = bytes(byte if byte in _IN_WORDS else 32 for byte in range(256))
"""Leaves words, with blanks between them: to split that takes a quarter of looking for words."""
_NO_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_TELLING: Final = (
    {*METHODS, *OPENERS, *KINDS, *_MODULES}
    | {"code.interact", "code.InteractiveConsole", "code.InteractiveInterpreter"}
) - {"code"}  # many sources have that word
_GROUPS: Final = tuple(frozenset(name.encode().split(b".")) for name in _TELLING)
"""Words of which one group is in every source that does something."""
_WORDS: Final = frozenset[bytes]().union(*_GROUPS)


def _may_have_effects(source: str | bytes) -> bool:
    """Whether a source may do something; that it says so by its words is all that is looked at."""
    data = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    if _is_spelt_oddly(data):
        return True
    told = _WORDS.intersection(data.translate(_APART).split())
    return any(group <= told for group in _GROUPS)


def _is_spelt_oddly(data: bytes) -> bool:
    """Whether a source may mean other words than it seems to (PEP 263, PEP 3131)."""
    start = b"\n".join(data[:1000].split(b"\n", 2)[:2])
    if b"coding" in start and b"utf-8" not in start.lower():
        return True
    if data.isascii():
        return False
    odd = "".join(set(_NO_ASCII.findall(data.decode("utf-8", "replace"))))
    return any(unicodedata.normalize("NFKC", each).isascii() for each in odd if each.isidentifier())


class ImportEffect(NamedTuple):
    """One call that runs when a module is imported.

    Attributes:
        kind: what it does.
        call: what is called, by its full name (``subprocess.run``).
        line: 1-based line in the source.
        within: the module's own function or class that is called at import and holds the call;
            empty if it stands at module level or in a class body.
    """

    kind: EffectKind
    call: str
    line: int
    within: str = ""


_WRITING_MODES: Final = frozenset("wax+")
_DEEPEST: Final = 4
"""Calls in each other that a name is followed through: ``getattr(__import__("os"), "system")``."""
_CONSTRUCTORS: Final = ("__new__", "__init__", "__post_init__", "__call__")


def import_effects(source: str | bytes) -> tuple[ImportEffect, ...]:
    r"""What a module's source does to the world when it is imported; nothing is executed.

    Args:
        source: text, or bytes as they lie in a file (PEP 263).

    Returns:
        The calls in source order; none for a source that does not parse.

    >>> import_effects("import os as o\ndef f(): o.system('ls')\nf()")
    (ImportEffect(kind=<EffectKind.PROCESS: 'process'>, call='os.system', line=2, within='f'),)
    """
    effects = read_effects(source)
    return () if isinstance(effects, ScanFailure) else effects


def read_effects(source: str | bytes) -> tuple[ImportEffect, ...] | ScanFailure:
    """The same as :func:`import_effects`, or why a source cannot be read.

    Args:
        source: text, or bytes as they lie in a file (PEP 263).
    """
    if not _may_have_effects(source):
        return ()
    if is_large(source):
        return ScanFailure("it is too large to be looked through")
    parsed = parse_source(source)
    if isinstance(parsed, ScanFailure):
        return parsed
    found = dict.fromkeys(_Import(parsed.tree).effects())
    return tuple(sorted(found, key=lambda effect: (effect.line, effect.call)))


class _Import:
    """The import of one module, followed through what it calls of its own."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._names: dict[str, str] = {}
        self._own: dict[str, ast.AST] = {}
        self._waiting: list[tuple[ast.AST, str]] = []
        self._followed: set[int] = set()

    def effects(self) -> Iterator[ImportEffect]:
        for node in ast.walk(self._tree):
            self._learn(node)
        self._waiting = [(node, "") for node in reversed(self._tree.body)]
        while self._waiting:
            node, within = self._waiting.pop()
            yield from self._look(node, within)

    def _learn(self, node: ast.AST) -> None:
        """Take in what names mean; wherever they are bound, for scopes hardly matter here."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                meant = alias.name if alias.asname else alias.name.partition(".")[0]
                self._names.setdefault(alias.asname or meant, meant)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                self._names.setdefault(alias.asname or alias.name, f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute)):
            meant_by = self._name_of(node.value)
            for target in node.targets:
                if isinstance(target, ast.Name) and meant_by:
                    self._names.setdefault(target.id, meant_by)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._own.setdefault(node.name, node)

    def _look(self, node: ast.AST, within: str) -> Iterator[ImportEffect]:
        if isinstance(node, ast.If) and (is_type_checking(node.test) or is_main_guard(node)):
            self._waiting += [(each, within) for each in reversed(node.orelse)]
            return
        if isinstance(node, ast.Call):
            yield from self._called(node, within)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for decorator in node.decorator_list:
                self._follow(self._name_of(decorator) or "")
        self._waiting += [(each, within) for each in reversed(list(_running_parts(node)))]

    def _called(self, call: ast.Call, within: str) -> Iterator[ImportEffect]:
        name = self._name_of(call.func)
        if name is not None and name in self._own:
            self._follow(name)
            return
        kind = _kind_of(name, call)
        if kind is not None:
            told = name or f"(...).{getattr(call.func, 'attr', '')}"
            yield ImportEffect(kind, told, call.lineno, within)

    def _follow(self, name: str) -> None:
        """Go on with what one of the module's own functions, or of a class's, does."""
        own = self._own.get(name)
        if own is None or id(own) in self._followed:
            return
        self._followed.add(id(own))
        if isinstance(own, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._waiting += [(each, name) for each in reversed(own.body)]
        elif isinstance(own, ast.ClassDef):
            for each in own.body:
                if isinstance(each, ast.FunctionDef) and each.name in _CONSTRUCTORS:
                    label = f"{name}.{each.name}"
                    self._waiting += [(inner, label) for inner in reversed(each.body)]

    def _name_of(self, node: ast.AST, depth: int = 0) -> str | None:
        """The full name of what an expression stands for; None if that is not written plainly."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        base = self._base_name(node, depth) if depth < _DEEPEST else None
        return None if base is None else ".".join([base, *reversed(attributes)])

    def _base_name(self, node: ast.AST, depth: int) -> str | None:
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if not isinstance(node, ast.Call):
            return None
        called = self._name_of(node.func, depth + 1)
        constants = [each.value for each in node.args if isinstance(each, ast.Constant)]
        texts = [each for each in constants if isinstance(each, str)]
        if called in ("__import__", "importlib.import_module") and texts:
            return texts[0]
        if called == "getattr" and len(node.args) > 1 and texts:
            return f"{self._name_of(node.args[0], depth + 1)}.{texts[0]}"
        return None


def _kind_of(name: str | None, call: ast.Call) -> EffectKind | None:
    if name is None or "." in name:
        if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
            return EffectKind.WRITE
    if name is None or name in _HARMLESS or name.startswith(_HARMLESS_STARTS):
        return None
    if name in OPENERS:
        return EffectKind.WRITE if _opens_for_writing(call) else None
    if name in KINDS:
        return KINDS[name]
    module = name
    while module := module.rpartition(".")[0]:
        if module in _MODULES:
            is_error = name.rpartition(".")[2].endswith(("Error", "Exception"))
            return None if is_error else _MODULES[module]
    return None


def _opens_for_writing(call: ast.Call) -> bool:
    given = [each.value for each in call.keywords if each.arg == "mode"]
    mode = given[0] if given else call.args[1] if len(call.args) > 1 else None
    if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
        return bool(_WRITING_MODES.intersection(mode.value))
    return mode is not None


def _running_parts(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that run when it does: not what is in functions."""
    if not isinstance(node, FUNCTIONS):
        yield from ast.iter_child_nodes(node)
        return
    yield from getattr(node, "decorator_list", [])
    yield from node.args.defaults
    yield from (each for each in node.args.kw_defaults if each is not None)
