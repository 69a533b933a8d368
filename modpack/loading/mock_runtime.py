"""Stand-ins for modules that were mocked out of this package when it was exported.

modpack stores this file as ``_modpack_mock`` in every package that has mocked modules. Each
mocked module hands out a `MockedObject` for whatever attribute it is asked for. Two rules
decide what may be done with one:

* What merely yields another stand-in (a call, subclassing, decorating) is tolerated while a
  module of this package is being imported, so that code which never runs does not get in the
  way. Attribute access and a place in an annotation are tolerated always.
* What needs a real value (truth, length, arithmetic, ...) raises `MockedModuleUsed`, a
  NotImplementedError, always: stopping is better than going on with a wrong value.

What packaged code does with stand-ins is kept in `touches`, for the self-test that a package is
written with: code may well swallow the exception.
"""

from __future__ import annotations

import functools
import operator
import sys
import typing
from abc import ABCMeta
from types import FrameType, ModuleType

touches: dict[tuple[str, str, str, str, str, int], None] = {}
"""What was done by now, in order: the mocked module, what was done with it (``loaded``,
``named``, ``used``), then the name, the operation, the file and the line, as far as they apply."""

_MAX_TOUCHES = 10000


class MockedModuleUsed(NotImplementedError):
    """Something from a mocked module was really used.

    Args:
        name: what was used, as its importers call it (``numpy.linalg.norm``).
        module: the mocked module it comes from (``numpy.linalg``).
        rule: the rule that mocked the module (``mock('numpy.**')``).
        chain: the importers through which the module is reached, the module itself last.
        operation: what was done, as the verb of a sentence (``was called``).
        place: which packaged code did it (``net, line 7``); empty if none did.
    """

    def __init__(
        self,
        name: str,
        module: str,
        rule: str,
        chain: tuple[str, ...],
        operation: str,
        place: str = "",
    ) -> None:
        super().__init__(name, module, rule, chain, operation, place)
        self.name = name
        self.module = module
        self.rule = rule
        self.chain = chain
        self.operation = operation
        self.place = place

    def __str__(self) -> str:
        place = f"; used in {self.place}" if self.place else ""
        return (
            f"{self.name} {self.operation}, but {self.module} is mocked out in this package "
            f"(rule: {self.rule}; reached through: {' -> '.join(self.chain)}{place}). "
            f"Remedy: intern or extern {self.module!r} when exporting, or save a module of your "
            f"own in its place: save_source_string({self.module!r}, ...)."
        )


class _Origin(typing.NamedTuple):
    """What a stand-in stands for, and why it is not here. Fields as in MockedModuleUsed."""

    name: str
    module: str
    rule: str
    chain: tuple[str, ...]

    def child(self, suffix: str) -> _Origin:
        return self._replace(name=self.name + suffix)

    def used(self, operation: str) -> MockedModuleUsed:
        frame = _packaged_frame()
        _note("used", self, operation, frame)
        return MockedModuleUsed(*self, operation, _place(frame))


def mocked_module(module: str, rule: str, chain: tuple[str, ...]) -> MockedObject:
    """The stand-in whose attributes are those of a mocked module.

    Args: as in `MockedModuleUsed`; names are those of export, without any prefix given at load.
    """
    origin = _Origin(module, module, rule, tuple(chain) or (module,))
    touches.setdefault((module, "loaded", "", "", "", 0))
    if "." in module:
        _make_usable(module, sys._getframe(1).f_globals)
    return MockedObject(origin)


def _note(kind: str, origin: _Origin, operation: str, frame: FrameType | None) -> None:
    """Keep what packaged code does with a stand-in, and where."""
    if len(touches) >= _MAX_TOUCHES:
        return
    if frame is None and kind == "named":  # somebody outside looked through what there is
        return
    place = ("", 0)
    if frame is not None and kind == "used":  # for names, once is enough
        place = (frame.f_code.co_filename, frame.f_lineno)
    touches.setdefault((origin.module, kind, origin.name, operation, *place))


