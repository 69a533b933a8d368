"""The OpenAPI document of a server, with the schemas of its models' call signatures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from modpack._version import __version__
from modpack.core.call_signature import CallSignature, ValueSpec
from modpack.serving.open_inference import ALL_DATATYPES, BINARY, HEADER_LENGTH, tensor_metadata
from modpack.serving.problems import JSON, PROBLEM

Schema = dict[str, Any]

_INTEGER: Final = re.compile(r"(?P<unsigned>u?)int(?P<bits>\d{1,2})")
_LARGEST: Final = {
    "float16": 65504.0,
    "bfloat16": 3.3895e38,
    "float32": 3.4028e38,
    "float64": 1.7976e308,
}
_PLAIN: Final[Mapping[str, Schema]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
    "none": {"type": "null"},
}


def value_schema(spec: ValueSpec, is_output: bool = False) -> Schema:
    """Return the JSON schema of a value in plain JSON.

    >>> value_schema(ValueSpec("x", ("x",), "tensor", "int8", ("batch",)))["items"]
    {'type': 'integer', 'minimum': -128, 'maximum': 127}
    """
    if spec.type != "tensor" or spec.dtype is None:
        return dict(_PLAIN.get(spec.type, {}))
    schema = _element_schema(spec.dtype, is_output)
    for size in reversed(spec.shape or ()):
        schema = {"type": "array", "items": schema}
        if isinstance(size, int):
            schema |= {"minItems": size, "maxItems": size}
        elif not is_output:
            schema["minItems"] = 1
    return schema | {"description": str(spec)}


def _element_schema(dtype: str, is_output: bool) -> Schema:
    if dtype == "bool":
        return {"type": "boolean"}
    integer = _INTEGER.fullmatch(dtype)
    if integer is not None:
        numbers = 2 ** int(integer["bits"])
        least = 0 if integer["unsigned"] else -numbers // 2
        return {"type": "integer", "minimum": least, "maximum": least + numbers - 1}
    if is_output:  # numbers that are not finite are null
        return {"type": ["number", "null"]}
    largest = _LARGEST.get(dtype, _LARGEST["float32"])
    return {"type": "number", "minimum": -largest, "maximum": largest}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(required: Sequence[str] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def _values_schema(specs: Sequence[ValueSpec], is_output: bool) -> Schema:
    required = [spec.name for spec in specs if spec.required]
    schema = _object(required, **{spec.name: value_schema(spec, is_output) for spec in specs})
    return schema if is_output else schema | {"additionalProperties": False}


def _infer_schema(signature: CallSignature) -> Schema:
    requested = [spec.name for spec in signature.outputs]
    tensor = _object(
        ["name", "shape", "datatype"],
        name={"enum": [spec.name for spec in signature.inputs]},
        shape=_array({"type": "integer", "minimum": 0}),
        datatype=_DATATYPE,
        parameters=_ANY_OBJECT,
        data=_ANY_LIST,
    )
    name = {"enum": requested} if requested else _TEXT
    return _object(
        ["inputs"],
        id=_TEXT,
        parameters=_ANY_OBJECT,
        inputs=_array(tensor),
        outputs=_array(_object(["name"], name=name, parameters=_ANY_OBJECT)),
    ) | {"example": {"inputs": [tensor_metadata(x) | {"data": []} for x in signature.inputs]}}


_TEXT: Final[Schema] = {"type": "string"}
_ANY_LIST: Final[Schema] = {"type": "array"}
_ANY_OBJECT: Final[Schema] = {"type": "object"}
_DATATYPE: Final[Schema] = {"enum": list(ALL_DATATYPES)}
_OUTPUT: Final = _object(
    ["name", "datatype", "shape"],
    name=_TEXT,
    datatype=_DATATYPE,
    shape=_array({"type": "integer"}),
    parameters=_ANY_OBJECT,
    data=_ANY_LIST,
)
_SCHEMAS: Final[Schema] = {
    "Error": _object(["error"], error=_TEXT),
    "Problem": _object(
        ["type", "title", "status", "detail", "error"],
        type=_TEXT,
        title=_TEXT,
        status={"type": "integer"},
        detail=_TEXT,
        error=_TEXT,
    ),
    "InferResponse": _object(
        ["model_name", "model_version", "outputs"],
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        outputs=_array(_OUTPUT),
    ),
}
_ERRORS: Final = {
    400: "The request does not fit the model's call signature, or is not valid.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The content encoding or the content type is not accepted.",
    429: "The queue is full. Try again after the seconds in Retry-After.",
    500: "The model failed.",
    501: "The protocol cannot describe an output of the model.",
    504: "No answer in time.",
}


def openapi_document(models: Mapping[str, CallSignature]) -> Schema:
    """Return the OpenAPI document of a server.

    Args:
        models: The call signatures by name of the model.
    """
    paths: Schema = {
        "/v2": _get("Server metadata"),
        "/v2/health/live": _get("Liveness"),
        "/v2/health/ready": _get("Readiness of all models", can_fail=True),
        "/metrics": _get("Metrics for Prometheus", "text/plain", _TEXT),
    }
    for name, signature in models.items():
        predict = _post(
            f"Call {name} with plain JSON",
            _values_schema(signature.inputs, False),
            _values_schema(signature.outputs, True),
            PROBLEM,
        )
        if len(models) == 1:
            paths["/predict"] = predict
        paths[f"/models/{name}/predict"] = predict
        root = f"/v2/models/{name}"
        paths[root] = _get(f"Metadata of {name}")
        paths[f"{root}/ready"] = _get(f"Readiness of {name}", can_fail=True)
        answer = {"$ref": "#/components/schemas/InferResponse"}
        summary = f"Call {name} with the Open Inference Protocol"
        infer = _post(summary, _infer_schema(signature), answer, JSON)
        infer["post"]["parameters"] = [
            {
                "name": HEADER_LENGTH,
                "in": "header",
                "description": "Length of the JSON before binary tensors, in bytes.",
                "schema": {"type": "integer", "minimum": 0},
            }
        ]
        paths[f"{root}/infer"] = infer
    return {
        "openapi": "3.1.0",
        "info": {"title": "modpack", "version": __version__},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


def _get(
    summary: str, media: str = JSON, schema: Schema = _ANY_OBJECT, *, can_fail: bool = False
) -> Schema:
    responses = {"200": _response("OK", media, schema)}
    if can_fail:
        responses["503"] = _response("Not ready", JSON, _ANY_OBJECT)
    return {"get": {"summary": summary, "responses": responses}}


def _post(summary: str, body: Schema, answer: Schema, error_media: str) -> Schema:
    name = "Problem" if error_media == PROBLEM else "Error"
    error = {"$ref": f"#/components/schemas/{name}"}
    responses = {str(s): _response(text, error_media, error) for s, text in _ERRORS.items()}
    responses["200"] = _response("OK", JSON, answer)
    if error_media != PROBLEM:
        responses["200"]["content"][BINARY] = {"schema": _TEXT | {"format": "binary"}}
    request = {"required": True, "content": {JSON: {"schema": body}}}
    return {"post": {"summary": summary, "requestBody": request, "responses": responses}}


def _response(description: str, media: str, schema: Schema) -> Schema:
    return {"description": description, "content": {media: {"schema": schema}}}
