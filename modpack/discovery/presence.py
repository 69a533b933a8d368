"""Whether a name of a module tells that some other module is there, asked from outside."""

from __future__ import annotations

import ast
from collections.abc import Callable

from modpack.core.garbage import collection_paused
from modpack.core.imports import ScanFailure
from modpack.discovery._collect import collect
from modpack.discovery._parse import parse_source
from modpack.discovery._presence import Answer, Presence

__all__ = ["Answer", "presence_in"]


def presence_in(source: bytes, module: str, is_package: bool) -> Callable[[str], Answer]:
    r"""Read a source for names such as ``HAS_X`` and ``is_x_available``.

    Args:
        source: the source; one that is no Python has no names.
        module: the module's name.
        is_package: whether it is a package's ``__init__``.

    Returns:
        Tells what a name of the module asks.

    >>> asked = presence_in(b"import sys\nHAS = 'x' in sys.modules\nN = 1", "lib", True)
    >>> asked("HAS").is_told, asked("N").is_told
    (True, False)
    """
    with collection_paused():
        parsed = parse_source(source)
        if isinstance(parsed, ScanFailure):
            return lambda name: Answer()
        findings = collect(parsed, module, module if is_package else module.rpartition(".")[0])
    presence = Presence(module, findings.origins)
    return lambda name: presence.asked_by(ast.Name(name, ast.Load()), findings.scope)
