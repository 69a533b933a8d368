"""Operators that a process declared from Python, which another process lacks.

A script may declare an operator's schema (:mod:`torch.library`) so that a library can be imported
at all. The package does not hold the script, so whoever loads it has to declare the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["declare", "declared_operators", "schemas_of"]

_kept: list[torch.library.Library] = []
"""A declaration lasts as long as its library object."""


def declared_operators() -> frozenset[str]:
    """Their qualified names (``mylib::add``); empty if this torch does not tell."""
    return frozenset(getattr(torch.library, "_defs", ()))


def schemas_of(names: Iterable[str]) -> list[str]:
    """The schemas of declared operators, as :func:`declare` takes them."""
    schemas: list[str] = []
    for name in names:
        namespace, _, operator = name.partition("::")
        packet, _, overload = operator.partition(".")
        found = getattr(getattr(torch.ops, namespace), packet)
        schemas.append(str(getattr(found, overload or "default")._schema))
    return schemas


def declare(schemas: Iterable[str]) -> None:
    """Declare operators for the rest of this process.

    Args:
        schemas: such as ``"mylib::add(Tensor a, Tensor b) -> Tensor"``.
    """
    for schema in schemas:
        namespace, _, signature = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        library.define(signature)  # type: ignore[no-untyped-call]
        _kept.append(library)
