"""``modpack serve``, asked by real clients."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.serving_process import NET, Serving, export, slow, wait_until

TIMEOUT = 3
MAX_QUEUE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def package(folder: Path) -> Path:
    return export(folder, folder / "net.modpack")


@pytest.fixture(scope="module")
def served(package: Path) -> Iterator[Serving]:
    serving = Serving(
        f"net={package}",
        *("--workers", 2, "--max-batch", 8, "--max-queue", MAX_QUEUE, "--timeout", TIMEOUT),
        *("--max-body", "300k", "--max-wait-ms", 20),
    )
    yield serving
    serving.stop()


@pytest.fixture
def client(served: Serving) -> httpx.Client:
    return served.client


def occupy(
    serving: Serving, pool: ThreadPoolExecutor, seconds: float
) -> list[Future[httpx.Response]]:
    """Keep both workers busy, with a request each."""
    asked = []
    for busy in (1, 2):
        asked.append(pool.submit(serving.client.post, "/predict", json=slow(seconds)))
        wait_until(lambda n=busy: serving.metric("modpack_busy_workers") == n, lambda: "busy")
    return asked


def infer_body(**changes: object) -> dict[str, object]:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {"inputs": [{name: value for name, value in tensor.items() if value is not None}]}


# -- answers ---------------------------------------------------------------------------------


def test_predict_answers_plain_json(client):
    answer = client.post("/predict", content=b'{"x": [[1, 2, 3, 4], [0, 0, 0, 1]]}')
    assert (answer.status_code, answer.json()) == (200, {"output": [[10, 10], [1, 1]]})
    named = client.post("/models/net/predict", json={"x": [[1, 1, 1, 1]]})
    assert named.json() == {"output": [[4, 4]]}


def test_predict_decompresses_bodies(client):
    body = gzip.compress(b'{"x": [[1, 2, 3, 4]]}')
    answer = client.post("/predict", content=body, headers={"content-encoding": "gzip"})
    assert answer.json() == {"output": [[10, 10]]}
    bomb = gzip.compress(b" " * 10_000_000)
    answer = client.post("/predict", content=bomb, headers={"content-encoding": "gzip"})
    assert answer.status_code == 413
    answer = client.post("/predict", content=body[:20], headers={"content-encoding": "gzip"})
    assert answer.status_code == 400 and "cut off" in answer.json()["error"]
    answer = client.post("/predict", content=body, headers={"content-encoding": "br"})
    assert answer.status_code == 415


@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_works_unchanged(served, binary):
    client = triton.InferenceServerClient(served.url.removeprefix("http://"))
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("net")
    assert client.get_server_metadata()["name"] == "modpack"
    metadata = client.get_model_metadata("net")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    given = triton.InferInput("x", rows.shape, "FP32")
    given.set_data_from_numpy(rows, binary_data=binary)
    wanted = [triton.InferRequestedOutput("output", binary_data=binary)]
    for version in ("", metadata["versions"][0]):
        result = client.infer("net", [given], version, outputs=wanted, request_id="7")
        assert result.get_response()["id"] == "7"
        assert result.as_numpy("output").tolist() == [[6, 6], [22, 22]]
    compressed = client.infer("net", [given], request_compression_algorithm="gzip")
    assert compressed.as_numpy("output").tolist() == [[6, 6], [22, 22]]
    wrong = triton.InferInput("y", rows.shape, "FP32")
    wrong.set_data_from_numpy(rows, binary_data=binary)
    with pytest.raises(InferenceServerException, match="'y'"):
        client.infer("net", [wrong])
    client.close()


def test_health_answers_have_the_keys_that_kserve_reads(client):
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/net/ready").json() == {"name": "net", "ready": True}


def test_infer_answers_json_with_flat_and_nested_data(client):
    for data in ([1, 2, 3, 4], [[1, 2, 3, 4]]):
        answer = client.post("/v2/models/net/infer", json=infer_body(data=data)).json()
        assert answer["outputs"] == [
            {"name": "output", "datatype": "FP32", "shape": [1, 2], "data": [10, 10]}
        ]


# -- bad input -------------------------------------------------------------------------------

INFER = "/v2/models/net/infer"
DEEP = b"[" * 100_000 + b"]" * 100_000

BAD = {
    "not-json": ("/predict", b"x=1", {}, "not valid JSON"),
    "empty": ("/predict", b"", {}, "not valid JSON"),
    "cut-off": ("/predict", b'{"x": [[1, 2', {}, "not valid JSON"),
    "no-object": ("/predict", b"[1]", {}, "must be a JSON object"),
    "no-utf8": ("/predict", b'{"x": "\xff"}', {}, "UTF-8"),
    "nan": ("/predict", b'{"x": [[NaN, 1, 1, 1]]}', {}, "NaN"),
    "huge-number": ("/predict", b'{"x": [[1e300, 1, 1, 1]]}', {}, "x[0][0]"),
    "ragged": ("/predict", b'{"x": [[1, 2, 3, 4], [1]]}', {}, "x[1]"),
    "text": ("/predict", b'{"x": [["a", 2, 3, 4]]}', {}, "x[0][0]"),
    "shape": ("/predict", b'{"x": [[1, 2, 3]]}', {}, "expected float32 (batch, 4)"),
    "unknown-name": ("/predict", b'{"y": [[1, 2, 3, 4]]}', {}, "'y'"),
    "missing-name": ("/predict", b"{}", {}, "'x'"),
    "deep": ("/predict", b'{"x": ' + DEEP + b"}", {}, "nested"),
    "infer-deep": (INFER, DEEP, {}, "nested"),
    "infer-not-json": (INFER, b"{", {}, "not valid JSON"),
    "infer-list": (INFER, b"[]", {}, "must be a JSON object"),
    "infer-no-inputs": (INFER, b"{}", {}, "'inputs'"),
    "infer-inputs-text": (INFER, {"inputs": "x"}, {}, "'inputs'"),
    "infer-inputs-numbers": (INFER, {"inputs": [1]}, {}, "'inputs'"),
    "infer-twice": (INFER, {"inputs": infer_body()["inputs"] * 2}, {}, "same name"),
    "infer-name": (INFER, infer_body(name="y"), {}, "'y'"),
    "infer-datatype": (INFER, infer_body(datatype="FP31"), {}, "unknown datatype 'FP31'"),
    "infer-datatype-list": (INFER, infer_body(datatype=["FP32"]), {}, "datatype"),
    "infer-dtype": (INFER, infer_body(datatype="FP64"), {}, "float64"),
    "infer-elements": (INFER, infer_body(shape=[1000, 1_000_000]), {}, "1000000000 elements"),
    "infer-more-elements": (INFER, infer_body(shape=[10**18, 10**18]), {}, "too many"),
    "infer-overflow": (INFER, infer_body(shape=[0, 2**62, 2**62], data=[]), {}, "too many"),
    "infer-int64": (INFER, infer_body(shape=[0, 2**63], data=[]), {}, "too many"),
    "infer-digits": (INFER, infer_body(shape=[0, 10**4000], data=[]), {}, "too many"),
    "infer-many-digits": (INFER, infer_body(shape=[10**4200] * 60), {}, "too many"),
    "infer-dimensions": (INFER, infer_body(shape=[1] * 65), {}, "65 dimensions"),
    "infer-element-digits": (INFER, infer_body(data=[10**4000] * 4), {}, "x"),
    "infer-many": (INFER, {"inputs": [{"name": str(n)} for n in range(9000)]}, {}, "9000 inputs"),
    "many-names": ("/predict", json.dumps({str(n): 1 for n in range(9000)}).encode(), {}, "9000 "),
    "infer-negative": (INFER, infer_body(shape=[-1, 4]), {}, "'shape'"),
    "infer-shape-text": (INFER, infer_body(shape="1"), {}, "'shape'"),
    "infer-no-data": (INFER, infer_body(data=None), {}, "'data'"),
    "infer-nested": (INFER, infer_body(data=[[1, 2], [3, 4]]), {}, "shape"),
    "infer-texts": (INFER, infer_body(datatype="BYTES", data=["a"] * 4), {}, "'x'"),
    "infer-output": (INFER, {**infer_body(), "outputs": [{"name": "z"}]}, {}, "'z'"),
    "infer-id": (INFER, {**infer_body(), "id": 1}, {}, "'id'"),
    "infer-parameters": (INFER, {**infer_body(), "parameters": 1}, {}, "'parameters'"),
    "header-text": (INFER, infer_body(), {"inference-header-content-length": "x"}, "number"),
    "header-negative": (INFER, infer_body(), {"inference-header-content-length": "-1"}, "number"),
    "header-large": (INFER, infer_body(), {"inference-header-content-length": "99999"}, "bytes"),
    "binary-size": (
        INFER,
        infer_body(data=None, parameters={"binary_data_size": 16}),
        {},
        "0 bytes are left",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_request_gets_one_clear_line(client, case):
    path, body, headers, text = BAD[case]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content, headers=headers)
    document = answer.json()
    assert answer.status_code == 400
    assert text in document["error"] and "\n" not in document["error"]
    if path == INFER:
        assert set(document) == {"error"}
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert (document["status"], document["detail"]) == (400, document["error"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/net/versions/1", 404),
        ("GET", "/v2/other", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("GET", "/v2/models/net/infer", 405),
        ("DELETE", "/v2", 405),
        ("GET", "/predict", 405),
        ("POST", "/models/other/predict", 404),
        ("GET", "/other", 404),
    ],
)
def test_unknown_path_or_method_is_a_json_error(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    document = answer.json()
    assert document["error"]
    assert set(document) == {"error"} if path.startswith("/v2") else document["status"] == status


def test_large_bodies_are_refused(client):
    def chunks() -> Iterator[bytes]:
        for _ in range(500):
            yield b" " * 1024

    assert client.post("/predict", content=b" " * 400_000).status_code == 413
    assert client.post("/predict", content=chunks()).status_code == 413
    assert client.post(INFER, content=chunks()).json()["error"].startswith("the body exceeds")


def send_part_of_a_body(served: Serving, part: bytes = b'{"x": [[1,') -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])))
    head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
    connection.sendall(head + part)
    return connection


def test_client_that_goes_away_changes_nothing(served):
    start = len(served.lines)
    send_part_of_a_body(served).close()
    served.wait_for("request", start, status=499)
    assert served.metric("modpack_queue_requests") == 0
    assert served.predict([[1.0, 1, 1, 1]]).json() == {"output": [[4, 4]]}


def test_failing_model_is_an_error_of_its_request_only(served):
    with ThreadPoolExecutor(12) as pool:
        blocked = occupy(served, pool, 1.0)
        bad = pool.submit(served.predict, [[888.0, 0, 0, 0]])
        ends = pool.submit(served.predict, [[999.0, 0, 0, 0]])
        good = [pool.submit(served.predict, [[float(i), 0, 0, 0]]) for i in range(4)]
        assert [each.result().json()["output"] for each in good] == [[[i, i]] for i in range(4)]
        assert all(each.result().status_code == 200 for each in blocked)
    assert bad.result().status_code == ends.result().status_code == 500
    assert bad.result().json()["error"] == "the model failed: ValueError: no such number"
    assert ends.result().json()["error"] == "the model failed: RuntimeError: it called sys.exit(3)"


def test_failure_of_requests_together_is_logged_and_each_is_answered(served):
    start = len(served.lines)
    with ThreadPoolExecutor(6) as pool:
        occupy(served, pool, 1.0)
        answers = [pool.submit(served.predict, [[555.0, i, 0, 0]]) for i in range(3)]
        assert [each.result().json()["output"] for each in answers] == [
            [[555 + i, 555 + i]] for i in range(3)
        ]
    logged = served.wait_for("output", start, model="net")["message"]
    assert re.fullmatch(
        r"\d requests computed together failed: the model raised MemoryError: too many rows "
        r"\(net, line \d+\)\. They were computed one by one, without this exception\.",
        logged,
    )


# -- load ------------------------------------------------------------------------------------


def test_requests_are_computed_in_batches_and_counted_once(served):
    start = len(served.lines)
    before = served.metric("modpack_requests_total")
    with ThreadPoolExecutor(12) as pool:
        occupy(served, pool, 1.5)
        answers = list(pool.map(lambda i: served.predict([[i, 0.0, 0, 0]]), range(6)))
    assert [each.json()["output"] for each in answers] == [[[i, i]] for i in range(6)]
    wait_until(lambda: served.metric("modpack_requests_total") == before + 8, lambda: "count")
    logged = [line for line in served.lines[start:] if line["event"] == "request"]
    assert max(line["batch"] for line in logged) >= 3
    assert {"id", "method", "path", "status", "ms", "model", "time"} <= logged[0].keys()


def test_full_queue_is_429_and_probes_are_answered(served):
    with ThreadPoolExecutor(40) as pool:
        blocked = occupy(served, pool, 2.0)
        others = [pool.submit(served.predict, [[1.0, 1, 1, 1]]) for _ in range(30)]
        wait_until(lambda: sum(each.done() for each in others) >= 30 - MAX_QUEUE, lambda: "refused")
        assert served.client.get("/v2/health/live").status_code == 200
        assert served.client.get("/v2/health/ready").status_code == 200
        answers = [each.result() for each in others]
        assert all(each.result().status_code == 200 for each in blocked)
    refused = [each for each in answers if each.status_code == 429]
    assert len(refused) == 30 - MAX_QUEUE
    assert {each.status_code for each in answers} == {200, 429}
    assert refused[0].headers["retry-after"] == "1" and "queue" in refused[0].json()["error"]


def test_sustained_load_has_no_errors(served):
    def ask(number: int) -> list[int]:
        with httpx.Client(base_url=served.url) as client:
            return [
                client.post("/predict", json={"x": [[number, i, 0, 0]]}).json()["output"][0][0]
                for i in range(100)
            ]

    with ThreadPoolExecutor(8) as pool:
        for number, answers in enumerate(pool.map(ask, range(8))):
            assert answers == [number + i for i in range(100)]


def test_hung_request_is_504_and_its_worker_is_replaced(served):
    start = len(served.lines)
    stalled = [send_part_of_a_body(served, part) for part in (b'{"x": [[1,', b"")]
    answer = served.client.post("/predict", json=slow(60))
    assert answer.status_code == 504 and "3 seconds" in answer.json()["error"]
    for connection in stalled:
        with connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
    served.wait_for("worker lost", start)
    wait_until(lambda: served.metric("modpack_busy_workers") == 0, lambda: "idle")
    assert served.predict([[1.0, 1, 1, 1]]).status_code == 200


def test_killed_worker_loses_no_accepted_request(served):
    parents = _parents(_workers(served))
    with ThreadPoolExecutor(8) as pool:
        asked = occupy(served, pool, 0.5)
        asked += [pool.submit(served.client.post, "/predict", json=slow(0.1)) for _ in range(6)]
        before = _workers(served)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert [each.result().status_code for each in asked] == [200] * 8
    after = wait_until(lambda: len(_workers(served)) == 2 and _workers(served), lambda: "workers")
    assert not set(before) & set(after)
    assert _parents(after) == parents and len(parents) == 1  # forks of one process


def test_request_that_ends_two_workers_is_given_up_alone(served):
    with ThreadPoolExecutor(8) as pool:
        blocked = occupy(served, pool, 0.3)
        good = [pool.submit(served.predict, [[1.0, 1, 1, 1]]) for _ in range(3)]
        answer = served.predict([[666.0, 0, 0, 0]])
        assert answer.status_code == 500 and "ended two workers" in answer.json()["error"]
        assert [each.result().status_code for each in (*blocked, *good)] == [200] * 5
    assert served.predict([[1.0, 1, 1, 1]]).json() == {"output": [[4, 4]]}


def _workers(serving: Serving) -> list[int]:
    """The processes of the workers: children of the children of the server."""
    return [pid for child in _children(serving.process.pid) for pid in _children(child)]


def _children(pid: int) -> list[int]:
    return [int(e) for e in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _state_and_parent(pid: int) -> tuple[str, int]:
    state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return state, int(parent)


def _parents(pids: list[int]) -> set[int]:
    return {_state_and_parent(pid)[1] for pid in pids}


def test_server_process_does_not_load_torch(served):
    maps = Path(f"/proc/{served.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "libtorch" in Path(f"/proc/{_workers(served)[0]}/maps").read_text()


# -- descriptions ----------------------------------------------------------------------------


def test_openapi_document_has_the_call_signature(client):
    document = client.get("/openapi.json").json()
    body = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    x = body["schema"]["properties"]["x"]
    assert body["schema"]["required"] == ["x"] and x["description"] == "float32 (batch, 4)"
    assert (x["items"]["minItems"], x["items"]["maxItems"]) == (4, 4)
    assert x["items"]["items"]["type"] == "number"
    assert client.get("/docs").status_code == 200


def test_schemathesis_finds_no_unhandled_error(served, tmp_path):
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
            *("--max-examples", "25", "--phases", "examples,coverage,fuzzing", "--seed", "1"),
            *("--checks", f"{checks},response_schema_conformance"),
            *("--generation-database", "none", "--exclude-path", "/metrics"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_page_has_a_form_of_the_call_signature(client):
    answer = client.get("/")
    assert '"text": "float32 (batch, 4)"' in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http://" not in answer.text and "https://" not in answer.text


# -- start, replacement, and end -------------------------------------------------------------


def test_replaced_file_is_served_and_sigterm_answers_requests_in_flight(folder, package):
    path = folder / "changing.modpack"
    shutil.copy(package, path)
    new = export(folder, folder / "new.modpack", factor=2.0)
    serving = Serving(path, "--workers", 2)
    try:
        old = serving.client.get("/v2/models/changing").json()["versions"]
        answers = [serving.predict([[1.0, 1, 1, 1]]).json()]
        start = len(serving.lines)
        new.replace(path)
        while answers[-1] == {"output": [[4, 4]]}:
            answers.append(serving.predict([[1.0, 1, 1, 1]]).json())
        assert answers[-1] == {"output": [[8, 8]]} and len(answers) > 1
        serving.wait_for("ready", start)
        assert serving.client.get("/v2/models/changing").json()["versions"] != old
        (folder / "broken").write_bytes(package.read_bytes()[:1000])
        (folder / "broken").replace(path)
        assert "truncated" in serving.wait_for("replacement failed")["error"]
        assert serving.predict([[1.0, 1, 1, 1]]).json() == {"output": [[8, 8]]}
        assert serving.metric("modpack_replacements_total") == 2
        wait_until(lambda: len(_workers(serving)) == 2, lambda: "old workers")
        workers = _workers(serving)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(serving.client.post, "/predict", json=slow(0.3)) for _ in range(8)]
            wait_until(lambda: serving.metric("modpack_queue_requests") == 6, lambda: "queued")
            serving.process.send_signal(signal.SIGTERM)
            assert [each.result().status_code for each in asked] == [200] * 8
        assert serving.process.wait(10) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        serving.stop()


def test_worker_imports_what_waits_after_it_is_ready(folder, monkeypatch):
    waiting = folder / "waiting"
    waiting.mkdir()
    note = "import os\nos.write(2, b'spare: %d\\n' % os.getpid())\n"
    (waiting / "spare.py").write_text(f"{note}def double(x):\n    return x * 2\n")
    rare = "\n\ndef rare(x):\n    return spare.double(x)\n"
    source = f"import spare\n{textwrap.dedent(NET)}{rare}"
    path = export(waiting, waiting / "net.modpack", source=source)
    monkeypatch.setenv("MODPACK_LAZY", "1")
    served = Serving(path)
    try:
        ready = served.wait_for("ready")
        # Written by the worker, not by the process that has loaded the package.
        served.wait_for("output", message=f"spare: {ready['workers'][0]}")
        assert sum("spare" in str(line) for line in served.lines) == 1
        assert served.predict([[1, 2, 3, 4]]).json() == {"output": [[10.0, 10.0]]}
    finally:
        served.stop()


def _is_running(pid: int) -> bool:
    try:
        return _state_and_parent(pid)[0] != "Z"
    except OSError:
        return False


def test_several_packages_with_and_without_threads_are_served(folder, package):
    start_thread = """
    import threading

    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    """
    (folder / "other").mkdir()
    path = export(folder / "other", folder / "other" / "net.modpack", source=NET + start_thread)
    serving = Serving(f"threaded={path}", f"net={package}", "--workers", 2)
    try:
        for name in ("threaded", "net"):
            answer = serving.client.post(f"/models/{name}/predict", json={"x": [[1, 1, 1, 1]]})
            assert answer.json() == {"output": [[4, 4]]}
            assert serving.client.get(f"/v2/models/{name}").json()["name"] == name
        answer = serving.client.post("/predict", json={"x": [[1, 1, 1, 1]]})
        assert answer.status_code == 404 and "/models/net/predict" in answer.json()["error"]
        assert "/predict" not in serving.client.get("/openapi.json").json()["paths"]
        # Forks would lack the thread: each worker of this package has loaded it.
        threaded = next(line for line in serving.lines if line.get("model") == "threaded")
        children = _children(serving.process.pid)
        assert len(children) == 3 and set(threaded["workers"]) < set(children)
        os.kill(threaded["workers"][0], signal.SIGKILL)
        serving.wait_for("worker lost", model="threaded")
        answer = serving.client.post("/models/threaded/predict", json={"x": [[1, 1, 1, 1]]})
        assert answer.json() == {"output": [[4, 4]]}
        # Forks end with their zygote, which is replaced for all of them.
        forked = next(line for line in serving.lines if line.get("model") == "net")
        os.kill(_state_and_parent(forked["workers"][0])[1], signal.SIGKILL)
        serving.wait_for("loading process lost", model="net")
        answer = serving.client.post("/models/net/predict", json={"x": [[1, 1, 1, 1]]})
        assert answer.json() == {"output": [[4, 4]]}
        processes = [*_children(serving.process.pid), *_workers(serving)]
        serving.process.kill()
        serving.process.wait()
        wait_until(lambda: not any(map(_is_running, processes)), lambda: f"{processes}")
    finally:
        serving.process.kill()


def test_modules_in_the_current_folder_are_not_imported(package, tmp_path, monkeypatch):
    for name in ("random", "socket", "torch", "modpack"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('from the current folder')\n")
    monkeypatch.chdir(tmp_path)
    serving = Serving(package)
    try:
        assert serving.predict([[1, 1, 1, 1]]).json() == {"output": [[4, 4]]}
    finally:
        serving.process.kill()


def serve_failing(*arguments: object) -> str:
    """Run a server that cannot start, and return its only line of output."""
    command = [sys.executable, "-m", "modpack", "serve", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and not done.stdout
    return lines[-1]


def test_untrusted_package_opens_no_port(folder, package, tmp_path):
    keys = tmp_path / "team"
    subprocess.run([sys.executable, "-m", "modpack", "keygen", str(keys)], check=True)
    failure = serve_failing(package, "--key", tmp_path / "team.pub", "--port", 0)
    assert failure.startswith("Error:") and "signature" in failure
    policy = tmp_path / "trust.toml"
    policy.write_text("[trust]\n")
    failure = serve_failing(package, "--policy", policy, "--port", 0)
    assert failure.startswith(("Error:", "*")) and "allow_code" in failure


def test_start_reports_bad_arguments_in_one_line(package, tmp_path, served):
    assert "the file does not exist" in serve_failing(tmp_path / "missing.modpack")
    (tmp_path / "text.modpack").write_text("hello")
    assert "text.modpack" in serve_failing(tmp_path / "text.modpack")
    assert "two packages have the name 'net'" in serve_failing(package, package)
    port = served.url.rpartition(":")[2]
    assert f"port {port}" in serve_failing(package, "--port", port)


def test_missing_extra_is_one_line(tmp_path, package):
    hide = "import sys; sys.modules['uvicorn'] = None; import modpack.cli; modpack.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", hide, "serve", str(package)], capture_output=True, text=True
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "Run: pip install 'modpack[serve]'" in done.stderr
