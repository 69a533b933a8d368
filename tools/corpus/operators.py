"""Operators that a library declares in compiled code that cannot run here."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_declared: list[torch.library.Library] = []


def declare(schemas: Sequence[str]) -> None:
    """Declare operators without implementing them, so that Python code may refer to them.

    Args:
        schemas: such as ``"torchvision::nms(Tensor dets) -> Tensor"``.
    """
    for schema in schemas:
        namespace, _, signature = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(signature)
        _declared.append(library)
