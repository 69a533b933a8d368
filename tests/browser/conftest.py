"""A headless browser for the HTML reports."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SIZE = {"width": 1400, "height": 900}


HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, which ``make test-browser`` runs."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@dataclass
class Shown:
    """A page in the browser, with the browser's messages.

    Attributes:
        page: The page.
        complaints: Console warnings and errors, and uncaught exceptions.
        requests: The URLs that the page requested, including its own.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def part(self, name: str) -> None:
        """Click the tab of a section."""
        self.page.click(f'nav.tabs a[href="#{name}"]')
        self.page.wait_for_selector(f"#{name}.shown")

    def drawn(self) -> list[str]:
        """Return the labels of the drawn nodes; of packages, the first line."""
        labels = self.page.evaluate(
            "modpackReport.graph.drawing.nodes().map(node => node.data('label').split('\\n')[0])"
        )
        assert isinstance(labels, list)
        return labels

    def click_node(self, label: str) -> None:
        """Click on a node of the graph, or on the title of an expanded package."""
        self.settled()
        x, y = self.page.evaluate(
            """label => {
                const drawing = modpackReport.graph.drawing;
                const node = drawing.nodes().filter(n => n.data('label').split('\\n')[0] === label);
                const stage = document.getElementById('canvas').getBoundingClientRect();
                const box = node[0].renderedBoundingBox({ includeLabels: false });
                const middle = (box.y1 + box.y2) / 2;
                const y = node[0].isParent() ? box.y1 + 12 * drawing.zoom() : middle;
                return [stage.x + (box.x1 + box.x2) / 2, stage.y + y];
            }""",
            label,
        )
        self.page.mouse.click(x, y)

    def until(self, expression: str, argument: object = None) -> None:
        """Wait until a condition is true.

        Playwright's own wait may evaluate text in the page, which the page's policy forbids.
        """
        for _ in range(600):
            if self.page.evaluate(expression, argument):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"it was not to be: {expression}")

    def settled(self) -> None:
        """Wait until the graph is not moving."""
        self.until("!modpackReport.graph.drawing.animated()")

    def details(self, title: str) -> str:
        """Return the text of the details panel once it has this title."""
        self.page.locator("#details h2").filter(has_text=exactly(title)).wait_for()
        return self.page.inner_text("#details")

    def take(self, typed: str) -> None:
        """Search, and open the first result."""
        self.page.fill("#search", typed)
        self.page.keyboard.press("Enter")

    def wait_for_chosen(self) -> None:
        """Wait until a node of the graph is selected."""
        self.until("modpackReport.graph.drawing.nodes('.chosen').length === 1")


def exactly(text: str) -> re.Pattern[str]:
    """Return a pattern that matches exactly this text."""
    return re.compile(f"^{re.escape(text)}$")


Show = Callable[..., Shown]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The installed Chromium, or a related browser."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(
            "these tests need Chromium, and found none of "
            f"{', '.join(NAMES)} on PATH. Run: apt-get install chromium"
        )
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"]
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def show(chromium: Browser) -> Iterator[Show]:
    """Show a file: ``show(path, "#graph")``, with the options of a browser context.

    After the test, the page must have requested only itself, and must have logged no error.
    Violations of the content security policy are logged.
    """
    opened: list[Shown] = []
    contexts = []

    def open_page(file: Path, address: str = "", **options: object) -> Shown:
        options = {"viewport": SIZE, "reduced_motion": "reduce", **options}
        context = chromium.new_context(**options)  # type: ignore[arg-type]
        contexts.append(context)
        shown = Shown(context.new_page())
        page = shown.page
        page.on("pageerror", lambda error: shown.complaints.append(str(error)))
        page.on("console", lambda told: shown.complaints.append(f"{told.type}: {told.text}"))
        page.on("dialog", lambda dialog: shown.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: shown.requests.append(request.url))
        page.goto(file.as_uri() + address)
        if options.get("java_script_enabled", True):
            shown.until("Boolean(window.modpackReport)")
        opened.append(shown)
        return shown

    yield open_page
    for context in contexts:
        context.close()
    assert [complaint for shown in opened for complaint in shown.complaints] == []
    assert [len(shown.requests) for shown in opened] == [1] * len(opened)
