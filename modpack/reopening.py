"""Reopening packages of objects that other processes have sent.

Unpickling imports the module of an object's class. If that module is in a private namespace that
this process does not have, :class:`ReopeningFinder` opens the package with all checks, with the
trust policy of the sender, and with the other options of the user's last load with that policy. The
names are exactly those of the sender. An importer that the user opens for the same package later
claims the namespace.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from modpack.archive import layout
from modpack.archive.records import read_objects
from modpack.core.names import PACKAGES, namespace_of
from modpack.core.process import calling_frames
from modpack.core.text import printable
from modpack.errors import ModpackError, PackageNotFoundError, ReopenError
from modpack.importer import PackageImporter
from modpack.loading.namespace import Namespace, is_closed, open_namespace
from modpack.loading.package_record import LOCAL, PackageRecord, read_record, record_file

_NAME = re.compile(
    rf"({re.escape(PACKAGES)}\.p[0-9a-f]{{32}}(?:_[0-9a-f]{{16}})?)({LOCAL})?(?:_[1-9]\d{{0,8}})?"
)
"""The name of a namespace: that of its record, whether it has none, and a number."""
_LOAD_FIRST = "load the package in this process first"


class ReopeningFinder(MetaPathFinder):
    """Finds namespaces of packages that this process has not loaded, by their records."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a namespace (:meth:`importlib.abc.MetaPathFinder.find_spec`).

        Raises:
            ReopenError: If the package cannot be reopened.
        """
        parent = sys.modules.get(namespace_of(fullname))
        # A pickle names modules below the namespace. importlib asks for them after the placeholder.
        if isinstance(parent, _UnavailableModule):
            return _spec_of(_UnavailableModule(fullname, parent.failure))
        match = _NAME.fullmatch(fullname)
        if match is None:
            return None
        try:
            return _spec_of(_reopen(fullname, match[1], match[2] is not None))
        except ReopenError as failure:
            if not _is_pool_receiving():
                raise
            return _spec_of(_UnavailableModule(fullname, failure))


def _spec_of(module: ModuleType) -> ModuleSpec:
    """Return the spec of a module that exists already."""
    spec = ModuleSpec(module.__name__, _ModuleLoader(module), is_package=True)
    spec.submodule_search_locations = list(module.__path__)
    # importlib prefers the spec of a module that is in sys.modules to the one that it is given,
    # and would create a second module from that.
    module.__spec__ = spec
    return spec


class _ModuleLoader(Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec of the module, which has the package's resources."""
        module.__spec__ = self._spec or module.__spec__


def _reopen(name: str, plain_name: str, is_local: bool) -> ModuleType:
    """Open a package, and return the module of its namespace.

    Args:
        name: The name of the namespace.
        plain_name: The name of its record.
        is_local: Whether its options could not be sent.

    Raises:
        ReopenError: If the package cannot be reopened.
    """
    # Objects of the closed importer are still alive; reopened classes would not be theirs.
    if is_closed(name):
        reason = "its importer was closed in this process"
        raise ReopenError(name, reason, hint="Load the package again, or close its importer later.")
    if is_local:
        reason = "it was loaded with module_allowed, a function that cannot be sent"
        raise ReopenError(name, reason, hint=f"Pass a TrustPolicy instead, or {_LOAD_FIRST}.")
    try:
        record = read_record(plain_name)
    except FileNotFoundError as failure:
        reason = f"there is no record of the package in {record_file(plain_name).parent}"
        # The usual case: a pickle left the machine, user, or cache folder of the loaded package.
        hint = (
            "The pickle refers to the package and does not contain it. Load the package by its "
            "path before the pickle, or write the object with modpack.pickle_by_source.dump or "
            "modpack.save instead."
        )
        raise ReopenError(name, reason, module=_wanted_module(name), hint=hint) from failure
    except (OSError, ValueError, RuntimeError) as failure:
        hint = f"Remove the record and load the package again, or {_LOAD_FIRST}."
        raise ReopenError(name, printable(str(failure)), hint=hint) from failure
    try:
        importer = _ReopenedImporter(name, record)
    # From _digest below: as a ModpackError, it would be wrapped a second time.
    except ReopenError:
        raise
    except PackageNotFoundError as failure:
        hint = f"Move the file back, or {_LOAD_FIRST} by its new path."
        raise ReopenError(name, "the file does not exist", record.path, hint=hint) from failure
    except (ModpackError, OSError, TypeError, ValueError) as failure:  # last two: bad options
        reason = str(failure).removeprefix(f"{record.path}: ")
        hint = "" if getattr(failure, "hint", "") else f"Restore the file, or {_LOAD_FIRST}."
        raise ReopenError(name, reason, record.path, hint=hint) from failure
    importer.fill_scripts()
    return sys.modules[name]


