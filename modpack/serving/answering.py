"""Requests answered in a worker: read, computed together, and written, each with its own error."""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from modpack.core.text import printable
from modpack.errors import DataError, InputMismatchError, ModpackError
from modpack.predicting.decoding import decode_value
from modpack.predicting.rows import layout_of
from modpack.running.images import picture_of, read_image
from modpack.running.inputs import require_library
from modpack.serving.documents import encode_values, parse_body
from modpack.serving.infer_requests import (
    InferRequest,
    read_infer_request,
    require_few,
    write_infer_answer,
)
from modpack.serving.log import write_line
from modpack.serving.settings import JSON, Answer, JobKind, RequestError, error_answer

if TYPE_CHECKING:
    from modpack.core.call_signature import CallSignature
    from modpack.predicting.predictor import Predictor
    from modpack.predicting.values import CallForm

_MAX_MESSAGE = 2000
_ANY_COMPRESSION = zlib.MAX_WBITS | 32
"""Accept the headers of gzip and of zlib."""


class Received(NamedTuple):
    """A request as a worker receives it.

    Attributes:
        kind: The form of the request.
        encoding: Content encoding of the body, or "".
        json_length: Length of the JSON before binary tensors, or None.
        body: The body.
    """

    kind: JobKind
    encoding: str
    json_length: int | None
    body: memoryview


class Answerer:
    """Answers requests with a loaded package.

    Args:
        predictor: The loaded package.
        name: Name of the model.
        max_body: Size of a decompressed body at most, in bytes.
    """

    def __init__(self, predictor: Predictor, name: str, max_body: int) -> None:
        self._predictor = predictor
        self._name = name
        self._max_body = max_body

    def answer(self, received: Sequence[Received]) -> list[Answer]:
        """Return the answers to requests, in their order."""
        # A request that cannot be read is answered on its own, and does not fail those of others.
        read = [self._read(each) for each in received]
        calls = [each.values for each in read if not isinstance(each, Answer)]
        results: Iterator[Any] = iter(self._predictor.predict_many(calls, _report))
        return [
            one if isinstance(one, Answer) else self._write(each, one, next(results))
            for each, one in zip(received, read, strict=True)
        ]

    def _read(self, received: Received) -> InferRequest | Answer:
        form = self._predictor.form
        try:
            body = self._decompress(received)
            if received.kind == "infer":
                return read_infer_request(body, received.json_length, form)
            if received.kind == "image":
                return InferRequest(read_image_values(body, form.signature))
            return InferRequest(read_named_values(body, form))
        except Exception as failure:
            return self._failed(received, failure)

    def _decompress(self, received: Received) -> memoryview:
        if not received.encoding:
            return received.body
        decompressor = zlib.decompressobj(_ANY_COMPRESSION)
        try:
            # One byte more than allowed tells a body that is too large, without inflating the rest.
            body = decompressor.decompress(received.body, self._max_body + 1)
        except zlib.error as failure:
            raise RequestError(f"the body is not valid {received.encoding}") from failure
        if len(body) > self._max_body:
            raise RequestError(f"the decompressed body exceeds {self._max_body} bytes", 413)
        if not decompressor.eof:
            raise RequestError(f"the {received.encoding} body is cut off")
        return memoryview(body)

    def _write(self, received: Received, request: InferRequest, result: Any) -> Answer:
        try:
            if isinstance(result, Exception):
                raise result
            if received.kind == "infer":
                return write_infer_answer(request, result, self._name, self._predictor.digest)
            return Answer(200, JSON, encode_values(result))
        except Exception as failure:
            return self._failed(received, failure)

    def _failed(self, received: Received, failure: Exception) -> Answer:
        status, text = 400, str(failure)
        if isinstance(failure, RequestError):
            status = failure.status
        # InputMismatchError is the client's error. Whatever else the model raises is not.
        elif not (isinstance(failure, ModpackError) and isinstance(failure, ValueError)):
            status, text = 500, f"the model failed: {type(failure).__name__}: {failure}"
        shown = printable(text.replace("\n", "; "))
        if len(shown) > _MAX_MESSAGE:
            shown = f"{shown[:_MAX_MESSAGE]}..."
        return error_answer(shown, status, received.kind == "infer")


def _report(problem: str) -> None:
    write_line(f"{problem}. They were computed one by one, without this exception.")


def read_named_values(body: memoryview, form: CallForm) -> dict[str, object]:
    """Read a plain JSON request: an object with a value for each input, by name.

    Raises:
        RequestError: If the body is not an object.
        InputMismatchError: If it is not valid JSON, or a value does not fit.
    """
    document, specs = parse_body(body), form.specs
    if not isinstance(document, dict):
        example = next(iter(specs), "x")
        raise RequestError(f'the body must be a JSON object such as {{"{example}": [[1, 2]]}}')
    require_few(len(document), len(specs), "names")
    # Unknown names are reported by the predictor, with all other problems.
    return {
        name: decode_value(specs[name], data) if name in specs else data
        for name, data in document.items()
    }


def read_image_values(body: memoryview, signature: CallSignature) -> dict[str, object]:
    """Read an image file as the only input, resized as in the web page.

    Raises:
        RequestError: If the model takes no images, or a library is missing.
        InputMismatchError: If the body is not an image.
    """
    layout = layout_of(signature, None)
    # An image is a batch of one, also where the call signature fixes the size of the batch.
    batches = {each.name for each in signature.inputs if len(each.shape or ()) == 4}
    layout = layout._replace(rows=layout.rows | batches)
    try:
        picture = picture_of("the body", layout)
        library = require_library("PIL.Image", "images")
        with warnings.catch_warnings():  # a small file can have more pixels than memory
            warnings.simplefilter("error", library.DecompressionBombWarning)
            value = read_image(io.BytesIO(body), picture, resize=True)
    except InputMismatchError:
        raise
    except ModpackError as failure:
        # The hints of errors in data are for the command line.
        reason = failure.reason if isinstance(failure, DataError) else str(failure).rstrip(".")
        raise RequestError(f"{reason}. The model accepts application/json.", 415) from failure
    return {picture.name: value[None] if picture.name in layout.rows else value}
