"""Reports of hostile and large packages in a browser."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.hookspec import CallableSpec, HookSpec
from modpack.core.observations import MockRisk
from modpack.core.plan import UseKind
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.text import printable
from modpack.diagnostics import Diagnostic, Severity
from modpack.report.audit_facts import AuditFacts, DistributionFacts, MockFacts
from modpack.report.facts import (
    HookFacts,
    ImporterFacts,
    MainResource,
    ModuleFacts,
    PackageFacts,
    ResourceFacts,
    ResourceKind,
    StorageFacts,
    UseFacts,
)
from modpack.report.html import html_report
from modpack.report.html_document import PackagedSources, packed
from tests.described_packages import package_of

CANARIES = (
    "</script><img src=x onerror=window.canary=1>",
    "\"><svg onload='window.canary=1'>",
    "<!--<script>",
    "javascript:window.canary=1",
    "${window.canary=1}{{7*7}}",
    "__proto__",
    "a&line=3#module=b%",
    "\u202egpj.exe\x00\ud800",
    "." * 5_000,
    "w" * 5_000,
    "",
)
NEVER_THERE = "main img, main script, main svg[onload], aside img, aside script, [onerror]"


def hostile() -> AuditFacts:
    """An audit in which every text is a canary that names a module, too."""
    graph = DependencyGraph()
    graph.mark_root("<model/</script>.pkl>")
    chain = ["<model/</script>.pkl>", *CANARIES]
    for importer, imported in zip(chain, CANARIES, strict=False):
        graph.add_edge(Edge(importer, imported, ImportKind.REQUIRED, 3, CANARIES))
    modules = tuple(map(hostile_module, enumerate(CANARIES)))
    use = [UseFacts(c, c, c, c, 1, UseKind.FUNCTION_BODY, c, (c,)) for c in CANARIES]
    package = PackageFacts(
        CANARIES[0],
        1,
        CANARIES[0],
        CANARIES[1],
        modules,
        tuple(ResourceFacts(c, ResourceKind.FILE, 1, c) for c in CANARIES),
        StorageFacts(1, 1),
        writer=CANARIES[0],
        python=CANARIES[1],
        torch=CANARIES[2],
        platform=CANARIES[3],
        main_resource=MainResource(CANARIES[0], CANARIES[1]),
        hooks=tuple(HookFacts(c, hostile_hook(c)) for c in CANARIES),
        namespace=CANARIES[0],
    )
    return AuditFacts(
        package,
        modules,
        tuple(MockFacts(c, c, (), tuple(use), MockRisk.CALLED) for c in CANARIES),
        tuple(DistributionFacts(c, c, c, True, 1, 1, 1) for c in CANARIES),
        tuple(Diagnostic(Severity.ERROR, c, c, c, c, hint=c) for c in CANARIES),
        notes=tuple(Diagnostic.from_code("dynamic-import", c, c, f"{c}:3") for c in CANARIES),
        graph=graph,
    )


def hostile_module(numbered: tuple[int, str]) -> ModuleFacts:
    number, text = numbered
    action = (Action.INTERN, Action.EXTERN, Action.MOCK)[number % 3]
    importers = (ImporterFacts(text, text, 10**30, ImportKind.REQUIRED),)
    distribution = text if number % 2 else None
    return ModuleFacts(
        text, action, text, text, importers, None, distribution, text, f"{text}.py", 1, text, True
    )


def hostile_hook(text: str) -> HookSpec:
    called = CallableSpec("source", text, f"{text}\n</pre>", text, (text,))
    return HookSpec(text, "forward", (text,), 0, called, (text,), {text: text})


@pytest.fixture
def hostile_page(tmp_path: Path) -> Path:
    sources = PackagedSources(
        {c: packed(printable(f"x = '''{c}\n" * 3, keep="\n")) for c in CANARIES[::2]},
        {"": CANARIES[0]},
    )
    page = tmp_path / "hostile.html"
    page.write_bytes(html_report(hostile(), sources).encode())
    return page


def test_hostile_texts_are_escaped(show, hostile_page):
    shown = show(hostile_page)
    for name in ("graph", "modules", "mocks", "hooks", "environment", "overview"):
        shown.part(name)
        assert shown.page.locator(NEVER_THERE).count() == 0
    assert shown.page.evaluate("window.canary") is None
    assert CANARIES[0] in shown.page.inner_text("h1")


def test_every_hostile_module_opens(show, hostile_page):
    shown = show(hostile_page, "#graph")
    for index in range(len(CANARIES)):
        shown.page.evaluate("index => { location.hash = addressOf(index + 1); }", index)
        name = shown.page.evaluate("index => nodes[index + 1].name", index)
        shown.until("name => document.querySelector('#details h2')?.textContent === name", name)
        assert shown.page.locator(NEVER_THERE).count() == 0
    assert shown.page.evaluate("window.canary") is None


def test_search_finds_hostile_names(show, hostile_page):
    shown = show(hostile_page)
    shown.page.fill("#search", "<")
    assert CANARIES[0] in shown.page.locator("#found li").all_inner_texts()
    assert shown.page.locator("#found img").count() == 0


def test_unknown_fragment_is_ignored(show, hostile_page):
    for address in ("#module=%", "#module=nowhere", "#constructor", "#module=__proto__&line=x"):
        assert show(hostile_page, address).page.is_visible("#overview")


LIBRARIES, PARTS, MODULES = 20, 5, 25
EDGES = 10_000
READABLE = 60
BEARABLE = 450


@pytest.fixture(scope="module")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 2,500 modules of 20 distributions with 10,000 imports."""
    names = [
        f"lib{library:02}.part{part}.m{number:02}"
        for library in range(LIBRARIES)
        for part in range(PARTS)
        for number in range(MODULES)
    ]
    chance, graph = random.Random(5), DependencyGraph()
    graph.mark_root("<model/net.pkl>")
    graph.add_edge(Edge("<model/net.pkl>", names[0], ImportKind.PICKLE))
    for index, name in enumerate(names[1:], start=1):
        importer = names[chance.randrange(max(0, index - 300), index)]
        graph.add_edge(Edge(importer, name, ImportKind.REQUIRED, 1))
    count = len(names)
    while count < EDGES:
        importer, imported = chance.choice(names), chance.choice(names)
        count += graph.add_edge(Edge(importer, imported, ImportKind.REQUIRED, 2))
    modules = tuple(
        ModuleFacts(
            name, Action.INTERN, "policy", distribution=name[:5], version="1.0", size_bytes=900
        )
        for name in names
    )
    page = tmp_path_factory.mktemp("large") / "large.html"
    sources = PackagedSources(dict.fromkeys(names, packed("import os\n" * 90)))
    audit = AuditFacts(package_of("large.modpack"), modules, graph=graph)
    page.write_text(html_report(audit, sources), encoding="utf-8")
    return page


