"""Comparison of a package's hook specs with the hooks that its pickles restore.

Hook specs are for display, but the pickle determines which code runs. This module reads the pickle
without unpickling it. It describes each hook by its content: whether a function is imported by
name or created from source, and from which source. Edited specs do not match this description.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.core.hookspec import PARAMETRIZATION, CallableSpec, HookSpec, Way
from modpack.core.names import module_record
from modpack.pickling import rebuild
from modpack.pickling.pickle_machine import MalformedError
from modpack.security.pickle_names import CallResult, Pairs, Persistent, PickledName, PickleTree

_FUNCTION: Final = PickledName(rebuild.MODULE, "make_function")
_FILL: Final = PickledName(rebuild.MODULE, "fill_function")
_METHOD: Final = PickledName(rebuild.MODULE, "make_method")
_DEFINED: Final = PickledName(rebuild.MODULE, "defined")
_CLASS: Final = PickledName(rebuild.MODULE, "make_class")
_ATTRIBUTE: Final = PickledName("builtins", "getattr")
_PARTIAL: Final = PickledName("functools", "partial")
_PARTS: Final = "modpack.hooks.graph_parts"
_COMM: Final = PickledName(rebuild.MODULE, "CommHook")
_SCRIPTS: Final = ("__main__", "__mp_main__")
_MARK: Final = "__modpack_script__"
"""The name in a definitions module that stores its original script."""
_BOUND: Final = " (bound)"


class HookDisagreement(NamedTuple):
    """A hook whose spec does not match the pickle.

    Attributes:
        hook: Name of the hook.
        reason: The difference, in one sentence.
        pickled: The callable that the pickle restores, or None if unknown.
    """

    hook: str
    reason: str
    pickled: CallableSpec | None = None


def find_disagreements(
    archive: Archive, record: str, specs: Sequence[HookSpec]
) -> Iterator[HookDisagreement]:
    """Yield the hooks of a saved object whose specs do not match its pickle.

    Missing records are ignored, because other checks report them.

    Args:
        archive: The package.
        record: The record of the object.
        specs: The hook specs of the object.
    """
    known = {spec.name: spec for spec in specs if spec.kind != PARAMETRIZATION}
    _, pickle_record = hook_records(record)
    if not (archive.has(record) and archive.has(pickle_record)):
        return
    try:
        hooks = list(_read_hooks(archive.read(record), archive.read(pickle_record)))
    except MalformedError as failure:
        reason = f"{pickle_record!r} cannot be read ({failure})"
        yield from (HookDisagreement(name, reason) for name in known or [pickle_record])
        return
    sources = _Sources(archive)
    for name in known.keys() - {name for name, _, _ in hooks}:
        yield HookDisagreement(name, "the pickle does not contain this hook")
    for name, kind, hook in hooks:
        difference, pickled = _compare(hook, kind, known.get(name), sources)
        if difference is not None:
            yield HookDisagreement(name, difference, pickled)


def _compare(
    hook: Any, kind: str, spec: HookSpec | None, sources: _Sources
) -> tuple[str | None, CallableSpec | None]:
    """Return how a spec differs from a pickled hook, if it does, and the hook's callable."""
    try:
        found = _HookDescription(hook, sources)
        if spec is None:
            return "the hook has no spec", found.callable
        if not (spec.kind.startswith("graph.") if _is_part(hook) else spec.kind == kind):
            return f"its spec has the kind {spec.kind!r}, the pickle {kind!r}", found.callable
        return found.compare_with(spec), found.callable
    except (TypeError, ValueError, IndexError, AttributeError, RecursionError):
        return "the pickle stores the hook in an unknown form", None