def _packaged_frame() -> FrameType | None:
    """The innermost frame of this package's own code; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_packaged(frame):
        frame = frame.f_back
    return frame


def _place(frame: FrameType | None) -> str:
    """Where a frame is, by the name that its module had at export."""
    if frame is None:
        return ""
    name = str(frame.f_globals.get("__name__"))
    own = name[len(_PACKAGE) + 1 :] if _PACKAGE and name.startswith(_PACKAGE + ".") else name
    return f"{own}, line {frame.f_lineno}"


def _is_packaged(frame: FrameType) -> bool:
    """Whether the frame runs code of this package that is not that of its stand-ins."""
    names = frame.f_globals
    is_stand_in = isinstance(names.get("_STAND_IN"), MockedObject)
    return _is_ours(frame) and names is not globals() and not is_stand_in


_PACKAGE = __name__.rpartition(".")[0]
"""The name under which this package is loaded; empty if under real names."""


def _importing() -> bool:
    """Whether this thread is in the middle of importing a module of this package.

    The whole stack is walked: functions called by module-level code count as well, however
    deep. A module's frame is on the stack exactly while it is being executed, so no flag of an
    importer is needed, and once the import is over nothing is left to be found. The frames of
    the program around the package (its script, a module of its own that is being imported and
    runs the model meanwhile, another package) are passed by: for them the model is in use.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _is_ours(frame) and not _is_evaluated(frame):
            return True
        frame = frame.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    """Whether the frame runs code of a module of this package (importers mark those)."""
    names = frame.f_globals
    if "__modpack__" not in names and "__torch_package__" not in names:
        return False
    return not _PACKAGE or str(names.get("__name__")).startswith(_PACKAGE + ".")


def _is_evaluated(frame: FrameType) -> bool:
    """Whether the frame runs a piece of text (eval, exec, doctest), not a module's file.

    Such code is called ``<module>`` too and may run at any time.
    """
    file = frame.f_code.co_filename
    return file.startswith("<") and file != frame.f_globals.get("__file__")


def _evaluates_annotation() -> bool:
    """Whether an annotation is evaluated late: as text (PEP 563) or lazily (PEP 649)."""
    frame = sys._getframe(1)
    while frame.f_globals is globals() and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    as_text = code.co_name == "<module>" and code.co_filename == "<string>"
    return as_text or code.co_name == "__annotate__"


def _is_type_like(value: object) -> bool:
    """Whether the value makes sense in an annotation and hardly as data."""
    if value is None or value is ... or isinstance(value, (type, MockedObject, _UsableModule)):
        return True
    if isinstance(value, (tuple, list)):
        return any(map(_is_type_like, value))
    made_by_typing = type(value).__module__ in ("typing", "types")
    return made_by_typing or hasattr(value, "__origin__") or hasattr(value, "__supertype__")


class MockedObject:
    """A stand-in for an object of a module that was mocked out of this package."""

    # Slots, because every other name belongs to the object that this one stands for.
    __slots__ = ("__dict__", "__weakref__", "_modpack_bases", "_modpack_origin")

    __bases__ = ()  # for issubclass(stand_in, cls), which is False then and no TypeError

    def __init__(self, origin: _Origin) -> None:
        self._modpack_origin = origin
        self._modpack_bases: dict[type, type] = {}  # what subclasses get, by metaclass

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # singledispatch registers nothing but classes and asks isinstance(stand_in, type).
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
        # Names like __path__, __wrapped__ or __deepcopy__ ask what an object can do: nothing.
        if name.startswith("__") and name.endswith("__") and name != "__version__":
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        known = self.__dict__
        if name not in known:  # setdefault is atomic: all threads see the same object
            origin = self._modpack_origin.child("." + name)
            _note("named", origin, "", _packaged_frame())
            known.setdefault(name, _attribute(origin, name))
        return known[name]

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Raise, unless packaged code is being imported: then give another stand-in."""
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
        # TypeVar(bound=stand_in) asks "if bound:", meaning whether there is one (Python < 3.12).
        if sys._getframe(1).f_globals is vars(typing):
            return True
        raise self._modpack_used("was tested for truth")

    def __or__(self, other: object) -> object:
        return self._modpack_union(self, other, other)

    def __ror__(self, other: object) -> object:
        return self._modpack_union(other, self, other)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type]:
        return (_base_class(self, _metaclass_beside(bases)),)

    def __instancecheck__(self, instance: object) -> bool:
        return False  # nothing is an instance of a class that is not there

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
    """A function or class of this package whose decorator is mocked: it cannot be used."""

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
    """What was defined: the function inside a staticmethod or classmethod, or the thing itself."""
    return typing.cast(_Function, getattr(definition, "__func__", definition))


def _qualified_name(definition: object) -> str:
    return str(getattr(definition, "__qualname__", definition))


def _attribute(origin: _Origin, name: str) -> object:
    """The stand-in for an attribute: a class for exceptions, because ``except`` needs one.

    They are told by their names (PEP 8: class names, with the suffix "Error"), which is all that
    is known; a class that is no exception behaves well enough as such a stand-in.
    """
    stand_in = MockedObject(origin)
    if name[:1].isupper() and name.endswith(("Error", "Exception", "Warning")):
        kind = Warning if name.endswith("Warning") else Exception
        return _base_class(stand_in, _BaseType, kind)
    return stand_in


class _BaseType(ABCMeta):
    """The class of the classes that take the place of a mocked base class, and of their heirs.

    It derives from ABCMeta so that abstract classes can be mixed in.
    """

    _modpack_stand_in: MockedObject
    _modpack_role: str

    def __init__(cls, *args: typing.Any, **kwargs: object) -> None:
        super().__init__(*args)
        # On every heir, not only inherited: another base's __new__ might come first.
        cls.__new__ = staticmethod(_no_instance)  # type: ignore[method-assign, assignment]

    @property
    def register(cls) -> object:  # type: ignore[override]
        """Not ABCMeta's method: a mocked registry may well have one of that name."""
        return getattr(cls._modpack_stand_in, "register")  # noqa: B009

    def __getattr__(cls, name: str) -> object:
        """What a class would inherit from the mocked one; private names are its own affair."""
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return getattr(cls._modpack_stand_in, name)


