"""Operators that a package needs and cannot bring along, checked before its code runs."""

from __future__ import annotations

import torch

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.documents import read_json
from modpack.core.jsonvalues import as_list, as_mapping, as_text
from modpack.errors import ArchiveError, OperatorNotFoundError

__all__ = ["require_operators"]


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
