"""Benign packages of torch, the standard library, and NumPy raise no alarms."""

from __future__ import annotations

import argparse
import array
import collections
import contextlib
import contextvars
import csv
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import importlib
import inspect
import io
import ipaddress
import itertools
import json
import logging
import math
import operator
import pathlib
import queue
import random
import re
import statistics
import string
import struct
import sys
import textwrap
import threading
import time
import types
import typing
import uuid
import warnings
import weakref
import zoneinfo
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import modpack
from modpack.archive.manifest import read_manifest
from modpack.archive.reader import open_archive
from modpack.diagnostics import Severity
from modpack.report.audit_findings import dangerous_names, pickle_findings
from modpack.trust.code_listing import list_code

REPRODUCIBLE = Path(__file__).parents[2] / "fixtures" / "reproducible" / "project"
CASES = {}
ONES = torch.ones(1, 2)


def case(make):
    CASES[make.__name__] = make
    return make


def layer():
    return nn.Linear(2, 2)


def parameters():
    return [nn.Parameter(torch.ones(2, 2))]


def image_net():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    )


def holding(*values):
    """Return a model with attributes."""
    model = nn.Identity()
    for at, value in enumerate(values):
        setattr(model, f"held{at}", value)
    return model


def alarms(obj, options, folder: Path) -> list[str]:
    """Return the findings of a package with the object, except those of severity info."""
    afterwards = options.pop("afterwards", ())
    path = folder / "package.modpack"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            modpack.save(obj, path, **{**options, "self_test": False})
        finally:
            for clean in afterwards:
                clean()
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        code = list_code(archive, manifest)
        findings = [*pickle_findings(archive, manifest, code), *dangerous_names(code)]
    return [
        f"{each.code}: {each.message}" for each in findings if each.severity is not Severity.INFO
    ]


@case
def compiled():
    return torch.compile(layer())


@case
def compiled_for_the_fastest():
    return torch.compile(layer(), mode="max-autotune")


@case
def compiled_with_options():
    return torch.compile(layer(), options={"max_autotune": True, "shape_padding": True})


@case
def compiled_eagerly():
    return torch.compile(layer(), backend="eager")


@case
def compiled_in_place():
    model = layer()
    model.compile(backend="eager")
    return model


@case
def not_to_be_compiled():
    return holding(torch.compiler.disable(torch.relu), torch.compiler.is_compiling)


@case
def prepared_for_quantization():
    from torch.ao.quantization import get_default_qconfig, prepare

    model = image_net().eval()
    model.qconfig = get_default_qconfig("x86")
    return prepare(model)


@case
def prepared_for_training():
    from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

    model = image_net().train()
    model.qconfig = get_default_qat_qconfig("x86")
    return prepare_qat(model)


@case
def quantized():
    from torch.ao.quantization import convert

    torch.backends.quantized.engine = "x86"
    model = prepared_for_quantization()
    model(torch.ones(1, 1, 4, 4))
    return convert(model)


@case
def quantized_dynamically():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(2, 2), layer()))


@case
def prepared_graph():
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_fx

    examples = (torch.ones(1, 1, 4, 4),)
    return prepare_fx(image_net().eval(), get_default_qconfig_mapping("x86"), examples)


@case
def graph_prepared_for_training():
    from torch.ao.quantization import get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    examples = (torch.ones(1, 1, 4, 4),)
    return prepare_qat_fx(image_net().train(), get_default_qat_qconfig_mapping("x86"), examples)


@case
def quantized_graph():
    from torch.ao.quantization.quantize_fx import convert_fx

    model = prepared_graph()
    model(torch.ones(1, 1, 4, 4))
    return convert_fx(model)


@case
def quantization_settings():
    quantization = torch.ao.quantization
    backends = torch.ao.quantization.backend_config
    return {
        "configurations": [
            getattr(quantization, name)
            for name in dir(quantization)
            if name.startswith("default_") and "qconfig" in name
        ],
        "mapping": quantization.get_default_qconfig_mapping("x86"),
        "backend": backends.get_native_backend_config(),
    }


@case
def traced_symbolically():
    return torch.fx.symbolic_trace(image_net())


@case
def interpreter_of_a_graph():
    return {"run": torch.fx.Interpreter(torch.fx.symbolic_trace(layer())), "t": torch.fx.Tracer()}


@case
def script():
    return nn.Sequential(torch.jit.trace(layer(), ONES))


@case
def exported():
    return {"program": torch.export.export(layer(), (ONES,))}


