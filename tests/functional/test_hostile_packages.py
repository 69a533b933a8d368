"""Commands report hostile packages and write errors in one message without a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from modpack import PackageExporter, PackageImporter
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, UnpicklingError
from modpack.writing.writer import ArchiveWriter

SPECS = ".data/modpack/hooks/model/model.pkl.json"
MISLEADING = "x\x1b[2J\u202e\u2028\ud800"


@pytest.fixture
def package(tmp_path) -> Path:
    import torch

    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(torch.nn.functional.relu)
    with PackageExporter(tmp_path / "good.modpack") as exporter:
        exporter.save_source_string("shop", "total = 3\n")
        exporter.save_model("model", "model.pkl", model)
    return tmp_path / "good.modpack"


def rewritten(package: Path, record: str, content: bytes) -> Path:
    """Return a copy with one changed record and matching digests."""
    copy = package.with_name("hostile.modpack")
    with open_archive(package) as archive, ArchiveWriter(copy) as writer:
        for name in archive.names():
            if not name.startswith(".data/modpack/manifest."):
                writer.write(name, content if name == record else archive.read(name))
        writer.commit()
    return copy


def modpack(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "modpack", *map(str, arguments)]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, text=True, timeout=120, env=environment, **options)


@pytest.mark.parametrize("command", ["inspect", "audit", "sbom"])
def test_errors_escape_control_characters(package, command):
    with open_archive(package) as archive:
        document = json.loads(archive.read(SPECS))
    document["hooks"][0]["kind"] = MISLEADING
    done = modpack(command, rewritten(package, SPECS, json.dumps(document).encode()))
    assert done.returncode == 2
    assert r"x\x1b[2J\u202e\u2028" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()


@pytest.mark.parametrize("coding", ["rot13", "undefined", "nonsense"])
def test_source_with_invalid_encoding_is_reported(package, coding):
    hostile = rewritten(package, "shop.py", f"# coding: {coding}\n".encode())
    page = package.with_name("page.html")
    shown = modpack("inspect", hostile, "--source", "shop")  # unchanged: stdout is no terminal
    assert (shown.returncode, shown.stdout) == (0, f"# coding: {coding}\n")
    assert modpack("diff", package, hostile, "--json").returncode == 1
    assert modpack("report", hostile, "-o", page).returncode == 0


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_unwritable_output_is_reported_on_stderr(package, options):
    with Path("/dev/full").open("w") as full:
        done = modpack("inspect", package, *options, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "Error: No space left on device\n"


def test_closed_stdout_causes_no_error(package):
    shell = 'exec "$0" -m modpack inspect "$1" >&-'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, package], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("coding", ["rot13", "zlib", "undefined", "no_such_codec"])
def test_source_that_is_not_text_names_record(package, coding):
    hostile = rewritten(package, "shop.py", f"# coding: {coding}\n".encode())
    with (
        PackageImporter(hostile) as importer,
        pytest.raises(ArchiveError, match=r"shop\.py.*cannot be decoded"),
    ):
        importer.get_source("shop")


def test_too_deeply_nested_specs_are_reported(package):
    done = modpack("inspect", rewritten(package, SPECS, b"[" * 100_000))
    assert done.returncode == 2
    assert "nested too deeply" in done.stderr


def test_unknown_byte_order_is_reported(package):
    hostile = rewritten(package, "byteorder", b"middle")
    with (
        PackageImporter(hostile) as importer,
        pytest.raises(UnpicklingError, match="byte order 'middle' is neither"),
    ):
        importer.load_pickle("model", "model.pkl")


@pytest.mark.parametrize(("key", "count"), [("edges", 160_000), ("modules", 34_000)])
def test_too_long_graph_is_rejected(package, key, count):
    graph = ".data/modpack/graph.json"
    with open_archive(package) as archive:
        document = json.loads(archive.read(graph))
    if key == "edges":
        document["edges"] = [["a", "b", "required", 1, []]] * count
    else:
        entry = {"action": "extern", "origin": "user", "rule": "x"}
        document["modules"] = {f"m{n}": entry for n in range(count)}
    done = modpack("inspect", rewritten(package, graph, json.dumps(document).encode()))
    assert done.returncode == 2
    assert f"{count} {key} are listed, and " in done.stderr


@pytest.mark.parametrize("command", ["sbom", "report"])
def test_too_large_documents_are_not_built(package, command):
    graph = ".data/modpack/graph.json"
    with open_archive(package) as archive:
        document = json.loads(archive.read(graph))
    action, count = ("mock", 200) if command == "sbom" else ("extern", 21_000)
    entry = {"action": action, "origin": "user", "rule": "x"}
    document["modules"].update({f"m{n}": entry for n in range(count)})
    pairs = ((f"m{a}", f"m{b}") for a in range(200) for b in range(200))
    document["edges"] += [[a, b, "required", 1, []] for a, b in pairs]
    hostile = rewritten(package, graph, json.dumps(document).encode())
    done = modpack(command, hostile, "-o", package.with_name("out"))
    assert done.returncode == 2
    assert "and the limit is 20000" in done.stderr


@pytest.mark.parametrize("is_coalesced", [True, False])
def test_sparse_indices_out_of_range_name_record(tmp_path, is_coalesced):
    import torch

    indices, values = torch.tensor([[0, 2**40]]), torch.ones(2)
    hints = {"check_invariants": False, "is_coalesced": is_coalesced}
    sparse = torch.sparse_coo_tensor(indices, values, (3,), **hints)
    path = tmp_path / "sparse.modpack"
    with PackageExporter(path) as exporter:
        exporter.save_pickle("model", "model.pkl", sparse)
    with (
        PackageImporter(path) as importer,
        pytest.raises(UnpicklingError, match=r"model/model\.pkl: .*size is inconsistent"),
    ):
        importer.load_pickle("model", "model.pkl")


@pytest.mark.parametrize("count", [0, 3])
def test_tensor_beyond_storage_names_record(tmp_path, count):
    import torch

    class Beyond:
        def __reduce__(self):
            storage = torch.ones(count).untyped_storage()
            arguments = (storage, 2, (1000, 1000), (1000, 1), False, {}, torch.float32)
            return torch._utils._rebuild_tensor_v3, arguments

    path = tmp_path / "beyond.modpack"
    with PackageExporter(path) as exporter:
        exporter.save_pickle("model", "model.pkl", Beyond())
    with (
        PackageImporter(path) as importer,
        pytest.raises(UnpicklingError, match=r"model/model\.pkl: a tensor requires 4000008 bytes"),
    ):
        importer.load_pickle("model", "model.pkl")
