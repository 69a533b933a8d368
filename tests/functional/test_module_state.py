"""The state of modules in the load test: what a script changed is reported, and nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch

import modpack
from modpack.errors import SelfTestError
from modpack.selftest import explanations

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.first(x)
"""

#: By name that is reported: the source in the module, and what a script does after its import.
CHANGES = {
    "CONSTANT": ("CONSTANT = 1", "net.CONSTANT = 2"),
    "COMPUTED": ("COMPUTED = len('abc') * 2", "net.COMPUTED = 5"),
    "TEXT": ("TEXT = 'a'", "net.TEXT = 'b'"),
    "TENSOR": ("TENSOR = torch.zeros(2)", "net.TENSOR = torch.full((2,), 3.0)"),
    "FILLED": ("FILLED = torch.zeros(2)", "net.FILLED.fill_(1)"),
    "SHAPE": ("SHAPE = torch.zeros(2)", "net.SHAPE = torch.zeros(3)"),
    "ENTRY['a']": ("ENTRY = {'a': torch.relu}", "net.ENTRY.update(a=torch.sigmoid)"),
    "ADDED['b']": ("ADDED = {'a': 1}", "net.ADDED['b'] = 2"),
    "REMOVED['a']": ("REMOVED = {'a': 1}", "del net.REMOVED['a']"),
    "NESTED['a'][0]": ("NESTED = {'a': [1]}", "net.NESTED['a'][0] = 2"),
    "LIST[1]": ("LIST = [1]", "net.LIST.append(2)"),
    "SET{'b'}": ("SET = {'a'}", "net.SET.add('b')"),
    "TUPLE[0]": ("TUPLE = (1, 2)", "net.TUPLE = (0, 2)"),
    "function": ("def function(x): return x", "net.function = lambda x: x + 1"),
    "code": ("def code(x): return x", "net.code.__code__ = (lambda x: x + 1).__code__"),
    "LAMBDA": ("LAMBDA = lambda x: x", "net.LAMBDA = lambda x: x + 1"),
    "PARTIAL.keywords['n']": (
        "PARTIAL = functools.partial(max, n=1)",
        "net.PARTIAL = functools.partial(max, n=2)",
    ),
    "Part.scale": ("class Part:\n    scale = 1", "net.Part.scale = 2"),
    "Method.run": (
        "class Method:\n    def run(self): return 1",
        "net.Method.run = lambda self: 2",
    ),
    "Added.run": ("class Added: pass", "net.Added.run = lambda self: 2"),
    "Lost.run": ("class Lost:\n    def run(self): return 1", "del net.Lost.run"),
    "Prop.size.fget": (
        "class Prop:\n    @property\n    def size(self): return 1",
        "net.Prop.size = property(lambda self: 2)",
    ),
    "Static.run.__func__": (
        "class Static:\n    @staticmethod\n    def run(): return 1",
        "net.Static.run = staticmethod(lambda: 2)",
    ),
    "Held.table": (
        "class Held:\n    table = torch.zeros(2)",
        "net.Held.table = torch.ones(2)",
    ),
    "Base": (
        "class Base: pass\nclass Other(Base): pass\nclass Base2: pass",
        "net.Base = net.Base2",
    ),
    "Derived": (
        "class First: x = 1\nclass Second: x = 2\nclass Derived(First): pass",
        "net.Derived.__bases__ = (net.Second,)",
    ),
    "STATE.level": (
        "class State:\n    def __init__(self): self.level = 1\nSTATE = State()",
        "net.STATE.level = 2",
    ),
    "OUTER.inner.level": (
        "class Outer:\n    def __init__(self): self.inner = State()\nOUTER = Outer()",
        "net.OUTER.inner.level = 2",
    ),
    "Slotted.level": (
        "class Slots:\n    __slots__ = ('level',)\nSlotted = Slots()\nSlotted.level = 1",
        "net.Slotted.level = 2",
    ),
    "SPACE.level": ("SPACE = types.SimpleNamespace(level=1)", "net.SPACE.level = 2"),
    "Color.RED.value": (
        "class Color(enum.Enum):\n    RED = 1",
        "net.Color.RED._value_ = 2",
    ),
    "Options.size": (
        "@dataclasses.dataclass\nclass Options:\n    size: int = 1",
        "net.Options.size = 2",
    ),
    "default.<default 0>[0]": (
        "def default(x=[]): return x",
        "net.default.__defaults__[0].append(1)",
    ),
    "keyword.<default x>": (
        "def keyword(*, x=1): return x",
        "net.keyword.__kwdefaults__['x'] = 2",
    ),
    "CLOSED.<n>": (
        "def outer(n):\n    return lambda x: x + n\nCLOSED = outer(1)",
        "net.CLOSED.__closure__[0].cell_contents = 2",
    ),
    "attributed.flag": (
        "def attributed(): pass\nattributed.flag = 1",
        "net.attributed.flag = 2",
    ),
    "show.registry[builtins.int]": (
        "@functools.singledispatch\ndef show(x): return x",
        "net.show.register(int, lambda x: x + 1)",
    ),
    "REGISTRY['mine']": (
        "REGISTRY = {}\ndef register(f):\n    REGISTRY[f.__name__] = f\n    return f",
        "def mine(): pass\nnet.register(mine)",
    ),
    "cached.__wrapped__": (
        "@functools.lru_cache\ndef cached(x): return x",
        "net.cached = functools.lru_cache(lambda x: x + 1)",
    ),
    "DELETED": ("DELETED = 1", "del net.DELETED"),
    "PATTERN": ("PATTERN = re.compile('a')", "net.PATTERN = re.compile('b')"),
    "FOLDER": ("FOLDER = pathlib.Path('a')", "net.FOLDER = pathlib.Path('b')"),
    "ARRAY": ("ARRAY = bytearray(b'a')", "net.ARRAY[0] = 98"),
    "LAYER.running_mean": (
        "LAYER = torch.nn.BatchNorm1d(1)",
        "net.LAYER.running_mean.fill_(7)",
    ),
    "DTYPE": ("DTYPE = torch.float32", "net.DTYPE = torch.float16"),
    "CHOSEN": ("CHOSEN = torch.relu", "net.CHOSEN = torch.sigmoid"),
}
IMPORTS = "import dataclasses, enum, functools, pathlib, re, types\n"


