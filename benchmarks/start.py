"""Time from ``import torch`` to the first output: a library, its package, and waiting imports.

``make bench-start`` packages models of real libraries (recipes of ``tools/corpus``, in the
environment of ``make corpus``) and a generated project, loads each in new processes that take
turns, and writes a part of the guide. All outputs must be equal bit for bit. With names of models,
it only prints their rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from marks import folded, replaced

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "start-fast.md"
MODES = ("library", "eager", "lazy")
MODELS: Mapping[str, str] = {
    "transformers_bert": "BERT of transformers",
    "gpt2": "GPT-2 of transformers",
    "transformers_vit": "ViT of transformers",
    "diffusers_unet": "UNet of diffusers",
    "peft_lora": "LoRA of peft on BERT",
    "sentence_transformers_pooled": "SentenceTransformer",
    "lightning_module": "LightningModule",
    "timm_vit": "ViT of timm",
    "torch_geometric_gcn": "GNN of torch_geometric",
    "generated": "project of 50 modules",
}
"""The names in the page, by recipe. This file has the sources of those that are no recipes."""
WITH_TORCHVISION = ("timm_vit",)
"""Recipes that need torchvision. Other libraries import it if it is installed."""
_GPT2 = """
import torch
from transformers import GPT2Config, GPT2Model

def build():
    config = GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return GPT2Model(config), (torch.randint(0, 99, (2, 7)),)
"""
_GENERATED = """
import torch
from project.net import Net

def build():
    return Net(), (torch.randn(2, 8),)
"""
_NET = """
import torch
from torch import nn
from project.parts import PARTS

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(make() for make in PARTS)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
"""
_PART = """
import math
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.distributed.fsdp import FullyShardedDataParallel
import torch.onnx as onnx

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        return x + torch.tanh(self.layer(x - mean)) * math.sqrt(0.5)

    def loss(self, x, y):
        return kl_divergence(Normal(x, 1), Normal(y, 1)).mean()

def shard(part):
    return FullyShardedDataParallel(part)

def export(part, x, path):
    onnx.export(part, (x,), path)
"""
_SETUP = f"""
import importlib.util, sys, time, warnings
warnings.simplefilter("ignore")
name, folder, mode = sys.argv[1:]
sys.path[:0] = [folder, {str(ROOT / "tools" / "corpus")!r}, {str(ROOT / "tools/corpus/recipes")!r}]
import torch
from shared import declare, leaves
if importlib.util.find_spec("torchvision"):
    declare("torchvision")
file = folder + "/net.modpack"

def build():
    torch.manual_seed(0)
    model, inputs = importlib.import_module(name).build()
    return model.eval(), inputs
"""
_SAVE = """
import modpack
model, inputs = build()
modpack.save(model, file, preset="hermetic", example_inputs=inputs)
torch.save((inputs, model.state_dict()), folder + "/inputs.pt")
"""
_START = """
import hashlib, io, json
inputs, state = torch.load(folder + "/inputs.pt", weights_only=False)
cpu, wall = time.process_time(), time.perf_counter()
if mode == "library":
    model, _ = build()
    model.load_state_dict(state)
else:
    import modpack
    model = modpack.load(file, lazy=None if mode == "lazy" else False)
with torch.no_grad():
    torch.manual_seed(0)
    output = model(*inputs)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    modules, calls = len(sys.modules), []
    for _ in range(300 if name == "generated" else 0):
        started = time.process_time()
        model(*inputs)
        calls.append(time.process_time() - started)
stored = io.BytesIO()
torch.save(leaves(output), stored)
call = min(calls, default=0.0)
print(json.dumps([cpu, wall, modules, call, hashlib.sha256(stored.getvalue()).hexdigest()]))
"""
_CALLS = """
import copy, hashlib, io, json, os, pickle, re, tempfile
from concurrent.futures import ThreadPoolExecutor
import modpack
inputs, _ = torch.load(folder + "/inputs.pt", weights_only=False)
model = modpack.load(file, lazy=None if mode == "lazy" else False)

def changed(change):
    copied = copy.deepcopy(model)
    return getattr(copied, change)() if isinstance(change, str) else change(copied)

def trained(network):
    found = leaves(network.train()(*inputs), is_detached=False).values()
    outputs = [each for each in found if torch.is_tensor(each) and each.requires_grad]
    sum(each.float().sum() for each in outputs).backward()
    return [each.grad for each in network.parameters()]

def checkpointed(network):
    for name in ("gradient_checkpointing_enable", "enable_gradient_checkpointing"):
        if hasattr(network, name):
            getattr(network, name)()
            return trained(network)

