"""modpack's loader, which came with a package: it loads packages, with torch alone.

Names are imported on first use. Everything else of modpack requires an installation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

# Modules are imported later, too, when the current folder may be another one.
globals()["__path__"][:] = map(os.path.abspath, globals()["__path__"])

from modpack.core import RUNTIME_NAMES, define_lazily  # noqa: E402
from modpack.core.names import PACKAGES, is_within  # noqa: E402

_DEFINED_IN = {name: module for module, names in RUNTIME_NAMES.items() for name in names}
_DEFINED_IN["hooks"] = "modpack"
__all__ = sorted(_DEFINED_IN)


def _explain(name: str) -> str:
    return f"{name} is not part of the loader that came with a package. Install modpack to use it."


class _MissingModules(MetaPathFinder):
    """Explains imports of modules that the loader lacks. It is asked last."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if is_within(fullname, "modpack") and not is_within(fullname, PACKAGES):
            # Not ModuleNotFoundError, which `from modpack import save` would replace.
            raise ImportError(_explain(fullname), name=fullname)
        return None


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(_explain(f"modpack.{name}"))


define_lazily(__name__, _DEFINED_IN)
sys.meta_path.append(_MissingModules())
