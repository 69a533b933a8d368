"""Unpickling of plain data: a pickle can create only what the allowlist names.

Python's unpickler calls whatever the pickle names. This one looks names up in a table, calls only
the names that the table allows, checks the arguments, and sets only the state of tensors and of
OrderedDicts. :mod:`.allowlist` is the table.
"""

from __future__ import annotations

import codecs
import datetime
import decimal
import functools
import importlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import torch

from modpack.errors import ModpackError, UnpicklingError
from modpack.pickling.allowlist import DATA
from modpack.pickling.pickle_machine import Actions, MalformedError, PickleMachine
from modpack.pickling.tensor_loading import (
    StorageLoader,
    UnsoundTensorError,
    call_checked,
    checked_functions,
    is_fake_mode,
)

_LARGEST_KEY: Final = 2**61 - 1
"""Larger integers can be chosen to collide, and a dict of them takes quadratic time."""
_MAX_SAME_HASH: Final = 1000
_MAX_CONTAINER_BYTES: Final = 192 << 20
"""Memory of all containers without their contents. An empty list takes one byte of a pickle (0.005
when deflated) and 72 bytes of memory, a deque 800 bytes."""
_GC_BYTES: Final = 16
_LIST_BYTES: Final = 32
_DICT_BYTES: Final = 160
"""Memory that a list or dict allocates for its first items."""
_ENTRY_BYTES: Final = 40
_CALL_BYTES: Final = 128
"""Charged for each call, because a call takes more time than other ways to use memory."""
_TENSOR_BYTES: Final = 1024
_DIMENSION_BYTES: Final = 32
_MAX_NESTING: Final = 100
_UNPROTECTED: Final = (deque, defaultdict, slice)
"""Types whose deallocation recurses in C. CPython limits the recursion for the other containers; a
chain of 200,000 of these overflows the stack when it is dropped."""
_QUANTIZED: Final = (torch.qint8, torch.qint32, torch.quint8, torch.quint4x2, torch.quint2x4)
"""Dtypes without conjugate and negative bits: torch crashes on tensors that have them."""
_DICTS: Final = (dict, OrderedDict, Counter, defaultdict)


class NotDataError(ModpackError, MalformedError):
    """A pickle requests something that is not plain data."""


def unpickle_data(
    data: bytes,
    *,
    resource: str,
    storages: StorageLoader,
    added: Collection[str] = (),
    import_module: Callable[[str], ModuleType] = importlib.import_module,
) -> Any:
    """Load a pickle that contains plain data only.

    Args:
        data: The pickle.
        resource: The pickle's name, for errors.
        storages: Loads the storages that persistent ids name.
        added: Full names that the pickle may use in addition to the allowlist. The pickle may call
            them with any arguments: adding ``functools.partial`` allows arbitrary code.
        import_module: Imports the modules of the added names.

    Raises:
        UnpicklingError: If the pickle is damaged, or contains more than plain data.
    """
    actions = _Data(storages, added, import_module)
    try:
        made, end = PickleMachine(actions, is_modern=True).run(data)
    except NotDataError as failure:
        raise UnpicklingError(resource, f"the pickle is not plain data: {failure}") from failure
    except MalformedError as failure:
        raise UnpicklingError(resource, f"the pickle is damaged ({failure})") from failure
    except UnsoundTensorError as failure:
        raise UnpicklingError(resource, failure.reason, hint=failure.hint) from failure
    # A reader that continues after the end would execute a pickle that nothing checked.
    if end != len(data):
        raise UnpicklingError(resource, f"{len(data) - end} bytes follow the end of the pickle")
    return made


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise NotDataError(message)


class _KeyChecker:
    """Checks dict keys and set members: plain values, few of which share a hash."""

    def __init__(self) -> None:
        self._tuple_hashes: Counter[int] = Counter()

    def require(self, key: Any) -> None:
        parts = key if type(key) is tuple else (key,)
        for part in parts:
            kind = type(part)
            if kind is int:
                _require(abs(part) < _LARGEST_KEY, "a key is an integer of more than 61 bits")
            else:
                is_plain = part is None or kind in (str, bytes, bool, float)
                _require(is_plain, f"a key has type {kind.__name__}")
        if type(key) is tuple:  # its integers can be chosen to give it any hash
            self._tuple_hashes[hash(key)] += 1
            is_rare = self._tuple_hashes[hash(key)] <= _MAX_SAME_HASH
            _require(is_rare, f"more than {_MAX_SAME_HASH} keys share a hash")

    def members(self, values: Any) -> Sequence[Any]:
        # A range is a few bytes in a pickle, and the set of its members may not fit into memory.
        _require(type(values) in (list, tuple, set, frozenset), "a set has invalid members")
        for each in values:
            self.require(each)
        return list(values)

    def set_of(self, values: Any = ()) -> set[Any]:
        return set(self.members(values))

    def frozenset_of(self, values: Any = ()) -> frozenset[Any]:
        return frozenset(self.members(values))