def halved():
    given = [each.bfloat16() if each.is_floating_point() else each for each in inputs]
    return changed("bfloat16")(*given)

def saved():
    with tempfile.TemporaryDirectory() as target:
        model.save_pretrained(target)
        return sorted(os.listdir(target))

def in_threads():
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: model(*inputs), range(8)))

CALLS = {
    "twice": lambda: model(*(torch.cat([each, each]) for each in inputs)),
    "attentions": lambda: model(*inputs, output_attentions=True, output_hidden_states=True),
    "tuple": lambda: model(*inputs, return_dict=False),
    "wrong": lambda: model("no tensor"),
    "copy": lambda: changed("eval")(*inputs),
    "pickle": lambda: pickle.loads(pickle.dumps(model))(*inputs),
    "bfloat16": halved,
    "train": lambda: changed(trained),
    "checkpoint": lambda: changed(checkpointed),
    "save_pretrained": saved,
    "generate": lambda: model.generate(inputs[0], max_new_tokens=3),
    "threads": in_threads,
    "text": lambda: repr(model) + str(getattr(model, "config", "")),
    "compile": lambda: torch.compile(model, backend="eager", fullgraph=True)(*inputs),
}

def result(call):
    torch.manual_seed(0)
    try:
        found = leaves(call())
    except Exception as failure:  # both have to fail in the same way
        found = f"{type(failure).__name__}: {failure}"
    if isinstance(found, str) or all(isinstance(each, str) for each in found.values()):
        return re.sub("modpack[.]packages[.]p[0-9a-f]+|0x[0-9a-f]+", "", str(found))
    stored = io.BytesIO()
    torch.save(found, stored)
    return hashlib.sha256(stored.getvalue()).hexdigest()

print(json.dumps({name: result(call) for name, call in CALLS.items()}))
"""


@dataclass(frozen=True)
class Start:
    """The start of one process.

    Attributes:
        cpu: CPU seconds from ``import torch`` to the first output.
        wall: Seconds from ``import torch`` to the first output.
        modules: The number of imported modules.
        call: CPU seconds of the fastest later call; 0 if it was not measured.
        digest: Digest of the output.
    """

    cpu: float
    wall: float
    modules: int
    call: float
    digest: str


@dataclass(frozen=True)
class Row:
    """The starts of one model.

    Attributes:
        name: The model in the page.
        starts: The starts of each mode with warm caches.
        cold: The first start of each mode.
        size: The bytes of the package.
        calls: The results of calls that the examples did not make, in each mode of the package.
    """

    name: str
    starts: Mapping[str, Sequence[Start]]
    cold: Mapping[str, Start]
    size: int
    calls: Mapping[str, Mapping[str, str]]

    def median(self, mode: str, attribute: str) -> float:
        """Return the median of an attribute."""
        return statistics.median(getattr(each, attribute) for each in self.starts[mode])

    @property
    def is_equal(self) -> bool:
        """Whether all outputs are equal."""
        found = [*self.cold.values(), *(each for known in self.starts.values() for each in known)]
        return len({each.digest for each in found}) == 1

    @property
    def different_calls(self) -> list[str]:
        """The calls whose results are different if imports wait."""
        eager, lazy = (self.calls[mode] for mode in MODES[1:])
        return [name for name, found in eager.items() if lazy[name] != found]


def main() -> int:
    """Measure the models, print their rows, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for model in options.models or MODELS:
        rows.append(_measured(model, options.runs))
        print(_cells(rows[-1]), flush=True)
        for name in rows[-1].different_calls:
            print(*(f"{name}, {mode}: {found[name]}" for mode, found in rows[-1].calls.items()))
    if not options.models:
        part = _part(rows, options.runs)
        PAGE.write_text(replaced(PAGE, "make bench-start", part), encoding="utf-8")
    return int(not all(row.is_equal and not row.different_calls for row in rows))


