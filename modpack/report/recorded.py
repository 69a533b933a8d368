"""The records that a package keeps about itself, decoded and checked field by field.

A package may come from anywhere: whatever is in these records, the outcome is a value of the
stated type or an :class:`~modpack.errors.ArchiveError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from modpack.archive import layout
from modpack.archive.base import Archive, RecordVerifier
from modpack.archive.documents import read_json
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.core.environment import RecordedEnvironment
from modpack.core.environmentjson import environment_from_json
from modpack.core.jsonvalues import (
    as_list,
    as_mapping,
    as_module_path,
    as_optional_text,
    as_text,
    parse_json,
)
from modpack.errors import ArchiveError, UnsupportedVersionError

if TYPE_CHECKING:
    from modpack.core.plan import Plan
    from modpack.core.planjson import Json
    from modpack.core.trialrecord import TrialRecord
    from modpack.core.usage import NameUse

__all__ = [
    "Objects",
    "checking",
    "environment_of",
    "read_document",
    "read_environment",
    "read_objects",
    "read_plan",
    "read_trial",
    "refuse_newer",
]


_GRAPH_ITEM_BYTES: Final = {
    **{"edges": 65, "notes": 100, "uses": 100, "files": 100},
    **{"roots": 250, "distributions": 1000},
}
"""One item of each list is allowed for so many bytes of the archive, or of a small one."""
_TRIAL_ITEM_BYTES: Final = {
    **{"cases": 1000, "operators": 1000, "added": 100},
    **{
        "hidden": 100,
        "hidden_distributions": 100,
        "touches": 100,
        "imported": 100,
        "unfilled": 100,
    },
}
"""The same for the trial."""
_MOST_REMEMBERED: Final = 64 << 10
"""Bytes of a record up to which it is remembered: packages of one project often have the same."""


@dataclass(frozen=True)
class Objects:
    """The saved objects of a package.

    Attributes:
        pickles: package and resource of each.
        entry: the one that the package is about: the main one, or the only one.
        namespace: in which namespace they work.
    """

    pickles: tuple[tuple[str, str], ...]
    entry: tuple[str, str] | None
    namespace: str = "private"


def read_plan(archive: Archive, verify: RecordVerifier | None) -> Plan:
    """The plan that a package was written by.

    Raises:
        UnsupportedVersionError: a newer modpack wrote it.
        ArchiveError: the record is missing or damaged.
    """
    from modpack.core.planjson import GRAPH_VERSION, plan_from_json  # most loads need no plan

    with checking(archive, layout.GRAPH):
        document = read_document(archive, layout.GRAPH, verify)
        refuse_newer(archive, layout.GRAPH, document["version"], GRAPH_VERSION)
        modules = {"modules": DEFAULT_LIMITS.min_module_bytes}
        _refuse_excess(document, archive.stored_bytes(), {**modules, **_GRAPH_ITEM_BYTES})
        plan = plan_from_json(document)
        _check_types(plan)
        return plan


def read_environment(archive: Archive, verify: RecordVerifier | None) -> RecordedEnvironment:
    """Where a package of modpack's was made.

    Raises:
        ArchiveError: the record is missing or damaged.
    """
    with checking(archive, layout.ENVIRONMENT):
        content = archive.read(layout.ENVIRONMENT, verify=verify)
        if len(content) <= _MOST_REMEMBERED:
            return _environment(content)
        return environment_from_json(read_document(archive, layout.ENVIRONMENT, verify))


@lru_cache(maxsize=8)
def _environment(content: bytes) -> RecordedEnvironment:
    """What a small record says, which takes less memory than any archive may."""
    document = parse_json(content, DEFAULT_LIMITS.json_bytes(0))
    return environment_from_json(as_mapping(document, "the record"))


def environment_of(archive: Archive, verify: RecordVerifier | None) -> RecordedEnvironment:
    """Where a package was made, as far as it says; one of torch.package may tell its Python.

    Raises:
        ArchiveError: the record is damaged.
    """
    if archive.has(layout.ENVIRONMENT):
        return read_environment(archive, verify)
    if not archive.has(layout.PYTHON_VERSION):
        return RecordedEnvironment()
    version = archive.read(layout.PYTHON_VERSION).decode("utf-8", "replace").strip()
    return RecordedEnvironment(python=version or None)


def read_objects(archive: Archive, verify: RecordVerifier) -> Objects:
    """The saved objects of a package.

    Raises:
        ArchiveError: the record is missing or damaged.
    """
    with checking(archive, layout.ENTRY):
        document = read_document(archive, layout.ENTRY, verify)
        pickles = tuple(_pair(each) for each in as_list(document["pickles"], "pickles"))
        main = _pair(document["main"]) if document["main"] is not None else None
        namespace = as_text(document.get("namespace", "private"), "namespace")
        entry = main or (pickles[0] if len(pickles) == 1 else None)
        return Objects(pickles, entry, namespace)


def read_trial(archive: Archive, verify: RecordVerifier) -> TrialRecord | None:
    """What came of the package's trial; None if it was not tried.

    Raises:
        UnsupportedVersionError: a newer modpack wrote it.
        ArchiveError: the record is damaged.
    """
    if not archive.has(layout.TRIAL):
        return None
    from modpack.core.trialrecord import TRIAL_VERSION, trial_from_json

    with checking(archive, layout.TRIAL):
        document = read_document(archive, layout.TRIAL, verify)
        refuse_newer(archive, layout.TRIAL, document["version"], TRIAL_VERSION)
        _refuse_excess(document, archive.stored_bytes(), _TRIAL_ITEM_BYTES)
        return trial_from_json(document)


def refuse_newer(archive: Archive, record: str, version: Json, known: int) -> None:
    """Refuse a record of a version that is newer than the one that is known.

    Raises:
        UnsupportedVersionError: it is newer.
    """
    if isinstance(version, int) and version > known:
        raise UnsupportedVersionError(
            archive.source,
            f"its version is {version}, and this modpack knows versions up to {known}. "
            "Remedy: install a newer modpack",
            record,
        )


@contextmanager
def checking(archive: Archive, record: str) -> Iterator[None]:
    """Turn what decoding a record raises into an ArchiveError that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as failure:
        detail = f"{failure} is missing" if isinstance(failure, KeyError) else str(failure)
        reason = f"it is not as modpack writes it: {detail}"
        raise ArchiveError(archive.source, reason, record) from failure


