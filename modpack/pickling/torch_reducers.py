"""Special objects of torch: rows, FX graphs, and functions that pybind11 defines.

torch saves the code of a GraphModule and traces that again when it is loaded. That makes a plain
GraphModule of what was of a derived class; and a Graph in one of its attributes leads back to the
module, which does not exist yet at that time. Such modules are reduced here.

Python reaches a function of pybind11, such as those of ``torch._C``, as an attribute of an owner
that is no module. The owner's own reduction is a text for ``eval`` that imports the module; what it
stands for is the module.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from modpack.pickling import remade
from modpack.pickling.base import Packaged, Row, Substitute, Surroundings
from modpack.pickling.names import ModuleNamed
from modpack.pickling.remade import graph_module, the_same
from modpack.pickling.torch_archives import load_script_module, portable_path, script_bytes

_IMPLEMENTATION = "GraphModuleImpl"
"""The class that torch makes for each GraphModule, so that each can have a forward of its own."""


class GraphModules:
    """Reduces those GraphModules of one pickle of which torch would lose something."""

    def __init__(self) -> None:
        self._plain: dict[int, tuple[Graph, GraphModule]] = {}

    def reduction(self, module: object) -> tuple[Any, ...] | None:
        """A function of :mod:`.remade` with its arguments; None for what torch does well.

        Args:
            module: anything that packages itself.
        """
        if not isinstance(module, GraphModule) or not _leaves_that_to_torch(type(module)):
            return None
        kind, held = _class_of(module), vars(module)
        graphs = {name: value for name, value in held.items() if isinstance(value, Graph)}
        if kind is GraphModule and len(graphs) == 1:
            return None
        state = {name: value for name, value in held.items() if name not in graphs}
        plain = {name: self._plain_module(module, graph) for name, graph in graphs.items()}
        return graph_module, (kind, type(module).__name__, plain, state)

    def _plain_module(self, module: GraphModule, graph: Graph) -> GraphModule:
        """A module that torch saves in place of a Graph; it holds the same modules and tensors."""
        if id(graph) not in self._plain:
            # A copy of the Graph: the live one must not get another owner.
            self._plain[id(graph)] = (graph, GraphModule(module, copy.deepcopy(graph)))
        return self._plain[id(graph)][1]


def is_held_by_owner(graph: Graph) -> bool:
    """Whether a Graph is in an attribute of the module that owns it, or in a container there."""
    owner = graph.owning_module
    return owner is not None and _holds(list(vars(owner).values()), graph)


def _holds(value: object, graph: Graph) -> bool:
    if isinstance(value, dict):
        return _holds(list(value.values()), graph)
    if isinstance(value, (list, tuple)):
        return any(part is graph or _holds(part, graph) for part in value)
    return False


def _class_of(module: GraphModule) -> type:
    return next(kind for kind in type(module).__mro__ if _name_of(kind) != _IMPLEMENTATION)


def _name_of(kind: type) -> str:
    return kind.__qualname__.rpartition(".")[2]


def _leaves_that_to_torch(kind: type) -> bool:
    own: Callable[..., Any] = kind.__reduce_package__  # type: ignore[attr-defined]
    return own is GraphModule.__reduce_package__


def _overload(operator: Any, around: Surroundings) -> Any:
    return remade.operator_of, (*operator._schema.name.split("::"), operator._overloadname)


def _packet(packet: Any, around: Surroundings) -> Any:
    return remade.operator_of, tuple(packet._qualified_op_name.split("::"))


def _script_function(function: Any, around: Surroundings) -> Any:
    return Packaged(load_script_module, (around.attach(script_bytes(function)),))


def _graph(graph: Any, around: Surroundings) -> Any:
    function, arguments, state, *rest = graph.__reduce_ex__(2)
    made = state.get("_co_fields") if isinstance(state, dict) else None
    if isinstance(made, dict) and isinstance(made.get("co_filename"), str):
        place = portable_path(made["co_filename"])
        state = {**state, "_co_fields": {**made, "co_filename": place}}
    if is_held_by_owner(graph):  # its owner does not exist before this is loaded
        state = {**state, "_owning_module": None}
    return function, arguments, state, *rest


def _compiling(box: Any, around: Surroundings) -> Any:
    """What torch.compile notes down while it compiles."""
    return type(box), ()


def _compiler(context: Any, around: Surroundings) -> Any:
    """What calls compiled code; it has a copy of all settings, of which some are folders here."""
    made, arguments, state = context.__reduce__()
    settings = state.get("compiler_config")
    if isinstance(settings, dict):
        kept = {name: value for name, value in settings.items() if not _is_folder(value)}
        state = {**state, "compiler_config": kept}
    return made, arguments, state


def _is_folder(value: object) -> bool:
    return isinstance(value, str) and PurePath(value).is_absolute()


def _program(program: Any, around: Surroundings) -> Any:
    return Packaged(remade.exported_program, (around.attach(remade.program_bytes(program)),))


TORCH: tuple[Row, ...] = (
    Substitute((torch.Generator,), by_name=True),
    Substitute(
        (torch.memory_format,),
        lambda constant, around: (getattr, (torch, str(constant).rpartition(".")[2])),
    ),
    Substitute(
        (torch.finfo, torch.iinfo), lambda info, around: (type(info), (getattr(torch, info.dtype),))
    ),
    Substitute(("torch._ops.OpOverload",), _overload, subclasses=True),
    Substitute(("torch._ops.OpOverloadPacket",), _packet, subclasses=True),
    Substitute(
        ("torch._ops._OpNamespace",),
        lambda namespace, around: (remade.operator_of, (namespace.name,)),
    ),
    Substitute((torch.jit.ScriptFunction,), _script_function, by_name=True),
    Substitute(("torch.export.exported_program.ExportedProgram",), _program),
    Substitute(("torch.fx.graph.Graph",), _graph),
    Substitute(("torch._dynamo.convert_frame.ConvertFrameBox",), _compiling),
    Substitute(("torch._dynamo.eval_frame.OptimizeContext",), _compiler),
)
"""Rows for torch."""


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