def _measured(model: str, runs: int) -> Row:
    """Package a model, and start it in each mode, in turns."""
    starts: dict[str, list[Start]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write_sources(folder)
        python = sys.executable if model in WITH_TORCHVISION else _without_torchvision(folder)
        _run(python, _SAVE, model, folder, "save")
        for _ in range(runs + 1):
            for mode in MODES:
                result: list[Any] = json.loads(
                    _run(python, _START, model, folder, mode).splitlines()[-1]
                )
                starts[mode].append(Start(*result))
        calls = {
            mode: json.loads(_run(python, _CALLS, model, folder, mode).splitlines()[-1])
            for mode in MODES[1:]
        }
        size = (folder / "net.modpack").stat().st_size
    cold = {mode: starts[mode].pop(0) for mode in MODES}
    return Row(MODELS[model], starts, cold, size, calls)


def _write_sources(folder: Path) -> None:
    parts = "".join(f"from project.part{n} import Part as Part{n}\n" for n in range(48))
    used, unused = (", ".join(f"Part{n}" for n in part) for part in (range(24), range(24, 48)))
    files = {
        "gpt2.py": _GPT2,
        "generated.py": _GENERATED,
        "project/__init__.py": "",
        "project/net.py": _NET,
        "project/parts.py": f"{parts}PARTS = [{used}]\ndef others(): return [{unused}]\n",
        **{f"project/part{n}.py": _PART for n in range(48)},
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _without_torchvision(folder: Path) -> str:
    """Return a Python that has all libraries of this one but torchvision."""
    venv.create(folder / "venv")
    variables = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    target = Path(sysconfig.get_path("purelib", vars=variables))
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not installed.name.startswith("torchvision"):
            (target / installed.name).symlink_to(installed)
    return str(Path(sysconfig.get_path("scripts", vars=variables), "python"))


def _run(python: str, code: str, model: str, folder: Path, mode: str) -> str:
    """Run code in a new process with a cache of its mode, and return what it prints."""
    # The library's bytecode is warm in any case, so that its first start says nothing.
    environment = {**os.environ, "MODPACK_CACHE_DIR": str(folder / f"cache-{mode}")}
    command = [python, "-c", _SETUP + code, model, str(folder), mode]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        sys.exit(f"{model}, {mode}: {ended.stderr}")
    return ended.stdout


def _cells(row: Row) -> str:
    cpu = {mode: row.median(mode, "cpu") for mode in MODES}
    wall = [f"{row.median(mode, 'wall'):.2f}" for mode in MODES]
    cold = [f"{row.cold[mode].cpu:.2f}" for mode in MODES[1:]]
    modules = [f"{row.median(mode, 'modules'):,.0f}" for mode in MODES]
    cells = [
        row.name,
        *(f"{each:.2f}" for each in cpu.values()),
        f"{cpu['library'] / cpu['lazy']:.1f}",
        f"{cpu['eager'] / cpu['lazy']:.1f}",
        " / ".join(wall),
        " / ".join(cold),
        " / ".join(modules),
        f"{row.size / 1e6:.1f}",
        "yes" if row.is_equal else "NO",
        f"{len(row.calls['lazy']) - len(row.different_calls)} of {len(row.calls['lazy'])}",
    ]
    return f"| {' | '.join(cells)} |"


def _part(rows: Sequence[Row], runs: int) -> str:
    """Return the part of the guide: a summary, and a table below a fold."""
    ratios = [row.median("library", "cpu") / row.median("lazy", "cpu") for row in rows[:-1]]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    project = rows[-1]
    call = {mode: min(each.call for each in project.starts[mode]) * 1e3 for mode in MODES}
    import torch

    intro = textwrap.fill(
        f"Median CPU seconds from `import torch` to the first output in {runs} new processes, which"
        f" take turns, on {os.cpu_count()} cores with Python {platform.python_version()} and torch"
        f" {torch.__version__}. The library builds the model and loads its weights; the packages"
        " (preset `hermetic`) are loaded with and without waiting"
        " imports. Wall-clock times, first loads with an empty cache (the"
        " package without and with waiting imports), and imported modules are in the same order."
        " Sizes are in MB. The last column counts calls that the examples did not make, such as"
        " training, copying, and compiling, which do the same as without waiting imports."
        " torchvision, which others import if it is installed, is there for timm"
        " only.",
        width=104,
    )
    steady = textwrap.fill(
        f"For models of libraries, waiting imports are {mean:.1f} times as fast as the library"
        " (geometric mean). Later calls cost the same: those of the generated project, which has"
        f" many small operations, take {call['library']:.2f} ms of CPU in the library,"
        f" {call['eager']:.2f} ms in the package, and {call['lazy']:.2f} ms with waiting imports.",
        width=104,
    )
    table = (
        "| model | library | package | waiting | library / waiting | package / waiting |"
        " wall | first load | modules | MB | equal | other calls |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---|\n"
        + "\n".join(map(_cells, rows))
    )
    return steady + "\n\n" + folded("Table of ten models", intro, table)


if __name__ == "__main__":
    sys.exit(main())
