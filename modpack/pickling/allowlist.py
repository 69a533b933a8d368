"""Allowlist of the global names that a pickle of plain data may use.

A name is listed if no arguments in a pickle can make it run code, write a file, or change anything
except the new object. :mod:`modpack.pickling.data_unpickler` creates these objects and adds checks
where torch has none. Names match exactly; there are no patterns. The list began as a copy of the
one for ``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


def _rows(*groups: tuple[str, str, str]) -> Mapping[str, str]:
    rows = {
        f"{module}.{name}": reason for module, names, reason in groups for name in names.split()
    }
    return MappingProxyType(rows)


CALLABLE: Final = _rows(
    ("builtins", "bytearray complex frozenset range set slice", "a value made of values"),
    ("_codecs", "encode", "bytes, as protocol 2 writes them; from latin1 only"),
    ("collections", "Counter OrderedDict defaultdict deque", "a container of values"),
    ("datetime", "date datetime time timedelta timezone", "a value made of numbers"),
    ("decimal", "Decimal", "a value made of a string"),
    ("torch", "Size device", "a value made of numbers or a string"),
    ("torch.serialization", "_get_layout", "a constant, by name"),
    (
        "torch._utils",
        "_rebuild_tensor_v2 _rebuild_tensor_v3",
        "a view of a storage in the package; a view beyond its end is rejected",
    ),
    ("torch._utils", "_rebuild_meta_tensor_no_storage", "a tensor without memory"),
    ("torch._utils", "_rebuild_parameter _rebuild_parameter_with_state", "a tensor, as Parameter"),
    ("torch._utils", "_rebuild_qtensor", "a quantized view, checked like any other"),
    ("torch._utils", "_rebuild_sparse_tensor", "a sparse tensor; its indices are checked"),
    ("torch._utils", "_rebuild_nested_tensor", "views of a tensor; their bounds are checked"),
    ("torch._tensor", "_rebuild_from_type_v2", "a plain tensor with attributes"),
)
"""Names that may be called, each with the reason why the result is plain data."""

NAMED_ONLY: Final = _rows(
    ("builtins", "Ellipsis NotImplemented", "a constant"),
    ("builtins", "bool bytes dict float int list str tuple", "the factory of a defaultdict"),
    ("torch", "Tensor", "the class of a plain tensor"),
    (
        "torch",
        "per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric "
        "per_channel_affine_float_qparams",
        "a constant: a quantization scheme",
    ),
    (
        "torch",
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 "
        "complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
        "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 qint8 qint32 quint8",
        "a constant: a dtype",
    ),
    ("torch.storage", "TypedStorage UntypedStorage", "a storage class"),
    (
        "torch",
        "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage "
        "ComplexFloatStorage DoubleStorage FloatStorage HalfStorage IntStorage LongStorage "
        "QInt32Storage QInt8Storage QUInt8Storage ShortStorage",
        "a storage class",
    ),
)
"""Names that may be referenced but not called: a call would do more than create data."""

DATA: Final[Mapping[str, str]] = MappingProxyType({**CALLABLE, **NAMED_ONLY})
"""All allowed names, each with the reason why it is plain data."""

_DANGEROUS_MODULES: Final = frozenset(
    {"subprocess", "_posixsubprocess", "pty", "runpy", "_ctypes", "importlib", "imp", "zipimport"}
)
_SYSTEMS: Final = frozenset({"os", "posix", "nt"})
_OF_SYSTEMS: Final = (
    r"(exec|spawn|posix_spawn|popen|system|fork|kill|remove|unlink|rmdir|rename|replace|chmod|chown"
    r"|link|symlink|truncate|open$|fdopen|startfile|putenv|_exit|abort)"
)
_DANGEROUS_NAMES: Final = frozenset(
    {"builtins.eval", "builtins.exec", "builtins.compile", "builtins.open", "builtins.__import__"}
    | {"builtins.globals", "builtins.locals", "builtins.breakpoint", "builtins.input"}
    | {"io.open", "io.open_code", "io.FileIO", "_io.open", "_io.FileIO", "codecs.open"}
    | {"types.CodeType", "types.FunctionType", "marshal.loads", "marshal.load", "code.interact"}
    | {"pickle.loads", "pickle.load", "_pickle.loads", "_pickle.load", "sys.exit", "sys.settrace"}
    | {"shutil.rmtree", "shutil.move", "shutil.copyfile", "ctypes.CDLL", "ctypes.PyDLL"}
    | {"socket.socket", "socket.create_connection", "urllib.request.urlopen", "webbrowser.open"}
    | {"pydoc.locate", "pydoc.pipepager", "pkgutil.resolve_name", "timeit.timeit", "pip.main"}
    | {"code.InteractiveInterpreter.runcode", "cProfile.run", "profile.run", "bdb.Bdb.run"}
    | {"numpy.testing.runstring", "numpy.testing._private.utils.runstring", "torch.load"}
    | {"torch.serialization.load", "torch.hub.load", "torch.utils.cpp_extension.load"}
)


def is_dangerous(module: str, name: str) -> bool:
    """Return whether a name has no legitimate use in a pickle.

    This only affects how a listing is sorted and colored. Every name outside the allowlist
    counts as code, dangerous or not.
    >>> is_dangerous("os", "system"), is_dangerous("collections", "OrderedDict")
    (True, False)
    """
    if module in _SYSTEMS:
        # A prefix is enough: most of these functions have variants, such as execve and spawnlp.
        return re.match(_OF_SYSTEMS, name) is not None
    is_named = f"{module}.{name}" in _DANGEROUS_NAMES
    return is_named or module.partition(".")[0] in _DANGEROUS_MODULES
