"""Saving: an object becomes a pickle, storages, and the names that it refers to."""

from __future__ import annotations

import io
from dataclasses import dataclass

from modpack.errors import PicklingError
from modpack.pickling.context import Observer, PickleContext, Reference
from modpack.pickling.pickler import NO_FAULT_OF_THE_OBJECT, Pickler
from modpack.pickling.problems import problems_as_error
from modpack.pickling.rename import rename_modules

__all__ = ["Pickled", "pickle_object"]


@dataclass(frozen=True)
class Pickled:
    """The result of pickling an object.

    Attributes:
        data: the pickle.
        references: everything that it names, in order of first use.
        appended: pickles that continue it, of what the observer asked for: loaded by the same
            unpickler, one after the other, they refer to the objects of the first.
        loose_sources: the sources of functions that bring no module along; what they import
            is known from nowhere else.
    """

    data: bytes
    references: tuple[Reference, ...]
    appended: bytes = b""
    loose_sources: tuple[str, ...] = ()


def pickle_object(
    obj: object,
    *,
    context: PickleContext,
    resource: str,
    protocol: int,
    root: str = "obj",
    observer: Observer | None = None,
) -> Pickled:
    """Pickle an object; its storages go to the context.

    Args:
        obj: what to save.
        context: where storages and names go.
        resource: the resource's name, for errors.
        protocol: the pickle protocol (PEP 3154, PEP 574).
        root: what to call ``obj`` in attribute paths of errors.
        observer: sees every object of certain types on its way.

    Raises:
        PicklingError: something in it cannot be pickled. Tells of everything that cannot, each
            by its attribute path.
    """
    pickler = Pickler(io.BytesIO(), protocol, context, observer)
    try:
        data, appended = pickler.dump_all(obj)
    except RecursionError as failure:
        raise PicklingError(resource, "the object nests too deeply for pickle") from failure
    except NO_FAULT_OF_THE_OBJECT:
        raise
    except Exception as failure:  # an object's own methods may raise anything
        pickler.note_problem(pickler.current, failure)
    finally:
        # What it has met is held in a circle, which would have to be searched for.
        pickler.clear_memo()
    naming = pickler.naming
    if pickler.problems:
        along = naming.globals_along
        error = problems_as_error(pickler.problems, resource, obj, root, along)
        raise error from pickler.problems[0].failure
    references = tuple(naming.references)
    renames = {r.live_module: r.module for r in references if r.live_module != r.module}
    if renames:
        data = rename_modules(data, renames)
        appended = [rename_modules(piece, renames) for piece in appended]
    return Pickled(data, references, b"".join(appended), tuple(naming.loose_sources))