class Sized(nn.Module):
    def forward(self, x, y):
        half, more = x[: x.shape[0] // 2].repeat(3, 1), y[: y.shape[0] % 3]
        wide = nn.functional.interpolate(x[None, None], scale_factor=1.5)
        return half, more, wide, torch.cat([x, y]), x.nonzero(), x.new_zeros(max(x.shape[0], 4))


@case
def exported_with_dynamic_shapes():
    sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    given = (torch.ones(8, 4), torch.ones(8, 4))
    return torch.export.export(Sized(), given, dynamic_shapes={"x": sizes, "y": sizes})


@case
def data_parallel():
    return nn.DataParallel(layer())


@case
def scalers_and_autocasts():
    return {
        "scaler": torch.amp.GradScaler("cpu"),
        "cast": torch.autocast("cpu"),
        "typed": torch.amp.autocast("cpu", dtype=torch.bfloat16),
        "function": torch.amp.custom_fwd,
    }


@case
def averaged():
    swa = torch.optim.swa_utils
    return nn.ModuleList(
        [
            swa.AveragedModel(layer()),
            swa.AveragedModel(layer(), avg_fn=swa.get_ema_avg_fn(0.9)),
            swa.AveragedModel(layer(), multi_avg_fn=swa.get_ema_multi_avg_fn(0.9)),
            swa.AveragedModel(layer(), multi_avg_fn=swa.get_swa_multi_avg_fn()),
        ]
    )


@case
def optimizers():
    made = {}
    for name in ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "LBFGS", "NAdam", "RAdam", "Rprop"):
        made[name] = getattr(torch.optim, name)(parameters(), lr=0.1)
    return made


@case
def schedulers():
    kinds = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD(parameters(), lr=0.1, momentum=0.9)
    return {
        "step": kinds.StepLR(optimizer, 1),
        "cosine": kinds.CosineAnnealingWarmRestarts(optimizer, 2),
        "cycle": kinds.OneCycleLR(optimizer, 0.1, 10),
        "plateau": kinds.ReduceLROnPlateau(optimizer),
        "cyclic": kinds.CyclicLR(optimizer, 0.1, 0.2),
        "chained": kinds.SequentialLR(
            optimizer, [kinds.StepLR(optimizer, 1), kinds.LinearLR(optimizer)], [1]
        ),
        "averaging": torch.optim.swa_utils.SWALR(optimizer, 0.1),
        "by_a_function": kinds.LambdaLR(optimizer, float),
    }


def dataset():
    return torch.utils.data.TensorDataset(torch.ones(4, 2), torch.ones(4))


@case
def loaders():
    data = torch.utils.data
    return {
        "plain": data.DataLoader(dataset(), batch_size=2, shuffle=True),
        "unbatched": data.DataLoader(dataset(), batch_size=None, generator=torch.Generator()),
        "spawning": data.DataLoader(dataset(), num_workers=1, multiprocessing_context="spawn"),
        "collating": data.default_collate,
    }


@case
def datasets_and_samplers():
    data = torch.utils.data
    return {
        "parts": data.random_split(dataset(), [2, 2]),
        "joined": data.ConcatDataset([dataset(), dataset()]),
        "stacked": data.StackDataset(dataset(), dataset()),
        "weighted": data.WeightedRandomSampler([1.0, 2.0], 2),
        "batches": data.BatchSampler(data.RandomSampler(dataset()), 2, False),
        "distributed": data.distributed.DistributedSampler(dataset(), 2, 0),
    }


@case
def checkpoints():
    checkpoint = torch.utils.checkpoint
    return holding(
        checkpoint.checkpoint,
        functools.partial(checkpoint.checkpoint, use_reentrant=False),
        checkpoint.CheckpointPolicy.MUST_SAVE,
        checkpoint.noop_context_fn,
    )


@case
def profilers():
    return {
        "recorded": torch.autograd.profiler.record_function("x"),
        "profile": torch.profiler.profile(),
        "schedule": torch.profiler.schedule(wait=1, warmup=1, active=1),
    }


@case
def modes_of_gradients():
    return holding(
        *(torch.no_grad(), torch.enable_grad(), torch.inference_mode(), torch.no_grad),
        *(torch.set_grad_enabled(True), torch.no_grad()(torch.relu)),
        # True would switch the mode on for all later tests.
        *(torch.autograd.graph.save_on_cpu(), torch.autograd.set_detect_anomaly(False)),
    )