@pytest.fixture(autouse=True)
def tested(monkeypatch):
    """Test every save, as modpack.save does by default, and list all differences."""
    monkeypatch.delenv("MODPACK_SELF_TEST")
    monkeypatch.setattr(explanations, "MAX_DIFFERENCES", 1000)


def save(model, path, **options):
    """Save a model; return the warnings of its load test about modules, and the plan."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = modpack.save(model, path, **options)
    texts = [str(each.message) for each in caught]
    return [text for text in texts if " in its modules differ" in text], plan


def run_script(code: str, **modules) -> None:
    """Run code as the script of this process does: in a module that no package contains."""
    exec(compile(textwrap.dedent(code), "script.py", "exec"), {"__name__": "__main__", **modules})


def test_changes_are_reported(project, tmp_path):
    source = IMPORTS + NET + "\n".join(source for source, _ in CHANGES.values()) + "\n"
    project({"changednet.py": source})
    net = importlib.import_module("changednet")
    names = {"net": net, "torch": torch}
    for _, change in CHANGES.values():
        run_script(IMPORTS + change, **names)
    told, _ = save(net.Net(), tmp_path / "net.modpack")
    assert len(told) == 1
    assert [name for name in CHANGES if f"changednet.{name} (changednet.py:" not in told[0]] == []
    assert told[0].count(": live ") == len(CHANGES)
    assert "changednet.CONSTANT (changednet.py:10): live int 2, loaded int 1" in told[0]
    assert "set it in the module's source" in told[0]
    assert modpack.load(tmp_path / "net.modpack")(torch.ones(1, 2)).shape == (1, 2)


QUIET = """
import collections, contextvars, dataclasses, functools, io, itertools, logging, os, queue, random
import threading, time, typing, uuid, warnings, weakref
from concurrent.futures import ThreadPoolExecutor
from math import *
import torch
from importlib import import_module
from sys import modules
import quietlib, quietstate

