"""Decoders for the records in which a package describes itself, checked field by field.

Packages are untrusted input. Every function returns a value of its declared type or raises
:class:`~modpack.errors.ArchiveError`. It never executes package code or imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.core.codec import ModulePath, from_json, json_keys
from modpack.core.environment import RecordedEnvironment, environment_from_json
from modpack.core.json_values import Json, as_mapping, as_text, parse_json
from modpack.core.names import resource_record, why_too_long
from modpack.errors import ArchiveError, ModpackError, UnsupportedVersionError, listed

if TYPE_CHECKING:
    from modpack.archive.manifest import Manifest
    from modpack.core.call_signature import CallSignature
    from modpack.core.hookspec import HookSpec
    from modpack.core.plan import Plan
    from modpack.core.selftest import SelfTestRecord, WaitingImports
    from modpack.core.tensors import TensorFacts

_GRAPH_ITEM_BYTES: Final = {
    **{"edges": 65, "notes": 100, "uses": 100, "files": 100},
    **{"roots": 250, "distributions": 1000, "modules": layout.MODULE_BYTES},
}
"""Archive size in bytes that allows one item of each list. Small archives have a minimum."""
_SELF_TEST_ITEM_BYTES: Final = {
    **{"cases": 1000, "operators": 1000, "additions": 100, "hidden": 100},
    **{"hidden_distributions": 100},
}
"""The same for the self-test record."""
_OBSERVATIONS_ITEM_BYTES: Final = {
    **{"modules": layout.MODULE_BYTES, "files": 100, "distributions": 100},
    **{"example_modules": layout.MODULE_BYTES, "mock_events": 100},
    **{"unfilled_tables": 100, "warnings": 100},
}
"""The same for its observations."""
_MAX_CACHED_BYTES: Final = 64 << 10
"""Maximum size of a cached record. Packages of one project often share these records."""


@json_keys(optional=("namespace",))
class Objects(NamedTuple):
    """The saved objects of a package.

    Attributes:
        pickles: Package and resource of each object.
        main: The main object, if the package names one.
        namespace: The namespace in which the objects load.
    """

    pickles: tuple[tuple[ModulePath, str], ...]
    main: tuple[ModulePath, str] | None = None
    namespace: Literal["private", "process"] = "private"

    @property
    def entry(self) -> tuple[str, str] | None:
        """The main object, or the only one."""
        return self.main or (self.pickles[0] if len(self.pickles) == 1 else None)


def read_json(archive: Archive, record: str, verify: Manifest | None = None) -> Json:
    """Return the value of a JSON record.

    Args:
        archive: The package.
        record: The record.
        verify: The package's manifest, to check the content against.

    Raises:
        ValueError: If the record is not valid JSON, is nested too deeply, or needs too much memory.
        RecordNotFoundError: If the record does not exist.
        ArchiveError: If the record is damaged or does not match the manifest.
    """
    # Brackets and commas of a small record can become objects of many times its size.
    max_bytes = layout.max_json_bytes(archive.stored_bytes())
    return parse_json(archive.read(record, verify=verify), max_bytes)


def read_document(archive: Archive, record: str, verify: Manifest | None) -> dict[str, Json]:
    """Return the object in a JSON record. Call it within :func:`decoding`."""
    return as_mapping(read_json(archive, record, verify), "the record")


@contextmanager
def decoding(archive: Archive, record: str) -> Iterator[None]:
    """Convert exceptions from decoding a record into an ArchiveError that names the record."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as failure:
        detail = f"{failure} is missing" if isinstance(failure, KeyError) else str(failure)
        reason = f"the record is not in the form that modpack writes: {detail}"
        raise ArchiveError(archive.path, reason, record) from failure


