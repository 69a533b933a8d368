"""Names of other libraries that pickles may call: data for :mod:`modpack.core.knownnames`.

Names of extern libraries may be held by objects, and their classes may be instantiated without a
call. Calling them is refused, for nobody can read here what they do. The exceptions are those by
which arrays are made again that torch itself takes and gives (``Tensor.numpy``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["CALLED"]

_ARRAYS: Final = frozenset({"_reconstruct", "scalar"})
_SCALARS: Final = frozenset(
    {"bool", "bool_", "complex128", "complex64", "dtype", "float16", "float32", "float64"}
    | {"int16", "int32", "int64", "int8", "uint16", "uint32", "uint64", "uint8", "ndarray"}
)

CALLED: Final[Mapping[str, frozenset[str]]] = {
    "numpy": _SCALARS,
    "numpy._core._internal": frozenset({"_convert_to_stringdtype_kwargs"}),
    "numpy._core.multiarray": _ARRAYS,
    "numpy._core.numeric": frozenset({"_frombuffer"}),
    "numpy.core.multiarray": _ARRAYS,
    "numpy.core.numeric": frozenset({"_frombuffer"}),
    "numpy.exceptions": frozenset({"AxisError"}),
    "numpy.linalg": frozenset({"LinAlgError"}),
    "numpy.linalg.linalg": frozenset({"LinAlgError"}),
    "numpy.ma.core": frozenset({"MaskedConstant", "_mareconstruct"}),
    "numpy.random._pickle": frozenset(
        {"__bit_generator_ctor", "__generator_ctor", "__randomstate_ctor"}
    ),
    "numpy.random.bit_generator": frozenset({"__pyx_unpickle_SeedSequence"}),
}
"""By module: what may be called."""
