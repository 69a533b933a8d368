"""TARGET: resolving ``module:attr`` or ``file.py:attr`` to an object."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
import sysconfig
import tokenize
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import cast

from modpack.core.names import did_you_mean, is_everywhere
from modpack.discovery.script import has_side_effects
from modpack.errors import ModpackError


class BadTargetError(ModpackError):
    """TARGET does not name an object that can be packaged."""


class UserCodeError(ModpackError):
    """The user's code raised an exception.

    Args:
        task: The reason for running the code, such as ``"building train.py:model"``.
        failure: The exception.
        trace: The traceback to show. Empty omits it.
    """

    def __init__(self, task: str, failure: BaseException, trace: str) -> None:
        self.trace = trace
        location = _location_of(failure)
        raised = "".join(traceback.format_exception_only(type(failure), failure)[-1:]).strip()
        super().__init__(
            f"{task} failed: {raised}{f' ({location})' if location else ''}",
            hint="" if trace else "Pass --debug to show the traceback.",
        )


@dataclass(frozen=True)
class Target:
    """The object to export.

    Attributes:
        text: The target as the user wrote it.
        module: The name of the module.
        attribute: The attribute of the module. It may be dotted.
        folder: The folder to put on the import path.
        file: The module's file, if the user named the file.
    """

    text: str
    module: str
    attribute: str
    folder: Path
    file: Path | None = None

    @property
    def is_script(self) -> bool:
        """Whether the target is a single file that does more than import and define."""
        if self.file is None or "." in self.module:
            return False
        with tokenize.open(self.file) as source:
            return has_side_effects(source.read())


def parse_target(text: str, base: Path) -> Target:
    """Read ``module:attr`` or ``file.py:attr``.

    Args:
        text: The target as the user wrote it.
        base: The folder that a file is relative to and that is searched first for a module.

    Raises:
        BadTargetError: If the text has neither form, or the file does not exist.
    """
    source, _, attribute = text.rpartition(":")
    if not source or not all(part.isidentifier() for part in attribute.split(".")):
        raise BadTargetError(
            f"{text!r} does not name an object",
            hint="Pass MODULE:ATTR (mylib.zoo:make_model) or FILE.py:ATTR (train.py:model).",
        )
    # Windows accepts both separators.
    if source.endswith(".py") or os.sep in source or "/" in source:
        return _file_target(text, (base / source).absolute(), attribute)
    if not all(part.isidentifier() for part in source.split(".")):
        raise BadTargetError(f"{text!r} does not name an object: {source!r} is not a module name")
    return Target(text, source, attribute, base)


def _file_target(text: str, file: Path, attribute: str) -> Target:
    if file.is_dir():
        raise BadTargetError(f"{file} is a folder", hint="Pass a Python file in it.")
    if not file.is_file():
        raise BadTargetError(f"{file}: the file does not exist")
    names = [] if file.name == "__init__.py" else [file.name.removesuffix(".py")]
    folder = file.parent
    # Code inside a package imports its neighbors by the full name of the package.
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        names.insert(0, folder.name)
        folder = folder.parent
    if file.suffix != ".py" or not all(name.isidentifier() for name in names):
        raise BadTargetError(
            f"{file}: cannot be imported, because {'.'.join(names)!r} is not a module name",
            hint="Rename the file.",
        )
    if is_everywhere(names[0]):
        raise BadTargetError(
            f"{file}: cannot be packaged, because every package imports {names[0]!r} from the "
            "loading environment",
            hint="Rename the file.",
        )
    return Target(text, ".".join(names), attribute, folder, file)


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Put a folder first on the import path.

    Output of the user's code goes to stderr, because stdout is for the command's report.
    """
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    # Finders remember the entries of folders, and this one may be new.
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = before