def _read_hooks(data: bytes, appended: bytes) -> Iterator[tuple[str, str, Any]]:
    """Yield the name, kind, and callable of each hook.

    Raises:
        MalformedError: If the hooks are not stored in modpack's form.
    """
    tree = PickleTree()
    tree.read_one(data)
    for payload in tree.read_all(appended):
        listed = payload.get("hooks") if isinstance(payload, Pairs) else None
        if listed is None and isinstance(payload, Pairs):
            continue  # additional objects of the same save
        if not isinstance(listed, list):
            raise MalformedError("the list of hooks is missing")
        for each in listed:
            if type(each) is not tuple or len(each) != 6 or type(each[0]) is not str:
                raise MalformedError("a hook has an unknown form")
            yield each[0], str(each[1]), each[5]


class _Sources:
    """The sources of modules in a package."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._read: dict[str, str] = {}

    def read(self, module: str) -> str:
        """Return the source of a module, or an empty string if the package has none."""
        if module not in self._read:
            names = [module_record(module, is_package) for is_package in (True, False)]
            found = [self._archive.read(name) for name in names if self._archive.has(name)]
            self._read[module] = found[0].decode("utf-8", "replace") if found else ""
        return self._read[module]

    def is_script(self, module: str) -> bool:
        """Return whether a module contains a script's definitions, which have another name."""
        return _MARK in self.read(module)

    def is_class(self, name: str) -> bool:
        """Return whether a module that was read defines a class at its top level."""
        return self._search(rf"^class {re.escape(name)}\b")

    def is_decorated(self, name: str) -> bool:
        """Return whether a module that was read decorates a function, and may thus wrap it."""
        definition = rf"(?:async )?def {re.escape(name)}\b"
        return self._search(rf"^[ \t]*@.*\n(?:[ \t]*[@)].*\n)*[ \t]*{definition}")

    def _search(self, pattern: str) -> bool:
        return any(re.search(pattern, each, re.MULTILINE) for each in self._read.values())

    def contains(self, text: str) -> bool:
        """Return whether a module that was read contains a text, at any indentation."""
        return any(
            textwrap.indent(text, " " * width) in source or text in source
            for source in self._read.values()
            for width in range(0, 24, 2)
        )


class _Callable(NamedTuple):
    """One callable of a hook.

    Attributes:
        way: How it is stored, in the words of specs. Empty if the pickle does not determine it.
        names: Names that a spec may show, in which ``*`` is a wildcard.
        texts: Its sources in the pickle.
        is_in_module: Whether a packaged module may contain its source instead.
        node: Its node in the pickle. A spec may show functions in it as well.
        short_name: Name of the function in its module, if any.
    """

    way: Way | Literal[""]
    names: tuple[str, ...]
    texts: tuple[str, ...] = ()
    is_in_module: bool = False
    node: Any = None
    short_name: str = ""


