"""A pickle module for objects of loaded packages, in messages and in files.

**Messages** to other processes of this user refer to the package. Plain :mod:`pickle` rejects
lambdas and nested functions of packages, for example hooks; :class:`Pickler` and :func:`dumps` save
them by their source. After :func:`register`, :mod:`multiprocessing`, joblib, and Ray do so, too.
The functions import modules of their package, as they do in the process that loaded it.

**Files** can leave the machine, so that :func:`dump` writes the code of packages with the object:
the pickle contains one package, as :func:`modpack.save` writes it. :func:`load` takes the options
of :func:`modpack.load`, a trust policy among them, and the pickle around the package can name
nothing but the package: otherwise it could change what a signature covers.
"""

from __future__ import annotations

import copyreg
import hashlib
import importlib
import io
import pickle
import pickletools
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import Unpickler, loads
from types import CellType, FunctionType
from typing import IO, Any, BinaryIO, Final

from modpack.core.names import PACKAGES, is_within
from modpack.environment.importers import importer_of
from modpack.errors import ArchiveError, CacheError, PicklingError, UnpicklingError
from modpack.importer import load as load_package
from modpack.loading.cache import keep_file
from modpack.loading.namespace import Namespace
from modpack.pickling.functions import GlobalNames, make_cell, make_function
from modpack.saving.function_source import (
    NoSourceError,
    globals_module,
    is_found_by_name,
    reduce_function,
)

__all__ = ["Pickler", "Unpickler", "dump", "dumps", "load", "loads", "register"]


class Pickler(pickle.Pickler):
    """A pickler that saves functions of packages by their source if they cannot be imported."""

    def reducer_override(self, obj: Any) -> Any:
        """Reduce a function of a package (:meth:`pickle.Pickler.reducer_override`)."""
        return _reduce(self, obj, False)


def dump(obj: object, file: IO[bytes], protocol: int | None = None, **options: Any) -> None:
    """Write an object to a file that can leave this machine.

    If a part of the object is from a loaded package, the file contains what :func:`modpack.save`
    writes, once. Otherwise it is a plain pickle. :func:`pickle.load` reads both where modpack is
    installed, and :func:`load` also checks the package.

    Args:
        obj: The object, such as a model or a checkpoint.
        file: Binary file object, open for writing.
        protocol: Protocol of a plain pickle; see :func:`pickle.dump`.
        **options: Options of :func:`modpack.save`. Unlike there, no self-test runs by default,
            because checkpoints are written often.

    Raises:
        PackagingError: If the package cannot be written; the error lists all reasons.
        PicklingError: If something in the object cannot be saved.
    """
    # In memory, so that the file stays empty if an object of a package turns up.
    content = io.BytesIO()
    try:
        _PlainPickler(content, protocol).dump(obj)
        # Generated code, such as that of torch.fx, names modules in its text.
        is_plain = re.search(rb"%b\.p" % PACKAGES.encode(), content.getbuffer()) is None
    except _IsPackagedError:
        is_plain = False
    if not is_plain:
        from modpack.exporter import save  # processes that only receive objects do not need it

        package = io.BytesIO()
        save(obj, package, **{"self_test": False, **options})
        content = io.BytesIO()
        pickle.dump(_Carried(package.getvalue()), content, _CARRYING_PROTOCOL)
    file.write(content.getbuffer())


def dumps(obj: object, protocol: int | None = None) -> bytes:
    """Return an object as bytes for another process, which refer to its package."""
    file = io.BytesIO()
    Pickler(file, protocol).dump(obj)
    return file.getvalue()


def load(
    file: IO[bytes],
    *,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    errors: str = "strict",
    buffers: Iterable[Any] | None = None,
    **options: Any,
) -> Any:
    """Read an object that :func:`dump` or another pickler wrote.

    Args:
        file: Binary file object.
        fix_imports: See :func:`pickle.load`.
        encoding: See :func:`pickle.load`.
        errors: See :func:`pickle.load`.
        buffers: See :func:`pickle.load`.
        **options: Options of :func:`modpack.load`, such as ``policy``, which are checked before any
            code of the package runs. With an option, plain pickles are rejected, because they are
            code that no policy or signature covers.

    Raises:
        UnpicklingError: If there are options, and the file contains more than a package.
        TrustError: If the policy does not allow something that the package requires.
        SignatureError: If the policy requires a signature that is missing or invalid.
        ModpackError: If the package cannot be loaded.
    """
    if options:
        return _load_carried(_read_carried(file), **options)
    named = {"fix_imports": fix_imports, "encoding": encoding, "errors": errors}
    return Unpickler(file, buffers=buffers, **named).load()  # type: ignore[arg-type]