def _read_versioned(
    archive: Archive,
    record: str,
    verify: Manifest | None,
    known_version: int,
    item_bytes: Mapping[str, int],
) -> dict[str, Json]:
    """Return the object in a versioned JSON record, whose lists must not be too long.

    Raises:
        UnsupportedVersionError: If a newer version of modpack wrote it.
    """
    document = read_document(archive, record, verify)
    version, archive_bytes = document["version"], archive.stored_bytes()
    # isinstance would accept True.
    if type(version) is not int or version < 1:
        raise ValueError(f"the version is {version!r:.60}, not a positive whole number")
    if version > known_version:
        raise UnsupportedVersionError(
            archive.path,
            f"the record has version {version}, and this version of modpack supports versions up "
            f"to {known_version}",
            record,
            hint="Install a newer version of modpack.",
        )
    _limit_items(document, archive_bytes, item_bytes)
    return document


def _limit_items(
    document: Mapping[str, Json], archive_bytes: int, item_bytes: Mapping[str, int]
) -> None:
    for key, size in item_bytes.items():
        # Before the items become records, which take much more memory than their JSON.
        listed, limit = document.get(key), layout.max_items(archive_bytes, size)
        if isinstance(listed, (list, dict)) and len(listed) > limit:
            raise ValueError(f"{len(listed)} {key} are listed, and {limit} are allowed")


def read_plan(archive: Archive, verify: Manifest | None) -> Plan:
    """Return the plan that a package was exported with.

    Raises:
        UnsupportedVersionError: If a newer version of modpack wrote it.
        ArchiveError: If the record is missing or damaged.
    """
    from modpack.core.plan_json import GRAPH_VERSION, plan_from_json  # not needed by most loads

    with decoding(archive, layout.GRAPH):
        return plan_from_json(
            _read_versioned(archive, layout.GRAPH, verify, GRAPH_VERSION, _GRAPH_ITEM_BYTES)
        )


def read_environment(archive: Archive, verify: Manifest | None) -> RecordedEnvironment:
    """Return the export environment of a package that modpack wrote.

    Raises:
        ArchiveError: If the record is missing or damaged.
    """
    with decoding(archive, layout.ENVIRONMENT):
        content = archive.read(layout.ENVIRONMENT, verify=verify)
        if len(content) <= _MAX_CACHED_BYTES:
            return _decode_environment(content)
        return environment_from_json(read_document(archive, layout.ENVIRONMENT, verify))


@lru_cache(maxsize=8)
def _decode_environment(content: bytes) -> RecordedEnvironment:
    # The content is small, so the memory limit of the smallest archive is enough.
    document = parse_json(content, layout.max_json_bytes(0))
    return environment_from_json(as_mapping(document, "the record"))


def load_environment(archive: Archive, verify: Manifest | None) -> RecordedEnvironment:
    """Return a package's export environment. torch.package records at most the Python version.

    Raises:
        ArchiveError: If the record is damaged.
    """
    if archive.has(layout.ENVIRONMENT):
        return read_environment(archive, verify)
    if not archive.has(layout.PYTHON_VERSION):
        return RecordedEnvironment()
    version = archive.read(layout.PYTHON_VERSION).decode("utf-8", "replace").strip()
    return RecordedEnvironment(python=version or None)


def read_objects(archive: Archive, verify: Manifest | None = None) -> Objects:
    """Return the saved objects of a package.

    Raises:
        ArchiveError: If the record is missing or damaged.
    """
    with decoding(archive, layout.ENTRY):
        return from_json(Objects, read_document(archive, layout.ENTRY, verify), "the record")


def object_records(archive: Archive, objects: Objects) -> tuple[str, ...]:
    """Return the records of a package's saved objects.

    Raises:
        ArchiveError: If an object's name is not a valid record name.
    """
    try:
        return tuple(resource_record(package, name) for package, name in objects.pickles)
    except ValueError as failure:
        raise ArchiveError(archive.path, str(failure), layout.ENTRY) from failure


def read_self_test(archive: Archive, verify: Manifest) -> SelfTestRecord | None:
    """Return the package's self-test record, or None if there is none.

    Raises:
        UnsupportedVersionError: If a newer version of modpack wrote it.
        ArchiveError: If the record is damaged.
    """
    if not archive.has(layout.SELF_TEST):
        return None
    from modpack.core.selftest import SELF_TEST_VERSION, self_test_from_json

    with decoding(archive, layout.SELF_TEST):
        document = _read_versioned(
            archive, layout.SELF_TEST, verify, SELF_TEST_VERSION, _SELF_TEST_ITEM_BYTES
        )
        observed = as_mapping(document.get("observations", {}), "observations")
        # They are nested in the record, where the limits of its own lists do not reach.
        _limit_items(observed, archive.stored_bytes(), _OBSERVATIONS_ITEM_BYTES)
        return self_test_from_json(document)


