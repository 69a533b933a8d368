"""Descriptions of saved objects, to compare a live object with the one that its package loads.

The exporting process describes each object when it is saved; the clean interpreter describes what
it loaded. A description consists of rows: submodules, tensors, hooks, and attributes by path. No
code of the object's classes runs: attributes come from ``__dict__`` and slots, and values whose
class defines how they are pickled are described by their type alone.
"""

from __future__ import annotations

import copyreg
import ctypes
import enum
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.nn.parameter import is_lazy

from modpack.capturing.collect import is_inactive
from modpack.capturing.describe import ObjectPaths, callable_name
from modpack.core.names import dotted, strip_namespaces
from modpack.core.text import dtype_name
from modpack.environment.finder import is_a
from modpack.environment.importers import local_path, module_dict
from modpack.examples.outputs import TEXTUAL, attributes_of, is_wrapper, view_buffer
from modpack.hooks.ddp import belongs_to_wrapper
from modpack.hooks.kinds import KINDS, is_native, kinds_of, multi_grad_part
from modpack.pickling.scripts import SCRIPT_MARK
from modpack.saving.base import ReducerRow
from modpack.saving.reducers import ROWS
from modpack.saving.tensors import COMPILE_MARK
from modpack.selftest.object_rows import ANYTHING, MAX_ATTRIBUTES, SAME, Row, RowKind

_SCRIPT: Final = "__main__"
"""Stands for the module of a script's definitions, which has another name in the package."""
MAX_ENTRIES: Final = 1000
"""Longer containers are compared up to this entry, and by their length."""
_MAX_TEXT: Final = 60
_WINDOW: Final = 4096
"""Bytes at the start, middle, and end of a tensor that are compared. They show whether loading
changed it. The others need not be read: a large model would be read twice more for each save, and
the digests of records cover them."""
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_NAMED: Final = (type, FunctionType, BuiltinFunctionType, MethodType)
_HOOK_TABLES: Final = frozenset(
    table
    for kind in KINDS.values()
    if kind.scope in ("module", "optimizer")
    for table in kind.tables
).union(["_is_full_backward_hook"])  # the flag stays set after the last hook was removed
_REDUCTIONS: Final = ("__reduce__", "__reduce_ex__", "__reduce_package__")
_STATE_METHODS: Final = ("__getstate__", "__setstate__")
_PARTS: Final = ("_parameters", "_buffers", "_modules")


class DescriptionOptions(NamedTuple):
    """The parts of a live object that are saved in another form.

    Attributes:
        scripts: Modules whose definitions are packaged as those of a script.
        is_left_out: Returns by name whether a hook is not saved.
    """

    scripts: frozenset[str] = frozenset()
    is_left_out: Callable[[str], bool] = lambda name: False


def describe_object(
    root: object,
    extras: Mapping[str, object],
    options: DescriptionOptions | None = None,
) -> tuple[Row, ...]:
    """Describe a saved or loaded object.

    Args:
        root: The object.
        extras: Objects that are saved with it, by name.
        options: What was saved in another form than it is live. None for a loaded object.
    """
    describer = Describer(options or DescriptionOptions())
    # Tensor subclasses may reject these operations.
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        for name, each in (("model", root), *extras.items()):
            describer.describe(each, name)
    return tuple(describer.rows)


