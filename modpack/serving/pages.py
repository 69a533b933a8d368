"""What a server says of its models: a page to try them, and the OpenAPI document with its page."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from modpack._version import __version__
from modpack.core.call_signature import CallSignature, ValueSpec
from modpack.serving.open_inference import ALL_DATATYPES
from modpack.serving.settings import JSON, Answer

Schema = dict[str, Any]

_ASSETS: Final = Path(__file__).with_name("assets")
_HTML: Final = "text/html; charset=utf-8"
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
    if required := [spec.name for spec in specs if spec.required]:
        schema["required"] = required
    return schema if is_output else schema | {"additionalProperties": False}


def openapi_document(models: Mapping[str, CallSignature]) -> Schema:
    """Return the OpenAPI document of a server.

    Args:
        models: The call signatures by name of the model.
    """
    # The template has everything that does not depend on the models.
    document: Schema = json.loads((_ASSETS / "openapi.json").read_bytes())
    document["info"]["version"] = __version__
    components, paths = document["components"], document["paths"]
    components["schemas"]["Datatype"]["enum"] = list(ALL_DATATYPES)
    components["parameters"]["Model"]["schema"]["enum"] = list(models)
    predict = paths.pop("/predict")
    for name, signature in models.items():
        own = copy.deepcopy(predict)
        post = own["post"]
        post["summary"] = f"Call {name} with plain JSON"
        post["requestBody"]["content"][JSON]["schema"] = _values_schema(signature.inputs, False)
        answer = post["responses"]["200"]["content"]
        answer[JSON]["schema"] = _values_schema(signature.outputs, True)
        paths[f"/models/{name}/predict"] = own
        if len(models) == 1:
            paths["/predict"] = own
    return document


@cache
def _template() -> tuple[str, str]:
    """Return the page, and the security policy that allows its own script only."""
    text = (_ASSETS / "try.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src blob: data:; base-uri 'none'; form-action 'none'"
    )
    return text, policy


def start_page(models: Mapping[str, CallSignature]) -> Answer:
    """Return the page for trying models, with its content security policy."""
    text, policy = _template()
    described = {
        name: [{**spec._asdict(), "text": str(spec)} for spec in signature.inputs]
        for name, signature in models.items()
    }
    # In a script element, this character could end the element.
    embedded = json.dumps(described).replace("<", "\\u003c")
    body = text.replace("{MODELS}", embedded).encode()
    return Answer(200, _HTML, body, headers=((b"content-security-policy", policy.encode()),))


def docs_page() -> Answer:
    """Return the page of the OpenAPI document, whose scripts come from a public network."""
    return Answer(200, _HTML, (_ASSETS / "docs.html").read_bytes())
