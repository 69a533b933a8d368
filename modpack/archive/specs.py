"""Reading the hook specs of a saved object. Needs no torch and executes nothing."""

from __future__ import annotations

from modpack.archive.base import Archive
from modpack.archive.documents import read_json
from modpack.core.hookspec import HookSpec, hook_records, specs_from_json
from modpack.errors import ArchiveError

__all__ = ["read_specs"]


def read_specs(archive: Archive, record: str) -> tuple[HookSpec, ...]:
    """The hook specs of a saved object; nothing is executed and torch is not needed.

    Raises:
        ArchiveError: they are damaged.
        ModpackError: their version is unknown.
    """
    specs_record, _ = hook_records(record)
    if not archive.has(specs_record):
        return ()
    try:
        parsed = read_json(archive, specs_record)
    except ValueError as failure:
        raise ArchiveError(archive.source, f"is no JSON ({failure})", specs_record) from failure
    return specs_from_json(parsed)
