"""Where loaded tensors go: what ``map_location`` says, and nothing else that is around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["fake_storage", "placing", "restoring", "unmoved", "wants_fakes"]


def restoring(map_location: object) -> Callable[[torch.UntypedStorage, str], torch.UntypedStorage]:
    """What torch.load does with its ``map_location``, once that is known to make sense.

    Raises:
        TypeError, ValueError: it is nothing that torch takes.
    """
    known = (str, torch.device, dict)
    if not (map_location is None or isinstance(map_location, known) or callable(map_location)):
        raise TypeError(
            "map_location must be None, a device, a dict of devices or a function, "
            f"not {type(map_location).__name__}"
        )
    if isinstance(map_location, str):
        try:
            torch.device(map_location)
        except RuntimeError as failure:
            raise ValueError(f"map_location {map_location!r} is no device: {failure}") from failure
    restore = torch.serialization._get_restore_location(map_location)  # type: ignore[no-untyped-call]
    return restore  # type: ignore[no-any-return]


@contextmanager
def placing(map_location: object) -> Iterator[None]:
    """While objects are loaded: where tensors go that have no storage of their own.

    torch's functions that make such tensors again, as wrappers of others, ask for it themselves.

    Args:
        map_location: what the storages' loader was given.
    """
    told: Any = torch.serialization._serialization_tls
    before, told.map_location = told.map_location, map_location
    try:
        yield
    finally:
        told.map_location = before


def wants_fakes() -> bool:
    """Whether a FakeTensorMode is on, in which tensors have no content."""
    return torch._guards.detect_fake_mode(None) is not None


def fake_storage(size: int, location: str) -> torch.UntypedStorage:
    """What torch.load makes of a storage in a FakeTensorMode.

    Args:
        size: its size in bytes.
        location: torch's location tag.
    """
    storage: Any = torch.UntypedStorage(size, device="meta")  # type: ignore[no-untyped-call]
    storage._fake_device = location
    return storage  # type: ignore[no-any-return]


def unmoved(function: Any) -> Any:
    """In place of a function that a pickle calls: one that a ``torch.device`` context leaves alone.

    The context is for new tensors. A sparse one would follow it without its values, while the
    dense ones stay where they were saved.
    """
    return _rebuild_sparse if function is torch._utils._rebuild_sparse_tensor else function


def _rebuild_sparse(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    with data[0].device:
        return torch._utils._rebuild_sparse_tensor(layout, data)  # type: ignore[no-any-return, no-untyped-call]
