"""The examples of the guide to hooks, saved and then loaded in a clean process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.warm_python import run_python

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "hooks.md"
EXAMPLES = {
    "clip": "lambda that clips each gradient",
    "norms": "lambda that logs gradient norms",
    "guard": "closure that zeroes large gradients",
    "shapes": "lambda that prints output shapes",
    "features": "lambda that collects feature maps",
    "watch": "methods of an object that contains the model",
    "change": "hooks that change inputs and outputs",
    "order": "prepended hook and handle.remove()",
    "graph": "hooks of leaf and intermediate tensors",
    "compress": "DDP communication hook",
    "profiler": "global hook",
    "runtime": "hooks added and removed at run time",
}

# Run scripts as if each were the main program, and print the output of each as JSON.
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


def files_on_page() -> dict[str, str]:
    blocks = re.finditer(r'^```python title="([^"]+)"\n(.*?)^```$', PAGE.read_text(), re.M | re.S)
    return {block[1]: block[2] for block in blocks}


def shown_output(name: str) -> str:
    """Return the first text block below a script."""
    below = PAGE.read_text().partition(f'title="{name}.py"')[2]
    return re.search(r"^```text\n(.*?)^```$", below, re.M | re.S)[1]


def run(names: list[str], scripts: Path, folder: Path, importable: bool) -> dict[str, str]:
    runner = scripts / "_runner.py"
    runner.write_text(RUNNER)
    done = run_python(*([] if importable else ["-I"]), runner, scripts, *names, folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, str]:
    """The output of each script. Loading scripts run without the code of the others."""
    project, loading, work = (tmp_path_factory.mktemp(n) for n in ("project", "loading", "work"))
    for name, source in files_on_page().items():
        folder = loading if name.startswith("load_") else project
        (folder / name).write_text(source)
    saved = run(list(EXAMPLES), project, work, importable=True)
    loaded = run([f"load_{name}" for name in EXAMPLES], loading, work, importable=False)
    return {**saved, **loaded}


@pytest.mark.parametrize("name", EXAMPLES, ids=EXAMPLES.values())
def test_hook_example_prints_same_output_after_loading(name, printed):
    assert printed[name] == printed[f"load_{name}"] == shown_output(name)


def test_hooks_page_shows_every_example():
    loaded = {name for name in files_on_page() if name.startswith("load_")}
    assert loaded == {f"load_{name}.py" for name in EXAMPLES}
