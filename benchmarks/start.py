"""Time from ``import torch`` to the first output: a library, its package, and waiting imports.

``python benchmarks/start.py transformers_bert timm_vit`` packages recipes of ``tools/corpus`` in
the environment of ``make corpus``, and prints a table of CPU seconds: medians of fresh processes,
which take turns. All outputs must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_SETUP = f"""
import sys, time, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {[str(_ROOT / "tools" / "corpus"), str(_ROOT / "tools" / "corpus" / "recipes")]!r}
import torch
from saving import build, operators_of
from shared import declare, leaves
name, folder, mode = sys.argv[1:]
file = folder + "/net.modpack"
declare(operators_of(name))
"""
_SAVE = """
import modpack
_, model, inputs = build(name)
modpack.save(model, file, preset="hermetic", example_inputs=inputs, lazy=True)
torch.save((inputs, model.state_dict()), folder + "/inputs.pt")
"""
_START = """
import hashlib, io, json
inputs, state = torch.load(folder + "/inputs.pt", weights_only=False)
started = time.process_time()
if mode == "library":
    _, model, _ = build(name)
    model.load_state_dict(state)
else:
    import modpack
    model = modpack.load(file, lazy=None if mode == "lazy" else False)
with torch.no_grad():
    torch.manual_seed(0)
    output = model(*inputs)
seconds = time.process_time() - started
stored = io.BytesIO()
torch.save(leaves(output), stored)
digest = hashlib.sha256(stored.getvalue()).hexdigest()
print(json.dumps({"seconds": seconds, "modules": len(sys.modules), "output": digest}))
"""
_MODES = ("library", "eager", "lazy")


def _run(python: str, code: str, *arguments: str) -> str:
    command = [python, "-c", _SETUP + code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure(python: str, recipe: str, runs: int) -> Mapping[str, list[dict[str, Any]]]:
    """Return the results of each mode, after one run that fills the caches."""
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in _MODES}
    with tempfile.TemporaryDirectory() as folder:
        _run(python, _SAVE, recipe, folder, "save")
        for number in range(runs + 1):
            for mode in _MODES:
                result = json.loads(_run(python, _START, recipe, folder, mode).splitlines()[-1])
                if number:
                    found[mode].append(result)
    return found


def main() -> None:
    """Print a row for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(
        "| recipe | library | package | waiting imports | modules | equal |\n"
        "|---|---:|---:|---:|---:|---|"
    )
    for recipe in options.recipes:
        found = measure(options.python, recipe, options.runs)
        seconds = [statistics.median(r["seconds"] for r in found[mode]) for mode in _MODES]
        modules = " / ".join(str(found[mode][0]["modules"]) for mode in _MODES)
        equal = len({r["output"] for results in found.values() for r in results}) == 1
        shown = " | ".join(f"{each:.2f}" for each in seconds)
        print(f"| {recipe} | {shown} | {modules} | {'yes' if equal else 'NO'} |", flush=True)


if __name__ == "__main__":
    main()
