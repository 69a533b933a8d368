"""Reading the records of a package that hold JSON, within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modpack.archive.base import Archive, RecordVerifier
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.core.jsonvalues import parse_json

if TYPE_CHECKING:
    from modpack.core.planjson import Json

__all__ = ["read_json"]


def read_json(archive: Archive, record: str, verify: RecordVerifier | None = None) -> Json:
    """The values of a record that holds a JSON document.

    Args:
        archive: the package.
        record: the record.
        verify: the package's manifest, to compare the content with.

    Raises:
        ValueError: it is no JSON, or would take too much memory.
        RecordNotFoundError: there is no such record.
        ArchiveError: the record is damaged, or not what ``verify`` says.
    """
    most_bytes = DEFAULT_LIMITS.json_bytes(archive.stored_bytes())
    return parse_json(archive.read(record, verify=verify), most_bytes)
