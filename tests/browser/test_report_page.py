"""Contents and controls of the page of ``modpack report`` in a browser."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from modpack import PackageExporter
from modpack.cli import cli

SOURCES = {
    "pageshop/__init__.py": "",
    "pageshop/net.py": (
        "import torch\n"
        "import pagespy\n"
        "from .tools import weigh\n"
        "try:\n"
        "    import pageabsent\n"
        "except ImportError:\n"
        "    pass\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.line = torch.nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        pagespy.log('forward')  # <b>not bold</b>\n"
        "        return weigh(self.line(x))\n"
    ),
    "pageshop/tools/__init__.py": "from .scale import weigh\n",
    "pageshop/tools/scale.py": "from . import units\ndef weigh(x): return x * units.KILO\n",
    "pageshop/tools/units.py": "KILO = 1000\n",
    "pagespy.py": "def log(text): pass\n",
}
HOOK = "def clip_output(module, args, output):\n    return output.clamp(-1, 1)\n"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A report of a package with interned, extern, and mocked modules, and a hook."""
    project = tmp_path_factory.mktemp("page-project")
    for name, text in {**SOURCES, "pagehooks.py": HOOK}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    sys.path.insert(0, str(project))
    importlib.invalidate_caches()
    package, page = project / "shop.modpack", project / "shop.html"
    with PackageExporter(package) as exporter:
        exporter.mock("pagespy")
        exporter.use_preset("pinned")
        net = importlib.import_module("pageshop.net").Net()
        net.line.register_forward_hook(importlib.import_module("pagehooks").clip_output)
        net.line.register_forward_hook(lambda module, args, output: output + 1)
        exporter.save_model("model", "net.pkl", net)
    done = CliRunner().invoke(cli, ["report", str(package), "-o", str(page)])
    assert done.exit_code == 0, done.output
    yield page
    sys.path.remove(str(project))
    for name in [n for n in sys.modules if n.startswith("page")]:
        del sys.modules[name]


def test_page_starts_with_findings_and_contents(show, page_file):
    overview = show(page_file).page.inner_text("#overview")
    assert "mock-not-observed" in overview
    assert "interned" in overview
    assert "self-test-missing" in overview


def test_tab_shows_only_its_part(show, page_file):
    shown = show(page_file)
    for name in ("graph", "modules", "mocks", "hooks", "environment", "overview"):
        shown.part(name)
        assert shown.page.locator("main > section:visible").evaluate_all(
            "parts => parts.map(part => part.id)"
        ) == [name]


def test_mocks_tab_shows_risks_and_users(show, page_file):
    shown = show(page_file, "#mocks")
    told = shown.page.inner_text("#mocks")
    assert "pagespy" in told
    assert "not observed" in told
    assert "pagespy.log" in told
    assert "pageshop/net.py:2" in told


def test_hooks_tab_shows_targets_and_sources(show, page_file):
    told = show(page_file, "#hooks").page.inner_text("#hooks")
    assert "pagehooks.clip_output" in told
    assert "line" in told
    assert "lambda module, args, output: output + 1" in told


def test_environment_tab_compares_with_current_one(show, page_file):
    rows = show(page_file, "#environment").page.locator("table.environment tr").all_inner_texts()
    assert any(row.startswith("torch") and "same" in row for row in rows)


def test_search_finds_module_and_enter_shows_it(show, page_file):
    shown = show(page_file)
    shown.page.keyboard.press("/")
    shown.page.keyboard.type("scale")
    found = shown.page.locator("#found li")
    assert found.first.inner_text() == "pageshop.tools.scale"
    shown.page.keyboard.press("Enter")
    assert "pageshop/tools/scale.py" in shown.details("pageshop.tools.scale")
    assert not shown.page.is_visible("#found")


def test_arrow_keys_move_through_search_results(show, page_file):
    shown = show(page_file)
    shown.page.fill("#search", "pageshop.tools")
    shown.page.keyboard.press("ArrowDown")
    chosen = shown.page.inner_text('#found [aria-selected="true"]')
    assert chosen == shown.page.locator("#found li").nth(1).inner_text()
    shown.page.keyboard.press("Enter")
    assert shown.details(chosen)