class Describer:
    """Describes objects that may share parts; each part is described once."""

    def __init__(self, options: DescriptionOptions) -> None:
        self.rows: list[Row] = []
        self._options = options
        self._seen: dict[int, tuple[str, object]] = {}
        self._storages: dict[int, str] = {}
        self._groups: dict[int, str] = {}
        self._attributes = 0
        scripts = {
            local_path(name)
            for name, module in list(sys.modules.items())
            if SCRIPT_MARK in module_dict(module)
        }.union(options.scripts)
        names = "|".join(map(re.escape, sorted(scripts)))
        self._scripts = re.compile(rf"(?<![\w.])(?:{names})\.") if scripts else None

    def describe(self, root: object, name: str) -> None:
        """Add the rows of an object. Its parts are visited in the order of their containers."""
        # A stack of our own: a chain of parts may be longer than Python's recursion limit.
        todo = [(root, name)]
        while todo:
            value, path = todo.pop()
            parts = self._describe(value, path)
            todo.extend(reversed([(part, step) for step, part in parts]))

    def _describe(self, value: object, path: str) -> Sequence[tuple[str, object]]:
        """Add the rows of one value and return its parts with their paths."""
        kind = type(value)
        # Before `_is_known`: whether equal plain values are one object differs between processes.
        if kind in PLAIN or kind in TEXTUAL:
            return self._add(path, shortened(strip_namespaces(f"{kind.__name__} {value!r}")))
        if is_a(value, enum.Enum):
            return self._add_typed(path, kind, str(object.__getattribute__(value, "_name_")))
        if is_a(value, _NAMED):
            return self._add_callable(path, value)
        if is_a(value, ModuleType):
            return self._add(path, f"module {getattr(value, '__name__', '?')}")
        if self._is_known(value, path):
            return ()
        if is_a(value, torch.Tensor):
            return self._describe_tensor(value, path)
        if is_a(value, torch.nn.Module):
            return self._describe_module(value, path)
        return self._describe_other(value, path)

    def _is_known(self, value: object, path: str) -> bool:
        """Return whether an object is described elsewhere, and add a row if it is."""
        if is_a(value, (tuple, frozenset)):  # equal ones may be the same object by chance
            return False
        if id(value) in self._seen:
            self._add(path, f"{SAME}{self._seen[id(value)][0]}")
            return True
        self._seen[id(value)] = path, value  # kept alive: another object could get its id
        return False

    def _describe_module(self, module: Any, path: str) -> Sequence[tuple[str, object]]:
        is_script = isinstance(module, torch.jit.ScriptModule)  # its classes differ after loading
        self._add_typed(path, torch.jit.ScriptModule if is_script else type(module), row="module")
        self._add_hooks(module, path, "module")
        if is_script:
            return [(dotted(path, n), part) for n, part in module.state_dict().items()]
        state = attributes_of(module)
        tables: list[Any] = [state.get(name) or {} for name in _PARTS]
        held = [part for table in tables for part in table.items()]
        parts = [(dotted(path, name), part) for name, part in held]
        # Otherwise, the class decides which attributes a loaded module has.
        if not _decides(type(module), (*_STATE_METHODS, *_REDUCTIONS)):
            skipped = _HOOK_TABLES.union(_PARTS)
            own = ((n, part) for n, part in state.items() if n not in skipped)
            parts += [(dotted(path, name), part) for name, part in own]
        return parts

    def _describe_tensor(self, tensor: torch.Tensor, path: str) -> Sequence[tuple[str, object]]:
        facts = [dtype_name(tensor.dtype)]
        if not tensor.is_nested and not is_lazy(tensor):
            facts.append(str(list(tensor.shape)))
            if tensor.layout is torch.strided:
                facts.append(f"strides {list(tensor.stride())} from {tensor.storage_offset()}")
        facts += ["requires_grad"] if tensor.requires_grad else []
        facts += [str(tensor.layout)] if tensor.layout is not torch.strided else []
        facts += [self._storage_of(tensor, path)]
        self._add_typed(path, type(tensor), " ".join(filter(None, facts)), "tensor")
        if tensor.is_leaf:
            self._add_hooks(tensor, path, "tensor")
            self._add_hooks(tensor, path, "accumulator")
        state: dict[str, object] = getattr(tensor, "__dict__", None) or {}
        attributes = ((name, part) for name, part in state.items() if name != COMPILE_MARK[0])
        if is_wrapper(tensor):  # only the tensors in its attributes have a meaning
            attributes = ((n, part) for n, part in attributes if is_a(part, torch.Tensor))
        return [(dotted(path, name), part) for name, part in attributes]

    def _storage_of(self, tensor: torch.Tensor, path: str) -> str:
        """Return which storage a tensor shares, or a checksum of some of its bytes."""
        is_dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
        if not is_dense or is_wrapper(tensor) or is_lazy(tensor) or is_fake(tensor):
            return ""
        storage = tensor.untyped_storage()
        # Not id(): two tensors with one storage may have a Python object each for it.
        first = self._storages.setdefault(storage._cdata, path)
        if first != path:
            return f"shares memory with {first}"
        has_data = storage.nbytes() and storage.device.type != "meta"
        return f"data {_checksum(storage):08x}" if has_data else ""

    def _describe_other(self, value: object, path: str) -> Sequence[tuple[str, object]]:
        kind = type(value)
        if is_a(value, torch.optim.Optimizer):
            self._add_typed(path, kind)
            self._add_hooks(value, path, "optimizer")
            return list(_optimizer_parts(attributes_of(value), path))
        if kind in copyreg.dispatch_table or _decides(kind, _REDUCTIONS):
            # Its class decides what is loaded in its place, so that no difference is a mistake.
            return self._add(path, ANYTHING)
        row = ROWS.find(kind)
        if isinstance(row, ReducerRow) and row.reduce is not None:  # modpack re-creates it
            return self._add_typed(path, kind)
        contents = contents_of(value)
        self._add_typed(path, kind, "" if contents is None else f"of {contents[0]}")
        listed = [] if contents is None else [(f"{path}{step}", part) for step, part in contents[1]]
        if is_a(value, partial) or _decides(kind, _STATE_METHODS):
            return listed
        return [*listed, *((dotted(path, n), part) for n, part in attributes_of(value).items())]

    def _add_hooks(self, target: Any, path: str, scope: str) -> None:
        inside = path.removeprefix("model").removeprefix(".")  # names of hooks lack the root's name
        for kind in kinds_of(scope):
            if scope != "accumulator" and not getattr(target, kind.tables[0], None):
                continue  # fast path: most targets have no hooks of this kind
            # Names of hooks count those that are left out, too. Paths of rows do not, because the
            # loaded object lacks these hooks.
            position = number = 0
            for found in kind.find(target):
                hook = found.hook
                if is_native(hook) or is_inactive(hook) or belongs_to_wrapper(hook):
                    continue
                name = ObjectPaths.hook_name((inside,), kind.name, position)
                position += 1
                if not self._options.is_left_out(name):
                    flags = "".join(f", {flag}={value}" for flag, value in found.flags.items())
                    self._add_callable(f"{path}/{kind.name}/{number}", hook, flags, "hook")
                    number += 1
        if scope == "tensor":
            for number, part in enumerate(_group_parts(target)):
                first = self._groups.setdefault(part.key, path)
                name = f"{path}/multi_grad/{number}"
                self._add_callable(name, part.function, f", {part.mode} from {first}", "hook")

    def _add_callable(
        self, path: str, called: Any, text: str = "", kind: RowKind = "attribute"
    ) -> tuple[()]:
        module = str(getattr(called, "__module__", None))
        name = self._own_names(callable_name(called))
        if not is_a(called, (FunctionType, MethodType, type)) and hasattr(called, "__qualname__"):
            name = str(called.__qualname__)  # the modules of torch's built-in functions vary
        return self._add(path, f"{name}{text}", module, kind)

    def _add_typed(
        self, path: str, kind: type, text: str = "", row: RowKind = "attribute"
    ) -> tuple[()]:
        module = str(type.__getattribute__(kind, "__module__"))
        name = self._own_names(f"{module}.{kind.__qualname__}")
        return self._add(path, f"{name} {text}".rstrip(), module, row)

    def _add(
        self, path: str, text: str, module: str = "", kind: RowKind = "attribute"
    ) -> tuple[()]:
        """Add a row, and return the parts of a value without any."""
        # Differences in other rows are errors, so these are never cut.
        self._attributes += kind == "attribute"
        if kind != "attribute" or self._attributes <= MAX_ATTRIBUTES:
            self.rows.append(Row(path, kind, strip_namespaces(text), strip_namespaces(module)))
        return ()

    def _own_names(self, name: str) -> str:
        """Return a name in which the modules of scripts' definitions are ``__main__``."""
        name = strip_namespaces(name)
        return self._scripts.sub(f"{_SCRIPT}.", name) if self._scripts is not None else name


