"""The worked examples of the how-to page: hooked, packaged, reloaded in a clean process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "hooks.md"
EXAMPLES = {
    "clip": "a gradient clipper on every parameter",
    "norms": "a gradient-norm logger",
    "guard": "a hook whose effect depends on the tensor's value, through a closure",
    "shapes": "printing each layer's output shape from a wrapper",
    "features": "a feature-map extractor that collects into a dict",
    "watch": "attention maps and their gradients, by bound methods of a wrapper object",
    "change": "a pre-forward hook that changes inputs, a forward hook that changes outputs",
    "order": "hook order and handle.remove()",
    "graph": "leaf against intermediate tensors",
    "compress": "a DDP comm hook",
    "profiler": "a global profiler hook, opt-in",
    "runtime": "hooks added and removed at run time, then packaged",
}

# Runs scripts as if each were the main program, and tells what each printed.
RUNNER = """
import contextlib, io, json, sys, traceback
folder, names = sys.argv[1], sys.argv[2:]
printed = {}
for name in names:
    path = f"{folder}/{name}.py"
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
        except Exception:
            output.write(traceback.format_exc())
    printed[name] = output.getvalue()
print(json.dumps(printed))
"""


def files_on_the_page() -> dict[str, str]:
    blocks = re.finditer(r'^```python title="([^"]+)"\n(.*?)^```$', PAGE.read_text(), re.M | re.S)
    return {block[1]: block[2] for block in blocks}


def shown_output(name: str) -> str:
    """The first text block below a script."""
    below = PAGE.read_text().partition(f'title="{name}.py"')[2]
    return re.search(r"^```text\n(.*?)^```$", below, re.M | re.S)[1]


def run(names: list[str], scripts: Path, folder: Path, importable: bool) -> dict[str, str]:
    runner = scripts / "_runner.py"
    runner.write_text(RUNNER)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *([] if importable else ["-I"]), str(runner), str(scripts), *names],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, str]:
    """What each script printed: those that load ran where nothing else can be imported."""
    project, loading, work = (tmp_path_factory.mktemp(n) for n in ("project", "loading", "work"))
    for name, source in files_on_the_page().items():
        place = loading if name.startswith("load_") else project
        (place / name).write_text(source)
    first = run([*EXAMPLES, "captured"], project, work, importable=True)
    then = run([f"load_{name}" for name in EXAMPLES], loading, work, importable=False)
    return {**first, **then}


@pytest.mark.parametrize("name", EXAMPLES, ids=EXAMPLES.values())
def test_the_reloaded_model_does_what_the_original_did(name, printed):
    assert printed[name] == printed[f"load_{name}"] == shown_output(name)


def test_hooks_without_a_package_do_what_the_page_says(printed):
    assert printed["captured"] == shown_output("captured")


def test_the_page_shows_every_example():
    headings = re.findall(r"^## (\d+)\. ", PAGE.read_text(), re.M)
    assert headings == [str(number) for number in range(1, 13)] and len(EXAMPLES) == 12