def test_search_without_result_shows_message(show, page_file):
    shown = show(page_file)
    shown.page.fill("#search", "nowhere")
    assert shown.page.inner_text("#found") == "no such module"
    shown.page.keyboard.press("Enter")
    assert shown.page.inner_text("#found") == "no such module"


def test_details_show_import_chain_with_locations(show, page_file):
    shown = show(page_file, "#module=pageshop.tools.units")
    steps = shown.page.locator("#details .steps li").all_inner_texts()
    assert [step.split()[0] for step in steps] == [
        "<model/net.pkl>",
        "pageshop.net",
        "pageshop.tools",
        "pageshop.tools.scale",
        "pageshop.tools.units",
    ]
    assert "pickle" in steps[1]
    assert "pageshop/net.py:3" in steps[2]
    assert "pageshop/tools/scale.py:1" in steps[4]


def test_details_show_rule_importers_and_imports(show, page_file):
    told = show(page_file, "#module=pageshop.tools.scale").details("pageshop.tools.scale")
    assert "your own code is interned" in told
    assert "Needed by (" in told
    assert "pageshop/tools/__init__.py:1" in told
    assert "pageshop.tools.units" in told.split("Imports (")[1]


def test_details_of_mock_show_risk_and_uses(show, page_file):
    told = show(page_file, "#module=pagespy").details("pagespy")
    assert "not observed" in told
    assert "Net.forward" in told


def test_details_of_absent_module_say_that_it_is_absent(show, page_file):
    told = show(page_file, "#module=pageabsent").details("pageabsent")
    assert "not in the package" in told
    assert "Neither in the package nor extern" in told
    assert "pageshop/net.py:5" in told


def test_source_is_shown_unchanged_with_line_numbers(show, page_file):
    shown = show(page_file, "#module=pageshop.net")
    shown.page.wait_for_selector("#details .code")
    assert shown.page.inner_text("#details .code") == SOURCES["pageshop/net.py"]
    assert shown.page.inner_text("#details .numbers").split() == [str(n) for n in range(1, 15)]


def test_location_link_shows_its_line(show, page_file):
    shown = show(page_file, "#module=pageshop.tools")
    shown.page.click("#details .steps .place >> text=pageshop/net.py:3")
    assert shown.details("pageshop.net")
    shown.until(
        """() => {
            if (document.querySelector('#details .marker') === null) return false;
            const marker = document.querySelector('#details .marker').getBoundingClientRect();
            const code = document.querySelector('#details .code').getBoundingClientRect();
            return Math.abs(marker.y - code.y - 2 * marker.height) < 2 && marker.height > 5;
        }"""
    )


def test_escape_closes_details_and_back_reopens_them(show, page_file):
    shown = show(page_file, "#module=pageshop.net")
    shown.page.keyboard.press("Escape")
    shown.page.wait_for_selector("#details", state="hidden")
    shown.page.go_back()
    assert shown.details("pageshop.net")


def test_module_link_in_table_shows_details(show, page_file):
    shown = show(page_file, "#modules")
    shown.page.click("#modules summary >> text=torch")
    shown.page.click("#modules a.module >> text=/^torch$/")
    assert "torch or modpack" in shown.details("torch")


def test_graph_starts_collapsed_and_click_expands_package(show, page_file):
    shown = show(page_file, "#graph")
    before = shown.drawn()
    assert "model/net.pkl" in before
    assert "tools" in before
    assert "units" not in before
    shown.click_node("tools")
    assert {"units", "scale", "__init__"} <= set(shown.drawn())
    assert "3 modules" in shown.details("pageshop.tools")


def test_click_on_module_of_graph_shows_its_chain(show, page_file):
    shown = show(page_file, "#graph")
    shown.click_node("tools")
    shown.click_node("units")
    assert shown.details("pageshop.tools.units")
    chain = shown.page.evaluate(
        "modpackReport.graph.drawing.edges('.chain').map(e => e.target().data('label'))"
    )
    assert set(chain) == {"net", "__init__", "scale", "units"}


def test_search_expands_and_selects_module_in_graph(show, page_file):
    shown = show(page_file, "#graph")
    shown.take("units")
    shown.wait_for_chosen()
    assert "units" in shown.drawn()
    in_view = shown.page.evaluate(
        """() => {
            const { x, y } = modpackReport.graph.drawing.nodes('.chosen').renderedPosition();
            const stage = document.getElementById('canvas').getBoundingClientRect();
            return x > 0 && y > 0 && x < stage.width && y < stage.height;
        }"""
    )
    assert in_view


