"""What an installed distribution consists of: its files, and the metadata that may travel."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modpack.resolution.importpath import Metadata

__all__ = ["DistributionContents", "metadata_folder", "read_contents"]

_METADATA = frozenset(
    {"METADATA", "PKG-INFO", "WHEEL", "entry_points.txt", "namespace_packages.txt"}
    | {"requires.txt", "top_level.txt"}
)
_LICENCE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|AUTHORS)", re.IGNORECASE)
_LICENCE_FOLDERS = ("licenses", "license_files")


@dataclass(frozen=True)
class DistributionContents:
    """The files of an installed distribution.

    Attributes:
        folder: the folder that ``listed`` is relative to.
        listed: its files with ``/`` (PEP 376's RECORD); empty if it keeps no list.
        metadata: the metadata files that mean the same everywhere, by their names. What only
            tells of this machine is left out: ``direct_url.json``, ``INSTALLER``.
    """

    folder: Path
    listed: tuple[str, ...] = ()
    metadata: Mapping[str, Path] = field(default_factory=dict)


def read_contents(found: Metadata) -> DistributionContents:
    """List the files of an installed distribution.

    Args:
        found: the distribution, as :mod:`importlib.metadata` finds it.
    """
    folder = Path(str(found.locate_file("")))
    listed = [row[0] for row in csv.reader((found.read_text("RECORD") or "").splitlines()) if row]
    place = getattr(found, "_path", None)
    home = Path(str(place)) if place is not None else None
    travelling = dict(_travelling(home)) if home is not None and home.is_dir() else {}
    return DistributionContents(folder, tuple(listed), travelling)


def metadata_folder(name: str, version: str) -> str:
    """The folder of a distribution's metadata, as installers name it.

    >>> metadata_folder("ruamel.yaml", "0.18.6")
    'ruamel_yaml-0.18.6.dist-info'
    """
    return f"{re.sub(r'[-_.]+', '_', name)}-{version.replace('-', '_')}.dist-info"


def _travelling(folder: Path) -> Iterator[tuple[str, Path]]:
    """The metadata files that go along; an egg's have the names that a wheel's have."""
    for name in sorted(_files_below(str(folder)), key=lambda name: name.split("/")):
        top = name.partition("/")[0]
        is_licence = top in _LICENCE_FOLDERS if "/" in name else bool(_LICENCE.match(name))
        if (name in _METADATA or is_licence) and (folder / name).is_file():
            yield ("METADATA" if name == "PKG-INFO" else name), folder / name


def _files_below(folder: str) -> Iterator[str]:
    """The paths of all files in a folder, from there, with ``/``."""
    for place, _, files in os.walk(folder):
        inside = place[len(folder) :].replace(os.sep, "/").lstrip("/")
        yield from (f"{inside}/{file}" if inside else file for file in files)
