"""The hooks that a package's pickles restore, beside those that its hook specs show.

Hook specs are text for people, and the pickle is what runs. This reads the pickle without
unpickling it, and describes each hook by its own content: whether a function is imported under
its name or made from its source, and from which. Whoever edits the specs does not change that.
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
_FILLED: Final = PickledName(rebuild.MODULE, "fill_function")
_METHOD: Final = PickledName(rebuild.MODULE, "make_method")
_DEFINED: Final = PickledName(rebuild.MODULE, "defined")
_CLASS: Final = PickledName(rebuild.MODULE, "make_class")
_ATTRIBUTE: Final = PickledName("builtins", "getattr")
_PARTIAL: Final = PickledName("functools", "partial")
_PARTS: Final = "modpack.hooks.graph_parts"
_COMM: Final = PickledName(rebuild.MODULE, "CommHook")
_SCRIPTS: Final = ("__main__", "__mp_main__")
_MARK: Final = "__modpack_script__"
"""By this, a module of definitions says which script they are from."""
_BOUND: Final = " (bound)"


class HookDisagreement(NamedTuple):
    """A hook whose spec does not show what the pickle restores.

    Attributes:
        hook: The name of the hook.
        reason: What differs, in one sentence.
        pickled: What the pickle restores; None if that cannot be told.
    """

    hook: str
    reason: str
    pickled: CallableSpec | None = None


def find_disagreements(
    archive: Archive, record: str, specs: Sequence[HookSpec]
) -> Iterator[HookDisagreement]:
    """Return the hooks of a saved object whose specs do not show what its pickle restores.

    Nothing where a record is missing: whoever checks that records are there reports it.

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
        hooks = list(_pickled_hooks(archive.read(record), archive.read(pickle_record)))
    except MalformedError as failure:
        reason = f"{pickle_record!r} cannot be read ({failure})"
        yield from (HookDisagreement(name, reason) for name in known or [pickle_record])
        return
    sources = _Sources(archive)
    for name in known.keys() - {name for name, _, _ in hooks}:
        yield HookDisagreement(name, "the pickle has no such hook")
    for name, kind, hook in hooks:
        differs, pickled = _compared(hook, kind, known.get(name), sources)
        if differs is not None:
            yield HookDisagreement(name, differs, pickled)


def _compared(
    hook: Any, kind: str, spec: HookSpec | None, sources: _Sources
) -> tuple[str | None, CallableSpec | None]:
    """How a spec differs from a hook in the pickle, if it does, and what the hook is."""
    try:
        found = _Described(hook, sources)
        if spec is None:
            return "the hook specs do not show it", found.callable
        if not (spec.kind.startswith("graph.") if _is_part(hook) else spec.kind == kind):
            return f"its spec says {spec.kind!r}, and the pickle {kind!r}", found.callable
        return found.differs_from(spec), found.callable
    except (TypeError, ValueError, IndexError, AttributeError, RecursionError):
        return "the pickle does not store it as modpack does", None


def _pickled_hooks(data: bytes, appended: bytes) -> Iterator[tuple[str, str, Any]]:
    """The name, the kind and the callable of each hook.

    Raises:
        MalformedError: If they are not stored as modpack stores them.
    """
    tree = PickleTree()
    tree.read_one(data)
    for payload in tree.read_all(appended):
        listed = payload.get("hooks") if isinstance(payload, Pairs) else None
        if listed is None and isinstance(payload, Pairs):
            continue  # what was saved along with the object
        if not isinstance(listed, list):
            raise MalformedError("there is no list of hooks where it should be")
        for each in listed:
            if type(each) is not tuple or len(each) != 6 or type(each[0]) is not str:
                raise MalformedError("a hook is not stored as modpack stores it")
            yield each[0], str(each[1]), each[5]


