"""What is called to do something to the world, by name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

__all__ = ["HARMLESS", "HARMLESS_STARTS", "KINDS", "METHODS", "MODULES", "OPENERS", "EffectKind"]


class EffectKind(str, Enum):
    """What is done to the world."""

    PROCESS = "process"
    """Another program is started."""
    NETWORK = "network"
    """Something is asked for, or offered, over a network."""
    WRITE = "write"
    """Files are written, moved or removed."""
    EVAL = "eval"
    """A text is run as code, or serialised objects are loaded, which can run any."""
    NATIVE = "native"
    """Machine code is loaded by hand."""


MODULES: Final[Mapping[str, EffectKind]] = {
    "subprocess": EffectKind.PROCESS,
    "pty": EffectKind.PROCESS,
    "urllib.request": EffectKind.NETWORK,
    "http.client": EffectKind.NETWORK,
    "http.server": EffectKind.NETWORK,
    "xmlrpc": EffectKind.NETWORK,
    "ftplib": EffectKind.NETWORK,
    "smtplib": EffectKind.NETWORK,
    "poplib": EffectKind.NETWORK,
    "imaplib": EffectKind.NETWORK,
    "telnetlib": EffectKind.NETWORK,
    "nntplib": EffectKind.NETWORK,
    "socketserver": EffectKind.NETWORK,
    "webbrowser": EffectKind.NETWORK,
    "shutil": EffectKind.WRITE,
    "runpy": EffectKind.EVAL,
    "code": EffectKind.EVAL,
    "ctypes": EffectKind.NATIVE,
    "torch.utils.cpp_extension": EffectKind.NATIVE,
}
"""Modules of which every call counts, but those in :data:`HARMLESS`."""

HARMLESS: Final = frozenset(
    {"shutil.which", "shutil.get_terminal_size", "shutil.disk_usage"}
    | {"subprocess.list2cmdline", "urllib.request.url2pathname", "urllib.request.pathname2url"}
    | {"ctypes.sizeof", "ctypes.POINTER", "ctypes.pointer", "ctypes.byref", "ctypes.CFUNCTYPE"}
    | {"ctypes.alignment", "ctypes.addressof", "ctypes.util.find_library"}
)
HARMLESS_STARTS: Final = ("ctypes.c_", "ctypes.wintypes.")
_CALLS: Final[Mapping[EffectKind, frozenset[str]]] = {
    EffectKind.PROCESS: frozenset(
        {f"os.{name}" for name in ("system", "popen", "fork", "forkpty", "startfile")}
        | {f"os.exec{how}" for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
        | {f"os.spawn{how}" for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
        | {"os.posix_spawn", "os.posix_spawnp", "_posixsubprocess.fork_exec"}
        | {"multiprocessing.Process", "multiprocessing.Pool"}
        | {"concurrent.futures.ProcessPoolExecutor"}
        | {"asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"}
    ),
    EffectKind.NETWORK: frozenset(
        {"socket.socket", "socket.create_connection", "socket.create_server"}
        | {"socket.getaddrinfo", "socket.gethostbyname", "socket.fromfd"}
        | {"asyncio.open_connection", "asyncio.start_server", "torch.hub.load"}
        | {"torch.hub.load_state_dict_from_url", "torch.hub.download_url_to_file"}
    ),
    EffectKind.WRITE: frozenset(
        {f"os.{name}" for name in ("remove", "unlink", "rename", "renames", "replace", "rmdir")}
        | {f"os.{name}" for name in ("removedirs", "mkdir", "makedirs", "chmod", "chown", "link")}
        | {f"os.{name}" for name in ("symlink", "truncate", "write", "mkfifo", "mknod")}
        | {f"tempfile.{name}" for name in ("mkstemp", "mkdtemp", "NamedTemporaryFile")}
        | {"tempfile.TemporaryFile", "tempfile.TemporaryDirectory", "sqlite3.connect"}
        | {"torch.save"}
    ),
    EffectKind.EVAL: frozenset(
        {"eval", "exec", "builtins.eval", "builtins.exec", "types.FunctionType", "types.CodeType"}
        | {"marshal.load", "marshal.loads", "pickle.load", "pickle.loads", "shelve.open"}
        | {"torch.load", "pickle.Unpickler"}
    ),
    EffectKind.NATIVE: frozenset(
        {"imp.load_dynamic", "_imp.create_dynamic", "importlib.machinery.ExtensionFileLoader"}
        | {"torch.ops.load_library", "torch.classes.load_library"}
    ),
}
METHODS: Final = frozenset(
    {"write_text", "write_bytes", "symlink_to", "hardlink_to", "touch", "extractall"}
)
"""Methods whose names tell enough: those of paths and archives."""
OPENERS: Final = frozenset({"open", "io.open", "builtins.open", "codecs.open", "os.fdopen"})
"""They write only if they are asked to."""
KINDS: Final = {name: kind for kind, names in _CALLS.items() for name in names}
