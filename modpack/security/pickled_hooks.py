"""The hooks that a package's pickles restore, read without unpickling.

Hook specs are the exporter's description, but the pickle determines which code runs. What
commands show of a hook's callable is therefore read from the pickle: the name of a function that
is imported, or the source of one that is created from source.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.core.hookspec import CallableSpec, Way
from modpack.pickling import rebuild
from modpack.pickling.pickle_machine import MalformedError
from modpack.trust.pickle_names import CallResult, Pairs, Persistent, PickledName, PickleTree

_FUNCTION: Final = PickledName(rebuild.MODULE, "make_function")
_FILL: Final = PickledName(rebuild.MODULE, "fill_function")
_METHOD: Final = PickledName(rebuild.MODULE, "make_method")
_DEFINED: Final = PickledName(rebuild.MODULE, "defined")
_CLASS: Final = PickledName(rebuild.MODULE, "make_class")
_ATTRIBUTE: Final = PickledName("builtins", "getattr")
_PARTIAL: Final = PickledName("functools", "partial")
_PARTS: Final = "modpack.hooks.graph_parts"
_COMM: Final = PickledName(rebuild.MODULE, "CommHook")
_MODIFIED: Final = "# The pickle modifies this function after creating it."
_OMITTED: Final = "# More sources are omitted, because the hooks have too many."
_MAX_STEPS: Final = 100_000
_MAX_CHARACTERS: Final = 4 << 20
"""Limits for the sources of all hooks of an object: many hooks may share large functions."""
_MAX_NAME: Final = 200
_MAX_SHOWN: Final = 4
UNKNOWN: Final = CallableSpec("object", "unknown")
"""A callable that is stored in an unknown form."""


class PickledHook(NamedTuple):
    """A hook in a pickle.

    Attributes:
        name: Name of its spec. The parts of a graph hook share one, and a forged pickle may repeat
            any name.
        kind: Kind of the hook; empty for a hook of the graph, which has several parts.
        callable: The callable that the pickle restores.
    """

    name: str
    kind: str
    callable: CallableSpec


def read_hooks(archive: Archive, record: str) -> tuple[PickledHook, ...]:
    """Return the distinct hooks that loading a saved object restores, in order.

    Args:
        archive: The package.
        record: The record of the object.

    Raises:
        MalformedError: If the hooks are not stored in modpack's form.
    """
    _, pickle_record = hook_records(record)
    if not (archive.has(record) and archive.has(pickle_record)):
        return ()
    tree, describer, found = PickleTree(), _Describer(), dict[PickledHook, None]()
    # Hooks continue the pickle of their object, whose memo their pickle refers to.
    tree.read_one(archive.read(record))
    for payload in tree.read_all(archive.read(pickle_record)):
        listed = payload.get("hooks") if isinstance(payload, Pairs) else None
        if listed is None and isinstance(payload, Pairs):
            continue  # additional objects of the same save
        if not isinstance(listed, list):
            raise MalformedError("the list of hooks is missing")
        for each in listed:
            if type(each) is not tuple or len(each) != 6 or {type(each[0]), type(each[1])} != {str}:
                raise MalformedError("a hook has an unknown form")
            name, kind, *_, hook = each
            kind = "" if _is_part(hook) else kind
            # Not the spec's description, because only the pickle decides which code runs.
            found[PickledHook(name, kind, describer.describe(hook))] = None
    return tuple(found)


class _Describer:
    """Describes the callables of one object's hooks."""

    def __init__(self) -> None:
        self._steps, self._characters = _MAX_STEPS, _MAX_CHARACTERS

    def describe(self, hook: Any) -> CallableSpec:
        """Return the description of a hook, whose parts have labels if there are several."""
        try:
            parts = {label: self._describe_one(n) for label, n in _user_callables(hook).items()}
        except (TypeError, ValueError, IndexError, AttributeError, RecursionError):
            return UNKNOWN
        if len(parts) == 1:
            return next(iter(parts.values()))
        ways: set[Way] = {each.by for each in parts.values()}
        by: Way = ways.pop() if len(ways) == 1 else "object"
        sources = [f"# {label}\n{each.source}" for label, each in parts.items() if each.source]
        name = ", ".join(each.name for each in parts.values())
        return CallableSpec(by, name or _name_of(hook), "\n\n".join(sources) or None)

    def _describe_one(self, node: Any) -> CallableSpec:
        is_named = isinstance(node, PickledName) or _calls(node, _DEFINED)
        if _calls(node, _ATTRIBUTE):
            is_named = isinstance(node.arguments[0], PickledName)
        by: Way = "reference" if is_named else "source" if _calls(node, _FUNCTION) else "object"
        source = "\n\n".join(dict.fromkeys(self._sources(node)))
        return CallableSpec(by, _name_of(node)[:_MAX_NAME], source or None)

    def _sources(self, node: Any) -> Iterator[str]:
        """Yield the sources of the functions that a callable consists of, its own first.

        Decorators and partials contain the user's function, closures those that it calls, and
        classes that the pickle creates their methods.
        """
        todo, seen = [node], set()
        while todo:
            # Breadth first: the user's function comes before the functions that it calls.
            part = todo.pop(0)
            if not isinstance(part, CallResult) or id(part) in seen:
                continue
            # By identity: a forged pickle may contain cycles.
            seen.add(id(part))
            is_function = part.function == _FUNCTION
            self._steps -= 1
            self._characters -= len(part.arguments[0][0]) if is_function else 0
            if self._steps < 0 or self._characters < 0:
                yield _OMITTED
                return
            if is_function:
                yield textwrap.dedent(part.arguments[0][0])
                if part.states or any(function != _FILL for function, _ in part.calls):
                    yield _MODIFIED
            todo += _parts_of(part)


