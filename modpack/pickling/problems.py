"""All that cannot be saved in one object, told at once."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError, PicklingError
from modpack.pickling.paths import paths_to
from modpack.pickling.rows import LEAVE_OUT

__all__ = ["MisnamedObjectError", "Problem", "UnnamedObjectError", "problems_as_error"]


@dataclass(frozen=True)
class Problem:
    """Something that cannot be saved.

    Attributes:
        obj: the object.
        failure: what was raised.
        place: where it hangs, and what else can be done, if that is known already.
    """

    obj: object
    failure: Exception
    place: tuple[str, str] | None = None


class UnnamedObjectError(PicklingError, ObjNotFoundError):
    """A class or function in a saved object is not found under its name."""


class MisnamedObjectError(PicklingError, ObjMismatchError):
    """The name of a class or function in a saved object leads to another one."""


def problems_as_error(
    problems: Sequence[Problem],
    resource: str,
    root: object,
    name: str,
    globals_along: Sequence[tuple[str, object]] = (),
) -> PicklingError:
    """The error that tells of all problems, of the kind of the first.

    Args:
        problems: one or more.
        resource: what was being saved.
        root: the saved object.
        name: what to call it in paths.
        globals_along: values of scripts that come along, each with its name.
    """
    searched = [problem.obj for problem in problems if problem.place is None]
    paths = paths_to(root, searched, name)
    for label, value in globals_along:
        missing = [obj for obj in searched if id(obj) not in paths]
        paths = {**paths_to(value, missing, label), **paths} if missing else paths
    told: dict[tuple[str | None, str], None] = {}
    for problem in problems:
        path = problem.place[0] if problem.place else paths.get(id(problem.obj))
        told[path, _reason(problem)] = None
    (path, reason), *_ = told
    return _kind_of(problems[0].failure)(resource, reason, path, tuple(told))


def _kind_of(failure: Exception) -> type[PicklingError]:
    if isinstance(failure, ObjMismatchError):
        return MisnamedObjectError
    return UnnamedObjectError if isinstance(failure, ObjNotFoundError) else PicklingError


_EXPECTED = (ModpackError, pickle.PicklingError, TypeError, AttributeError, NotImplementedError)


def _reason(problem: Problem) -> str:
    failure, elsewhere = problem.failure, problem.place[1] if problem.place else ""
    if not isinstance(failure, _EXPECTED):
        raised = traceback.extract_tb(failure.__traceback__)[-1]
        place = f"raised at {raised.filename}:{raised.lineno}"
        return f"{type(failure).__name__}: {failure} ({place})"
    reason = str(failure) or type(failure).__name__
    own = [] if "Remedy: " in reason else [_remedy(problem)]
    remedies = [remedy for remedy in (*own, elsewhere) if remedy]
    joint = ". Remedy: " if own else ", or "
    return reason + (joint + ", or ".join(remedies) if remedies else "")


def _remedy(problem: Problem) -> str:
    if isinstance(problem.failure, ModpackError) and problem.place is None:
        return ""  # which tells all that is known
    if isinstance(problem.obj, type):
        return "define the class at the top level of a module"
    return LEAVE_OUT