def test_large_graph_starts_with_distributions(show, large_page):
    drawn = show(large_page, "#graph").drawn()
    assert len(drawn) < READABLE
    assert {"lib00", "lib19", "model/net.pkl"} <= set(drawn)


@pytest.mark.parametrize("width", [1400, 400])
def test_labels_of_large_graph_are_readable(show, large_page, width):
    page = show(large_page, "#graph", viewport={"width": width, "height": 900}).page
    assert page.evaluate("13 * modpackReport.graph.drawing.zoom()") >= 12
    in_view = page.evaluate(
        """() => {
            const drawing = modpackReport.graph.drawing;
            return drawing.nodes().filter(node => {
                const { x, y } = node.renderedPosition();
                return x > 0 && y > 0 && x < drawing.width() && y < drawing.height();
            }).map(node => node.data('label'));
        }"""
    )
    assert "model/net.pkl" in in_view
    assert len(in_view) > 5


def test_search_opens_module_of_large_graph(show, large_page):
    shown = show(large_page, "#graph")
    shown.take("lib17.part3.m20")
    told = shown.details("lib17.part3.m20")
    shown.wait_for_chosen()
    assert told.index("Why it is in the package") < told.index("lib00.part0.m00")
    assert len(shown.drawn()) < READABLE + PARTS + MODULES