def _user_callables(hook: Any) -> Mapping[str, Any]:
    """Return the user's callables of a hook, by parameter name."""
    if _is_part(hook):
        attachment = hook.get("attachment")
        spec = attachment.get("spec") if isinstance(attachment, CallResult) else None
        state = spec.states[-1] if isinstance(spec, CallResult) and spec.states else None
        items = state.items if isinstance(state, Pairs) else []
        return {name: value for name, value in items if name in ("hook", "pack", "unpack")}
    if isinstance(hook, CallResult) and hook.function == _COMM:
        function = hook.get("function")
        return {"hook": function} if isinstance(function, (PickledName, CallResult)) else {}
    return {"hook": hook}


def _is_part(hook: Any) -> bool:
    function = hook.function if isinstance(hook, CallResult) else None
    if not isinstance(function, PickledName) or function.module != rebuild.MODULE:
        return False
    return rebuild.DEFINED_IN.get(function.name) == _PARTS


def _name_of(node: Any) -> str:
    """Return the qualified name of a callable, or a description of how the pickle makes it."""
    if not isinstance(node, CallResult):
        return str(node) if isinstance(node, PickledName) else _kind_of(node)
    arguments = node.arguments
    if node.function == _DEFINED:
        module = arguments[0].identity if isinstance(arguments[0], Persistent) else ("", "")
        return _dotted(module[-1], arguments[1])
    if node.function == _FUNCTION:
        _, qualname, module = arguments[1]
        return _dotted(module, qualname)
    if node.function == _PARTIAL:
        return f"partial of {_name_of(_state_of_partial(node)[0])}"
    if node.function == _METHOD:
        return f"{_name_of(arguments[0])} (bound)"
    if node.function == _ATTRIBUTE and len(arguments) == 2:
        owner, name = arguments
        if isinstance(owner, PickledName):
            return _dotted(str(owner), name)
        return _dotted(_kind_of(owner), name) + " (bound)"
    return _kind_of(node, "instance of ")


def _kind_of(node: Any, prefix: str = "") -> str:
    """Return the class of an object, or the call that makes it."""
    if not isinstance(node, CallResult):
        is_stored = isinstance(node, Persistent)
        return "object outside of the pickle" if is_stored else f"{prefix}{type(node).__name__}"
    arguments = node.arguments if type(node.arguments) is tuple else ()
    if isinstance(node.function, PickledName) and node.function.module == "copyreg":
        return prefix + _class_name(arguments[0])
    if node.is_instance:
        return prefix + _class_name(node.function)
    # The names of nested calls are not shown: the same one may occur many times.
    shown = (each[:_MAX_NAME] if type(each) is str else "..." for each in arguments[:_MAX_SHOWN])
    return f"result of {_class_name(node.function)}({', '.join(shown)})"


def _class_name(node: Any) -> str:
    if _calls(node, _CLASS):
        module = node.arguments[3]
        path = module.identity[-1] if isinstance(module, Persistent) else module
        return _dotted(path, node.arguments[2])
    return str(node) if isinstance(node, PickledName) else _name_of(node)


def _dotted(module: Any, name: Any) -> str:
    """Join two names. Other nodes raise a TypeError: their text may have any size."""
    return ".".join((module[:_MAX_NAME], name[:_MAX_NAME]))


def _parts_of(node: CallResult) -> Iterator[Any]:
    """Yield the values in a callable that may be functions of the user."""
    if node.function == _PARTIAL:
        function, arguments, by_name, *_ = _state_of_partial(node)
        yield from (function, *arguments, *_values(by_name))
    elif node.function == _METHOD:
        yield node.arguments[0]
    elif node.function in (_FUNCTION, _CLASS):
        for state in (state for _, state in node.calls if isinstance(state, Pairs)):
            for key in ("cells", "attributes", "globals"):
                yield from _values(state.get(key))
    else:
        made_of = (node.function, *node.arguments) if type(node.arguments) is tuple else ()
        yield from (each for each in made_of if _calls(each, _CLASS) or _calls(each, _FUNCTION))
        yield from made_of[1:2] if node.function == _ATTRIBUTE else ()
        yield node.get("__wrapped__")


def _calls(node: Any, function: PickledName) -> bool:
    return isinstance(node, CallResult) and node.function == function


def _values(pairs: Any) -> list[Any]:
    return [value for _, value in pairs.items] if isinstance(pairs, Pairs) else []


def _state_of_partial(node: CallResult) -> tuple[Any, ...]:
    """Return the function, arguments, and keyword arguments of a partial."""
    state = node.states[-1] if node.states else None
    if type(state) is tuple and len(state) == 4:
        return state
    return (node.arguments[0], node.arguments[1:], None)
