"""Unpickling of saved objects, with classes from the package, by Python's C unpickler."""

from __future__ import annotations

import _compat_pickle
import io
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from modpack.core.names import require_module_name
from modpack.errors import ModpackError, UnpicklingError
from modpack.pickling.rebuild import MODULE, current_module
from modpack.pickling.tensor_loading import (
    StorageLoader,
    UnsoundTensorError,
    rebuilding,
    wants_fakes,
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
    """Load a pickle, with the C unpickler.

    Args:
        data: the pickle.
        resource: its name, for errors.
        import_module: imports a module that it names, from the package or from around it.
        storages: loads what its persistent ids name.
        package: what functions that rebuild packaged objects are called with.
        appended: pickles that continue it and refer to its objects.
        on_payload: called with the object in each of those.

    Raises:
        UnpicklingError: it is damaged, or names something that is not there.
        ExternNotFoundError: it needs a module that is not installed here.
        Exception: whatever packaged code raises while the object is made.
    """
    stream = io.BytesIO(data + appended)
    unpickler = _Unpickler(stream, resource, import_module, storages, package)
    try:
        loaded = unpickler.load()
        while on_payload is not None and stream.tell() < len(data) + len(appended):
            on_payload(unpickler.load())
        return loaded
    except UnsoundTensorError as failure:
        raise UnpicklingError(resource, str(failure)) from failure
    except ModpackError:
        raise
    except (pickle.UnpicklingError, EOFError) as failure:
        raise UnpicklingError(resource, f"the pickle is damaged ({failure})") from failure
    except Exception as failure:
        trace = failure.__traceback__
        if trace is not None and trace.tb_next is None:  # from C code, not from Python that it ran
            told = f"{type(failure).__name__}: {failure}"
            raise UnpicklingError(
                resource, f"the pickle cannot be carried out ({told})"
            ) from failure
        if hasattr(failure, "add_note"):  # Python 3.11
            failure.add_note(f"This happened while {resource} was being loaded from a package.")
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
        self._rebuilding = rebuilding(wants_fakes())
        self._package = package
        self._named: type[GlobalNames] | None = None
        self._rebuilt: dict[object, object] = {}
        start = stream.getvalue()[:2]
        # As Python does.
        self._has_old_names = not (start[:1] == pickle.PROTO and start[1:] >= bytes([3]))

    def find_class(self, module: str, name: str) -> Any:
        if name == "GlobalNames" and current_module(module, name) == MODULE:
            return self._global_names()
        if self._has_old_names and (module, name) in _compat_pickle.NAME_MAPPING:
            module, name = _compat_pickle.NAME_MAPPING[module, name]
        elif self._has_old_names:
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        module = current_module(module, name)
        found: Any = self._imported(module, name)
        try:
            for part in name.split("."):
                found = getattr(found, part)
        except AttributeError as failure:
            raise UnpicklingError(
                self._resource, f"it needs {name!r} from {module}, which has no such name"
            ) from failure
        return self._rebuilding(found)

    def _global_names(self) -> type[GlobalNames]:
        """The namespace of functions without a module, with the builtins of the package."""
        if self._named is None:
            from modpack.pickling.functions import GlobalNames  # most pickles name none

            self._named = GlobalNames
            builtins = getattr(self._package, "code_builtins", None)
            if builtins is not None:
                self._named = type("GlobalNames", (GlobalNames,), {"builtins": builtins})
        return self._named

    def _imported(self, module: str, name: str) -> Any:
        try:
            require_module_name(module)
        except ValueError as failure:
            raise UnpicklingError(
                self._resource, f"it needs {name!r} from {module!r}, which is no module path"
            ) from failure
        try:
            return self._import_module(module)
        except ModpackError:  # such as an extern that is not installed
            raise
        except ModuleNotFoundError as failure:
            raise UnpicklingError(
                self._resource, f"it needs {module}.{name}: {failure}"
            ) from failure

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is tuple and len(pid) == 5 and pid[0] == "storage" and type(pid[2]) is str:
            return self._storages.load(*pid[1:])  # at once: a model may have 20,000 of them
        kind, data = (_text(pid[0]), pid[1:]) if isinstance(pid, tuple) and pid else (None, ())
        if kind == "storage" and len(data) == 4:
            storage_type, key, location, size = data
            return self._storages.load(storage_type, _text(key), _text(location), size)
        if kind == "reduce_package" and len(data) in (2, 3):
            *number, function, arguments = data  # old archives do not number the objects
            is_plain = all(isinstance(part, (int, str)) for part in number)
            if callable(function) and isinstance(arguments, tuple) and is_plain:
                return self._rebuild(tuple(number), function, arguments)
        if kind == "module" and len(data) == 1:
            return self._imported(str(_text(data[0])), "a module")
        raise UnpicklingError(
            self._resource,
            f"unknown persistent id {pid!r:.200}; known are 'storage' and 'reduce_package'. "
            "Was the package written by a newer modpack?",
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
    """Old pickles hold their strings as bytes."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
