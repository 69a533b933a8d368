"""Facts about a package file: read, never run.

Packages of ``torch.package`` give what they record: which sources they hold, which of them are
stand-ins, which modules are extern. Why, and who imports what, they do not say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import RUNTIME_MODULE, hook_records
from modpack.archive.manifest import Manifest, package_digest, read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.archive.records import (
    object_records,
    read_environment,
    read_externs,
    read_objects,
    read_plan,
    read_self_test,
    read_specs,
)
from modpack.core.environment import RecordedEnvironment
from modpack.core.hookspec import CallableSpec, HookSpec
from modpack.core.names import module_record
from modpack.core.plan import Decision, FileKind, Plan
from modpack.core.process import gc_paused
from modpack.core.rules import Action, Owner
from modpack.report.facts import (
    HookFacts,
    MainResource,
    ModuleFacts,
    PackageFacts,
    ResourceFacts,
    ResourceKind,
    StorageFacts,
    importers_of,
    plan_with_uses,
    provider_of,
)
from modpack.security.pickled_hooks import find_disagreements

_STAND_INS_RULE: Final = "implicit: stand-ins of mocked modules are made of it"
STAND_INS_NEED: Final = "implicit: stand-ins of mocked modules need it"
"""The rule of what only stand-ins import."""
_ANCESTORS_STAND_INS: Final = "_mock.py"
"""The record that torch.package's stand-ins import."""
_ANCESTORS_IMPORT: Final = b"from _mock import MockedObject"
_COMPILED: Final = (".data/ts_code/", layout.MODPACK_PREFIX + "torchscript/")


def package_facts(source: str | os.PathLike[str]) -> PackageFacts:
    """The facts about a package.

    The archive's structure is checked, and so are the digests of the records that are read.

    Args:
        source: a package file, or the folder of an unzipped package; modpack's or torch.package's.

    Raises:
        TypeError: it is no path.
        ArchiveError: it is no package, or a damaged one.
    """
    with gc_paused(), open_archive(source) as archive:
        return facts_of(archive, read_checked_manifest(archive))


def read_checked_manifest(archive: Archive) -> Manifest | None:
    """The manifest of an opened package, with which its records agree in name and size.

    Raises:
        ArchiveError: it is no package, or a damaged one.
    """
    manifest = read_manifest(archive)
    if manifest is not None:
        verify_records(archive, manifest, ())
    return manifest


def read_evidence(archive: Archive, *, with_uses: bool = True) -> Plan:
    """The plan that a package was written by, or what its contents tell of it.

    modpack's packages record it. Those of torch.package do not: their sources and pickles are
    read for it, and nothing is run.

    Args:
        archive: the package.
        with_uses: whether to look for the uses of mocked modules where they are not recorded.

    Raises:
        ArchiveError: it is no package, or a damaged one.
    """
    manifest = read_checked_manifest(archive)
    if manifest is not None:
        plan = read_plan(archive, manifest)
    else:
        from modpack.report.torch_package import reconstructed_plan  # most packages do without

        plan = reconstructed_plan(archive)
    return plan_with_uses(plan, lambda: _sources(archive, manifest, plan)) if with_uses else plan


def _sources(
    archive: Archive, manifest: Manifest | None, plan: Plan
) -> dict[str, tuple[bytes, bool]]:
    """The packaged sources: by module, and whether it can have submodules."""
    found = {}
    for module in plan.modules(Action.INTERN):
        record = _record_of(archive, module, {})
        if record is not None:
            is_package = record == module_record(module, True)
            found[module] = (archive.read(record, verify=manifest), is_package)
    return found


def facts_of(archive: Archive, manifest: Manifest | None, plan: Plan | None = None) -> PackageFacts:
    """The facts about a package that is open already; see :func:`package_facts`.

    Args:
        archive: the package.
        manifest: its manifest, as :func:`read_checked_manifest` returns it.
        plan: the plan that a package of modpack's records, if it has been read already.
    """
    if manifest is None:
        return _of_torch_package(archive)
    return _of_modpack(archive, manifest, plan or read_plan(archive, manifest))


