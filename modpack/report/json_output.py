"""JSON documents of the commands.

The annotations of a document describe its keys, and the ``Attributes`` of its docstring explain
them. ``make schemas`` writes the JSON schemas in ``docs/reference/json`` from both. Under one
schema number, keys are only added. A change that could mislead a reader of the present documents
increments :data:`SCHEMA`.

Types of other modules are imported for type checking only, so that printing one document does not
import the modules of all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from modpack.core.codec import Line, record_to_json

if TYPE_CHECKING:
    from modpack.core.environment import EnvironmentRow
    from modpack.core.plan import MockEvent, MockRisk, MockUse, UseKind
    from modpack.core.rules import Action, RuleOrigin
    from modpack.core.selftest import SelfTestRecord, UndeclaredImport
    from modpack.core.tensors import TensorFacts, TensorKind
    from modpack.diagnostics import Diagnostic
    from modpack.report.audit import AuditResult, Gate
    from modpack.report.audit_facts import AuditFacts, DistributionFacts, MockFacts
    from modpack.report.diff_facts import (
        Change,
        DistributionDifference,
        ExampleDifference,
        FieldChange,
        HookDifference,
        ImportDifference,
        ModuleDifference,
        NoteDifference,
        PackageDifferences,
        RecordDifference,
        ResourceDifference,
        SharingDifference,
        StoragesDifference,
        TensorDifference,
        TextDifference,
        UseDifference,
        Values,
    )
    from modpack.report.facts import (
        ImporterFacts,
        ModuleFacts,
        PackageFacts,
        PlanFacts,
        Provider,
        ResourceFacts,
    )
    from modpack.report.requirements import Needed, Requirements
    from modpack.report.suggest import ImportReach, ModuleOrigin, Suggestion
    from modpack.report.verify import CheckFacts, VerifyFacts
    from modpack.report.why import Chain, ImportLink, ModuleStatus, Why
    from modpack.security.code_listing import CodeListing
    from modpack.security.signing_envelope import ValidSignature

SCHEMA: Final = 1

_T = TypeVar("_T")


def dumps(document: object) -> str:
    """Return a document as JSON text, in ASCII and with a newline at the end."""
    return json.dumps({"schema": SCHEMA, **record_to_json(document)}, indent=2) + "\n"


def _pick(kind: type[_T], facts: object, **more: object) -> _T:
    """Return a record with the attributes of other facts that have the names of its fields."""
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind(**{name: more[name] if name in more else getattr(facts, name) for name in fields})


class ErrorFacts(NamedTuple):
    """An error that ended a command.

    Attributes:
        type: Class of the exception.
        message: The problem, its location and its fix, for people.
        hint: How to fix it. Empty if modpack knows no fix.
        traceback: Traceback of the user's own code with ``--debug``, or null.
    """

    type: str
    message: str
    hint: str = ""
    traceback: str | None = None


class ErrorDocument(NamedTuple):
    """The document of a command that could not do its work.

    Attributes:
        error: The error.
    """

    error: ErrorFacts


class PackageDocument(NamedTuple):
    """A package, or a plan of one.

    Attributes:
        package: The package. Null if none was written.
        modules: All modules that the package contains or needs, sorted by path.
        problems: Reasons why the package cannot be written. Empty for a package.
        notes: Hazards and remarks.
        files: Files that were included with the code.
    """

    package: PackageFacts | None
    modules: tuple[ModuleFacts, ...]
    problems: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    files: tuple[ResourceFacts, ...]


def package_document(facts: PackageFacts) -> PackageDocument:
    """Return the document of a package."""
    files = tuple(each for each in facts.resources if each.kind.comes_with_code)
    return PackageDocument(facts, facts.modules, (), facts.notes, files)


def plan_document(facts: PlanFacts) -> PackageDocument:
    """Return the document of a plan."""
    return _pick(PackageDocument, facts, package=None)


class NotesDocument(NamedTuple):
    """The notes of a package.

    Attributes:
        notes: Hazards and remarks.
    """

    notes: tuple[Diagnostic, ...]


class RecordSize(NamedTuple):
    """A record of a package.

    Attributes:
        record: Its name.
        size_bytes: Its size, uncompressed.
    """

    record: str
    size_bytes: int


class TreeDocument(NamedTuple):
    """The records of a package.

    Attributes:
        records: The records, in the order in which they are stored.
    """

    records: tuple[RecordSize, ...]


class SourceDocument(NamedTuple):
    """The source of a packaged module.

    Attributes:
        module: Path of the module.
        record: Record that contains the source.
        source: The source text.
    """

    module: str
    record: str
    source: str


class PickleNameFacts(NamedTuple):
    """A name that a pickle looks up and that is not data.

    Attributes:
        name: The full name.
        dangerous: Whether the name gives access to the interpreter, the system or the network.
    """

    name: str
    dangerous: bool


class PickleFacts(NamedTuple):
    """The code that a pickle refers to.

    Attributes:
        record: Record that contains the pickle.
        names: Names that are not data.
        functions: Names of the functions whose source the pickle contains.
        unreadable: Why the pickle could not be read to its end, or null.
    """

    record: str
    names: tuple[PickleNameFacts, ...]
    functions: tuple[str, ...]
    unreadable: str | None


class CodeFacts(NamedTuple):
    """The code in a package.

    Attributes:
        sources: Records with Python source.
        native: Records with native code.
        programs: Records with programs that torch runs: TorchScript and exported programs.
        pickles: The pickles, including those that contain only data.
    """

    sources: tuple[str, ...]
    native: tuple[str, ...]
    programs: tuple[str, ...]
    pickles: tuple[PickleFacts, ...]


def code_facts(listing: CodeListing) -> CodeFacts:
    """Return the code of a package as documents list it."""
    from modpack.pickling.allowlist import is_dangerous

    pickles = (
        PickleFacts(
            record,
            tuple(
                PickleNameFacts(str(name), is_dangerous(name.module, name.name))
                for name in contents.code_names
            ),
            tuple(source.name for source in contents.sources),
            contents.unreadable,
        )
        for record, contents in listing.pickles.items()
    )
    return _pick(CodeFacts, listing, pickles=tuple(pickles))


class GateResult(NamedTuple):
    """A gate of ``--fail-on``.

    Attributes:
        gate: The gate, as it was given.
        fired: Whether it fired.
        findings: The findings that made it fire.
    """

    gate: str
    fired: bool
    findings: tuple[Diagnostic, ...]


class UseFacts(NamedTuple):
    """A use of a mocked module's name.

    Attributes:
        name: The name, dotted, below the module. Empty for the module itself.
        importer: Module that contains the use, or a saved object.
        path: Record or file of the importer, or null if unknown.
        line: Line of the use.
        location: Path and line.
        kind: How the name is used.
        scope: Qualified name of the surrounding function or class. Empty at module level.
        live: Whether anything in the package can call the surrounding function.
        called_later: Whether an object made with the name can be called after the import.
        via: Interned modules through which the importer gets the name, in order.
    """

    name: str
    importer: str
    path: str | None
    line: Line
    location: str
    kind: UseKind
    scope: str
    live: bool
    called_later: bool
    via: tuple[str, ...]


class MockDetails(NamedTuple):
    """A mocked module.

    Attributes:
        module: Path of the module.
        rule: Rule that mocked it. Null if the package does not record it.
        risk: Effect of the mock on the package.
        importers: Modules and saved objects that import it.
        uses: Uses of its names in packaged code.
        tried: Whether a self-test watched it.
        touches: What the self-test did with it.
    """

    module: str
    rule: str | None
    risk: MockRisk
    importers: tuple[ImporterFacts, ...]
    uses: tuple[UseFacts, ...]
    tried: bool
    touches: tuple[MockEvent, ...]


class EnvironmentFacts(NamedTuple):
    """The export environment.

    Attributes:
        python: Version of Python, or null if not recorded.
        implementation: Implementation of Python, such as ``CPython``, or null.
        platform: Operating system, as ``sys.platform`` names it, or null.
        machine: Architecture of the processor, or null.
        torch: Version of torch, or null.
    """

    python: str | None
    implementation: str | None
    platform: str | None
    machine: str | None
    torch: str | None


class AuditDocument(NamedTuple):
    """An audit of a package or of a target.

    Attributes:
        path: The package. Null for a target.
        target: The target. Null for a package.
        passed: Whether there are no problems, no errors, and no gates that fired.
        gates: The gates of ``--fail-on``.
        findings: Findings, errors first.
        problems: Reasons why a target cannot be exported. Empty for a package.
        mocks: The mocked modules, the worst risk first.
        modules: All modules, sorted by path.
        distributions: Distributions that the modules belong to, by name.
        files: Files that were included with the code.
        notes: Hazards and remarks from the export.
        code: The code in the package. Null for a target.
        environment: The export environment. Null for a target.
        package: The package. Null for a target.
    """

    path: str | None
    target: str | None
    passed: bool
    gates: tuple[GateResult, ...]
    findings: tuple[Diagnostic, ...]
    problems: tuple[Diagnostic, ...]
    mocks: tuple[MockDetails, ...]
    modules: tuple[ModuleFacts, ...]
    distributions: tuple[DistributionFacts, ...]
    files: tuple[ResourceFacts, ...]
    notes: tuple[Diagnostic, ...]
    code: CodeFacts | None
    environment: EnvironmentFacts | None
    package: PackageFacts | None


def audit_document(audit: AuditFacts, gates: Iterable[Gate], result: AuditResult) -> AuditDocument:
    """Return the document of an audit.

    Args:
        audit: The audit.
        gates: All gates that were given.
        result: The outcome of the audit.
    """
    from modpack.report.audit_facts import files_of

    files, fired = files_of(audit), dict(result.fired)
    return _pick(
        AuditDocument,
        audit,
        path=None if audit.package is None else audit.subject,
        target=audit.subject if audit.package is None else None,
        passed=result.passed,
        gates=tuple(GateResult(each.text, each in fired, fired.get(each, ())) for each in gates),
        mocks=tuple(_mock_details(mock, files) for mock in audit.mocks),
        code=None if audit.code is None else code_facts(audit.code),
        environment=audit.environment and _pick(EnvironmentFacts, audit.environment),
    )


def _mock_details(mock: MockFacts, files: Mapping[str, str]) -> MockDetails:
    uses = tuple(_use_facts(use, files) for use in mock.uses)
    return _pick(MockDetails, mock, uses=uses, tried=mock.is_tried)


def _use_facts(use: MockUse, files: Mapping[str, str]) -> UseFacts:
    from modpack.report.audit_facts import location_in

    return _pick(
        UseFacts,
        use,
        path=files.get(use.importer),
        location=location_in(files, use.importer, use.line),
        live=use.is_live,
        called_later=use.is_called_later,
    )


class PackageIdentity(NamedTuple):
    """A package that was compared.

    Attributes:
        path: The package, as the user named it.
        size_bytes: Size of the file. For an unzipped package, of all its records.
        format: Its format: ``modpack 2``, ``modpack 1`` or ``torch.package``.
        digest: SHA-256 that names its content, in hex.
    """

    path: str
    size_bytes: int
    format: str
    digest: str


class ModuleState(NamedTuple):
    """A module in one of two packages.

    Attributes:
        action: The decision.
        rule: Rule that matched, or null if not recorded.
        overridden_by: Hook that changed the action of the rule, or null.
        distribution: Distribution that the module belonged to at export, or null.
        version: Version of the distribution, or null.
        license: License of the distribution, or null.
        record: Record of its source or of its mock, or null.
        size_bytes: Size of the record, or null.
    """

    action: Action
    rule: str | None
    overridden_by: str | None
    distribution: str | None
    version: str | None
    license: str | None
    record: str | None
    size_bytes: int | None


class ModuleChange(NamedTuple):
    """A module that differs.

    Attributes:
        module: Path of the module.
        change: Kind of change.
        before: The module in the first package, or null.
        after: The module in the second package, or null.
        fields: Changes of its decision and of its distribution.
        source_changed: Whether both packages contain its code, and the code differs.
        source: Difference of the sources, or null if they were not compared.
    """

    module: str
    change: Change
    before: ModuleState | None
    after: ModuleState | None
    fields: tuple[FieldChange, ...]
    source_changed: bool
    source: TextDifference | None


class TensorState(NamedTuple):
    """A tensor in one of two packages.

    Attributes:
        kind: Role of the tensor in the object.
        dtype: Element type, as torch names it.
        shape: Sizes of the dimensions, or null if it has none yet.
        requires_grad: Whether gradients are computed for it.
        persistent: For a buffer, whether the state dict contains it.
        device: Device on which it was saved.
        size_bytes: Size of its elements, or null if unknown.
    """

    kind: TensorKind
    dtype: str
    shape: tuple[int, ...] | None
    requires_grad: bool
    persistent: bool
    device: str
    size_bytes: int | None


class TensorChange(NamedTuple):
    """A named tensor that differs.

    Attributes:
        resource: Record of the saved object.
        name: Name of the tensor in the object.
        change: Kind of change.
        before: The tensor in the first package, or null.
        after: The tensor in the second package, or null.
        fields: Changes of its shape, type, kind and so on.
        values: Result of comparing the elements.
        same_as: For an added tensor, a removed one with the same elements and shape, or null.
    """

    resource: str
    name: str
    change: Change
    before: TensorState | None
    after: TensorState | None
    fields: tuple[FieldChange, ...]
    values: Values
    same_as: str | None


class DiffDocument(NamedTuple):
    """The differences between two packages.

    Attributes:
        before: The first package.
        after: The second package.
        passed: Whether no differences were found.
        identical: Whether the packages have the same digest.
        package: Changes of format, Python, torch, platform and main resource.
        distributions: Distributions that differ.
        modules: Modules that differ.
        imports: Imports that only one package has.
        uses: Uses of mocked names that only one package has.
        hooks: Hooks of saved objects that differ.
        tensors: Parameters, buffers and other named tensors that differ.
        sharing: Tensors that share a storage in one package only.
        storages: Storages without a named tensor.
        resources: Pickles, texts and files that differ.
        self_test: Changes of the self-test.
        examples: Examples of the self-test that differ.
        notes: Notes that only one package has.
        records: Other records that differ.
    """

    before: PackageIdentity
    after: PackageIdentity
    passed: bool
    identical: bool
    package: tuple[FieldChange, ...]
    distributions: tuple[DistributionDifference, ...]
    modules: tuple[ModuleChange, ...]
    imports: tuple[ImportDifference, ...]
    uses: tuple[UseDifference, ...]
    hooks: tuple[HookDifference, ...]
    tensors: tuple[TensorChange, ...]
    sharing: tuple[SharingDifference, ...]
    storages: StoragesDifference
    resources: tuple[ResourceDifference, ...]
    self_test: tuple[FieldChange, ...]
    examples: tuple[ExampleDifference, ...]
    notes: tuple[NoteDifference, ...]
    records: tuple[RecordDifference, ...]


def diff_document(found: PackageDifferences) -> DiffDocument:
    """Return the document of a comparison."""
    return _pick(
        DiffDocument,
        found,
        before=_pick(PackageIdentity, found.before),
        after=_pick(PackageIdentity, found.after),
        passed=found.is_empty,
        identical=found.is_same_content,
        modules=tuple(map(_module_change, found.modules)),
        tensors=tuple(map(_tensor_change, found.tensors)),
    )


def _module_change(module: ModuleDifference) -> ModuleChange:
    before = module.before and _pick(ModuleState, module.before)
    after = module.after and _pick(ModuleState, module.after)
    return _pick(ModuleChange, module, before=before, after=after)


def _tensor_change(tensor: TensorDifference) -> TensorChange:
    before, after = map(_tensor_state, (tensor.before, tensor.after))
    return _pick(TensorChange, tensor, before=before, after=after)


def _tensor_state(tensor: TensorFacts | None) -> TensorState | None:
    if tensor is None:
        return None
    return _pick(TensorState, tensor, persistent=tensor.is_persistent)


class WhyDocument(NamedTuple):
    """The reasons why a module is in a package, or is not.

    Attributes:
        path: The package, as the user named it.
        module: Path of the module.
        status: What the package has to do with the module.
        action: The decision, or null.
        rule: Rule that matched. Null without a decision, or if the package does not record it.
        origin: Origin of the rule, or null.
        overridden_by: Hook that changed the action of the rule, or null.
        hooks: Match hooks that were called for the module, in order.
        provided_by: Provider of the module at export, or null if not recorded.
        distribution: Distribution that contained the module at export, or null.
        version: Version of the distribution, or null.
        chains: Chains of imports that lead to the module, the shortest first.
        every_chain: Whether all chains were requested (``--all``).
        omitted_chains: Number of further chains.
        search_complete: Whether ``omitted_chains`` is exact. If not, there are at least so many.
        equally_short_chains: Number of further chains that start at the same objects and are as
            short.
        importers: All locations that import the module directly.
        notes: Notes about the module.
    """

    path: str
    module: str
    status: ModuleStatus
    action: Action | None
    rule: str | None
    origin: RuleOrigin | None
    overridden_by: str | None
    hooks: tuple[str, ...]
    provided_by: Provider | None
    distribution: str | None
    version: str | None
    chains: tuple[Chain, ...]
    every_chain: bool
    omitted_chains: int
    search_complete: bool
    equally_short_chains: int
    importers: tuple[ImportLink, ...]
    notes: tuple[Diagnostic, ...]


def why_document(found: Why, path: str, every_chain: bool) -> WhyDocument:
    """Return the document of ``modpack why``.

    Args:
        found: The reasons.
        path: The package, as the user named it.
        every_chain: Whether all chains were requested.
    """
    from modpack.core.rules import UNRECORDED

    decision, chains, provider = found.decision, found.chains, found.provider
    rule = decision.rule if decision is not None else None
    rule = None if rule is None or rule.label == UNRECORDED else rule
    return WhyDocument(
        path,
        found.module,
        found.status,
        decision.action if decision is not None else None,
        str(rule) if rule is not None else None,
        rule.origin if rule is not None else None,
        decision.overridden_by if decision is not None else None,
        decision.hooks if decision is not None else (),
        provider.kind if provider is not None else None,
        provider.distribution if provider is not None else None,
        provider.version if provider is not None else None,
        chains.chains,
        every_chain,
        chains.omitted,
        chains.is_complete,
        chains.equally_short,
        found.importers,
        found.notes,
    )


class RuleFacts(NamedTuple):
    """A rule.

    Attributes:
        action: What the rule does.
        patterns: Patterns that it matches.
        option: The rule as options of ``modpack export``, quoted for a shell.
        toml: The rule as an entry of ``rules`` in a pyproject.toml.
    """

    action: Action
    patterns: tuple[str, ...]
    option: str
    toml: str


class SuggestionFacts(NamedTuple):
    """A suggested rule, with the reasons for it.

    Attributes:
        action: What the rule does.
        patterns: Patterns that it matches.
        option: The rule as options of ``modpack export``, quoted for a shell.
        toml: The rule as an entry of ``rules`` in a pyproject.toml.
        provided_by: Provider of the modules.
        name: The distribution, or the top-level module.
        modules: Modules that the rule decides.
        distribution: The installed distribution, or null.
        version: Version of the distribution, or null.
        license: License of the distribution, or null.
        editable: Whether the distribution is an editable install, or null.
        native: Whether the distribution contains native code, or null.
        reach: The strongest evidence that the modules are needed.
        importers: Locations that need the modules, the strongest evidence first.
        reasons: Reasons for the rule, in sentences.
        mock_risk: Effect of a mock instead of the rule. Null if a mock cannot replace the rule.
        alternative: Another rule that may work, or null.
    """

    action: Action
    patterns: tuple[str, ...]
    option: str
    toml: str
    provided_by: ModuleOrigin
    name: str
    modules: tuple[str, ...]
    distribution: str | None
    version: str | None
    license: str | None
    editable: bool | None
    native: bool | None
    reach: ImportReach
    importers: tuple[ImportLink, ...]
    reasons: tuple[str, ...]
    mock_risk: MockRisk | None
    alternative: RuleFacts | None


class SuggestDocument(NamedTuple):
    """Rules for the modules that no rule matches.

    Attributes:
        target: The target, as the user named it.
        preset: The preset whose choices the suggestions follow.
        suggestions: The rules, in the order in which they must be given.
        problems: Problems that no rule solves.
    """

    target: str
    preset: Literal["pinned", "hermetic"]
    suggestions: tuple[SuggestionFacts, ...]
    problems: tuple[Diagnostic, ...]


def suggest_document(
    target: str, preset: str, found: Sequence[Suggestion], problems: Sequence[Diagnostic]
) -> SuggestDocument:
    """Return the document of ``modpack suggest``.

    Args:
        target: The target, as the user named it.
        preset: The preset whose choices the suggestions follow.
        found: The rules, in the order in which they must be given.
        problems: Problems that no rule solves.
    """
    suggestions = tuple(map(_suggestion_facts, found))
    return SuggestDocument(
        target, "hermetic" if preset == "hermetic" else "pinned", suggestions, tuple(problems)
    )


def _suggestion_facts(found: Suggestion) -> SuggestionFacts:
    from modpack.core.plan import MockRisk
    from modpack.core.rules import Action
    from modpack.report.suggest import reasons

    advice, distribution = found.advice, found.distribution
    can_be_mocked = found.mock_risk not in (None, MockRisk.REACHABLE)
    return SuggestionFacts(
        *_rule_facts(advice.action, advice.patterns),
        advice.kind,
        advice.name,
        found.modules,
        distribution.name if distribution is not None else None,
        distribution.version if distribution is not None else None,
        distribution.license if distribution is not None else None,
        distribution.editable if distribution is not None else None,
        found.is_native,
        found.reach,
        found.importers,
        tuple(reasons(found)),
        found.mock_risk,
        _rule_facts(Action.MOCK, advice.patterns) if can_be_mocked else None,
    )


def _rule_facts(action: Action, patterns: tuple[str, ...]) -> RuleFacts:
    from modpack.report.suggest import as_option, as_toml

    return RuleFacts(action, patterns, as_option(action, patterns), as_toml(action, patterns))


class RequirementFacts(NamedTuple):
    """A distribution that must be installed.

    Attributes:
        distribution: Name of the distribution.
        version: Its version at export.
        requirement: Requirement for pip (PEP 508), or null if pip cannot install it.
        editable: Whether it was an editable install.
        license: Its license, as its metadata states, or null.
        modules: Extern modules that it provides. Empty if only other distributions require it.
        requires: Normalized names of the distributions that it requires.
        hashes: Digests of the installed file, as ``sha256:...``.
        optional: Whether the package loads without it.
    """

    distribution: str
    version: str
    requirement: str | None
    editable: bool
    license: str | None
    modules: tuple[str, ...]
    requires: tuple[str, ...]
    hashes: tuple[str, ...]
    optional: bool


class ImportedDistribution(NamedTuple):
    """A distribution that extern modules imported in the self-test.

    Attributes:
        distribution: Name of the distribution.
        version: Its version at export.
        requirement: Requirement for pip (PEP 508), or null if pip cannot install it.
        module: First of its modules that was imported.
        by: Module that imported it, or null if unknown.
    """

    distribution: str
    version: str
    requirement: str | None
    module: str
    by: str | None


class ComparisonFacts(NamedTuple):
    """The export environment compared with the installed distributions.

    Attributes:
        matches: Whether loading raises no warning.
        matches_exactly: Whether loading with ``on_mismatch="error"`` accepts the environment.
        install_command: The pip command that installs the recorded versions, or null.
        rows: Python, the platform and torch, then the distributions by name.
    """

    matches: bool
    matches_exactly: bool
    install_command: str | None
    rows: tuple[EnvironmentRow, ...]


class RequirementsDocument(NamedTuple):
    """The distributions that a package needs.

    Attributes:
        path: The package, as the user named it.
        passed: Result of ``--check``. Null without it.
        python: Version of Python at export, or null.
        platform: Operating system and machine at export, or null.
        torch: Version of torch at export, or null.
        lock: Whether indirect requirements are listed (``--lock``).
        requirements: The distributions, by name.
        unrecorded: Extern modules without a recorded distribution.
        absent_at_export: Extern modules that were not installed at export.
        imported: Distributions that extern modules imported in the self-test, and that nothing in
            the package names.
        comparison: The comparison of ``--check``. Null without it.
    """

    path: str
    passed: bool | None
    python: str | None
    platform: str | None
    torch: str | None
    lock: bool
    requirements: tuple[RequirementFacts, ...]
    unrecorded: tuple[str, ...]
    absent_at_export: tuple[str, ...]
    imported: tuple[ImportedDistribution, ...]
    comparison: ComparisonFacts | None


def requirements_document(
    found: Requirements, *, check: bool = False, passed: bool | None = None
) -> RequirementsDocument:
    """Return the document of ``modpack requirements``.

    Args:
        found: The requirements.
        check: Whether to include the comparison.
        passed: Result of the comparison.
    """
    compared, environment = found.comparison, found.environment
    comparison = ComparisonFacts(
        not compared.differences, not compared.deviations, compared.install_command, compared.rows
    )
    return RequirementsDocument(
        found.path,
        passed if check else None,
        environment.python,
        environment.platform_label,
        environment.torch,
        found.is_lock,
        tuple(map(_requirement_facts, found.needed)),
        found.unrecorded,
        found.absent,
        tuple(map(_imported_distribution, found.imported)),
        comparison if check else None,
    )


def _requirement_facts(needed: Needed) -> RequirementFacts:
    distribution = needed.distribution
    return _pick(
        RequirementFacts,
        distribution,
        distribution=distribution.name,
        modules=needed.modules,
        hashes=needed.hashes,
        optional=needed.is_optional,
    )


def _imported_distribution(found: UndeclaredImport) -> ImportedDistribution:
    from modpack.core.environment import RecordedDistribution

    distribution = RecordedDistribution(found.distribution, found.version)
    return _pick(ImportedDistribution, found, requirement=distribution.requirement)


class VerifyDocument(NamedTuple):
    """The verification of a package.

    Attributes:
        path: The package, as the user named it.
        passed: Whether no errors were found.
        format: Format of the package, or null if it could not be read.
        digest: Digest of the package, or null if it could not be computed.
        size_bytes: Size of the file, or of all files in a directory. 0 if it could not be read.
        checks: The checks, in order.
        findings: Findings, errors first.
        signatures: Signatures that were requested and are valid.
        code: The code in the package, or null if it could not be read.
    """

    path: str
    passed: bool
    format: str | None
    digest: str | None
    size_bytes: int
    checks: tuple[CheckFacts, ...]
    findings: tuple[Diagnostic, ...]
    signatures: tuple[ValidSignature, ...]
    code: CodeFacts | None


def verify_document(facts: VerifyFacts) -> VerifyDocument:
    """Return the document of a verification."""
    return _pick(
        VerifyDocument,
        facts,
        path=facts.subject,
        passed=facts.is_accepted,
        format=facts.format or None,
        digest=facts.digest or None,
        code=None if facts.code is None else code_facts(facts.code),
    )


class SelfTestDocument(NamedTuple):
    """A repeated self-test.

    Attributes:
        path: The package, as the user named it.
        passed: Whether the package loaded and computed the recorded output.
        reason: Why the self-test failed, or null.
        details: Lines with the details of the failure.
        log: End of the output to stdout and stderr, if the self-test failed.
        seconds: Duration in seconds.
        recorded: The self-test as recorded at export.
    """

    path: str
    passed: bool
    reason: str | None
    details: tuple[str, ...]
    log: str
    seconds: float
    recorded: SelfTestRecord


class KeygenDocument(NamedTuple):
    """A key for signing packages.

    Attributes:
        key_id: SHA-256 of the public key, in hex.
        private_key: File of the private key.
        public_key: File of the public key.
        encrypted: Whether the private key is encrypted.
    """

    key_id: str
    private_key: str
    public_key: str
    encrypted: bool


class SignDocument(NamedTuple):
    """A signed package.

    Attributes:
        path: The package, as the user named it.
        digest: Digest of the package, which the signature covers.
        key_id: Key of the new signature.
        placement: Whether the signature is in the package or in a separate file.
        signature_path: File that contains the signature: the package itself if embedded.
        key_ids: Keys of all signatures, in order.
    """

    path: str
    digest: str
    key_id: str
    placement: Literal["embedded", "detached"]
    signature_path: str
    key_ids: tuple[str, ...]


class SeverityCounts(NamedTuple):
    """Numbers of findings.

    Attributes:
        error: Number of errors.
        warning: Number of warnings.
        info: Number of remarks.
    """

    error: int
    warning: int
    info: int


class ReportDocument(NamedTuple):
    """The HTML report of a package.

    Attributes:
        path: The package, as the user named it.
        report_path: The HTML file.
        size_bytes: Size of the HTML file.
        modules: Number of modules that the package contains or needs.
        findings: Number of findings by severity.
    """

    path: str
    report_path: str
    size_bytes: int
    modules: int
    findings: SeverityCounts


class CachedPackage(NamedTuple):
    """An unpacked package in the cache.

    Attributes:
        digest: Digest of the unpacked files.
        name: Name of the package file, or null if unknown.
        files: Number of files, including bytecode.
        size_bytes: Size of the files.
        last_used: Time of the last use, in UTC (ISO 8601).
    """

    digest: str
    name: str | None
    files: int
    size_bytes: int
    last_used: str


class CachedScans(NamedTuple):
    """Cached scans of sources, which exports reuse.

    Attributes:
        files: Number of scans.
        size_bytes: Size of the scans.
    """

    files: int
    size_bytes: int


class CacheListDocument(NamedTuple):
    """The contents of the cache.

    Attributes:
        folder: The cache folder.
        packages: The unpacked packages, most recently used first.
        scans: The cached scans.
    """

    folder: str
    packages: tuple[CachedPackage, ...]
    scans: CachedScans


class CachePruneDocument(NamedTuple):
    """What was removed from the cache.

    Attributes:
        folder: The cache folder.
        removed: The removed packages.
        in_use: Packages that were not removed because a process uses them.
        scans: The removed scans.
        leftovers: Number of incomplete folders of ended processes that were removed.
        freed_bytes: Size of everything that was removed.
    """

    folder: str
    removed: tuple[CachedPackage, ...]
    in_use: tuple[CachedPackage, ...]
    scans: CachedScans
    leftovers: int
    freed_bytes: int


class VerifiedPackage(NamedTuple):
    """An unpacked package whose files were compared with their digests.

    Attributes:
        digest: Digest of the unpacked files.
        name: Name of the package file, or null if unknown.
        files: Number of files, including bytecode.
        size_bytes: Size of the files.
        last_used: Time of the last use, in UTC (ISO 8601).
        damaged_files: Files that changed or are missing.
    """

    digest: str
    name: str | None
    files: int
    size_bytes: int
    last_used: str
    damaged_files: tuple[str, ...]


class CacheVerifyDocument(NamedTuple):
    """The verification of the cache.

    Attributes:
        folder: The cache folder.
        passed: Whether no file changed or is missing.
        packages: The unpacked packages, most recently used first.
    """

    folder: str
    passed: bool
    packages: tuple[VerifiedPackage, ...]


InspectDocument: TypeAlias = PackageDocument | NotesDocument | TreeDocument | SourceDocument
"""What ``modpack inspect`` prints: by default, with ``--notes``, ``--tree`` and ``--source``."""

DOCUMENTS: Final[Mapping[str, Any]] = {
    "audit": AuditDocument,
    "cache-list": CacheListDocument,
    "cache-prune": CachePruneDocument,
    "cache-verify": CacheVerifyDocument,
    "diff": DiffDocument,
    "error": ErrorDocument,
    "export": PackageDocument,
    "inspect": InspectDocument,
    "keygen": KeygenDocument,
    "report": ReportDocument,
    "requirements": RequirementsDocument,
    "self-test": SelfTestDocument,
    "sign": SignDocument,
    "suggest": SuggestDocument,
    "verify": VerifyDocument,
    "why": WhyDocument,
}
"""The document of each command, by the name of its schema."""
