"""The bodies of error answers: ``{"error": ...}`` and problem documents (RFC 9457)."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from modpack.serving.settings import Answer

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"


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