# Fixed: load compares the pickle with exactly the steps that this protocol writes.
_CARRYING_PROTOCOL: Final = 4
_CARRYING_STEPS: Final = ("STACK_GLOBAL", "TUPLE1", "REDUCE", "STOP")


class _Carried:
    """A package in a pickle, which unpickling loads."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_carried, (self._content,)


def _load_carried(content: bytes, **options: Any) -> Any:
    """Load the object of a package from its bytes.

    The package becomes a file in the cache, so that its tensors are mapped, processes share it, and
    they can reopen it when they receive its objects.
    """
    digest = hashlib.sha256(content).hexdigest()

    def fill(file: Path) -> None:
        # An interrupted call may have left some of the bytes, and keep_file continues with them.
        with file.open("ab") as out:
            out.write(content[out.tell() :])

    def check(file: Path) -> None:
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise ArchiveError(str(file), "the file does not have the content of the pickle")

    source: Path | BinaryIO
    try:
        source = keep_file(digest, "pickle.modpack", len(content), fill, check)
    except CacheError:  # not writable, or on Windows: such objects can only not be sent on
        source = io.BytesIO(content)
    return load_package(source, **options)


def _read_carried(file: IO[bytes]) -> bytes:
    """Return the package in a pickle, of which nothing is executed.

    Nothing but the exact steps that :func:`dump` writes is accepted. A pickle with more of them
    could set attributes of the loaded object, or call it.

    Raises:
        UnpicklingError: If the pickle contains anything else.
    """
    name = str(getattr(file, "name", "the pickle"))
    steps: list[str] = []
    texts: list[object] = []
    found: list[Any] = []
    try:
        for operation, argument, _ in pickletools.genops(file):
            if operation.name in ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"):
                found.append(argument)
            elif operation.name == "SHORT_BINUNICODE":
                texts.append(argument)
            # These three leave the stack as it is. Everything else has to be in the expected order.
            elif operation.name not in ("PROTO", "FRAME", "MEMOIZE"):
                steps.append(operation.name)
                # Such a pickle is refused already, and the rest of it can be long.
                if len(steps) > len(_CARRYING_STEPS):
                    break
    except ValueError as failure:
        raise UnpicklingError(name, f"the pickle is damaged: {failure}") from failure
    if (*steps,) != _CARRYING_STEPS or texts != [__name__, "_load_carried"] or len(found) != 1:
        raise UnpicklingError(
            name,
            "the file is not a pickle that contains just a package, and neither a trust policy nor "
            "another option of modpack.load applies to its code",
            hint="Write it with modpack.pickle_by_source.dump, or load it without these options.",
        )
    content: bytes = found[0]
    return content


class _IsPackagedError(Exception):
    """An object of a package was met."""


class _PlainPickler(Pickler):
    """A pickler that stops at the first object of a package."""

    def reducer_override(self, obj: Any) -> Any:
        # Functions of scripts are in no module; those in the process namespace have real names.
        module = sys.modules.get(str(getattr(obj, "__module__", "")))
        if _is_private(obj) or importer_of(module) is not None:
            raise _IsPackagedError
        return super().reducer_override(obj)


def register(*picklers: type[pickle.Pickler]) -> None:
    """Let other picklers save functions of packages by their source.

    A process that receives such a function registers the picklers too, so that it can send the
    function back.

    Args:
        *picklers: Pickler classes. Default: the picklers of multiprocessing and of each imported
            copy of cloudpickle. joblib and Ray contain copies, so import them first.
    """
    for kind in picklers or _known_picklers():
        # Each function that arrives registers again, and must not wrap the wrapper of before.
        own = getattr(kind, "reducer_override", None)
        if getattr(own, "__module__", None) != __name__:
            kind.reducer_override = _overriding(own)  # type: ignore[method-assign]


def _known_picklers() -> Iterator[type[pickle.Pickler]]:
    yield ForkingPickler
    for name, module in list(sys.modules.items()):
        if name.rpartition(".")[2] in ("cloudpickle", "cloudpickle_fast"):
            found = getattr(module, "CloudPickler", None)
            if isinstance(found, type):
                yield found


def _overriding(own: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
    def reducer_override(self: Any, obj: Any) -> Any:
        reduced = _reduce(self, obj, True)
        return own(self, obj) if reduced is NotImplemented and own is not None else reduced

    return reducer_override


class _Cell:
    """A closure cell of a function; picklers for closures would follow its contents at once."""

    def __reduce__(self) -> tuple[Any, ...]:
        return make_cell, ()


def _reduce(pickler: Any, obj: Any, is_registered: bool) -> Any:
    if type(obj) is GlobalNames and "builtins" in vars(obj):
        return _make_globals, (_namespace_name(obj.builtins), is_registered)
    if type(obj) is not FunctionType:
        torch = sys.modules.get("torch")
        is_tensor = torch is not None and isinstance(obj, torch.Tensor)
        return _reduce_tensor(pickler, obj) if is_tensor else NotImplemented
    builtins = getattr(obj, "__builtins__")  # noqa: B009  # unknown to type checkers
    # Functions outside of packages, and those that can be imported, stay with the pickler's own
    # way.
    if not _namespace_name(builtins) or is_found_by_name(obj, obj.__qualname__):
        return NotImplemented
    # One substitute for each cell, and for globals, keeps functions that share them together. The
    # original is kept as well: picklers and this table know objects by id.
    seen = vars(pickler).setdefault("_modpack_by_source", {})
    module = globals_module(obj)
    if module is None:
        home: Any = seen.setdefault(id(obj.__globals__), (_globals_with(builtins), obj))[0]
    else:
        home = module.__name__
    cells = tuple(seen.setdefault(id(c), (_Cell(), c))[0] for c in obj.__closure__ or ())
    try:
        _, (text, identity, _, _), *rest = reduce_function(obj, home)
    except NoSourceError as failure:
        raise PicklingError(f"function {obj.__qualname__}", ((None, str(failure)),)) from failure
    return _make_function, (text, identity, home, cells, is_registered), *rest


def _reduce_tensor(pickler: Any, tensor: Any) -> Any:
    """Reduce a tensor with hooks of a package, which torch would leave out."""
    tables = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    hooks = [hook for table in tables for hook in (table or {}).values()]
    functions = (getattr(hook, "func", hook) for hook in hooks)  # of partial functions
    if not tensor.is_leaf or not any(_is_private(getattr(f, "__func__", f)) for f in functions):
        return NotImplemented
    # The table of multiprocessing's pickler moves tensors to shared memory.
    own = getattr(pickler, "dispatch_table", copyreg.dispatch_table).get(type(tensor))
    with warnings.catch_warnings():
        # The warning would be false: the hooks follow as state.
        warnings.filterwarnings("ignore", "backward hook .* will not be serialized")
        made = own(tensor) if own else tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    return *made[:2], tables, None, None, _set_hooks


def _is_private(obj: Any) -> bool:
    """Return whether an object is a part of a package in a private namespace."""
    if type(obj) is FunctionType and _namespace_name(getattr(obj, "__builtins__", {})):
        return True
    return is_within(str(getattr(obj, "__module__", "")), PACKAGES)


def _set_hooks(tensor: Any, tables: tuple[Any, Any]) -> None:
    """Set a tensor's hooks, which its handles refer to by their dictionaries."""
    from torch.utils.hooks import RemovableHandle

    for name, table in zip(("_backward_hooks", "_post_accumulate_grad_hooks"), tables, strict=True):
        if table:
            setattr(tensor, name, table)
            # torch counts from 0 in each process: a new hook with a used number would overwrite
            # this one.
            RemovableHandle.next_id = max(RemovableHandle.next_id, *(key + 1 for key in table))


def _globals_with(builtins: Mapping[str, Any]) -> GlobalNames:
    """Return empty globals with these builtins."""
    made = GlobalNames()
    made.builtins = builtins
    return made


def _namespace_name(builtins: Mapping[str, Any]) -> str:
    """Return the private namespace of functions with these builtins; empty for others."""
    owner = getattr(builtins.get("__import__"), "__self__", None)
    return owner.name if isinstance(owner, Namespace) and owner.prefix else ""


def _make_globals(namespace: str, is_registered: bool) -> GlobalNames:
    """Create globals for functions without a module, with the builtins of their package."""
    if is_registered:
        register()
    # In a process that has not loaded the package, this import reopens it.
    return _globals_with(importlib.import_module(namespace).__modpack__._code_builtins)


def _make_function(
    fields: tuple[Any, ...],
    identity: tuple[str, str, str],
    home: GlobalNames | str,
    cells: tuple[CellType, ...],
    is_registered: bool,
) -> FunctionType:
    """Create a function from its source; see :func:`.functions.make_function`."""
    if is_registered:
        register()
    module = importlib.import_module(home) if isinstance(home, str) else home
    return make_function(fields, identity, module, cells)
