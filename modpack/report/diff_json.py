"""Differences as JSON. The command line's reference page documents every key."""

from __future__ import annotations

from collections.abc import Sequence

from modpack.core.codec import to_json
from modpack.core.hookspec import HookSpec
from modpack.core.json_values import Json
from modpack.core.tensors import TensorFacts
from modpack.report.diff_facts import (
    DistributionDifference,
    FieldChange,
    HookDifference,
    ModuleDifference,
    PackageDifferences,
    ResourceDifference,
    StoragesDifference,
    TensorDifference,
    TextDifference,
)
from modpack.report.facts import ModuleFacts, PackageFacts
from modpack.report.json_output import SCHEMA


def differences_document(found: PackageDifferences) -> dict[str, Json]:
    """All that differs between two packages."""
    return {
        "schema": SCHEMA,
        "before": _package(found.before),
        "after": _package(found.after),
        "identical": found.is_same_content,
        "different": not found.are_none,
        "package": _fields(found.package),
        "distributions": [_distribution(each) for each in found.distributions],
        "modules": [_module(each) for each in found.modules],
        "imports": [
            {
                "change": each.change.value,
                "importer": each.edge.importer,
                "imported": each.edge.imported,
                "kind": each.edge.kind.value,
                "line": each.edge.line,
            }
            for each in found.imports
        ],
        "uses": [
            {
                "change": each.change.value,
                "module": each.use.module,
                "name": each.use.name,
                "importer": each.use.importer,
                "line": each.use.line,
                "kind": each.use.kind.value,
                "scope": each.use.scope,
                "is_live": each.use.is_live,
            }
            for each in found.uses
        ],
        "hooks": [_hook(each) for each in found.hooks],
        "tensors": [_tensor(each) for each in found.tensors],
        "sharing": [
            {"resource": each.resource, "change": each.change.value, "names": list(each.names)}
            for each in found.sharing
        ],
        "storages": _storages(found.storages),
        "resources": [_resource(each) for each in found.resources],
        "trial": _fields(found.trial),
        "examples": [{"number": each.number, "parts": list(each.parts)} for each in found.examples],
        "notes": [
            {
                "change": each.change.value,
                "kind": each.note.kind.value,
                "subject": each.note.subject,
                "text": each.note.text,
                "place": each.note.place,
            }
            for each in found.notes
        ],
        "records": [{"record": each.record, "change": each.change.value} for each in found.records],
    }


def _package(facts: PackageFacts) -> Json:
    return {
        "file": facts.file,
        "size_bytes": facts.size_bytes,
        "format": facts.format,
        "digest": facts.digest,
    }


def _fields(fields: Sequence[FieldChange]) -> Json:
    return [{"what": each.what, "before": each.before, "after": each.after} for each in fields]


def _text(text: TextDifference | None) -> Json:
    if text is None:
        return None
    unified = "".join(f"{line}\n" for line in text.unified)
    return {"unified": unified, "added": text.added, "removed": text.removed}


def _distribution(found: DistributionDifference) -> Json:
    return {
        "name": found.name,
        "change": found.change.value,
        "fields": _fields(found.fields),
        "modules": found.modules,
    }


def _module(found: ModuleDifference) -> Json:
    return {
        "module": found.module,
        "change": found.change.value,
        "before": _module_facts(found.before),
        "after": _module_facts(found.after),
        "fields": _fields(found.fields),
        "has_other_code": found.has_other_code,
        "source": _text(found.source),
    }


def _module_facts(facts: ModuleFacts | None) -> Json:
    if facts is None:
        return None
    return {
        "action": facts.action.value,
        "rule": facts.rule,
        "overridden_by": facts.overridden_by,
        "distribution": facts.distribution,
        "version": facts.version,
        "licence": facts.licence,
        "record": facts.record,
        "size_bytes": facts.size_bytes,
    }


def _hook(found: HookDifference) -> Json:
    return {
        "resource": found.resource,
        "change": found.change.value,
        "before": _spec(found.before),
        "after": _spec(found.after),
        "fields": _fields(found.fields),
        "source": _text(found.source),
    }


def _spec(spec: HookSpec | None) -> Json:
    return to_json(spec)


def _tensor(found: TensorDifference) -> Json:
    return {
        "resource": found.resource,
        "name": found.name,
        "change": found.change.value,
        "before": _tensor_facts(found.before),
        "after": _tensor_facts(found.after),
        "fields": _fields(found.fields),
        "values": found.values.value,
        "same_as": found.same_as,
    }


def _tensor_facts(tensor: TensorFacts | None) -> Json:
    if tensor is None:
        return None
    return {
        "kind": tensor.kind.value,
        "dtype": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "requires_grad": tensor.requires_grad,
        "persistent": tensor.is_persistent,
        "device": tensor.device,
        "size_bytes": tensor.size_bytes,
    }


def _storages(found: StoragesDifference) -> Json:
    return {
        "are_all": found.are_all,
        "same": found.same,
        "different": [
            {"record": each.record, "change": each.change.value, "size_bytes": each.size_bytes}
            for each in found.different
        ],
    }


def _resource(found: ResourceDifference) -> Json:
    return {
        "record": found.record,
        "change": found.change.value,
        "kind": found.kind.value,
        "before_bytes": found.before_bytes,
        "after_bytes": found.after_bytes,
        "owner": found.owner,
        "text": _text(found.text),
    }