COUNT = 0
CACHE = {}
STATS = {"calls": 0}
HISTORY = []
TABLE = None
TOTAL = collections.Counter()
IDENTITY = uuid.uuid4()
SEED = random.random()
TOKEN = os.urandom(8)
NOISE = torch.rand(3)
STARTED = time.time()
PROCESS = os.getpid()
FOLDER = os.path.dirname(os.path.abspath(__file__))
WORKING = os.getcwd()
HASHES = {"a": hash("a")}
SHUFFLED = list({f"name{n}" for n in range(20)})
log = logging.getLogger(__name__)
lock = threading.Lock()
local = threading.local()
numbers = itertools.count()
generator = (x for x in range(3))
WEAK = weakref.WeakValueDictionary()
QUEUE = queue.Queue()
CONTEXT = contextvars.ContextVar("context", default=1)
BUFFER = io.StringIO()
SOURCE = open(__file__)
pool = ThreadPoolExecutor(1)
SHARED = torch.nn.Dropout()
T = typing.TypeVar("T")
Point = collections.namedtuple("Point", "x y", defaults=[0])
RANDOM = random.Random(0)
GENERATOR = torch.Generator()
SENTINEL = object()

@dataclasses.dataclass
class State:
    steps: int = 0
    seen: list = dataclasses.field(default_factory=list)
    def advance(self):
        self.steps += 1
        self.seen.append(self.steps)

STATE = State()

@functools.lru_cache
def cached(x):
    return x

@functools.lru_cache(maxsize=None)
def table():
    return {"a": torch.zeros(2)}

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        wrapper.calls += 1
        return function(*args)
    wrapper.calls = 0
    return wrapper

@decorated
def helper(x):
    return x

@torch.no_grad()
def quiet_helper(x):
    return x

@torch.jit.script
def scripted(x):
    return x + 1

compiled = torch.compile(lambda x: x + 1, backend="eager")

def __getattr__(name):
    if name == "LAZY":
        globals()[name] = [1]
        return globals()[name]
    raise AttributeError(name)

def fill():
    global COUNT, TABLE
    COUNT += 1
    TABLE = {"a": COUNT}
    CACHE[len(CACHE)] = torch.ones(1)
    STATS["calls"] += 1
    HISTORY.append(COUNT)
    TOTAL.update(["a"])
    found = CACHE
    found["alias"] = 1
    STATE.advance()

class Meta(type):
    made = {}
    def __call__(cls, *args):
        made = super().__call__(*args)
        Meta.made[cls.__name__] = cls
        return made

class Shared:
    pool = {}
    level = 0
    def fill(self):
        self.pool["a"] = 1
        type(self).level += 1

class Single(metaclass=Meta):
    instance = None
    def __new__(cls):
        cls.instance = cls.instance or super().__new__(cls)
        return cls.instance

class Net(torch.nn.Module):
    made = 0
    def __init__(self):
        super().__init__()
        Net.made += 1
        self.shared = SHARED
        self.first = torch.nn.Linear(2, 2)
        self.first.register_forward_hook(lambda module, args, output: CACHE.update(last=1))
    @functools.cached_property
    def size(self):
        return 2
    def forward(self, x):
        fill()
        Single(), Shared().fill()
        quietstate.level = 3
        quietstate.TABLE[1] = 2
        cached(1), table(), next(numbers), RANDOM.random(), log.warning("called")
        pool.submit(fill).result()
        torch.rand(1, generator=GENERATOR)
        QUEUE.put(1)
        BUFFER.write("a")
        local.value = 1
        WEAK["net"] = self
        warnings.warn("used")
        quietlib.use(x)
        compiled(x)
        return scripted(helper(quiet_helper(self.first(x)))) * self.size
"""
LIBRARY = """
import quietlib.parts
CACHE = {}
_uses = 0
FLAG = None
REGISTRY = {}
_backends = {}
class Backend:
    def run(self): return 1
class Node:
    def __init__(self):
        self.next, self.table = None, None
    def link(self):
        self.next = Node()
GRAPH = Node()
def register(kind):
    REGISTRY[kind.__name__] = kind
    return kind
def use(x):
    global _uses, FLAG
    _uses, FLAG = _uses + 1, True
    CACHE[len(CACHE)] = x
    register(Part)
    GRAPH.link()
    _backends["torch"] = Backend()
    from quietlib import late
    return late.value
