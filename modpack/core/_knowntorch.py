"""Names of torch and of modpack that pickles may name: data for :mod:`modpack.core.knownnames`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from modpack.core._knowntensorfunctions import (
    FUNCTIONS_OF_LAYERS,
    INITIALISERS,
    TENSOR_FUNCTIONS,
)
from modpack.core._knowntorchfunctions import FUNCTIONS

__all__ = ["CALLED", "HELD", "MODULES", "UNKNOWN_MODULES", "is_class", "is_held", "is_plain_class"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STORAGES = (
    "BFloat16 Bool Byte Char ComplexDouble ComplexFloat Double Float Half Int Long QInt32 QInt8"
    " QUInt2x4 QUInt4x2 QUInt8 Short Typed Untyped"
)
_DTYPES = (
    "bfloat16 bit bits16 bits1x8 bits2x4 bits4x2 bits8 bool cdouble cfloat chalf complex128"
    " complex32 complex64 double float float16 float32 float4_e2m1fn_x2 float64 float8_e4m3fn"
    " float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu half int int1 int16 int2 int3"
    " int32 int4 int5 int6 int64 int7 int8 long qint32 qint8 quint2x4 quint4x2 quint8 short uint1"
    " uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64 uint7 uint8"
)
_FORMS = (
    "channels_last channels_last_3d contiguous_format per_channel_affine"
    " per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine"
    " per_tensor_symmetric preserve_format"
    " jagged sparse_bsc sparse_bsr sparse_coo sparse_csc sparse_csr strided"
)

_STRUCTURES = (
    "aminmax cummax cummin eig frexp geqrf histogram histogramdd kthvalue linalg_cholesky_ex"
    " linalg_eig linalg_eigh linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex linalg_lstsq"
    " linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_qr linalg_slogdet linalg_solve_ex"
    " linalg_svd lu_unpack max median min mode nanmedian qr slogdet sort svd symeig topk"
    " triangular_solve"
)
"""Tuples with names that functions of tensors return."""

_ENUMS: Final[Mapping[str, frozenset[str]]] = {
    "torch._C._autograd": _names("DeviceType"),
    "torch._C._profiler": _names("ProfilerActivity ProfilerState"),
    "torch.amp.grad_scaler": _names("OptState"),
    "torch.ao.quantization.backend_config.backend_config": _names("ObservationType"),
    "torch.ao.quantization.observer": _names("MappingType TorchAODType ZeroPointDomain"),
    "torch.ao.quantization.quant_type": _names("QuantType"),
    "torch.cuda.amp.grad_scaler": _names("OptState"),
    "torch.export.graph_signature": _names("InputKind OutputKind"),
    "torch.nn.attention": _names("SDPBackend"),
    "torch.nn.attention.bias": _names("CausalVariant"),
    "torch.nn.attention.flex_attention": _names("_ModificationType"),
    "torch.nn.utils.parametrizations": _names("_OrthMaps"),
    "torch.profiler.profiler": _names("ProfilerAction"),
    "torch.utils.checkpoint": _names("CheckpointPolicy"),
}
"""Their members are pickled as calls with a value."""

CALLED: Final[Mapping[str, frozenset[str]]] = {
    "torch": _names(
        "AcceleratorError ByteTensor Generator OutOfMemoryError Size Tag Tensor device dtype finfo"
        " iinfo layout memory_format qscheme"
    ),
    "torch._C": _names(
        "Generator Size Tag TensorBase._make_subclass _LinAlgError _OutOfMemoryError device dtype"
        " finfo iinfo layout memory_format"
    ),
    "torch._tensor": _names("Tensor _rebuild_from_type_v2"),
    "torch._utils": _names(
        "_rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy"
        " _rebuild_meta_tensor_no_storage _rebuild_nested_tensor _rebuild_parameter"
        " _rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_csr_tensor"
        " _rebuild_sparse_tensor _rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3"
        " _rebuild_wrapper_subclass _set_obj_state"
    ),
    "torch.fx.graph_module": _names("reduce_graph_module reduce_package_graph_module"),
    "torch.jit._script": _names("unpackage_script_module"),
    **_ENUMS,
    "torch._dynamo.convert_frame": _names("ConvertFrameBox"),
    "torch._dynamo.eval_frame": _names("DisableContext OptimizeContext OptimizedModule"),
    "torch.fx.immutable_collections": _names("immutable_dict immutable_list"),
    "torch.nested._internal.nested_tensor": _names("_rebuild_njt"),
    "torch.nn.parameter": _names("Buffer Parameter UninitializedBuffer UninitializedParameter"),
    "torch.return_types": _names(" ".join(f"{name} {name}_out" for name in _STRUCTURES.split())),
    "torch.serialization": _names("_get_layout"),
    "torch.torch_version": _names("TorchVersion"),
    "torch.utils.weak": _names("WeakIdRef"),
    "modpack.hooks.ddp": _names("unwrapped"),
    "modpack.hooks.parametrized": _names("fill_parametrized make_parametrized"),
    "modpack.hooks.resetting": _names("fresh"),
    "modpack.pickling.classes": _names("fill_class make_class"),
    "modpack.pickling.definitions": _names("defined script_module set_in_script"),
    "modpack.pickling.functions": _names(
        "GlobalNames fill_function make_cell make_function make_method"
    ),
    "modpack.pickling.generated": _names("make_enum make_named_tuple make_typed_dict"),
    "modpack.pickling.remade": _names(
        "exported_program fill_cell fill_weak_container forward_ref fresh_barrier fresh_condition"
        " fresh_context_var fresh_executor fresh_lock fresh_rlock fresh_semaphore"
        " fresh_simple_queue lru_cached mapping_proxy memory_view named_logger new_type"
        " operator_of property_of referent_of registered_handler resumed_manager set_state"
        " standard_stream the_same thread_local type_parameter weak_container weak_method"
        " weak_proxy weak_reference"
    ),
    "modpack.pickling.torchscript": _names("load_script_module"),
}
"""By module: what may be called; the scan looks at what such calls are given."""

HELD: Final[Mapping[str, frozenset[str]]] = {
    "torch": _names(
        f"{_DTYPES} {_FORMS} Event ScriptObject Stream SymBool SymFloat SymInt _assert"
        " _TorchCompileWrapper _TorchCompileInductorWrapper"
        " _TorchCompileInductorWrapper.get_compiler_config default_generator BoolTensor CharTensor"
        " DoubleTensor FloatTensor IntTensor LongTensor ShortTensor"
        f" {' '.join(f'{name}Storage' for name in _STORAGES.split())}"
    ),
    "torch.storage": _names(" ".join(f"{name}Storage" for name in _STORAGES.split())),
    "torch._C": _names(
        "DeviceObjType Graph Node ScriptFunction ScriptModule ScriptObject TensorBase Value"
        " _TensorBase _VariableFunctionsClass _is_tracing default_generator"
    ),
    "torch._C._profiler": _names("_ExperimentalConfig"),
    "torch._dynamo.decorators": _names("_DimRange"),
    "torch._dynamo.backends.debugging": _names("aot_eager eager"),
    "torch._dynamo.convert_frame": _names(
        "CatchErrorsWrapper ConvertFrame ConvertFrameAssert ConvertFrameBox"
    ),
    "torch._dynamo.eval_frame": _names(
        "DisableContext OptimizeContext OptimizedModule RunOnlyContext"
    ),
    "torch._dynamo.hooks": _names("Hooks"),
    "torch._dynamo.repro.after_dynamo": _names("WrapBackendDebug"),
    "torch.autograd.grad_mode": _names("enable_grad inference_mode no_grad set_grad_enabled"),
    "torch.ao.quantization.fx._lower_to_native_backend": _names(
        "_load_packed_weight _save_packed_weight"
    ),
    "torch.fx._symbolic_trace": _names("Tracer is_fx_symbolic_tracing"),
    "torch.fx.graph": _names(
        "CodeGen Graph PythonCode _FindNodesLookupTable _Namespace _PyTreeCodeGen _PyTreeInfo"
    ),
    "torch.fx.node": _names("Node Node.append Node.prepend"),
    "torch.fx.interpreter": _names("Interpreter Transformer"),
    "torch.fx.proxy": _names("GraphAppendingTracer Scope TracerBase"),
    "torch.cpu": _names("Event Stream StreamContext"),
    "torch.cpu.amp.grad_scaler": _names("GradScaler"),
    "torch.cuda.amp.grad_scaler": _names("GradScaler"),
    "torch.masked.maskedtensor.core": _names("MaskedTensor"),
    "torch.nested._internal.nested_tensor": _names("NestedTensor"),
    "torch.nn.parallel.data_parallel": _names("DataParallel"),
    "torch.nn.parallel.distributed": _names("DistributedDataParallel"),
    "torch.profiler.profiler": _names("profile"),
    "torch.sparse.semi_structured": _names(
        "SparseSemiStructuredTensor SparseSemiStructuredTensorCUSPARSELT"
        " SparseSemiStructuredTensorCUTLASS"
    ),
    "torch.utils._device": _names("DeviceContext"),
    "torch.utils._pytree": _names("LeafSpec TreeSpec"),
    **{
        f"torch.utils.data.datapipes.{module}": _names(names)
        for module, names in (
            ("datapipe", "DataChunk IterDataPipe MapDataPipe"),
            ("iter.callable", "CollatorIterDataPipe MapperIterDataPipe"),
            ("iter.combinatorics", "SamplerIterDataPipe"),
            ("iter.combining", "ConcaterIterDataPipe ZipperIterDataPipe"),
            ("iter.grouping", "BatcherIterDataPipe UnBatcherIterDataPipe"),
            ("iter.selecting", "FilterIterDataPipe"),
            ("iter.sharding", "ShardingFilterIterDataPipe"),
            ("iter.utils", "IterableWrapperIterDataPipe"),
            ("map.callable", "MapperMapDataPipe"),
            ("map.combinatorics", "ShufflerIterDataPipe"),
            ("map.combining", "ConcaterMapDataPipe ZipperMapDataPipe"),
            ("map.grouping", "BatcherMapDataPipe"),
            ("map.utils", "SequenceWrapperMapDataPipe"),
        )
    },
    "modpack.hooks.graphbound": _names("GraphHandle"),
    "modpack.hooks.graphparts": _names(
        "AfterBackwardPart Attachment BeginPart CaptureInputsPart CaptureOutputsPart CollectPart"
        " EndPart EnterPart LeavePart NodePart OutputGradPart"
    ),
    "modpack.hooks.graphspecs": _names(
        "AfterBackward CaptureGrad MultiGrad NodeHook NodePreHook OutputGrad SavedTensors"
    ),
}
"""By module: what may be a part of an object."""

MODULES: Final = frozenset(
    {"torch._C._nn", "torch._VF", "torch._functorch.apis", "torch._dynamo.eval_frame"}
    | {"torch._C", "torch._tensor", "torch._utils", "torch._ops", "torch.utils._contextlib"}
    | {"torch._C._autograd", "torch._compile", "torch._functorch.eager_transforms"}
    | {"torch._jit_internal"}
)
"""Modules whose names begin with an underscore, and that objects may hold."""

UNKNOWN_MODULES: Final = (
    "torch.utils.bottleneck",
    "torch.utils.model_dump",
    "torch.utils.collect_env",
    "torch.utils.cpp_extension",
    "torch.utils.hipify",
    "torch.distributed",
    "torch.testing",
    "torch.package",
    "torch.hub",
)
"""Below these are modules that no object holds."""

_CLASS = re.compile(r"_?[A-Z](?:[A-Z0-9]{2,}|\w*[a-z]\w*)", re.ASCII)
_NO_CLASSES: Final = frozenset(
    {"_Reduction", "FPGM_pruner"}  # modules that are called like classes
    | {"_IterDataPipeSerializationWrapper", "_MapDataPipeSerializationWrapper"}  # unpickle bytes
    | {"_MultiProcessingDataLoaderIter"}  # calls what it holds when it is thrown away
    | {"GetAttrKey", "FakeTensor", "Future", "TypeAliasType"}  # taken from elsewhere
)
"""What is called like a class, and is none that objects are made of."""
_METHOD = re.compile(r"_?[A-Z][A-Za-z0-9]*\.(?:_?[a-z][A-Za-z0-9_]*|__\w+__)")
_OPERATOR = re.compile(r"(?!from_file|_make)_?[a-z][a-z0-9_]*|__\w+__")
"""What tensors can do; ``from_file`` maps a file."""
_OPERATORS: Final = ("torch.Tensor.", "torch._C.TensorBase.", "torch._C._VariableFunctionsClass.")
_NATIVE: Final = frozenset(
    f"torch._C.{name}" for name in ("_VariableFunctions", "_fft", "_linalg", "_nn", "_special")
)
"""Modules of torch's C++ code with nothing but functions of tensors."""
_LISTED: Final[Mapping[str, frozenset[str]]] = {
    "torch": TENSOR_FUNCTIONS,
    "torch.functional": TENSOR_FUNCTIONS,
    "torch.nn.functional": FUNCTIONS_OF_LAYERS,
    "torch.nn.init": INITIALISERS,
    **{
        module: names | (TENSOR_FUNCTIONS if module == "torch" else frozenset())
        for module, names in FUNCTIONS.items()
    },
}
_PLAIN_CLASSES = (
    "torch.nn.modules.",
    "torch.distributions.",
    "torch.ao.nn.",
)
_CLASSES = (
    "torch.nn.utils.",
    "torch.nn.intrinsic.",
    "torch.nn.qat.",
    "torch.nn.quantized.",
    "torch.nn.attention.",
    "torch.ao.quantization.",
    "torch.ao.pruning.",
    "torch.optim.",
    *(f"torch.utils.data.{name}." for name in ("dataloader", "dataset", "distributed", "sampler")),
    "torch.utils.hooks.",
    "torch.utils.weak.",
    "torch.autograd.",
    "torch.amp.",
)


def is_plain_class(module: str, name: str) -> bool:
    """Whether it is a class of torch whose constructor only makes an object."""
    return module.startswith(_PLAIN_CLASSES) and _is_called_like_one(name)


def is_class(module: str, name: str) -> bool:
    """Whether it is a class of torch that objects are made of."""
    below = module + "."
    return below.startswith(_PLAIN_CLASSES + _CLASSES) and _is_called_like_one(name)


def _is_called_like_one(name: str) -> bool:
    return _CLASS.fullmatch(name) is not None and name not in _NO_CLASSES


def is_held(module: str, name: str) -> bool:
    """Whether it is a function of torch that objects may hold, to call it later."""
    if name in _LISTED.get(module, ()):
        return True
    if module in _NATIVE:
        return _OPERATOR.fullmatch(name) is not None
    whole = f"{module}.{name}"
    for prefix in _OPERATORS:
        if whole.startswith(prefix):
            return _OPERATOR.fullmatch(whole.removeprefix(prefix)) is not None
    return is_class(module, name.partition(".")[0]) and _METHOD.fullmatch(name) is not None