class _Sources:
    """The sources of modules in a package."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._read: dict[str, str] = {}

    def of(self, module: str) -> str:
        """The source of a module; empty if the package has none."""
        if module not in self._read:
            names = [module_record(module, is_package) for is_package in (True, False)]
            found = [self._archive.read(name) for name in names if self._archive.has(name)]
            self._read[module] = found[0].decode("utf-8", "replace") if found else ""
        return self._read[module]

    def is_script(self, module: str) -> bool:
        """Whether a module contains definitions of a script, which run under another name."""
        return _MARK in self.of(module)

    def is_class(self, name: str) -> bool:
        """Whether a module that was read defines a class at its top level."""
        return self._have(rf"^class {re.escape(name)}\b")

    def is_decorated(self, name: str) -> bool:
        """Whether a module that was read decorates a function: its wrapper may be elsewhere."""
        definition = rf"(?:async )?def {re.escape(name)}\b"
        return self._have(rf"^[ \t]*@.*\n(?:[ \t]*[@)].*\n)*[ \t]*{definition}")

    def _have(self, pattern: str) -> bool:
        return any(re.search(pattern, each, re.MULTILINE) for each in self._read.values())

    def has(self, text: str) -> bool:
        """Whether a module that was read contains a text, at any indentation."""
        return any(
            textwrap.indent(text, " " * width) in source or text in source
            for source in self._read.values()
            for width in range(0, 24, 2)
        )


class _One(NamedTuple):
    """One callable behind a hook.

    Attributes:
        way: How it travels, as specs say it; empty if the pickle does not tell.
        names: The names that a spec may show; one that begins or ends with ``*`` is open there.
        texts: The sources that the pickle contains for it.
        is_in_module: Whether a packaged module may contain its source instead.
        below: What it consists of: functions in there may be shown as well.
        short: The name of the function in that module, if there is one.
    """

    way: Way | Literal[""]
    names: tuple[str, ...]
    texts: tuple[str, ...] = ()
    is_in_module: bool = False
    below: Any = None
    short: str = ""


class _Described:
    """What the pickle says of one hook."""

    def __init__(self, hook: Any, sources: _Sources) -> None:
        self._sources = sources
        self._ones = {label: self._one(each) for label, each in _functions(hook).items()}
        ways = {one.way for one in self._ones.values()}
        self._way = ways.pop() if len(ways) == 1 else "object"
        self._hook = hook

    @property
    def callable(self) -> CallableSpec:
        """What runs, in the form of a spec."""
        ones = list(self._ones.values())
        if not self._ones:
            return CallableSpec("object", str(getattr(self._hook, "function", self._hook)))
        texts = [textwrap.dedent(text) for one in ones for text in one.texts]
        names = ", ".join(one.names[0].lstrip("*.").replace("*.", "") for one in ones)
        return CallableSpec(self._way or "object", names, "\n\n".join(texts) or None)

    def differs_from(self, spec: HookSpec) -> str | None:
        """How the spec shows another callable, in one sentence; None if it does not."""
        called = spec.callable
        if not self._ones:
            return None if called.source is None else "the pickle has no source for it"
        ones = list(self._ones.values())
        if self._way and called.by != self._way:
            return f"its spec says {called.by!r}, and the pickle does not restore it like that"
        names = called.name.split(", ") if len(ones) > 1 else [called.name]
        if len(names) != len(ones) or not all(map(_is_named, names, ones)):
            return f"its spec shows {called.name!r:.200}, and the pickle restores another callable"
        if not self._shows_all(called.source or ""):
            return "its spec shows another source than the pickle contains"
        return None

    def _shows_all(self, source: str) -> bool:
        """Whether a source consists of the texts of the callables, and of all of them."""
        if len(self._ones) == 1:
            return all(self._shows(one, source) for one in self._ones.values())
        sections = dict.fromkeys(self._ones, "")
        pieces = re.split(rf"(?:^|\n\n)# ({'|'.join(sections)})\n", source)
        if pieces[0]:
            return False
        sections.update(zip(pieces[1::2], pieces[2::2], strict=True))
        return all(self._shows(one, sections[label]) for label, one in self._ones.items())

    def _shows(self, one: _One, source: str) -> bool:
        """Whether a source consists of the texts of one callable."""
        for text in one.texts:
            forms = (textwrap.dedent(text), text)
            fitting = [f for f in forms if source == f or source.startswith(f + "\n\n")]
            if not fitting:
                return False
            source = source[len(fitting[0]) :].removeprefix("\n\n")
        if one.is_in_module and source:
            return self._are_elsewhere(source, one)
        return not source and (bool(one.texts) or one.way != "source")

    def _are_elsewhere(self, source: str, one: _One) -> bool:
        """Whether packaged modules, or the pickle, contain the parts of a source."""
        parts, is_own_shown = source.split("\n\n"), False
        is_open = bool(one.short) and self._sources.is_decorated(one.short)
        others = _all_texts(one.below)
        while parts:  # a function may have empty lines: the longest part that fits counts
            joined = ("\n\n".join(parts[:size]) for size in range(len(parts), 0, -1))
            found = next((t for t in joined if t in others or self._sources.has(t)), None)
            if found is None and not is_open:
                return False
            is_own_shown |= f"def {one.short}(" in (found or "")
            parts = parts[(found or "").count("\n\n") + 1 :]
        return is_own_shown or bool(one.texts) or not (is_open or one.way == "source")

    def _one(self, node: Any) -> _One:
        if isinstance(node, PickledName):
            return self._named(node.module, node.name)
        if not isinstance(node, CallResult):
            return _One("object", _names_like(node), (), True, node)
        if node.function == _DEFINED:
            module = getattr(node.arguments[0], "identity", ("", ""))
            return self._named(str(module[-1]), str(node.arguments[1]))
        if node.function == _FUNCTION:
            _, qualname, module = node.arguments[1]
            names = tuple(f"{each}.{qualname}" for each in (module, *_modules_of(node)))
            texts = _texts(node)
            if module not in _SCRIPTS and not self._sources.is_script(module):
                return _One("source", names, texts)
            for home in (module, *_modules_below(node.arguments[2])):
                self._sources.of(home)
            return _One("source", (f"*.{qualname}", *names), texts, True, node)
        if node.function == _PARTIAL:
            inner = self._one(_state_of_partial(node)[0])
            names = tuple(f"partial of {name}" for name in inner.names)
            texts = _texts(node)
            return inner._replace(way="object", names=names, texts=texts)
        if node.function == _METHOD:
            inner = self._one(node.arguments[0])
            names = tuple(name + _BOUND for name in inner.names)
            return inner._replace(way="object", names=names)
        if node.function == _ATTRIBUTE and len(node.arguments) == 2:
            return self._attribute(node, *node.arguments)
        return self._instance(node)

    def _attribute(self, node: CallResult, owner: Any, name: Any) -> _One:
        """A method of an object, or a function in a class."""
        kind = owner if isinstance(owner, PickledName) else _class_of(owner)
        self._sources.of(kind.module)
        plain = re.sub(r"^_[^_]\w*?(?=__)", "", str(name))  # as its class spells a private one
        names = (f"*.{name}{_BOUND}", f"*.{plain}{_BOUND}", f"*>.*{_BOUND}")
        is_of_class = isinstance(owner, PickledName)
        return _One(
            "" if is_of_class else "object",
            (*names, f"*.{name}") if is_of_class else names,
            (),
            True,
            node,
            plain,
        )

    def _named(self, module: str, name: str) -> _One:
        if self._sources.is_script(module):
            first, _, last = name.rpartition(".")
            if not first and self._sources.is_class(name):
                return _One("reference", (f"*.{name}",))
            return _One("source", (f"*.{name}",), (), True, None, last)
        return _One("reference", (f"{module}.{name}", f"None.{name}"))

    def _instance(self, node: CallResult) -> _One:
        kind = _class_of(node)
        texts = _texts(node.get("__wrapped__"))
        if self._sources.is_script(kind.module):
            return _One("object", (f"instance of *.{kind.name}",), texts, True)
        if node.is_instance and isinstance(
            node.function, CallResult
        ):  # of a class that is made, too
            names = tuple(f"instance of *.{each}" for each in _words(node.function.arguments))
            return _One("object", names, texts, True, node)
        if node.is_instance:
            return _One("object", (f"instance of {kind}",), texts, False)
        names = (f"instance of {kind}", *_names_like(node))
        is_class = node.function == _CLASS
        return _One("reference" if is_class else "object", names, (), True, node)


def _functions(hook: Any) -> Mapping[str, Any]:
    """The user's callables behind a hook, by the argument that took them."""
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
    """The sources of the functions that a callable is made of, as descriptions list them."""
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
            if part.states or any(function != _FILLED for function, _ in part.calls):
                found["# The pickle changes this function after it has made it."] = None
            todo.extend(_values(_filling(part).get("cells")))
            todo.append(_wrapped(part))
            if part.arguments[1][2] in _SCRIPTS:
                todo.extend(_values(_filling(part).get("globals")))
        else:
            todo.append(part.get("__wrapped__"))
    return tuple(found)