def test_click_collapses_expanded_package(show, page_file):
    shown = show(page_file, "#graph")
    before = sorted(shown.drawn())
    shown.click_node("tools")
    shown.page.click("#collapse")
    assert sorted(shown.drawn()) == before
    shown.page.click("#collapse-all")
    assert "net" not in shown.drawn()


def test_python_and_torch_are_drawn_on_demand(show, page_file):
    shown = show(page_file, "#graph")
    assert "torch" not in shown.drawn()
    shown.page.check("#python")
    assert "torch" in shown.drawn()


def test_search_shows_hidden_decisions_again(show, page_file):
    shown = show(page_file, "#graph")
    shown.page.uncheck('[data-action="mock"]')
    assert "pagespy" not in shown.drawn()
    shown.take("pagespy")
    shown.wait_for_chosen()
    assert "pagespy" in shown.drawn()
    assert shown.page.is_checked('[data-action="mock"]')


def test_colors_distinguish_decisions(show, page_file):
    shown = show(page_file, "#graph")
    colors = shown.page.evaluate(
        """() => modpackReport.graph.drawing.nodes(':childless').map(
            node => [node.data('decision'), node.style('border-color')])"""
    )
    by_decision = {decision: color for decision, color in colors if decision != "mock"}
    assert len(set(by_decision.values())) == len(by_decision) > 1


def test_graph_works_with_keyboard(show, page_file):
    shown = show(page_file, "#graph")
    shown.page.focus("#canvas")
    shown.page.keyboard.press("ArrowRight")
    first = shown.page.inner_text("#status")
    shown.page.keyboard.press("ArrowRight")
    assert first != shown.page.inner_text("#status") != ""
    before = shown.page.evaluate("modpackReport.graph.drawing.zoom()")
    shown.page.keyboard.press("+")
    assert shown.page.evaluate("modpackReport.graph.drawing.zoom()") > before
    shown.page.evaluate("modpackReport.graph.choose(tree.leafOf[indexOf.get('pageshop.net')])")
    shown.page.keyboard.press("Enter")
    assert shown.details("pageshop.net")
    shown.page.keyboard.press("Backspace")
    assert "net" not in shown.drawn()


def test_theme_follows_system_and_can_be_switched(show, page_file):
    dark = show(page_file, "#graph", color_scheme="dark").page
    light = show(page_file, color_scheme="light").page
    paper = "getComputedStyle(document.body).backgroundColor"
    assert dark.evaluate(paper) != light.evaluate(paper) == "rgb(255, 255, 255)"
    text = "modpackReport.graph.drawing.nodes()[0].style('color')"
    before = dark.evaluate(text)
    dark.click("#theme")
    assert dark.evaluate(paper) == "rgb(255, 255, 255)"
    assert dark.evaluate(text) != before


def test_printed_page_shows_all_parts_except_graph(show, page_file):
    page = show(page_file).page
    page.emulate_media(media="print")
    visible = page.locator("main > section:visible").evaluate_all("all => all.map(p => p.id)")
    assert visible == ["overview", "modules", "mocks", "hooks", "environment"]
    assert not page.is_visible("#details")


def test_page_without_scripts_shows_all_but_graph_and_sources(show, page_file):
    page = show(page_file, java_script_enabled=False).page
    text = page.inner_text("main")
    assert "mock-not-observed" in text
    assert "pagehooks.clip_output" in text
    assert "pageshop.tools.scale" in text
    assert page.is_visible("noscript")


def test_narrow_window_shows_details_first(show, page_file):
    shown = show(page_file, viewport={"width": 420, "height": 800})
    assert not shown.page.is_visible("#details")
    shown.take("units")
    assert shown.details("pageshop.tools.units")
    shown.page.click("#details .shut")
    shown.page.wait_for_selector("#details", state="hidden")
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 420