class _HookDescription:
    """The description of one hook in a pickle."""

    def __init__(self, hook: Any, sources: _Sources) -> None:
        self._sources = sources
        self._callables = {k: self._describe(each) for k, each in _find_callables(hook).items()}
        ways = {each.way for each in self._callables.values()}
        self._way = ways.pop() if len(ways) == 1 else "object"
        self._hook = hook

    @property
    def callable(self) -> CallableSpec:
        """The callable, in the form of a spec."""
        callables = list(self._callables.values())
        if not callables:
            return CallableSpec("object", str(getattr(self._hook, "function", self._hook)))
        texts = [textwrap.dedent(text) for each in callables for text in each.texts]
        names = ", ".join(each.names[0].lstrip("*.").replace("*.", "") for each in callables)
        return CallableSpec(self._way or "object", names, "\n\n".join(texts) or None)

    def compare_with(self, spec: HookSpec) -> str | None:
        """Return how the spec differs, in one sentence, or None if it does not."""
        shown = spec.callable
        callables = list(self._callables.values())
        if not callables:
            return None if shown.source is None else "the pickle has no source for the hook"
        if self._way and shown.by != self._way:
            return f"its spec says {shown.by!r}, but the pickle restores the hook differently"
        names = shown.name.split(", ") if len(callables) > 1 else [shown.name]
        if len(names) != len(callables) or not all(map(_is_named, names, callables)):
            return f"its spec shows {shown.name!r:.200}, but the pickle restores another callable"
        if not self._accounts_for_all(shown.source or ""):
            return "the source in its spec differs from the pickle"
        return None

    def _accounts_for_all(self, source: str) -> bool:
        """Return whether a source consists of the texts of all callables."""
        if len(self._callables) == 1:
            return all(self._accounts_for(each, source) for each in self._callables.values())
        sections = dict.fromkeys(self._callables, "")
        pieces = re.split(rf"(?:^|\n\n)# ({'|'.join(sections)})\n", source)
        if pieces[0]:
            return False
        sections.update(zip(pieces[1::2], pieces[2::2], strict=True))
        return all(
            self._accounts_for(each, sections[label]) for label, each in self._callables.items()
        )

    def _accounts_for(self, described: _Callable, source: str) -> bool:
        """Return whether a source consists of the texts of one callable."""
        for text in described.texts:
            forms = (textwrap.dedent(text), text)
            fitting = [f for f in forms if source == f or source.startswith(f + "\n\n")]
            if not fitting:
                return False
            source = source[len(fitting[0]) :].removeprefix("\n\n")
        if described.is_in_module and source:
            return self._is_found_elsewhere(source, described)
        return not source and (bool(described.texts) or described.way != "source")

    def _is_found_elsewhere(self, source: str, described: _Callable) -> bool:
        """Return whether packaged modules or the pickle contain all parts of a source."""
        name = described.short_name
        parts, is_own_shown = source.split("\n\n"), False
        is_open = bool(name) and self._sources.is_decorated(name)
        others = _all_texts(described.node)
        while parts:  # functions may contain empty lines, so the longest matching part counts
            joined = ("\n\n".join(parts[:size]) for size in range(len(parts), 0, -1))
            found = next((t for t in joined if t in others or self._sources.contains(t)), None)
            if found is None and not is_open:
                return False
            is_own_shown |= f"def {name}(" in (found or "")
            parts = parts[(found or "").count("\n\n") + 1 :]
        is_from_source = is_open or described.way == "source"
        return is_own_shown or bool(described.texts) or not is_from_source

    def _describe(self, node: Any) -> _Callable:
        if isinstance(node, PickledName):
            return self._named(node.module, node.name)
        if not isinstance(node, CallResult):
            return _Callable("object", _names_like(node), (), True, node)
        if node.function == _DEFINED:
            module = getattr(node.arguments[0], "identity", ("", ""))
            return self._named(str(module[-1]), str(node.arguments[1]))
        if node.function == _FUNCTION:
            _, qualname, module = node.arguments[1]
            names = tuple(f"{each}.{qualname}" for each in (module, *_modules_of(node)))
            texts = _texts(node)
            if module not in _SCRIPTS and not self._sources.is_script(module):
                return _Callable("source", names, texts)
            for each in (module, *_defining_modules(node.arguments[2])):
                self._sources.read(each)
            return _Callable("source", (f"*.{qualname}", *names), texts, True, node)
        if node.function == _PARTIAL:
            inner = self._describe(_state_of_partial(node)[0])
            names = tuple(f"partial of {name}" for name in inner.names)
            texts = _texts(node)
            return inner._replace(way="object", names=names, texts=texts)
        if node.function == _METHOD:
            inner = self._describe(node.arguments[0])
            names = tuple(name + _BOUND for name in inner.names)
            return inner._replace(way="object", names=names)
        if node.function == _ATTRIBUTE and len(node.arguments) == 2:
            return self._attribute(node, *node.arguments)
        return self._instance(node)

    def _attribute(self, node: CallResult, owner: Any, name: Any) -> _Callable:
        """Describe a method of an object, or a function in a class."""
        kind = owner if isinstance(owner, PickledName) else _class_of(owner)
        self._sources.read(kind.module)
        plain = re.sub(r"^_[^_]\w*?(?=__)", "", str(name))  # the name before mangling
        names = (f"*.{name}{_BOUND}", f"*.{plain}{_BOUND}", f"*>.*{_BOUND}")
        is_of_class = isinstance(owner, PickledName)
        return _Callable(
            "" if is_of_class else "object",
            (*names, f"*.{name}") if is_of_class else names,
            (),
            True,
            node,
            plain,
        )

    def _named(self, module: str, name: str) -> _Callable:
        if self._sources.is_script(module):
            first, _, last = name.rpartition(".")
            if not first and self._sources.is_class(name):
                return _Callable("reference", (f"*.{name}",))
            return _Callable("source", (f"*.{name}",), (), True, None, last)
        return _Callable("reference", (f"{module}.{name}", f"None.{name}"))

    def _instance(self, node: CallResult) -> _Callable:
        kind = _class_of(node)
        texts = _texts(node.get("__wrapped__"))
        if self._sources.is_script(kind.module):
            return _Callable("object", (f"instance of *.{kind.name}",), texts, True)
        if node.is_instance and isinstance(node.function, CallResult):  # of a generated class
            names = tuple(f"instance of *.{each}" for each in _words(node.function.arguments))
            return _Callable("object", names, texts, True, node)
        if node.is_instance:
            return _Callable("object", (f"instance of {kind}",), texts, False)
        names = (f"instance of {kind}", *_names_like(node))
        is_class = node.function == _CLASS
        return _Callable("reference" if is_class else "object", names, (), True, node)


