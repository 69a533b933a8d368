"""The site of the documentation: what its search finds, and how pages look at two widths."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, TimeoutError

ROOT = Path(__file__).parents[2]

FAQ = "troubleshooting/faq/"
MESSAGES = "troubleshooting/error-messages/"
HUGGING_FACE = "how-to/package-a-transformers-model/"
QUESTIONS = {
    "LoRA": {FAQ, HUGGING_FACE},
    "quantization": {FAQ, HUGGING_FACE},
    "Kubernetes": {FAQ, "how-to/deploy-in-a-container/"},
    "S3": {FAQ, "how-to/load-from-a-url/"},
    "compiled extension": {FAQ, "how-to/native-extensions/"},
    "is Windows supported": {FAQ, "reference/compatibility/"},
    "GPU": {FAQ, "how-to/use-a-gpu/"},
    "FAQ": {FAQ},
    "offline install": {"tutorial/installation/"},
    "MLflow": {FAQ, "how-to/log-to-mlflow/"},
    "No rule matches": {MESSAGES},
    "how big is a package": {FAQ},
    "large models": {FAQ},
    "DataLoader workers": {FAQ, "how-to/send-to-other-processes/"},
    "extern module is not installed": {MESSAGES},
    "the self-test failed": {MESSAGES, "how-to/fix-a-failed-self-test/"},
    "modpack vs torch.save": {"explanation/alternatives/"},
    "modpack vs torch.package": {"explanation/alternatives/"},
    "SBOM": {"how-to/match-the-environment/"},
    "trust policy": {"how-to/trust-policies/"},
    "benchmarks": {"reference/performance/"},
}
"""What a person types into the search, and pages that answer it."""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, which is built and served."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def home(address: str, chromium: Browser) -> Iterator[Page]:
    """The home page in a wide window."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def found(page: Page, address: str, question: str) -> list[str]:
    """Return the paths of the pages that the search lists, best first."""
    page.goto(address)
    page.click(".md-search__input")
    result = page.locator(".md-search-result__item > a")
    for _ in range(10):  # what is typed before the index is loaded may find nothing
        page.fill(".md-search__input", "")
        page.fill(".md-search__input", question)
        try:
            result.first.wait_for(timeout=5000)
            break
        except TimeoutError:
            continue
    links = result.evaluate_all("all => all.map(a => a.href)")
    return [link.removeprefix(address).partition("?")[0].partition("#")[0] for link in links]


@pytest.mark.parametrize("question", QUESTIONS)
def test_search_finds_an_answer(home: Page, address: str, question: str) -> None:
    best = found(home, address, question)[:3]
    assert QUESTIONS[question] & set(best), best


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "python ../net.modpack rows.json"),
        ("reference/api/", "What help() prints"),
        ("reference/cli/", "Usage: modpack export"),
        ("project/changelog/", "Keep a Changelog"),
    ],
)
def test_page_has_its_generated_part(home: Page, address: str, path: str, text: str) -> None:
    home.goto(address + path)
    assert text in home.inner_text("article")


CLIPPED = """
    () => [...document.querySelectorAll('article *')].filter(each => {
        const style = getComputedStyle(each);
        const scrolls = /auto|scroll/.test(style.overflowX);
        return each.clientWidth > 1 && each.scrollWidth > each.clientWidth + 1 && !scrolls
            && style.overflowX !== 'visible' && each.offsetParent !== null;
    }).map(each => each.outerHTML.slice(0, 200))
"""
"""The elements whose text is wider than what they show, and that cannot be scrolled."""


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("path", ["", HUGGING_FACE, "how-to/hooks/"])
def test_page_fits_the_window(
    address: str, chromium: Browser, tmp_path: Path, path: str, width: int
) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(address + path)
    page.screenshot(path=tmp_path / "page.png")
    whole = page.evaluate("document.documentElement.scrollWidth")
    clipped = page.evaluate(CLIPPED)
    context.close()
    assert whole <= width
    assert clipped == []
