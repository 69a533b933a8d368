"""Packages in Ray: datasets, ``modpack run --engine ray``, and nodes without the package."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import modpack
from modpack.security.signing import sign_package
from modpack.security.signing_keys import generate
from tests import ray_cluster
from tests.range_server import serve_folder
from tests.serving_process import MODPACK

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray")

ROWS = 200_000
SOURCE = """
import os, signal
import torch

class Net(torch.nn.Module):
    def __init__(self, killed):
        super().__init__()
        self.killed = killed
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)
        self.big = torch.nn.Parameter(torch.ones(2_000_000))

    def forward(self, x):
        if (x[:, 0] == -1).any():
            raise ValueError("x must not be -1")
        if (x[:, 0] == -2).any() and os.environ.get("RAY_JOB_ID"):
            os.kill(os.getpid(), signal.SIGKILL)
        if (x[:, 0] == 100_000).any() and os.path.exists(self.killed):
            os.unlink(self.killed)
            os.kill(os.getpid(), signal.SIGKILL)
        x.mul_(2)  # Ray's arrays are read-only
        return {"scores": self.layer(x), "sum": x.sum(1) + 0 * self.big.sum()}
"""


class Net(NamedTuple):
    """A package and the file that lets the worker that finds it end."""

    file: Path
    killed: Path


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    folder = tmp_path_factory.mktemp("net")
    found = Net(folder / "net.modpack", folder / "killed")
    (folder / "raynet.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        model = importlib.import_module("raynet").Net(str(found.killed)).eval()
        modpack.save(model, found.file, example_inputs=torch.ones(2, 4))
        del sys.modules["raynet"]
    return found


@pytest.fixture(scope="module")
def cluster() -> str:
    """Return the address of a cluster to which this process is connected."""
    address = ray_cluster.started()
    ray.data.DataContext.get_current().enable_progress_bars = False
    return address


def run(*arguments: object, address: str = "", status: int = 0) -> str:
    """Run ``modpack run`` and return what it prints to stderr."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": address}
    done = subprocess.run(
        [*map(str, (MODPACK, "run", *arguments))], capture_output=True, text=True, env=environment
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def table(rows: int) -> dict[str, np.ndarray]:
    """Return a table with an id and the columns of the input."""
    x = np.arange(rows * 4, dtype="float32").reshape(rows, 4) / 4
    return {"id": np.arange(rows), **{f"x.{number}": x[:, number] for number in range(4)}}


def expected(net: Net, rows: int) -> dict[str, np.ndarray]:
    columns = table(rows)
    x = np.stack([columns[f"x.{number}"] for number in range(4)], 1)
    with modpack.Predictor(net.file) as predictor:
        return {name: value.numpy() for name, value in predictor.predict({"x": x}).items()}


def test_run_with_killed_worker_writes_the_rows_of_one_process(net, cluster, tmp_path):
    x = np.arange(ROWS * 4, dtype="float32").reshape(ROWS, 4)
    x[:, 0] = np.arange(ROWS)
    np.save(tmp_path / "rows.npy", x)
    alone, together = tmp_path / "alone.npz", tmp_path / "together.npz"
    run(net.file, tmp_path / "rows.npy", "-o", alone)
    net.killed.touch()
    arguments = ("-o", together, "--engine", "ray", "--workers", 4)
    run(net.file, tmp_path / "rows.npy", *arguments, address=cluster)
    assert not net.killed.exists()
    assert together.read_bytes() == alone.read_bytes()
    with np.load(together) as arrays:
        assert len(arrays["sum"]) == ROWS


def test_run_skips_the_rows_that_one_process_skips(net, cluster, tmp_path):
    lines = [f"{number},{-1 if number % 700 == 5 else number},1,2,3\n" for number in range(3000)]
    lines[7] = "7,seven,1,2,3\n"
    (tmp_path / "rows.csv").write_text("id,x.0,x.1,x.2,x.3\n" + "".join(lines))
    options = ("--keep", "id", "--on-error", "skip", "--batch-size", 100)
    alone, together = tmp_path / "alone.csv", tmp_path / "together.csv"
    printed = run(net.file, tmp_path / "rows.csv", *options, "-o", alone, status=1)
    options = (*options, "-o", together, "--engine", "ray", "--workers", 2)
    assert run(net.file, tmp_path / "rows.csv", *options, address=cluster, status=1) == printed
    assert "x must not be -1" in printed and "got 'seven'" in printed
    assert together.read_text() == alone.read_text()


def test_run_without_address_starts_a_cluster(net, tmp_path):
    (tmp_path / "rows.csv").write_text("x.0,x.1,x.2,x.3\n1,2,3,4\n")
    run(net.file, tmp_path / "rows.csv", "-o", tmp_path / "out.json", "--engine", "ray")
    assert "scores" in (tmp_path / "out.json").read_text()


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_predictor_takes_batches_of_each_format(net, cluster, batch_format):
    from modpack.integrations.ray import Predictor

    dataset = ray.data.from_arrow(_arrow(table(5000)))
    scored = dataset.map_batches(
        Predictor,
        fn_constructor_args=[str(net.file)],
        fn_constructor_kwargs={"keep": ["id"]},
        concurrency=2,
        batch_size=1024,
        batch_format=batch_format,
    )
    found = scored.sort("id").take_batch(5000)
    assert found.keys() == {"id", "scores", "sum"}
    assert found["id"].tolist() == list(range(5000))
    for name, value in expected(net, 5000).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_predictor_takes_columns_of_tensors(net, cluster, batch_format):
    from modpack.integrations.ray import Predictor

    columns = table(100)
    x = np.stack([columns[f"x.{number}"] for number in range(4)], 1)
    scored = ray.data.from_numpy(x).map_batches(
        Predictor,
        fn_constructor_args=[str(net.file)],
        fn_constructor_kwargs={"columns": {"x": ["data"]}},
        concurrency=1,
        batch_format=batch_format,
    )
    found = scored.take_batch(100)
    np.testing.assert_allclose(np.sort(found["sum"]), np.sort(expected(net, 100)["sum"]))


def _arrow(columns: dict[str, np.ndarray]) -> object:
    import pyarrow

    return pyarrow.table(columns)


def test_predictor_skips_bad_rows(net, cluster):
    from modpack.integrations.ray import Predictor

    columns = table(100)
    columns["x.0"] = np.where(columns["id"] % 50 < 10, np.float32(-1), columns["x.0"])
    scored = ray.data.from_arrow(_arrow(columns)).map_batches(
        Predictor,
        fn_constructor_args=[str(net.file)],
        fn_constructor_kwargs={"keep": ["id"], "on_error": "skip"},
        concurrency=1,
        batch_size=10,
    )
    found = scored.take_all()
    assert sorted(row["id"] for row in found) == [n for n in range(100) if n % 50 >= 10]


def test_dataset_survives_a_killed_worker(net, cluster):
    from modpack.integrations.ray import Predictor

    columns = table(100_100)
    columns["x.0"] = columns["id"].astype("float32")
    net.killed.touch()
    scored = (
        ray.data.from_arrow(_arrow(columns))
        .repartition(20)
        .map_batches(
            Predictor,
            fn_constructor_args=[str(net.file)],
            fn_constructor_kwargs={"keep": ["id"]},
            concurrency=2,
            batch_size=1024,
        )
    )
    found = scored.take_batch(200_000)
    assert not net.killed.exists()
    assert sorted(found["id"].tolist()) == list(range(100_100))


def test_workers_of_a_node_share_weights(net, cluster):
    from modpack.integrations.ray import Predictor

    class Probe(Predictor):
        def private_bytes(self) -> tuple[int, int]:
            """Return the size of the mapped package, and how much of it only this process has."""
            mapped = private = 0
            is_package = False
            for line in Path("/proc/self/smaps").read_text().splitlines():
                key, _, rest = line.partition(":")
                if "-" in key:
                    is_package = rest.endswith(".modpack") or "/kept" in rest
                elif is_package and key == "Size":
                    mapped += int(rest.split()[0])
                elif is_package and key == "Private_Dirty":
                    private += int(rest.split()[0])
            return mapped, private

    actors = [ray.remote(Probe).options(num_cpus=1).remote(str(net.file)) for _ in range(2)]
    ray.get([actor.__call__.remote(table(10)) for actor in actors])
    for mapped, private in ray.get([actor.private_bytes.remote() for actor in actors]):
        assert mapped > 7000 and private == 0


def test_node_without_the_file_fetches_it_once(net, cluster, tmp_path):
    from modpack.integrations.ray import Predictor, SharedPackage

    package = tmp_path / "net.modpack"
    modpack.save(torch.nn.Linear(4, 1), tmp_path / "weights.modpack", weights="external")
    key = generate()
    sign_package(tmp_path / "weights.modpack", key, output=package)
    signature = tmp_path / "net.modpack.sig"
    signature.write_bytes(b"{}")
    shared = SharedPackage(package)
    names = [each.name for each in tmp_path.glob("*.safetensors")]
    for each in (package, signature, *tmp_path.glob("*.safetensors")):
        each.unlink()
    environment = {"env_vars": {"MODPACK_CACHE_DIR": str(tmp_path / "cache")}}

    def look(shared: SharedPackage) -> tuple[str, int]:
        path = Path(shared.local_path())
        Predictor(shared)
        return str(path), path.stat().st_ino

    task = ray.remote(look).options(runtime_env=environment, num_cpus=1)
    found = ray.get([task.remote(shared) for _ in range(4)])
    assert len(set(found)) == 1
    path = Path(found[0][0])
    assert path.is_relative_to(tmp_path / "cache")
    assert path.with_name(path.name + ".sig").read_bytes() == b"{}"
    assert names and all(path.with_name(name).exists() for name in names)


def test_workers_of_a_node_download_a_url_once(net, cluster, tmp_path):
    from modpack.integrations.ray import Predictor

    with serve_folder(net.file.parent) as server:
        actor = ray.remote(Predictor).options(
            runtime_env={"env_vars": {"MODPACK_CACHE_DIR": str(tmp_path / "cache")}}, num_cpus=1
        )
        actors = [actor.remote(server.url("net.modpack")) for _ in range(4)]
        ray.get([each.__call__.remote(table(3)) for each in actors])
        assert server.sent < 2 * net.file.stat().st_size


def refused(call: Callable[[], object]) -> str:
    """Return the message of an exception in a worker."""
    with pytest.raises(Exception) as caught:
        call()
    return str(caught.value)


def test_dataset_reports_bad_input(net, cluster):
    from modpack.integrations.ray import Predictor

    def score(columns: dict[str, np.ndarray], /, **options: object) -> str:
        arguments = {"fn_constructor_kwargs": options, "concurrency": 1}
        dataset = ray.data.from_arrow(_arrow(columns))
        return refused(
            dataset.map_batches(
                Predictor, fn_constructor_args=[str(net.file)], **arguments
            ).materialize
        )

    columns = table(10)
    assert "there is no column 'z'" in score(columns, columns={"x": ["z"]})
    assert "does not fit 2 columns" in score({"a": columns["id"], "b": columns["id"]})
    columns["x.0"][3] = -1
    assert "row 4: the model raised ValueError: x must not be -1" in score(columns)


def test_missing_file_names_node_and_remedies(cluster):
    from modpack.integrations.ray import Predictor

    actor = ray.remote(Predictor).remote("absent.modpack")
    text = refused(lambda: ray.get(actor.__call__.remote(table(1))))
    assert "absent.modpack: the file does not exist on the node" in text
    assert "SharedPackage" in text


def test_gpu_of_the_worker_is_used(net, cluster):
    from modpack.integrations.ray import Predictor

    actor = ray.remote(Predictor).options(num_gpus=1).remote(str(net.file))
    text = refused(lambda: ray.get(actor.__call__.remote(table(1))))
    assert torch.cuda.is_available() or "device 'cuda' cannot be used" in text


def test_run_explains_failures_of_the_cluster(net, cluster, tmp_path):
    (tmp_path / "rows.csv").write_text("x.0,x.1,x.2,x.3\n-2,2,3,4\n")
    arguments = (net.file, tmp_path / "rows.csv", "-o", tmp_path / "out.json", "--engine", "ray")
    printed = run(*arguments, "--workers", 1, address=cluster, status=2)
    assert "a Ray worker ended 4 times while it ran the same rows" in printed
    printed = run(*arguments, "--workers", 9, address=cluster, status=2)
    assert "the cluster has 4 CPUs, not enough for 9 workers with a CPU each" in printed
    printed = run(*arguments, "--device", "cuda:1", address=cluster, status=2)
    assert "Pass --device cuda." in printed
    printed = run(tmp_path / "no.modpack", *arguments[1:], address=cluster, status=2)
    assert "no.modpack" in printed
    assert not (tmp_path / "out.json").exists()