def _find_callables(hook: Any) -> Mapping[str, Any]:
    """Return the user's callables of a hook, by parameter name."""
    if not isinstance(hook, CallResult) or not isinstance(hook.function, PickledName):
        return {"hook": hook}
    if _is_part(hook):
        attachment = hook.get("attachment")
        spec = attachment.get("spec") if isinstance(attachment, CallResult) else None
        state = spec.states[-1] if isinstance(spec, CallResult) and spec.states else None
        items = state.items if isinstance(state, Pairs) else []
        return {name: value for name, value in items if name in ("hook", "pack", "unpack")}
    if hook.function == _COMM:
        function = hook.get("function")
        return {"hook": function} if isinstance(function, (PickledName, CallResult)) else {}
    return {"hook": hook}


def _texts(node: Any) -> tuple[str, ...]:
    """Return the sources of a callable's functions, in the order of specs."""
    found: dict[str, None] = {}
    todo, seen = [node], set()
    while todo:
        part = todo.pop(0)
        if not isinstance(part, CallResult) or id(part) in seen:
            continue
        seen.add(id(part))
        if part.function == _PARTIAL:
            function, arguments, by_name, *_ = _state_of_partial(part)
            todo.extend((function, *arguments, *_values(by_name)))
        elif part.function == _METHOD:
            todo.append(part.arguments[0])
        elif part.function == _FUNCTION:
            found[part.arguments[0][0]] = None
            if part.states or any(function != _FILL for function, _ in part.calls):
                found["# The pickle modifies this function after creating it."] = None
            todo.extend(_values(_fill_state(part).get("cells")))
            todo.append(_wrapped(part))
            if part.arguments[1][2] in _SCRIPTS:
                todo.extend(_values(_fill_state(part).get("globals")))
        else:
            todo.append(part.get("__wrapped__"))
    return tuple(found)


def _all_texts(node: Any) -> frozenset[str]:
    """Return the sources of all functions in a node, also in the form that specs show."""
    functions = [
        each for each in _walk(node) if isinstance(each, CallResult) and each.function == _FUNCTION
    ]
    texts = [each.arguments[0][0] for each in functions]
    return frozenset((*texts, *map(textwrap.dedent, texts)))


