"""Operators that a package needs and cannot bring along, checked before its code runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import torch

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.documents import read_json
from modpack.core.jsonvalues import as_list, as_mapping, as_text
from modpack.errors import ArchiveError, OperatorConflictError, OperatorNotFoundError
from modpack.resolution.importers import importer_of, local_path
from modpack.resolution.live import contents_of

__all__ = ["operator_conflicts_explained", "require_operators"]

_CONFLICTS: Final = (
    r"register the namespace (?P<name>[\w.]+); .*?registered at (?P<file>.+?):(?P<line>\d+);",
    r"register an operator \((?P<name>[\w:.]+).*Original registration: registered at (?P<file>.+)"
    r":(?P<line>\d+)",
    r"the operator (?P<name>[\w:.]+) already has an? .* at (?P<file>.+):(?P<line>\d+)",
)
"""What torch says where an operator, or a part of it, is registered for a second time."""


@contextmanager
def operator_conflicts_explained(source: str) -> Iterator[None]:
    """Explain why packaged code cannot define an operator.

    Args:
        source: the package file.

    Raises:
        OperatorConflictError: the process has it already.
    """
    try:
        yield
    except RuntimeError as failure:
        found = next(filter(None, (re.search(each, str(failure)) for each in _CONFLICTS)), None)
        if found is None or isinstance(failure, OperatorConflictError):
            raise
        place = _packaged_place(failure)
        first = _first(found["file"], found["line"])
        raise OperatorConflictError(source, found["name"], place, first) from failure


def _packaged_place(failure: BaseException) -> str | None:
    """Where packaged code was when it failed: the module that it knows, and the line."""
    place, trace = None, failure.__traceback__
    while trace is not None:
        names = trace.tb_frame.f_globals
        if "__modpack__" in names:
            owner, name = names["__modpack__"], str(names.get("__name__"))
            module = owner.whichmodule(SimpleNamespace(__module__=name), "")
            place = f"{module}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _first(file: str, line: str) -> str | None:
    """Who defined an operator, as torch has noted it; None if it has noted only itself."""
    if Path(file).is_relative_to(Path(torch.__file__).parent):
        return None
    for name, module in list(sys.modules.items()):
        owner = importer_of(module) if contents_of(module).get("__file__") == file else None
        if owner is not None:
            return f"{local_path(name)}:{line} of {getattr(owner, 'filename', owner)}"
    return f"{file}:{line}"


def require_operators(archive: Archive) -> None:
    """Refuse to load what its trial run only loaded with operators that are not here.

    Raises:
        OperatorNotFoundError: names all of them.
        ArchiveError: the record of the trial is damaged.
    """
    missing = tuple(schema for schema in _recorded(archive) if not _exists(schema))
    if missing:
        raise OperatorNotFoundError(archive.source, missing)


def _recorded(archive: Archive) -> list[str]:
    if not archive.has(layout.TRIAL):
        return []
    try:
        record = as_mapping(read_json(archive, layout.TRIAL), "the record")
        listed = as_list(record.get("operators", []), "operators")
        return [as_text(each, "an operator") for each in listed]
    except (ValueError, TypeError) as failure:
        reason = f"is not as it should be ({failure})"
        raise ArchiveError(archive.source, reason, layout.TRIAL) from failure


def _exists(schema: str) -> bool:
    namespace, _, signature = schema.partition("::")
    name = signature.partition("(")[0].partition(".")[0]
    return hasattr(getattr(torch.ops, namespace), name)
