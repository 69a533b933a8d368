"""Which names in pickles are known to be harmless, without looking at the package.

A pickle names classes and functions of the process that loads it. Those that modpack, torch and
the standard library need to make ordinary objects again are listed here, exactly or by narrow
rules; whatever is not listed is unknown. What the package's own modules define is not the
business of this list.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from modpack.core._knownforeign import CALLED as FOREIGN_CALLED
from modpack.core._knownstandard import CALLED as STANDARD_CALLED
from modpack.core._knownstandard import HELD as STANDARD_HELD
from modpack.core._knownstandard import ORDINARY_METHODS, STRANGE_MODULES
from modpack.core._knowntorch import CALLED as TORCH_CALLED
from modpack.core._knowntorch import HELD as TORCH_HELD
from modpack.core._knowntorch import (
    MODULES,
    UNKNOWN_MODULES,
    is_class,
    is_held,
    is_plain_class,
)
from modpack.core._knownvalues import is_method_of_value

__all__ = [
    "is_known",
    "is_known_module",
    "is_method_of_value",
    "is_standard",
    "may_be_called",
    "special_attribute",
]


def is_known(module: str, name: str) -> bool:
    """Whether a pickle may name something.

    Args:
        module: the module path.
        name: what is taken from it, dotted; empty for the module itself.

    >>> is_known("collections", "OrderedDict"), is_known("os", "system")
    (True, False)
    >>> is_known("torch.nn.modules.linear", "Linear"), is_known("torch", "os.system")
    (True, False)
    >>> is_known("math", ""), is_known("antigravity", "")
    (True, False)
    """
    if not name:
        return is_known_module(module)
    listed = any(name in names.get(module, ()) for names in (*_CALLED, *_HELD))
    if listed or special_attribute(name) is not None:
        return listed
    return is_class(module, name) or is_held(module, name) or is_method_of_value(module, name)


def may_be_called(module: str, name: str) -> bool:
    """Whether a pickle may call something that it may name, with any arguments.

    >>> may_be_called("collections", "OrderedDict"), may_be_called("torch.nn.functional", "relu")
    (True, False)
    """
    listed = any(name in names.get(module, ()) for names in _CALLED)
    return listed or is_plain_class(module, name)


def is_known_module(path: str) -> bool:
    """Whether a pickle may hold a module: importing it does nothing but define things.

    >>> is_known_module("torch.nn.functional"), is_known_module("torch.utils.bottleneck.__main__")
    (True, False)
    """
    root, _, rest = path.partition(".")
    parts = rest.split(".") if rest else []
    if any(not part.isidentifier() or part.startswith("_") for part in parts):
        return path in MODULES
    if root == "torch":
        return not path.startswith(UNKNOWN_MODULES)
    return is_standard(root) and root not in STRANGE_MODULES


def is_standard(module: str) -> bool:
    """Whether a module is one of the standard library, or a name of torch's own.

    >>> is_standard("os.path"), is_standard("torch.nn"), is_standard("numpy")
    (True, True, False)
    """
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names or root in ("torch", "modpack")


def special_attribute(name: str) -> str | None:
    """The part of a dotted name that reaches for the inside of an object; None if none does.

    >>> special_attribute("Net.forward.__globals__"), special_attribute("Net.__init__")
    ('__globals__', None)
    """
    for part in name.split("."):
        is_special = part.startswith("__") and part.endswith("__")
        if is_special and part not in ORDINARY_METHODS:
            return part
    return None


def _exceptions() -> dict[str, frozenset[str]]:
    """The exceptions and warnings that Python itself defines."""
    import builtins

    found = (
        name
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    )
    return {"builtins": frozenset(found)}


_CALLED: Final[tuple[Mapping[str, frozenset[str]], ...]] = (
    STANDARD_CALLED,
    TORCH_CALLED,
    FOREIGN_CALLED,
    _exceptions(),
)
_HELD: Final[tuple[Mapping[str, frozenset[str]], ...]] = (STANDARD_HELD, TORCH_HELD)
