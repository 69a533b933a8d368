"""What the page shows without scripts, beyond the audit itself: counts, bars, links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from modpack.core.actions import Action
from modpack.core.hookspec import HookSpec
from modpack.core.imports import ImportKind
from modpack.report.auditing.facts import AuditFacts, MockFacts, Severity
from modpack.report.auditing.places import files_of
from modpack.report.facts import HookFacts, ImporterFacts, ModuleFacts
from modpack.report.html.drawn import is_trial_input
from modpack.report.html.groups import Group, grouped
from modpack.report.wording import counted, printable

__all__ = ["Bar", "HookView", "Links", "View"]

_LARGEST_SHOWN = 20
_IMPORTERS_SHOWN = 3


@dataclass(frozen=True)
class Bar:
    """One part of a whole, as a bar.

    Attributes:
        label: what it is.
        size_bytes: how large it is.
        percent: its length, 100 for the longest of its chart.
        module: the module that it is about, if it is about one.
    """

    label: str
    size_bytes: int
    percent: float
    module: str | None = None


@dataclass(frozen=True)
class HookView:
    """Hooks of one kind that call the same, together.

    Attributes:
        resource: the record of the object that they hang on.
        spec: the first of them.
        targets: where they hang.
    """

    resource: str
    spec: HookSpec
    targets: tuple[str, ...]

    @property
    def flags(self) -> str:
        """What they were registered with."""
        return ", ".join(f"{name}={value}" for name, value in sorted(self.spec.flags.items()))


class Links:
    """The addresses of modules and places in the page.

    Args:
        audit: the audit that the page shows.
    """

    def __init__(self, audit: AuditFacts) -> None:
        self._module_of = {file: module for module, file in files_of(audit).items()}
        self._shown = frozenset([*audit.graph.nodes(), *(each.module for each in audit.modules)])

    def module(self, name: str, line: int | None = None) -> str:
        """The address of a module, and of a line of its source; empty if it is no module."""
        if name not in self._shown:
            return ""
        address = f"#module={quote(printable(name), safe='')}"
        return f"{address}&line={line}" if line is not None else address

    def place(self, place: str) -> str:
        """The address of ``file:line``; empty if the file is no module's."""
        file, _, line = place.rpartition(":")
        if not (line.isascii() and line.isdigit() and len(line) < 10):
            file, line = place, ""
        module = self._module_of.get(file)
        return self.module(module, int(line) if line else None) if module is not None else ""


class View:
    """What the template asks for.

    Args:
        audit: the audit that the page shows.
    """

    def __init__(self, audit: AuditFacts) -> None:
        self.audit = audit
        self.links = Links(audit)
        self.severities = Counter(finding.severity for finding in audit.findings)
        self.actions = Counter(facts.action for facts in audit.modules)

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        if self.audit.problems:
            return f"{counted(len(self.audit.problems), 'problem')}: it cannot be packaged"
        told = [
            counted(self.severities[severity], severity.value)
            for severity in Severity
            if self.severities[severity]
        ]
        return ", ".join(told) or "nothing to remark"

    @property
    def alarming(self) -> int:
        """How many errors and warnings there are."""
        found = self.severities[Severity.ERROR] + self.severities[Severity.WARNING]
        return found + len(self.audit.problems)

    @property
    def worst(self) -> str:
        """The worst severity of all findings; ``fine`` without errors and warnings."""
        if self.audit.problems or self.severities[Severity.ERROR]:
            return Severity.ERROR.value
        return Severity.WARNING.value if self.severities[Severity.WARNING] else "fine"

    def groups(self, action: Action) -> tuple[tuple[Group, tuple[ModuleFacts, ...]], ...]:
        """The modules with one decision, by what they belong to."""
        return grouped(self.audit.modules, action)

    def importers(self, facts: ModuleFacts) -> tuple[ImporterFacts, ...]:
        """The first of those who need a module; those with a line come before others."""
        needed = (
            each
            for each in facts.importers
            if each.kind.is_dependency and self._is_shown(each.importer)
        )
        return tuple(sorted(needed, key=lambda each: each.line is None)[:_IMPORTERS_SHOWN])

    def _is_shown(self, importer: str) -> bool:
        return importer in self.audit.graph or not is_trial_input(importer)

    def importers_of_mock(self, mock: MockFacts) -> tuple[ImporterFacts, ...]:
        """Who imports a mocked module by name: all but its own submodules."""
        return tuple(each for each in mock.importers if each.kind is not ImportKind.PARENT)

    def composition(self) -> tuple[Bar, ...]:
        """What the bytes of the package are."""
        package = self.audit.package
        if package is None:
            return ()
        return _bars(
            [
                ("tensor storages", package.storages.size_bytes),
                ("code", sum(facts.size_bytes or 0 for facts in self.audit.modules)),
                ("saved objects and resources", _resources(self.audit, goes_along=False)),
                ("files beside the code", _resources(self.audit, goes_along=True)),
            ]
        )

    def code_by_group(self) -> tuple[Bar, ...]:
        """The packaged code, by what it belongs to; the largest first."""
        sizes = [
            (_titled(group), sum(facts.size_bytes or 0 for facts in members))
            for group, members in self.groups(Action.INTERN)
        ]
        return _bars(sorted(sizes, key=lambda each: -each[1]))

    def largest_modules(self) -> tuple[Bar, ...]:
        """The largest packaged sources."""
        interned = [facts for facts in self.audit.modules if facts.action is Action.INTERN]
        interned.sort(key=lambda facts: (-(facts.size_bytes or 0), facts.module))
        shown = [(facts.module, facts.size_bytes or 0) for facts in interned[:_LARGEST_SHOWN]]
        return tuple(
            Bar(bar.label, bar.size_bytes, bar.percent, module=bar.label) for bar in _bars(shown)
        )

    def hooks(self) -> tuple[HookView, ...]:
        """The hooks of saved objects, those of a kind that call the same put together."""
        return tuple(_together(self.audit.package.hooks)) if self.audit.package else ()


def _together(hooks: Iterable[HookFacts]) -> Iterator[HookView]:
    alike: dict[tuple[str, str, str, str | None], list[HookSpec]] = {}
    for each in hooks:
        called = each.spec.callable
        key = (each.resource, each.spec.kind, called.name, called.source)
        alike.setdefault(key, []).append(each.spec)
    for (resource, *_), specs in alike.items():
        targets = dict.fromkeys(" + ".join(spec.target) or "the object itself" for spec in specs)
        yield HookView(resource, specs[0], tuple(targets))


def _resources(audit: AuditFacts, goes_along: bool) -> int:
    resources = audit.package.resources if audit.package is not None else ()
    return sum(each.size_bytes for each in resources if each.kind.goes_along is goes_along)


def _bars(sizes: Iterable[tuple[str, int]]) -> tuple[Bar, ...]:
    listed = [(label, size) for label, size in sizes if size]
    longest = max((size for _, size in listed), default=1)
    return tuple(Bar(label, size, round(100 * size / longest, 2)) for label, size in listed)


def _titled(group: Group) -> str:
    return f"{group.name} {group.version}" if group.version else group.name
