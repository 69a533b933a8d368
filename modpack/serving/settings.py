"""The settings of a server, and the forms of requests and answers."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
