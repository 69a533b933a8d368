"""The records that a package keeps about itself, decoded and checked field by field.

A package may come from anywhere: whatever is in these records, the outcome is a value of the
stated type or an :class:`~modpack.errors.ArchiveError`. Nothing is executed, and torch is not
needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import DEFAULT_LIMITS, hook_records
from modpack.core.codec import ModulePath, from_json, json_keys
from modpack.core.environment import RecordedEnvironment, environment_from_json
from modpack.core.json_values import as_mapping, parse_json
from modpack.core.names import resource_record, why_too_long
from modpack.errors import ArchiveError, UnsupportedVersionError

if TYPE_CHECKING:
    from modpack.archive.manifest import Manifest
    from modpack.core.hookspec import HookSpec
    from modpack.core.json_values import Json
    from modpack.core.plan import Plan
    from modpack.core.selftest import SelfTestRecord
    from modpack.core.tensors import TensorFacts

_GRAPH_ITEM_BYTES: Final = {
    **{"edges": 65, "notes": 100, "uses": 100, "files": 100},
    **{"roots": 250, "distributions": 1000, "modules": DEFAULT_LIMITS.min_module_bytes},
}
"""One item of each list is allowed for so many bytes of the archive, or of a small one."""
_SELF_TEST_ITEM_BYTES: Final = {
    **{"cases": 1000, "operators": 1000, "added": 100, "hidden": 100},
    **{"hidden_distributions": 100, "touches": 100, "imported": 100, "unfilled": 100},
}
"""The same for the self-test."""
_MAX_REMEMBERED: Final = 64 << 10
"""Bytes of a record up to which it is remembered: packages of one project often have the same."""
_SHOWN: Final = 5


@json_keys(optional=("namespace",))
class Objects(NamedTuple):
    """The saved objects of a package.

    Attributes:
        pickles: package and resource of each.
        main: the one that the package is about, if it says so.
        namespace: in which namespace they work.
    """

    pickles: tuple[tuple[ModulePath, str], ...]
    main: tuple[ModulePath, str] | None = None
    namespace: str = "private"

    @property
    def entry(self) -> tuple[str, str] | None:
        """The main object, or the only one."""
        return self.main or (self.pickles[0] if len(self.pickles) == 1 else None)


def read_json(archive: Archive, record: str, verify: Manifest | None = None) -> Json:
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
    max_bytes = DEFAULT_LIMITS.max_json_bytes(archive.stored_bytes())
    return parse_json(archive.read(record, verify=verify), max_bytes)


def read_document(archive: Archive, record: str, verify: Manifest | None) -> dict[str, Json]:
    """A record that holds a JSON object; call it in :func:`checking`."""
    return as_mapping(read_json(archive, record, verify), "the record")


@contextmanager
def decoding(archive: Archive, record: str) -> Iterator[None]:
    """Turn what decoding a record raises into an ArchiveError that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as failure:
        detail = f"{failure} is missing" if isinstance(failure, KeyError) else str(failure)
        reason = f"it is not as modpack writes it: {detail}"
        raise ArchiveError(archive.path, reason, record) from failure


def _read_versioned(
    archive: Archive,
    record: str,
    verify: Manifest | None,
    known_version: int,
    item_bytes: Mapping[str, int],
) -> dict[str, Json]:
    """The same for a record that has a version, and lists no longer than a package has a use for.

    Raises:
        UnsupportedVersionError: a newer modpack wrote it.
    """
    document = read_document(archive, record, verify)
    version, archive_bytes = document["version"], archive.stored_bytes()
    if isinstance(version, int) and version > known_version:
        raise UnsupportedVersionError(
            archive.path,
            f"its version is {version}, and this modpack knows versions up to {known_version}. "
            "Remedy: install a newer modpack",
            record,
        )
    for key, size in item_bytes.items():
        listed, most = document.get(key), DEFAULT_LIMITS.max_items(archive_bytes, size)
        if isinstance(listed, (list, dict)) and len(listed) > most:
            raise ValueError(f"it lists {len(listed)} {key}, and {most} are allowed")
    return document


