"""What is saved of objects of torch that plain pickle refuses."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import torch

from modpack.pickling import remade
from modpack.pickling.graphmodules import is_held_by_owner
from modpack.pickling.madepaths import portable_path
from modpack.pickling.rows import BY_NAME, Packaged, Row, Substitute, Surroundings
from modpack.pickling.torchscript import load_script_module, script_bytes

__all__ = ["TORCH"]


def _named_by_torch(constant: Any, around: Surroundings) -> Any:
    return getattr, (torch, str(constant).rpartition(".")[2])


def _type_info(info: Any, around: Surroundings) -> Any:
    return type(info), (getattr(torch, info.dtype),)


def _overload(operator: Any, around: Surroundings) -> Any:
    return remade.operator_of, (*operator._schema.name.split("::"), operator._overloadname)


def _packet(packet: Any, around: Surroundings) -> Any:
    return remade.operator_of, tuple(packet._qualified_op_name.split("::"))


def _operators(namespace: Any, around: Surroundings) -> Any:
    return remade.operator_of, (namespace.name,)


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
    Substitute(
        "`torch.Generator`",
        (torch.Generator,),
        BY_NAME + "its device and its state; `torch.default_generator` is that of the process",
        "one that goes on with the same numbers",
        by_name=True,
    ),
    Substitute(
        "`torch.memory_format`, `layout`, `qscheme`, `dtype`, `device`, `Size`, `Tag`",
        (torch.memory_format,),
        "the name, or the value",
        "the same",
        _named_by_torch,
    ),
    Substitute(
        "`torch.finfo`, `torch.iinfo`",
        (torch.finfo, torch.iinfo),
        "the dtype",
        "the same",
        _type_info,
    ),
    Substitute(
        "enums of torch, such as `ReduceOp`, `SDPBackend`, `ProfilerActivity`",
        (),
        "the name",
        "the same",
    ),
    Substitute(
        "built-in functions and methods, such as `torch.add`, `torch.Tensor.add`",
        (),
        "the name",
        "the same",
    ),
    Substitute(
        "operators: `torch.ops.aten.add`, its overloads, `torch.ops.aten`",
        ("torch._ops.OpOverload",),
        "the name; what registers it has to be loaded with the package",
        "the same",
        _overload,
        subclasses=True,
    ),
    Substitute("", ("torch._ops.OpOverloadPacket",), "", "", _packet, subclasses=True),
    Substitute("", ("torch._ops._OpNamespace",), "", "", _operators),
    Substitute(
        "functions of `torch.jit.script` and `trace`",
        (torch.jit.ScriptFunction,),
        "the name, if a module of the model holds them; else what `torch.jit.save` writes",
        "the same; or a ScriptModule that is called alike",
        _script_function,
        by_name=True,
    ),
    Substitute(
        "`torch.export.ExportedProgram`",
        ("torch.export.exported_program.ExportedProgram",),
        "what `torch.export.save` writes; it shares no tensors with other objects",
        "the same",
        _program,
    ),
    Substitute(
        "`torch.fx.Graph` without a module",
        ("torch.fx.graph.Graph",),
        "its nodes; where it was traced, by the path of the module",
        "the same",
        _graph,
    ),
    Substitute(
        "classes derived from `torch.fx.GraphModule`, and Graphs in attributes of one",
        (),
        "attributes, and the code of each Graph, which is traced again as torch does",
        "one of the same class; what nodes have in `meta` is lost, as torch does",
    ),
    Substitute(
        "modules and functions of `torch.compile`",
        (),
        "what they are made of; nothing that was compiled, and no setting that is a folder",
        "the same, compiled again when called",
    ),
    Substitute("", ("torch._dynamo.convert_frame.ConvertFrameBox",), "", "", _compiling),
    Substitute("", ("torch._dynamo.eval_frame.OptimizeContext",), "", "", _compiler),
)
"""Rows for torch; those without a title belong to the row above them."""