class Part: pass
"""


def test_changes_by_package_and_unstable_values_are_silent(project, installed, tmp_path):
    files = {
        "quietlib/__init__.py": LIBRARY,
        "quietlib/parts.py": "",
        "quietlib/late.py": "value=1",
    }
    installed("quietlib", files)
    project({"quietnet.py": QUIET, "quietstate.py": "level = 1\nTABLE = {}"})
    net = importlib.import_module("quietnet")
    model = net.Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert net.LAZY == [1]
    model.eval()
    told, plan = save(model, tmp_path / "net.modpack", preset="hermetic")
    assert told == []
    notes = [note.message for note in plan.notes if note.code == "module-state"]
    assert len(notes) == 1
    for name in ("COUNT", "CACHE[0]", "STATS['calls']", "HISTORY[0]", "TABLE", "STATE.steps"):
        assert f"quietnet.{name}" in notes[0]


def test_fresh_model_has_no_remarks(project, installed, tmp_path):
    files = {
        "quietlib/__init__.py": LIBRARY,
        "quietlib/parts.py": "",
        "quietlib/late.py": "value=1",
    }
    installed("quietlib", files)
    project({"quietnet.py": QUIET.replace("Net.made += 1", "pass"), "quietstate.py": ""})
    told, plan = save(importlib.import_module("quietnet").Net(), tmp_path / "net.modpack")
    assert told == []
    assert [note for note in plan.notes if note.code == "module-state"] == []


def test_patched_library_is_reported(project, installed, tmp_path):
    library = """
    import functools
    LIMIT = 1
    FOLDER = "data"
    TABLE = {"a": 1}
    unused = 1
    @functools.singledispatch
    def scale(x): return x
    def size(x): return x
    class Layer:
        factor = 1
        def run(self, x): return x
        def unpatched(self, x): return x
    def use(x): return scale(size(Layer().run(x))) * LIMIT * TABLE["a"] * len(FOLDER)
    """
    installed("patchlib", {"patchlib.py": library})
    source = NET.replace("return self.first(x)", "return patchlib.use(x)")
    project({"patchednet.py": "import patchlib\n" + source})
    net = importlib.import_module("patchednet")
    patchlib = sys.modules["patchlib"]
    run_script(
        """
        patchlib.LIMIT = 2
        patchlib.FOLDER = "/srv/data"  # of this machine
        patchlib.unused = 2
        patchlib.TABLE["a"] = 2
        patchlib.TABLE["own"] = lambda: 1
        patchlib.scale.register(int, lambda x: x + 1)
        patchlib.size = lambda x: x + 1
        patchlib.Layer.factor = 2
        patchlib.Layer.run = lambda self, x: x
        patchlib.Layer.added = lambda self, x: x
        """,
        patchlib=patchlib,
    )
    told, _ = save(net.Net(), tmp_path / "net.modpack", preset="hermetic")
    for name in (
        *("LIMIT", "TABLE['a']", "TABLE['own']", "scale.registry[builtins.int]", "size"),
        *("Layer.factor", "Layer.run", "Layer.added"),
    ):
        assert f"patchlib.{name} (patchlib.py:" in told[0]
    assert told[0].count(": live ") == 8


def test_patched_extern_library_is_reported(project, installed, tmp_path, monkeypatch):
    installed("externlib", {"externlib.py": "def size(x): return x\nclass Base:\n    pass"})
    source = NET.replace("return self.first(x)", "return externlib.size(x) + F.gelu(x)")
    source = source.replace(
        "class Net(torch.nn.Module)", "class Net(torch.nn.Module, externlib.Base)"
    )
    project({"externnet.py": "import externlib, torch.nn.functional as F\n" + source})
    net = importlib.import_module("externnet")
    script = {"__name__": "__main__"}
    exec("def size(x): return x + 1\ndef gelu(x): return x\ndef run(self): return 1", script)
    monkeypatch.setattr(sys.modules["externlib"], "size", script["size"])
    monkeypatch.setattr(torch.nn.functional, "gelu", script["gelu"])
    monkeypatch.setattr(sys.modules["externlib"].Base, "run", script["run"], raising=False)
    told, _ = save(net.Net(), tmp_path / "net.modpack")
    assert "externlib.size: live function __main__.size, loaded function externlib.size" in told[0]
    assert "torch.nn.functional.gelu: live function __main__.gelu" in told[0]
    assert "externlib.Base.run: live function __main__.run, loaded nothing" in told[0]
    assert told[0].count(": live ") == 3


def test_missing_optional_library_is_expected(project, installed, tmp_path):
    installed("optionlib", {"optionlib.py": "def fast(x): return x\ndef slow(x): return x"})
    source = """
    import importlib
    def optional(name):
        try:
            return importlib.import_module(name), True
        except ImportError:
            return None, False
    optionlib, HAS_OPTION = optional("option" + "lib")  # optionlib
    fast = optionlib.fast if HAS_OPTION else None
    def chosen(x): return x
    """
    project({"optionnet.py": NET + textwrap.dedent(source)})
    net = importlib.import_module("optionnet")
    told, _ = save(net.Net(), tmp_path / "net.modpack", preset="hermetic")
    assert told == []
    net.chosen = lambda x: x + 1
    told, _ = save(net.Net(), tmp_path / "net.modpack", preset="hermetic")
    assert told[0].count(": live ") == 1


def test_registration_by_module_of_script_is_reported(project, tmp_path):
    source = """
    import functools
    @functools.singledispatch
    def show(x): return x
    LAYERS = {}
    def register(kind):
        LAYERS[kind.__name__] = kind
        return kind
    """
    more = """
    import registerednet
    @registerednet.show.register
    def _(x: int): return x + 1
    @registerednet.register
    class Extra: pass
    """
    project({"registerednet.py": NET + textwrap.dedent(source), "registering.py": more})
    net = importlib.import_module("registerednet")
    importlib.import_module("registering")
    told, _ = save(net.Net(), tmp_path / "net.modpack")
    assert "registerednet.show.registry[builtins.int]" in told[0]
    assert "registerednet.LAYERS['Extra']" in told[0]
    assert told[0].count(": live ") == 2


def test_methods_that_script_adds_are_packaged_and_silent(tmp_path):
    source = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return x\n"
    (tmp_path / "methodnet.py").write_text(source)
    (tmp_path / "script.py").write_text(
        "import methodnet, modpack\n"
        "def forward(self, x): return x + 41\n"
        "methodnet.Net.forward = methodnet.Net.extra = forward\n"
        "modpack.save(methodnet.Net(), 'net.modpack')\n"
    )
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "in its modules" in done.stderr) == (0, False), done.stderr
    model = modpack.load(tmp_path / "net.modpack")
    assert (model(1), model.extra(2)) == (42, 43)


def test_state_of_submodule_and_alias_is_reported(project, tmp_path):
    files = {
        "statepack/__init__.py": "",
        "statepack/options.py": "LEVEL = 1\nTABLE = {}\nclass Options:\n    size = 1",
        "statepack/net.py": "from statepack import options\nfrom .options import TABLE as ALIAS\n"
        + NET,
    }
    project(files)
    net = importlib.import_module("statepack.net")
    net.options.LEVEL = 2
    net.ALIAS["a"] = 1
    net.options.Options.size = 2
    told, _ = save(net.Net(), tmp_path / "net.modpack")
    assert "statepack.options.LEVEL (options.py:1): live int 2, loaded int 1" in told[0]
    assert "statepack.options.TABLE['a']" in told[0] or "statepack.net.ALIAS['a']" in told[0]
    assert "statepack.options.Options.size (options.py:4)" in told[0]
    assert told[0].count(": live ") == 3


def test_equal_outputs_make_a_note(project, tmp_path):
    project(
        {"notednet.py": "OTHER = 'secret'\nSCALE = 1\n" + NET.replace("(x)\n", "(x) * SCALE\n")}
    )
    net = importlib.import_module("notednet")
    net.OTHER = "changed"
    path = tmp_path / "net.modpack"
    told, plan = save(net.Net(), path, example_inputs=(torch.ones(1, 2),))
    assert told == []
    (note,) = [note for note in plan.notes if note.code == "module-state"]
    assert note.severity.value == "info"
    assert "notednet.OTHER" in note.message
    assert "changed" not in note.message.replace("notednet.OTHER", "")
    recorded = modpack.audit(path) if hasattr(modpack, "audit") else None
    assert recorded is None or "notednet.OTHER" in str(recorded)
    assert told == save(net.Net(), path, example_inputs=(torch.ones(1, 2),), self_test=False)[0]


def test_failure_lists_changes_as_possible_causes(project, tmp_path):
    project({"causednet.py": "SCALE = 1\n" + NET.replace("(x)\n", "(x) * SCALE\n")})
    net = importlib.import_module("causednet")
    net.SCALE = 2
    with pytest.raises(SelfTestError, match=r"possible cause: causednet.SCALE \(causednet.py:1\)"):
        modpack.save(net.Net(), tmp_path / "net.modpack", example_inputs=(torch.ones(1, 2),))


def test_changed_source_is_expected(project, tmp_path):
    project({"replacednet.py": "SCALE = 1\n" + NET})
    net = importlib.import_module("replacednet")
    source = "SCALE = 3\n" + NET
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with modpack.PackageExporter(tmp_path / "net.modpack", self_test=True) as exporter:
            exporter.use_preset("pinned")
            exporter.save_source_string("replacednet", source)
            exporter.save_model("net", "model.pkl", net.Net())


def test_loaded_package_is_compared(project, tmp_path):
    project({"againnet.py": "SCALE = 1\n" + NET})
    net = importlib.import_module("againnet")
    first, second = tmp_path / "first.modpack", tmp_path / "second.modpack"
    modpack.save(net.Net(), first)
    model = modpack.load(first)
    importers = [modpack.importer_of(model), modpack.sys_importer]
    assert save(model, second, importer=importers)[0] == []
    sys.modules[type(model).__module__].SCALE = 2
    told, _ = save(model, second, importer=importers)
    assert "againnet.SCALE" in told[0]


def test_strings_are_not_shown(project, tmp_path):
    project({"secretnet.py": NET + "TOKEN = 'a'\n"})
    net = importlib.import_module("secretnet")
    net.TOKEN = "hunter2secret"
    told, _ = save(net.Net(), tmp_path / "net.modpack")
    assert (
        "secretnet.TOKEN (secretnet.py:9): live a str with another value, loaded a str" in told[0]
    )
    assert "hunter2secret" not in told[0]


def test_patch_by_packaged_code_is_silent(project, tmp_path):
    patches = "from patchinglib import net\ndef fast(self, x): return -x\n"
    files = {
        "patchinglib/__init__.py": "from patchinglib import net, patches\npatches.apply()\n",
        "patchinglib/net.py": NET,
        "patchinglib/patches.py": patches + "def apply(): net.Net.forward = fast\n",
    }
    project(files)
    net = importlib.import_module("patchinglib.net")
    assert save(net.Net(), tmp_path / "net.modpack")[0] == []


MADE = """
import abc, enum, functools, typing
from typing import NamedTuple, Protocol, overload
import torch

