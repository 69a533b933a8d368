"""JSON of requests and answers, by a decoder and an encoder in C."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

import msgspec

from modpack.core.json_values import Json, is_deeper
from modpack.predicting.decoding import encode_value, parse_document

MAX_DEPTH: Final = 70
"""Maximum nesting of a request: the 64 dimensions of a tensor, and the objects around it."""
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parse_body(body: memoryview) -> Json:
    """Parse a JSON document as :func:`.parse_document` does, in an eighth of the time.

    The decoder in C accepts no document that the other rejects, and its values are the same. What
    it rejects, the other decides, which has the messages, and accepts numbers such as 1e999.

    Raises:
        InputMismatchError: If the document is not valid JSON, or is nested too deeply.
    """
    content = bytes(body)
    try:
        document = cast("Json", _decode(content))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return parse_document(content, MAX_DEPTH)
    return parse_document(content, MAX_DEPTH) if is_deeper(content, MAX_DEPTH) else document


def encode_document(document: object) -> bytes:
    """Return JSON in UTF-8. Numbers that are not finite become null, as in JavaScript."""
    try:
        return _encode(document)
    except UnicodeError:  # a text has half of a surrogate pair, which UTF-8 cannot have
        finite = json.loads(json.dumps(document), parse_constant=lambda name: None)
        return json.dumps(finite).encode()


def encode_values(values: Mapping[str, object]) -> bytes:
    """Return outputs as a JSON object; see :func:`.encode_value`."""
    return encode_document({n: encode_value(v, is_finite=True) for n, v in values.items()})