def read_plan(archive: Archive, verify: Manifest | None) -> Plan:
    """The plan that a package was written by.

    Raises:
        UnsupportedVersionError: a newer modpack wrote it.
        ArchiveError: the record is missing or damaged.
    """
    from modpack.core.plan_json import GRAPH_VERSION, plan_from_json  # most loads need no plan

    with decoding(archive, layout.GRAPH):
        return plan_from_json(
            _read_versioned(archive, layout.GRAPH, verify, GRAPH_VERSION, _GRAPH_ITEM_BYTES)
        )


def read_environment(archive: Archive, verify: Manifest | None) -> RecordedEnvironment:
    """Where a package of modpack's was made.

    Raises:
        ArchiveError: the record is missing or damaged.
    """
    with decoding(archive, layout.ENVIRONMENT):
        content = archive.read(layout.ENVIRONMENT, verify=verify)
        if len(content) <= _MAX_REMEMBERED:
            return _environment(content)
        return environment_from_json(read_document(archive, layout.ENVIRONMENT, verify))


@lru_cache(maxsize=8)
def _environment(content: bytes) -> RecordedEnvironment:
    """What a small record says, which takes less memory than any archive may."""
    document = parse_json(content, DEFAULT_LIMITS.max_json_bytes(0))
    return environment_from_json(as_mapping(document, "the record"))


def load_environment(archive: Archive, verify: Manifest | None) -> RecordedEnvironment:
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


def read_objects(archive: Archive, verify: Manifest | None = None) -> Objects:
    """The saved objects of a package.

    Raises:
        ArchiveError: the record is missing or damaged.
    """
    with decoding(archive, layout.ENTRY):
        return from_json(Objects, read_document(archive, layout.ENTRY, verify), "the record")


def object_records(archive: Archive, objects: Objects) -> tuple[str, ...]:
    """The records of a package's saved objects.

    Raises:
        ArchiveError: one of them has a name that no record can have.
    """
    try:
        return tuple(resource_record(package, name) for package, name in objects.pickles)
    except ValueError as failure:
        raise ArchiveError(archive.path, str(failure), layout.ENTRY) from failure


def read_self_test(archive: Archive, verify: Manifest) -> SelfTestRecord | None:
    """What came of the package's self-test; None if it was not tried.

    Raises:
        UnsupportedVersionError: a newer modpack wrote it.
        ArchiveError: the record is damaged.
    """
    if not archive.has(layout.SELF_TEST):
        return None
    from modpack.core.selftest import SELF_TEST_VERSION, self_test_from_json

    with decoding(archive, layout.SELF_TEST):
        return self_test_from_json(
            _read_versioned(
                archive, layout.SELF_TEST, verify, SELF_TEST_VERSION, _SELF_TEST_ITEM_BYTES
            )
        )


def read_tensors(
    archive: Archive, verify: Manifest
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

    with decoding(archive, layout.TENSORS):
        document = _read_versioned(archive, layout.TENSORS, verify, TENSORS_VERSION, {})
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


def read_externs(archive: Archive, verify: Manifest | None = None) -> list[str]:
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
    listed, most = text.count("\n"), DEFAULT_LIMITS.max_modules(archive.stored_bytes())
    if listed > most:
        reason = f"it lists {listed} modules, and {most} are allowed"
        raise ArchiveError(archive.path, reason, layout.EXTERN_MODULES)
    externs = [line for line in text.split("\n") if line]
    for module in externs:
        why = why_too_long(module)
        if why is not None:
            reason = f"it lists {module!r:.60}, which is no module path: {why}"
            raise ArchiveError(archive.path, reason, layout.EXTERN_MODULES)
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
        raise ArchiveError(archive.path, f"is no JSON ({failure})", specs_record) from failure
    from modpack.core.hookspec import specs_from_json

    return specs_from_json(parsed)
