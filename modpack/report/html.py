"""One HTML page about an audit. The page is complete and loads nothing from the network.

A content security policy forbids connections, and all scripts and styles except the page's own,
whose hashes it lists. Text from a package is never markup: it is escaped when the page is written,
and scripts insert it as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from modpack._version import __version__
from modpack.core.environment import EnvironmentComparison
from modpack.core.hookspec import HookSpec
from modpack.core.json_values import Json
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.text import counted, human_size, printable
from modpack.diagnostics import Severity
from modpack.errors import ArchiveError
from modpack.report.audit_facts import AuditFacts, MockFacts, files_of
from modpack.report.facts import (
    ImporterFacts,
    ModuleFacts,
    hook_flags,
    hook_target,
    hooks_by_callable,
)
from modpack.report.html_document import (
    PackagedSources,
    packed,
    page_document,
    sources_document,
)
from modpack.report.module_groups import ModuleGroup, grouped

_SHOWN_IMPORTERS: Final = 3
_MAX_EDGES: Final = 100_000
_MAX_MODULES: Final = 20_000
_SCRIPTS: Final = (
    "model.js",
    "elements.js",
    "tree.js",
    "layout.js",
    "drawing.js",
    "graph.js",
    "source.js",
    "details.js",
    "page.js",
)
"""Scripts of the page, in the order of their dependencies. boot.js unpacks them."""


@dataclass(frozen=True)
class HookView:
    """Hooks of one kind with the same callable.

    Attributes:
        resource: Record of the object that they are registered on.
        spec: The first of them.
        targets: Their targets.
        flags: Their registration options.
    """

    resource: str
    spec: HookSpec
    targets: tuple[str, ...]
    flags: str


class PageData:
    """The data of the template.

    Args:
        audit: Audit that the page shows.
    """

    def __init__(self, audit: AuditFacts) -> None:
        self.audit = audit
        self._modules_by_path = {path: module for module, path in files_of(audit.modules).items()}
        self._shown = frozenset([*audit.graph.nodes(), *(each.module for each in audit.modules)])
        self.severities = Counter(finding.severity for finding in audit.findings)
        self.actions = Counter(facts.action for facts in audit.modules)

    def module_address(self, name: str, line: int | None = None) -> str:
        """Return the address of a module, or of a line of its source. Empty for other names."""
        if name not in self._shown:
            return ""
        address = f"#module={quote(printable(name), safe='')}"
        return f"{address}&line={line}" if line is not None else address

    def location_address(self, location: str) -> str:
        """Return the address of ``path:line``. Empty if the path belongs to no module."""
        path, _, line = location.rpartition(":")
        # Windows paths contain colons, and packages may contain anything.
        if not (line.isascii() and line.isdigit() and len(line) < 10):
            path, line = location, ""
        module = self._modules_by_path.get(path)
        return "" if module is None else self.module_address(module, int(line) if line else None)

    @property
    def verdict(self) -> str:
        """The outcome, as a short text."""
        counts = [
            counted(self.severities[severity], severity.value)
            for severity in Severity
            if self.severities[severity]
        ]
        return ", ".join(counts) or "no findings"

    @property
    def alarming(self) -> int:
        """Number of errors and warnings."""
        return self.severities[Severity.ERROR] + self.severities[Severity.WARNING]

    @property
    def worst(self) -> str:
        """The most severe of all findings. ``fine`` without errors and warnings."""
        if self.severities[Severity.ERROR]:
            return Severity.ERROR.value
        return Severity.WARNING.value if self.severities[Severity.WARNING] else "fine"

    def groups(self, action: Action) -> tuple[tuple[ModuleGroup, tuple[ModuleFacts, ...]], ...]:
        """Return the modules with one decision, by group."""
        return grouped(self.audit.modules, action)

    def importers(self, facts: ModuleFacts) -> tuple[ImporterFacts, ...]:
        """Return the first importers of a module, preferably with a line."""
        # An import with a line can be opened in the source.
        needed = (each for each in facts.importers if each.kind.is_dependency)
        return tuple(sorted(needed, key=lambda each: each.line is None)[:_SHOWN_IMPORTERS])

    def importers_of_mock(self, mock: MockFacts) -> tuple[ImporterFacts, ...]:
        """Return the importers of a mocked module, except its own submodules."""
        return tuple(each for each in mock.importers if each.kind is not ImportKind.PARENT)

    def hooks(self) -> tuple[HookView, ...]:
        """Return the hooks of saved objects, grouped by kind and callable."""
        alike = hooks_by_callable(self.audit.package.hooks)
        return tuple(
            HookView(
                resource,
                specs[0],
                tuple(dict.fromkeys(map(hook_target, specs))),
                hook_flags(specs[0]),
            )
            for (resource, *_), specs in alike.items()
        )


def html_report(
    audit: AuditFacts,
    sources: PackagedSources | None = None,
    comparison: EnvironmentComparison | None = None,
) -> str:
    """Return the HTML report of an audit.

    Args:
        audit: The audit.
        sources: Sources to include. None by default.
        comparison: The export environment, compared with the installed distributions.

    Raises:
        ArchiveError: If the page would be too large for browsers.
    """
    # Browsers would take too long to lay out a larger graph.
    edges = sum(1 for _ in audit.graph.edges())
    for number, noun, limit in (
        (len(audit.modules), "modules", _MAX_MODULES),
        (edges, "imports", _MAX_EDGES),
    ):
        if number > limit:
            reason = f"the report would show {number} {noun}, and the limit is {limit}"
            raise ArchiveError(audit.path, reason, hint="Run modpack audit instead.")
    # Assets are hashed as they are embedded, so the policy matches their exact text.
    style = _asset("report.css")
    boot = _asset("boot.js")
    library = _asset("cytoscape/cytoscape.min.js")
    script = "".join(map(_asset, _SCRIPTS))
    return (
        _environment()
        .get_template("report.html")
        .render(
            view=PageData(audit),
            audit=audit,
            package=audit.package,
            comparison=comparison,
            notes=[note for note in audit.notes if note.severity is not Severity.INFO],
            actions=tuple(Action),
            mocked=Action.MOCK,
            version=__version__,
            policy=_policy(style, boot, library, script),
            style=Markup(style),
            boot=Markup(boot),
            library=packed(library),
            script=packed(script),
            document=packed(json.dumps(page_document(audit), separators=(",", ":"))),
            sources=_embedded(sources_document(audit, sources or PackagedSources())),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        # A misspelled name in a template is an error instead of an empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Each value of a template passes here, so that no template can forget it.
        finalize=_printable_value,
    )
    environment.filters["human_size"] = human_size
    environment.filters["counted"] = counted
    environment.filters["code"] = _code
    return environment


def _printable_value(value: object) -> object:
    """Return a value without invisible, reordering, or invalid characters."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return "" if value is None else value


def _code(text: str) -> Markup:
    """Return source text with its lines and tabs."""
    return Markup("{}").format(printable(text, keep="\n\t"))


def _embedded(document: dict[str, Json]) -> Markup:
    """Return JSON that cannot close the surrounding element."""
    text = json.dumps(document, separators=(",", ":"))
    # Inside a script element, only these characters could end it or start a comment.
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _policy(style: str, *scripts: str) -> str:
    allowed = " ".join(map(_hash, scripts))
    return (
        # default-src does not cover the last two directives.
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    # The policy allows scripts by content, so no text that slips into the page can run.
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", *name.split("/")).read_text("utf-8")
