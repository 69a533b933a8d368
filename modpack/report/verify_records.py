"""Checks of a package's metadata records: their content, and their consistency.

The readers of the records decode them without torch. Then they are compared with each other, with
the manifest, and with the storages.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    read_objects,
    read_plan,
    read_self_test,
    read_specs,
    read_tensors,
    read_waiting,
)
from modpack.core.call_signature import CallSignature
from modpack.core.core_metadata import parse_headers
from modpack.core.environment import RecordedEnvironment
from modpack.core.graph import CodeKind
from modpack.core.hookspec import PARAMETRIZATION, HookSpec
from modpack.core.json_values import (
    Json,
    as_list,
    as_mapping,
    as_number,
    as_optional_text,
    as_text,
    as_truth,
)
from modpack.core.names import module_record, normalized_distribution
from modpack.core.observations import NO_OBSERVATIONS
from modpack.core.plan import Decision, FileKind, Plan, PlannedDistribution
from modpack.core.rules import Action
from modpack.core.selftest import SelfTestRecord
from modpack.core.tensors import ITEM_BYTES, TensorFacts
from modpack.core.text import counted
from modpack.diagnostics import Diagnostic
from modpack.discovery.import_scanner import scan_source
from modpack.errors import ArchiveError, ModpackError, listed
from modpack.pickling.pickle_machine import MalformedError
from modpack.security.code_listing import CodeListing
from modpack.security.pickle_names import PickledStorage, read_pickle
from modpack.security.pickled_hooks import read_hooks

_TRUTHS: Final = ("grad", "inference", "deterministic", "deterministic_warn_only", "mkldnn")
_TEXTS: Final = ("default_dtype", "default_device", "matmul_precision")
_MAX_ELEMENTS: Final = 2**63
_SUFFIX: Final = ".dist-info"
_MAX_BYTES: Final = 16 << 20
_SHOWN: Final = 4
_TORCH_PACKAGE_SCRIPTS: Final = ".data/ts_code/"
"""ScriptModules in torch.package archives. Their storage keys are record names."""
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
_NAMESPACES: Final = ("private", "process")
_TEXT_FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    layout.BYTEORDER: (
        re.compile(r"\s*(little|big)\s*"),
        "byte order ('little' or 'big')",
    ),
    layout.PYTHON_VERSION: (re.compile(r"\d+\.\d+[\w.+]*\n?"), "Python version"),
    **dict.fromkeys(layout.VERSIONS, (re.compile(r"\d{1,9}\n?"), "version")),
}
"""Patterns of the text records, and names of their values."""
_MOCK_RUNTIME: Final = module_record(layout.RUNTIME_MODULE, False)
"""The record of the mock runtime, which no decision mentions."""
_SCRIPTS: Final = re.compile(re.escape(layout.MODPACK_PREFIX) + r"torchscript/\d+\.pt")
_OF_THE_FORMAT: Final = frozenset(
    {
        *(layout.MANIFEST, layout.MANIFEST_DIGEST, layout.GRAPH, layout.ENVIRONMENT),
        *(layout.ENTRY, layout.SELF_TEST, layout.TENSORS, layout.VERSION, layout.EXTERN_MODULES),
        *(layout.PYTHON_VERSION, layout.SERIALIZATION_ID, layout.CALL_SIGNATURE),
        layout.WAITING,
    }
)
_COMPILED: Final = re.compile(r"\.(so|pyd|dylib|dll)(\.[\d.]+)?$")


@dataclass(frozen=True)
class SelfTestTensor:
    """A tensor of a recorded output.

    Attributes:
        record: The record of its elements.
        size_bytes: The size of its elements. None for unknown dtypes.
    """

    record: str
    size_bytes: int | None


def _read_output(
    archive: Archive, verify: Manifest, case: ExampleRecords
) -> tuple[SelfTestTensor, ...]:
    """Return the tensors in the recorded output of an example, in order.

    Raises:
        ArchiveError: If the record is missing or damaged.
    """
    with decoding(archive, case.output):
        document = read_document(archive, case.output, verify)
        leaves = [as_mapping(each, "a leaf") for each in as_list(document["leaves"], "leaves")]
        for leaf in leaves:
            as_text(leaf["path"], "a path")
            as_text(leaf["structure"], "a structure")
            as_optional_text(leaf["value"], "a value")
        return tuple(_tensor(leaf["tensor"]) for leaf in leaves if "tensor" in leaf)


def _read_conditions(archive: Archive, verify: Manifest, case: ExampleRecords) -> None:
    """Check the recorded conditions of an example's run.

    Raises:
        ArchiveError: If the record is missing or damaged.
    """
    with decoding(archive, case.conditions):
        document = read_document(archive, case.conditions, verify)
        for key in _TRUTHS:
            as_truth(document[key], key)
        for key in _TEXTS:
            as_text(document[key], key)
        as_number(document["threads"], "threads")
        for dtype in as_mapping(document["autocast"], "autocast").values():
            as_text(dtype, "a dtype")
        states = as_mapping(document["random"], "random")
        as_text(states.get("torch", ""), "the state of torch's generator")
        for name in ("python", "numpy"):
            as_list(states.get(name, []), "the state of another generator")
        for state in as_list(states.get("cuda", []), "states of generators"):
            as_text(state, "the state of a generator")


def _tensor(value: Json) -> SelfTestTensor:
    entry = as_mapping(value, "a tensor")
    count = 1
    for size in as_list(entry["shape"], "a shape"):
        count *= as_number(size, "a size")
        if not 0 <= count < _MAX_ELEMENTS:
            raise ValueError("a shape is too large or negative")
    item = ITEM_BYTES.get(as_text(entry["dtype"], "a dtype"))
    record = as_text(entry["record"], "a record")
    return SelfTestTensor(record, None if item is None else item * count)


@dataclass
class PackageMetadata:
    """The decoded metadata of a package. Records that cannot be decoded are None.

    Attributes:
        count: The number of decoded records.
        plan: The decisions and the import graph.
        environment: The export environment.
        objects: The saved objects.
        saved: The records of the saved objects.
        self_test: The self-test. None also if the package has none.
        call_signatures: The call signatures of saved objects.
        tensors: The named tensors by object. None also if the package does not record them.
        specs: The hook specs by saved object.
        outputs: The tensors in recorded outputs, by record.
        findings: The findings about records that cannot be decoded.
    """

    count: int = 0
    plan: Plan | None = None
    environment: RecordedEnvironment | None = None
    objects: Objects | None = None
    saved: tuple[str, ...] = ()
    self_test: SelfTestRecord | None = None
    call_signatures: tuple[CallSignature, ...] | None = ()
    tensors: Mapping[str, tuple[TensorFacts, ...]] | None = None
    specs: dict[str, tuple[HookSpec, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[SelfTestTensor, ...]] = field(default_factory=dict)
    findings: list[Diagnostic] = field(default_factory=list)


def _invalid(record: str, message: str) -> Diagnostic:
    return Diagnostic.from_code("record-invalid", record, message)


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
        own.findings.append(_invalid(record, reason))

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

    def decode_objects() -> Objects:
        objects = read_objects(archive, manifest)
        own.saved = object_records(archive, objects)
        if objects.namespace not in _NAMESPACES:
            report(layout.ENTRY, f"{objects.namespace!r} is not a namespace")
        return objects

    own.plan = read_needed(layout.GRAPH, partial(read_plan, archive, manifest))
    own.environment = read_needed(layout.ENVIRONMENT, partial(read_environment, archive, manifest))
    own.objects = read_needed(layout.ENTRY, decode_objects)
    own.self_test = read(layout.SELF_TEST, partial(read_self_test, archive, manifest))
    read(layout.WAITING, partial(read_waiting, archive, manifest))
    own.call_signatures = read(
        layout.CALL_SIGNATURE, partial(read_call_signatures, archive, manifest)
    )
    own.tensors = read(layout.TENSORS, partial(read_tensors, archive, manifest))
    for record in own.saved:
        specs = read(hook_records(record)[0], partial(read_specs, archive, record))
        if specs is not None:
            own.specs[record] = specs
    for case in _examples(own.self_test):
        read(case.conditions, partial(_read_conditions, archive, manifest, case))
        output = read(case.output, partial(_read_output, archive, manifest, case))
        if output is not None:
            own.outputs[case.output] = output
    return own


def _examples(self_test: SelfTestRecord | None) -> list[ExampleRecords]:
    cases = () if self_test is None else self_test.cases
    return [ExampleRecords(case.number) for case in cases]


def check_texts(archive: Archive, damaged: frozenset[str]) -> Iterator[Diagnostic]:
    """Yield findings about the text records, which torch.package archives have as well."""
    for record, (form, what) in _TEXT_FORMS.items():
        if archive.has(record) and record not in damaged:
            text = _text(archive, record)
            if not form.fullmatch(text):
                yield _invalid(record, f"{text!r:.60} is not a {what}")
    record = layout.EXTERN_MODULES
    if archive.has(record) and record not in damaged:
        names = [line for line in _text(archive, record).split("\n") if line]
        wrong = [name for name in names if not _is_module_path(name)]
        if wrong:
            yield _invalid(record, f"{wrong[0]!r:.60} is not a module path")
        elif len(set(names)) != len(names):
            yield _invalid(record, "a module is listed twice")


def _is_module_path(name: str) -> bool:
    return name.isprintable() and not set(name) & set(" /\\") and all(name.split("."))


def _text(archive: Archive, record: str) -> str:
    return archive.read(record).decode("utf-8", "replace")


def check_consistency(
    archive: Archive, own: PackageMetadata, damaged: frozenset[str]
) -> Iterator[Diagnostic]:
    """Compare the metadata records of a package with each other.

    Records that cannot be decoded are skipped.

    Args:
        archive: The package.
        own: The decoded records.
        damaged: The damaged records.
    """
    if own.plan is not None:
        yield from _check_decisions(archive, own.plan, damaged)
        yield from _check_code(archive, own.plan)
        yield from _check_externs(archive, own.plan, damaged)
        yield from _check_observations(archive, own, own.plan, damaged)
    if own.objects is not None:
        yield from _check_objects(archive, own, damaged)
        yield from _check_hooks(archive, own, damaged)
        yield from _check_self_tests(archive, own, damaged)
    if own.plan is not None and own.environment is not None:
        compiled = [file.record for file in own.plan.files if file.kind is FileKind.NATIVE]
        if compiled and own.environment.native is None:
            text = f"no platform is recorded for the native extension {compiled[0]!r}"
            yield _inconsistent(layout.ENVIRONMENT, text)
    yield from _check_names(archive)


def _check_decisions(archive: Archive, plan: Plan, damaged: frozenset[str]) -> Iterator[Diagnostic]:
    """Check that each decision about code has its record."""
    compiled = {file.owner for file in plan.files if file.kind is FileKind.NATIVE}
    for module, decision in plan.decisions.items():
        wanted = _record_wanted(decision, module in compiled)
        if wanted and not any(archive.has(name) or name in damaged for name in wanted):
            text = f"{module} is {decision.action.past}, but record {wanted[0]!r} is missing"
            yield _inconsistent(layout.GRAPH, text)
        if decision.action is Action.DENY:
            yield _inconsistent(layout.GRAPH, f"{module} is denied, which no package can contain")
    for file in plan.files:
        if not archive.has(file.record) and file.record not in damaged:
            text = f"record {file.record!r} of {file.owner} is missing"
            yield _inconsistent(layout.GRAPH, text)


def _record_wanted(decision: Decision, is_compiled: bool) -> tuple[str, ...]:
    """Return the possible records for a decision. Folders have none."""
    both = module_record(decision.module, True), module_record(decision.module, False)
    if decision.action is Action.MOCK:
        return both
    location = decision.location
    if decision.action is not Action.INTERN or location is None or is_compiled:
        return ()
    if location.kind is not CodeKind.SOURCE:
        return ()
    return both[:1] if location.is_package else both[1:]


def _check_code(archive: Archive, plan: Plan) -> Iterator[Diagnostic]:
    """Check that each record that can be imported has its decision."""
    planned = {file.record for file in plan.files} | {_MOCK_RUNTIME}
    for decision in plan.decisions.values():
        if decision.action in (Action.INTERN, Action.MOCK):
            planned.add(module_record(decision.module, True))
            planned.add(module_record(decision.module, False))
    for name in archive.names():
        is_code = name.endswith(".py") or _COMPILED.search(name) is not None
        if is_code and not layout.is_internal(name) and name not in planned:
            yield Diagnostic.from_code(
                "undeclared-code", name, "the package records no decision for this code"
            )


def _check_externs(archive: Archive, plan: Plan, damaged: frozenset[str]) -> Iterator[Diagnostic]:
    """Check that the extern modules are those of the decisions."""
    record = layout.EXTERN_MODULES
    if record in damaged or _MOCK_RUNTIME in damaged:
        return
    try:
        listed, decided = set(read_externs(archive)), set(plan.modules(Action.EXTERN))
    except ArchiveError as failure:
        yield _inconsistent(record, failure.reason)
        return
    for module in sorted(decided - listed):
        reason = f"extern {module} is not listed"
        yield _inconsistent(record, reason)
    if archive.has(_MOCK_RUNTIME):  # no plan lists the imports of the mock runtime
        scan = scan_source(archive.read(_MOCK_RUNTIME), layout.RUNTIME_MODULE, False)
        decided.update(statement.module for statement in scan.imports)
    for module in sorted(listed - decided):
        reason = f"{module} is listed, but not extern"
        yield _inconsistent(record, reason)


def _check_objects(
    archive: Archive, own: PackageMetadata, damaged: frozenset[str]
) -> Iterator[Diagnostic]:
    """Check that the saved objects exist, and that other records describe only those."""
    objects = own.objects
    for record in own.saved:
        if not archive.has(record) and record not in damaged:
            yield _inconsistent(layout.ENTRY, f"the saved object {record!r} is missing")
    for record in _repeated(own.saved):
        yield _inconsistent(layout.ENTRY, f"the saved object {record!r} is listed twice")
    if objects is not None and objects.entry is not None and objects.entry not in objects.pickles:
        text = f"the main resource {'/'.join(objects.entry)!r} is not a saved object"
        yield _inconsistent(layout.ENTRY, text)
    for record in sorted(set(own.tensors or ()) - set(own.saved)):
        text = f"{record!r}, whose tensors are listed, is not a saved object"
        yield _inconsistent(layout.TENSORS, text)


def _check_hooks(
    archive: Archive, own: PackageMetadata, damaged: frozenset[str]
) -> Iterator[Diagnostic]:
    """Check that hooks have specs and a pickle, and belong to a saved object."""
    for record in own.saved:
        specs, pickle = hook_records(record)
        if damaged & {specs, pickle}:
            continue
        has_hooks = any(s.kind != PARAMETRIZATION for s in own.specs.get(record, ()))
        if has_hooks and not archive.has(pickle):
            yield _inconsistent(specs, f"the pickle {pickle!r} of these hooks is missing")
        names = [spec.name for spec in own.specs.get(record, ())]
        for name in _repeated(names):
            yield _inconsistent(specs, f"two hooks have the name {name!r:.80}")
        if archive.has(pickle) and not archive.has(specs):
            yield _inconsistent(pickle, f"the specs {specs!r} of these hooks are missing")
        elif record not in damaged:
            for text in _compare_hooks(archive, record, own.specs.get(record, ())):
                yield _inconsistent(specs, text)
    known = {name for record in own.saved for name in hook_records(record)}
    for name in archive.names():
        if name.startswith(layout.HOOKS) and name not in known:
            yield _inconsistent(name, "these hooks belong to no saved object")


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


def _check_self_tests(
    archive: Archive, own: PackageMetadata, damaged: frozenset[str]
) -> Iterator[Diagnostic]:
    """Check that self-tests and calls belong to saved objects, and have inputs and outputs."""
    self_test = own.self_test
    known: set[str] = set()
    saved = frozenset(own.objects.pickles) if own.objects is not None else frozenset()
    for case in self_test.cases if self_test is not None else ():
        if case.resource not in saved:
            text = f"{'/'.join(case.resource)!r} has a self-test, but is not a saved object"
            yield _inconsistent(layout.SELF_TEST, text)
    for call in own.call_signatures or ():
        if call.resource not in saved:
            text = (
                f"{'/'.join(call.resource)!r:.80} has a call signature, but is not a saved object"
            )
            yield _inconsistent(layout.CALL_SIGNATURE, text)
    for records in _examples(self_test):
        names = (records.inputs, records.conditions, records.output)
        known.update(names)
        for name in names:
            if not archive.has(name) and name not in damaged:
                yield _inconsistent(layout.SELF_TEST, f"record {name!r} is missing")
    if layout.SELF_TEST in damaged or (self_test is None and archive.has(layout.SELF_TEST)):
        return  # its records are unknown
    for name in archive.names():
        if name.startswith(layout.SELF_TESTS) and name not in known:
            yield _inconsistent(name, "this example belongs to no self-test")


def _check_observations(
    archive: Archive, own: PackageMetadata, plan: Plan, damaged: frozenset[str]
) -> Iterator[Diagnostic]:
    """Check that the self-test observed mocks and files of this package."""
    observed = own.self_test.observations if own.self_test is not None else NO_OBSERVATIONS
    mocked = frozenset(plan.modules(Action.MOCK))
    for module in dict.fromkeys(each.module for each in observed.mock_events):
        if module not in mocked:
            text = f"the self-test observed a mock of {module!r:.80}, which is not mocked"
            yield _inconsistent(layout.SELF_TEST, text)
    for record in observed.files:
        if not archive.has(record) and record not in damaged:
            text = f"the self-test opened {record!r:.80}, which is missing"
            yield _inconsistent(layout.SELF_TEST, text)


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _check_names(archive: Archive) -> Iterator[Diagnostic]:
    """Check that reserved names belong to known records."""
    for name in archive.names():
        if not name.startswith(".data/") or name in _OF_THE_FORMAT or layout.is_storage(name):
            continue
        if name.startswith((layout.HOOKS, layout.SELF_TESTS)) or _SCRIPTS.fullmatch(name):
            continue
        if not name.startswith(layout.MODPACK_PREFIX + "signature"):
            yield Diagnostic.from_code(
                "unknown-record", name, "this modpack version does not know the record"
            )


def check_manifest_form(archive: Archive, manifest: Manifest) -> Iterator[Diagnostic]:
    """Check that the manifest is in canonical form, so that a package has a single digest."""
    if not _is_canonical(archive, manifest):
        text = "the JSON is not canonical: its keys are not sorted, or it contains blanks"
        yield Diagnostic.from_code("manifest-invalid", layout.MANIFEST, text)


def _is_canonical(archive: Archive, manifest: Manifest) -> bool:
    content = archive.read(layout.MANIFEST)
    if content == manifest.encoded():
        return True
    try:  # a newer manifest may have additional keys
        return canonical_json(read_json(archive, layout.MANIFEST)) == content
    except ValueError:  # infinities, lone surrogates, or far too much
        return False


def check_metadata(
    archive: Archive, manifest: Manifest, plan: Plan, damaged: frozenset[str]
) -> Iterator[Diagnostic]:
    """Compare the metadata of distributions with the plan, and with the records that it lists.

    Args:
        archive: The package.
        manifest: The manifest.
        plan: The recorded plan.
        damaged: The damaged records.
    """
    for each in plan.distributions:
        if f"{each.folder}/METADATA" not in damaged:
            yield from _check_headers(archive, each)
        if f"{each.folder}/RECORD" not in damaged:
            yield from _check_listing(archive, manifest, f"{each.folder}/RECORD")
    known = {each.folder for each in plan.distributions}
    for folder in dict.fromkeys(name.partition("/")[0] for name in archive.names()):
        if folder.endswith(_SUFFIX) and folder not in known:
            text = (
                "packaged code sees this folder as an installed distribution, but no decision "
                "covers it"
            )
            yield Diagnostic.from_code("undeclared-code", folder, text)


def _check_headers(archive: Archive, distribution: PlannedDistribution) -> Iterator[Diagnostic]:
    """Check name and version in the metadata of a distribution."""
    record = f"{distribution.folder}/METADATA"
    if not archive.has(record) or archive.size(record) > _MAX_BYTES:
        return
    fields = parse_headers(_text(archive, record))
    name, version = (fields.get(each, [""])[0].strip() for each in ("name", "version"))
    is_same = normalized_distribution(name) == normalized_distribution(distribution.name)
    if not is_same or version != distribution.version:
        text = (
            f"expected the metadata of {distribution.name!r:.80} {distribution.version!r:.40}, got "
            f"{name!r:.80} {version!r:.40}"
        )
        yield _inconsistent(record, text)


def _check_listing(archive: Archive, manifest: Manifest, record: str) -> Iterator[Diagnostic]:
    """Check the files and digests that a RECORD lists (PEP 376)."""
    if not archive.has(record):
        return
    if archive.size(record) > _MAX_BYTES:
        yield _invalid(record, "the list of files is too large")
        return
    try:
        for row in csv.reader(io.StringIO(_text(archive, record))):
            reason = _row_problem(manifest, record, row)
            if reason is not None:
                yield _inconsistent(record, reason)
    except csv.Error as failure:
        yield _invalid(record, f"the list of files is invalid: {failure}")


def _row_problem(manifest: Manifest, record: str, row: list[str]) -> str | None:
    if not row or row[0] == record:
        return None
    listed = manifest.records.get(row[0])
    if listed is None:
        return f"record {row[0]!r:.120} is listed, but missing"
    algorithm, _, value = row[1].partition("=") if len(row) > 1 else ("", "", "")
    if algorithm == "sha256" and _hex(value) != listed.sha256:
        return f"the SHA-256 of {row[0]!r:.120} differs from the manifest"
    return None


def _hex(digest: str) -> str:
    try:
        return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    except (ValueError, binascii.Error):
        return ""


def check_storages(
    archive: Archive, own: PackageMetadata, listing: CodeListing | None
) -> Iterator[Diagnostic]:
    """Check that referenced storages are complete, and that all storages are referenced.

    Args:
        archive: The package.
        own: The decoded records.
        listing: The pickles. None if they cannot be read.
    """
    for record, tensors in own.outputs.items():
        for tensor in tensors:
            if not layout.is_storage(tensor.record) or not archive.has(tensor.record):
                yield Diagnostic.from_code(
                    "storage-missing", record, f"storage {tensor.record!r:.120} is missing"
                )
            elif tensor.size_bytes not in (None, archive.size(tensor.record)):
                text = (
                    f"storage {tensor.record!r} must have {tensor.size_bytes} bytes, but has "
                    f"{archive.size(tensor.record)}"
                )
                yield Diagnostic.from_code("storage-missing", record, text)
    if listing is None:
        return
    pickled = {record: each.storages for record, each in listing.pickles.items()}
    for name in archive.names():
        if name.startswith(_TORCH_PACKAGE_SCRIPTS) and name.endswith(".pkl"):
            pickled[name] = read_pickle(archive.read(name)).storages
    used = {tensor.record for tensors in own.outputs.values() for tensor in tensors}
    for pickle, storages in pickled.items():
        for each in storages:
            storage = _record(pickle, each)
            used.add(storage)
            reason = _problem(archive, each, storage)
            if reason is not None:
                location = f"{pickle}, byte {each.position}"
                yield Diagnostic.from_code("storage-missing", pickle, reason, location)
    unused = [name for name in archive.names() if layout.is_storage(name) and name not in used]
    if unused:
        size = counted(sum(map(archive.size, unused)), "byte")
        text = f"no saved object refers to {listed(unused, _SHOWN)} ({size})"
        yield Diagnostic.from_code("storage-unused", unused[0], text)


def _record(pickle: str, storage: PickledStorage) -> str:
    """Return the record of a storage in a pickle."""
    is_script = pickle.startswith(_TORCH_PACKAGE_SCRIPTS)
    return layout.storage_name(storage.key.removesuffix(".storage") if is_script else storage.key)


def _problem(archive: Archive, storage: PickledStorage, record: str) -> str | None:
    """Return why a storage is unusable, or None."""
    if not layout.is_storage(record) or not archive.has(record):
        return f"storage {record!r:.120} is missing"
    item = _ITEM_BYTES.get(storage.kind.rpartition(".")[2].removesuffix("Storage"))
    if item is None or storage.size is None:
        return None
    if storage.size < 0 or storage.size * item > archive.size(record):
        return (
            f"storage {record!r} must have {storage.size * item} bytes, but has "
            f"{archive.size(record)}"
        )
    return None