def test_opened_graph_draws_limited_number_of_nodes(show, large_page):
    shown = show(large_page, "#graph")
    for library in range(LIBRARIES):
        shown.page.evaluate(
            "name => modpackReport.graph.reveal(indexOf.get(name))", f"lib{library:02}.part0.m00"
        )
    assert len(shown.drawn()) < BEARABLE
    assert shown.page.evaluate("modpackReport.graph.drawing.edges().length") < 2 * BEARABLE
    assert shown.page.evaluate("modpackReport.graph.drawing.nodes('.chosen').length") == 1


def test_table_lists_all_modules_of_large_package(show, large_page):
    shown = show(large_page, "#modules")
    assert shown.page.locator("#modules tbody tr").count() >= LIBRARIES * PARTS * MODULES
    assert "lib19 1.0 125" in shown.page.inner_text("#modules")


CODES = {
    "mock-called": 2,
    "missing-module": 1,
    "dynamic-import": 24,
    "data-files-excluded": 9,
    "extern-local": 3,
    "heavy-distribution": 1,
    "optional-import-missing": 28,
    "dynamic-import-library": 17,
    "license-unknown": 5,
    "loader": 1,
}
"""Findings by code, as many as a package of a large library has."""


@pytest.fixture(scope="module")
def findings_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    findings = tuple(
        Diagnostic.from_code(
            code, f"library{n}.models.part{n}", f"{code} {n}", f"library{n}/x.py:3"
        )
        for code, count in CODES.items()
        for n in range(count)
    )
    page = tmp_path_factory.mktemp("findings") / "findings.html"
    audit = AuditFacts(package_of("large.modpack"), (), findings=findings)
    page.write_text(html_report(audit), encoding="utf-8")
    return page


@pytest.mark.parametrize(("width", "most"), [(1400, 1200), (400, 2000)])
def test_page_of_many_findings_is_short(show, findings_page, width, most):
    page = show(findings_page, viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollHeight") < most
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_first_screen_has_verdict_and_all_codes(show, findings_page):
    page = show(findings_page).page
    for locator in (page.locator(".verdict"), *page.locator(".findings summary").all()):
        box = locator.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900


def test_only_errors_are_open_at_first(show, findings_page):
    page = show(findings_page).page
    opened = page.locator(".findings [open] code").all_inner_texts()
    assert opened == ["mock-called", "missing-module"]


def test_findings_open_with_keyboard(show, findings_page):
    page = show(findings_page).page
    text = page.locator("td", has_text="dynamic-import 23")
    assert not text.is_visible()
    page.locator("summary", has_text="library").nth(2).focus()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    assert text.is_visible()


def test_print_shows_folded_findings(show, findings_page):
    page = show(findings_page).page
    page.emulate_media(media="print")
    text = page.locator("td", has_text="dynamic-import 23")
    assert text.evaluate("each => each.checkVisibility({ contentVisibilityAuto: true })")
    assert text.bounding_box()["height"] > 0


def test_findings_unfold_without_scripts(show, findings_page):
    page = show(findings_page, java_script_enabled=False).page
    page.locator("summary", has_text="license-unknown").click()
    assert page.locator("td", has_text="license-unknown 4").is_visible()


CONTRASTS = """() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgb = color => {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const luminance = color => rgb(color)
        .map(each => each / 255)
        .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const paper = element => {
        const color = getComputedStyle(element).backgroundColor;
        return color === 'rgba(0, 0, 0, 0)' ? paper(element.parentElement) : color;
    };
    const low = [];
    for (const element of document.querySelectorAll('#overview *')) {
        const text = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        if (!text || !element.checkVisibility()) continue;
        const both = [luminance(getComputedStyle(element).color), luminance(paper(element))];
        const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
        if (contrast < 4.5) low.push(`${element.outerHTML.slice(0, 80)} ${contrast.toFixed(2)}`);
    }
    return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_overview_have_contrast(show, findings_page, scheme):
    page = show(findings_page, color_scheme=scheme).page
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate(CONTRASTS) == []
