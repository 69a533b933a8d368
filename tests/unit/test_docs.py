"""The documentation: names, links, and examples."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch.package

import modpack
from modpack.pickling import rebuild
from tests.warm_python import WarmPython

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

OF_TORCH_PACKAGE = (
    torch.package,
    torch.package.analyze,
    torch.package.package_exporter.PackagingErrorReason,
    torch.package.PackageExporter,
    torch.package.PackageImporter,
    torch.package.Importer,
    torch.package.OrderedImporter,
    torch.package.GlobGroup,
    torch.package.Directory,
)

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


# -- what is mentioned -----------------------------------------------------------------------


@pytest.mark.parametrize("name", modpack.__all__)
def test_every_public_name_is_in_the_reference(name):
    assert re.search(rf"`{re.escape(name)}\b", text_of("docs/reference/api.md"))


@pytest.mark.parametrize("name", modpack.hooks.__all__)
def test_every_public_name_about_hooks_is_in_the_reference(name):
    assert re.search(rf"`hooks\.{name}\b", text_of("docs/reference/api.md"))


@pytest.mark.parametrize("class_name", ["PackageExporter", "PackageImporter", "Plan"])
def test_every_public_method_is_in_the_reference(class_name):
    members = [name for name in vars(getattr(modpack, class_name)) if not name.startswith("_")]
    page = text_of("docs/reference/api.md")
    assert [name for name in members if not re.search(rf"`{name}\b", page)] == []


@pytest.mark.parametrize("class_name", ["PackageExporter", "PackageImporter"])
def test_every_method_in_the_reference_exists(class_name):
    section = text_of("docs/reference/api.md").split(f"\n## {class_name}\n")[1].split("\n#")[0]
    named = re.findall(r"^\| `(\w+)\(", section, re.MULTILINE)
    assert named
    assert [name for name in named if not hasattr(getattr(modpack, class_name), name)] == []


def test_every_rebuild_name_is_in_the_archive_format():
    page = text_of("docs/reference/archive-format.md")
    assert [name for name in rebuild.DEFINED_IN if f"`{name}`" not in page] == []


def test_every_test_that_a_page_names_exists():
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py"))
    named = re.findall(r"`(test_\w+)`", text_of("docs/explanation/alternatives.md"))
    assert named and [name for name in named if f"def {name}(" not in tests] == []


def test_every_page_can_be_found_from_the_index():
    index = text_of("docs/index.md")
    pages = [page.relative_to(ROOT / "docs") for page in PAGES if ROOT / "docs" in page.parents]
    assert [
        str(p) for p in pages if p.name != "index.md" and f"({p.as_posix()})" not in index
    ] == []


@pytest.mark.parametrize("page", NAMES)
def test_relative_links_lead_somewhere(page):
    assert [target for target in links_in(page) if not leads_somewhere(page, target)] == []


def links_in(page: str) -> list[str]:
    prose = _FENCE.sub("", text_of(page))
    targets = [found["target"] for found in _LINK.finditer(prose)]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def leads_somewhere(page: str, target: str) -> bool:
    path, _, heading = target.partition("#")
    linked = (ROOT / page).parent / path if path else ROOT / page
    if not linked.exists():
        return False
    return not heading or heading in anchors_of(linked.read_text(encoding="utf-8"))


def anchors_of(text: str) -> set[str]:
    """The anchors that headings get where Markdown is commonly shown."""
    headings = (found["text"].lower() for found in _HEADING.finditer(_FENCE.sub("", text)))
    slugs = {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize("page", NAMES)
def test_no_page_mentions_a_path_of_this_machine(page):
    own = {str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix} - {"/", "/usr", "/usr/local"}
    places = [place for place in own if place in text_of(page)]
    assert places == []


@pytest.mark.parametrize("part", OF_TORCH_PACKAGE, ids=lambda part: part.__name__)
def test_every_public_name_of_torch_package_is_compared(part):
    public = [name for name in vars(part) if not name.startswith("_")]
    page = text_of("docs/how-to/migrate-from-torch-package.md")
    assert public and [name for name in public if not re.search(rf"[`.]{name}\b", page)] == []


def test_import_lines_of_the_migration_page_work():
    page = text_of("docs/how-to/migrate-from-torch-package.md")
    command = re.search(r"^\$ (sed .*) before\.py > after\.py$", page, re.MULTILINE)[1]
    table = page.partition("| before | after |")[2].partition("\n\n")[0]
    lines = re.findall(r"^\| `((?:import|from) [^`]*)`", table, re.MULTILINE)
    assert len(lines) >= 8
    done = subprocess.run(
        command, shell=True, input="\n".join(lines), capture_output=True, text=True
    )
    assert "torch" not in done.stdout
    exec(compile(done.stdout, "after.py", "exec"), {})


@pytest.mark.parametrize("page", NAMES)
def test_no_page_installs_modpack_from_an_index_that_has_none(page):
    shown = "".join(block["body"] for block in _FENCE.finditer(text_of(page)))
    is_published = "is not on a package index yet" not in text_of("README.md")
    assert is_published or not re.search(r"pip install[^#\n]* '?modpack\b", shown)


# -- what is shown ---------------------------------------------------------------------------


@dataclass
class Shown:
    """Files and commands on a page, in order.

    A block with ``title="name"`` is a file; in a ``console`` block, what follows ``$`` is a
    command, and the lines below it are its output, where ``...`` matches any text. Sizes,
    versions, digests, and platforms may differ.
    """

    steps: list[tuple[str, str]] = field(default_factory=list)

    @staticmethod
    def on(page: str) -> Shown:
        shown = Shown()
        for block in _FENCE.finditer(text_of(page)):
            title = re.search(r'title="([^"]+)"', block["info"])
            if title:
                shown.steps.append((f"file {title[1]}", block["body"]))
            elif block["info"].strip() == "console":
                shown.steps.extend(_commands(block["body"]))
        return shown

    @property
    def has_commands(self) -> bool:
        return any(step.startswith("$ ") for step, _ in self.steps)


def _commands(body: str) -> Iterator[tuple[str, str]]:
    for command in re.split(r"^(?=\$ )", body, flags=re.MULTILINE):
        line, _, output = command.partition("\n")
        if line:
            yield line, output


RUNNABLE = [page for page in NAMES if Shown.on(page).has_commands]


GROUPS = {
    "docs/how-to/log-to-mlflow.md": pytest.mark.mlflow,
    "docs/how-to/push-to-a-registry.md": pytest.mark.oci,
    "docs/how-to/run-on-ray.md": pytest.mark.ray,
    "docs/how-to/re-export.md": pytest.mark.skipif(
        torch.__version__ < "2.7", reason="fully_shard of torch 2.6 needs a GPU"
    ),
}
"""Marks of the pages whose commands need more than the other tests."""


def test_readme_and_tutorial_show_commands():
    assert {"README.md", "docs/tutorial/first-package.md"} <= set(RUNNABLE)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=GROUPS.get(page, ())) for page in RUNNABLE]
)
def test_commands_on_a_page_print_their_output(
    page, tmp_path, tmp_path_factory, monkeypatch, warm_python
):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    folder = tmp_path
    with ExitStack() as background:
        run_steps(page, folder, warm_python, background)


def run_steps(page: str, folder: Path, warm: WarmPython, background: ExitStack) -> None:
    for step, text in Shown.on(page).steps:
        kind, _, rest = step.partition(" ")
        if kind == "file":
            (folder / rest).parent.mkdir(parents=True, exist_ok=True)
            (folder / rest).write_text(text, encoding="utf-8")
        elif rest.startswith("cd "):
            folder = (folder / rest[3:]).resolve()
        elif found := re.fullmatch(r"(modpack serve .*) &(?: +#.*)?", rest):
            background.enter_context(serving(found[1], folder))
        else:
            printed = output_of(rest, folder, warm)
            if not matches(text, printed):
                logs = "".join(file.read_text() for file in sorted(folder.glob("*.log")))
                running = output_of("ps -eo pid,ppid,stat,etime,wchan:20,args", folder, warm)
                pytest.fail(
                    f"{step}\n--- shown:\n{text}\n--- printed:\n{printed}\n"
                    f"--- logs:\n{logs}\n--- processes:\n{running}"
                )
            if log := re.search(r"modpack serve .* 2> (\S+\.log)", rest):
                wait_until_listening(folder / log[1])


def wait_until_listening(log: Path) -> None:
    """Wait for a server in the background, which may be slow on a busy machine."""
    deadline = time.monotonic() + 180
    while '"listening"' not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)


@contextmanager
def serving(command: str, folder: Path) -> Iterator[None]:
    """Run a server in the background, as soon as it listens, until the page ends."""
    server = subprocess.Popen(
        [sys.executable, "-m", *command.split(), "--log-format", "json"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = []
        for line in server.stderr:
            lines.append(line)
            if '"listening"' in line:
                break
        else:
            raise AssertionError("".join(lines))
        yield
    finally:
        server.terminate()
        server.communicate(timeout=60)


def output_of(command: str, folder: Path, warm: WarmPython) -> str:
    """What a command prints, as one would see it: both streams, in their order."""
    hidden = ("COLUMNS", "PYTHONPATH", "MODPACK_SELF_TEST")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    programs = (str(warm.programs()), str(Path(sys.executable).parent), environment["PATH"])
    environment["PATH"] = os.pathsep.join(programs)
    environment["PYTHONUNBUFFERED"] = "1"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    return re.sub(r"(?m)^\[Gloo\] Rank .*\n", "", done.stdout)  # printed by some releases of torch


def matches(shown: str, printed: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(settled(shown), settled(printed), flags)


def settled(text: str) -> str:
    """Text without what differs from one machine to another."""
    text = re.sub(r"(?m)^( *made with ).*$", r"\1HERE", text)
    text = re.sub(r"\d+(\.\d+)? (k?B|MB)\b", "SIZE", text)
    text = re.sub(r"\b\d:\d\d:\d\d\b", "TIME", text)
    text = re.sub(r"(?<==)[\d.]+\b|\b\d+\.\d+\.\d+(\+\w+)?", "VERSION", text)
    return re.sub(r"\bp?[0-9a-f]{12,}(_\d+)?", "DIGEST", text)


def test_changed_output_is_detected():
    assert matches("a\n...\nz\n", "a\nb\nc\nz\n")
    assert not matches("a\n", "a\nb\n")
    assert matches(
        "x==26.3, 1.5 kB of modpack.packages.p0123456789ab.x",
        "x==9, 12 B of modpack.packages.pba9876543210.x",
    )
    assert not matches("2 modules", "3 modules")


@pytest.fixture(scope="module")
def demo_output(warm_python: WarmPython) -> str:
    return output_of("COLUMNS=88 python examples/demo/__main__.py", ROOT, warm_python)


def test_tutorial_shows_the_output_of_the_demo(demo_output):
    page = text_of("docs/tutorial/first-package.md")
    block = next(b for b in _FENCE.finditer(page) if "Train ──" in b["body"])
    lines = {shape_of(line) for line in demo_output.splitlines()}
    shown = [line for line in block["body"].splitlines() if not _varies(line)]
    assert [line for line in shown if shape_of(line) not in lines] == []


def shape_of(line: str) -> str:
    """A line without what differs from run to run: numbers, digests, temporary names."""
    line = re.sub(r"/\S*/(project/|digits\.modpack)", "FOLDER", line)
    line = re.sub(r"\+(cpu|cu\d+)\b", "", line)
    line = re.sub(r"\bp?[0-9a-f]{12,}(_\d+)?", "DIGEST", line)
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "0", line)).strip()


def _varies(line: str) -> bool:
    """Whether a line is a drawing of the model's own, or marks what was trimmed."""
    return line.strip() == "..." or bool(re.search("[▀▄█▁▂▃▅▆▇]", line))
