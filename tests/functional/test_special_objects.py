"""Special objects in a model that is loaded without its project.

A model of one project has an object of every kind of the tables. The project's checks run against
the live model, and in a clean interpreter against the loaded one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import modpack
from modpack.saving.base import ReducerRow
from modpack.saving.reducers import ALL_ROWS, ROWS

KINDS = """
import array, collections, contextlib, contextvars, dataclasses, enum, functools, logging, queue
import random, struct, sys, threading, types, typing, weakref
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import fx, nn
from torch._dynamo.convert_frame import ConvertFrameBox
from torch.utils.weak import WeakIdKeyDictionary

class Color(enum.Enum):
    RED = 1

logger = logging.getLogger(__name__)
LOCK = threading.Lock()
VARIABLE = contextvars.ContextVar("VARIABLE", default=3)
SENTINEL = object()

@dataclasses.dataclass
class Options:
    width: int = 1

class Nothing: pass
NOTHING = Nothing()

class Node:
    def __init__(self, **attributes): self.__dict__.update(attributes)
    def method(self): return self

@functools.lru_cache
def cached(x): return x + 1

@torch.jit.script
def scripted(x: torch.Tensor): return x + 1

def spanning(x):
    return x * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.lock, self.rlock, self.held = threading.Lock(), threading.RLock(), LOCK
        self.condition = threading.Condition(self.rlock)
        self.event, self.semaphore = threading.Event(), threading.Semaphore(2)
        self.bounded, self.barrier = threading.BoundedSemaphore(2), threading.Barrier(2)
        self.local = threading.local()
        self.local.depth = 3
        self.pool, self.queue = ThreadPoolExecutor(1), queue.Queue()
        self.variable, self.sentinel, self.nothing = VARIABLE, SENTINEL, NOTHING
        self.missing = dataclasses.MISSING
        self.field = dataclasses.fields(Options)[0]
        self.kind_of_field = self.field._field_type
        self.logger, self.handler = logger, logging.StreamHandler(sys.__stderr__)
        self.stream = sys.__stdout__
        self.table = {"a": 1}
        self.keys, self.values = self.table.keys(), self.table.values()
        self.items, self.proxy = self.table.items(), types.MappingProxyType(self.table)
        self.data = bytearray(b"abc")
        self.property, self.static = property(spanning), staticmethod(spanning)
        self.bound_to_class = classmethod(spanning)
        self.cached, self.own_cache = cached, functools.lru_cache(3)(lambda x: x + 2)
        self.descriptor, self.above = torch.Tensor.T, super()
        self.struct, self.entropy = struct.Struct("<i"), random.SystemRandom()
        self.type_var, self.param_spec = typing.TypeVar("Own"), typing.ParamSpec("P")
        self.new_type, self.forward_ref = typing.NewType("Own", int), typing.ForwardRef("int")
        node = self.node = Node()
        self.ref, self.weak_method = weakref.ref(self), weakref.WeakMethod(node.method)
        self.weak_proxy = weakref.proxy(node)
        self.weak_values = weakref.WeakValueDictionary(a=node)
        self.weak_keys = weakref.WeakKeyDictionary({node: 1})
        self.weak_set, self.by_id = weakref.WeakSet([node]), WeakIdKeyDictionary({node: 2})
        self.finalizer = weakref.finalize(node, str.upper, "silent")
        self.generator = torch.Generator().manual_seed(3)
        self.numbers = random.Random(5)
        self.memory_format, self.info = torch.channels_last, torch.finfo(torch.float16)
        self.small = torch.iinfo(torch.int8)
        self.operator, self.overload = torch.ops.aten.add, torch.ops.aten.add.Tensor
        self.operators = torch.ops.aten
        self.script = scripted
        self.program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
        self.compiled = torch.compile(spanning, backend="eager")
        self.mapped = torch.vmap(spanning)
        self.to_compile = torch.compile(nn.Linear(2, 1))
        self.compiler = self.to_compile.dynamo_ctx
        self.compiling, self.graph = ConvertFrameBox(), fx.symbolic_trace(nn.Tanh()).graph
        self.made, self.color = made_here(3), Color.RED

    def forward(self, x):
        return self.layer(x) + self.made.scale

def made_here(scale):
    @dataclasses.dataclass
    class Config:
        scale: float
        extra: list = dataclasses.field(default_factory=list)
        def doubled(self): return Config(self.scale * 2)
    return Config(scale)

