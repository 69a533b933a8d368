"""Loading in threads and forked processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import modpack

NET = {
    "busy/__init__.py": "",
    "busy/net.py": """
    from __future__ import annotations
    import dataclasses
    import torch
    from torch import nn
    from busy import slow
    import busy.ring_a

    @dataclasses.dataclass
    class Config:
        n: int = 1

    class Net(nn.Module):
        def __init__(self, seed=0):
            super().__init__()
            torch.manual_seed(seed)
            self.config = Config(seed)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            from busy.late import activate
            for layer in self.layers:
                x = activate(layer(x))
            return x * slow.FACTOR
    """,
    "busy/slow.py": "import time\ntime.sleep(0.05)\nFACTOR = 2",
    "busy/late.py": """
    import time
    import torch
    time.sleep(0.05)
    def activate(x):
        return torch.tanh(x)
    """,
    "busy/ring_a.py": "import busy.ring_b",
    "busy/ring_b.py": "import busy.ring_a",
}
X = torch.linspace(-1, 1, 8).reshape(2, 4)
THREADS = 8


@pytest.fixture
def nets(project, tmp_path):
    """A package with four models, and their outputs for X."""
    project(NET)
    from busy.net import Net

    models = [Net(seed) for seed in range(4)]
    with modpack.PackageExporter(tmp_path / "busy.pt") as exporter:
        exporter.intern("busy.**")
        for number, model in enumerate(models):
            exporter.save_pickle("m", f"{number}.pkl", model)
    with torch.no_grad():
        return tmp_path / "busy.pt", [model(X) for model in models]


def in_threads(work):
    """Return the results of ``work(number)`` in threads that start simultaneously."""
    barrier = threading.Barrier(THREADS)

    def started(number):
        barrier.wait(timeout=60)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(started, range(THREADS)))


@torch.no_grad()
def test_eight_threads_load_from_one_importer(nets):
    path, expected = nets
    with modpack.PackageImporter(path) as importer:
        loaded = in_threads(lambda n: importer.load_pickle("m", f"{n % 4}.pkl"))
        answers = in_threads(lambda n: loaded[n](X))
        assert all(torch.equal(answers[n], expected[n % 4]) for n in range(THREADS))
        assert len({type(model) for model in loaded}) == 1
        weights = {model.layers[0].weight.data_ptr() for model in loaded}
        assert len(weights) == THREADS
        loaded[0].layers[0].weight.zero_()
        assert torch.equal(loaded[4](X), expected[0])


@torch.no_grad()
def test_eight_threads_load_from_eight_importers(nets):
    path, expected = nets
    importers = in_threads(lambda n: modpack.PackageImporter(path))
    answers = in_threads(lambda n: importers[n].load_pickle("m", f"{n % 4}.pkl")(X))
    assert all(torch.equal(answers[n], expected[n % 4]) for n in range(THREADS))
    assert len({importer.id() for importer in importers}) == THREADS
    for importer in importers:
        importer.close()


def test_threads_wait_for_module_imported_by_another(nets):
    path, _ = nets
    with modpack.PackageImporter(path) as importer:
        factors = in_threads(lambda n: importer.import_module("busy.slow").FACTOR)
        assert factors == [2] * THREADS


def test_threads_use_different_map_locations(nets):
    path, _ = nets
    places = ["cpu", "meta"]
    with modpack.PackageImporter(path) as importer:
        loaded = in_threads(lambda n: importer.load_pickle("m", "0.pkl", places[n % 2]))
    assert [model.layers[0].weight.device.type for model in loaded] == places * 4


def test_forked_child_uses_loaded_model(nets):
    path, expected = nets
    with modpack.PackageImporter(path) as importer:
        model = importer.load_pickle("m", "1.pkl")
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()

        def child():
            with torch.no_grad():
                fresh = importer.load_pickle("m", "2.pkl")
                theirs.send((model(X).tolist(), fresh(X).tolist(), model.config))

        process = context.Process(target=child)
        process.start()
        assert mine.poll(60)
        by_old, by_fresh, config = mine.recv()
        process.join(60)
        assert process.exitcode == 0
    assert (by_old, by_fresh) == (expected[1].tolist(), expected[2].tolist())
    assert config == model.config and type(config) is type(model.config)


def test_forked_pool_runs_packaged_functions(packaged):
    importer = packaged(
        {
            "work.py": "def square(n):\n    import other\n    return other.square(n)",
            "other.py": "def square(n): return n * n",
        }
    )
    function = importer.import_module("work").square
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(function, range(4)) == [0, 1, 4, 9]


def test_tensors_of_loaded_model_can_be_shared_with_child(nets):
    path, expected = nets
    with modpack.PackageImporter(path) as importer:
        model = importer.load_pickle("m", "1.pkl").share_memory()
        context = torch.multiprocessing.get_context("fork")

        def child():
            with torch.no_grad():
                model.layers[0].weight.fill_(7.0)

        with torch.no_grad():
            assert torch.equal(model(X), expected[1])
        process = context.Process(target=child)
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert model.layers[0].weight.unique().tolist() == [7.0]


def test_eight_processes_fill_one_cache_at_once(nets, tmp_path):
    path, expected = nets
    # Forked from one process that has imported everything, so that they really run concurrently.
    code = """
import os, sys, modpack, torch
path, expected = sys.argv[1], torch.load(sys.argv[2])
import modpack.importer, modpack.loading.objects
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            model = modpack.PackageImporter(path).load_pickle("m", "3.pkl")
            with torch.no_grad():
                answer = model(torch.linspace(-1, 1, 8).reshape(2, 4))
            status = 0 if torch.equal(answer, expected) else 2
        finally:
            os._exit(status)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    torch.save(expected[3], tmp_path / "expected.pt")
    cache = tmp_path / "fresh" / "cache"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / "expected.pt")],
        env={**os.environ, "MODPACK_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip() == str([0] * 8), done.stderr
    [tree] = (cache / "trees" / "v2").iterdir()
    assert (tree / "files" / "busy" / "net.py").is_file()