def shortened(text: str) -> str:
    """Return a text, or its start and a checksum."""
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}... (checksum {zlib.crc32(text.encode(errors='replace')):08x})"


def _decides(kind: type, methods: Sequence[str]) -> bool:
    """Return whether a class has one of several methods, written in Python, from itself."""
    base: type = torch.nn.Module if issubclass(kind, torch.nn.Module) else object
    found = ((getattr(kind, name, None), getattr(base, name, None)) for name in methods)
    return any(is_a(own, FunctionType) and own is not inherited for own, inherited in found)


def contents_of(value: Any) -> tuple[str, list[tuple[str, object]]] | None:
    """Return length and parts of a container, or None for other objects."""
    if is_a(value, partial):
        parts = (("func", value.func), ("args", value.args), ("keywords", value.keywords))
        return "a function", [(f".{name}", part) for name, part in parts]
    if is_a(value, (set, frozenset)):
        # Without an order, only plain members can be compared.
        plain = sorted(repr(each) for each in value if type(each) in PLAIN)
        return f"{len(value)} {shortened(', '.join(plain))}", []
    if is_a(value, (dict, MappingProxyType)):
        items = dict.items(value) if is_a(value, dict) else value.items()
        return f"{len(items)}", [
            (f"[{_key(key, position)}]", part)
            for position, (key, part) in enumerate(islice(items, MAX_ENTRIES))
        ]
    for base in (list, tuple, deque):
        if is_a(value, base):
            members = enumerate(islice(base.__iter__(value), MAX_ENTRIES))
            return f"{base.__len__(value)}", [(f"[{i}]", part) for i, part in members]
    view = view_buffer(value)
    if view is None:
        return None
    shape = "x".join(map(str, view.shape or ()))
    return f"{shape} {view.format} {zlib.crc32(view.tobytes()[: 3 * _WINDOW]):08x}", []


