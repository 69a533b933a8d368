"""The extern modules that a package lists."""

from __future__ import annotations

from modpack.archive import layout
from modpack.archive.base import Archive, RecordVerifier
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.core.names import why_too_long
from modpack.errors import ArchiveError

__all__ = ["read_externs"]


def read_externs(archive: Archive, verify: RecordVerifier | None = None) -> list[str]:
    """The modules that a package takes from where it is loaded, as it lists them.

    Args:
        archive: the package.
        verify: its manifest, to compare the record with.

    Raises:
        ArchiveError: the record is damaged, or lists more, or a longer path, than a
            package can have a use for.
    """
    if not archive.has(layout.EXTERN_MODULES):
        return []
    text = archive.read(layout.EXTERN_MODULES, verify=verify).decode("utf-8", "replace")
    listed, most = text.count("\n"), DEFAULT_LIMITS.most_modules(archive.stored_bytes())
    if listed > most:
        reason = f"it lists {listed} modules, and {most} are allowed"
        raise ArchiveError(archive.source, reason, layout.EXTERN_MODULES)
    externs = [line for line in text.split("\n") if line]
    for module in externs:
        why = why_too_long(module)
        if why is not None:
            reason = f"it lists {module!r:.60}, which is no module path: {why}"
            raise ArchiveError(archive.source, reason, layout.EXTERN_MODULES)
    return externs
