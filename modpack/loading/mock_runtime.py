"""Mocks of the modules that a rule replaced when this package was exported.

modpack stores this file as ``_modpack_mock`` in every package that has mocked modules. Every
attribute of a mocked module is a `MockedObject`. Two rules decide which operations it allows:

* Operations whose result can be another mock (calls, subclassing, decorating) are allowed while
  a module of this package is being imported, because the code may never use the result.
  Attribute access and use in an annotation are always allowed.
* Operations that need a real value (truth, length, arithmetic, ...) always raise
  `MockedModuleUsed`, a NotImplementedError: an error is better than a wrong value.

`touches` records the operations of packaged code on mocks. The self-test of a package reads it,
because code can swallow the exception.
"""

from __future__ import annotations

import functools
import operator
import sys
import typing
from abc import ABCMeta
from types import FrameType, ModuleType

touches: dict[tuple[str, str, str, str, str, int], None] = {}
"""The recorded operations, in order: mocked module, kind (``loaded``, ``named``, ``used``), name,
operation, file, and line. Fields that do not apply are empty."""

_MAX_TOUCHES = 10000


class MockedModuleUsed(NotImplementedError):
    """Code used an object of a mocked module in a way that needs the real one.

    Args:
        name: The object, as its importers name it (``numpy.linalg.norm``).
        module: The mocked module that it belongs to (``numpy.linalg``).
        rule: The rule that mocked the module (``mock('numpy.**')``).
        chain: The chain of importers that leads to the module, with the module itself last.
        operation: The operation, as a verb phrase (``was called``).
        location: The packaged code that used it (``net:7``); empty if no packaged code did.
    """

    def __init__(
        self,
        name: str,
        module: str,
        rule: str,
        chain: tuple[str, ...],
        operation: str,
        location: str = "",
    ) -> None:
        super().__init__(name, module, rule, chain, operation, location)
        self.name = name
        self.module = module
        self.rule = rule
        self.chain = chain
        self.operation = operation
        self.location = location

    def __str__(self) -> str:
        location = f"{self.location}: " if self.location else ""
        return (
            f"{location}{self.name} {self.operation}, but the module {self.module!r} is mocked in "
            f"this package (rule: {self.rule}; imported through: {' -> '.join(self.chain)}). "
            f"Intern or extern {self.module!r} when you export the package, or replace it with a "
            f"module of your own: save_source_string({self.module!r}, ...)."
        )


class _Origin(typing.NamedTuple):
    """The object that a mock replaces, and the reason. Fields as in MockedModuleUsed."""

    name: str
    module: str
    rule: str
    chain: tuple[str, ...]

    def child(self, suffix: str) -> _Origin:
        return self._replace(name=self.name + suffix)

    def used(self, operation: str) -> MockedModuleUsed:
        frame = _packaged_frame()
        _note("used", self, operation, frame)
        return MockedModuleUsed(*self, operation, _location(frame))


def mocked_module(module: str, rule: str, chain: tuple[str, ...]) -> MockedObject:
    """Return the mock of a module.

    Args: As in `MockedModuleUsed`. Names are those of the export, without the prefix of a private
        namespace.
    """
    origin = _Origin(module, module, rule, tuple(chain) or (module,))
    touches.setdefault((module, "loaded", "", "", "", 0))
    if "." in module:
        _make_usable(module, sys._getframe(1).f_globals)
    return MockedObject(origin)


def _note(kind: str, origin: _Origin, operation: str, frame: FrameType | None) -> None:
    """Record an operation of packaged code on a mock."""
    if len(touches) >= _MAX_TOUCHES:
        return
    if frame is None and kind == "named":  # code outside the package listed the attributes
        return
    location = ("", 0)
    if frame is not None and kind == "used":  # a name is recorded once, without a location
        location = (frame.f_code.co_filename, frame.f_lineno)
    touches.setdefault((origin.module, kind, origin.name, operation, *location))


def _packaged_frame() -> FrameType | None:
    """Return the innermost frame that runs this package's own code, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_packaged(frame):
        frame = frame.f_back
    return frame


def _location(frame: FrameType | None) -> str:
    """Return module and line of a frame; the module's name is that of the export."""
    if frame is None:
        return ""
    name = str(frame.f_globals.get("__name__"))
    own = name[len(_PACKAGE) + 1 :] if _PACKAGE and name.startswith(_PACKAGE + ".") else name
    return f"{own}:{frame.f_lineno}"


