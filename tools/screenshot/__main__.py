"""Take the screenshots of the report page for the documentation: its overview and its graph.

Packages the project of fixtures/audited, writes its page with ``modpack report``, and opens the
page in a headless Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "fixtures" / "audited"
IMAGES = ROOT / "docs" / "images"
OVERVIEW, GRAPH = IMAGES / "audit-overview.png", IMAGES / "audit.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZE = {"width": 1680, "height": 860}
MODULE = "scout.sinks"


def main() -> int:
    """Create the package and its page in a temporary folder, and take the screenshots."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("Chromium is not installed. Run: apt-get install chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = _make_page(Path(folder))
        _take_screenshots(browser, page)
    for image in (OVERVIEW, GRAPH):
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size // 1000} kB")
    return 0


def _make_page(folder: Path) -> Path:
    site, drafts, project = folder / "site", folder / "drafts", folder / "project"
    shutil.copytree(FIXTURE / "project", project)
    path = os.pathsep.join(map(str, (site, drafts, project)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    for command in (
        [FIXTURE / "install.py", site, drafts],
        ["pack.py", project],
        ["-m", "modpack", "report", "first.modpack"],
    ):
        subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=project,
            env=environment,
            check=True,
            stderr=subprocess.DEVNULL,
        )
    return project / "first.html"


def _take_screenshots(browser: str, page: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
        )
        context = started.new_context(
            viewport=SIZE, reduced_motion="reduce", color_scheme="light", device_scale_factor=1
        )
        shown = context.new_page()
        shown.goto(page.as_uri())
        shown.wait_for_function("window.modpackReport")
        shown.screenshot(path=OVERVIEW)
        shown.evaluate("location.hash = '#graph'")
        shown.wait_for_selector("#graph.shown")
        shown.evaluate("name => { location.hash = addressOf(indexOf.get(name)); }", MODULE)
        shown.wait_for_function("modpackReport.graph.drawing.nodes('.chosen').length === 1")
        shown.wait_for_timeout(500)
        shown.screenshot(path=GRAPH)
        started.close()


if __name__ == "__main__":
    raise SystemExit(main())