def check(net):
    assert net.lock.acquire(blocking=False) and net.rlock.acquire(blocking=False)
    net.lock.release(), net.rlock.release()
    assert net.held is LOCK and net.variable is VARIABLE and net.variable.get() == 3
    assert net.sentinel is SENTINEL and net.nothing is NOTHING
    assert net.missing is dataclasses.MISSING is net.field.default_factory
    assert net.kind_of_field is net.field._field_type is dataclasses._FIELD
    assert net.condition._lock is net.rlock and not net.event.is_set()
    assert net.semaphore.acquire(blocking=False) and net.bounded._value == 2
    net.semaphore.release()
    assert type(net.to_compile).__name__ == "OptimizedModule"
    assert net.compiler is net.to_compile.dynamo_ctx
    assert net.barrier.parties == 2 and net.local.depth == 3
    assert net.pool.submit(int, "3").result() == 3 and net.queue.empty()
    net.pool.shutdown()
    assert net.logger is logger, (net.logger.name, logger.name)
    assert net.handler.stream is sys.__stderr__ and net.stream is sys.__stdout__
    net.table["b"] = 2
    assert list(net.keys) == ["a", "b"] and list(net.values) == [1, 2] and net.proxy["b"] == 2
    assert list(net.items) == [("a", 1), ("b", 2)] and type(net.proxy) is types.MappingProxyType
    del net.table["b"]
    assert net.data == b"abc"
    assert net.property.fget is net.static.__func__ is net.bound_to_class.__func__ is spanning
    assert net.cached is cached and net.own_cache(1) == 3
    assert net.own_cache.cache_parameters()["maxsize"] == 3
    assert net.descriptor is torch.Tensor.T and net.above.__self__ is net
    assert net.above.__thisclass__ is Net
    assert net.struct.size == 4 and type(net.entropy) is random.SystemRandom
    assert net.type_var.__name__ == net.new_type.__name__ == "Own"
    assert net.param_spec.__name__ == "P" and net.forward_ref.__forward_arg__ == "int"
    assert net.ref() is net and net.weak_method()() is net.weak_proxy.method() is net.node
    assert net.weak_values["a"] is net.node and net.weak_keys[net.node] == 1
    assert net.node in net.weak_set and net.by_id[net.node] == 2
    assert net.memory_format is torch.channels_last and net.info.bits == 16 and net.small.max == 127
    assert net.operator is torch.ops.aten.add and net.overload is torch.ops.aten.add.Tensor
    assert net.operators is torch.ops.aten
    x = torch.ones(1, 2)
    assert torch.equal(net.script(x), x + 1) and torch.equal(net.compiled(x), x * 2)
    assert torch.equal(fx.GraphModule({}, net.graph)(x), torch.tanh(x))
    assert torch.equal(net.mapped(x), x * 2) and net.program.module()(x).shape == (1, 2)
    assert net.color is Color.RED
    assert net.made.doubled().scale == 6 and net.made.doubled().extra == []

def results(net):
    torch.manual_seed(0)
    return [
        net(torch.ones(1, 2)).tolist(),
        torch.rand(3, generator=net.generator).tolist(),
        net.numbers.random(),
        net.program.module()(torch.ones(1, 2)).tolist(),
    ]
"""

LOADED = """
import importlib, warnings
warnings.simplefilter("ignore")
import modpack
importer = modpack.PackageImporter(path, namespace=namespace)
net = importer.load_pickle("m", "net.pkl")
kinds = importer.import_module("special_kinds")
kinds.check(net)
assert not net.finalizer.alive
assert kinds.results(net) == expected
print("as it was")
"""


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("namespace", ["private", "process"])
def test_every_kind_of_object_loads_in_clean_interpreter(
    project, clean_python, tmp_path, namespace
):
    project({"special_kinds.py": KINDS})
    import special_kinds

    net = special_kinds.Net()
    special_kinds.check(net)
    net = special_kinds.Net()
    path = tmp_path / "special.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.intern("special_kinds")
        exporter.save_pickle("m", "net.pkl", net)
    expected = special_kinds.results(net)
    done = clean_python(LOADED, path=path, namespace=namespace, expected=expected)
    assert done.stdout.endswith("as it was\n")
    again = modpack.PackageImporter(path)
    second = tmp_path / "again.modpack"
    with modpack.PackageExporter(second, importer=[again, modpack.sys_importer]) as exporter:
        exporter.intern("special_kinds")
        exporter.save_pickle("m", "net.pkl", again.load_pickle("m", "net.pkl"))
    done = clean_python(LOADED, path=second, namespace=namespace, expected=expected)
    assert done.stdout.endswith("as it was\n")
    _every_row_was_there(net)


def _every_row_was_there(net: object) -> None:
    held = [*vars(net).values(), net.made.__class__]  # type: ignore[attr-defined]
    seen = {id(ROWS.find(type(each))) for each in held}
    missing = [row for row in ALL_ROWS if isinstance(row, ReducerRow) and id(row) not in seen]
    assert [row.kinds for row in missing] == []


def test_pickling_error_of_model_lists_every_path(project, tmp_path: Path):
    project(
        {
            "shop_nets.py": """
            import torch
            from torch import nn
            class Attention(nn.Module):
                def __init__(self):
                    super().__init__()
                    self._backend = (n for n in range(3))
            class Layer(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.attn = Attention()
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.encoder = nn.Module()
                    self.encoder.layers = nn.ModuleList(Layer() for _ in range(4))
                    self.log = open(__file__)
            """
        }
    )
    import shop_nets

    target = tmp_path / "net.modpack"
    model = shop_nets.Net()
    with pytest.raises(modpack.PicklingError) as caught:
        modpack.save(model, target)
    model.log.close()
    paths = [path for path, _ in caught.value.problems]
    assert "model.encoder.layers[3].attn._backend" in paths and "model.log" in paths
    assert len(paths) == 5 and not target.exists()