def _names_like(node: Any) -> tuple[str, ...]:
    """Return patterns for the names of an object of which the pickle contains only a reduction."""
    found: dict[str, None] = {}
    for each in _walk(node):
        if isinstance(each, PickledName):
            root = each.module.partition(".")[0]
            names = (f"*.{each.name}", f"instance of *.{each.name}")
            own = () if root in ("modpack", "builtins") else (f"{root}.*", f"instance of {root}.*")
            found.update(dict.fromkeys((*names, *own)))
        elif type(each) is str and each.strip():
            found.update({f"*.{each}": None, f"*::{each}": None})
        elif isinstance(each, Persistent):
            found["instance of torch.jit.*"] = None
    return tuple(found)


def _walk(node: Any) -> Iterator[Any]:
    """Yield a node and all nodes in it, each once."""
    todo, seen = [node], set()
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, CallResult):
            todo += [part.function, part.arguments, *part.states, part.added, part.pairs]
            todo += [value for _, value in part.calls]
        elif isinstance(part, Pairs):
            todo += [value for _, value in part.items]
        elif isinstance(part, (list, tuple)):
            todo += part
        elif isinstance(part, Persistent):
            todo.append(part.identity)


def _defining_modules(node: Any) -> Iterator[str]:
    """Yield the module to which a function's globals belong."""
    if isinstance(node, Persistent) and type(node.identity) is tuple and len(node.identity) == 2:
        yield str(node.identity[1])
    elif isinstance(node, CallResult) and type(node.arguments) is tuple and node.arguments:
        yield from _defining_modules(node.arguments[0])


def _words(arguments: Any) -> Iterator[str]:
    """Yield the strings in arguments, which may be names."""
    if type(arguments) is str:
        yield arguments
    elif type(arguments) in (tuple, list):
        for each in arguments:
            yield from _words(each)


def _modules_of(function: CallResult) -> Iterator[str]:
    """Yield the module of a wrapped function, which a spec may show for its wrapper."""
    wrapped = _wrapped(function)
    if isinstance(wrapped, CallResult) and wrapped.function == _FUNCTION:
        yield wrapped.arguments[1][2]
    elif isinstance(wrapped, PickledName):
        yield wrapped.module


def _wrapped(function: CallResult) -> Any:
    attributes = _fill_state(function).get("attributes")
    return attributes.get("__wrapped__") if attributes else None


def _fill_state(function: CallResult) -> Pairs:
    """Return the state that the pickle sets on a function after creating it."""
    state = function.calls[-1][1] if function.calls else None
    return state if isinstance(state, Pairs) else Pairs()


def _values(pairs: Any) -> list[Any]:
    return [value for _, value in pairs.items] if isinstance(pairs, Pairs) else []


def _state_of_partial(node: CallResult) -> tuple[Any, ...]:
    """Return the function, arguments, and keyword arguments of a partial."""
    state = node.states[-1] if node.states else None
    if type(state) is tuple and len(state) == 4:
        return state
    return (node.arguments[0], node.arguments[1:], None)


def _class_of(node: Any) -> PickledName:
    """Return the class of an object, as far as its reduction shows."""
    if isinstance(node, CallResult):
        first = node.arguments[0] if type(node.arguments) is tuple and node.arguments else None
        is_maker = isinstance(node.function, PickledName) and node.function.module == "copyreg"
        for each in (first, node.function) if is_maker else (node.function, first):
            if isinstance(each, PickledName):
                return each
    return PickledName("", "")


def _is_named(name: str, described: _Callable) -> bool:
    return any(_matches(name, pattern) for pattern in described.names)


def _is_part(hook: Any) -> bool:
    function = hook.function if isinstance(hook, CallResult) else None
    if not isinstance(function, PickledName) or function.module != rebuild.MODULE:
        return False
    return rebuild.DEFINED_IN.get(function.name) == _PARTS


def _matches(name: str, pattern: str) -> bool:
    if "*" in pattern:
        return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    # In a re-exported package, the modules were in a private namespace.
    return name == pattern or pattern.endswith(f".{name}")
