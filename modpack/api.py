"""One line each way, and what packaged code asks about itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

from modpack.core.names import root_of
from modpack.core.process import gc_paused
from modpack.discovery.importers import Importer, sys_importer
from modpack.discovery.importers import importer_of as module_importer
from modpack.errors import ModpackError

if TYPE_CHECKING:
    from modpack.core.plan import Plan
    from modpack.core.policy import TrustPolicy
    from modpack.hooks.describe import HookChoice
    from modpack.importer import PackageImporter

__all__ = ["current_importer", "importer_of", "is_from_package", "load", "save"]

MAIN_PACKAGE, MAIN_RESOURCE = "__model__", "model.pkl"


def save(
    obj: object,
    path: str | os.PathLike[str] | BinaryIO,
    *,
    intern: str | Iterable[str] = (),
    extern: str | Iterable[str] = (),
    mock: str | Iterable[str] = (),
    deny: str | Iterable[str] = (),
    preset: str = "pinned",
    intern_native: bool = False,
    importer: Importer | Sequence[Importer] = sys_importer,
    debug: bool = False,
    pickle_protocol: int = 3,
    optimizer: object = None,
    hooks: HookChoice = True,
    global_hooks: bool = False,
    reset_hook_state: HookChoice = False,
    example_inputs: object = None,
    example_kwargs: object = None,
    self_test: bool | str = True,
    allow_secrets_in: str | Iterable[str] = (),
    progress: bool | None = None,
) -> Plan:
    """Package a model, or any object, with its hooks and the code that it needs.

    Args:
        obj: the model.
        path: where to write; a path or a binary file object.
        intern: patterns of module paths whose sources come along; asked last. Use
            :class:`PackageExporter` for another order.
        extern: patterns of module paths that are imported where the package is loaded.
        mock: patterns of module paths that are replaced by stand-ins.
        deny: patterns of module paths that must not be needed; asked first.
        preset: what happens to modules that no pattern names. ``"pinned"``: installed
            distributions are extern, all other code is interned. ``"hermetic"``: pure-Python
            distributions are interned too. ``"none"``: it is an error. See
            :meth:`PackageExporter.use_preset`.
        intern_native: whether compiled modules can be interned: the package then loads only on
            the same platform, with the same Python.
        importer: where the object comes from; see :class:`PackageExporter`.
        debug: whether an error shows how each module is reached.
        pickle_protocol: 2 to 5.
        optimizer: the model's optimizer, which is packaged with its own hooks.
        hooks: which hooks to capture: True, False, names, or a predicate over specs.
        global_hooks: whether to capture the hooks of the whole process as well.
        reset_hook_state: whose collected state to leave behind; see
            :meth:`PackageExporter.save_model`.
        example_inputs: what to try the package with before it is put in its place: a tuple
            holds the positional arguments of one call, a mapping with names of arguments the
            arguments by name, anything else is the one argument.
        example_kwargs: further arguments by name.
        self_test: what to do with example inputs: True tries the package in an interpreter that
            cannot see what it interns; ``"warn"`` writes it even if it fails; False does nothing.
        allow_secrets_in: where something may be that looks like a secret; see
            :class:`PackageExporter`.
        progress: Whether stderr shows what is being done, once that takes more than a second. By
            default at a terminal and in a notebook.

    Returns:
        The plan that was carried out.

    Raises:
        TypeError, ValueError: an argument is none of these.
        PackagingError: the package cannot be written; all reasons at once.
        PicklingError: something in the object cannot be saved.
        ExampleError: the live object does not run on the example inputs.
        SelfTestError: the package was tried and failed; what was there before is still there.
    """
    with gc_paused():  # as for a name of modpack (benchmark row round-trip)
        from modpack.exporter import PackageExporter, require_target

    try:
        require_target(path, "path")
    except TypeError as failure:
        if not isinstance(obj, (str, os.PathLike)):
            raise
        raise TypeError(f"{failure}. The object comes first: save(model, {obj!r})") from None
    given = {"deny": deny, "mock": mock, "extern": extern, "intern": intern}
    rules = {action: _patterns(patterns, action) for action, patterns in given.items()}
    with (
        _shown("Saving", path, progress),
        PackageExporter(
            path, importer, debug, self_test=self_test, allow_secrets_in=allow_secrets_in
        ) as exporter,
    ):
        for action, patterns in rules.items():
            if patterns:
                getattr(exporter, action)(patterns)
        exporter.use_preset(preset, intern_native=intern_native)
        exporter.save_model(
            MAIN_PACKAGE,
            MAIN_RESOURCE,
            obj,
            optimizer,
            hooks=hooks,
            global_hooks=global_hooks,
            reset_hook_state=reset_hook_state,
            pickle_protocol=pickle_protocol,
            example_inputs=example_inputs,
            example_kwargs=example_kwargs,
        )
        return exporter.close()


def load(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    package: str | None = None,
    resource: str | None = None,
    map_location: Any = None,
    namespace: str = "auto",
    hooks: HookChoice = True,
    with_optimizer: bool = False,
    global_hooks: bool = False,
    on_mismatch: str = "warn",
    policy: TrustPolicy | None = None,
    verify: str = "code",
    progress: bool | None = None,
) -> Any:
    """Load the object that a package is about, with its hooks registered again.

    Loading a package runs the code in it: load only what you trust. The package stays open for
    what its code may import later; to let go of it, use :class:`PackageImporter` and close that.
    Tensors are mapped from its file: replace that by renaming another, never write into it.

    Args:
        path: a package file, a binary file object, or the folder of an unzipped package.
        package: with ``resource``, which saved object. By default the one that :func:`save`
            wrote, or the only one.
        resource: see ``package``; both or neither.
        map_location: where tensors go; see :func:`torch.load`.
        namespace: ``"private"`` or ``"process"``; see :class:`PackageImporter`. By default the one
            in which the package's self-test found that it works, private if it was not tried.
        hooks: which hooks to register: True, False, names, or a predicate over specs.
        with_optimizer: Whether to return the optimizer that was saved with it, too.
        global_hooks: whether to register process-wide hooks that were captured.
        on_mismatch: ``"warn"``, ``"error"`` or ``"ignore"``, if the installed versions differ
            from the recorded ones; see :class:`PackageImporter`.
        policy: what the package may ask for; see :class:`TrustPolicy`. None allows everything.
        verify: ``"code"`` compares everything but tensors with its digests first, ``"full"`` the
            tensors too; see :class:`PackageImporter`.
        progress: Whether stderr shows what is being done; see :func:`save`.

    Returns:
        The object; with ``with_optimizer=True``, the object and its optimizer, or None.

    Raises:
        TypeError, ValueError: an argument is none of these, or no hook has a name.
        EnvironmentMismatchError: If ``on_mismatch="error"`` and anything differs; no code has run.
        TrustError, SignatureError: the policy does not allow what it asks for, or the signature
            that the policy demands is missing or does not hold; no code has run, if the package
            tells all that it does.
        ModpackError: it cannot be loaded, or it is not clear which object is meant.
    """
    if (package is None) != (resource is None):
        raise TypeError("give both package and resource, or neither")
    # Paused as in save; packaged code is imported without (benchmark row first-load).
    with _shown("Loading", path, progress), gc_paused():
        from modpack.importer import PackageImporter

        importer = PackageImporter(
            path, namespace=namespace, on_mismatch=on_mismatch, policy=policy, verify=verify
        )
        try:
            if package is None or resource is None:
                package, resource = importer.main_resource()
            return importer.load_model(
                package,
                resource,
                map_location,
                hooks=hooks,
                with_optimizer=with_optimizer,
                global_hooks=global_hooks,
            )
        except BaseException:
            importer.close()
            raise


def importer_of(obj: object) -> PackageImporter | None:
    """The importer of the package that something was loaded from.

    What was loaded with :func:`load` is saved again with
    ``importer=[importer_of(model), sys_importer]``.

    Args:
        obj: a model that was loaded, a part of it, or its optimizer; a module, a class, a
            function, or an object of a packaged class.

    Returns:
        The importer, or None if it came from no package, or from one that is closed.
    """
    from modpack.importer import PackageImporter, loader_of, loader_of_part

    loader = loader_of(obj)
    if loader is not None:
        return loader
    if isinstance(obj, ModuleType):
        places = [obj]
    else:
        named = obj if isinstance(getattr(obj, "__module__", None), str) else type(obj)
        name = str(getattr(named, "__module__", ""))
        # A module may have put something else into its place; its namespace is still there.
        places = [sys.modules[n] for n in (name, root_of(name)) if n in sys.modules]
    owners = (module_importer(place) for place in places)
    owner = next((owner for owner in owners if isinstance(owner, PackageImporter)), None)
    if owner is None:
        nn = sys.modules.get("torch.nn")
        if nn is not None and isinstance(obj, nn.Module):  # its model may have packaged hooks
            return loader_of_part(obj)
    return owner


def is_from_package(obj: object) -> bool:
    """Whether a model, a module, a class, a function or an object's class is from a package."""
    return importer_of(obj) is not None


