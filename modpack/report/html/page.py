"""One HTML page about an audit: everything it needs is in it, and it asks nobody for more.

The page allows itself no connection, no foreign script and no foreign style (a content security
policy with the hashes of its own). Whatever comes out of a package is text to it: escaped where the
page is written, put in as text where a script shows it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from importlib.resources import files
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from modpack._version import __version__
from modpack.core.actions import Action
from modpack.core.environment import EnvironmentComparison
from modpack.core.plan import notes_to_show
from modpack.core.planjson import Json
from modpack.errors import ArchiveError
from modpack.report.auditing.facts import AuditFacts
from modpack.report.html.document import page_document, sources_document
from modpack.report.html.drawn import drawn_graph
from modpack.report.html.sources import PackagedSources, packed
from modpack.report.html.views import View
from modpack.report.wording import counted, human_size, printable

__all__ = ["html_report"]

_MOST_EDGES: Final = 100_000
_MOST_MODULES: Final = 20_000
_STYLES: Final = ("report.css",)
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
"""The page's own scripts, in the order in which they need each other. boot.js unpacks them."""


def html_report(
    audit: AuditFacts,
    sources: PackagedSources | None = None,
    comparison: EnvironmentComparison | None = None,
) -> str:
    """The page: text of an HTML document.

    Args:
        audit: what it is about.
        sources: the sources that it shows; none by default.
        comparison: what the package was made with beside what is here, if that was compared.

    Raises:
        ArchiveError: it would hold more than any browser shows.
    """
    if len(audit.modules) > _MOST_MODULES:
        reason = f"its page would show {len(audit.modules)} modules; {_MOST_MODULES} is most"
        raise ArchiveError(audit.subject, f"{reason}. Remedy: modpack audit")
    edges = sum(1 for _ in audit.graph.edges())
    if edges > _MOST_EDGES:
        reason = f"its page would show {edges} imports; {_MOST_EDGES} is most"
        raise ArchiveError(audit.subject, f"{reason}. Remedy: modpack audit")
    audit = replace(audit, graph=drawn_graph(audit))
    style = "".join(map(_asset, _STYLES))
    boot = _asset("boot.js")
    library = _asset("cytoscape/cytoscape.min.js")
    script = "".join(map(_asset, _SCRIPTS))
    return (
        _environment()
        .get_template("report.html")
        .render(
            view=View(audit),
            audit=audit,
            package=audit.package,
            comparison=comparison,
            notes=notes_to_show(audit.notes),
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
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe_to_read,
    )
    environment.filters["human_size"] = human_size
    environment.filters["counted"] = counted
    environment.filters["code"] = _code
    return environment


def _safe_to_read(value: object) -> object:
    """What is written for a value: no characters that hide, reorder, or that HTML lacks."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return "" if value is None else value


def _code(text: str) -> Markup:
    """Source text, with its lines and tabs."""
    return Markup("{}").format(printable(text, keep="\n\t"))


def _embedded(document: dict[str, Json]) -> Markup:
    """JSON that cannot end the element that holds it."""
    text = json.dumps(document, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _policy(style: str, *scripts: str) -> str:
    allowed = " ".join(map(_hash, scripts))
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", *name.split("/")).read_text("utf-8")
