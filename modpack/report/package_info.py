"""Facts about a package file, read without running its code.

Packages of ``torch.package`` record their sources, mocks and extern modules. They do not record
rules or imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import RUNTIME_MODULE, hook_records
from modpack.archive.manifest import Manifest, package_digest, read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.archive.records import (
    load_environment,
    object_records,
    read_call_signatures,
    read_environment,
    read_externs,
    read_loader_version,
    read_objects,
    read_plan,
    read_self_test,
    read_specs,
    read_waiting,
)
from modpack.core.environment import RecordedEnvironment
from modpack.core.hookspec import PARAMETRIZATION, HookSpec
from modpack.core.names import module_record
from modpack.core.plan import Decision, FileKind, Plan
from modpack.core.process import gc_paused
from modpack.core.rules import Action, Owner
from modpack.pickling.pickle_machine import MalformedError
from modpack.report.facts import (
    HookFacts,
    LoaderFacts,
    MainResource,
    ModuleFacts,
    PackageFacts,
    ResourceFacts,
    ResourceKind,
    StorageFacts,
    importers_of,
    provider_of,
)
from modpack.security.pickled_hooks import UNKNOWN, PickledHook, read_hooks
from modpack.trust.code_listing import PROGRAMS
from modpack.writing.loader import is_known_loader

_MOCK_RUNTIME_RULE: Final = "implicit: implements mocked modules"
NEEDED_BY_MOCKS: Final = "implicit: required by mocked modules"
"""Rule of modules that only mocks import."""
_TORCH_PACKAGE_MOCK: Final = "_mock.py"
"""Record that the mocks of torch.package import."""
_TORCH_PACKAGE_MOCK_IMPORT: Final = b"from _mock import MockedObject"


def package_facts(source: str | os.PathLike[str]) -> PackageFacts:
    """Return the facts about a package.

    The structure of the archive and the digests of the records that are read are checked.

    Args:
        source: Package file, or directory of an unzipped package; of modpack or torch.package.

    Raises:
        TypeError: If ``source`` is not a path.
        ArchiveError: If it is not a package, or damaged.
    """
    with gc_paused(), open_archive(source) as archive:
        return facts_of(archive, read_checked_manifest(archive))


def read_checked_manifest(archive: Archive) -> Manifest | None:
    """Return the manifest of an open package, after checking the names and sizes of its records.

    Raises:
        ArchiveError: If it is not a package, or damaged.
    """
    manifest = read_manifest(archive)
    if manifest is not None:
        verify_records(archive, manifest, ())
    return manifest


def recorded_plan(archive: Archive, manifest: Manifest | None) -> Plan:
    """Return the recorded plan of a package, which is empty for torch.package.

    Raises:
        ArchiveError: If a record is damaged.
    """
    # torch.package records neither rules nor imports. Both would have to be guessed.
    return Plan({}) if manifest is None else read_plan(archive, manifest)


def facts_of(archive: Archive, manifest: Manifest | None, plan: Plan | None = None) -> PackageFacts:
    """Return the facts about an open package. See :func:`package_facts`.

    Args:
        archive: The package.
        manifest: Its manifest, as :func:`read_checked_manifest` returns it.
        plan: The recorded plan, if it was read already.
    """
    if manifest is None:
        return _of_torch_package(archive)
    return _of_modpack(archive, manifest, plan or read_plan(archive, manifest))


def _of_modpack(archive: Archive, manifest: Manifest, plan: Plan) -> PackageFacts:
    environment = read_environment(archive, manifest)
    objects = read_objects(archive, manifest)
    saved = frozenset(object_records(archive, objects))
    # Of several libraries of a module, the first is the module itself: it is set last.
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
        call_signatures=read_call_signatures(archive, manifest),
        loader=loader_facts(archive, manifest),
        waiting=read_waiting(archive, manifest),
        shards=archive.shards(),
    )


def loader_facts(archive: Archive, manifest: Manifest) -> LoaderFacts | None:
    """Return the facts about the loader in a package, or None if it has no loader.

    Raises:
        ArchiveError: If the record of its version is damaged.
    """
    version = read_loader_version(archive, manifest)
    if version is None:
        return None
    prefix = layout.LOADER_FILES
    own = {n.removeprefix(prefix): n for n in manifest.records if n.startswith(prefix)}
    # The manifest is enough: verify compares the files with it.
    digests = {name: manifest.records[record].sha256 for name, record in own.items()}
    return LoaderFacts(version, is_known_loader(version, digests))


def _of_torch_package(archive: Archive) -> PackageFacts:
    externs = (_extern(module, None) for module in read_externs(archive))
    modules = _sorted([*_recorded_modules(archive), *externs])
    pickles = frozenset(name for name in archive.names() if name.endswith(".pkl"))
    resources = _resources(archive, modules, pickles)
    # Without a record of the main object, a single pickle is taken for it, as load does.
    saved = [each.record for each in resources if each.kind is ResourceKind.PICKLE]
    folder, _, name = saved[0].rpartition("/") if len(saved) == 1 else ("", "", "")
    return PackageFacts(
        path=archive.path,
        size_bytes=archive.stored_bytes(),
        format="torch.package",
        digest=package_digest(archive),
        modules=modules,
        resources=resources,
        storages=_storages(archive),
        python=load_environment(archive, None).python,
        main_resource=MainResource(folder.replace("/", "."), name) if len(saved) == 1 else None,
    )


def _recorded_modules(archive: Archive) -> Iterator[ModuleFacts]:
    """Yield the modules with a record in an archive of torch.package."""
    has_mocks = archive.has(_TORCH_PACKAGE_MOCK)
    for record in archive.names():
        if record.endswith(".py") and not layout.is_internal(record):
            # The first bytes decide, because torch.package records its mocks nowhere else.
            is_mock = (
                has_mocks
                and record != _TORCH_PACKAGE_MOCK
                and archive.read(record).startswith(_TORCH_PACKAGE_MOCK_IMPORT)
            )
            action = Action.MOCK if is_mock else Action.INTERN
            module = record.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            yield ModuleFacts(module, action, record=record, size_bytes=archive.size(record))


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
    facts = ModuleFacts(
        module,
        decision.action,
        rule=str(decision.rule),
        overridden_by=decision.overridden_by,
        importers=importers_of(plan, module),
        provided_by=provider_of(module, is_installed) if is_extern else None,
        record=record,
        size_bytes=archive.size(record) if record is not None else None,
    )
    return facts if provider is None else facts.of_distribution(provider)


def _unplanned(archive: Archive, plan: Plan) -> Iterator[ModuleFacts]:
    """Yield the modules that mocks need. No plan lists them."""
    record = module_record(RUNTIME_MODULE, False)
    if RUNTIME_MODULE not in plan.decisions and archive.has(record):
        size = archive.size(record)
        yield ModuleFacts(
            RUNTIME_MODULE, Action.INTERN, _MOCK_RUNTIME_RULE, record=record, size_bytes=size
        )
    for module in read_externs(archive):
        if module not in plan.decisions:
            yield _extern(module, NEEDED_BY_MOCKS)


def _extern(module: str, rule: str | None) -> ModuleFacts:
    owner = provider_of(module, is_installed=False)
    # Without recorded distributions, local code looks like installed code.
    provided_by = None if owner is Owner.LOCAL and rule is None else owner
    return ModuleFacts(module, Action.EXTERN, rule, provided_by=provided_by)


def _record_of(archive: Archive, module: str, compiled: Mapping[str, str]) -> str | None:
    """Return the record of a module's code, or None for a namespace package."""
    # A package hides a module of the same name, as in Python's own search.
    records = (
        *(module_record(module, is_package) for is_package in (True, False)),
        *([compiled[module]] if module in compiled else []),
    )
    return next((record for record in records if archive.has(record)), None)


