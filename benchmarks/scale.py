"""Measure rows per second in one process, in several, and in a Ray cluster on this machine.

``make bench-scale`` runs a package on a Parquet file with ``modpack run``, a pool of processes, and
Ray, next to a Ray Data script without modpack, in turns, and writes a part of
docs/how-to/run-on-ray.md. ``FAST=1`` only shows that everything runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch

import modpack

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from marks import folded, replaced

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "run-on-ray.md"
COLUMNS = 32
WORKERS = 2
BATCH = 1024
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(32, 512), torch.nn.ReLU(),
            torch.nn.Linear(512, 512), torch.nn.ReLU(),
            torch.nn.Linear(512, 8),
        )

    def forward(self, x):
        return self.layers(x).softmax(-1)
"""
POOL = """
import sys
from concurrent.futures import ProcessPoolExecutor
import modpack, pyarrow as pa, pyarrow.parquet as pq, torch
from modpack.integrations.ray import Predictor


def load():
    global predictor
    torch.set_num_threads(1)
    predictor = Predictor("net.modpack")


def score(group):
    rows = pq.ParquetFile(sys.argv[1]).read_row_group(group)
    return [predictor(rows.slice(start, 1024))["output"] for start in range(0, len(rows), 1024)]


if __name__ == "__main__":
    groups = range(pq.ParquetFile(sys.argv[1]).num_row_groups)
    schema = pa.schema({"output": pa.list_(pa.float32(), 8)})
    out = pq.ParquetWriter(sys.argv[2], schema)
    with out, ProcessPoolExecutor(2, initializer=load) as pool:
        for parts in pool.map(score, groups):
            for part in parts:
                column = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), 8)
                out.write_table(pa.table([column], schema=schema))
"""
HAND_WRITTEN = """
import sys
import numpy as np, ray, torch
from net import Net


class Score:
    def __init__(self):
        self.model = Net().eval()
        self.model.load_state_dict(torch.load("{folder}/net.pt"))

    def __call__(self, batch):
        x = torch.from_numpy(np.stack([batch[f"x.{{n}}"] for n in range(32)], axis=1))
        with torch.inference_mode():
            return {{"output": self.model(x).numpy()}}


ray.init(logging_level="error")
rows = ray.data.read_parquet(sys.argv[1])
rows.map_batches(Score, concurrency=2, batch_size=1024).write_parquet(sys.argv[2])
"""
DATASET = """
import sys
import ray
from modpack.integrations.ray import Predictor

ray.init(logging_level="error")
rows = ray.data.read_parquet(sys.argv[1])
rows.map_batches(
    Predictor, fn_constructor_args=["{folder}/net.modpack"], concurrency=2, batch_size=1024
).write_parquet(sys.argv[2])
"""
PART_TEXT = """\
A model with three linear layers of up to 512 units was run on a Parquet file with {columns} columns
of float32 and {rows:,} rows, in batches of {batch} rows. The output is a Parquet file. Each process
has one thread of torch. The Ray cluster is on the same machine: {cores} cores, Python {python},
torch {torch}, Ray {ray}. Figures are medians of {rounds} rounds, in which all took turns. Start and
load, measured with a file of {start:,} rows, are subtracted. Ratios are medians of the ratios in a
round.

{table}

"""
RUN = (Path(sys.executable).with_name("modpack"), "run", "net.modpack")
FLAGS = ("--batch-size", BATCH)
ENGINE = (*FLAGS, "--engine", "ray", "--workers", WORKERS)
Command = Callable[[Path, Path], tuple[object, ...]]
WAYS: Mapping[str, Command] = {
    "one process: `modpack run`": lambda rows, out: (*RUN, rows, "-o", out, *FLAGS),
    "two processes: a pool of Python's": lambda rows, out: (sys.executable, "pool.py", rows, out),
    "two workers: `modpack run --engine ray`": lambda rows, out: (*RUN, rows, "-o", out, *ENGINE),
    "two workers: `map_batches(Predictor)`": lambda rows, out: (
        *(sys.executable, "dataset.py", rows),
        out.with_suffix(""),
    ),
    "two workers: Ray Data, without modpack": lambda rows, out: (
        *(sys.executable, "hand_written.py", rows),
        out.with_suffix(""),
    ),
}
HAND = list(WAYS)[-1]


