"""Measure the space of a base model with ten adapters: on disk, and in memory of one process.

``make bench-weights`` packages them with ``weights="external"`` and prints a table. ``SIZE=2048``
sets the size of the base in MiB. The folder needs twice that space.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

import modpack

ADAPTERS = 10
_WIDTH = 4096
_LAYER_BYTES = _WIDTH * _WIDTH * 2


class Adapter(torch.nn.Module):
    """A linear layer with a low-rank addition."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(_WIDTH, 8, bias=False, dtype=torch.bfloat16)
        self.up = torch.nn.Linear(8, _WIDTH, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.base(x) + self.up(self.down(x))
        return output


def main() -> int:
    """Package the models, load all of them, and print sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2048, help="size of the base in MiB")
    parser.add_argument("--folder", type=Path, help="folder in which to create a temporary one")
    arguments = parser.parse_args()
    count = max(1, (arguments.size << 20) // _LAYER_BYTES)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        measure(Path(name), count)
    return 0


def measure(folder: Path, layers: int) -> None:
    """Measure models of so many layers in a folder, and print the results."""
    with torch.device("meta"):
        linear = [torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(layers)]
    for layer in linear:
        weight = torch.randn(_WIDTH, _WIDTH).bfloat16()
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    base = torch.nn.Sequential(*linear)
    started = time.process_time()
    modpack.save(base, folder / "base.modpack", weights="external", self_test=False)
    show("save the base", f"{time.process_time() - started:.1f} s CPU")
    base_bytes = size_of(folder)
    show("base on disk", mebibytes(base_bytes))
    started = time.process_time()
    for number in range(ADAPTERS):
        model = torch.nn.Sequential(*map(Adapter, linear))
        path = folder / f"adapter{number}.modpack"
        modpack.save(model, path, weights="external", self_test=False)
    show("save an adapter", f"{(time.process_time() - started) / ADAPTERS:.1f} s CPU")
    show(f"{ADAPTERS} adapters on disk", mebibytes(size_of(folder) - base_bytes))
    del base, linear, model, layer, weight
    before = proportional_bytes()
    loaded = [modpack.load(path) for path in sorted(folder.glob("*.modpack"))]
    for each in loaded:  # reads every page
        for parameter in each.parameters():
            parameter.view(torch.int16).max()
    show(f"memory of all {len(loaded)} models", mebibytes(proportional_bytes() - before))


def size_of(folder: Path) -> int:
    """Return the bytes that the files of a folder take on disk."""
    return sum(file.stat().st_blocks * 512 for file in folder.iterdir())


def proportional_bytes() -> int:
    """Return the memory of this process, where a page that is mapped several times counts once."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines[1:])
    return int(found["Pss"].split()[0]) * 1024


def mebibytes(size: int) -> str:
    """Return a size as text."""
    return f"{size / (1 << 20):.0f} MiB"


def show(label: str, value: str) -> None:
    """Print a row."""
    print(f"{label:<28} {value}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
