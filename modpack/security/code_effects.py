"""Side effects that importing a module has, as far as its source shows them.

Static analysis finds calls by name, through import aliases, and in the module's own functions that
it calls during import. An attacker can hide effects: this helps reviewers and is not a sandbox.
Most sources contain none of the relevant words and are not parsed.
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
    """The kind of a side effect."""

    PROCESS = "process"
    """Starts a process."""
    NETWORK = "network"
    """Uses the network."""
    WRITE = "write"
    """Writes, moves, or removes files."""
    EVAL = "eval"
    """Executes text as code, or deserializes objects, which can execute any code."""
    NATIVE = "native"
    """Loads a native library."""


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
"""Functions with effects, by module. For modules under ``*``, all calls except harmless ones."""
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
"""Methods of paths and archives whose names are specific enough."""
OPENERS: Final = frozenset({"open", "io.open", "builtins.open", "codecs.open", "os.fdopen"})
"""Functions that write only with a writing mode."""
_IN_WORDS: Final = f"{string.ascii_letters}{string.digits}_".encode()
_SPLIT_TABLE: Final = bytes(byte if byte in _IN_WORDS else 32 for byte in range(256))
"""Replaces bytes outside words by spaces. Splitting takes a quarter of the time of searching."""
_NON_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_EFFECT_NAMES: Final = (
    {*METHODS, *OPENERS, *KINDS, *_MODULES}
    | {"code.interact", "code.InteractiveConsole", "code.InteractiveInterpreter"}
) - {"code"}  # a word in many sources
_GROUPS: Final = tuple(frozenset(name.encode().split(b".")) for name in _EFFECT_NAMES)
"""Every source with effects contains all words of at least one group."""
_WORDS: Final = frozenset[bytes]().union(*_GROUPS)


def _may_have_effects(source: str | bytes) -> bool:
    """Return whether a source contains the words of any effect."""
    data = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    if _may_hide_words(data):
        return True
    found = _WORDS.intersection(data.translate(_SPLIT_TABLE).split())
    return any(group <= found for group in _GROUPS)


def _may_hide_words(data: bytes) -> bool:
    """Return whether encoding or Unicode normalization may change words (PEP 263, PEP 3131)."""
    start = b"\n".join(data[:1000].split(b"\n", 2)[:2])
    if b"coding" in start and b"utf-8" not in start.lower():
        return True
    if data.isascii():
        return False
    non_ascii = "".join(set(_NON_ASCII.findall(data.decode("utf-8", "replace"))))
    return any(
        unicodedata.normalize("NFKC", each).isascii() for each in non_ascii if each.isidentifier()
    )


class ImportEffect(NamedTuple):
    """One call with a side effect that runs when a module is imported.

    Attributes:
        kind: Kind of the effect.
        call: Full name of the called function (``subprocess.run``).
        line: 1-based line in the source.
        within: Function or class of the module that contains the call and is called at import.
            Empty at module level and in class bodies.
    """

    kind: EffectKind
    call: str
    line: int
    within: str = ""


_WRITING_MODES: Final = frozenset("wax+")
_MAX_DEPTH: Final = 4
"""Maximum nesting of calls in a resolved name: ``getattr(__import__("os"), "system")``."""
_CONSTRUCTORS: Final = ("__new__", "__init__", "__post_init__", "__call__")


def import_effects(source: str | bytes) -> tuple[ImportEffect, ...]:
    r"""Return the side effects of importing a module, without executing it.

    Args:
        source: Text, or the bytes of a file (PEP 263).

    Returns:
        The calls in source order. Empty for a source that does not parse.

    >>> import_effects("import os as o\ndef f(): o.system('ls')\nf()")
    (ImportEffect(kind=<EffectKind.PROCESS: 'process'>, call='os.system', line=2, within='f'),)
    """
    effects = read_effects(source)
    return () if isinstance(effects, ScanFailure) else effects


def read_effects(source: str | bytes) -> tuple[ImportEffect, ...] | ScanFailure:
    """Return what :func:`import_effects` returns, or why the source cannot be read.

    Args:
        source: Text, or the bytes of a file (PEP 263).
    """
    if not _may_have_effects(source):
        return ()
    if is_large(source):
        return ScanFailure("the source is too large to scan")
    parsed = parse_source(source)
    if isinstance(parsed, ScanFailure):
        return parsed
    found = dict.fromkeys(_ImportTracer(parsed.tree).find_effects())
    return tuple(sorted(found, key=lambda effect: (effect.line, effect.call)))


class _ImportTracer:
    """Traces the import of one module, including calls of its own functions and classes."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._names: dict[str, str] = {}
        self._own: dict[str, ast.AST] = {}
        self._pending: list[tuple[ast.AST, str]] = []
        self._followed: set[int] = set()

    def find_effects(self) -> Iterator[ImportEffect]:
        for node in ast.walk(self._tree):
            self._collect_names(node)
        self._pending = [(node, "") for node in reversed(self._tree.body)]
        while self._pending:
            node, within = self._pending.pop()
            yield from self._visit(node, within)

    def _collect_names(self, node: ast.AST) -> None:
        """Record what names refer to. Scopes are ignored, because they rarely matter here."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                target = alias.name if alias.asname else alias.name.partition(".")[0]
                self._names.setdefault(alias.asname or target, target)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                self._names.setdefault(alias.asname or alias.name, f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute)):
            name = self._resolve_name(node.value)
            for assigned in node.targets:
                if isinstance(assigned, ast.Name) and name:
                    self._names.setdefault(assigned.id, name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._own.setdefault(node.name, node)

    def _visit(self, node: ast.AST, within: str) -> Iterator[ImportEffect]:
        if isinstance(node, ast.If) and (is_type_checking(node.test) or is_main_guard(node)):
            self._pending += [(each, within) for each in reversed(node.orelse)]
            return
        if isinstance(node, ast.Call):
            yield from self._visit_call(node, within)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for decorator in node.decorator_list:
                self._follow(self._resolve_name(decorator) or "")
        self._pending += [(each, within) for each in reversed(list(_executed_children(node)))]

    def _visit_call(self, call: ast.Call, within: str) -> Iterator[ImportEffect]:
        name = self._resolve_name(call.func)
        if name is not None and name in self._own:
            self._follow(name)
            return
        kind = _classify_call(name, call)
        if kind is not None:
            label = name or f"(...).{getattr(call.func, 'attr', '')}"
            yield ImportEffect(kind, label, call.lineno, within)

    def _follow(self, name: str) -> None:
        """Continue in a function or class of the module."""
        own = self._own.get(name)
        if own is None or id(own) in self._followed:
            return
        self._followed.add(id(own))
        if isinstance(own, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._pending += [(each, name) for each in reversed(own.body)]
        elif isinstance(own, ast.ClassDef):
            for each in own.body:
                if isinstance(each, ast.FunctionDef) and each.name in _CONSTRUCTORS:
                    label = f"{name}.{each.name}"
                    self._pending += [(inner, label) for inner in reversed(each.body)]

    def _resolve_name(self, node: ast.AST, depth: int = 0) -> str | None:
        """Return the full name that an expression refers to, or None if it cannot be resolved."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        base = self._resolve_base(node, depth) if depth < _MAX_DEPTH else None
        return None if base is None else ".".join([base, *reversed(attributes)])

    def _resolve_base(self, node: ast.AST, depth: int) -> str | None:
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if not isinstance(node, ast.Call):
            return None
        called = self._resolve_name(node.func, depth + 1)
        constants = [each.value for each in node.args if isinstance(each, ast.Constant)]
        texts = [each for each in constants if isinstance(each, str)]
        if called in ("__import__", "importlib.import_module") and texts:
            return texts[0]
        if called == "getattr" and len(node.args) > 1 and texts:
            return f"{self._resolve_name(node.args[0], depth + 1)}.{texts[0]}"
        return None


def _classify_call(name: str | None, call: ast.Call) -> EffectKind | None:
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


def _executed_children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node that are executed with it, which excludes function bodies."""
    if not isinstance(node, FUNCTIONS):
        yield from ast.iter_child_nodes(node)
        return
    yield from getattr(node, "decorator_list", [])
    yield from node.args.defaults
    yield from (each for each in node.args.kw_defaults if each is not None)
