"""The parts of the HTML report: its graph, groups, sources, and one JSON document.

Sources are text and are not run. The document names modules by their index in ``nodes``. Every
text in it is free of control characters.
"""

from __future__ import annotations

import os
import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import decode_source
from typing import Final, cast

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import read_manifest
from modpack.archive.reader import opened
from modpack.core.codec import record_to_json, to_json
from modpack.core.graph import DependencyGraph, Edge, chain_lengths
from modpack.core.json_values import Json
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.text import human_size, printable
from modpack.report.audit_facts import AuditFacts, MockFacts
from modpack.report.facts import ModuleFacts, used_name
from modpack.report.module_groups import SAVED, ModuleGroup, groups_of

LARGEST: Final = 1 << 20
"""Limit of one source on the page, in bytes."""
MOST: Final = 48 << 20
"""Limit of all sources together, in bytes. Compression reduces them to about a quarter."""
ROOM: Final = 600_000
"""Default limit of the compressed sources, in characters, for a page of about 1.2 MB."""
_NO_ROOM: Final = "the page has only the sources nearest to the model (--all-sources has all)"
_SELF_TEST_NODES: Final = f"<{layout.SELF_TESTS}"
_MAX_NAMES: Final = 12
"""Limit of the listed names of one import."""
_NO_NAMES: Final[list[Json]] = []
"""Shared by all imports without names, of which a graph may have very many."""
_KINDS: Final = {kind: index for index, kind in enumerate(ImportKind)}
_SELF_TEST_INPUTS: Final = "inputs of the self-test"


def is_self_test_input(node: str) -> bool:
    """Return whether a node stands for the inputs of a self-test."""
    return node.startswith(_SELF_TEST_NODES)


def previous_on_chains(graph: DependencyGraph) -> Mapping[str, str | None]:
    """Return the previous node on a shortest chain, for every reachable node. None for roots.

    One breadth-first search finds all of them. Chains from the inputs of a self-test come last, for
    nodes that no other chain reaches.
    """
    previous: dict[str, str | None] = {}
    for self_test in (False, True):
        starts = (root for root in graph.roots() if is_self_test_input(root) is self_test)
        for node, before in graph.search(starts):
            previous.setdefault(node, before)
    return previous