def _complex(real: Any, imaginary: Any) -> complex:
    _require(type(real) is float and type(imaginary) is float, "a complex number is invalid")
    return complex(real, imaginary)


def _bytearray(content: Any = b"") -> bytearray:
    # bytearray(n) would allocate n bytes.
    _require(type(content) is bytes, "a bytearray is not made of bytes")
    return bytearray(content)


def _encode(text: Any, encoding: Any) -> Any:
    # Python imports the module of any other encoding by the name that it is given.
    _require(type(text) is str and encoding == "latin1", "the arguments of encode are invalid")
    return text.encode("latin1")


def _of_integers(kind: Callable[..., Any], *numbers: Any) -> Any:
    is_valid = all(type(each) in (int, type(None)) for each in numbers)
    _require(is_valid, "an argument is not an integer")
    return kind(*numbers)


def _counter(counts: Any = None) -> Counter[Any]:
    made: Counter[Any] = Counter()
    if counts is not None:
        _require(type(counts) is dict, "a Counter is not made of a dict")
        dict.update(made, counts)
    return made


def _ordered(*nothing: Any) -> OrderedDict[Any, Any]:
    _require(not nothing, "an OrderedDict is created with arguments")
    return OrderedDict()


def _defaults(factory: Any = None) -> defaultdict[Any, Any]:
    plain = (None, bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
    is_plain = any(factory is each for each in plain)
    _require(is_plain, "the factory of a defaultdict is not a plain type")
    return defaultdict(factory)


def _deque(items: Any = (), longest: Any = None) -> deque[Any]:
    # Not a range: its length is not limited by the size of the pickle.
    _require(type(items) in (list, tuple), "a deque is not made of a list")
    _require(longest is None or type(longest) is int, "the maxlen of a deque is not an integer")
    return deque(items, longest)


def _moment(kind: Callable[..., Any], *parts: Any) -> Any:
    """Create a date or time from bytes and a time zone, or from numbers and a string."""
    plain = (bytes, str, int, datetime.timedelta, datetime.timezone)
    _require(all(type(each) in plain for each in parts), "a date or time is invalid")
    return kind(*parts)


def _decimal(text: Any) -> decimal.Decimal:
    _require(type(text) is str, "a Decimal is not made of a string")
    return decimal.Decimal(text)


def _layout(name: Any) -> Any:
    # vars, not getattr: torch's __getattr__ imports submodules.
    found = vars(torch).get(name.removeprefix("torch.")) if type(name) is str else None
    _require(isinstance(found, torch.layout), f"unknown layout {name!r:.80}")
    return found


def _integers(values: Any) -> tuple[int, ...]:
    is_plain = type(values) in (tuple, list, torch.Size)
    _require(is_plain and all(type(each) is int for each in values), "a shape is invalid")
    return tuple(values)


def _require_plain(hooks: Any = None, metadata: Any = None, state: Any = None) -> None:
    """Check that the hooks, flags, and state of a tensor are plain data."""
    # A hook is code, even if it is a function that pickles may call.
    _require(hooks is None or (type(hooks) is OrderedDict and not hooks), "a tensor has hooks")
    flags = {} if metadata is None else metadata
    _require(
        type(flags) is dict
        and all(type(key) is str and type(value) is bool for key, value in flags.items()),
        "the flags of a tensor are invalid",
    )
    _require(
        state is None or (type(state) is dict and all(type(each) is str for each in state)),
        "the state of a tensor is not a dict of names",
    )


def _require_view(storage: Any, offset: Any, shape: Any, strides: Any) -> None:
    is_storage = isinstance(storage, (torch.storage.TypedStorage, torch.UntypedStorage))
    _require(is_storage, "a tensor has no storage")
    _require(type(offset) is int, "the offset of a tensor is not an integer")
    _integers(shape), _integers(strides)


def _view(
    function: Callable[..., Any],
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    *more: Any,
) -> Any:
    _require_view(storage, offset, shape, strides)
    _require(type(requires_grad) is bool, "requires_grad of a tensor is not a bool")
    # _rebuild_tensor_v3 takes a dtype before the flags, and _rebuild_tensor_v2 does not.
    is_typed = bool(more) and isinstance(more[0], torch.dtype)
    _require(len(more) <= 1 + is_typed, "a tensor has too many arguments")
    _require_plain(hooks, *more[is_typed:])
    # A new dict of hooks: the pickle can still change the one that it passed.
    made = function(storage, offset, shape, strides, requires_grad, OrderedDict(), *more)
    has_flags = any(more[is_typed:])
    _require(not (has_flags and made.dtype in _QUANTIZED), "the flags of a tensor are invalid")
    return made


def _quantized(
    function: Callable[..., Any],
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    quantizer: Any,
    requires_grad: Any,
    hooks: Any,
) -> Any:
    _require_view(storage, offset, shape, strides)
    plain = (torch.qscheme, torch.Tensor, float, int)
    is_plain = type(quantizer) is tuple and all(type(each) in plain for each in quantizer)
    _require(is_plain and type(requires_grad) is bool, "a quantized tensor is invalid")
    _require_plain(hooks)
    own_hooks: OrderedDict[int, Any] = OrderedDict()
    return function(storage, offset, shape, strides, quantizer, requires_grad, own_hooks)


def _meta(
    function: Callable[..., Any], dtype: Any, shape: Any, strides: Any, requires_grad: Any
) -> Any:
    _require(isinstance(dtype, torch.dtype), "the dtype of a tensor is invalid")
    _integers(shape), _integers(strides)
    _require(type(requires_grad) is bool, "requires_grad of a tensor is not a bool")
    return function(dtype, shape, strides, requires_grad)


def _parameter(
    _: Callable[..., Any], data: Any, requires_grad: Any, hooks: Any, *state: Any
) -> Any:
    _require(type(data) is torch.Tensor, "a parameter is not made of a plain tensor")
    _require(type(requires_grad) is bool, "requires_grad of a tensor is not a bool")
    _require(len(state) <= 1, "a parameter has too many arguments")
    _require_plain(hooks, None, *state)
    made = torch._utils._rebuild_parameter(data, requires_grad, OrderedDict())  # type: ignore[no-untyped-call]
    return _with_attributes(made, *state)


def _sparse(function: Callable[..., Any], layout: Any, parts: Any) -> Any:
    plain = (torch.Tensor, torch.Size, tuple, bool)
    is_plain = type(parts) is tuple and all(type(each) in plain for each in parts)
    _require(isinstance(layout, torch.layout) and is_plain, "a sparse tensor is invalid")
    for each in parts:
        if isinstance(each, tuple):
            _integers(torch.Size(each) if type(each) is torch.Size else each)
    _require_stored(parts)
    return function(layout, parts)


def _nested(function: Callable[..., Any], *parts: Any) -> Any:
    are_tensors = all(type(each) is torch.Tensor for each in parts)
    _require(len(parts) == 4 and are_tensors, "a nested tensor is invalid")
    _require_stored(parts[1:])
    return function(*parts)


def _require_stored(parts: Iterable[Any]) -> None:
    """Check that each number in a tensor of indices, sizes, or offsets has memory of its own.

    A view with stride 0 has any number of rows, and torch visits each of them.
    """
    for each in parts:
        if type(each) is torch.Tensor and not each.is_floating_point() and not each.is_complex():
            needed, held = each.numel() * each.element_size(), each.untyped_storage().nbytes()
            _require(
                each.is_meta or needed <= held,
                f"the indices or sizes of a tensor require {needed} bytes, but {held} are stored",
            )


def _with_attributes(made: Any, state: Any = None) -> Any:
    """Set attributes like :func:`torch._utils._set_obj_state`, but none that a protocol looks up.

    Libraries look up names such as ``__array_interface__``, ``_as_parameter_``, or ``_repr_html_``
    on an object, and trust what they find: numpy reads memory at an address, ctypes passes one to
    C. All names of protocols have underscores at both ends, or two at the start.
    """
    for name, value in (state or {}).items():
        _require(type(name) is str, "the name of an attribute is not a string")
        _require(not hasattr(type(made), name), f"an attribute replaces {name!r:.80} of its class")
        is_protocol = name.startswith("__") or (name.startswith("_") and name.endswith("_"))
        is_allowed = name.isidentifier() and not is_protocol
        _require(is_allowed, f"an attribute has the reserved or invalid name {name!r:.80}")
        vars(made)[name] = value
    return made


_MADE: Final[Mapping[Any, Callable[..., Any]]] = {
    bytearray: _bytearray,
    complex: _complex,
    range: functools.partial(_of_integers, range),
    slice: slice,
    codecs.encode: _encode,
    Counter: _counter,
    OrderedDict: _ordered,
    defaultdict: _defaults,
    deque: _deque,
    datetime.date: functools.partial(_moment, datetime.date),
    datetime.datetime: functools.partial(_moment, datetime.datetime),
    datetime.time: functools.partial(_moment, datetime.time),
    datetime.timedelta: functools.partial(_of_integers, datetime.timedelta),
    datetime.timezone: functools.partial(_moment, datetime.timezone),
    decimal.Decimal: _decimal,
    torch.Size: lambda numbers=(): torch.Size(_integers(numbers)),
    torch.device: torch.device,
    torch.serialization._get_layout: _layout,
}
"""Replacements for the constructors of plain values."""

_CHECKED: Final[Mapping[Any, Callable[..., Any]]] = {
    torch._utils._rebuild_tensor_v2: _view,
    torch._utils._rebuild_tensor_v3: _view,
    torch._utils._rebuild_meta_tensor_no_storage: _meta,
    torch._utils._rebuild_nested_tensor: _nested,
    torch._utils._rebuild_parameter: _parameter,
    torch._utils._rebuild_parameter_with_state: _parameter,
    torch._utils._rebuild_qtensor: _quantized,
    torch._utils._rebuild_sparse_tensor: _sparse,
}
"""Checks for the functions that create tensors; each is called with the function and arguments."""


class _Data(Actions):
    """The actions that a pickle of plain data may request."""

    def __init__(
        self,
        storages: StorageLoader,
        added: Collection[str],
        import_module: Callable[[str], ModuleType],
    ) -> None:
        self._storages = storages
        self._added = added
        self._import_module = import_module
        # By id, because values may be equal without being the same, or not be hashable. The values
        # keep the objects alive, so that no other object gets their ids.
        self._taken: dict[int, Any] = {}
        self._keys = _KeyChecker()
        self._bytes = 0
        self._heights: dict[int, int] = {}
        self._nested: set[int] = set()
        checked = checked_functions(is_fake_mode())
        self._calls = {id(made): make for made, make in _MADE.items()}
        for made, check in _CHECKED.items():
            self._calls[id(made)] = functools.partial(check, checked(made))
        self._calls[id(torch._tensor._rebuild_from_type_v2)] = self._retyped
        self._calls[id(set)] = self._keys.set_of
        self._calls[id(frozenset)] = self._keys.frozenset_of

    def find(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in self._added:
            try:
                found = getattr(self._import_module(module), name)
            except (ImportError, AttributeError) as failure:
                raise NotDataError(f"the name {full} is not available: {failure}") from failure
            self._taken[id(found)] = found
            return found
        if full not in DATA:
            raise NotDataError(f"the name {full!r:.200} is not allowed")
        # Only the standard library and torch are imported. Older releases of torch lack some names.
        found = getattr(importlib.import_module(module), name, None)
        if found is None:
            raise NotDataError(f"torch {torch.__version__} does not have the name {full!r}")
        return found

    def persistent(self, pid: Any) -> Any:
        is_storage = type(pid) is tuple and len(pid) == 5 and pid[0] == "storage"
        if not (is_storage and isinstance(pid[1], type)):
            raise NotDataError("a persistent id does not name a storage")
        _, kind, key, location, size = pid
        is_plain = type(key) is str and type(location) is str and type(size) is int
        _require(is_plain, "a persistent id is invalid")
        return self._storages.load(kind, key, location, size)

    def call(self, function: Any, arguments: Any) -> Any:
        _require(type(arguments) is tuple, "the arguments of a call are not a tuple")
        if id(function) in self._taken:
            return function(*arguments)
        make = self._calls.get(id(function))
        if make is None:
            raise NotDataError(f"calling {_named(function)} is not allowed")
        try:
            made = call_checked(make, *arguments)
            if isinstance(made, torch.Tensor):
                self._charge(_TENSOR_BYTES + _DIMENSION_BYTES * made.dim())
            else:
                self._charge(_CALL_BYTES)
                self._count(made)
            if type(made) is slice:
                self._nest(made, arguments)
            elif type(made) is deque:
                self._nest(made, made)
            return made
        except UnsoundTensorError:
            # call_checked blames the tensor; here the arguments of a plain value are wrong.
            if any(function is each for each in _MADE):
                raise NotDataError(f"the arguments of {_named(function)} are invalid") from None
            raise

    def make(self, kind: Any, arguments: Any, named: Any) -> Any:
        if id(kind) not in self._taken or not isinstance(kind, type):
            raise NotDataError(f"creating an object of {_named(kind)} is not allowed")
        _require(type(arguments) is tuple, "the arguments of an object are not a tuple")
        return kind.__new__(kind, *arguments, **(named or {}))

    def build(self, made: Any, state: Any) -> None:
        if type(made) is OrderedDict and type(state) is dict:
            _with_attributes(made, state)
        elif type(made) is torch.Tensor and type(state) is tuple and len(state) == 3:
            # The form that torch's `__setstate__` reads. It ignores the second part.
            requires_grad, _, hooks = state
            _require(type(requires_grad) is bool, "requires_grad of a tensor is not a bool")
            _require_plain(hooks)
            call_checked(made.requires_grad_, requires_grad)
        elif id(type(made)) in self._taken:
            self._set_state(made, state)
        else:
            raise NotDataError(f"setting the state of a {type(made).__name__} is not allowed")

    def _set_state(self, made: Any, state: Any) -> None:
        """Set the state of an added class as Python's unpickler does."""
        if hasattr(made, "__setstate__"):
            made.__setstate__(state)
            return
        slots = None
        if type(state) is tuple and len(state) == 2:
            state, slots = state
        if state:
            vars(made).update(state)
        for name, value in (slots or {}).items():
            setattr(made, name, value)

    def extend(self, target: Any, items: Sequence[Any]) -> None:
        if type(target) not in (list, deque) and id(type(target)) not in self._taken:
            raise NotDataError(f"appending to a {type(target).__name__} is not allowed")
        # Charged first, so that the limit holds before the memory is taken.
        self._charge(_LIST_BYTES + 8 * len(items))
        self._nest(target, items)
        target.extend(items)

    def store(self, target: Any, items: Sequence[Any]) -> None:
        if type(target) not in _DICTS and id(type(target)) not in self._taken:
            raise NotDataError(f"storing items in a {type(target).__name__} is not allowed")
        self._charge(_DICT_BYTES + _ENTRY_BYTES * len(items))
        self._nest(target, items)
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._keys.require(key)
            target[key] = value

    def make_tuple(self, items: Sequence[Any]) -> Any:
        return self._count(tuple(items))

    def make_list(self, items: Sequence[Any]) -> Any:
        return self._count(list(items))

    def make_dict(self) -> Any:
        return self._count({})

    def make_set(self) -> Any:
        return self._count(set())

    def make_frozenset(self, items: Sequence[Any]) -> Any:
        return self._count(self._keys.frozenset_of(list(items)))

    def add(self, target: Any, items: Sequence[Any]) -> None:
        _require(type(target) is set, "adding to an object that is not a set is not allowed")
        self._charge(_ENTRY_BYTES * len(items))
        target.update(self._keys.members(list(items)))

    def _count(self, made: Any) -> Any:
        self._charge(sys.getsizeof(made) + _GC_BYTES)
        return made

    def _charge(self, size: int) -> None:
        self._bytes += size
        if self._bytes > _MAX_CONTAINER_BYTES:
            limit = _MAX_CONTAINER_BYTES >> 20
            raise NotDataError(f"the containers of the pickle require more than {limit} MiB")

    def _nest(self, target: Any, parts: Iterable[Any]) -> None:
        """Limit how deep :data:`_UNPROTECTED` containers contain each other directly.

        A container that is in another one already may get no more of them, so that the height of
        each is known when it is put into another one. Picklers fill a container first.
        """
        if type(target) not in _UNPROTECTED:
            return
        for each in parts:
            if type(each) in _UNPROTECTED:
                height = self._heights.get(id(each), 0) + 1
                is_limited = height <= _MAX_NESTING and id(target) not in self._nested
                _require(is_limited, f"a {type(target).__name__} is nested too deeply")
                self._nested.add(id(each))
                self._heights[id(target)] = max(self._heights.get(id(target), 0), height)

    def _retyped(self, *parts: Any) -> Any:
        """Create a plain tensor with attributes, by a function from the allowlist."""
        _require(len(parts) == 4, "a tensor with attributes is invalid")
        function, kind, arguments, state = parts
        _require(kind is torch.Tensor, f"the class of a tensor is {_named(kind)}")
        is_checked = any(function is each for each in _CHECKED)
        _require(is_checked, "a tensor is created by a function that creates none")
        _require_plain(state=state)
        return _with_attributes(self.call(function, arguments), state)


def _named(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