def _of_modpack(archive: Archive, manifest: Manifest, plan: Plan) -> PackageFacts:
    environment = read_environment(archive, manifest)
    objects = read_objects(archive, manifest)
    saved = frozenset(object_records(archive, objects))
    libraries = (file for file in reversed(plan.files) if file.kind is FileKind.NATIVE)
    compiled = {file.owner: file.record for file in libraries}
    decisions = plan.decisions.values()
    planned = [_planned(archive, plan, d, environment, compiled) for d in decisions]
    modules = _sorted([*planned, *_unplanned(archive, plan)])
    return PackageFacts(
        path=archive.path,
        size_bytes=archive.stored_bytes(),
        format=f"modpack {manifest.format}",
        digest=archive.read(layout.MANIFEST_DIGEST).decode("ascii"),
        modules=modules,
        resources=_resources(archive, modules, saved, _files(archive, plan)),
        storages=_storages(archive),
        writer=manifest.writer,
        python=environment.python,
        torch=environment.torch,
        platform=environment.platform_label,
        main_resource=objects.entry and MainResource(*objects.entry),
        hooks=tuple(_hooks(archive, manifest, saved)),
        notes=plan.notes,
        namespace=objects.namespace,
        self_test=read_self_test(archive, manifest),
    )


def _of_torch_package(archive: Archive) -> PackageFacts:
    held = [
        ModuleFacts(m.module, m.action, record=m.record, size_bytes=archive.size(m.record))
        for m in recorded_modules(archive)
    ]
    externs = [_extern(module, None) for module in read_externs(archive)]
    modules = _sorted([*held, *externs])
    pickles = frozenset(name for name in archive.names() if name.endswith(".pkl"))
    resources = _resources(archive, modules, pickles)
    saved = [each.record for each in resources if each.kind is ResourceKind.PICKLE]
    folder, _, name = saved[0].rpartition("/") if len(saved) == 1 else ("", "", "")
    has_version = archive.has(layout.PYTHON_VERSION)
    python = archive.read(layout.PYTHON_VERSION) if has_version else b""
    return PackageFacts(
        path=archive.path,
        size_bytes=archive.stored_bytes(),
        format="torch.package",
        digest=package_digest(archive),
        modules=modules,
        resources=resources,
        storages=_storages(archive),
        python=python.decode("utf-8", "replace").strip() or None,
        main_resource=MainResource(folder.replace("/", "."), name) if len(saved) == 1 else None,
    )


class RecordedModule(NamedTuple):
    """A module that an archive of torch.package has a record of.

    Attributes:
        module: its path.
        record: its source, or its stand-in.
        action: what happened to it.
        is_package: whether it can have submodules.
    """

    module: str
    record: str
    action: Action
    is_package: bool


def recorded_modules(archive: Archive) -> Iterator[RecordedModule]:
    """The modules that an archive of torch.package holds, as they stand in it.

    Raises:
        ArchiveError: a record is damaged.
    """
    for record in archive.names():
        if record.endswith(".py") and not layout.is_internal(record):
            is_stand_in = (
                record != _ANCESTORS_STAND_INS
                and archive.has(_ANCESTORS_STAND_INS)
                and archive.read(record).startswith(_ANCESTORS_IMPORT)
            )
            action = Action.MOCK if is_stand_in else Action.INTERN
            path = record.removesuffix(".py")
            is_package = path.endswith("/__init__")
            module = path.removesuffix("/__init__").replace("/", ".")
            yield RecordedModule(module, record, action, is_package)


def _planned(
    archive: Archive,
    plan: Plan,
    decision: Decision,
    environment: RecordedEnvironment,
    compiled: Mapping[str, str],
) -> ModuleFacts:
    module, is_extern = decision.module, decision.action is Action.EXTERN
    provider = environment.provider_of(module) if is_extern else None
    is_installed = provider is not None and not provider.editable
    record = None if is_extern else _record_of(archive, module, compiled)
    return ModuleFacts(
        module,
        decision.action,
        str(decision.rule),
        decision.overridden_by,
        importers_of(plan, module),
        provider_of(module, is_installed) if is_extern else None,
        provider.name if provider is not None else None,
        provider.version if provider is not None else None,
        record,
        archive.size(record) if record is not None else None,
        provider.license if provider is not None else None,
        provider is not None and provider.editable,
    )