@dataclass(frozen=True)
class PackagedSources:
    """Sources of interned modules.

    Attributes:
        texts: The sources, by module, as :func:`packed` returns them.
        left_out: Why a source is not shown, by module.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def too_many(self) -> int:
        """Number of sources that are omitted because of the others."""
        return sum(reason == _NO_ROOM for reason in self.left_out.values())


def read_sources(
    source: str | os.PathLike[str] | Archive,
    audit: AuditFacts,
    room: int | None = ROOM,
    largest: int = LARGEST,
    most: int = MOST,
) -> PackagedSources:
    """Read the sources of the interned modules of a package, the most important first.

    Code without a distribution, usually the user's own, comes first, then code with the shortest
    import chain from the saved objects.

    Args:
        source: The package, or an open one, which stays open.
        audit: Audit of the package.
        room: Limit of the compressed sources, in characters. None to read all.
        largest: Limit of one source, in bytes.
        most: Limit of all sources together, in bytes.

    Raises:
        ArchiveError: If it is not a package, or damaged.
    """
    depths = chain_lengths(previous_on_chains(audit.graph))

    def distance(facts: ModuleFacts) -> tuple[bool, int, str]:
        depth = depths.get(facts.module, len(depths))
        return facts.distribution is not None, depth, facts.module

    texts: dict[str, str] = {}
    left_out: dict[str, str] = {}
    with opened(source) as archive:
        manifest = read_manifest(archive)
        for facts in sorted(audit.modules, key=distance):
            module, record = facts.module, facts.record
            if facts.action is not Action.INTERN or not record or not record.endswith(".py"):
                continue
            size = archive.size(record)
            # Highlighting a longer source would block the page.
            if size > min(largest, most):
                left_out[module] = f"its size of {human_size(size)} exceeds the limit of the page"
                continue
            # Subtracted in any case, because this limit bounds what is read and decompressed.
            most -= size
            content = archive.read(record, verify=manifest)
            try:
                lines = decode_source(content).split("\n")
            except (SyntaxError, UnicodeError, LookupError) as failure:  # codecs raise all of these
                left_out[module] = f"the record is not source text: {failure}"
                continue
            # Line by line, which is faster. The page contains sources compressed, so this counts.
            text = packed("\n".join(printable(line, keep="\t") for line in lines))
            if room is not None and len(text) > room:
                left_out[module] = _NO_ROOM
                continue
            room = None if room is None else room - len(text)
            texts[module] = text
    return PackagedSources(texts, left_out)


def packed(text: str) -> str:
    """Return a text, compressed (raw deflate, RFC 1951) and in base64."""
    # The counterpart of DecompressionStream('deflate-raw') in browsers.
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    content = compressor.compress(text.encode()) + compressor.flush()
    return b64encode(content).decode("ascii")


def page_document(audit: AuditFacts) -> dict[str, Json]:
    """Return the modules, their groups, their imports, and the findings about them.

    Args:
        audit: The audit.
    """
    graph = audit.graph
    modules = {facts.module: facts for facts in audit.modules}
    index = {name: i for i, name in enumerate(dict.fromkeys([*graph.nodes(), *modules]))}
    roots, group_by_module = frozenset(graph.roots()), groups_of(audit.modules)
    groups: dict[ModuleGroup, int] = {}
    # Computed once for all nodes: a search for each would take quadratic time.
    previous = previous_on_chains(graph)
    depths = chain_lengths(previous)

    def node(name: str) -> Json:
        facts, before = modules.get(name), previous.get(name)
        group: int | None = None  # nodes without a decision are not drawn, unless they were saved
        if facts is not None or name in roots:
            group = groups.setdefault(group_by_module.get(name, SAVED), len(groups))
        return {
            "name": printable(name),
            **({"label": _SELF_TEST_INPUTS} if is_self_test_input(name) else {}),
            "group": group,
            "previous": index[before] if before is not None else None,
            "depth": depths.get(name),
            **(_decision(facts) if facts is not None else {}),
        }

    def written_edge(edge: Edge) -> Json:
        names: list[Json] = _NO_NAMES
        if edge.names:
            names = [printable(name) for name in edge.names[:_MAX_NAMES]]
        # Never appended to _NO_NAMES, which all edges share: these names are a list of their own.
        if len(edge.names) > _MAX_NAMES:
            names.append("...")
        return [index[edge.importer], index[edge.imported], _KINDS[edge.kind], edge.line, names]

    return {
        "nodes": list(map(node, index)),
        "groups": _safe(to_json(tuple(groups))),
        "kinds": [kind.value for kind in ImportKind],
        "edges": list(map(written_edge, graph.edges())),
        "mocks": {str(index[each.module]): _mock(each) for each in audit.mocks},
        "findings": _safe(to_json(audit.findings)),
    }


def _decision(facts: ModuleFacts) -> dict[str, Json]:
    """Return the entry of a module on the page."""
    return {
        "action": facts.action.value,
        "rule": _safe(facts.rule),
        "overridden": _safe(facts.overridden_by),
        "provided": to_json(facts.provided_by),
        "record": _safe(facts.record),
        "size": facts.size_bytes,
    }


def _mock(mock: MockFacts) -> Json:
    """Return the entry of a mocked module on the page."""
    uses = [{**record_to_json(use), "name": used_name(use)} for use in mock.uses]
    return {
        "risk": mock.risk.value,
        "observed": mock.observed,
        "runs": mock.runs,
        "uses": _safe(cast(Json, uses)),
        "events": _safe(to_json(mock.events)),
    }


def sources_document(audit: AuditFacts, sources: PackagedSources) -> dict[str, Json]:
    """Return the sources (``texts``) and the reasons for ``missing`` ones.

    Args:
        audit: The audit.
        sources: Sources of the package.
    """
    texts = {printable(module): text for module, text in sources.texts.items()}
    missing = {printable(module): printable(why) for module, why in sources.left_out.items()}
    return {"texts": dict(texts), "missing": dict(missing), "file": printable(audit.path)}


def _safe(value: Json) -> Json:
    """Return a JSON value whose texts have no control characters."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_safe(each) for each in value]
    return {key: _safe(each) for key, each in value.items()} if isinstance(value, dict) else value
