"""What a module's source says about its imports, without running any of it."""

from __future__ import annotations

from modpack.core.garbage import collection_paused
from modpack.core.imports import ModuleScan

__all__ = ["scan_source"]


def scan_source(source: str | bytes, module: str, is_package: bool) -> ModuleScan:
    """Read a module's imports, and the names that it binds, from its source.

    Nothing is executed or imported, and no nesting is too deep: what Python's own parser
    accepts is scanned, what it refuses is a failure in the result.

    Args:
        source: text, or bytes with or without a byte order mark and a coding cookie (PEP 263).
        module: the module's absolute name, from which relative imports start (PEP 328).
        is_package: whether the source is a package's ``__init__``.

    Returns:
        Its imports with their kinds, and what else
        :class:`~modpack.core.imports.ModuleScan` holds.

    >>> scan = scan_source("from . import tools", "pkg.core", is_package=False)
    >>> scan.imports[0].module, scan.imports[0].names
    ('pkg', ('tools',))
    >>> scan_source("x = = 1", "pkg.core", is_package=False).failure.line
    1
    """
    with collection_paused():
        # 5 ms that a process need not pay whose sources have all been scanned before
        from modpack.discovery._scanning import scanned

        return scanned(source, module, is_package)  # whose tree is gone when it returns