def _is_packaged(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package, other than that of its mocks."""
    names = frame.f_globals
    is_mock = isinstance(names.get("_MOCK"), MockedObject)
    return _is_ours(frame) and names is not globals() and not is_mock


_PACKAGE = __name__.rpartition(".")[0]
"""The private namespace of this package; empty if its modules have their real names."""


def _importing() -> bool:
    """Return whether this thread is importing a module of this package.

    The search covers the whole stack, because module-level code can call functions. A module's
    frame is on the stack exactly while the module is executed, so no importer has to set and
    clear a flag. Frames of other code (the script, another package, a host module that runs the
    model while it is imported) do not count: for them the model is in use.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _is_ours(frame) and not _is_evaluated(frame):
            return True
        frame = frame.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of a module that an importer marked as this package's."""
    names = frame.f_globals
    if "__modpack__" not in names and "__torch_package__" not in names:
        return False
    return not _PACKAGE or str(names.get("__name__")).startswith(_PACKAGE + ".")


def _is_evaluated(frame: FrameType) -> bool:
    """Return whether a frame runs evaluated text (eval, exec, doctest) and not a module's file.

    Such code is also named ``<module>``, and can run at any time.
    """
    file = frame.f_code.co_filename
    return file.startswith("<") and file != frame.f_globals.get("__file__")


def _evaluates_annotation() -> bool:
    """Return whether an annotation is evaluated late: as text (PEP 563) or lazily (PEP 649)."""
    frame = sys._getframe(1)
    while frame.f_globals is globals() and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    as_text = code.co_name == "<module>" and code.co_filename == "<string>"
    return as_text or code.co_name == "__annotate__"


def _is_type_like(value: object) -> bool:
    """Return whether a value makes sense in an annotation and hardly as data."""
    if value is None or value is ... or isinstance(value, (type, MockedObject, _UsableModule)):
        return True
    if isinstance(value, (tuple, list)):
        return any(map(_is_type_like, value))
    made_by_typing = type(value).__module__ in ("typing", "types")
    return made_by_typing or hasattr(value, "__origin__") or hasattr(value, "__supertype__")


class MockedObject:
    """A mock of an object whose module was mocked when this package was exported."""

    # Slots, because every other name belongs to the mocked object.
    __slots__ = ("__dict__", "__weakref__", "_modpack_bases", "_modpack_origin")

    __bases__ = ()  # makes issubclass(mock, cls) False instead of a TypeError

    def __init__(self, origin: _Origin) -> None:
        self._modpack_origin = origin
        self._modpack_bases: dict[
            type, type
        ] = {}  # the real base classes of subclasses, by metaclass

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # singledispatch registers only classes and checks isinstance(mock, type).
        if sys._getframe(1).f_globals is vars(functools):
            return type
        return type(self)

    def __repr__(self) -> str:
        return f"<mocked {self._modpack_origin.name}>"

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._modpack_used("was formatted")
        return repr(self)

    def __getattr__(self, name: str) -> object:
        # Names like __path__, __wrapped__ and __deepcopy__ query abilities; a mock has none.
        if name.startswith("__") and name.endswith("__") and name != "__version__":
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        known = self.__dict__
        if name not in known:  # setdefault is atomic: all threads see the same object
            origin = self._modpack_origin.child("." + name)
            _note("named", origin, "", _packaged_frame())
            known.setdefault(name, _attribute(origin, name))
        return known[name]

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return another mock while packaged code is imported; raise afterwards."""
        self._modpack_import_only("was called")
        if _is_class_statement(args):
            return _class_with_metaclass(self, *args)
        if len(args) == 1 and not kwargs and hasattr(_function_of(args[0]), "__qualname__"):
            return _Decorated(self._modpack_origin, args[0])
        return MockedObject(self._modpack_origin.child("(...)"))

    def __getitem__(self, item: object) -> MockedObject:
        if not (_is_type_like(item) or _evaluates_annotation()):
            self._modpack_import_only("was indexed")
        return MockedObject(self._modpack_origin.child("[...]"))

    def __setitem__(self, item: object, value: object) -> None:
        self._modpack_import_only("was written to")

    def __delitem__(self, item: object) -> None:
        self._modpack_import_only("was written to")

    def __enter__(self) -> MockedObject:
        self._modpack_import_only("was entered as a context")
        return MockedObject(self._modpack_origin.child(".__enter__()"))

    def __exit__(self, *exception: object) -> None:
        """Let exceptions through."""

    def __bool__(self) -> bool:
        # TypeVar(bound=mock) tests "if bound:" to see whether it was given (Python < 3.12).
        if sys._getframe(1).f_globals is vars(typing):
            return True
        raise self._modpack_used("was tested for truth")

    def __or__(self, other: object) -> object:
        return self._modpack_union(self, other, other)

    def __ror__(self, other: object) -> object:
        return self._modpack_union(other, self, other)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type]:
        return (_base_class(self, _compatible_metaclass(bases)),)

    def __instancecheck__(self, instance: object) -> bool:
        return False  # a missing class has no instances

    def __subclasscheck__(self, cls: object) -> bool:
        bases = tuple(self._modpack_bases.values())
        return isinstance(cls, type) and issubclass(cls, bases)

    def _modpack_used(self, operation: str) -> MockedModuleUsed:
        return self._modpack_origin.used(operation)

    def _modpack_import_only(self, operation: str) -> None:
        if not _importing():
            raise self._modpack_used(operation)

    def _modpack_union(self, left: object, right: object, other: object) -> object:
        if not _is_type_like(other):
            raise self._modpack_used("was combined with '|'")
        return operator.getitem(typing.Union, (left, right))


class _Decorated(MockedObject):
    """A function or class of this package that cannot be used, because its decorator is mocked."""

    __slots__ = ("_modpack_decorator",)

    def __init__(self, decorator: _Origin, definition: object) -> None:
        function = _function_of(definition)
        super().__init__(decorator.child(f"({_qualified_name(function)})"))
        self._modpack_decorator = decorator
        updated = () if isinstance(function, type) else ("__dict__",)
        functools.update_wrapper(typing.cast("_Function", self), function, updated=updated)

    def _modpack_used(self, operation: str) -> MockedModuleUsed:
        name = _qualified_name(self)
        return self._modpack_decorator.used(f"decorates {name}, which {operation}")


_Function = typing.Callable[..., object]


def _function_of(definition: object) -> _Function:
    """Return the function inside a staticmethod or classmethod, or the definition itself."""
    return typing.cast(_Function, getattr(definition, "__func__", definition))


def _qualified_name(definition: object) -> str:
    return str(getattr(definition, "__qualname__", definition))


def _attribute(origin: _Origin, name: str) -> object:
    """Return the mock of an attribute: a class for exceptions, because ``except`` needs one.

    Only the name can show that an attribute is an exception (PEP 8: a class name with the suffix
    "Error"). A wrong guess is harmless, because the class behaves like any other mock.
    """
    mock = MockedObject(origin)
    if name[:1].isupper() and name.endswith(("Error", "Exception", "Warning")):
        kind = Warning if name.endswith("Warning") else Exception
        return _base_class(mock, _BaseType, kind)
    return mock


class _BaseType(ABCMeta):
    """The metaclass of classes that replace a mocked base class, and of their subclasses.

    It derives from ABCMeta so that abstract classes can be mixed in.
    """

    _modpack_mock: MockedObject
    _modpack_role: str

    def __init__(cls, *args: typing.Any, **kwargs: object) -> None:
        super().__init__(*args)
        # Set on every subclass: the __new__ of another base might come first in the MRO.
        cls.__new__ = staticmethod(_no_instance)  # type: ignore[method-assign, assignment]

    @property
    def register(cls) -> object:  # type: ignore[override]
        """The mocked attribute, not ABCMeta's method: registries often have one of this name."""
        return getattr(cls._modpack_mock, "register")  # noqa: B009

    def __getattr__(cls, name: str) -> object:
        """Return a mock for an attribute that a class would inherit, except for private names."""
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return getattr(cls._modpack_mock, name)


class _Base:
    """Base of all classes that replace a mocked base class."""

    __slots__ = ()

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__()  # the mocked class would take the keywords

    def __class_getitem__(cls, item: object) -> object:
        inherited = getattr(super(), "__class_getitem__", None)
        return cls if inherited is None else inherited(item)


def _base_class(mock: MockedObject, metaclass: type, kind: type = object) -> type:
    """Return the real class that replaces a mock among bases; always the same one."""
    bases = (_Base,) if kind is object else (_Base, kind)
    origin = mock._modpack_origin
    contents = {
        "__slots__": (),
        "__module__": origin.module,
        "__doc__": MockedObject.__doc__,
        "_modpack_mock": mock,
        "_modpack_role": "a base class",
    }
    made = metaclass(origin.name.rpartition(".")[2], bases, contents)
    return mock._modpack_bases.setdefault(metaclass, made)


def _compatible_metaclass(bases: tuple[object, ...]) -> type:
    """Return a metaclass without a conflict with those of the other bases of a class statement."""
    found = dict.fromkeys(type(getattr(base, "__origin__", base)) for base in bases)
    foreign = [meta for meta in found if issubclass(meta, type) and _is_foreign(meta)]
    foreign.sort(key=lambda meta: -len(type.mro(meta)))  # derived metaclasses first
    return _combined_metaclass(*foreign) if foreign else _BaseType


def _is_foreign(metaclass: type) -> bool:
    return not issubclass(metaclass, _BaseType) and not issubclass(_BaseType, metaclass)


@functools.lru_cache
def _combined_metaclass(*foreign: type) -> type:
    return type(_BaseType.__name__, (_BaseType, *foreign), {})


def _is_class_statement(args: tuple[object, ...]) -> bool:
    """Return whether a mock is called as the metaclass in ``class A(metaclass=mock)``."""
    return [type(arg) for arg in args] == [str, tuple, dict] and "__qualname__" in args[2]  # type: ignore[operator]


def _class_with_metaclass(metaclass: MockedObject, *statement: typing.Any) -> type:
    """Create the class that such a statement defines; it cannot have instances."""
    name, bases, contents = statement
    base = _base_class(metaclass, _compatible_metaclass(bases))
    contents.update(_modpack_mock=metaclass, _modpack_role="the metaclass")
    made: type = type(base)(name, (*bases, base), contents)
    return made


def _no_instance(cls: _BaseType, *args: object, **kwargs: object) -> object:
    """Raise, or return a mock at import time: ``__new__`` of every class with a mocked base."""
    mock = cls._modpack_mock
    operation = f"is {cls._modpack_role} of {cls.__qualname__}, which was instantiated"
    if cls in mock._modpack_bases.values():  # the mocked class itself, not a subclass
        operation = "was called"
    mock._modpack_import_only(operation)
    return MockedObject(mock._modpack_origin.child("(...)"))


_NEEDS_A_VALUE = {
    "__len__": "was asked for its length",
    "__contains__": "was searched with 'in'",
    "__iter__": "was iterated over",
    "__reversed__": "was iterated over",
    "__next__": "was iterated over",
    "__await__": "was awaited",
    "__aiter__": "was iterated over",
    "__anext__": "was iterated over",
    "__aenter__": "was entered as a context",
    "__aexit__": "was left as a context",
    "__bytes__": "was read as bytes",
    "__fspath__": "was used as a path",
    "__array__": "was used as an array",
    "__reduce_ex__": "was pickled or copied",
}
_NEEDS_A_NUMBER = (
    *("int", "float", "complex", "index", "round", "trunc", "floor", "ceil"),
    *("neg", "pos", "abs", "invert"),
)
_NEEDS_AN_ORDER = ("lt", "le", "gt", "ge")
_NEEDS_ARITHMETIC = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow"),
    *("lshift", "rshift", "and", "xor"),
)


