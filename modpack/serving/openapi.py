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


def _values_schema(specs: Sequence[ValueSpec], is_output: bool) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {spec.name: value_schema(spec, is_output) for spec in specs},
    }
    if specs:
        schema["required"] = [spec.name for spec in specs if spec.required]
    if not is_output:
        schema["additionalProperties"] = False
    return schema


def _infer_schema(signature: CallSignature) -> Schema:
    names = [spec.name for spec in signature.inputs]
    requested = [spec.name for spec in signature.outputs]
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"enum": names},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "datatype": {"enum": list(ALL_DATATYPES)},
            "parameters": {"type": "object"},
            "data": {"type": "array"},
        },
    }
    output = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"enum": requested} if requested else {"type": "string"},
            "parameters": {"type": "object"},
        },
    }
    example = [tensor_metadata(spec) | {"data": []} for spec in signature.inputs]
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": {"type": "array", "items": tensor},
            "outputs": {"type": "array", "items": output},
        },
        "example": {"inputs": example},
    }


_SCHEMAS: Final[Schema] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "detail", "error"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "error": {"type": "string"},
        },
    },
    "InferResponse": {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "datatype", "shape"],
                    "properties": {
                        "name": {"type": "string"},
                        "datatype": {"enum": list(ALL_DATATYPES)},
                        "shape": {"type": "array", "items": {"type": "integer"}},
                        "parameters": {"type": "object"},
                        "data": {"type": "array"},
                    },
                },
            },
        },
    },
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
        "/v2": _get("Server metadata", {"type": "object"}),
        "/v2/health/live": _get("Liveness", {"type": "object"}),
        "/v2/health/ready": _get("Readiness of all models", {"type": "object"}, 503),
        "/metrics": _get("Metrics for Prometheus", {"type": "string"}, media="text/plain"),
    }
    for name, signature in models.items():
        predict = {
            "post": {
                "summary": f"Call {name} with plain JSON",
                "requestBody": _body(_values_schema(signature.inputs, False)),
                "responses": _responses(_values_schema(signature.outputs, True), PROBLEM),
            }
        }
        if len(models) == 1:
            paths["/predict"] = predict
        paths[f"/models/{name}/predict"] = predict
        root = f"/v2/models/{name}"
        paths[root] = _get(f"Metadata of {name}", {"type": "object"})
        paths[f"{root}/ready"] = _get(f"Readiness of {name}", {"type": "object"}, 503)
        answer = {"$ref": "#/components/schemas/InferResponse"}
        paths[f"{root}/infer"] = {
            "post": {
                "summary": f"Call {name} with the Open Inference Protocol",
                "parameters": [
                    {
                        "name": HEADER_LENGTH,
                        "in": "header",
                        "description": "Length of the JSON before binary tensors, in bytes.",
                        "schema": {"type": "integer", "minimum": 0},
                    }
                ],
                "requestBody": _body(_infer_schema(signature)),
                "responses": _responses(answer, JSON),
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "modpack", "version": __version__},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


def _get(summary: str, schema: Schema, *errors: int, media: str = JSON) -> Schema:
    responses: Schema = {"200": {"description": "OK", "content": {media: {"schema": schema}}}}
    for status in errors:
        content = {JSON: {"schema": {"type": "object"}}}
        responses[str(status)] = {"description": "Not ready", "content": content}
    return {"get": {"summary": summary, "responses": responses}}


def _body(schema: Schema) -> Schema:
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _responses(schema: Schema, error_media: str) -> Schema:
    name = "Problem" if error_media == PROBLEM else "Error"
    error = {error_media: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    content: Schema = {JSON: {"schema": schema}}
    if error_media != PROBLEM:
        content[BINARY] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "200": {"description": "OK", "content": content},
        **{str(s): {"description": text, "content": error} for s, text in _ERRORS.items()},
    }
