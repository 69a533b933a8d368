"""Calls of modules that are under way, and the tensors that go through them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

import torch

__all__ = ["OpenCalls", "tensors_in"]


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """Each tensor that requires a gradient in a tensor, tuple, list, dict or dataclass, once."""
    seen: set[int] = set()
    todo = [tree]
    while todo:
        part = todo.pop()
        if isinstance(part, torch.Tensor):
            if part.requires_grad and id(part) not in seen:
                seen.add(id(part))
                yield part
        elif isinstance(part, Mapping):
            todo.extend(reversed(list(part.values())))
        elif isinstance(part, (list, tuple)):
            todo.extend(reversed(part))
        elif is_dataclass(part) and not isinstance(part, type):
            todo.extend(getattr(part, each.name, None) for each in reversed(fields(part)))


class OpenCalls:
    """What was opened for calls that are not over yet: by thread, innermost last.

    A hook that closes runs for a call that raised too, even if the hook that opens was not
    reached because an earlier one raised. So each entry remembers its call.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._count = 0

    def open(self, value: Any) -> None:
        """Note a value for the call that runs the calling hook."""
        self._entries.append((next(_running_calls(), None), value))
        self._add(1)

    def close(self) -> Any:
        """Take the value of the call that runs the calling hook; None if it opened nothing."""
        entries = self._entries
        if not entries or entries[-1][0] is not next(_running_calls(), None):
            return None
        self._add(-1)
        return entries.pop()[1]

    def abandoned(self) -> list[Any]:
        """Take the values of calls of this thread that ended without any hook being told.

        torch runs no hook when a call ends by KeyboardInterrupt or another BaseException.
        """
        entries = self._entries
        running = set(map(id, _running_calls())) if entries else set()
        dead = [entry for entry in entries if entry[0] is not None and id(entry[0]) not in running]
        for entry in dead:
            entries.remove(entry)
        self._add(-len(dead))
        return [value for _, value in reversed(dead)]

    @property
    def innermost(self) -> Any:
        """The value of the innermost open call of this thread, or None."""
        return self._entries[-1][1] if self._entries else None

    @property
    def are_open(self) -> bool:
        """Whether any thread has a call under way."""
        return self._count > 0

    def _add(self, number: int) -> None:
        with self._lock:
            self._count += number

    @property
    def _entries(self) -> list[tuple[FrameType | None, Any]]:
        if not hasattr(self._local, "entries"):
            self._local.entries = []
        entries: list[tuple[FrameType | None, Any]] = self._local.entries
        return entries


def _running_calls() -> Iterator[FrameType]:
    """The frames of the module calls that are under way, innermost first; they stand for them."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            yield frame
        frame = frame.f_back


_CALL = torch.nn.Module._call_impl.__code__