def _key(key: object, position: int) -> str:
    if type(key) in PLAIN:
        return shortened(repr(key))
    return f"{type(key).__name__} #{position}"


def _group_parts(tensor: torch.Tensor) -> Iterator[Any]:
    """Yield a tensor's parts of multi-grad hooks whose tensors are all leaves."""
    for hook in list((tensor._backward_hooks or {}).values()):
        part = multi_grad_part(hook)
        if part is not None and all(getattr(n, "variable", None) is not None for n in part.nodes):
            yield part


def _checksum(storage: torch.UntypedStorage) -> int:
    """Return a checksum of the bytes at the start, in the middle, and at the end of a storage."""
    size = storage.nbytes()
    starts = {0, max(0, size // 2 - _WINDOW), max(0, size - _WINDOW)}
    checksum = 0
    for start in sorted(starts):
        part = torch.empty(0, dtype=torch.uint8, device=storage.device)
        part = part.set_(storage, start, (min(_WINDOW, size - start),), (1,)).to("cpu")
        checksum = zlib.crc32(ctypes.string_at(part.data_ptr(), part.numel()), checksum)
    return checksum


def _optimizer_parts(state: Mapping[str, Any], path: str) -> Iterator[tuple[str, object]]:
    """Yield the parameters and tensors of an optimizer.

    When torch's optimizers are loaded, they add missing options and convert numbers to tensors.
    """
    groups = state.get("param_groups")
    for number, group in enumerate(groups if is_a(groups, list) else ()):
        if is_a(group, dict) and "params" in group:
            yield f"{path}.param_groups[{number}].params", group["params"]
    entries = state.get("state")
    for number, (key, entry) in enumerate(entries.items() if is_a(entries, dict) else ()):
        for name, part in entry.items() if is_a(entry, dict) else ():
            if is_a(part, torch.Tensor) and part.dim():
                yield f"{path}.state[{_key(key, number)}][{name!r}]", part
