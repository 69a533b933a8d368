"""Pickles that do harm while they are loaded, or hide that they will.

They are meant for a package that declares the extern modules of :data:`EXTERNS`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["EXTERNS", "HOSTILE_PICKLES", "HostilePickle"]

CANARY = "touch modpack_canary"
"""The shell command of the pickles."""

EXTERNS = ("acme",)
"""Extern modules that the package declares."""


@dataclass(frozen=True)
class HostilePickle:
    """A pickle that must be rejected.

    Attributes:
        name: The attempt, for test ids.
        data: The pickle.
    """

    name: str
    data: bytes


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def octets(value: bytes) -> bytes:
    return b"B" + len(value).to_bytes(4, "little") + value


def number(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little", signed=True)


def values(*items: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(items) + b"t"


def many(*items: bytes) -> bytes:
    """A list."""
    return b"](" + b"".join(items) + b"e"


def mapping(*items: bytes) -> bytes:
    return b"}(" + b"".join(items) + b"u"


def named(module: str, name: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{name}\n".encode()


def stacked(module: str, name: str) -> bytes:
    """STACK_GLOBAL."""
    return text(module) + text(name) + b"\x93"


def call(function: bytes, *arguments: bytes) -> bytes:
    """REDUCE."""
    return function + values(*arguments) + b"R"


def new(kind: bytes, *arguments: bytes) -> bytes:
    """NEWOBJ."""
    return kind + values(*arguments) + b"\x81"


def build(target: bytes, state: bytes) -> bytes:
    """BUILD."""
    return target + state + b"b"


def persistent(*items: bytes) -> bytes:
    return values(*items) + b"Q"


def module(path: str) -> bytes:
    """Return the packaged name of a module."""
    return persistent(text("module"), text(path))


def whole(*body: bytes, protocol: int = 4) -> bytes:
    return b"\x80" + bytes([protocol]) + b"".join(body) + b"."


GETATTR = named("builtins", "getattr")
SHELL = text(CANARY)

_RUNNERS = (
    *(("os", name) for name in ("system", "popen", "execv", "remove", "putenv", "fork", "kill")),
    *(("posix", "system"), ("nt", "system")),
    *(("subprocess", name) for name in ("Popen", "run", "call", "check_output", "getoutput")),
    *(("builtins", name) for name in ("eval", "exec", "compile", "open", "__import__")),
    *(("builtins", name) for name in ("setattr", "vars", "globals", "breakpoint", "input")),
    *(("pty", "spawn"), ("runpy", "run_path"), ("runpy", "_run_code")),
    *(("timeit", "timeit"), ("cProfile", "run"), ("profile", "run"), ("trace", "Trace.run")),
    *(("pdb", "run"), ("bdb", "Bdb.run"), ("code", "InteractiveInterpreter.runcode")),
    *(("doctest", "debug_script"), ("pydoc", "pipepager"), ("webbrowser", "open")),
    *(("shutil", "rmtree"), ("shutil", "copyfile"), ("tempfile", "mkdtemp"), ("os", "fdopen")),
    *(("importlib", "import_module"), ("pkgutil", "resolve_name"), ("imp", "load_source")),
    *(("ctypes", "CDLL"), ("ctypes.util", "find_library"), ("_ctypes", "dlopen")),
    *(("marshal", "loads"), ("pickle", "loads"), ("_pickle", "loads"), ("shelve", "open")),
    *(("types", "CodeType"), ("socket", "create_connection")),
    *(("urllib.request", "urlopen"), ("http.client", "HTTPSConnection"), ("ftplib", "FTP")),
    *(("smtplib", "SMTP"), ("asyncio", "create_subprocess_shell"), ("multiprocessing", "Process")),
    *(("_posixsubprocess", "fork_exec"), ("sqlite3", "connect"), ("linecache", "getline")),
    *(("logging", "FileHandler"), ("logging.config", "dictConfig"), ("zipfile", "ZipFile")),
    *(("tarfile", "open"), ("glob", "glob"), ("platform", "popen"), ("atexit", "register")),
    *(("sys", "exit"), ("sys", "settrace"), ("gc", "get_objects"), ("inspect", "getsource")),
    *(("uuid", "_get_command_stdout"), ("site", "addsitedir"), ("ensurepip", "bootstrap")),
    *(("typing", "get_type_hints"), ("threading", "Thread")),
    *(("_aix_support", "_read_cmd_output"), ("_osx_support", "_read_output")),
    *(("pathlib", "Path.unlink"), ("pathlib", "PosixPath.write_text")),
    *(("torch", "load"), ("torch", "save"), ("torch", "compile"), ("torch", "from_file")),
    *(("torch.serialization", "load"), ("torch.storage", "_load_from_bytes")),
    *(("torch", "os.system"), ("torch.serialization", "os.system"), ("torch.serialization", "os")),
    *(("torch.hub", "load"), ("torch.hub", "download_url_to_file"), ("torch.jit", "load")),
    *(("torch.ops", "load_library"), ("torch.classes", "load_library")),
    *(("torch.utils.cpp_extension", "load"), ("torch.utils.collect_env", "run")),
    *(("torch.fx.graph_module", "_exec_with_source"),),
    *(
        ("torch.fx.graph_module", "reduce_deploy_graph_module"),
        ("torch.package", "PackageImporter"),
    ),
    *(("torch._dynamo.guards", "GuardBuilder.get"), ("torch._inductor.codecache", "compile_file")),
    *(("torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards_expression"),),
    *(("torch.jit.unsupported_tensor_ops", "execWrapper"), ("torch.multiprocessing", "spawn")),
    *(("torch.utils._config_module", "ConfigModule.load_config"),),
    *(("torch.utils.bottleneck.__main__", "run_cprofile"), ("torch.distributed", "launch")),
    ("torch", "UntypedStorage.from_file"),
    *(("torch._C._VariableFunctionsClass", "from_file"), ("torch.nn.functional", "importlib")),
    *(("numpy.testing._private.utils", "runstring"), ("numpy", "load"), ("numpy", "fromfile")),
    *(("joblib", "load"), ("dill", "loads"), ("cloudpickle", "loads"), ("requests.api", "get")),
    *(("nowhere.to.be.found", "Thing"), ("__main__", "Thing"), ("", "Thing")),
    *(("modpack.pickling.remade", "io.open"), ("modpack.importer", "PackageImporter")),
    *(("modpack", "load"), ("modpack.loading.cache", "os.system"), ("modpack.cli", "main")),
)
"""Globals that unpicklers must never call. Most of them do harm at once."""


def _runners() -> Iterator[HostilePickle]:
    for path, name in _RUNNERS:
        yield HostilePickle(f"calls {path}.{name}", whole(call(stacked(path, name), SHELL)))


def _ways_of_naming() -> Iterator[HostilePickle]:
    """Return all ways to name and call one function."""
    system = named("os", "system")
    yield HostilePickle("GLOBAL and REDUCE", whole(call(system, SHELL), protocol=3))
    yield HostilePickle("protocol 0", b"cos\nsystem\n(S'" + CANARY.encode() + b"'\ntR.")
    yield HostilePickle("INST", b"(S'" + CANARY.encode() + b"'\nios\nsystem\n.")
    yield HostilePickle("OBJ", whole(b"(" + system + SHELL + b"o"))
    yield HostilePickle("NEWOBJ", whole(new(named("subprocess", "Popen"), SHELL)))
    extended = named("subprocess", "Popen") + values(SHELL) + b"}" + b"\x92"
    yield HostilePickle("NEWOBJ_EX", whole(extended))
    yield HostilePickle("only held", whole(many(system)))
    memo = text("os") + b"\x940" + text("system") + b"\x940" + b"h\x00h\x01\x93" + values(SHELL)
    yield HostilePickle("names from the memo", whole(memo + b"R"))
    twice = text("os") + b"2\x93"
    yield HostilePickle("a name that is duplicated", whole(call(twice, SHELL)))
    yield HostilePickle(
        "before it turns out to be none", b"\x80\x04" + call(system, SHELL) + b"\xff"
    )
    yield HostilePickle("without an end", b"\x80\x04" + call(system, SHELL))
    yield HostilePickle("a dropped result", whole(call(system, SHELL) + b"0" + b"N"))
    yield HostilePickle("names of Python 2", b"ccommands\ngetoutput\n(V" + b"x\ntR.")
    yield HostilePickle("an unknown protocol", whole(b"N", protocol=9))
    later = b"\x80\x02" + b"\x80\x04" + call(named("commands", "getoutput"), SHELL) + b"."
    yield HostilePickle("a protocol that changes on the way", later)
    spoken = call(named("builtins", "str"), text("os")) + text("system") + b"\x93"
    yield HostilePickle("a computed module", whole(call(spoken, SHELL)))
    held = many(text("system")) + b"0" + text("os") + b"N\x93"
    yield HostilePickle("a name that is none", whole(held))
    yield HostilePickle("EXT1", whole(b"\x82\x01"))
    yield HostilePickle("EXT2", whole(b"\x83\x01\x01"))
    yield HostilePickle("EXT4", whole(b"\x84\x01\x01\x01\x01"))
    yield HostilePickle("NEXT_BUFFER", whole(b"\x97", protocol=5))
    yield HostilePickle("PERSID", b"Pos\n.")
    yield HostilePickle("a pickle behind its end", whole(b"N") + whole(system))
    yield HostilePickle("bytes behind its end", whole(b"N") + b"more")
    inner = octets(whole(call(system, SHELL)))
    yield HostilePickle("a pickle in bytes", whole(many(inner)))
    inner = b"\x96" + len(inner[5:]).to_bytes(8, "little") + inner[5:]
    yield HostilePickle("a pickle in a bytearray", whole(inner, protocol=5))
    loaded = call(named("torch.storage", "_load_from_bytes"), octets(pickle.dumps(len)))
    yield HostilePickle("a pickle in bytes that torch loads", whole(loaded))


def _attributes() -> Iterator[HostilePickle]:
    """Return ways from harmless globals to harmful attributes."""
    yield HostilePickle(
        "getattr of a held module",
        whole(call(call(GETATTR, module("os"), text("system")), SHELL)),
    )
    os_of_torch = call(GETATTR, module("torch.serialization"), text("os"))
    yield HostilePickle("getattr, twice", whole(call(GETATTR, os_of_torch, text("system"))))
    getter = call(named("operator", "attrgetter"), text("system"))
    yield HostilePickle("attrgetter", whole(call(call(getter, module("os")), SHELL)))
    dotted = call(named("operator", "attrgetter"), text("os.system"))
    yield HostilePickle("attrgetter, dotted", whole(call(dotted, module("torch"))))
    inside = call(GETATTR, named("shop", "pay"), text("__globals__"))
    yield HostilePickle("getattr of __globals__", whole(inside))
    yield HostilePickle("a dotted name with __globals__", whole(stacked("shop", "pay.__globals__")))
    yield HostilePickle(
        "a dotted name with __subclasses__",
        whole(call(stacked("builtins", "object.__subclasses__"))),
    )
    late = call(named("operator", "attrgetter"), text("__globals__"))
    yield HostilePickle("attrgetter of __globals__", whole(late))
    method = call(named("operator", "methodcaller"), text("__reduce__"))
    yield HostilePickle("methodcaller of __reduce__", whole(method))
    computed = call(GETATTR, module("os"), call(named("builtins", "str"), text("system")))
    yield HostilePickle("getattr of a computed name", whole(computed))
    hidden = GETATTR + call(named("builtins", "tuple"), many(module("os"), text("system"))) + b"R"
    yield HostilePickle("getattr with hidden arguments", whole(hidden))
    path = new(named("pathlib", "PosixPath"), text("/"))
    yield HostilePickle("a method of a path", whole(call(GETATTR, path, text("unlink"))))
    yield HostilePickle(
        "a module under a module of the package", whole(stacked("shop", "os.system"))
    )
    yield HostilePickle(
        "a name that the package imports", whole(call(stacked("shop", "execute"), SHELL))
    )
    yield HostilePickle("an alias in the package", whole(call(stacked("shop", "runner"), SHELL)))
    yield HostilePickle(
        "a module in a class of the package", whole(stacked("shop", "Till.shell.system"))
    )
    yield HostilePickle(
        "a name that comes by a star",
        whole(call(stacked("shop", "import_module"), text("os"))),
    )
    yield HostilePickle("a module that runs when it is imported", whole(module("antigravity")))
    yield HostilePickle("a module of nobody", whole(module("nowhere")))
    yield HostilePickle(
        "a module by a computed name",
        whole(persistent(text("module"), call(named("builtins", "str"), text("os")))),
    )
    yield HostilePickle(
        "a persistent id of bytes",
        whole(persistent(octets(b"module"), octets(b"os"))),
    )
    yield HostilePickle(
        "an unknown persistent id",
        whole(persistent(text("file"), text("/etc/passwd"))),
    )
    yield HostilePickle(
        "an operator that loads libraries",
        whole(call(named("modpack.pickling.remade", "operator_of"), text("load_library"))),
    )
    graph = named("torch.fx.graph_module", "reduce_package_graph_module")
    yield HostilePickle(
        "a graph whose code is elsewhere",
        whole(persistent(text("reduce_package"), graph, values(b"}", text("os")))),
    )


def _calls() -> Iterator[HostilePickle]:
    """Return ways to call globals that may only be named, or that are not named."""
    system = named("os", "system")
    relu = named("torch.nn.functional", "relu")
    till = new(named("shop", "Till"))
    yield HostilePickle("calls what objects only hold", whole(call(relu, SHELL)))
    for path, name in (("types", "FunctionType"), ("collections", "namedtuple")):
        yield HostilePickle(f"calls {path}.{name}", whole(call(named(path, name), SHELL)))
    yield HostilePickle("calls print", whole(call(named("builtins", "print"), SHELL)))
    yield HostilePickle(
        "calls an operator",
        whole(
            call(
                call(named("modpack.pickling.remade", "operator_of"), text("aten"), text("add")),
                b"N",
            )
        ),
    )
    yield HostilePickle("calls an extern function", whole(call(named("acme", "run"), SHELL)))
    yield HostilePickle(
        "calls a method of an extern class",
        whole(call(stacked("acme", "Client.start"))),
    )
    yield HostilePickle(
        "calls an extern function for the package",
        whole(persistent(text("reduce_package"), named("acme", "run"), values(SHELL))),
    )
    yield HostilePickle(
        "calls a function for the package",
        whole(persistent(text("reduce_package"), system, values(SHELL))),
    )
    for name in ("map", "filter"):
        mapped = call(named("builtins", name), named("acme", "run"), many(SHELL))
        yield HostilePickle(
            f"{name} of an extern function",
            whole(call(named("builtins", "list"), mapped)),
        )
        getting = call(named("builtins", name), GETATTR, many(module("os")), many(text("system")))
        yield HostilePickle(f"{name} of getattr", whole(getting))
    reduced = call(named("functools", "reduce"), GETATTR, many(module("os"), text("system")))
    yield HostilePickle("reduce of getattr", whole(call(reduced, SHELL)))
    starred = call(
        named("itertools", "starmap"), GETATTR, many(values(module("os"), text("system")))
    )
    yield HostilePickle("starmap of getattr", whole(starred))
    part = call(named("functools", "partial"), named("acme", "run"), SHELL)
    yield HostilePickle("a partial that is called", whole(call(part)))
    changed = build(
        call(named("functools", "partial"), named("shop", "pay")),
        values(named("acme", "run"), values(SHELL), b"}", b"N"),
    )
    yield HostilePickle("a partial that is changed and called", whole(call(changed)))
    hidden = build(
        call(named("functools", "partial"), named("shop", "pay")),
        call(named("builtins", "tuple"), many(named("acme", "run"), b")", b"}", b"N")),
    )
    yield HostilePickle("a partial with a hidden function", whole(call(hidden)))
    bound = call(named("types", "MethodType"), named("acme", "run"), SHELL)
    yield HostilePickle("a method that is called", whole(call(bound)))
    yield HostilePickle(
        "iter with a function",
        whole(call(named("builtins", "iter"), named("acme", "run"), b"N")),
    )
    yield HostilePickle(
        "a made class",
        whole(call(named("builtins", "type"), text("Own"), b")", b"}")),
    )
    yield HostilePickle("calls a result", whole(call(call(named("shop", "pay"), SHELL))))
    yield HostilePickle("calls an instance", whole(call(till)))
    yield HostilePickle("calls a list", whole(call(many(SHELL))))
    yield HostilePickle("calls a module", whole(call(module("shop"))))
    yield HostilePickle("an instance of a result", whole(new(call(named("shop", "pay"), SHELL))))
    default = call(named("collections", "defaultdict"), named("acme", "run"))
    yield HostilePickle(
        "an item of a default dict",
        whole(call(named("operator", "getitem"), default, SHELL)),
    )
    retyped = named("torch._tensor", "_rebuild_from_type_v2")
    yield HostilePickle(
        "a tensor of a type",
        whole(call(retyped, named("acme", "run"), named("torch", "Tensor"), values(SHELL), b"}")),
    )
    remade = "modpack.pickling.remade"
    yield HostilePickle(
        "a weak reference of a kind",
        whole(call(named(remade, "weak_reference"), named("acme", "run"), values(SHELL), b"N")),
    )
    yield HostilePickle(
        "the same, called",
        whole(call(call(named(remade, "the_same"), named("acme", "run")), SHELL)),
    )
    fresh = named("modpack.capturing.observe", "fresh")
    yield HostilePickle(
        "an empty container",
        whole(persistent(text("reduce_package"), fresh, values(named("acme", "run"), SHELL))),
    )
    metaclass = call(
        named("modpack.pickling.classes", "make_class"),
        named("acme", "run"),
        text("Own"),
        text("Own"),
        text("shop"),
        b")",
        b"}",
    )
    yield HostilePickle("a metaclass", whole(metaclass))
    set_name = call(
        named("modpack.saving.base", "set_in_script"),
        module("shop"),
        values(text("pay")),
        named("acme", "run"),
    )
    taken = call(named("modpack.saving.base", "defined"), module("shop"), text("pay"))
    yield HostilePickle("a name that is set first", whole(set_name, b"0", call(taken, SHELL)))
    encoded = call(named("_codecs", "encode"), text("x"), text("zip"))
    yield HostilePickle("a codec", whole(encoded))


def _changes() -> Iterator[HostilePickle]:
    """Return changes of objects that the pickle did not create."""
    state = mapping(text("forward"), named("shop", "pay"))
    linear = named("torch.nn.modules.linear", "Linear")
    yield HostilePickle("a class is given a state", whole(build(linear, state)))
    yield HostilePickle("a class is given slots", whole(build(linear, values(b"N", state))))
    yield HostilePickle("a function is given a state", whole(build(named("shop", "pay"), state)))
    yield HostilePickle("a module is given a state", whole(build(module("torch.nn"), state)))
    yield HostilePickle("an item is set in a module", whole(module("shop") + text("pay") + b"Ns"))
    yield HostilePickle(
        "a list of a module is added to",
        whole(named("shop", "Till") + b"(" + b"Ne"),
    )
    filled = call(named("modpack.pickling.functions", "fill_function"), named("shop", "pay"), b"}")
    yield HostilePickle("a function is filled that is not new", whole(filled))
    filled = call(named("modpack.pickling.classes", "fill_class"), linear, b"}")
    yield HostilePickle("a class is filled that is not new", whole(filled))
    set_state = call(named("modpack.pickling.remade", "set_state"), linear, state)
    yield HostilePickle("a state is set in a class", whole(set_state))
    set_state = call(named("torch._utils", "_set_obj_state"), module("shop"), state)
    yield HostilePickle("attributes of no tensor are set", whole(set_state))
    inside = call(
        named("modpack.saving.base", "set_in_script"),
        module("shop"),
        values(text("pay"), text("__code__")),
        b"N",
    )
    yield HostilePickle("a function of the package gets other code", whole(inside))


def _malformed() -> Iterator[HostilePickle]:
    yield HostilePickle("nothing", b"")
    yield HostilePickle("no opcode", b"\x80\x04\xfe.")
    yield HostilePickle("an empty stack", b"\x80\x04.")
    yield HostilePickle("a mark for a value", b"\x80\x04(R.")
    yield HostilePickle("an unknown place of the memo", b"\x80\x04h\x07.")
    yield HostilePickle(
        "a huge place of the memo",
        b"\x80\x04N" + b"r\xff\xff\xff\xff" * 2 + b"\x940\x940.",
    )
    yield HostilePickle("a text that is cut off", b"\x80\x04X\xff\xff\x00\x00abc.")
    yield HostilePickle("a line without an end", b"\x80\x04cos")
    yield HostilePickle("a text that is no UTF-8", b"\x80\x04X\x01\x00\x00\x00\xff.")
    part = named("functools", "partial")
    within = (part + b"(") * 30_000 + named("shop", "pay") + b"tR" * 30_000
    yield HostilePickle("a partial in a partial in ...", whole(call(within)))
    itself = call(part, named("shop", "pay")) + b"\x94(h\x00)}Ntb"
    yield HostilePickle("a partial of itself", whole(call(itself)))
    yield HostilePickle("marks in marks", b"\x80\x04" + b"(" * 200_000 + b".")
    yield HostilePickle(
        "more names than there can be",
        b"\x80\x03" + b"".join(b"cshop\n%d\n0" % each for each in range(110_000)) + b"N.",
    )


def _tensors_of_classes() -> Iterator[HostilePickle]:
    base = named("torch._C", "TensorBase")
    maker = call(GETATTR, base, text("_make_subclass"))
    retyped, tensor = named("torch._tensor", "_rebuild_from_type_v2"), named("torch", "Tensor")
    hidden = call(named("shop", "pay"), SHELL)
    for name, body in (
        ("a result as the class", call(maker, hidden, b"N", b"\x89")),
        ("classes that are not known", maker + hidden + b"R"),
        ("a class of the process", call(maker, named("os", "system"), SHELL)),
        ("arguments in a list", call(retyped, maker, tensor, many(tensor), b"}")),
        ("another maker", call(call(GETATTR, base, text("_make_dtensor")), SHELL)),
        ("a part of the maker", call(call(GETATTR, maker, text("__self__")), SHELL)),
    ):
        yield HostilePickle(f"a tensor of a class: {name}", whole(body))


def _of_torch() -> Iterator[HostilePickle]:
    """Return torch classes that call or load their contents on setstate or deletion."""
    inner = call(named("_codecs", "encode"), text(CANARY), text("latin1"))
    for kind in ("_IterDataPipeSerializationWrapper", "_MapDataPipeSerializationWrapper"):
        wrapper = new(named("torch.utils.data.dataloader", kind))
        yield HostilePickle(f"bytes for {kind}", whole(build(wrapper, values(inner, b"\x89"))))
    dropped = new(named("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"))
    yield HostilePickle("an iterator that is dropped", whole(build(dropped, b"}")))
    optimized = named("torch._dynamo.eval_frame", "OptimizedModule")
    linear = new(named("torch.nn.modules.linear", "Linear"))
    act = call(named("functools", "partial"), named("acme", "act"))
    yield HostilePickle("a compiled module", whole(call(optimized, linear, act)))
    state = mapping(text("_orig_mod"), linear, text("dynamo_ctx"), act)
    yield HostilePickle("a compiled module gets a state", whole(build(new(optimized), state)))
    wrapper = named("torch", "_TorchCompileInductorWrapper")
    compiler = mapping(text("cpp.cxx"), values(text("acme")))
    yield HostilePickle(
        "a compiler of its own",
        whole(build(new(wrapper), mapping(text("config"), compiler))),
    )
    later = b"}\x940" + build(new(wrapper), mapping(text("config"), b"h\x00")) + b"0h\x00"
    later += text("cpp.cxx") + values(text("acme")) + b"s"
    yield HostilePickle("a compiler that comes later", whole(later))
    hidden = call(named("builtins", "dict"), many(values(text("cpp.cxx"), text("acme"))))
    yield HostilePickle(
        "a compiler that is not seen",
        whole(build(new(wrapper), mapping(text("config"), hidden))),
    )
    twice = mapping(text("config"), b"}", text("config"), compiler)
    yield HostilePickle("a compiler in place of another", whole(build(new(wrapper), twice)))
    fill = call(named("modpack.pickling.remade", "set_state"), new(wrapper), mapping())
    yield HostilePickle("a compiler by another way", whole(fill))
    for module_, name in (("torch", "compile"), ("torch.utils._pytree", "key_get")):
        yield HostilePickle(f"holds {name}", whole(many(named(module_, name))))


def _given_away() -> Iterator[HostilePickle]:
    """Return functions that other code calls while the pickle is loaded."""
    namespace = call(named("types", "SimpleNamespace"))
    system = call(named("operator", "methodcaller"), text("system"), SHELL)
    planted = mapping(text("__setstate__"), system)
    yield HostilePickle(
        "an instance's own __setstate__",
        whole(build(build(namespace, planted), module("os"))),
    )
    for owner, name in (
        ("builtins", "eval"),
        ("shutil", "copy"),
        ("os", "remove"),
        ("uu", "encode"),
    ):
        caller = call(named("operator", "methodcaller"), text(name), SHELL)
        yield HostilePickle(f"methodcaller of {owner}.{name}", whole(many(caller)))
    part = call(named("functools", "partial"), system, module("os"))
    keys = build(namespace, mapping(text("keys"), part))
    yield HostilePickle("keys for a dict", whole(call(named("builtins", "dict"), keys)))
    getter = call(named("functools", "partial"), GETATTR, module("os"))
    yield HostilePickle("a partial of getattr", whole(many(getter)))
    yield HostilePickle("getattr in a list", whole(many(GETATTR)))
    yield HostilePickle("getattr in a dict", b"(V__call__\ncbuiltins\ngetattr\nd.")
    inside = call(named("modpack.pickling.remade", "referent_of"), values(module("os")))
    yield HostilePickle("the referent", whole(call(GETATTR, inside, text("system"))))
    dotted = call(named("operator", "attrgetter"), text("m.system"))
    for name, attribute in (
        ("property", call(named("builtins", "property"), dotted)),
        ("__setstate__", dotted),
    ):
        body = mapping(text("m"), module("os"), text("__setstate__"), attribute)
        made = call(named("modpack.pickling.classes", "make_class"), *_own_class(b")"), body)
        yield HostilePickle(f"{name} of a made class", whole(build(new(made), SHELL)))
    cached = build(new(named("functools", "cached_property")), mapping(text("func"), dotted))
    yield HostilePickle("a cached property", whole(cached))
    path = call(
        named("modpack.pickling.classes", "make_class"),
        *_own_class(values(named("pathlib", "PosixPath"))),
        b"}",
    )
    touch = call(GETATTR, call(path, SHELL), text("touch"))
    yield HostilePickle("what a made class inherits", whole(touch))
    till = build(new(named("shop", "Till")), mapping(text("m"), module("os")))
    attribute = call(GETATTR, call(GETATTR, till, text("m")), text("system"))
    yield HostilePickle("an attribute that was set before", whole(attribute))
    again = call(GETATTR, call(named("shop", "pay"), module("os")), text("system"))
    yield HostilePickle("what a function only passes on", whole(again))
    array = call(named("numpy._core.multiarray", "scalar"), b"N")
    tofile = call(GETATTR, array, text("tofile"))
    yield HostilePickle("a method of an array", whole(tofile))
    planted = mapping(text("__init__"), named("acme", "run"))
    made = call(named("modpack.pickling.classes", "make_class"), *_own_class(b")"), planted)
    yield HostilePickle("an extern __init__", whole(call(made, SHELL)))
    pairs = many(values(text("__setstate__"), named("acme", "run")))
    state = call(named("builtins", "dict"), pairs)
    yield HostilePickle("a state from pairs", whole(build(namespace, state)))
    key = call(named("builtins", "str"), text("__setstate__"))
    state = mapping(key, named("acme", "run"))
    yield HostilePickle("a state by a made key", whole(build(namespace, state)))
    program = named("modpack.pickling.remade", "exported_program")
    yield HostilePickle(
        "a program of nobody's package",
        whole(call(program, namespace, text("x"))),
    )
    elsewhere = persistent(text("reduce_package"), program, values(text("model/other.bin")))
    yield HostilePickle("a program from elsewhere", whole(elsewhere))
    patched = call(
        named("modpack.saving.base", "set_in_script"),
        module("torch.nn.functional"),
        values(text("relu")),
        named("shop", "pay"),
    )
    yield HostilePickle("a function of torch is replaced", whole(patched))
    graph = named("torch.fx.graph_module", "reduce_graph_module")
    for name, line in (
        ("a method of an array", "torch.zeros(3).numpy().tofile('x')"),
        ("by getattr", "getattr(torch.zeros(3).numpy(), 'tofile')('x')"),
        ("of a storage", "x.untyped_storage().from_file('x', True, 16)"),
        ("below itself", "self.os.system('x')"),
    ):
        code = f"def forward(self, x):\n    {line}\n    return x\n"
        body = mapping(text("_code"), text(code), text("os"), module("os"))
        ran = call(graph, body, text("import torch"))
        yield HostilePickle(f"a graph that calls {name}", whole(ran))


def _own_class(bases: bytes) -> tuple[bytes, ...]:
    """Return the arguments of ``make_class`` before the class body."""
    return named("builtins", "type"), text("Own"), text("Own"), text("shop"), bases


def _past_a_scanner() -> Iterator[HostilePickle]:
    """Return pickles that mislead static evaluation of their calls."""
    remade = named("modpack.pickling.classes", "make_class")
    parts = text("Own"), text("Own"), text("shop")
    defaults = named("collections", "defaultdict")
    getitem = call(GETATTR, defaults, text("__getitem__"))
    body = mapping(text("__setstate__"), getitem)
    kind = call(remade, named("builtins", "type"), *parts, values(defaults), body)
    caller = call(named("functools", "partial"), named("acme", "run"), SHELL)
    made = new(kind) + mapping(text("default_factory"), caller) + b"b"
    yield HostilePickle("a missing key that calls", whole(build(made, SHELL)))
    held = call(named("operator", "attrgetter"), text("system"))
    yield HostilePickle("a getter that is held", whole(many(held, module("os"))))
    deep = call(named("operator", "attrgetter"), text("serialization.os.system"))
    yield HostilePickle("a getter of all of torch", whole(call(call(deep, module("torch")), SHELL)))
    code = text("def f(x: __import__('os').system('touch modpack_canary')): pass")
    function = named("modpack.pickling.functions", "make_function")
    fields = values(code, b"\x89", text("f"), b")", number(0), b"N", number(1))
    annotated = call(
        function, fields, values(text("f"), text("f"), text("m")), module("shop"), b")"
    )
    signature = call(
        named("functools", "partial"), named("inspect", "signature"), annotated
    ) + mapping(text("eval_str"), b"\x88")
    yield HostilePickle("an annotation that is evaluated", whole(many(signature)))
    string = call(
        remade,
        named("builtins", "type"),
        *parts,
        values(named("builtins", "str")),
        mapping(text("isidentifier"), named("builtins", "object")),
    )
    field = call(string, text("x: 0\nimport os"))
    fields = call(named("dataclasses", "make_dataclass"), text("D"), many(field))
    yield HostilePickle("a name of a field that is code", whole(fields))
    graph = named("torch.fx.graph_module", "reduce_graph_module")
    quoted = mapping(
        text("_code"),
        text("def forward(self): return 1"),
        text("_modules"),
        mapping(text("a');__import__('os').system('touch modpack_canary');('"), b"N"),
    )
    yield HostilePickle("a name of a submodule that is code", whole(call(graph, quoted, text(""))))
    events = named("torch.autograd.profiler_util", "EventList")
    export = call(GETATTR, events, text("export_chrome_trace"))
    tracing = call(
        remade,
        named("builtins", "type"),
        *parts,
        values(events),
        mapping(text("__setstate__"), export),
    )
    yield HostilePickle("a trace that writes a file", whole(build(new(tracing), SHELL)))
    runs = named("numpy.testing", "runstring")
    yield HostilePickle("a test helper of numpy", whole(call(runs, SHELL, b"}")))
    for state in ("__dict__", "__class__", "__reduce_ex__"):
        planted = mapping(text(state), module("os"))
        yield HostilePickle(f"sets {state}", whole(build(new(named("shop", "Till")), planted)))


HOSTILE_PICKLES: tuple[HostilePickle, ...] = (
    *_runners(),
    *_ways_of_naming(),
    *_attributes(),
    *_calls(),
    *_changes(),
    *_tensors_of_classes(),
    *_of_torch(),
    *_given_away(),
    *_malformed(),
    *_past_a_scanner(),
)
"""All hostile pickles, with unique names."""