def require_self_test(archive: Archive, verify: Manifest | None) -> SelfTestRecord:
    """Return the package's self-test record.

    Raises:
        ModpackError: If there is none, as in archives of torch.package.
        UnsupportedVersionError: If a newer version of modpack wrote it.
        ArchiveError: If the record is damaged.
    """
    recorded = read_self_test(archive, verify) if verify is not None else None
    if recorded is None:
        raise ModpackError(
            f"{archive.path}: the package contains no self-test",
            hint="Save the model with example_inputs (--example-inputs).",
        )
    return recorded


def read_waiting(archive: Archive, verify: Manifest | None = None) -> WaitingImports | None:
    """Return the imports that may wait, or None if the package records none.

    Raises:
        UnsupportedVersionError: If a newer version of modpack wrote it.
        ArchiveError: If the record is damaged.
    """
    if not archive.has(layout.WAITING):
        return None
    from modpack.core.selftest import WaitingImports

    with decoding(archive, layout.WAITING):
        item_bytes = {"modules": 100, "loaded": 100, "companions": 100}
        document = _read_versioned(archive, layout.WAITING, verify, 1, item_bytes)
        return from_json(WaitingImports, document, "the record")


def read_loader_version(archive: Archive, verify: Manifest | None = None) -> str | None:
    """Return the modpack version of the loader in a package, or None if it has no loader.

    Raises:
        UnsupportedVersionError: If a newer version of modpack wrote it.
        ArchiveError: If the record is damaged.
    """
    if not archive.has(layout.LOADER):
        return None
    with decoding(archive, layout.LOADER):
        document = _read_versioned(archive, layout.LOADER, verify, layout.LOADER_VERSION, {})
        return as_text(document["modpack"], "'modpack' of the record")


def read_shards(archive: Archive) -> dict[str, tuple[str, int, int]]:
    """Return file, offset, and size of each storage that is next to the package, by its record.

    Raises:
        UnsupportedVersionError: If a newer version of modpack wrote it.
        ArchiveError: If the record is missing or damaged.
    """
    with decoding(archive, layout.SHARDS):
        document = _read_versioned(archive, layout.SHARDS, None, layout.SHARDS_VERSION, {})
        kind = dict[str, tuple[str, int, int]]
        return from_json(kind, document["storages"], "'storages' of the record")


def read_call_signatures(
    archive: Archive, verify: Manifest | None = None
) -> tuple[CallSignature, ...]:
    """Return the call signatures of a package's saved objects. Objects without one are left out.

    Raises:
        UnsupportedVersionError: If a newer version of modpack wrote the record.
        ArchiveError: If the record is damaged.
    """
    if not archive.has(layout.CALL_SIGNATURE):
        return ()
    from modpack.core.call_signature import CALL_SIGNATURE_VERSION, call_signatures_from_json

    with decoding(archive, layout.CALL_SIGNATURE):
        return call_signatures_from_json(
            _read_versioned(
                archive, layout.CALL_SIGNATURE, verify, CALL_SIGNATURE_VERSION, {"calls": 1000}
            )
        )


def read_tensors(
    archive: Archive, verify: Manifest
) -> Mapping[str, tuple[TensorFacts, ...]] | None:
    """Return the tensors of each saved object, by record, in the order of its state dict.

    Checks that the storages exist and are large enough, without reading them.

    Args:
        archive: The package.
        verify: Its manifest.

    Returns:
        None if the package does not record tensors, because it contains no saved object.

    Raises:
        UnsupportedVersionError: If a newer version of modpack wrote it.
        ArchiveError: If the record is damaged.
    """
    if not archive.has(layout.TENSORS):
        return None
    from modpack.core.tensors import TENSORS_VERSION, tensors_from_json

    with decoding(archive, layout.TENSORS):
        document = _read_versioned(archive, layout.TENSORS, verify, TENSORS_VERSION, {})
        tensors = tensors_from_json(document)
        _check_storages(archive, (each for listed in tensors.values() for each in listed))
        return tensors


