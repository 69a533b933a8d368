"""Which imports of packaged code stay in the package, and which may go to the host."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import NamedTuple

from modpack.core.names import root_of

__all__ = ["ANCESTOR_NAME", "Way", "keeps", "reaches_host"]

ANCESTOR_NAME = "torch_package_importer"
"""What code written for torch.package imports to reach its importer."""

_ALWAYS_EXTERN = frozenset({"torch", "torchgen", "functorch", "modpack"})


class Way(NamedTuple):
    """Where an absolute import by packaged code leads.

    Attributes:
        full: the name in ``sys.modules`` of what is imported.
        top: that of its outermost package, if it is one of the package's own modules; else None.
    """

    full: str
    top: str | None


def reaches_host(root: str, extern_roots: Collection[str]) -> bool:
    """Whether packaged code may import modules with this first component from the host.

    Args:
        root: the first component of a module path.
        extern_roots: those of the package's extern modules.
    """
    return root in extern_roots or root in _ALWAYS_EXTERN or root in sys.stdlib_module_names


def keeps(module: str, roots: Collection[str], extern_roots: Collection[str]) -> bool:
    """Whether an absolute import by packaged code must not reach the host.

    Args:
        module: the module path that it names.
        roots: the first components that belong to the package.
        extern_roots: those of its extern modules.
    """
    if module == ANCESTOR_NAME:
        return False
    return root_of(module) in roots or not reaches_host(root_of(module), extern_roots)