def _files(archive: Archive, plan: Plan) -> dict[str, ResourceFacts]:
    """Return the records that were included with the code, with their owners."""
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
    """Return the records that are neither code, nor storages, nor metadata of the format."""
    code = {facts.record for facts in modules}
    found = []
    for name in sorted(archive.names()):
        # TorchScript is stored below .data, but users saved it.
        if name in code or (layout.is_internal(name) and not name.startswith(PROGRAMS)):
            continue
        if name in files:
            found.append(files[name])
            continue
        kind = ResourceKind.PICKLE if name in pickles else ResourceKind.FILE
        kind = ResourceKind.TORCHSCRIPT if name.startswith(PROGRAMS) else kind
        found.append(ResourceFacts(name, kind, archive.size(name)))
    return tuple(found)


def _hooks(archive: Archive, manifest: Manifest, saved: Iterable[str]) -> Iterator[HookFacts]:
    """Yield the hooks that loading the saved objects restores, with the callables in the pickles.

    Parametrizations are parts of modules, which only specs describe. All records are checked
    against the manifest before any is decoded.
    """
    for record in (ordered := sorted(saved)):
        for name in filter(archive.has, hook_records(record)):
            archive.read(name, verify=manifest)
    for record in ordered:
        specs = read_specs(archive, record)
        known = {spec.name: spec for spec in specs}
        try:
            hooks = read_hooks(archive, record)
        except MalformedError:  # a finding of the audit
            names = (each for each in specs if each.kind != PARAMETRIZATION)
            hooks = tuple(PickledHook(each.name, each.kind, UNKNOWN) for each in names)
        for name, kind, called in hooks:
            target, _, its_kind = name.rpartition("/")[0].rpartition("/")
            spec = known.get(name) or HookSpec(name, its_kind, (target,), 0, UNKNOWN)
            by, called_name, source, *_ = called
            shown = spec.callable._replace(by=by, name=called_name, source=source)
            yield HookFacts(record, spec._replace(kind=kind or spec.kind, callable=shown))
        yield from (HookFacts(record, spec) for spec in specs if spec.kind == PARAMETRIZATION)


def _storages(archive: Archive) -> StorageFacts:
    sizes = [size for name, size in archive.sizes().items() if layout.is_storage(name)]
    return StorageFacts(len(sizes), sum(sizes))


def _sorted(modules: list[ModuleFacts]) -> tuple[ModuleFacts, ...]:
    return tuple(sorted(modules, key=lambda facts: facts.module))
