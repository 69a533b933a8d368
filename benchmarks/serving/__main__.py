"""Measure ``modpack serve``, apps on FastAPI and Starlette, and LitServe, with the same packages.

``make bench-serve`` runs this and writes a part of ``docs/reference/performance.md``. The servers
of a row run alternately: all are started, and those that are not measured are stopped (SIGSTOP).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import textwrap
import timeit
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from servers import BATCH, FASTAPI, NAMES, Running, seconds_of

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from marks import folded, replaced

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "performance.md"
CLIENTS = (1, 16, 64)
TITLES = {
    "plain": "FastAPI, `def`",
    "async": "FastAPI, `async def`",
    "starlette": "Starlette, `json`",
    "litserve": "LitServe",
    "litserve-batch": "LitServe, batches",
    "modpack": "modpack serve",
    "modpack-batch": "modpack serve, batches",
}

Measured = dict[str, Any]


def main() -> int:
    options = _arguments()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        packages = _export(Path(scratch).resolve())
        results: Measured = {"loads": {}}
        for model in ("small", "deep"):
            results["loads"][model] = _measure_loads(packages[model], options)
        results["batch-cost"] = _measure_batch_cost()
        results["start"] = _measure_start(packages["small"], options.rounds)
        results["memory"] = _measure_memory(packages["large"])
        results["sustained"] = _measure_sustained(packages["small"], options.sustained)
    part = _part(results, options)
    print(part)
    if options.write:
        PAGE.write_text(replaced(PAGE, "make bench-serve", part), encoding="utf-8")
    return 0


def _export(folder: Path) -> dict[str, Path]:
    import torch
    from nets import Deep, Large, Small

    import modpack

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    paths = {}
    for name, kind in (("small", Small), ("deep", Deep), ("large", Large)):
        paths[name] = folder / f"{name}.modpack"
        modpack.save(kind().eval(), paths[name], example_inputs=torch.ones(3, 16))
    return paths


def _measure_loads(package: Path, options: argparse.Namespace) -> Measured:
    """Return the rates and latencies of each server at each number of clients."""
    servers = [Running(name, package) for name in NAMES]
    try:
        for server in servers:
            server.pause()
        found: Measured = {}
        for clients in CLIENTS:
            for turn in range(options.rounds):
                # The order changes, so that no server is always first.
                for server in servers if turn % 2 == 0 else reversed(servers):
                    server.resume()
                    one = server.load(clients, options.seconds)
                    server.pause()
                    found.setdefault((server.name, clients), []).append(one)
                    print(package.stem, clients, server.name, one, file=sys.stderr, flush=True)
    finally:
        for server in servers:
            server.stop()
    return {
        key: {
            "rate": statistics.median(each["rate"] for each in rounds),
            "p50": statistics.median(each["p50"] for each in rounds),
            "p99": statistics.median(each["p99"] for each in rounds),
            "cpu": statistics.median(each["cpu"] for each in rounds),
            "errors": sum(sum(each["errors"].values()) for each in rounds),
            "ratio": statistics.median(
                one["rate"] / max(found[name, key[1]][turn]["rate"] for name in FASTAPI)
                for turn, one in enumerate(rounds)
            ),
        }
        for key, rounds in found.items()
    }


def _measure_batch_cost() -> float:
    """Return the time of a batch of the deep model, in single calls."""
    import torch
    from nets import Deep

    torch.set_num_threads(1)
    model, times = Deep().eval(), {}
    with torch.inference_mode():
        for rows in (1, BATCH):
            x = torch.ones(rows, 16)
            model(x)
            times[rows] = min(timeit.repeat(lambda x=x: model(x), number=10, repeat=10))
    return times[BATCH] / times[1]


def _measure_start(package: Path, rounds: int) -> Measured:
    """Return the seconds from the start of each server to its first answer."""
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in ("plain", "litserve", "modpack"):
            server = Running(name, package)
            server.stop()
            times.setdefault(name, []).append(server.seconds)
        times.setdefault("torch", []).append(seconds_of("-c", "import torch"))
    return {name: statistics.median(each) for name, each in times.items()}


def _measure_memory(package: Path) -> Measured:
    """Return the proportional set sizes of all processes with 1 and with 4 workers, in MiB."""
    found: Measured = {}
    for name in ("modpack", "plain"):
        for workers in (1, 4):
            server = Running(name, package, workers)
            # Chance decides which worker of uvicorn gets a connection; each must compute.
            repetitions = 12 * workers if name == "plain" and workers > 1 else 1
            for _ in range(repetitions):
                server.load(2 * workers, 0.5, 0)
            found[name, workers] = server.pss()
            server.stop()
    return found


def _measure_sustained(package: Path, seconds: float) -> Measured:
    server = Running("modpack-batch", package, 2)
    before = server.pss()
    found = server.load(16, seconds)
    found["growth"] = server.pss() - before
    server.stop()
    return found


def _part(results: Measured, options: argparse.Namespace) -> str:
    """Return the part of the page: some figures, and the others below a fold."""
    loads, sustained = results["loads"], results["sustained"]
    parts = [
        _fill(
            "`modpack serve`, minimal apps that load the same package, and LitServe answer JSON "
            "requests of 16 numbers for a model of two small layers, which take a few "
            "microseconds. This table is for 16 clients. *Ratio* is that to the faster FastAPI app."
        ),
        _load_table(loads["small"], CLIENTS[1:2]),
        folded(
            "Method, a deep model, other numbers of clients, start, and memory",
            _fill(
                _METHOD.format(
                    batch=BATCH,
                    cores=os.cpu_count(),
                    python=platform.python_version(),
                    rounds=options.rounds,
                    seconds=options.seconds,
                )
            ),
            "### Small model",
            "Two layers of 32 units.",
            _load_table(loads["small"], CLIENTS),
            "### Deep model",
            _fill(
                "400 layers of 64 units, as a model with many small operations: without a server, "
                f"a batch of 16 takes {results['batch-cost']:.1f} times as long as a single call."
            ),
            _load_table(loads["deep"], CLIENTS),
            "### Start of a server",
            "Seconds from the start of the process to the first answer.",
            _start_table(results["start"]),
            "### Memory of a server",
            "Proportional set size (PSS) of all processes, for a model with 1 GiB of weights. "
            "Shared pages count once.",
            _memory_table(results["memory"]),
            "### Sustained load",
            _fill(
                f"{sustained['requests']:,} requests of 16 clients in {options.sustained:g} "
                f"seconds, two workers, batches: {sum(sustained['errors'].values())} errors, "
                f"p50 {sustained['p50']:.1f} ms, p99 {sustained['p99']:.1f} ms. Memory grew by "
                f"{sustained['growth']:.0f} MiB."
            ),
        ),
    ]
    return "\n\n".join(parts)


_METHOD = (
    "The two FastAPI apps have a pydantic model and call `model(torch.tensor(item.x)).tolist()`. "
    "`def` runs in a pool of threads; `async def` does not, and answers no other request "
    "meanwhile. The Starlette route reads the JSON without a check. uvicorn runs all of them, "
    "without a log. `modpack serve` checks each request, limits queue and time, counts, and logs. "
    "All servers have one worker and one thread of torch; batches have up to {batch} requests. "
    "Each client sends a request after the previous answer, on a connection that stays open. The "
    "load generator runs on the same machine: {cores} cores, Python {python}. Figures are medians "
    "of {rounds} rounds of {seconds:g} seconds, in which the servers took turns. Ratios are "
    "medians of the ratios to the faster FastAPI app of a round. The CPU time is that of all "
    "processes of the server, per request."
)


def _start_table(start: Measured) -> str:
    rows = [
        (TITLES[name], f"{start[name]:.2f}", f"{start[name] - start['torch']:.2f}")
        for name in ("plain", "litserve", "modpack")
    ]
    rows.append(("`python -c 'import torch'`", f"{start['torch']:.2f}", ""))
    return _table(("server", "seconds", "beyond `import torch`"), rows)


def _memory_table(memory: Measured) -> str:
    rows = []
    for name in ("modpack", "plain"):
        one, four = memory[name, 1], memory[name, 4]
        rows.append((TITLES[name], f"{one:,.0f} MiB", f"{four:,.0f} MiB", f"{four / one:.2f}"))
    return _table(("server", "1 worker", "4 workers", "ratio"), rows)


def _load_table(loads: Measured, counts: Sequence[int]) -> str:
    rows = []
    for clients in counts:
        for name in NAMES:
            one = loads[name, clients]
            errors = f", {one['errors']} errors" if one["errors"] else ""
            latency = f"{one['p50']:.1f} / {one['p99']:.1f}{errors}"
            rate, ratio, cpu = f"{one['rate']:,.0f}", f"{one['ratio']:.2f}", f"{one['cpu']:,.0f}"
            rows.append((str(clients), TITLES[name], rate, latency, cpu, ratio))
    head = ("clients", "server", "requests/s", "p50 / p99, ms", "CPU, us", "ratio")
    return _table(head, rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = "|".join("---" if name in ("server",) else "---:" for name in head)
    return "\n".join(
        [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    )


def _fill(text: str) -> str:
    return textwrap.fill(text, 115)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/serving", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where packages are written (1.2 GB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--sustained", type=float, default=30.0)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