if typing.TYPE_CHECKING:
    HIDDEN = 1

try:
    import nowhere
    HAS = True
except ImportError:
    HAS = False

def wraps(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

class Meta(type):
    def __new__(cls, name, bases, names):
        made = {k: wraps(v) if callable(v) else v for k, v in names.items()}
        return super().__new__(cls, name, bases, {**made, "added": 3})

class Made(metaclass=Meta):
    def run(self):
        return 1

class Base:
    def __init_subclass__(cls):
        cls.run = wraps(cls.run)
        cls.count = 4

class Derived(Base):
    count = 3
    def run(self):
        return 1

class Color(enum.Enum):
    RED = 1
    def __new__(cls, value):
        made = object.__new__(cls)
        made._value_ = value
        return made

class Point(NamedTuple):
    x: int = 3

class Shape(Protocol):
    side: int = 1
    def area(self): ...

@functools.total_ordering
class Ordered:
    __slots__ = ("a",)
    def __lt__(self, other):
        return True

class Step(torch.optim.Optimizer):
    def step(self, closure=None):
        return None

@overload
def twice(x: int): ...
@overload
def twice(x: str): ...
def twice(x):
    return x

def late(x):
    return x
late = wraps(late)

class Net(torch.nn.Linear):
    names = ["a"]
    _abc: int = 0
    @property
    def size(self):
        return 1
    @size.setter
    def size(self, value):
        pass
    @functools.cached_property
    def slow(self):
        return 2

Net.names.append("b")
Net.extra = 5
net = Net(2, 2)
Step(net.parameters(), {})
"""


def test_metaclasses_and_decorators_are_silent(project, tmp_path):
    project({"madenet.py": MADE})
    net = importlib.import_module("madenet")
    assert net.net.slow == 2
    assert save([net.net, net.Made()], tmp_path / "net.modpack")[0] == []
