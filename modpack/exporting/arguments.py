"""What an exporter accepts: each check names the argument, what it must be, and what it is."""

from __future__ import annotations

import os
from collections.abc import Sequence

from modpack.archive import layout
from modpack.core.json_values import require_type
from modpack.core.names import (
    resource_record,
)
from modpack.discovery.importers import Importer, OrderedImporter

DEFAULT_PROTOCOL = 3
"""Of pickles: what torch.package writes."""


def as_importer(importer: object) -> Importer:
    """One importer, made of several if several are given.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if isinstance(importer, Importer):
        return importer
    is_text = isinstance(importer, (str, bytes))
    listed = list(importer) if isinstance(importer, Sequence) and not is_text else [importer]
    importers = [each for each in listed if isinstance(each, Importer)]
    if importers != listed:
        stranger = next(each for each in listed if not isinstance(each, Importer))
        raise TypeError(
            "importer must be a modpack importer (PackageImporter, sys_importer, ...) or a "
            f"sequence of them, not {type(stranger).__name__}"
        )
    if not importers:
        raise ValueError("importer must not be empty: without an importer nothing has a name")
    return OrderedImporter(*importers)


def require_target(f: object, argument: str = "f") -> None:
    """Refuse what cannot be written to.

    Args:
        f: where to write.
        argument: what the caller calls it.

    Raises:
        TypeError: it is no path, no file object, and not None.
    """
    if f is not None and not isinstance(f, (str, os.PathLike)) and not hasattr(f, "write"):
        raise TypeError(
            f"{argument} must be a path, a binary file object, or None, not {type(f).__name__}"
        )


def require_trial(trial: object) -> None:
    """Refuse what says nothing about the trial.

    Raises:
        TypeError, ValueError: it is not True, False or ``"warn"``.
    """
    require_type(trial, (bool, str), "trial", "True, False or 'warn'")
    if isinstance(trial, str) and trial != "warn":
        raise ValueError(f"trial must be True, False or 'warn', not {trial!r}")


def require_protocol(protocol: object) -> None:
    """Refuse what is no pickle protocol of use.

    Raises:
        TypeError, ValueError: it is no number from 2 to 5.
    """
    require_type(protocol, int, "pickle_protocol", "a number from 2 to 5")
    if protocol not in range(2, 6):
        raise ValueError(f"pickle_protocol must be 2, 3, 4 or 5, not {protocol!r}")


def record_of(package: object, resource: object) -> str:
    """The record that a resource is stored in.

    Raises:
        TypeError, ValueError: a name is none, or the archive format needs it itself.
    """
    record = resource_record(package, resource)
    if layout.is_internal(record):
        raise ValueError(f"resource {record!r} is a name that the archive format needs itself")
    return record
