"""Loading: a pickle of a package becomes objects again, with classes from the package."""

from __future__ import annotations

import _compat_pickle
import io
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

from modpack.errors import UnpicklingError
from modpack.pickling.storages import StorageLoader

__all__ = ["unpickle_object"]


def unpickle_object(
    data: bytes,
    *,
    resource: str,
    import_module: Callable[[str], ModuleType],
    storages: StorageLoader,
    package: object,
) -> Any:
    """Load a pickle, with the C unpickler.

    Args:
        data: the pickle.
        resource: its name, for errors.
        import_module: imports a module that it names, from the package or from around it.
        storages: loads what its persistent ids name.
        package: what functions that rebuild packaged objects are called with.

    Raises:
        UnpicklingError: it is damaged, or names something that is not there.
    """
    unpickler = _Unpickler(data, resource, import_module, storages, package)
    try:
        return unpickler.load()
    except (pickle.UnpicklingError, EOFError) as failure:
        raise UnpicklingError(resource, f"the pickle is damaged ({failure})") from failure


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        data: bytes,
        resource: str,
        import_module: Callable[[str], ModuleType],
        storages: StorageLoader,
        package: object,
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._resource = resource
        self._import_module = import_module
        self._storages = storages
        self._package = package
        self._rebuilt: dict[object, object] = {}
        self._old_names = data[:1] == pickle.PROTO and data[1] < 3

    def find_class(self, module: str, name: str) -> Any:
        if self._old_names:
            module, name = _python3_name(module, name)
        try:
            found: Any = self._import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except ModuleNotFoundError as failure:
            raise UnpicklingError(
                self._resource, f"it needs {module}.{name}: {failure}"
            ) from failure
        except AttributeError as failure:
            raise UnpicklingError(
                self._resource, f"it needs {name!r} from {module}, which has no such name"
            ) from failure
        return found

    def persistent_load(self, pid: Any) -> Any:
        kind, data = _parts(pid)
        if kind == "storage" and len(data) == 4:
            storage_type, key, location, size = data
            return self._storages.load(storage_type, _text(key), _text(location), size)
        if kind == "reduce_package" and len(data) == 2:
            function, arguments = data  # old archives do not number the objects
            return function(self._package, *arguments)
        if kind == "reduce_package" and len(data) == 3:
            number, function, arguments = data
            if number not in self._rebuilt:
                self._rebuilt[number] = function(self._package, *arguments)
            return self._rebuilt[number]
        raise UnpicklingError(
            self._resource,
            f"unknown persistent id {pid!r:.200}; known are 'storage' and 'reduce_package'. "
            "Was the package written by a newer modpack?",
        )


def _parts(pid: object) -> tuple[object, tuple[Any, ...]]:
    if isinstance(pid, tuple) and pid:
        return _text(pid[0]), pid[1:]
    return None, ()


def _text(value: Any) -> Any:
    """Old pickles hold their strings as bytes."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _python3_name(module: str, name: str) -> tuple[str, str]:
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


