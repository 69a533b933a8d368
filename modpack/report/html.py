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
from dataclasses import replace
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from modpack._version import __version__
from modpack.core.environment import EnvironmentComparison
from modpack.core.json_values import Json
from modpack.core.rules import Action
from modpack.core.text import counted, human_size, printable
from modpack.diagnostics import diagnostic_codes
from modpack.errors import ArchiveError, listed, tally
from modpack.report.audit_facts import AuditFacts, files_of
from modpack.report.facts import (
    ImporterFacts,
    ModuleFacts,
    hook_flags,
    hook_target,
    hooks_by_callable,
)
from modpack.report.finding_groups import count_findings, group_findings
from modpack.report.html_document import PackagedSources, packed, page_document, sources_document
from modpack.report.module_groups import grouped
from modpack.report.verify import VerifyFacts

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


class PageData:
    """The data of the template.

    Args:
        audit: Audit that the page shows.
        verification: The verification of the same package, if its records were verified.
    """

    def __init__(self, audit: AuditFacts, verification: VerifyFacts | None) -> None:
        self.audit = audit
        self._modules_by_path = {path: module for module, path in files_of(audit.modules).items()}
        self._shown = frozenset([*audit.graph.nodes(), *(each.module for each in audit.modules)])
        self.verification = verification
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
    def origin(self) -> tuple[str, str]:
        """The tone and text of the statement about signatures and digests."""
        facts = self.verification
        if facts is None:
            return "warning", "not verified"
        if not facts.passed:
            return "error", "verification failed"
        digests = next((each for each in facts.checks if each.name == "digests"), None)
        if digests is None:
            return "warning", "not signed, no digests"
        # Records that were not read may have changed.
        unread = "" if digests.unit == "records" else " (tensors were not read)"
        if facts.signatures:
            signers = listed(dict.fromkeys(each.signer for each in facts.signatures))
            return "fine", f"signed by {signers}, unchanged since{unread}"
        has_signature = any(each.code == "signature-unchecked" for each in facts.findings)
        signed = "signature not checked" if has_signature else "not signed"
        return "info", f"{signed}, digests match{unread}"

    def importers(self, facts: ModuleFacts) -> tuple[ImporterFacts, ...]:
        """Return the first importers of a module, preferably with a line."""
        # An import with a line can be opened in the source.
        needed = (each for each in facts.importers if each.kind.is_dependency)
        return tuple(sorted(needed, key=lambda each: each.line is None)[:_SHOWN_IMPORTERS])


def html_report(
    audit: AuditFacts,
    sources: PackagedSources | None = None,
    comparison: EnvironmentComparison | None = None,
    verification: VerifyFacts | None = None,
) -> str:
    """Return the HTML report of an audit.

    Args:
        audit: The audit.
        sources: Sources to include. None by default.
        comparison: The export environment, compared with the installed distributions.
        verification: The verification of the same package, whose findings the page shows, too.

    Raises:
        ArchiveError: If the page would be too large for browsers.
    """
    if verification is not None:
        # Both report, for example, malformed pickles.
        findings = dict.fromkeys((*verification.findings, *audit.findings))
        audit = replace(audit, findings=tuple(findings))
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
            view=PageData(audit, verification),
            audit=audit,
            package=audit.package,
            comparison=comparison,
            groups=group_findings(audit.findings),
            codes=diagnostic_codes(),
            hooks=hooks_by_callable(audit.package.hooks),
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
    functions = human_size, counted, tally, count_findings, grouped, hook_target, hook_flags
    environment.filters.update({each.__name__: each for each in functions}, code=_code)
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