def _all_texts(node: Any) -> frozenset[str]:
    """The sources of all functions that the pickle contains below a node, as specs show them."""
    made = [
        each for each in _below(node) if isinstance(each, CallResult) and each.function == _FUNCTION
    ]
    texts = [each.arguments[0][0] for each in made]
    return frozenset((*texts, *map(textwrap.dedent, texts)))


def _names_like(node: Any) -> tuple[str, ...]:
    """Patterns for the names of an object of which the pickle says only how it is made again."""
    found: dict[str, None] = {}
    for each in _below(node):
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


def _below(node: Any) -> Iterator[Any]:
    """A node and everything that it consists of, each once."""
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


def _modules_below(home: Any) -> Iterator[str]:
    """The modules that the home of a function refers to."""
    if isinstance(home, Persistent) and type(home.identity) is tuple and len(home.identity) == 2:
        yield str(home.identity[1])
    elif isinstance(home, CallResult) and type(home.arguments) is tuple and home.arguments:
        yield from _modules_below(home.arguments[0])


def _words(arguments: Any) -> Iterator[str]:
    """The texts among some arguments that may be names."""
    if type(arguments) is str:
        yield arguments
    elif type(arguments) in (tuple, list):
        for each in arguments:
            yield from _words(each)


def _modules_of(function: CallResult) -> Iterator[str]:
    """Other modules that a description may name for a function: that of its wrapped function."""
    inside = _wrapped(function)
    if isinstance(inside, CallResult) and inside.function == _FUNCTION:
        yield inside.arguments[1][2]
    elif isinstance(inside, PickledName):
        yield inside.module