def main() -> int:
    """Measure, print the table, and write the part of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="folder in which to create a temporary one")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the large file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fast", action="store_true", help="a tenth of the rows, in one round")
    parser.add_argument("--write", action="store_true", help="write the part of the page")
    given = parser.parse_args()
    rows, rounds = (given.rows // 10, 1) if given.fast else (given.rows, given.rounds)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name).absolute()
        small, large = prepare(folder, rows)
        os.environ.update(PYTHONPATH=str(folder), RAY_USAGE_STATS_ENABLED="0")
        # Tasks that read and write need CPUs of the cluster, next to the workers.
        options = {"include_dashboard": False, "object_store_memory": 1 << 30}
        ray.init("local", num_cpus=2 * WORKERS, logging_level="error", **options)
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        try:
            measured = measure(folder, small, large, rows, rounds)
        finally:
            ray.shutdown()
    table = as_table(measured)
    print(table)
    if given.write:
        text = part(table, rows, rounds)
        PAGE.write_text(replaced(PAGE, "make bench-scale", text), encoding="utf-8")
    return 0


def prepare(folder: Path, rows: int) -> tuple[Path, Path]:
    """Write the package, the scripts, and a small and a large file of rows."""
    (folder / "net.py").write_text(NET)
    sys.path.insert(0, str(folder))
    torch.manual_seed(0)
    net = importlib.import_module("net").Net().eval()
    modpack.save(net, folder / "net.modpack", example_inputs=torch.ones(2, COLUMNS))
    torch.save(net.state_dict(), folder / "net.pt")
    (folder / "pool.py").write_text(POOL)
    (folder / "hand_written.py").write_text(HAND_WRITTEN.format(folder=folder))
    (folder / "dataset.py").write_text(DATASET.format(folder=folder))
    files = folder / "small.parquet", folder / "large.parquet"
    random = np.random.default_rng(0)
    for file, count in zip(files, (rows // 10, rows + rows // 10), strict=True):
        columns = {
            f"x.{number}": random.standard_normal(count, dtype=np.float32)
            for number in range(COLUMNS)
        }
        pq.write_table(pa.table(columns), file, row_group_size=16 * BATCH)
    return files


def measure(
    folder: Path, small: Path, large: Path, rows: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return rows per second and seconds for the small file, of each way and round.

    Starting and loading take the same time for both files, and are in neither figure.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    sums: dict[str, float] = {}
    for number in range(rounds):
        for name, command in WAYS.items():
            out = folder / f"out{number}.parquet"
            first, second = (run(folder, command(file, out), out) for file in (small, large))
            found[name].append((rows / (second[0] - first[0]), first[0]))
            sums[name] = second[1]
            print(f"round {number + 1}: {name}: {found[name][-1][0]:,.0f} rows/s", flush=True)
    if not np.allclose(list(sums.values()), sums[HAND], rtol=1e-4):
        raise SystemExit(f"the outputs differ: {sums}")
    return found


def run(folder: Path, command: tuple[object, ...], out: Path) -> tuple[float, float]:
    """Run a command, and return its seconds and the sum of one of its outputs."""
    started = time.monotonic()
    done = subprocess.run(
        list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    seconds = time.monotonic() - started
    if done.returncode:
        raise SystemExit(done.stdout.decode())
    written = [out] if out.exists() else sorted(out.with_suffix("").glob("*.parquet"))
    total = 0.0
    for file in written:
        for batch in pq.ParquetFile(file).iter_batches():
            column = batch.column("output")
            column = getattr(column, "storage", column)  # Ray writes tensors
            total += float(column.flatten().to_numpy().reshape(-1, 8)[:, 0].sum(dtype="float64"))
        file.unlink()
    return seconds, total


def as_table(measured: Mapping[str, list[tuple[float, float]]]) -> str:
    """Return the results as a table in Markdown."""
    lines = ["| | rows/s | to Ray Data |", "|---|---:|---:|"]
    for name, rounds in measured.items():
        rate = statistics.median(rate for rate, _ in rounds)
        pairs = zip(rounds, measured[HAND], strict=True)
        ratio = statistics.median(own[0] / other[0] for own, other in pairs)
        lines.append(f"| {name} | {rate:,.0f} | {ratio:.2f} |")
    return "\n".join(lines)


def part(table: str, rows: int, rounds: int) -> str:
    """Return the part of the page of the documentation."""
    script = HAND_WRITTEN.replace("{folder}/", "").replace("{{", "{").replace("}}", "}")
    text = PART_TEXT.format(
        columns=COLUMNS,
        rows=rows,
        start=rows // 10,
        batch=BATCH,
        rounds=rounds,
        cores=os.cpu_count(),
        python=platform.python_version(),
        torch=torch.__version__,
        ray=ray.__version__,
        table=table,
    )
    return text + folded("The script without modpack", f"```python\n{script.strip()}\n```")


if __name__ == "__main__":
    raise SystemExit(main())