def _unplanned(archive: Archive, plan: Plan) -> Iterator[ModuleFacts]:
    """What stand-ins bring along: no plan mentions it."""
    record = module_record(RUNTIME_MODULE, False)
    if RUNTIME_MODULE not in plan.decisions and archive.has(record):
        size = archive.size(record)
        yield ModuleFacts(
            RUNTIME_MODULE, Action.INTERN, _STAND_INS_RULE, record=record, size_bytes=size
        )
    for module in read_externs(archive):
        if module not in plan.decisions:
            yield _extern(module, STAND_INS_NEED)


def _extern(module: str, rule: str | None) -> ModuleFacts:
    owner = provider_of(module, is_installed=False)
    # Without a record of distributions nobody can tell loose code from installed code.
    provided_by = None if owner is Owner.LOCAL and rule is None else owner
    return ModuleFacts(module, Action.EXTERN, rule, provided_by=provided_by)


def _record_of(archive: Archive, module: str, compiled: Mapping[str, str]) -> str | None:
    """The record of a module's code; folders without code have none."""
    records = (
        *(module_record(module, is_package) for is_package in (True, False)),
        *([compiled[module]] if module in compiled else []),
    )
    return next((record for record in records if archive.has(record)), None)


def _files(archive: Archive, plan: Plan) -> dict[str, ResourceFacts]:
    """The records that came with the code, with what they came with."""
    files = {file.record: (ResourceKind(file.kind.value), file.owner) for file in plan.files}
    for distribution in plan.distributions:
        record = f"{distribution.folder}/RECORD"
        files[record] = (ResourceKind.METADATA, distribution.name)
    return {
        record: ResourceFacts(record, kind, archive.size(record), owner)
        for record, (kind, owner) in files.items()
        if archive.has(record)
    }


def _resources(
    archive: Archive,
    modules: tuple[ModuleFacts, ...],
    pickles: frozenset[str],
    files: Mapping[str, ResourceFacts] = MappingProxyType({}),
) -> tuple[ResourceFacts, ...]:
    """Every record that is neither code, nor a storage, nor the format's own."""
    code = {facts.record for facts in modules}
    found = []
    for name in sorted(archive.names()):
        if name in code or (layout.is_internal(name) and not name.startswith(_COMPILED)):
            continue
        if name in files:
            found.append(files[name])
            continue
        kind = ResourceKind.PICKLE if name in pickles else ResourceKind.FILE
        kind = ResourceKind.TORCHSCRIPT if name.startswith(_COMPILED) else kind
        found.append(ResourceFacts(name, kind, archive.size(name)))
    return tuple(found)


def _hooks(archive: Archive, manifest: Manifest, saved: Iterable[str]) -> Iterator[HookFacts]:
    """The hooks of saved objects: where a spec and the pickle disagree, what the pickle restores.

    All of their records are checked against the manifest before any is decoded.
    """
    for record in (ordered := sorted(saved)):
        for name in filter(archive.has, hook_records(record)):
            archive.read(name, verify=manifest)
    for record in ordered:
        specs = read_specs(archive, record)
        differing = {each.hook: each for each in find_disagreements(archive, record, specs)}
        for spec in specs:
            found = differing.pop(spec.name, None)
            if found is None:
                yield HookFacts(record, spec)
            else:
                shown = spec if found.pickled is None else spec._replace(callable=found.pickled)
                yield HookFacts(record, shown, found.reason)
        for name, each in differing.items():
            target, _, kind = name.rpartition("/")[0].rpartition("/")
            called = each.pickled or CallableSpec("object", "unknown")
            yield HookFacts(record, HookSpec(name, kind, (target,), 0, called), each.reason)


def _storages(archive: Archive) -> StorageFacts:
    sizes = [size for name, size in archive.sizes().items() if layout.is_storage(name)]
    return StorageFacts(len(sizes), sum(sizes))


def _sorted(modules: list[ModuleFacts]) -> tuple[ModuleFacts, ...]:
    return tuple(sorted(modules, key=lambda facts: facts.module))