@case
def transforms_of_functions():
    func = torch.func
    return holding(
        *(torch.vmap, func.grad, func.jacrev, func.functional_call),
        *(torch.vmap(torch.sum), func.grad(torch.sum), func.jacrev(torch.sin)),
        *(func.jacfwd(torch.sin), func.hessian(torch.sum), func.functionalize(torch.sin)),
    )


@case
def differentiation():
    return holding(torch.autograd.grad, torch.autograd.backward, torch.autograd.functional.jacobian)


@case
def functions_of_tensors():
    names = [(torch.fft, "rfft"), (torch.linalg, "norm"), (torch.special, "erf")]
    return holding(
        *(getattr(module, name) for module, name in names),
        *(
            torch.einsum,
            torch.is_tensor,
            torch.get_default_dtype,
            torch.manual_seed,
            torch.typename,
        ),
        *(torch.Tensor.add, torch.ops.aten.add, torch.ops.aten.relu.default),
        *(nn.functional.scaled_dot_product_attention, nn.init.xavier_uniform_, torch.unique),
        *(
            nn.utils.clip_grad_norm_,
            nn.utils.rnn.pad_sequence,
            torch.masked.softmax,
            torch.sparse.mm,
        ),
        *(torch.signal.windows.hann, torch.cuda.is_available, torch.nested.nested_tensor),
    )


@case
def every_layer():
    made = [nn.LazyLinear(2), nn.LSTM(2, 2), nn.Transformer(2, 1, 1, 1, 2), nn.EmbeddingBag(2, 2)]
    made += [nn.MultiheadAttention(2, 1), nn.AdaptiveLogSoftmaxWithLoss(4, 8, [2]), nn.CTCLoss()]
    made += [nn.TransformerEncoderLayer(2, 1, 2, activation=nn.functional.silu)]
    made += [nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance())]
    return nn.ModuleList(made)


@case
def parametrized():
    utils = nn.utils
    made = [utils.parametrizations.weight_norm(layer()), utils.parametrizations.orthogonal(layer())]
    made += [utils.parametrizations.spectral_norm(layer()), utils.spectral_norm(layer())]
    return nn.ModuleList(made)


@case
def pruned():
    model = layer()
    nn.utils.prune.l1_unstructured(model, "weight", 0.5)
    nn.utils.prune.random_unstructured(model, "bias", 0.5)
    nn.utils.prune.identity(model, "weight")
    return model


@case
def distributions():
    kinds = torch.distributions
    normal = kinds.Normal(torch.zeros(2), torch.ones(2))
    return {
        "mixture": kinds.MixtureSameFamily(kinds.Categorical(torch.ones(2)), normal),
        "transformed": kinds.TransformedDistribution(
            normal, [kinds.ExpTransform(), kinds.ComposeTransform([kinds.TanhTransform()])]
        ),
        "cholesky": kinds.LKJCholesky(2),
        "registry": kinds.biject_to,
        "constraints": [kinds.constraints.simplex, kinds.constraints.interval(0, 1)],
        "independent": kinds.Independent(normal, 1),
    }


@case
def tensors_of_all_dtypes():
    dtypes = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    fine = [each for each in dtypes if each.is_floating_point or each.is_complex]
    made = [torch.ones(2).to(each) for each in fine if each.itemsize > 1]
    made += [torch.ones(2, dtype=each) for each in (torch.bool, torch.int8, torch.uint16)]
    return {"tensors": made, "dtypes": sorted(dtypes, key=str)}


@case
def tensors_of_all_layouts():
    eye = torch.eye(2)
    made = [eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc(), eye.to_sparse_bsr(1)]
    made += [torch.ones(2, device="meta"), torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8)]
    made += [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]
    made += [torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))]
    made += [torch.ones(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)]
    return {"tensors": made, "layouts": [torch.strided, torch.sparse_coo, torch.channels_last]}


@case
def jagged():
    parts = [torch.ones(2), torch.ones(3)]
    return {"tensor": torch.nested.nested_tensor(parts, layout=torch.jagged)}


@case
def what_functions_return():
    values = torch.ones(2)
    return {"max": values.max(0), "svd": torch.linalg.svd(torch.eye(2)), "sort": values.sort()}


@case
def devices_and_generators():
    return {
        "values": [
            torch.device("cpu"),
            torch.device("cuda", 1),
            torch.Size([1]),
            torch.__version__,
        ],
        "numbers": [torch.finfo(torch.float16), torch.iinfo(torch.int8)],
        "generators": [torch.Generator(), torch.default_generator],
    }


