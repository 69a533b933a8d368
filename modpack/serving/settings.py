"""The settings of a server, the forms of requests, and answers.

Errors are answered with ``{"error": ...}``, or with problem documents (RFC 9457).
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final, Literal, NamedTuple

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
JobKind = Literal["infer", "predict", "image"]
"""The form of a request: Open Inference Protocol, plain JSON by name, or an image file."""


class ServerSettings(NamedTuple):
    """The settings of a server. The options of ``modpack serve`` have the same defaults.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        workers: Processes that run each model.
        threads: Threads of torch in each worker, or None to share torch's default number.
        device: Device of the models, or None for the recorded one.
        max_batch: Maximum number of requests that are computed together; 1 turns batching off.
        max_wait: Maximum time that a request waits for others, and only while the model is busy,
            in seconds.
        max_queue: Maximum number of requests of each model that wait, besides those that run.
        max_body: Maximum size of a request's body, also when it is decompressed, in bytes.
        timeout: Maximum time from a request's start to its answer, in seconds.
        shutdown_timeout: Time that accepted requests have after SIGTERM, in seconds.
        on_mismatch: Reaction to differences between the environments; see ``modpack.load``.
        verify: Records to compare with their digests; see ``modpack.load``.
        log_format: Whether log lines are JSON or text.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int | None = None
    device: str | None = None
    max_batch: int = 8
    max_wait: float = 0.005
    max_queue: int = 256
    max_body: int = 32 << 20
    timeout: float = 60.0
    shutdown_timeout: float = 30.0
    on_mismatch: str = "warn"
    verify: str = "code"
    log_format: Literal["json", "text"] = "json"


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        status: HTTP status.
        media_type: Media type of the body.
        body: The body.
        json_length: Length of the JSON before binary tensors, or None if the body has none.
        headers: Further headers.
    """

    status: int
    media_type: str
    body: bytes
    json_length: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


class RequestError(Exception):
    """A request that cannot be answered with a result.

    Args:
        message: The problem.
        status: HTTP status.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        self.status = status
        super().__init__(message)


def error_answer(message: str, status: int, is_open_inference: bool) -> Answer:
    """Return the answer that reports an error.

    Args:
        message: The problem, with its fix.
        status: HTTP status.
        is_open_inference: Whether the request was one of the Open Inference Protocol, whose
            clients read the key ``error``. Others receive a problem document, with that key too.

    >>> error_answer("no such model", 404, True).body
    b'{"error": "no such model"}'
    """
    if is_open_inference:
        return Answer(status, JSON, json.dumps({"error": message}).encode())
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "error": message,
    }
    return Answer(status, PROBLEM, json.dumps(document).encode())
