"""Checks of a package's metadata records: their content, and their consistency.

The readers of the records decode them without torch. Then they are compared with each other, with
the manifest, and with the storages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import ExampleRecords, hook_records
from modpack.archive.manifest import Manifest, canonical_json
from modpack.archive.records import (
    Objects,
    decoding,
    object_records,
    read_call_signatures,
    read_document,
    read_environment,
    read_externs,
    read_json,
    read_loader_version,
    read_objects,
    read_plan,
    read_self_test,
    read_specs,
    read_tensors,
    read_waiting,
)
from modpack.core.codec import from_json
from modpack.core.graph import CodeKind
from modpack.core.hookspec import PARAMETRIZATION, HookSpec
from modpack.core.names import module_record
from modpack.core.plan import FileKind, Plan
from modpack.core.rules import Action
from modpack.core.selftest import OutputTensor, RecordedOutput, RunConditions, SelfTestRecord
from modpack.core.text import counted
from modpack.diagnostics import Diagnostic
from modpack.discovery.import_scanner import scan_source
from modpack.errors import ArchiveError, ModpackError, listed
from modpack.pickling.pickle_machine import MalformedError
from modpack.security.pickled_hooks import read_hooks
from modpack.trust.code_listing import CodeListing
from modpack.trust.pickle_names import PickledStorage, read_pickle

_SUFFIX: Final = ".dist-info"
_SHOWN: Final = 4
_ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Untyped", "Byte", "Char", "Bool", "QUInt8", "QInt8"), 1),
    **dict.fromkeys(("QUInt4x2", "QUInt2x4"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "Float", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Element sizes in bytes, by the name of torch's storage class without ``Storage``."""
_T = TypeVar("_T")
_MOCK_RUNTIME: Final = module_record(layout.RUNTIME_MODULE, False)
"""The record of the mock runtime, which no decision mentions."""
_COMPILED: Final = re.compile(r"\.(so|pyd|dylib|dll)(\.[\d.]+)?$")


@dataclass
class PackageMetadata:
    """The decoded metadata of a package. Records that cannot be decoded are None.

    Attributes:
        count: The number of decoded records.
        plan: The decisions and the import graph.
        objects: The saved objects.
        saved: The records of the saved objects.
        self_test: The self-test. None also if the package has none.
        loader: The modpack version of the loader. None also if the package has none.
        specs: The hook specs by saved object.
        outputs: The tensors in recorded outputs, by record.
        findings: The findings about records that cannot be decoded.
    """

    count: int = 0
    plan: Plan | None = None
    objects: Objects | None = None
    saved: tuple[str, ...] = ()
    self_test: SelfTestRecord | None = None
    loader: str | None = None
    specs: dict[str, tuple[HookSpec, ...]] = field(default_factory=dict)
    outputs: dict[str, list[OutputTensor]] = field(default_factory=dict)
    findings: list[Diagnostic] = field(default_factory=list)


def _inconsistent(record: str, message: str) -> Diagnostic:
    return Diagnostic.from_code("records-inconsistent", record, message)


def read_own_records(
    archive: Archive, manifest: Manifest, damaged: frozenset[str]
) -> PackageMetadata:
    """Decode every metadata record.

    Args:
        archive: The package.
        manifest: The manifest.
        damaged: Records that are already reported, and are not read again.
    """
    own = PackageMetadata()

    def report(record: str, reason: str) -> None:
        own.findings.append(Diagnostic.from_code("record-invalid", record, reason))

    def read(record: str, decode: Callable[[], _T]) -> _T | None:
        """Return a decoded record, or report a finding and return None."""
        if not archive.has(record) or record in damaged:
            return None
        own.count += 1
        try:
            return decode()
        except ArchiveError as failure:
            report(record, failure.reason)
        except ModpackError as failure:
            report(record, str(failure))
        return None

    def read_needed(record: str, decode: Callable[[], _T]) -> _T | None:
        """Return a decoded record, and report a finding if it is missing."""
        if not archive.has(record) and record not in damaged:
            report(record, "the record is missing, but every package has one")
        return read(record, decode)

    def decode_as(kind: type[_T], record: str) -> _T:
        with decoding(archive, record):
            return from_json(kind, read_document(archive, record, manifest), "the record")

    def decode_objects() -> Objects:
        objects = read_objects(archive, manifest)
        own.saved = object_records(archive, objects)
        if objects.main is not None and objects.main not in objects.pickles:
            report(layout.ENTRY, f"the main object {'/'.join(objects.main)!r:.80} was not saved")
        return objects

    own.plan = read_needed(layout.GRAPH, partial(read_plan, archive, manifest))
    read_needed(layout.ENVIRONMENT, partial(read_environment, archive, manifest))
    own.objects = read_needed(layout.ENTRY, decode_objects)
    own.self_test = read(layout.SELF_TEST, partial(read_self_test, archive, manifest))
    read(layout.WAITING, partial(read_waiting, archive, manifest))
    own.loader = read(layout.LOADER, partial(read_loader_version, archive, manifest))
    read(layout.CALL_SIGNATURE, partial(read_call_signatures, archive, manifest))
    read(layout.TENSORS, partial(read_tensors, archive, manifest))
    if archive.has(layout.BYTEORDER) and layout.BYTEORDER not in damaged:
        order = archive.read(layout.BYTEORDER).strip()
        if order not in (b"little", b"big"):
            report(layout.BYTEORDER, f"byte order {order!r:.40} is neither 'little' nor 'big'")
    for record in own.saved:
        specs = read(hook_records(record)[0], partial(read_specs, archive, record))
        if specs is not None:
            own.specs[record] = specs
    for case in _examples(own.self_test):
        read(case.conditions, partial(decode_as, RunConditions, case.conditions))
        output = read(case.output, partial(decode_as, RecordedOutput, case.output))
        leaves = output.leaves if output is not None else ()
        own.outputs[case.output] = [leaf.tensor for leaf in leaves if leaf.tensor is not None]
    return own