def _refusal(operation: str) -> typing.Callable[..., typing.NoReturn]:
    def refuse(self: MockedObject, *args: object, **kwargs: object) -> typing.NoReturn:
        raise self._modpack_used(operation)

    return refuse


def _install_refusals() -> None:
    refused = dict(_NEEDS_A_VALUE)
    refused.update((f"__{name}__", "was used as a number") for name in _NEEDS_A_NUMBER)
    refused.update((f"__{name}__", "was compared") for name in _NEEDS_AN_ORDER)
    for name in _NEEDS_ARITHMETIC:
        for form in (f"__{name}__", f"__r{name}__", f"__i{name}__"):
            refused[form] = "was used in arithmetic"
    for name, operation in refused.items():
        setattr(MockedObject, name, _refusal(operation))


_install_refusals()


class _UsableModule(ModuleType):
    """The class of mocked submodules, which support the same operations as other mocks.

    A package may bind a function or a class to the name of its submodule (``from .deco import
    deco``), and its importers do not show which of the two they mean.
    """

    __bases__ = MockedObject.__bases__
    __class__ = vars(MockedObject)["__class__"]

    def __bool__(self) -> bool:
        return True  # like modules, functions, and classes


def _make_usable(module: str, names: dict[str, typing.Any]) -> None:
    """Let a module support the operations of a mock; ``names`` is its namespace."""
    # torch.package's importer does not put its modules into sys.modules.
    find = getattr(getattr(names.get("__spec__"), "loader", None), "import_module", None)
    found = sys.modules.get(names["__name__"]) if find is None else find(module)
    if type(found) is ModuleType:
        found.__class__ = _UsableModule


def _delegated(name: str) -> typing.Callable[..., object]:
    def use(self: ModuleType, *args: object, **kwargs: object) -> object:
        return getattr(MockedObject, name)(vars(self)["_MOCK"], *args, **kwargs)

    return use


def _install_uses() -> None:
    for name, method in vars(MockedObject).items():
        is_use = callable(method) and name.startswith("__") and name not in vars(_UsableModule)
        if is_use and name not in ("__init__", "__getattr__", "__repr__", "__format__"):
            setattr(_UsableModule, name, _delegated(name))


_install_uses()
