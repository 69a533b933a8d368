"""What the page's scripts know: the audit's graph and modules as one JSON document.

Modules are named by their index in ``nodes``; every text is safe to show.
"""

from __future__ import annotations

from typing import Final

from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.planjson import Json
from modpack.core.usage import MockTouch, NameUse
from modpack.report.auditing.facts import AuditFacts, Finding, MockFacts
from modpack.report.facts import ModuleFacts
from modpack.report.html.drawn import depths_on_chains, is_trial_input, previous_on_chains
from modpack.report.html.groups import SAVED, Group, Grouping
from modpack.report.html.sources import PackagedSources, packed
from modpack.report.wording import printable

__all__ = ["page_document", "sources_document"]

_MOST_NAMES: Final = 12
"""Names of one import that are listed."""
_NO_NAMES: Final[list[Json]] = []
"""One for all imports without names, of which a graph may have very many."""
_KINDS: Final = {kind: index for index, kind in enumerate(ImportKind)}
_TRIAL_INPUTS = "inputs of the trial run"


def page_document(audit: AuditFacts) -> dict[str, Json]:
    """The modules, their groups, who imports whom, and what was found about them.

    Args:
        audit: the audit.
    """
    return _Document(audit).written()


def sources_document(audit: AuditFacts, sources: PackagedSources) -> dict[str, Json]:
    """The sources by module: compressed in ``texts``; in ``missing``, why there is none.

    Args:
        audit: the audit.
        sources: what was read out of the package.
    """
    texts = {printable(module): packed(text) for module, text in sources.texts.items()}
    missing = {printable(module): printable(why) for module, why in sources.left_out.items()}
    return {"texts": dict(texts), "missing": dict(missing), "file": printable(audit.subject)}


class _Document:
    """The document while it is being made."""

    def __init__(self, audit: AuditFacts) -> None:
        self._audit = audit
        self._graph = audit.graph
        self._modules = {facts.module: facts for facts in audit.modules}
        names = dict.fromkeys([*self._graph.nodes(), *self._modules])
        self._index = {name: index for index, name in enumerate(names)}
        self._roots = frozenset(self._graph.roots())
        self._grouping = Grouping(audit.modules)
        self._groups: dict[Group, int] = {}
        self._previous = previous_on_chains(self._graph)
        self._depths = depths_on_chains(self._previous)

    def written(self) -> dict[str, Json]:
        nodes: list[Json] = [self._node(name) for name in self._index]
        return {
            "nodes": nodes,
            "groups": [_group(group) for group in self._groups],
            "kinds": [kind.value for kind in ImportKind],
            "edges": [self._edge(edge) for edge in self._graph.edges()],
            "mocks": {str(self._index[m.module]): _mock(m) for m in self._audit.mocks},
            "findings": [_finding(finding) for finding in self._audit.findings],
        }

    def _node(self, name: str) -> Json:
        facts = self._modules.get(name)
        previous = self._previous.get(name)
        return {
            "name": printable(name),
            **({"label": _TRIAL_INPUTS} if is_trial_input(name) else {}),
            "group": self._group_index(name, facts),
            "previous": self._index[previous] if previous is not None else None,
            "depth": self._depths.get(name),
            **(_decided(facts) if facts is not None else {}),
        }

    def _group_index(self, name: str, facts: ModuleFacts | None) -> int | None:
        """The group of a drawn node; what is neither decided nor saved is not drawn."""
        if facts is None and name not in self._roots:
            return None
        group = self._grouping.of(facts) if facts is not None else SAVED
        return self._groups.setdefault(group, len(self._groups))

    def _edge(self, edge: Edge) -> Json:
        names: list[Json] = _NO_NAMES
        if edge.names:
            names = [printable(name) for name in edge.names[:_MOST_NAMES]]
        if len(edge.names) > _MOST_NAMES:
            names.append("...")
        kind = _KINDS[edge.kind]
        return [self._index[edge.importer], self._index[edge.imported], kind, edge.line, names]


def _decided(facts: ModuleFacts) -> dict[str, Json]:
    return {
        "action": facts.action.value,
        "rule": _shown(facts.rule),
        "overridden": _shown(facts.overridden_by),
        "provided": facts.provided_by.value if facts.provided_by is not None else None,
        "record": _shown(facts.record),
        "size": facts.size_bytes,
    }


def _group(group: Group) -> Json:
    return {
        "kind": group.kind.value,
        "name": printable(group.name),
        "version": _shown(group.version),
        "licence": _shown(group.licence),
        "editable": group.editable,
    }


def _mock(facts: MockFacts) -> Json:
    return {
        "risk": facts.risk.value,
        "tried": facts.is_tried,
        "uses": [_use(use) for use in facts.uses],
        "touches": [_touch(touch) for touch in facts.touches],
    }


def _use(use: NameUse) -> Json:
    return {
        "name": printable(".".join(filter(None, (use.module, use.name)))),
        "importer": printable(use.importer),
        "line": use.line,
        "kind": use.kind.value,
        "scope": printable(use.scope),
        "live": use.is_live,
        "via": [printable(module) for module in use.via],
    }


def _touch(touch: MockTouch) -> Json:
    return {
        "kind": touch.kind.value,
        "name": printable(touch.name),
        "operation": printable(touch.operation),
        "place": _shown(touch.place),
    }


def _finding(finding: Finding) -> Json:
    return {
        "code": printable(finding.code),
        "severity": finding.severity.value,
        "subject": printable(finding.subject),
        "text": printable(finding.text),
        "place": _shown(finding.place),
        "remedy": printable(finding.remedy),
    }


def _shown(text: str | None) -> str | None:
    return None if text is None else printable(text)