def _check_storages(archive: Archive, tensors: Iterable[TensorFacts]) -> None:
    sizes = archive.sizes()
    problems = list(filter(None, (_storage_problem(sizes, tensor) for tensor in tensors)))
    if problems:
        raise ValueError(listed(problems, between="; "))


def _storage_problem(sizes: Mapping[str, int], tensor: TensorFacts) -> str | None:
    """Return why a tensor does not fit into its storage, or None if it does."""
    if tensor.storage is None:
        return None
    record = layout.storage_name(tensor.storage)
    size = sizes.get(record)
    if size is None or not layout.is_storage(record):
        return f"{tensor.name!r:.200} is in the storage {tensor.storage!r:.80}, which is missing"
    from modpack.core.tensors import DTYPE_ALIASES, QUANTIZED_DTYPES

    if tensor.dtype in DTYPE_ALIASES:
        return f"{tensor.name!r:.200} has the dtype {tensor.dtype!r}, which is only an alias"
    # Its elements have no values without a scale and a zero point.
    if tensor.dtype in QUANTIZED_DTYPES and tensor.form != "quantized":
        return f"{tensor.name!r:.200} has the dtype {tensor.dtype!r}, but is not quantized"
    needed = _bytes_needed(tensor)
    if needed > size:
        return (
            f"{tensor.name!r:.200} needs {needed} bytes in the storage {tensor.storage!r}, which "
            f"has {size}"
        )
    return None


def _bytes_needed(tensor: TensorFacts) -> int:
    """Return the minimum storage size for a tensor, with one byte per item of unknown dtypes."""
    if not tensor.numel:
        return 0
    from modpack.core.tensors import ITEM_BYTES, PACKED_DTYPES

    end = tensor.offset + tensor.span
    # Rounded up, because the last byte may be only partly used.
    if tensor.dtype in PACKED_DTYPES:
        return -(-end // PACKED_DTYPES[tensor.dtype])
    return end * ITEM_BYTES.get(tensor.dtype, 1)


def read_externs(archive: Archive, verify: Manifest | None = None) -> list[str]:
    """Return a package's extern modules in the order of the record.

    Args:
        archive: The package.
        verify: Its manifest, to check the record against.

    Raises:
        ArchiveError: If the record is damaged, or exceeds a limit on count or length.
    """
    if not archive.has(layout.EXTERN_MODULES):
        return []
    text = archive.read(layout.EXTERN_MODULES, verify=verify).decode("utf-8", "replace")
    # Counted before the text is split: a list of short lines takes many times its memory.
    listed, limit = text.count("\n"), layout.max_modules(archive.stored_bytes())
    if listed > limit:
        reason = f"{listed} modules are listed, and {limit} are allowed"
        raise ArchiveError(archive.path, reason, layout.EXTERN_MODULES)
    externs = [line for line in text.split("\n") if line not in ("", layout.MODPACK_ONLY)]
    for module in externs:
        problem = why_too_long(module)
        if problem is not None:
            reason = f"{module!r:.60} is not a module path: {problem}"
            raise ArchiveError(archive.path, reason, layout.EXTERN_MODULES)
    return externs


def read_specs(archive: Archive, record: str) -> tuple[HookSpec, ...]:
    """Return the hook specs of a saved object, without executing code or importing torch.

    Raises:
        ArchiveError: If the record is damaged.
        ModpackError: If the record's version is unknown.
    """
    specs_record, _ = hook_records(record)
    if not archive.has(specs_record):
        return ()
    try:
        parsed = read_json(archive, specs_record)
    except ValueError as failure:
        reason = f"the record cannot be read as JSON: {failure}"
        raise ArchiveError(archive.path, reason, specs_record) from failure
    from modpack.core.hookspec import specs_from_json

    return specs_from_json(parsed)