def _examples(self_test: SelfTestRecord | None) -> list[ExampleRecords]:
    cases = () if self_test is None else self_test.cases
    return [ExampleRecords(case.number) for case in cases]


def check_consistency(
    archive: Archive, own: PackageMetadata, damaged: frozenset[str]
) -> Iterator[Diagnostic]:
    """Compare the metadata records of a package with each other and with the other records.

    Records that cannot be decoded are skipped.

    Args:
        archive: The package.
        own: The decoded records.
        damaged: The damaged records.
    """
    for record, about, needed in _references(own):
        if not any(archive.has(name) or name in damaged for name in needed):
            yield _inconsistent(record, f"{about}, but record {needed[0]!r} is missing")
    if own.plan is not None:
        yield from _check_externs(archive, own.plan, damaged)
    for record in own.saved:
        if archive.has(record) and not damaged & {record, *hook_records(record)}:
            specs, pickle = hook_records(record)
            if any(s.kind != PARAMETRIZATION for s in own.specs.get(record, ())):
                if not archive.has(pickle):
                    yield _inconsistent(specs, f"the pickle {pickle!r} of these hooks is missing")
                    continue
            for text in _compare_hooks(archive, record, own.specs.get(record, ())):
                yield _inconsistent(specs if archive.has(specs) else pickle, text)
    yield from _check_unexplained(archive, own)


