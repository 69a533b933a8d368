"""TARGET: from ``module:attr`` or ``file.py:attr`` to the object that it names."""

from __future__ import annotations

import contextlib
import difflib
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

from modpack.core.names import is_everywhere
from modpack.discovery.script import does_work
from modpack.errors import ModpackError


class BadTargetError(ModpackError):
    """TARGET does not lead to an object."""


class UserCodeError(ModpackError):
    """The user's own code raised something.

    Args:
        doing: what it was run for.
        failure: what it raised.
        trace: the traceback to show; empty to leave it out.
    """

    def __init__(self, doing: str, failure: BaseException, trace: str) -> None:
        self.trace = trace
        place = _place_of(failure)
        hint = "" if trace else "\n--debug shows the traceback"
        what = "".join(traceback.format_exception_only(type(failure), failure)[-1:]).strip()
        super().__init__(f"{doing} failed: {what}{f' ({place})' if place else ''}{hint}")


@dataclass(frozen=True)
class Target:
    """What is to be exported.

    Attributes:
        text: as the user gave it.
        module: the path of the module.
        attribute: what to take from it; may be dotted.
        folder: what is put on the import path, so that the module can be found.
        file: the module's file, if the user named that.
    """

    text: str
    module: str
    attribute: str
    folder: Path
    file: Path | None = None

    @property
    def is_script(self) -> bool:
        """Whether it is a file on its own that does work when it is imported."""
        if self.file is None or "." in self.module:
            return False
        with tokenize.open(self.file) as source:
            return does_work(source.read())


def parse_target(text: str, base: Path) -> Target:
    """Read ``module:attr`` or ``file.py:attr``.

    Args:
        text: as the user gave it.
        base: what a file is relative to, and where a module is looked for first.

    Raises:
        BadTargetError: it is neither, or there is no such file.
    """
    place, _, attribute = text.rpartition(":")
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise BadTargetError(
            f"{text!r} names no object: give MODULE:ATTR (mylib.zoo:make_model) or "
            "FILE.py:ATTR (train.py:model)"
        )
    if place.endswith(".py") or os.sep in place or "/" in place:
        return _file_target(text, (base / place).absolute(), attribute)
    if not all(part.isidentifier() for part in place.split(".")):
        raise BadTargetError(f"{text!r} names no object: {place!r} is no module path")
    return Target(text, place, attribute, base)


def _file_target(text: str, file: Path, attribute: str) -> Target:
    if file.is_dir():
        raise BadTargetError(f"{file} is a folder: give a file of it")
    if not file.is_file():
        raise BadTargetError(f"there is no file {file}")
    names = [] if file.name == "__init__.py" else [file.name.removesuffix(".py")]
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        names.insert(0, folder.name)
        folder = folder.parent
    if file.suffix != ".py" or not all(name.isidentifier() for name in names):
        raise BadTargetError(
            f"{file} cannot be imported: {'.'.join(names)!r} is no module path. Rename it"
        )
    if is_everywhere(names[0]):
        raise BadTargetError(
            f"{file} cannot be packaged: {names[0]!r} is the name of a module that every "
            "package takes from where it is loaded. Rename it"
        )
    return Target(text, ".".join(names), attribute, folder, file)


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Put a folder first on the import path, for as long as the block runs.

    What the user's code prints goes to stderr meanwhile: stdout is for the command's report.
    """
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = before


@contextlib.contextmanager
def _users_code(doing: str, debug: bool) -> Iterator[None]:
    """Run the user's own code; whatever it raises becomes one clear error.

    Args:
        doing: what it is run for.
        debug: whether the error carries the traceback.

    Raises:
        UserCodeError: it raised something, or asked the interpreter to end.
    """
    try:
        yield
    except ModpackError:
        raise
    except (Exception, SystemExit) as failure:
        shown = failure.with_traceback(_own_frames_skipped(failure.__traceback__))
        trace = "".join(traceback.format_exception(shown)) if debug else ""
        raise UserCodeError(doing, failure, trace) from failure


def packaging(target: Target, debug: bool) -> contextlib.AbstractContextManager[None]:
    """Run what pickles the object: its own ``__getstate__`` and ``__reduce__`` run too.

    Raises:
        UserCodeError: they raised something.
    """
    return _users_code(f"packaging {target.text}", debug)


def build(target: Target, debug: bool) -> object:
    """Import a target's module, take its object, and call it if it is a factory.

    Functions, methods, classes and :class:`functools.partial` objects are factories. All else is
    the object itself, callable or not: every module instance is callable.

    Args:
        target: what to build.
        debug: whether errors of the user's code carry their traceback.

    Raises:
        BadTargetError: there is no such module or attribute, the factory wants arguments, or
            the outcome is None.
        UserCodeError: the user's code raised something.
    """
    module = _import(target, debug)
    with _users_code(f"building {target.text}", debug):
        found = _attribute(target, module)
        is_code = inspect.isroutine(found) or inspect.isclass(found)
        if is_code or isinstance(found, functools.partial):
            factory = cast(Callable[[], object], found)
            _require_no_arguments(target, factory)
            found = factory()
    if found is None:
        raise BadTargetError(f"{target.text} is None: there is nothing to package")
    return found


def _import(target: Target, debug: bool) -> ModuleType:
    with _users_code(f"importing {target.module}", debug):
        try:
            module = importlib.import_module(target.module)
        except ModuleNotFoundError as failure:
            missing = failure.name or ""
            if target.module != missing and not target.module.startswith(f"{missing}."):
                raise
            raise BadTargetError(
                f"there is no module {missing!r}, neither in {target.folder} nor among what is "
                "installed"
            ) from failure
    found = getattr(module, "__file__", None)
    if target.file is None or (found and Path(found).samefile(target.file)):
        return module
    raise BadTargetError(  # a module of the same name was loaded before
        f"{target.file} cannot be imported: the name {target.module!r} is taken by "
        f"{found or 'another module'}. Rename it"
    )


def _attribute(target: Target, module: ModuleType) -> object:
    found: object = module
    for position, part in enumerate(target.attribute.split(".")):
        if not hasattr(found, part):
            owner = ".".join([target.module, *target.attribute.split(".")[:position]])
            similar = difflib.get_close_matches(part, dir(found), n=1)
            hint = f". Did you mean {similar[0]!r}?" if similar else ""
            raise BadTargetError(f"{owner} has no attribute {part!r}{hint}")
        found = getattr(found, part)
    return found


def _require_no_arguments(target: Target, factory: Callable[[], object]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # some built-in ones do not tell: calling them will
    try:
        signature.bind()
    except TypeError as failure:
        raise BadTargetError(
            f"{target.text} cannot be called without arguments ({failure}). Its signature is "
            f"{signature}. Name a function that takes none and returns the model"
        ) from failure


def _own_frames_skipped(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from where the user's code begins."""
    own = (__file__, importlib.__file__)
    while trace is not None and trace.tb_next is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in own and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace


def _place_of(failure: BaseException) -> str | None:
    """``file:line`` of the last step in the user's own code, or of the last of all."""
    if isinstance(failure, SyntaxError) and failure.filename:
        return f"{failure.filename}:{failure.lineno}"
    frames = traceback.extract_tb(failure.__traceback__)
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    others = [sysconfig.get_path(name) for name in names] + [str(Path(__file__).parents[1])]
    not_users = ("<", *(f"{folder}{os.sep}" for folder in others if folder))
    own = [frame for frame in frames if not frame.filename.startswith(not_users)]
    chosen = own or frames
    return f"{chosen[-1].filename}:{chosen[-1].lineno}" if chosen else None