SIZES = ({"width": 1400, "height": 900}, {"width": 400, "height": 800})
PARTS = ("overview", "graph", "modules", "mocks", "hooks", "environment")
LEAST_LABEL = """() => {
    const drawing = modpackReport.graph.drawing;
    const sizes = drawing.nodes().map(node => parseFloat(node.style('font-size')));
    return Math.min(...sizes) * drawing.zoom();
}"""
CUT = """() => {
    const scrolled = element => element.closest('pre, .lines, .unseen, #canvas') !== null;
    const cut = [];
    for (const element of document.querySelectorAll('body *')) {
        if (!element.checkVisibility() || scrolled(element)) continue;
        const { left, right, width } = element.getBoundingClientRect();
        if (width > 0 && (left < -1 || right > innerWidth + 1)) cut.push(element.outerHTML);
        if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0
            && getComputedStyle(element).overflowX !== 'visible') cut.push(element.outerHTML);
    }
    return cut.map(text => text.slice(0, 120));
}"""
BROKEN_WORDS = """() => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const broken = [];
    while (walker.nextNode()) {
        const text = walker.currentNode;
        const parent = text.parentElement;
        if (!parent.checkVisibility() || parent.closest('pre, .unseen')) continue;
        for (const word of text.data.matchAll(/[A-Za-z0-9]+/g)) {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            const lines = new Set([...range.getClientRects()].map(box => box.y));
            if (lines.size > 1) broken.push(word[0]);
        }
    }
    return broken;
}"""


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size['width']} px")
def test_labels_of_first_view_are_readable(show, page_file, size):
    shown = show(page_file, "#graph", viewport=size)
    assert shown.page.evaluate(LEAST_LABEL) >= 12


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size['width']} px")
def test_labels_are_readable_after_expanding_packages(show, page_file, size):
    shown = show(page_file, "#graph", viewport=size)
    shown.page.evaluate("modpackReport.graph.reveal(indexOf.get('pageshop.tools.units'))")
    assert shown.page.evaluate(LEAST_LABEL) >= 12


@pytest.mark.parametrize("part", PARTS)
def test_narrow_window_cuts_nothing_and_breaks_no_word(show, page_file, part):
    shown = show(page_file, f"#{part}", viewport={"width": 400, "height": 800})
    shown.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert shown.page.evaluate(CUT) == []
    assert shown.page.evaluate(BROKEN_WORDS) == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_narrow_window_cuts_nothing_of_details(show, page_file):
    shown = show(page_file, "#module=pageshop.tools.units", viewport={"width": 400, "height": 800})
    assert shown.details("pageshop.tools.units")
    assert shown.page.evaluate(CUT) == []
    assert shown.page.evaluate(BROKEN_WORDS) == []


def test_narrow_window_shows_all_tabs_without_scrolling(show, page_file):
    shown = show(page_file, viewport={"width": 400, "height": 800})
    for name in PARTS:
        box = shown.page.locator(f'nav.tabs a[href="#{name}"]').bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= 400
        shown.part(name)


def test_graph_uses_whole_width_without_details(show, page_file):
    shown = show(page_file, "#graph")
    width = "document.querySelector('main').getBoundingClientRect().width"
    canvas = "document.querySelector('#canvas').getBoundingClientRect().width"
    assert shown.page.evaluate(width) == 1400
    assert shown.page.evaluate(canvas) > 1300
    shown.take("units")
    shown.details("pageshop.tools.units")
    assert shown.page.evaluate(width) < 1000
    shown.page.keyboard.press("Escape")
    shown.page.wait_for_selector("#details", state="hidden")
    assert shown.page.evaluate(width) == 1400


def test_graph_of_narrow_window_runs_from_top_to_bottom(show, page_file):
    shown = show(page_file, "#graph", viewport={"width": 400, "height": 800})
    width = shown.page.evaluate("modpackReport.graph.drawing.elements().boundingBox().w")
    assert width < 400
    shown.page.set_viewport_size({"width": 1400, "height": 900})
    shown.until(
        "least => modpackReport.graph.drawing.elements().boundingBox().w > least", width * 1.5
    )


def test_legend_explains_every_mark_of_graph(show, page_file):
    shown = show(page_file, "#graph")
    legend = shown.page.inner_text("#graph")
    for text in ("interned", "mocked", "saved", "closed", "open", "self-test called", "several"):
        assert text in legend
    border = shown.page.evaluate(
        """() => modpackReport.graph.drawing.nodes()[0].data('risk', 1).style('border-color')"""
    )
    mark = shown.page.evaluate("getComputedStyle(document.querySelector('.legend .called')).stroke")
    assert mark.replace(" ", "") == border.replace(" ", "")