@contextlib.contextmanager
def user_code_errors(task: str, debug: bool) -> Iterator[None]:
    """Turn an exception of the user's code into an error with its location.

    Args:
        task: The reason for running the code, such as ``"building train.py:model"``.
        debug: Whether the error includes the traceback.

    Raises:
        UserCodeError: If the code raises an exception or exits.
    """
    try:
        yield
    except ModpackError:
        raise
    # A script can end with sys.exit, which would end the command with its status.
    except (Exception, SystemExit) as failure:
        shown = failure.with_traceback(_skip_own_frames(failure.__traceback__))
        trace = "".join(traceback.format_exception(shown)) if debug else ""
        raise UserCodeError(task, failure, trace) from failure


def build(target: Target, debug: bool) -> object:
    """Import a target's module, get its object, and call the object if it is a factory.

    Functions, methods, classes, and :class:`functools.partial` objects are factories. Other
    callables are not, because every ``torch.nn.Module`` instance is callable.

    Args:
        target: The target.
        debug: Whether errors in the user's code include their traceback.

    Raises:
        BadTargetError: If the module or attribute does not exist, the factory requires
            arguments, or the object is None.
        UserCodeError: If the user's code raises an exception.
    """
    module = _import(target, debug)
    with user_code_errors(f"building {target.text}", debug):
        found = _attribute(target, module)
        is_code = inspect.isroutine(found) or inspect.isclass(found)
        if is_code or isinstance(found, functools.partial):
            factory = cast(Callable[[], object], found)
            _require_no_arguments(target, factory)
            found = factory()
    if found is None:
        raise BadTargetError(f"{target.text} is None, so there is nothing to package")
    return found


def _import(target: Target, debug: bool) -> ModuleType:
    with user_code_errors(f"importing {target.module}", debug):
        try:
            module = importlib.import_module(target.module)
        except ModuleNotFoundError as failure:
            missing = failure.name or ""
            # A missing import of the user's module is an error in that module, not in TARGET.
            if target.module != missing and not target.module.startswith(f"{missing}."):
                raise
            raise BadTargetError(
                f"module {missing!r} was not found in {target.folder} or in the environment"
            ) from failure
    found = getattr(module, "__file__", None)
    if target.file is None or (found and Path(found).samefile(target.file)):
        return module
    raise BadTargetError(
        f"{target.file}: cannot be imported, because {found or 'another module'} is already "
        f"imported as {target.module!r}",
        hint="Rename the file.",
    )


def _attribute(target: Target, module: ModuleType) -> object:
    found: object = module
    for position, part in enumerate(target.attribute.split(".")):
        if not hasattr(found, part):
            owner = ".".join([target.module, *target.attribute.split(".")[:position]])
            hint = did_you_mean(part, dir(found))
            raise BadTargetError(f"{owner} has no attribute {part!r}", hint=hint)
        found = getattr(found, part)
    return found


def _require_no_arguments(target: Target, factory: Callable[[], object]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # some built-in callables have no signature; the call will fail instead
    try:
        signature.bind()
    except TypeError as failure:
        raise BadTargetError(
            f"{target.text} requires arguments ({failure}); its signature is {signature}",
            hint="Pass a function without required arguments that returns the model.",
        ) from failure


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback that starts in the user's code."""
    own = (__file__, importlib.__file__)
    while trace is not None and trace.tb_next is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in own and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace


def _location_of(failure: BaseException) -> str | None:
    """Return ``file:line`` of the last frame in the user's code, or else of the last frame."""
    if isinstance(failure, SyntaxError) and failure.filename:
        return f"{failure.filename}:{failure.lineno}"
    frames = traceback.extract_tb(failure.__traceback__)
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    others = [sysconfig.get_path(name) for name in names] + [str(Path(__file__).parents[1])]
    prefixes = ("<", *(f"{folder}{os.sep}" for folder in others if folder))
    users = [frame for frame in frames if not frame.filename.startswith(prefixes)]
    # An error in a library is shown where the user's code called it.
    chosen = users or frames
    return f"{chosen[-1].filename}:{chosen[-1].lineno}" if chosen else None
