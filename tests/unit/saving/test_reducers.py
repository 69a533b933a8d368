"""Special objects load with their one meaning in another process."""

from __future__ import annotations

import concurrent.futures
import contextvars
import dataclasses
import functools
import io
import logging
import queue
import random
import re
import struct
import sys
import threading
import types
import typing
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import modpack
from modpack.saving.base import ReducerRow, ReducerTable, UnsupportedType
from modpack.saving.reducers import ALL_ROWS, ROWS
from tests.reloading import again


class Node:
    """A referent of weak references."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def method(self) -> object:
        return self


def refused(obj: Any) -> modpack.PicklingError:
    with pytest.raises(modpack.PicklingError) as caught:
        again(obj)
    return caught.value


LOCK = threading.Lock()
VARIABLE = contextvars.ContextVar("VARIABLE", default=3)
NOTHING = object()


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock], ids=["Lock", "RLock"])
def test_lock_loads_unlocked_and_shared(make):
    lock = make()
    lock.acquire()
    first, second = again([lock, lock])
    assert first is second is not lock
    assert first.acquire(blocking=False)


def test_module_attribute_is_saved_by_name():
    for held in (LOCK, VARIABLE, NOTHING, torch.default_generator):
        assert again(Node(held=held)).held is held


def test_attribute_of_unneeded_module_is_not_saved_by_name(project):
    project({"driver.py": "import threading\nLOCK = threading.Lock()\nSENTINEL = object()"})
    import driver

    with modpack.PackageExporter(None) as exporter:
        exporter.extern("tests.**")
        exporter.save_pickle("m", "o.pkl", Node(lock=driver.LOCK, sentinel=driver.SENTINEL))
    assert not exporter.get_rdeps("driver")


def test_condition_loads_with_shared_lock():
    lock = threading.RLock()
    condition = threading.Condition(lock)
    condition._waiters.append(threading.Lock())
    loaded, its_lock = again([condition, lock])
    assert loaded._lock is its_lock and not loaded._waiters
    with loaded:
        loaded.notify_all()


def test_events_semaphores_and_barriers_keep_parameters():
    event, bounded, plain = threading.Event(), threading.BoundedSemaphore(2), threading.Semaphore(5)
    event.set()
    bounded.acquire()
    loaded = again([event, bounded, plain, threading.Barrier(3, timeout=7)])
    assert loaded[0].is_set()
    assert (loaded[1]._value, loaded[1]._initial_value, loaded[2]._value) == (2, 2, 5)
    assert loaded[3].parties == 3 and loaded[3]._timeout == 7


class Counting(threading.local):
    def __init__(self) -> None:
        self.depth = 0


def test_thread_local_loads_for_loading_thread():
    plain, derived = threading.local(), Counting()
    plain.cache, derived.depth = [1, 2], 7
    loaded, other = again([plain, derived])
    elsewhere: list[object] = []
    thread = threading.Thread(target=lambda: elsewhere.extend((vars(loaded), other.depth)))
    thread.start()
    thread.join()
    assert (loaded.cache, other.depth, elsewhere) == ([1, 2], 7, [{}, 0])


def test_queues_and_pools_load_without_threads():
    waiting: queue.Queue[int] = queue.Queue(3)
    waiting.put(1)
    loaded = again([waiting])[0]
    assert (loaded.get_nowait(), loaded.maxsize) == (1, 3)
    with concurrent.futures.ThreadPoolExecutor(2, "worker") as pool:
        assert pool.submit(int, "3").result() == 3
        pool = again([pool])[0]
    with pool:
        assert (pool._max_workers, pool.submit(int, "4").result()) == (2, 4)
    assert "shut down" in refused([pool]).reason


def test_context_variable_loads_with_default():
    variable, bare = contextvars.ContextVar("v", default=(1,)), contextvars.ContextVar("bare")
    variable.set((2,))
    bare.set(1)
    loaded, loaded_bare = again([variable, bare])
    assert (loaded.name, loaded.get()) == ("v", (1,))
    with pytest.raises(LookupError):
        loaded_bare.get()


def test_weak_reference_leads_to_loaded_referent():
    node = Node(a=1)
    ref, proxy, method = weakref.ref(node), weakref.proxy(node), weakref.WeakMethod(node.method)
    for order in ([ref, proxy, method, node], [node, ref, proxy, method]):
        loaded = again(order)
        found = next(each for each in loaded if type(each) is Node)
        for each in loaded:
            if isinstance(each, weakref.WeakMethod):
                assert each()() is found
            elif isinstance(each, weakref.ref):
                assert each() is found
        assert next(e for e in loaded if type(e) is weakref.ProxyType).method() is found


def test_weak_parent_reference_leads_to_loaded_parent():
    parent = nn.Module()
    parent.child = nn.Linear(1, 1)
    parent.child.__dict__["parent"] = weakref.ref(parent)
    loaded = again(parent)
    assert loaded.child.parent() is loaded
    alone = again(parent.child)
    assert alone.parent() is None


def test_weak_reference_does_not_save_referent():
    outside = Node(weights=torch.ones(100_000))
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.extern("**")
        exporter.save_pickle("m", "o.pkl", [weakref.ref(outside), weakref.proxy(outside)])
    assert len(buffer.getvalue()) < 50_000
    buffer.seek(0)
    dead, proxy = modpack.PackageImporter(buffer).load_pickle("m", "o.pkl")
    assert dead() is None
    with pytest.raises(ReferenceError):
        proxy.weights  # noqa: B018


def test_dead_reference_loads_dead():
    ref, method = weakref.ref(Node()), weakref.WeakMethod(Node().method)
    assert [each() for each in again([ref, method])] == [None, None]


def test_weak_reference_to_importable_class_is_kept():
    assert [each() for each in again([weakref.ref(Node), weakref.ref(again)])] == [Node, again]


GONE: list[object] = []


def note_gone(ref: object) -> None:
    GONE.append(ref)


def test_weak_reference_callback_is_called_after_loading():
    node = Node()
    loaded, ref = again([node, weakref.ref(node, note_gone)])
    assert GONE == []
    del loaded
    assert GONE[0] is ref


class Keyed(weakref.WeakValueDictionary[str, Node]):
    title = ""


def test_weak_container_keeps_strongly_referenced_members():
    node, key = Node(), Node()
    values, keys, members = Keyed(a=node, b=key), weakref.WeakKeyDictionary(), weakref.WeakSet()
    values.title = "cache"
    keys[key] = [node]
    members.update((node, key))
    loaded_node, loaded_values, loaded_keys, loaded_members = again([node, values, keys, members])
    assert dict(loaded_values) == {"a": loaded_node} and loaded_values.title == "cache"
    assert type(loaded_values) is Keyed
    assert len(loaded_keys) == 0
    assert set(loaded_members) == {loaded_node}
    del loaded_node
    loaded_values["c"] = again_held = Node()
    assert list(loaded_values.values())[-1] is again_held


def test_weak_id_dictionary_has_loaded_tensors_as_keys():
    from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef, WeakTensorKeyDictionary

    tensor = torch.ones(2)
    by_tensor, by_id = WeakTensorKeyDictionary({tensor: "here"}), WeakIdKeyDictionary()
    by_id[tensor] = "there"
    tensor2, one, other, ref = again([tensor, by_tensor, by_id, WeakIdRef(tensor)])
    assert (one[tensor2], other[tensor2], ref()) == ("here", "there", tensor2)


def test_finalizer_loads_dead():
    node, calls = Node(), []
    finalizer = weakref.finalize(node, calls.append, 1)
    loaded, its_finalizer = again([node, finalizer])
    assert not its_finalizer.alive
    assert finalizer.detach() is not None
    del loaded
    assert calls == []


def test_logger_loads_as_logger_of_process():
    logger, root = logging.getLogger("special.objects"), logging.getLogger()
    assert again([logger, root]) == [logger, root]
    adapter = again([logging.LoggerAdapter(logger, {"a": 1})])[0]
    assert adapter.logger is logger and adapter.extra == {"a": 1}
    assert "logging.getLogger" in refused([logging.Logger("loose")]).reason


def test_logging_handler_uses_streams_of_process():
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(30)
    loaded = again([handler])[0]
    assert (loaded.level, loaded.stream) == (30, sys.stderr)
    assert loaded.lock is not handler.lock
    assert any(ref() is loaded for ref in logging._handlerList), "it is flushed at exit"


def test_standard_stream_loads_as_stream_of_process(capsys):
    streams = [sys.stdout, sys.stderr, sys.__stdout__]
    assert all(a is b for a, b in zip(again(streams), streams, strict=True))


def test_constants_keep_identity():
    constants = [dataclasses.MISSING, dataclasses.KW_ONLY, Node, NOTHING]
    assert all(a is b for a, b in zip(again(constants), constants, strict=True))
    fields = again(list(dataclasses.fields(Described)))
    assert [field.default for field in fields] == [1, dataclasses.MISSING]
    anonymous = object()
    first, second = again([anonymous, anonymous])
    assert first is second is not anonymous


@dataclasses.dataclass
class Described:
    number: int = 1
    items: list[int] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("make", [dict, OrderedDict])
def test_dictionary_view_loads_with_loaded_dictionary(make):
    mapping = make(a=1)
    loaded, keys, values, items, proxy = again(
        [
            mapping,
            mapping.keys(),
            mapping.values(),
            mapping.items(),
            types.MappingProxyType(mapping),
        ]
    )
    loaded["b"] = 2
    assert (list(keys), list(values), list(items)) == (["a", "b"], [1, 2], [("a", 1), ("b", 2)])
    assert proxy["b"] == 2


def plus_one(x: int) -> int:
    return x + 1


@functools.lru_cache(maxsize=7)
def remembered(x: int) -> int:
    return x + 1


def test_cached_function_loads_with_empty_cache():
    @functools.lru_cache(maxsize=5, typed=True)
    def local(x: int) -> int:
        return x + 1

    assert local(1) == 2
    loaded, named, method, built_in = again(
        [local, remembered, functools.cache(Node(a=1).method), functools.cache(abs)]
    )
    assert named is remembered
    assert loaded.cache_parameters() == {"maxsize": 5, "typed": True}
    assert (loaded.cache_info().currsize, loaded(3), method().a, built_in(-2)) == (0, 4, 1, 2)


def test_properties_and_method_wrappers_load():
    wrapped = again(
        [property(plus_one, None, None, "doc"), staticmethod(plus_one), classmethod(plus_one)]
    )
    assert (wrapped[0].fget, wrapped[0].__doc__) == (plus_one, "doc")
    assert [each.__func__ for each in wrapped[1:]] == [plus_one, plus_one]


def test_local_singledispatch_function_dispatches_after_loading():
    @functools.singledispatch
    def shown(x: object) -> str:
        return "something"

    @shown.register(int)
    def _(x: int) -> str:
        return "a number"

    assert shown(1) == "a number"
    loaded = again([shown])[0]
    assert (loaded(1), loaded("")) == ("a number", "something")


def test_closure_cell_keeps_contents():
    number = 5
    cell = (lambda: number).__closure__[0]
    loaded, function = again([cell, lambda: number])
    assert loaded.cell_contents == function() == 5
    assert function.__closure__[0] is loaded


def test_descriptors_super_and_struct_load():
    record, entropy = struct.Struct("<i"), random.SystemRandom()
    loaded = again([record, entropy, torch.Tensor.T, types.FunctionType])
    assert loaded[0].unpack(record.pack(3)) == (3,)
    assert type(loaded[1]) is random.SystemRandom
    assert loaded[2] is torch.Tensor.T
    assert loaded[3] is types.FunctionType
    bound = super(Counting, Counting)
    assert again([bound])[0].__thisclass__ is Counting


T = typing.TypeVar("T")


def test_typing_objects_load():
    local, new = typing.TypeVar("Local", bound=int), typing.NewType("Metres", float)
    loaded = again([T, local, new, typing.ParamSpec("P"), typing.ForwardRef("int"), local])
    assert loaded[0] is T
    assert (loaded[1].__name__, loaded[1].__bound__) == ("Local", int)
    assert loaded[5] is loaded[1]
    assert (loaded[2].__name__, loaded[2].__supertype__) == ("Metres", float)
    assert loaded[3].__name__ == "P" and loaded[4].__forward_arg__ == "int"


def test_random_generator_continues_sequence():
    generator = torch.Generator().manual_seed(7)
    torch.rand(3, generator=generator)
    loaded = again({"g": generator})["g"]
    assert torch.equal(torch.rand(5, generator=loaded), torch.rand(5, generator=generator))


OF_TORCH = {
    "memory format": torch.channels_last,
    "layout": torch.strided,
    "quantization scheme": torch.per_tensor_affine,
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "size": torch.Size([1, 2]),
    "reduce op": torch.distributed.ReduceOp.SUM,
    "attention backend": torch.nn.attention.SDPBackend.MATH,
    "profiler activity": torch.profiler.ProfilerActivity.CPU,
    "finfo": torch.finfo(torch.float16),
    "iinfo": torch.iinfo(torch.int8),
    "operator": torch.ops.aten.add,
    "overload": torch.ops.aten.add.Tensor,
    "default overload": torch.ops.aten.relu.default,
    "operators": torch.ops.aten,
    "built-in function": torch.nn.functional.gelu,
    "function of a function": torch.nn.functional.max_pool2d,
    "method": torch.Tensor.add,
    "static method": torch.add,
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_torch_constants_and_operators_keep_identity(name):
    value = OF_TORCH[name]
    loaded = again([value])[0]
    assert loaded == value and type(loaded) is type(value)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_script_functions_and_exported_programs_load():
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    x = torch.ones(1, 2)
    program = torch.export.export(nn.Linear(2, 2), (x,))
    script = torch.jit.script(scaled)
    loaded, loaded_program, same = again([script, program, script])
    assert torch.equal(loaded(x), x * 3) and same is loaded
    assert torch.equal(loaded_program.module()(x), program.module()(x))


def test_graphs_and_graph_modules_load():
    def cubed(x: torch.Tensor) -> torch.Tensor:
        return (x**3).sum()

    x = torch.arange(3.0)
    functions = [
        torch.func.grad(cubed),
        torch.vmap(torch.func.grad(lambda x: x**2)),
        torch.func.jacrev(cubed),
        functools.partial(torch.utils.checkpoint.checkpoint, cubed, use_reentrant=False),
    ]
    for function, loaded in zip(functions, again(functions), strict=True):
        assert torch.equal(function(x), loaded(x))


def test_compiled_modules_and_functions_load_uncompiled():
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x, module = torch.ones(1, 2), torch.compile(nn.Linear(2, 2), backend="eager")
    module(x)
    function = torch.compile(doubled, backend="eager")
    loaded, loaded_function = again([module, function])
    assert torch.equal(loaded(x), module(x)) and torch.equal(loaded_function(x), x * 2)
    assert type(loaded) is type(module)


def a_generator() -> Any:
    return (number for number in range(3))


PLAIN = "an object that Python itself cannot pickle"


async def a_coroutine() -> None:
    return None


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("a generator", a_generator),
        ("a generator or a coroutine", a_coroutine),
        ("a thread", lambda: threading.Thread(target=print)),
        ("a thread", lambda: threading.Timer(9, print)),
        ("a future", concurrent.futures.Future),
        ("a future", torch.futures.Future),
        (PLAIN, lambda: re.match("a", "a")),
        (PLAIN, contextvars.copy_context),
        (PLAIN, sys._getframe),
        (PLAIN, lambda: plus_one.__code__),
        ("a device stream or event", torch.Event),
        ("an autograd graph node", lambda: (torch.ones(1, requires_grad=True) * 2).grad_fn),
        ("an operator registration", lambda: torch.library.Library("modpack_tests", "FRAGMENT")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_object_is_reported_with_reason_and_hint(what, make):
    model = nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"attn": nn.Linear(1, 1)}))
    model[1]["attn"]._backend = obj = make()
    error = refused(model)
    kind = type(obj)
    assert error.path == "obj[1].attn._backend"
    assert error.reason.startswith(what)
    assert kind.__qualname__ in error.reason and error.reason.endswith(".")


def test_open_files_are_rejected(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with (tmp_path / "a.txt").open() as text, (tmp_path / "a.txt").open("rb") as raw:
        for file in (text, raw):
            assert refused(Node(f=file)).path == "obj.f"
    handler = logging.FileHandler(tmp_path / "log.txt")
    assert refused(Node(handler=handler)).path == "obj.handler.stream"
    handler.close()


def test_fake_tensors_are_rejected():
    from torch._subclasses import FakeTensorMode

    assert "a fake tensor" in refused([FakeTensorMode().from_tensor(torch.ones(2))]).reason


def test_module_made_at_run_time_is_rejected():
    error = refused(Node(made=types.ModuleType("made_here")))
    assert error.path == "obj.made" and "made_here" in error.reason


def test_pickling_error_lists_all_problems():
    shared = a_generator()
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    model[0].a, model[1].b, model[2].c = shared, a_generator(), re.match("a", "a")
    model[2].shared = shared
    error = refused(model)
    assert [path for path, _ in error.problems] == ["obj[0].a", "obj[1].b", "obj[2].c"]
    assert (error.path, error.reason) == error.problems[0]
    text = str(error)
    assert "for 2 reasons" in text and "at obj[0].a, obj[1].b: a generator" in text
    assert text.count("\n* at ") == 2


def test_tensors_are_not_written_after_first_problem():
    buffer = io.BytesIO()
    with pytest.raises(modpack.PicklingError), modpack.PackageExporter(buffer) as exporter:
        exporter.save_pickle("m", "o.pkl", [a_generator(), torch.ones(10)])
    assert buffer.getvalue() == b""


class Respected:
    """An object whose reduction replaces an unpicklable attribute."""

    def __init__(self) -> None:
        self.file = a_generator()

    def __reduce__(self) -> Any:
        return Respected, ()


class OwnLock(threading.local):
    def __reduce__(self) -> Any:
        return str, ("its own",)


def test_own_reduction_takes_precedence_over_rows():
    assert type(again([Respected()])[0].file) is types.GeneratorType
    assert again([OwnLock()]) == ["its own"]


def test_unsupported_types_have_reason_and_hint():
    for row in ALL_ROWS:
        if isinstance(row, UnsupportedType):
            assert row.what and row.why and row.hint and row.kinds


def test_reducer_rows_have_distinct_types():
    kinds = [kind for row in ALL_ROWS for kind in row.kinds]
    assert len(kinds) == len(set(kinds))


def test_reducer_table_finds_row_by_path_and_base():
    class Derived(threading.Thread):
        pass

    class Other(threading.Thread):
        def __reduce__(self) -> Any:
            return int, ()

    assert ROWS.find(Derived) is ROWS.find(threading.Thread) is not None
    assert ROWS.find(Other) is None
    row = UnsupportedType("a thing", (f"{__name__}.Node",), "so", "not so")
    assert ReducerTable([row]).find(Node) is row


def test_objects_page_lists_all_rows():
    page = Path(__file__).parents[3].joinpath("docs/reference/objects.md").read_text()
    refused = [row for row in ALL_ROWS if isinstance(row, UnsupportedType)]
    shown = [f"| {row.what} | {row.why} | {row.hint} |" for row in refused]
    in_page = [line for line in page.splitlines() if line.startswith("| ")]
    assert in_page[-len(shown) :] == shown
    others = [kind for row in ALL_ROWS if isinstance(row, ReducerRow) for kind in row.kinds]
    public = [kind for kind in others if isinstance(kind, type) and is_public(kind)]
    names = [OTHER_NAMES.get(kind, kind.__name__) for kind in public]
    assert [name for name in names if name not in page] == []


OTHER_NAMES = {
    logging.RootLogger: "`logging.Logger`",
    weakref.ReferenceType: "`weakref.ref`",
    weakref.ProxyType: "`weakref.proxy`",
    weakref.CallableProxyType: "`weakref.proxy`",
    torch.jit.ScriptFunction: "functions of `torch.jit.script`",
}
"""Names on the page for types that users do not create by name."""


def is_public(kind: type) -> bool:
    """Return whether a type is public under its name."""
    found = getattr(sys.modules[kind.__module__], kind.__name__, None)
    return found is kind and kind.__name__[0] != "_"


class Forwarding:
    """An object that forwards missing attributes to another one."""

    def __init__(self, target: object) -> None:
        self.target = target

    def __getattr__(self, name: str) -> object:
        return getattr(self.target, name)


def test_object_with_forwarding_getattr_loads(tmp_path):
    with modpack.PackageExporter(tmp_path / "x.pt") as exporter:
        exporter.extern("**")
        exporter.save_pickle("m", "x.pkl", Forwarding([1, 2]))
    with modpack.PackageImporter(tmp_path / "x.pt") as importer:
        assert importer.load_pickle("m", "x.pkl").index(2) == 1