@case
def attention_biases():
    from torch.nn.attention import bias, flex_attention

    return {
        "bias": [bias.causal_lower_right(2, 2), bias.causal_upper_left(2, 2)],
        "backend": torch.nn.attention.SDPBackend.MATH,
        "flexible": flex_attention.flex_attention,
    }


@case
def trees():
    from torch.utils import _pytree

    return {"tree": _pytree.tree_structure({"a": [1, 2]}), "map": _pytree.tree_map}


@case
def packed_sequences():
    return {"sequence": nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])}


@case
def hooks_of_all_kinds():
    model = image_net()
    hook = functools.partial(max)
    model.register_forward_hook(hook)
    model.register_forward_pre_hook(hook)
    model.register_full_backward_hook(hook)
    model.register_full_backward_pre_hook(hook)
    model.register_state_dict_post_hook(hook)
    model.register_state_dict_pre_hook(hook)
    model.register_load_state_dict_pre_hook(hook)
    model.register_load_state_dict_post_hook(hook)
    model[0].weight.register_hook(torch.neg)
    model[0].weight.register_post_accumulate_grad_hook(torch.detach_)
    return model


@case
def hooks_that_are_torchs_own():
    model = layer()
    model.register_forward_hook(functools.partial(torch.utils.checkpoint.checkpoint))
    model.register_forward_pre_hook(torch.vmap(torch.sin))
    model.register_full_backward_hook(functools.partial(nn.utils.clip_grad_norm_, max_norm=1.0))
    return model


@case
def dates():
    now = datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc)
    zones = [zoneinfo.ZoneInfo("UTC"), datetime.timezone(datetime.timedelta(hours=1))]
    return {"values": [now, now.date(), now.time(), datetime.timedelta(1), *zones, now.isoformat]}


@case
def numbers():
    context = decimal.Context(prec=3)
    plain = [1 + 2j, 2**70, math.pi, math.nan, True, None, ..., NotImplemented]
    return {"values": [decimal.Decimal("1.5"), context, fractions.Fraction(1, 2), *plain]}


@case
def identifiers_and_addresses():
    return {
        "values": [uuid.UUID(int=3), uuid.uuid4, ipaddress.ip_address("::1")],
        "networks": [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_interface("10.0.0.1/8")],
    }


@case
def paths():
    return {"values": [pathlib.Path("x"), pathlib.PureWindowsPath("c:/x"), pathlib.Path]}


class Color(enum.Enum):
    RED = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@case
def enums():
    both = Right.READ | Right.WRITE
    return {"values": [Color.RED, both, Color, re.IGNORECASE, inspect.Parameter.KEYWORD_ONLY]}


@case
def expressions():
    compiled = re.compile(r"a+")
    return {"values": [compiled, compiled.match, re.compile(b"a", re.DOTALL), re.sub]}


Pair = collections.namedtuple("Pair", "left right")


@case
def containers():
    return {
        "dicts": [collections.OrderedDict(a=1), collections.Counter("ab"), {1: 2}.keys()],
        "defaults": [collections.defaultdict(list), collections.defaultdict(lambda: 1)],
        "others": [collections.deque([1], 3), collections.ChainMap({}), Pair(1, 2), Pair],
        "plain": [{1}, frozenset([1]), slice(1, 2), range(3), b"a", bytearray(b"a")],
        "of_numbers": [array.array("i", [1]), collections.UserList([1])],
    }


@dataclasses.dataclass
class Settings:
    rate: float = 0.1
    names: list = dataclasses.field(default_factory=list)


@case
def dataclass():
    fields = dataclasses.fields(Settings)
    return {"values": [Settings(), Settings, fields, dataclasses.MISSING, dataclasses.asdict]}


@case
def types_of_values():
    generic = [list[int], typing.Annotated[int, 3], typing.Callable[[int], str], typing.Any]
    return {
        "types": [*generic, typing.TypeVar("T"), typing.Literal["a"], int | None],
        "functions": [typing.get_args, typing.cast, typing.overload],
        "kinds": [types.FunctionType, types.NoneType, types.GenericAlias(list, (int,))],
    }


@case
def functions():
    return {
        "partial": [functools.partial(max, 1), functools.lru_cache(len), functools.reduce],
        "operators": [operator.itemgetter(1), operator.attrgetter("a.b"), operator.add],
        "methods": ["x".upper, [1].index, {1: 2}.get, random.Random(1).shuffle],
        "builtins": [abs, len, print, sorted, isinstance, dir, hasattr],
        "others": [json.dumps, statistics.mean, struct.pack, textwrap.dedent, time.time],
    }


