"""Package files, and where they are read and written."""

from __future__ import annotations

from modpack.errors.base import ModpackError

__all__ = [
    "ArchiveError",
    "CacheError",
    "NotAPackageError",
    "PackageNotFoundError",
    "RecordNotFoundError",
    "RepackedError",
    "TargetError",
    "UnsupportedVersionError",
]


class ArchiveError(ModpackError, RuntimeError):
    """A package file is not what a package file must be; torch raises a RuntimeError.

    Args:
        source: the file, as the user named it.
        reason: what is wrong, in one sentence.
        record: the record it is about, if it is about one.
    """

    def __init__(self, source: str, reason: str, record: str | None = None) -> None:
        self.source = source
        self.reason = reason
        self.record = record
        where = f"{source}: record {record!r}" if record is not None else source
        super().__init__(f"{where}: {reason}")


class RepackedError(ArchiveError):
    """Another program packed the package again: contents may be the same, the file is not."""


class NotAPackageError(ArchiveError):
    """The file is no zip archive, or a zip archive that is no package."""


class PackageNotFoundError(NotAPackageError, FileNotFoundError):
    """There is no file where a package should be."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnsupportedVersionError(ArchiveError):
    """The package was written in a format that this modpack does not know."""


class RecordNotFoundError(ArchiveError, FileNotFoundError):
    """A record that was asked for is not in the package.

    Args:
        source: the package file.
        record: the record's name.
        similar: names that exist and look alike, offered to the user.
    """

    def __init__(self, source: str, record: str, similar: tuple[str, ...] = ()) -> None:
        self.similar = similar
        hint = f" Did you mean {', '.join(map(repr, similar))}?" if similar else ""
        super().__init__(source, f"there is no such record.{hint}", record)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CacheError(ModpackError):
    """The folder into which packages are unpacked cannot be used."""


class TargetError(ModpackError, RuntimeError):
    """The file or buffer for a package cannot be written; torch raises a RuntimeError."""
