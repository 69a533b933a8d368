"""The Open Inference Protocol v2: datatypes, and the metadata of servers and models.

https://github.com/kserve/open-inference-protocol specifies it.
"""

from __future__ import annotations

from typing import Any, Final

from modpack._version import __version__
from modpack.core.call_signature import CallSignature, ValueSpec

DATATYPES: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
"""The datatypes of tensors, by torch's name."""
DTYPES: Final = {datatype: dtype for dtype, datatype in DATATYPES.items()}
PLAIN_DATATYPES: Final = {
    "bool": "BOOL",
    "int": "INT64",
    "float": "FP64",
    "str": "BYTES",
    "bytes": "BYTES",
}
"""The datatypes of plain values, which are tensors of shape [1], by type."""
ALL_DATATYPES: Final = (*DTYPES, "BYTES")
EXTENSIONS: Final = ("binary_tensor_data",)
HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""The header with the length of the JSON before binary tensors."""
HEADER_LENGTH_KEY: Final = HEADER_LENGTH.lower().encode("ascii")
"""The name of that header in a list of headers of ASGI."""
BINARY: Final = "application/octet-stream"
"""The media type of a body with binary tensors."""


def version_of(digest: str) -> str:
    """Return the version of a model: the start of its package's digest."""
    return digest[:12]


def server_metadata() -> dict[str, Any]:
    """Return the metadata of the server."""
    return {"name": "modpack", "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(name: str, digest: str, signature: CallSignature) -> dict[str, Any]:
    """Return the metadata of a model."""
    return {
        "name": name,
        "versions": [version_of(digest)],
        "platform": "pytorch",
        "inputs": [tensor_metadata(spec) for spec in signature.inputs],
        "outputs": [tensor_metadata(spec) for spec in signature.outputs],
    }


def tensor_metadata(spec: ValueSpec) -> dict[str, Any]:
    """Return the metadata of an input or output. A dimension of -1 may vary.

    >>> tensor_metadata(ValueSpec("x", ("x",), "tensor", "float32", ("batch", 4)))
    {'name': 'x', 'datatype': 'FP32', 'shape': [-1, 4]}
    """
    datatype = DATATYPES.get(spec.dtype or "") or PLAIN_DATATYPES.get(spec.type, "FP32")
    shape = [1] if spec.type in PLAIN_DATATYPES else [-1]
    if spec.shape is not None:
        shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {"name": spec.name, "datatype": datatype, "shape": shape}