def _wanted_module(namespace: str) -> str:
    """Return the module for which importlib imports its namespace, or an empty string.

    A pickle of plain :mod:`pickle` has nothing but the module's name to say what is missing.
    """
    # importlib imports parents first, and finders get the name of the parent only.
    for frame in calling_frames(sys._getframe(1)):
        wanted = str(frame.f_locals.get("name"))
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            if wanted.startswith(f"{namespace}."):
                return wanted.removeprefix(f"{namespace}.")
    return ""


class _ReopenedImporter(PackageImporter):
    """The importer of a package that an import reopened."""

    def __init__(self, name: str, record: PackageRecord) -> None:
        self._name = name
        self._record_of_package = record
        super().__init__(
            record.path,
            policy=record.policy,
            verify=record.verify,
            on_mismatch=record.on_mismatch,
            namespace="private",
            lazy=record.lazy,
        )

    def fill_scripts(self) -> None:
        """Set the values that pickles set in modules of scripts, by loading these pickles."""
        policy = self._record_of_package.policy
        # Loading a pickle executes code, which a policy for data does not allow.
        if self._archive.has(layout.ENTRY) and (policy is None or policy.allow_code):
            for package, resource in read_objects(self._archive).pickles:
                if b"set_in_script" in self.load_binary(package, resource):
                    # Only values in modules are needed, and the sender's device may be missing
                    # here.
                    self.load_pickle(package, resource, "cpu")

    def _digest(self) -> str:
        digest = super()._digest()
        record = self._record_of_package
        # The record names a path, where another package can be by now.
        if digest != record.digest:
            reason = f"the file now contains another package, with digest {digest[:32]}"
            hint = f"Restore the file, or {_LOAD_FIRST} by its new path."
            raise ReopenError(self._name, reason, record.path, hint=hint)
        return digest

    def _open_namespace(self, kind: str, name: str) -> Namespace:
        # The name comes from the sender, number included: pickles contain it verbatim.
        source, index, tree = self.filename, self._index, self._tree
        return open_namespace(kind, self._name, source, index, tree, self, is_reopened=True)


# multiprocessing.Pool replaces a worker that cannot unpickle a task, and never reports the error:
# the caller waits forever. Only there, unpickling succeeds and every use of the result raises.


def _is_pool_receiving() -> bool:
    """Return whether a multiprocessing.Pool is starting, or is unpickling a task or a result."""
    is_received = False
    for frame in calling_frames(sys._getframe(1)):
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module in ("multiprocessing.queues", "multiprocessing.connection"):
            is_received |= function in ("get", "recv")
        elif module == "multiprocessing.pool" and function == "_handle_results":
            return is_received
        elif module == "multiprocessing.pool" and function == "worker":
            return is_received or "completed" not in frame.f_locals  # in its initializer
        # With spawn, initargs are unpickled with the process object, before the pool's worker runs.
        elif module == "multiprocessing.spawn" and function == "_main":
            return "PoolWorker" in sys.modules["multiprocessing.process"].current_process().name
    return False


class _UnavailableModule(ModuleType):
    """A module of a package that could not be reopened, for a multiprocessing.Pool."""

    def __init__(self, name: str, failure: ReopenError) -> None:
        super().__init__(name)
        self.failure = failure
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        # importlib and pickle probe for special names, and expect an AttributeError.
        if name.startswith("__"):
            raise AttributeError(name)
        contents: dict[str, Any] = {"_failure": self.failure}
        return _UnavailableClass(name, (_Unavailable,), contents)


class _UnavailableClass(type):
    """The class of classes that stand for those of a package that could not be reopened."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Unavailable:
    """An object that ignores its state while it is unpickled, and then raises when it is used."""

    _failure: ReopenError

    def __new__(cls, *arguments: object, **options: object) -> Any:
        return super().__new__(cls)._raise()

    def _raise(self, *arguments: object, **options: object) -> Any:
        if _is_pool_receiving():
            return self
        raise self._failure

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._raise()

    def __repr__(self) -> str:
        return f"<unavailable: {self._failure}>"

    def __setstate__(self, state: object) -> None:
        """Ignore the state."""

    __call__ = __getitem__ = __setitem__ = __iter__ = __len__ = __enter__ = __reduce_ex__ = _raise
