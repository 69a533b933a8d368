"""The HTML report as text: complete, self-contained, and escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser

import pytest

from modpack.core.environment import EnvironmentComparison, EnvironmentRow, RowStatus
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic, Severity
from modpack.errors import ArchiveError
from modpack.report.audit import audit_package
from modpack.report.audit_facts import AuditFacts
from modpack.report.facts import ImporterFacts, ModuleFacts
from modpack.report.html import html_report
from modpack.report.html_document import PackagedSources, read_sources
from tests.described_packages import package_of

HOSTILE = "</script></style><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(made) -> str:
    audit = audit_package(made.file)
    return html_report(audit, read_sources(made.file, audit))


class Addresses(HTMLParser):
    """Collects whatever a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        named = ("src", "href", "action", "data", "srcset", "poster")
        self.found += [value or "" for name, value in attrs if name in named]


def contents(page: str, tag: str, attributes: str = "") -> list[str]:
    return re.findall(rf"<{tag}{attributes}>(.*?)</{tag}>", page, re.DOTALL)


def policy_of(page: str) -> dict[str, str]:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    directives = (each.split(maxsplit=1) for each in policy.replace("&#39;", "'").split(";"))
    return {name: "".join(value) for name, *value in directives}


def unpacked(page: str, name: str) -> str:
    """What boot.js unpacks."""
    (text,) = contents(page, "script", f' id="{name}" type="text/plain"')
    return zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS).decode()


def hash_of(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def test_page_policy_allows_own_scripts_and_style_only(page):
    policy = policy_of(page)
    packed = [unpacked(page, "library"), unpacked(page, "script")]
    scripts, styles = contents(page, "script") + packed, contents(page, "style", ' id="[^"]*"')
    assert policy["default-src"] == "'none'"
    assert policy["script-src"].split() == [hash_of(script) for script in scripts]
    assert policy["style-src"].split() == [hash_of(style) for style in styles]
    assert "unsafe" not in str(policy)


def test_page_has_no_external_references(page):
    addresses = Addresses()
    addresses.feed(page)
    assert addresses.found
    assert [address for address in addresses.found if not address.startswith("#")] == []
    assert "url(" not in "".join(contents(page, "style", ' id="[^"]*"'))
    assert "@import" not in page


def test_page_has_no_inline_styles_or_handlers(page):
    without_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<[^>]*\s(style|on\w+)=", without_scripts)


def test_page_document_has_every_module(page, made):
    names = {node["name"] for node in json.loads(unpacked(page, "data"))["nodes"]}
    assert set(made.plan.decisions) <= names


def test_page_contains_sources(page):
    (data,) = contents(page, "script", ' id="sources" type="application/json"')
    assert "reportshop.till" in json.loads(data)["texts"]


def test_page_escapes_package_texts():
    audit = AuditFacts(
        package_of(HOSTILE),
        (ModuleFacts(HOSTILE, Action.INTERN, HOSTILE, distribution=HOSTILE, version=HOSTILE),),
        findings=(Diagnostic.from_code("dynamic-import", HOSTILE, HOSTILE, HOSTILE),),
    )
    page = html_report(audit, PackagedSources({}, {HOSTILE: HOSTILE}))
    assert "<img" not in page
    assert "&lt;img src=x" in page
    assert page.count("<script") == 5
    assert page.encode()


def test_verdict_is_most_severe_finding():
    assert verdict_of() == ("fine", "no findings")
    assert verdict_of(Severity.INFO) == ("fine", "1 info")
    assert verdict_of(Severity.WARNING, Severity.INFO) == ("warning", "1 warning, 1 info")
    assert verdict_of(Severity.ERROR, Severity.ERROR) == ("error", "2 errors")


def verdict_of(*severities: Severity) -> tuple[str, str]:
    findings = tuple(
        Diagnostic.from_code("storage-unused", "x", "x", severity=severity)
        for severity in severities
    )
    page = html_report(AuditFacts(package_of(), (), findings=findings))
    ((kind, text),) = re.findall(r'<p class="verdict (\w+)">([^<]*)', page)
    return kind, text


def test_page_shows_environment_comparison():
    row = EnvironmentRow("numpy", "2.1.0", "1.26.4", RowStatus.DIFFERENT, (), "numpy==2.1.0")
    page = html_report(AuditFacts(package_of(), ()), comparison=EnvironmentComparison((row,)))
    assert "1.26.4" in page
    assert "pip install" in page
    assert "numpy==2.1.0" in page


def test_page_of_torch_package_archive(tmp_path):
    from torch.package import PackageExporter

    file = tmp_path / "theirs.pt"
    with PackageExporter(file) as exporter:
        exporter.save_source_string("shop.till", "import json\n")
        exporter.extern("json")
    audit = audit_package(file)
    page = html_report(audit, read_sources(file, audit))
    assert "shop.till" in page
    assert "torch.package" in page


def test_page_is_reproducible(made):
    audit = audit_package(made.file)
    assert html_report(audit) == html_report(audit_package(made.file))


def test_page_shows_chains_from_saved_objects_before_self_test_inputs():
    inputs, saved = "<.data/modpack/self_test/0/inputs.pkl>", "<model/net.pkl>"
    graph = DependencyGraph()
    for root in (inputs, saved):
        graph.mark_root(root)
        graph.add_edge(Edge(root, "torch", ImportKind.PICKLE))
    importers = tuple(
        ImporterFacts(root, None, None, ImportKind.PICKLE) for root in (inputs, saved)
    )
    modules = (ModuleFacts("torch", Action.EXTERN, importers=importers),)
    page = html_report(AuditFacts(package_of(), modules, graph=graph))
    nodes = json.loads(unpacked(page, "data"))["nodes"]
    by_name = {node["name"]: node for node in nodes}
    assert by_name[inputs]["label"] == "inputs of the self-test"
    assert nodes[by_name["torch"]["previous"]]["name"] == saved


@pytest.mark.parametrize("many", ["modules", "imports"])
def test_page_rejects_too_many_modules(many):
    graph = DependencyGraph()
    modules = [ModuleFacts(f"m{number}", Action.INTERN) for number in range(20_001)]
    if many == "imports":
        modules = modules[:2]
        for line in range(100_001):
            graph.add_edge(Edge("m0", "m1", ImportKind.REQUIRED, line))
    with pytest.raises(ArchiveError, match=f"{many}, and the limit is .*. Run modpack audit"):
        html_report(AuditFacts(package_of(), tuple(modules), graph=graph))
