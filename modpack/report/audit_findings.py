"""The findings of an audit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from modpack.archive import layout
from modpack.archive.base import Archive, Shard
from modpack.archive.layout import hook_records
from modpack.archive.manifest import Manifest
from modpack.core.environment import is_optional, needed_at_once
from modpack.core.names import is_within, root_of
from modpack.core.observations import MockEventKind, MockRisk
from modpack.core.rules import IMPLICIT, RUNNING_SCRIPT, Action, Owner
from modpack.core.scan import ImportKind
from modpack.core.selftest import SelfTestRecord
from modpack.core.text import counted
from modpack.diagnostics import Diagnostic, diagnostic_codes
from modpack.errors import listed
from modpack.report.audit_facts import (
    AuditFacts,
    DistributionFacts,
    MockFacts,
    files_of,
    importers_by_name,
)
from modpack.report.facts import (
    ImporterFacts,
    LoaderFacts,
    ModuleFacts,
    ResourceKind,
    location_of,
    used_name,
)
from modpack.trust.code_listing import CodeListing

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:-]*")
_OPERATORS = frozenset({"and", "or", "with"})
_SHOWN = 4
_OF_TORCH_PACKAGE = "torch.package"
_ABSENT = "optional-import-missing"
_PROVIDED_EVERYWHERE = frozenset(map(str, (*IMPLICIT, RUNNING_SCRIPT)))
"""Rules for modules that every environment has. Standard libraries differ between versions."""
_RISK_CODES = {
    MockRisk.NOT_OBSERVED: "mock-not-observed",
    MockRisk.USED_AT_IMPORT: "mock-used-at-import",
    MockRisk.UNTOUCHED: "mock-untouched",
}


def find_all(audit: AuditFacts, scanned: Sequence[Diagnostic] = ()) -> tuple[Diagnostic, ...]:
    """Return all findings of an audit, the most severe first.

    Args:
        audit: The other facts of the audit.
        scanned: The findings from its pickles and sources.
    """
    found = [
        *scanned,
        *_mocks(audit),
        *_externs(audit),
        *_missing(audit),
        *_notes(audit),
        *_package(audit),
        *_native(audit),
        *_licenses(audit.distributions),
    ]
    # The sort is stable, so findings of one code keep the order of their modules.
    order = list(diagnostic_codes())
    found.sort(key=lambda d: (d.severity.rank, order.index(d.code)))
    return tuple(found)


def _mocks(audit: AuditFacts) -> Iterator[Diagnostic]:
    is_foreign = audit.package.format == _OF_TORCH_PACKAGE
    for mock in audit.mocks:
        for event in mock.events:
            if event.kind is MockEventKind.USED:
                what, done = event.name or mock.module, event.operation or "was used"
                text = f"{what} {done} in the self-test, but {mock.module} is mocked"
                yield Diagnostic.from_code("mock-called", mock.module, text, event.location)
        importers = importers_by_name(mock)
        # torch.package does not record imports, so each of its mocks may be in use.
        if mock.risk is not MockRisk.CALLED and (mock.uses or importers or is_foreign):
            location = _first_location(importers)
            names = _list_names(each.importer for each in importers)
            where = f"{names} imports {mock.module}" if importers else f"{mock.module} is mocked"
            if mock.uses:
                # Uses in classes of saved objects come first: the model most likely reaches them.
                first, more = mock.uses[0], len(mock.uses) - 1
                location = first.location
                scope = f"{first.importer}.{first.scope}" if first.scope else first.importer
                where = f"{used_name(first)} is used in {scope}"
                where += f", and in {counted(more, 'more location')}" if more else ""
            yield _observed(mock, where, location, audit.is_verified)


def _observed(mock: MockFacts, where: str, location: str | None, is_own: bool) -> Diagnostic:
    """Return the finding about a mock that no run called.

    Args:
        mock: The mock.
        where: The text about its first use.
        location: The location of that use.
        is_own: Whether the observations are those of a trusted signer.
    """
    code, text = _RISK_CODES[mock.risk], f"{where}; {mock.module} is {mock.observed}"
    if mock.risk is not MockRisk.NOT_OBSERVED and not is_own:
        # The producer of a package also chooses what it records. Only a signature says who that is.
        code, text = "mock-unverified", f"{text}, recorded by the package"
    return Diagnostic.from_code(code, mock.module, text, location)


def _externs(audit: AuditFacts) -> Iterator[Diagnostic]:
    """Yield extern modules that pip cannot install, or whose version is unknown."""
    at_once = needed_at_once(audit.graph)
    # One finding for each distribution: pip installs distributions, not modules.
    groups: dict[tuple[str, str], list[ModuleFacts]] = {}
    for facts in audit.modules:
        if facts.action is not Action.EXTERN:
            continue
        code = _extern_code(facts)
        if code is not None:
            if facts.module in audit.absent and is_optional([facts.module], at_once):
                code = _ABSENT
            groups.setdefault((code, facts.distribution or root_of(facts.module)), []).append(facts)
    for (code, subject), members in groups.items():
        text = _extern_text(code, subject, members[0])
        if len(members) > 1:
            text += f" ({counted(len(members), 'module')})"
        importers = [each for facts in members for each in facts.importers]
        yield Diagnostic.from_code(code, subject, text, _first_location(importers))


def _extern_code(facts: ModuleFacts) -> str | None:
    if facts.provided_by in (Owner.STDLIB, Owner.RUNTIME) or facts.rule in _PROVIDED_EVERYWHERE:
        return None
    if facts.provided_by is Owner.LOCAL:
        return "extern-local"
    return "extern-unpinned" if facts.version is None else None


def _extern_text(code: str, subject: str, facts: ModuleFacts) -> str:
    if code == _ABSENT:
        return f"extern {subject} was not installed at export, and loading does not need it"
    if code == "extern-unpinned":
        return f"the package does not record the version of extern {subject}"
    if facts.editable:
        return f"extern {facts.requirement} was an editable install"
    return f"no installed distribution provided extern {subject}"


def _missing(audit: AuditFacts) -> Iterator[Diagnostic]:
    """Yield modules that loading needs, but that no decision covers."""
    known = {facts.module for facts in audit.modules}
    # Saved objects are roots of the graph, but not modules. Notes cover guarded imports.
    reported = {note.subject for note in audit.notes if note.code == _ABSENT}
    roots, files = set(audit.graph.roots()), files_of(audit.modules)
    for module in sorted(audit.graph.reachable_nodes(at_once=True) - known - reported - roots):
        edges = [
            edge
            for edge in audit.graph.edges_to(module)
            if edge.kind.runs_at_once and edge.kind is not ImportKind.PARENT
        ]
        if not edges or any(is_within(each, module) for each in known):
            continue  # a namespace package, which has no code
        first = edges[0]
        location = location_of(first.importer, files.get(first.importer), first.line)
        by = _list_names(edge.importer for edge in edges)
        text = f"{by} imports {module}, which is neither in the package nor extern"
        yield Diagnostic.from_code("missing-module", module, text, location)


def _notes(audit: AuditFacts) -> Iterator[Diagnostic]:
    self_test = audit.package.self_test
    for note in audit.notes:
        # A passed self-test is what the hint of this note asks for.
        is_settled = note.code == "dynamic-import-library" and self_test and self_test.passed
        yield replace(note, hint="") if is_settled else note


def _package(audit: AuditFacts) -> Iterator[Diagnostic]:
    """Yield findings about the package as a whole."""
    package = audit.package
    if package.format == _OF_TORCH_PACKAGE:
        text = "torch.package wrote this package, without rules, versions, licenses, or a self-test"
        yield Diagnostic.from_code("torch-package-archive", package.path, text)
    elif package.self_test is None:
        yield Diagnostic.from_code(
            "self-test-missing", package.path, "the package has no self-test"
        )
    else:
        # Only good news needs a signature: whoever writes a package chooses what it records.
        if package.self_test.passed and not audit.is_verified:
            text = "the package records that its self-test passed"
            yield Diagnostic.from_code("self-test-unverified", package.path, text)
        yield from _self_test(package.path, package.self_test)
    if package.loader is not None:
        yield loader_finding(package.path, package.loader)
    yield from shard_findings(package.shards)
    if package.namespace != "private":
        why = f": {package.self_test.private_failure}" if package.self_test is not None else ""
        text = f"the package records namespace={package.namespace!r}{why}"
        yield Diagnostic.from_code("process-namespace", package.path, text)


def shard_findings(shards: Iterable[Shard]) -> Iterator[Diagnostic]:
    """Yield a finding for each missing or damaged file with weights of a package."""
    for shard in shards:
        if shard.problem is not None:
            yield Diagnostic.from_code("shard-invalid", shard.name, shard.problem)


def loader_finding(path: str, loader: LoaderFacts) -> Diagnostic:
    """Return the finding about the loader in a package."""
    code = "loader" if loader.known else "loader-unknown"
    return Diagnostic.from_code(code, path, f"the package contains a loader {loader}")


def _self_test(file: str, self_test: SelfTestRecord) -> Iterator[Diagnostic]:
    if not self_test.passed:
        text = f"the self-test failed: {self_test.failure or 'the reason is not recorded'}"
        yield Diagnostic.from_code("self-test-failed", file, text)
    elif not self_test.deterministic:
        yield Diagnostic.from_code(
            "self-test-structure-only",
            file,
            "the self-test compared only types, shapes, and lengths",
        )
    for schema in self_test.operators:
        text = f"{schema} must be declared before the package is loaded"
        yield Diagnostic.from_code("operator-needed", schema.partition("(")[0], text)
    observed = self_test.observations
    # Loading calls no constructors, and some of them register their class in a table.
    for table in observed.unfilled_tables:
        text = (
            f"{table.module}.{table.name} contained {table.kind} at export, but not after loading"
        )
        yield Diagnostic.from_code("self-test-unfilled-table", table.kind, text)
    for each in observed.distributions:
        by = each.by or "extern code"
        text = f"{by} imported {each.distribution} {each.version} in the self-test"
        yield Diagnostic.from_code("self-test-imported", each.distribution, text)
    for warning in observed.warnings:
        yield Diagnostic.from_code("self-test-warning", file, warning)


def _native(audit: AuditFacts) -> Iterator[Diagnostic]:
    groups: dict[str, list[str]] = {}
    for file in audit.files:
        if file.kind is ResourceKind.NATIVE:
            groups.setdefault(root_of(file.owner or file.record), []).append(file.record)
    for owner, records in groups.items():
        yield Diagnostic.from_code(
            "native-code", owner, f"native extensions of {owner}: {_list_names(records)}"
        )


def _licenses(distributions: Sequence[DistributionFacts]) -> Iterator[Diagnostic]:
    for each in distributions:
        if each.license is None:
            text = f"the metadata of {each.name} {each.version} names no license".replace("  ", " ")
            yield Diagnostic.from_code("license-unknown", each.name, text)


def _first_location(importers: Sequence[ImporterFacts]) -> str | None:
    """Return the first location with a line."""
    return next((each.location for each in importers if each.line is not None), None)


def _list_names(names: Iterable[str]) -> str:
    return listed(list(dict.fromkeys(names)), _SHOWN)


def is_licensed_under(expression: str, glob: str) -> bool:
    """Return whether a glob matches a license expression or a part of it, ignoring case.

    Metadata that is not an SPDX expression is split into words as well, so ``GPLv3`` matches
    ``GNU General Public License (GPLv3)``.

    >>> is_licensed_under("MIT OR GPL-3.0-only", "gpl*")
    True
    >>> is_licensed_under("LGPL-2.1-only", "GPL*")
    False
    """
    # Metadata has SPDX expressions, names of classifiers, and free text. Words occur in all three.
    words = (word for word in _WORD.findall(expression) if word.lower() not in _OPERATORS)
    wanted = glob.casefold()
    return any(fnmatchcase(each.casefold(), wanted) for each in (expression, *words))


def pickle_findings(
    archive: Archive, manifest: Manifest | None, listing: CodeListing
) -> Iterator[Diagnostic]:
    """Yield findings about malformed, missing, and undeclared pickles.

    Args:
        archive: The package.
        manifest: The manifest. None for a torch.package archive.
        listing: The package's code.
    """
    hooks = {hook_records(record)[1]: record for record in listing.objects}
    broken = {name for name, each in listing.pickles.items() if each.unreadable is not None}
    known = {*listing.objects, *hooks}
    for record in listing.objects:
        if not archive.has(record):
            text = f"the saved object {record} is missing"
            yield Diagnostic.from_code("pickle-missing", record, text, record)
    for record, contents in listing.pickles.items():
        owner = hooks.get(record, record)
        is_own = owner == record or (archive.has(owner) and owner not in broken)
        if contents.unreadable is not None and is_own:  # hooks go on where their object ends
            location = f"{record}, byte {contents.position}"
            yield Diagnostic.from_code("pickle-malformed", record, contents.unreadable, location)
        if (
            manifest is not None
            and record not in known
            and not record.startswith(layout.SELF_TESTS)
        ):
            text = f"{record} is a pickle, but not a saved object of the package"
            yield Diagnostic.from_code("pickle-undeclared", record, text, record)


def dangerous_names(listing: CodeListing) -> Iterator[Diagnostic]:
    """Yield a finding for each dangerous name in a pickle."""
    for record, names in listing.names().items():
        for name in names:
            if name.is_dangerous:
                text = f"{record} names {name}, which can run arbitrary code"
                location = f"{record}, byte {name.position}"
                yield Diagnostic.from_code("pickle-dangerous-name", str(name), text, location)
