"""Unpickling of saved objects with Python's C unpickler, with classes from the package."""

from __future__ import annotations

import _compat_pickle
import io
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from modpack.core.names import require_module_name
from modpack.errors import ModpackError, UnpicklingError
from modpack.pickling.rebuild import MODULE
from modpack.pickling.tensor_loading import (
    StorageLoader,
    UnsoundTensorError,
    checked_functions,
    is_fake_mode,
)

if TYPE_CHECKING:
    from modpack.pickling.functions import GlobalNames


def unpickle_object(
    data: bytes,
    *,
    resource: str,
    import_module: Callable[[str], ModuleType],
    storages: StorageLoader,
    package: object,
    appended: bytes = b"",
    on_payload: Callable[[Any], None] | None = None,
) -> Any:
    """Load a pickle with the C unpickler.

    Args:
        data: The pickle.
        resource: The pickle's name, for errors.
        import_module: Imports a module, from the package or the loading environment.
        storages: Loads the storages that persistent ids name.
        package: The first argument of functions that rebuild packaged objects.
        appended: Pickles that continue it and refer to its objects.
        on_payload: Called with the object of each appended pickle.

    Raises:
        UnpicklingError: If the pickle is damaged, or names something that does not exist.
        ExternNotFoundError: If it requires a module that is not installed.
        Exception: If packaged code raises one while an object is created.
    """
    stream = io.BytesIO(data + appended)
    unpickler = _Unpickler(stream, resource, import_module, storages, package)
    try:
        loaded = unpickler.load()
        while on_payload is not None and stream.tell() < len(data) + len(appended):
            on_payload(unpickler.load())
        return loaded
    except UnsoundTensorError as failure:
        raise UnpicklingError(resource, failure.reason, hint=failure.hint) from failure
    except ModpackError:
        raise
    except (pickle.UnpicklingError, EOFError) as failure:
        raise UnpicklingError(resource, f"the pickle is damaged ({failure})") from failure
    except Exception as failure:
        trace = failure.__traceback__
        if trace is not None and trace.tb_next is None:  # raised by C code, not by Python code
            raise UnpicklingError(
                resource, f"the pickle cannot be executed ({type(failure).__name__}: {failure})"
            ) from failure
        if hasattr(failure, "add_note"):  # Python 3.11
            failure.add_note(f"Raised while loading {resource} from a package.")
        raise


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        stream: io.BytesIO,
        resource: str,
        import_module: Callable[[str], ModuleType],
        storages: StorageLoader,
        package: object,
    ) -> None:
        super().__init__(stream)
        self._resource = resource
        self._import_module = import_module
        self._storages = storages
        self._checked = checked_functions(is_fake_mode())
        self._package = package
        self._named: type[GlobalNames] | None = None
        self._rebuilt: dict[object, object] = {}
        start = stream.getvalue()[:2]
        # The same test as in Python's unpickler.
        self._has_old_names = not (start[:1] == pickle.PROTO and start[1:] >= bytes([3]))

    def find_class(self, module: str, name: str) -> Any:
        # Functions get the builtins of this package with their globals, so it needs a class of its
        # own.
        if name == "GlobalNames" and module == MODULE:
            return self._global_names()
        if self._has_old_names and (module, name) in _compat_pickle.NAME_MAPPING:
            module, name = _compat_pickle.NAME_MAPPING[module, name]
        elif self._has_old_names:
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        found: Any = self._imported(module, name)
        try:
            for part in name.split("."):
                found = getattr(found, part)
        except AttributeError as failure:
            raise UnpicklingError(
                self._resource, f"{module} has no {name!r}, which the pickle refers to"
            ) from failure
        return self._checked(found)

    def _global_names(self) -> type[GlobalNames]:
        """Return the class for globals of functions without a module, with package builtins."""
        if self._named is None:
            from modpack.pickling.functions import GlobalNames  # not needed by most pickles

            self._named = GlobalNames
            builtins = getattr(self._package, "_code_builtins", None)
            if builtins is not None:
                self._named = type("GlobalNames", (GlobalNames,), {"builtins": builtins})
        return self._named

    def _imported(self, module: str, name: str) -> Any:
        try:
            require_module_name(module)
        except ValueError as failure:
            raise UnpicklingError(
                self._resource, f"{name!r} is in {module!r}, which is not a module path"
            ) from failure
        try:
            return self._import_module(module)
        except ModpackError:  # such as an extern that is not installed
            raise
        except ModuleNotFoundError as failure:
            raise UnpicklingError(
                self._resource, f"the pickle refers to {module}.{name}: {failure}"
            ) from failure

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is tuple and len(pid) == 5 and pid[0] == "storage" and type(pid[2]) is str:
            return self._storages.load(*pid[1:])  # fast path: a model may have 20,000 of them
        kind, data = (_text(pid[0]), pid[1:]) if isinstance(pid, tuple) and pid else (None, ())
        if kind == "storage" and len(data) == 4:
            storage_type, key, location, size = data
            return self._storages.load(storage_type, _text(key), _text(location), size)
        if kind == "reduce_package" and len(data) in (2, 3):
            *number, function, arguments = data  # old archives have no numbers
            is_plain = all(isinstance(part, (int, str)) for part in number)
            if callable(function) and isinstance(arguments, tuple) and is_plain:
                return self._rebuild(tuple(number), function, arguments)
        if kind == "module" and len(data) == 1:
            return self._imported(str(_text(data[0])), "a module")
        raise UnpicklingError(
            self._resource,
            f"the persistent ID {pid!r:.200} is not valid; expected the form of a 'storage', "
            "'reduce_package', or 'module'",
            hint="If a newer version of modpack wrote the package, upgrade modpack.",
        )

    def _rebuild(
        self, number: tuple[object, ...], function: Callable[..., object], arguments: Any
    ) -> object:
        if not number:
            return function(self._package, *arguments)
        if number not in self._rebuilt:
            self._rebuilt[number] = function(self._package, *arguments)
        return self._rebuilt[number]


def _text(value: Any) -> Any:
    """Decode a string that an old pickle contains as bytes."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
