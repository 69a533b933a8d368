"""The settings of a server, and the values that its processes exchange."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

JobKind = Literal["infer", "predict", "image"]
"""The form of a request: Open Inference Protocol, plain JSON by name, or an image file."""


class ServerSettings(NamedTuple):
    """The settings of a server.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        workers: Processes that run each model.
        max_batch: Requests that are computed together at most; 1 turns batching off.
        max_wait: Seconds that a request waits for others at most, and only while the model is busy.
        max_queue: Requests of each model that wait at most, besides those that run.
        max_body: Size of a request's body at most, in bytes.
        timeout: Seconds from a request's start to its answer at most.
        shutdown_timeout: Seconds that accepted requests have after SIGTERM.
        log_format: Whether log lines are JSON or text.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    max_batch: int = 1
    max_wait: float = 0.005
    max_queue: int = 256
    max_body: int = 32 << 20
    timeout: float = 60.0
    shutdown_timeout: float = 30.0
    log_format: Literal["json", "text"] = "json"


class LoadOrder(NamedTuple):
    """An order to load a package in a process of its own.

    Attributes:
        name: Name of the model.
        path: The package.
        policy: The trust policy as JSON, or None.
        on_mismatch: Reaction to differences between the environments; see ``modpack.load``.
        verify: Records to compare with their digests; see ``modpack.load``.
        device: Device of the model, or None for the recorded one.
        threads: Threads of torch in each worker, or None to share torch's default number.
        workers: Workers that share them.
        max_batch: Requests that are computed together at most.
        max_body: Size of a decompressed body at most, in bytes.
        digest: The digest that the package must have, or "" for any.
    """

    name: str
    path: str
    policy: Any = None
    on_mismatch: str = "warn"
    verify: str = "code"
    device: str | None = None
    threads: int | None = None
    workers: int = 1
    max_batch: int = 1
    max_body: int = 32 << 20
    digest: str = ""


class LoadedPackage(NamedTuple):
    """The description of a loaded package.

    Attributes:
        digest: Digest of the package, in hexadecimal.
        signature: Its call signature as JSON.
        can_fork: Whether workers can be forks of the process that loaded the package.
        warnings: Warnings of loading.
    """

    digest: str
    signature: Any
    can_fork: bool
    warnings: tuple[str, ...]


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        status: HTTP status.
        media_type: Media type of the body.
        body: The body.
        json_length: Length of the JSON before binary tensors, or None if the body has none.
    """

    status: int
    media_type: str
    body: bytes
    json_length: int | None = None
