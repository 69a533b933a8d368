"""Which of a package's saved objects is the one that the package is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modpack.archive.base import Archive
from modpack.archive.documents import read_json
from modpack.archive.layout import ENTRY as _ENTRY
from modpack.core.jsonvalues import as_list, as_mapping, as_module_path, as_text
from modpack.errors import ArchiveError, ModpackError
from modpack.hermetic.namespace import NAMESPACES

if TYPE_CHECKING:
    from modpack.core.planjson import Json

__all__ = ["find_entry", "find_namespace"]


def find_entry(archive: Archive) -> tuple[str, str]:
    """The main saved object of a package, or its only one, as package and resource.

    Packages of torch.package do not list their objects: there, a single ``.pkl`` file counts.

    Raises:
        ModpackError: there is none, or there are several; they are listed.
        ArchiveError: it names one that it does not list.
    """
    main, saved = _recorded(archive) if archive.has(_ENTRY) else (None, _guessed(archive))
    if main is not None:
        if main not in saved:  # whoever looked at all saved objects has not seen it
            reason = f"its main object {main!r:.200} is not among its saved objects"
            raise ArchiveError(archive.source, reason, _ENTRY)
        return main
    if len(saved) == 1:
        return saved[0]
    if not saved:
        raise ModpackError(
            f"{archive.source}: the package contains no saved object. Open it with "
            "modpack.PackageImporter, which imports its modules and reads its resources"
        )
    listed = "".join(f"\n    package={p!r}, resource={r!r}" for p, r in saved)
    raise ModpackError(
        f"{archive.source} does not say which of its saved objects to load; name one. "
        f"It holds:{listed}"
    )


def find_namespace(archive: Archive) -> str:
    """The namespace in which a package says that it works; private if it does not say.

    Raises:
        ArchiveError: it says something else.
    """
    if not archive.has(_ENTRY):
        return "private"
    try:
        document = as_mapping(read_json(archive, _ENTRY), "the record")
    except (ValueError, TypeError) as failure:
        raise ArchiveError(
            archive.source, f"is not as it should be ({failure})", _ENTRY
        ) from failure
    namespace = document.get("namespace", "private")
    if namespace not in NAMESPACES:
        raise ArchiveError(archive.source, f"names no namespace with {namespace!r}", _ENTRY)
    return str(namespace)


def _recorded(archive: Archive) -> tuple[tuple[str, str] | None, list[tuple[str, str]]]:
    try:
        record = as_mapping(read_json(archive, _ENTRY), "the record")
        main = _pair(record["main"]) if record["main"] is not None else None
        return main, [_pair(each) for each in as_list(record["pickles"], "pickles")]
    except (ValueError, KeyError, TypeError) as failure:
        raise ArchiveError(
            archive.source, f"is not as it should be ({failure})", _ENTRY
        ) from failure


def _pair(value: Json) -> tuple[str, str]:
    package, resource = as_list(value, "an object's name")
    return as_module_path(package, "a package"), as_text(resource, "a resource")


def _guessed(archive: Archive) -> list[tuple[str, str]]:
    pickles = [n for n in archive.names() if n.endswith(".pkl") and not n.startswith(".data/")]
    split = (name.rpartition("/") for name in pickles)
    return [(folder.replace("/", "."), resource) for folder, _, resource in split]