@case
def iterators():
    made = [itertools.count(2), itertools.cycle([1]), itertools.chain([1], [2]), iter([1])]
    made += [enumerate([1]), zip([1], [2], strict=True), reversed([1]), map(abs, [1]), iter({1: 2})]
    made += [itertools.accumulate([1, 2], operator.mul), itertools.product([1], [2])]
    return {"values": made}


@case
def randomness():
    return {"values": [random.Random(1), random.SystemRandom(), random.choice]}


@case
def loggers():
    made = [logging.getLogger("x"), logging.Formatter("%(message)s"), logging.StreamHandler()]
    return {"values": [*made, logging.NullHandler(), logging.LoggerAdapter(made[0], {})]}


@case
def locks():
    made = [threading.Lock(), threading.RLock(), threading.Event(), threading.Condition()]
    return {"values": [*made, threading.local(), threading.Semaphore(), queue.Queue()]}


@case
def weak_references():
    model = layer()
    holders = [weakref.WeakKeyDictionary({model: 1}), weakref.WeakSet([model])]
    return {"model": model, "values": [weakref.ref(model), weakref.proxy(model), *holders]}


@case
def texts():
    return {
        "values": [string.Template("$a"), io.StringIO("a"), io.BytesIO(b"a"), struct.Struct("<i")],
        "settings": [textwrap.TextWrapper(), json.JSONEncoder(), csv.excel(), sys.stdout],
    }


@case
def namespaces():
    made = [argparse.Namespace(a=1), types.SimpleNamespace(a=1), types.MappingProxyType({"a": 1})]
    return {"values": [*made, contextvars.ContextVar("x"), contextlib.nullcontext()]}


@case
def exceptions():
    made = [ValueError("a"), KeyError, OSError(1, "x"), decimal.Overflow(), queue.Empty()]
    made += [json.JSONDecodeError("a", "b", 0), struct.error("x"), re.error("x")]
    return {
        "values": [*made, dataclasses.FrozenInstanceError("x"), torch.cuda.OutOfMemoryError("x")]
    }


@case
def modules():
    return {"values": [math, torch, nn.functional, logging, torch.distributions, operator]}


@case
def signatures():
    def shape(a, *b, c=1):
        return a

    return {"values": [inspect.signature(shape), inspect.Parameter.empty]}


@case
def arrays():
    kinds = ["bool", "int8", "uint64", "float16", "float64", "longdouble", "complex64", "M8[D]"]
    made = [numpy.ones(2).astype(each) for each in kinds[:-1]] + [numpy.zeros(1, kinds[-1])]
    made += [numpy.array(["a"]), numpy.array([1, None], object), numpy.ones((2, 2))[:, 0]]
    return {"values": made, "types": [each.dtype for each in made]}


@case
def scalars_of_numpy():
    return {"values": [numpy.float32(1), numpy.int64(1), numpy.str_("a"), numpy.datetime64(1, "D")]}


@case
def masked_arrays():
    return {"values": [numpy.ma.masked_array([1, 2], [True, False]), numpy.ma.masked]}


@case
def records_of_numpy():
    table = numpy.rec.fromarrays([[1, 2], [3.0, 4.0]], names="a,b")
    return {"values": [table, table[0], numpy.zeros(1, dtype=[("a", "i4")]), numpy.matrix([[1]])]}


@case
def random_numbers_of_numpy():
    kinds = [numpy.random.PCG64, numpy.random.MT19937, numpy.random.Philox, numpy.random.SFC64]
    made = [numpy.random.Generator(kind(1)) for kind in kinds]
    return {"values": [*made, numpy.random.RandomState(1), numpy.random.SeedSequence(1)]}


@case
def functions_of_numpy():
    return {
        "values": [numpy.add, numpy.sin, numpy.mean, numpy.linalg.norm, numpy.vectorize(abs)],
        "polynomials": [numpy.poly1d([1, 2]), numpy.polynomial.Polynomial([1, 2])],
    }


def test_benign_cases_are_numerous():
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_benign_package_has_no_alarms(name, tmp_path):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        obj = CASES[name]()
    assert alarms(obj, {}, tmp_path) == []


def test_package_of_special_objects_has_no_alarms(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(REPRODUCIBLE)
    (library,) = REPRODUCIBLE.glob("*lib")
    before = set(sys.modules)
    found = {}
    try:
        cases = importlib.import_module(library.name).all_cases()
        for name, make in cases.items():
            found[name] = alarms(*make(), tmp_path)
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(REPRODUCIBLE)):
                del sys.modules[name]
    assert len(found) > 40
    assert {name: each for name, each in found.items() if each} == {}
