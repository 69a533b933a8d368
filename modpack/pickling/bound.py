"""Functions that extension modules define with pybind11, such as those of ``torch._C``.

Python reaches such a function as an attribute of an owner that is no module. The owner's own
reduction is a text for ``eval`` that imports the module; what it stands for is the module.
"""

from __future__ import annotations

import re
from typing import Any

from modpack.pickling.remade import the_same
from modpack.pickling.scriptnames import ModuleNamed

__all__ = ["BOUND", "reduce_bound"]

BOUND = "pybind11_builtins"
"""What the types of such owners say that they are from."""

_PROTOCOL = 3
_IMPORT = re.compile(r"__import__\('importlib'\)\.import_module\('([\w.]+)'\)")


def reduce_bound(owner: Any) -> Any:
    """The module in place of the owner of its functions; pickles must not need ``eval``."""
    reduced = owner.__reduce_ex__(_PROTOCOL)
    function, arguments = reduced[:2]
    found = _IMPORT.fullmatch(str(*arguments)) if function is eval else None
    return reduced if found is None else (the_same, (ModuleNamed(found[1]),))
