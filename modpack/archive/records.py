"""Reading the records of a package that hold JSON, within limits.

The records that a package keeps about itself, decoded and checked field by field.

A package may come from anywhere: whatever is in these records, the outcome is a value of the
stated type or an :class:`~modpack.errors.ArchiveError`.

The named tensors of a package, read from its record and held against its storages.

The extern modules that a package lists.

Reading the hook specs of a saved object. Needs no torch and executes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive, RecordVerifier
from modpack.archive.layout import DEFAULT_LIMITS, hook_records
from modpack.core.environment import RecordedEnvironment, environment_from_json
from modpack.core.json_values import (
    as_list,
    as_mapping,
    as_module_path,
    as_optional_text,
    as_text,
    parse_json,
)
from modpack.core.names import why_too_long
from modpack.errors import ArchiveError, UnsupportedVersionError

if TYPE_CHECKING:
    from modpack.core.hookspec import HookSpec
    from modpack.core.json_values import Json
    from modpack.core.plan import NameUse, Plan
    from modpack.core.selftest import TrialRecord
    from modpack.core.tensors import TensorFacts


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


class Objects(NamedTuple):
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
    from modpack.core.plan_json import GRAPH_VERSION, plan_from_json  # most loads need no plan

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
    from modpack.core.selftest import TRIAL_VERSION, trial_from_json

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


_SHOWN: Final = 5


def read_tensors(
    archive: Archive, verify: RecordVerifier
) -> Mapping[str, tuple[TensorFacts, ...]] | None:
    """The tensors of each saved object, by the object's record, in the order of its state dict.

    The storages that they name are there and large enough for them; they are not read.

    Args:
        archive: the package.
        verify: its manifest.

    Returns:
        None if the package does not record them: an older version of modpack wrote it, or no
        object was saved.

    Raises:
        UnsupportedVersionError: a newer modpack wrote it.
        ArchiveError: the record is damaged.
    """
    if not archive.has(layout.TENSORS):
        return None
    from modpack.core.tensors import TENSORS_VERSION, tensors_from_json

    with checking(archive, layout.TENSORS):
        document = read_document(archive, layout.TENSORS, verify)
        refuse_newer(archive, layout.TENSORS, document["version"], TENSORS_VERSION)
        tensors = tensors_from_json(document)
        _check_storages(archive, (each for of_one in tensors.values() for each in of_one))
        return tensors


def _check_storages(archive: Archive, tensors: Iterable[TensorFacts]) -> None:
    sizes = archive.sizes()
    problems = list(filter(None, (_storage_problem(sizes, tensor) for tensor in tensors)))
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ValueError("; ".join(problems[:_SHOWN]) + more)


def _storage_problem(sizes: Mapping[str, int], tensor: TensorFacts) -> str | None:
    """Why a tensor cannot lie where it is said to, among records of such sizes; None if it can."""
    if tensor.storage is None:
        return None
    record = layout.storage_name(tensor.storage)
    size = sizes.get(record)
    if size is None or not layout.is_storage(record):
        return f"{tensor.name!r:.200} is in the storage {tensor.storage!r:.80}, which is not there"
    from modpack.core.tensors import DTYPE_ALIASES, QUANTIZED_DTYPES

    if tensor.dtype in DTYPE_ALIASES:
        return f"{tensor.name!r:.200} is of the type {tensor.dtype!r}, which is no type's own name"
    if tensor.dtype in QUANTIZED_DTYPES and tensor.form != "quantized":
        return f"{tensor.name!r:.200} is of the type {tensor.dtype!r}, but not quantized"
    needed = _bytes_needed(tensor)
    if needed > size:
        return (
            f"{tensor.name!r:.200} needs {needed} bytes of the storage {tensor.storage!r}, which "
            f"has {size}"
        )
    return None


def _bytes_needed(tensor: TensorFacts) -> int:
    """How many bytes a storage has at least that holds a tensor; one each of an unknown type."""
    if not tensor.numel:
        return 0
    from modpack.core.tensors import ITEM_BYTES, PACKED_DTYPES

    end = tensor.offset + tensor.span
    if tensor.dtype in PACKED_DTYPES:
        return -(-end // PACKED_DTYPES[tensor.dtype])
    return end * ITEM_BYTES.get(tensor.dtype, 1)


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
    from modpack.core.hookspec import specs_from_json

    return specs_from_json(parsed)