def current_importer() -> PackageImporter:
    """The importer of the package that the calling code was loaded from.

    Code that packaged code calls is taken for a part of it: the innermost packaged function in
    the chain of calls decides.

    Raises:
        ModpackError: nothing in the chain of calls of this thread is packaged code.
    """
    from modpack.importer import PackageImporter

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        importer = frame.f_globals.get("__modpack__")
        if isinstance(importer, PackageImporter):
            return importer
        frame = frame.f_back
    raise ModpackError("current_importer() was called by code that no package holds")


def _shown(doing: str, path: object, progress: object) -> AbstractContextManager[None]:
    """Show the progress of what is done to a package, if that is wanted."""
    if not (progress is None or isinstance(progress, bool)):
        raise TypeError(f"progress must be a bool or None, not {type(progress).__name__}")
    is_open = sys.stderr is not None and not getattr(sys.stderr, "closed", False)
    if not progress and not (is_open and ("IPython" in sys.modules or sys.stderr.isatty())):
        return nullcontext()
    from modpack.report.progress import working

    name = str(path) if isinstance(path, (str, os.PathLike)) else "a package"
    return working(f"{doing} {name}", progress)


def _patterns(given: object, argument: str) -> list[str]:
    patterns = [given] if isinstance(given, str) else given
    if isinstance(patterns, (bytes, bytearray)) or not isinstance(patterns, Iterable):
        raise TypeError(
            f"{argument} must be a pattern or several patterns, not {type(given).__name__}"
        )
    listed = list(patterns)
    for pattern in listed:
        if not isinstance(pattern, str):
            raise TypeError(f"{argument} must hold patterns (str), not {type(pattern).__name__}")
    return listed