def _references(own: PackageMetadata) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each record that refers to another, the reason, and possible names of the other."""
    if own.plan is not None:
        compiled = {file.owner for file in own.plan.files if file.kind is FileKind.NATIVE}
        for module, decision in own.plan.decisions.items():
            about = f"{module} is {decision.action.past}"
            both = module_record(module, True), module_record(module, False)
            location = decision.location
            if decision.action is Action.MOCK:
                yield layout.GRAPH, about, both
            elif decision.action is Action.INTERN and location is not None:
                # Folders have no record, and native extensions are listed as files.
                if location.kind is CodeKind.SOURCE and module not in compiled:
                    yield layout.GRAPH, about, both[:1] if location.is_package else both[1:]
        for file in own.plan.files:
            yield layout.GRAPH, f"{file.owner} comes with a file", (file.record,)
    for record in own.saved:
        yield layout.ENTRY, "an object is saved", (record,)
    for each in _examples(own.self_test):
        for name in (each.inputs, each.conditions, each.output):
            yield layout.SELF_TEST, "the self-test has an example", (name,)


def _check_externs(archive: Archive, plan: Plan, damaged: frozenset[str]) -> Iterator[Diagnostic]:
    """Check that the extern modules, which policies restrict, are those of the decisions."""
    record = layout.EXTERN_MODULES
    if record in damaged or _MOCK_RUNTIME in damaged:
        return
    try:
        # Policies restrict this record, and loads follow the graph. If both differ, one misleads.
        named, decided = set(read_externs(archive)), set(plan.modules(Action.EXTERN))
    except ArchiveError as failure:
        yield _inconsistent(record, failure.reason)
        return
    for module in sorted(decided - named):
        yield _inconsistent(record, f"extern {module} is not listed")
    if archive.has(_MOCK_RUNTIME):  # no plan lists the imports of the mock runtime
        scan = scan_source(archive.read(_MOCK_RUNTIME), layout.RUNTIME_MODULE, False)
        decided.update(statement.module for statement in scan.imports)
    for module in sorted(named - decided):
        yield _inconsistent(record, f"{module} is listed, but not extern")


def _compare_hooks(archive: Archive, record: str, specs: Sequence[HookSpec]) -> Iterator[str]:
    """Yield how the names and kinds of specs differ from those of the pickled hooks."""
    kinds = {spec.name: spec.kind for spec in specs if spec.kind != PARAMETRIZATION}
    try:
        pickled = read_hooks(archive, record)
    except MalformedError as failure:
        yield f"the pickled hooks of {record!r} cannot be read ({failure})"
        return
    for name in kinds.keys() - {hook.name for hook in pickled}:
        yield f"hook {name!r:.80}: the pickle does not contain this hook"
    for name, pickled_kind, _ in pickled:
        kind = kinds.get(name)
        if kind is None:
            yield f"hook {name!r:.80}: the hook has no spec"
        elif not (kind == pickled_kind if pickled_kind else kind.startswith("graph.")):
            text = f"its spec has the kind {kind!r}, the pickle {pickled_kind or 'graph'!r:.80}"
            yield f"hook {name!r:.80}: {text}"


def _check_unexplained(archive: Archive, own: PackageMetadata) -> Iterator[Diagnostic]:
    """Yield the hooks of no object, and the records that Python could import without a reason."""
    plan, code, metadata = own.plan, {_MOCK_RUNTIME}, set[str]()
    if plan is not None:
        for module in (*plan.modules(Action.INTERN), *plan.modules(Action.MOCK)):
            code.update((module_record(module, True), module_record(module, False)))
        code.update(file.record for file in plan.files)
        metadata.update(each.folder for each in plan.distributions)
    hooks = {name for record in own.saved for name in hook_records(record)}
    for name in archive.names():
        folder = name.partition("/")[0]
        is_code = name.endswith(".py") or _COMPILED.search(name) is not None
        if name.startswith(layout.HOOKS):
            if own.objects is not None and name not in hooks:
                yield _inconsistent(name, "these hooks belong to no saved object")
        elif name.startswith(layout.LOADER_FILES) and archive.has(layout.LOADER):
            continue  # its files are compared as a whole
        elif plan is not None and is_code and name not in code:
            text = "the package records no decision for this code"
            yield Diagnostic.from_code("undeclared-code", name, text)
        elif plan is not None and folder.endswith(_SUFFIX) and folder not in metadata:
            metadata.add(folder)  # once is enough
            text = (
                "packaged code sees this folder as an installed distribution, but no decision "
                "covers it"
            )
            yield Diagnostic.from_code("undeclared-code", folder, text)


def check_manifest_form(archive: Archive, manifest: Manifest) -> Iterator[Diagnostic]:
    """Check that the manifest is in canonical form, so that a package has a single digest."""
    content = archive.read(layout.MANIFEST)
    is_canonical = content == manifest.encoded()
    if not is_canonical:  # a newer manifest may have additional keys
        with suppress(ValueError):  # infinities, lone surrogates, or far too much
            is_canonical = canonical_json(read_json(archive, layout.MANIFEST)) == content
    if not is_canonical:
        text = "the JSON is not canonical: its keys are not sorted, or it contains blanks"
        yield Diagnostic.from_code("manifest-invalid", layout.MANIFEST, text)


def check_storages(
    archive: Archive, own: PackageMetadata, listing: CodeListing | None
) -> Iterator[Diagnostic]:
    """Check that referenced storages are complete, and that all storages are referenced.

    Args:
        archive: The package.
        own: The decoded records.
        listing: The pickles. None if they cannot be read.
    """
    # Outputs are compared byte by byte, so their storages have exactly the recorded size.
    for output, tensors in own.outputs.items():
        for tensor in tensors:
            reason = _problem(archive, tensor.record, tensor.size_bytes, exactly=True)
            if reason is not None:
                yield Diagnostic.from_code("storage-missing", output, reason)
    if listing is None:
        return
    # TorchScript archives of torch.package contain pickles that no listing of objects names.
    pickled = {record: each.storages for record, each in listing.pickles.items()}
    for name in archive.names():
        if name.startswith(layout.TORCH_PACKAGE_SCRIPTS) and name.endswith(".pkl"):
            pickled[name] = read_pickle(archive.read(name)).storages
    used = {tensor.record for tensors in own.outputs.values() for tensor in tensors}
    for pickle, storages in pickled.items():
        for each in storages:
            storage = _record(pickle, each)
            used.add(storage)
            reason = _problem(archive, storage, _size_of(each))
            if reason is not None:
                location = f"{pickle}, byte {each.position}"
                yield Diagnostic.from_code("storage-missing", pickle, reason, location)
    # One finding for all of them: a removed object leaves many.
    unused = [name for name in archive.names() if layout.is_storage(name) and name not in used]
    if unused:
        size = counted(sum(map(archive.size, unused)), "byte")
        text = f"no saved object refers to {listed(unused, _SHOWN)} ({size})"
        yield Diagnostic.from_code("storage-unused", unused[0], text)


def _record(pickle: str, storage: PickledStorage) -> str:
    """Return the record of a storage in a pickle."""
    is_script = pickle.startswith(layout.TORCH_PACKAGE_SCRIPTS)
    return layout.storage_name(storage.key.removesuffix(".storage") if is_script else storage.key)


def _size_of(storage: PickledStorage) -> int | None:
    item = _ITEM_BYTES.get(storage.kind.rpartition(".")[2].removesuffix("Storage"))
    return None if item is None or storage.size is None else storage.size * item


def _problem(archive: Archive, record: str, size: int | None, exactly: bool = False) -> str | None:
    """Return why a storage is not usable with a size in bytes, or None."""
    if not layout.is_storage(record) or not archive.has(record):
        return f"storage {record!r:.120} is missing"
    found = archive.size(record)
    if size is None or size == found or (0 <= size < found and not exactly):
        return None
    return f"storage {record!r} must have {size} bytes, but has {found}"