def _wrapped(function: CallResult) -> Any:
    attributes = _filling(function).get("attributes")
    return attributes.get("__wrapped__") if attributes else None


def _filling(function: CallResult) -> Pairs:
    """What the pickle puts into a function after it has made it."""
    state = function.calls[-1][1] if function.calls else None
    return state if isinstance(state, Pairs) else Pairs()


def _values(pairs: Any) -> list[Any]:
    return [value for _, value in pairs.items] if isinstance(pairs, Pairs) else []


def _state_of_partial(node: CallResult) -> tuple[Any, ...]:
    """The function, the arguments and the arguments by name of a partial."""
    state = node.states[-1] if node.states else None
    if type(state) is tuple and len(state) == 4:
        return state
    return (node.arguments[0], node.arguments[1:], None)


def _class_of(node: Any) -> PickledName:
    """The class of an object, as far as its reduction tells."""
    if isinstance(node, CallResult):
        first = node.arguments[0] if type(node.arguments) is tuple and node.arguments else None
        is_maker = isinstance(node.function, PickledName) and node.function.module == "copyreg"
        for each in (first, node.function) if is_maker else (node.function, first):
            if isinstance(each, PickledName):
                return each
    return PickledName("", "")


def _is_named(name: str, one: _One) -> bool:
    return any(_matches(name, pattern) for pattern in one.names)


def _is_part(hook: Any) -> bool:
    function = hook.function if isinstance(hook, CallResult) else None
    if not isinstance(function, PickledName) or function.module != rebuild.MODULE:
        return False
    return rebuild.DEFINED_IN.get(function.name) == _PARTS


def _matches(name: str, pattern: str) -> bool:
    if "*" in pattern:
        return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    # a package that was loaded and saved again: its modules were in a private namespace
    return name == pattern or pattern.endswith(f".{name}")
