"""Functions that bring code: by its text, by a module of the package, by a record."""

from __future__ import annotations

from typing import Final

from modpack.discovery._picklemachine.values import (
    OPAQUE,
    Arguments,
    Made,
    Named,
    Recorder,
    Table,
    Value,
)
from modpack.discovery.graphcode import odd_part
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["graph_module", "make_function", "read_from_package", "run_graph"]

_ATTACHED: Final = ".data/modpack/torchscript/"


def make_function(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``make_function(fields, identity, ...)``; the first field is its source."""
    fields = arguments[0] if arguments else None
    identity = arguments[1] if arguments and len(arguments) > 1 else None
    text = fields[0] if isinstance(fields, tuple) and fields else None
    name = identity[1] if isinstance(identity, tuple) and len(identity) > 1 else ""
    line = fields[-1] if isinstance(fields, tuple) and fields else 1
    if isinstance(text, str):
        told = name if isinstance(name, str) else ""
        to.function_text(text, told, line if isinstance(line, int) else 1)
    else:
        to.flaw(FlawKind.UNRESOLVED, "it makes a function from a source made while it runs")
    return Made(called, None)


def run_graph(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``reduce_graph_module(body, imports)`` runs the code that is in the body."""
    body, imports = arguments if arguments is not None and len(arguments) == 2 else (None, None)
    code = body.code if isinstance(body, Table) and body.is_plain else None
    if not isinstance(code, str) or not isinstance(imports, str):
        to.flaw(FlawKind.CODE, "it runs a text as code that is made while it runs")
    else:
        odd = odd_part(imports, code, to.is_only_torch())
        if odd is not None:
            to.flaw(FlawKind.CODE, f"it runs a text as code that is more than a graph: {odd}")
    return Made(called, None)


def graph_module(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``reduce_package_graph_module(package, body, module)`` runs a module of the package."""
    module = arguments[2] if arguments and len(arguments) == 3 else None
    if not isinstance(module, str):
        to.flaw(FlawKind.UNRESOLVED, "it takes a module by a name that is made while it runs")
        return OPAQUE
    to.named(module, "forward")
    return Made(called, None)


def read_from_package(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``load_script_module(package, record)``: an archive, which is looked at where it lies."""
    record = arguments[1] if arguments and len(arguments) == 2 else None
    is_packages = arguments is not None and arguments[0] is OPAQUE
    if not is_packages or not isinstance(record, str) or not record.startswith(_ATTACHED):
        to.flaw(FlawKind.UNRESOLVED, f"it is not known what {called} reads")
    return called.made