def read_document(archive: Archive, record: str, verify: RecordVerifier | None) -> dict[str, Json]:
    """A record that holds a JSON object; call it in :func:`checking`."""
    return as_mapping(read_json(archive, record, verify), "the record")


def _refuse_excess(
    document: Mapping[str, Json], archive_bytes: int, item_bytes: Mapping[str, int]
) -> None:
    """Refuse lists that are longer than a package of that size has a use for."""
    for key, size in item_bytes.items():
        listed, most = document.get(key), DEFAULT_LIMITS.most_items(archive_bytes, size)
        if isinstance(listed, (list, dict)) and len(listed) > most:
            raise ValueError(f"it lists {len(listed)} {key}, and {most} are allowed")


def _check_types(plan: Plan) -> None:
    """What :func:`plan_from_json` takes on trust."""
    for node in plan.graph.nodes():
        _node(node)
    for module in plan.decisions:
        as_module_path(module, "a module")
    for edge in plan.graph.edges():
        if edge.line is not None:
            _line(edge.line)
        for name in edge.names:
            as_text(name, "a name that is imported")
    for decision in plan.decisions.values():
        as_text(decision.rule.label, "a rule")
        as_optional_text(decision.overridden_by, "overridden_by")
    for note in plan.notes:
        as_text(note.subject, "a note's subject")
        as_text(note.text, "a note's text")
        as_optional_text(note.place, "a note's place")
    for file in plan.files:
        as_text(file.record, "a file")
        as_text(file.owner, "a file's owner")
        as_text(file.why, "a file's evidence")
    for use in plan.uses:
        _check_use(use)
    for distribution in plan.distributions:
        as_text(distribution.name, "a distribution's name")
        as_text(distribution.version, "a distribution's version")
        as_text(distribution.folder, "a distribution's folder")


def _check_use(use: NameUse) -> None:
    for text in (use.name, use.scope):
        as_text(text, "part of a use")
    for module in (use.module, use.importer, *use.via):
        as_module_path(module, "part of a use")
    _line(use.line)
    for truth in (use.is_live, use.is_called_later):
        if type(truth) is not bool:
            raise TypeError(f"{truth!r} in a use is no truth value")


def _node(value: object) -> None:
    """A module path, or a saved object, whose file may have any number of dots in its name."""
    if as_text(value, "a node")[:1] != "<":
        as_module_path(value, "a node")


def _line(value: object) -> None:
    if type(value) is not int or value < 1:
        raise TypeError(f"{value!r:.60} is no line: these are numbers from 1")


def _pair(value: Json) -> tuple[str, str]:
    package, resource = as_list(value, "an object's name")
    return as_module_path(package, "a package"), as_text(resource, "a resource")
