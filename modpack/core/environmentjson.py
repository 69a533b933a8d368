"""The recorded environment as it is stored in a package, and back.

The archive format page documents it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from modpack.core.environment import RecordedDistribution, RecordedEnvironment
from modpack.core.jsonvalues import as_mapping, as_module_path, as_optional_text, as_text
from modpack.core.names import normalised_distribution, root_of
from modpack.core.native import NativeTag

if TYPE_CHECKING:
    from modpack.core.planjson import Json

__all__ = ["environment_from_json", "environment_to_json"]

_TEXTS = ("python", "implementation", "platform", "machine", "torch", "modpack")


def environment_to_json(environment: RecordedEnvironment) -> dict[str, Json]:
    """What a package records about where it was made.

    ``externs`` says again, for older readers, what ``providers`` and ``installed`` say: one
    distribution for each first component.
    """
    record: dict[str, Json] = {key: getattr(environment, key) for key in _TEXTS}
    record["externs"] = dict(_externs(environment))
    record["providers"] = dict(sorted(environment.providers.items()))
    record["installed"] = {n: _installed(d) for n, d in sorted(environment.distributions.items())}
    if environment.native is not None:
        record["native"] = {**environment.native.to_json()}
    return record


def environment_from_json(record: Mapping[str, Json]) -> RecordedEnvironment:
    """Read back what :func:`environment_to_json` made, or an older modpack.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    externs = as_mapping(record["externs"], "externs")
    older = {root: _extern(as_mapping(found, root)) for root, found in externs.items()}
    providers = {_path(root): normalised_distribution(d.name) for root, d in older.items()}
    distributions = {normalised_distribution(d.name): d for d in older.values()}
    if "installed" in record:
        listed = as_mapping(record["installed"], "installed")
        distributions = {n: _distribution(as_mapping(d, n)) for n, d in listed.items()}
        named = as_mapping(record["providers"], "providers")
        providers = {_path(path): as_text(name, "a provider") for path, name in named.items()}
    texts = (as_optional_text(record.get(key), key) for key in _TEXTS)
    python, implementation, system, machine, torch, modpack = texts
    native = record.get("native")
    return RecordedEnvironment(
        python,
        implementation,
        system,
        machine,
        torch,
        providers,
        distributions,
        NativeTag.from_json(native) if native is not None else None,
        "distributions" in record,
        "installed" in record,
        modpack,
    )


def _externs(environment: RecordedEnvironment) -> Iterator[tuple[str, Json]]:
    for path, name in sorted(environment.providers.items(), reverse=True):
        found = environment.distributions[name]
        yield (
            root_of(path),
            {"distribution": found.name, "version": found.version, "editable": found.editable},
        )


def _installed(found: RecordedDistribution) -> Json:
    return {
        "name": found.name,
        "version": found.version,
        "editable": found.editable,
        "licence": found.licence,
        "requires": list(found.requires),
        "hashes": {**found.hashes},
        "url": found.url,
    }


def _path(module: str) -> str:
    return as_module_path(module, "the path of what a distribution provides")


def _extern(found: Mapping[str, Json]) -> RecordedDistribution:
    name = as_text(found["distribution"], "distribution")
    editable = bool(found.get("editable", False))
    return RecordedDistribution(name, as_text(found["version"], "version"), editable)


def _distribution(found: Mapping[str, Json]) -> RecordedDistribution:
    requires = found["requires"]
    if not isinstance(requires, list):
        raise TypeError("requires is no list")
    hashes = as_mapping(found["hashes"], "hashes")
    return RecordedDistribution(
        as_text(found["name"], "name"),
        as_text(found["version"], "version"),
        bool(found["editable"]),
        as_optional_text(found["licence"], "licence"),
        tuple(as_text(each, "a requirement") for each in requires),
        {algorithm: as_text(digest, "a digest") for algorithm, digest in hashes.items()},
        as_optional_text(found["url"], "url"),
    )