class _Base:
    """What all classes that take the place of a mocked base class have in common."""

    __slots__ = ()

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__()  # the keywords are for the mocked class

    def __class_getitem__(cls, item: object) -> object:
        inherited = getattr(super(), "__class_getitem__", None)
        return cls if inherited is None else inherited(item)


def _base_class(stand_in: MockedObject, metaclass: type, kind: type = object) -> type:
    """The real class that takes the place of a stand-in among bases; always the same one."""
    bases = (_Base,) if kind is object else (_Base, kind)
    origin = stand_in._modpack_origin
    contents = {
        "__slots__": (),
        "__module__": origin.module,
        "__doc__": MockedObject.__doc__,
        "_modpack_stand_in": stand_in,
        "_modpack_role": "a base class",
    }
    made = metaclass(origin.name.rpartition(".")[2], bases, contents)
    return stand_in._modpack_bases.setdefault(metaclass, made)


def _metaclass_beside(bases: tuple[object, ...]) -> type:
    """A metaclass that gets along with those of the other bases of the same class statement."""
    found = dict.fromkeys(type(getattr(base, "__origin__", base)) for base in bases)
    foreign = [meta for meta in found if issubclass(meta, type) and _is_foreign(meta)]
    foreign.sort(key=lambda meta: -len(type.mro(meta)))  # the derived ones first
    return _combined_metaclass(*foreign) if foreign else _BaseType


def _is_foreign(metaclass: type) -> bool:
    return not issubclass(metaclass, _BaseType) and not issubclass(_BaseType, metaclass)


@functools.lru_cache
def _combined_metaclass(*foreign: type) -> type:
    return type(_BaseType.__name__, (_BaseType, *foreign), {})


def _is_class_statement(args: tuple[object, ...]) -> bool:
    """Whether a stand-in is called as the metaclass in ``class A(metaclass=stand_in)``."""
    return [type(arg) for arg in args] == [str, tuple, dict] and "__qualname__" in args[2]  # type: ignore[operator]


def _class_with_metaclass(metaclass: MockedObject, *statement: typing.Any) -> type:
    """The class that such a statement defines: it is there, but can have no instances."""
    name, bases, contents = statement
    base = _base_class(metaclass, _metaclass_beside(bases))
    contents.update(_modpack_stand_in=metaclass, _modpack_role="the metaclass")
    made: type = type(base)(name, (*bases, base), contents)
    return made


def _no_instance(cls: _BaseType, *args: object, **kwargs: object) -> object:
    """The ``__new__`` of every class with a mocked base."""
    stand_in = cls._modpack_stand_in
    operation = f"is {cls._modpack_role} of {cls.__qualname__}, which was instantiated"
    if cls in stand_in._modpack_bases.values():  # the mocked class itself, not an heir
        operation = "was called"
    stand_in._modpack_import_only(operation)
    return MockedObject(stand_in._modpack_origin.child("(...)"))


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
    """The class of mocked submodules: each can be used as any other stand-in can.

    A package may bind a function or a class to the name of its submodule (``from .deco import
    deco``). Its importers do not show which of the two they mean.
    """

    __bases__ = MockedObject.__bases__
    __class__ = vars(MockedObject)["__class__"]

    def __bool__(self) -> bool:
        return True  # as modules, functions and classes are


def _make_usable(module: str, names: dict[str, typing.Any]) -> None:
    """Let the module whose namespace is given be used as a stand-in."""
    # torch.package's importer keeps its modules to itself.
    find = getattr(getattr(names.get("__spec__"), "loader", None), "import_module", None)
    here = sys.modules.get(names["__name__"]) if find is None else find(module)
    if type(here) is ModuleType:
        here.__class__ = _UsableModule


def _delegated(name: str) -> typing.Callable[..., object]:
    def use(self: ModuleType, *args: object, **kwargs: object) -> object:
        return getattr(MockedObject, name)(vars(self)["_STAND_IN"], *args, **kwargs)

    return use


def _install_uses() -> None:
    for name, method in vars(MockedObject).items():
        is_use = callable(method) and name.startswith("__") and name not in vars(_UsableModule)
        if is_use and name not in ("__init__", "__getattr__", "__repr__", "__format__"):
            setattr(_UsableModule, name, _delegated(name))


_install_uses()
