"""``modpack serve`` under exhaustion: endless heads, huge numbers, models that misbehave."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving_process import NET, Serving, export, slow, wait_until

TIMEOUT = 2
MISBEHAVING = NET.replace(
    "            return self.linear(x)",
    """
            if (commands == 111.0).any():
                raise KeyboardInterrupt
            if (commands == 222.0).any():
                os.closerange(3, 100)
            return self.linear(x)
    """,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exhausted")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Serving]:
    package = export(folder, folder / "net.modpack", source=MISBEHAVING)
    serving = Serving(f"net={package}", "--timeout", TIMEOUT)
    yield serving
    serving.stop()


def connect(serving: Serving) -> socket.socket:
    host, _, port = serving.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_head_that_does_not_end_is_refused_after_the_timeout(served):
    connections = [connect(served) for _ in range(50)]
    connections[0].sendall(b"POST /predict HTTP/1.1\r\nhost: a\r\nx: ")
    for each in connections[1:25]:
        each.sendall(b"GET /v2 HT")
    answers = [read_all(each) for each in connections]
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
    assert json.loads(answers[0].partition(b"\r\n\r\n")[2])["error"].endswith("within 2 seconds")
    assert served.predict([[1, 1, 1, 1]]).json() == {"output": [[4, 4]]}


def test_head_that_is_too_large_is_refused_at_once(served):
    with connect(served) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nx: ")
        with pytest.raises(OSError):  # the server has closed the connection
            for _ in range(4000):
                connection.sendall(b"a" * 10_000)
                time.sleep(0.001)
    assert served.predict([[1, 1, 1, 1]]).json() == {"output": [[4, 4]]}


def test_kept_connection_may_idle_longer_than_a_head(served):
    assert served.predict([[1, 1, 1, 1]]).status_code == 200
    time.sleep(TIMEOUT + 0.5)
    assert served.predict([[1, 1, 1, 1]]).status_code == 200


INPUT = {"name": "x", "datatype": "FP32", "data": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    "shape",
    [
        [0, 2**62, 2**62],
        [2**63],
        [2**64, 0],
        [0] + [2**32] * 60,
        [1] * 65,
        [10**4200, 0],
        [10**4200] * 300,
    ],
    ids=str,
)
@pytest.mark.parametrize("is_binary", [False, True])
def test_impossible_shape_is_the_clients_error(served, shape, is_binary):
    more = {"data": None, "parameters": {"binary_data_size": 0}} if is_binary else {}
    answer = served.client.post(
        "/v2/models/net/infer", json={"inputs": [{**INPUT, "shape": shape, **more}]}
    )
    assert answer.status_code == 400
    assert len(answer.json()["error"]) < 300


def test_many_unknown_inputs_are_refused_by_their_number(served):
    lost = served.metric("modpack_workers_lost_total")
    body = {f"k{n}": n for n in range(300_000)}
    answer = served.client.post("/predict", json=body)
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "the request has 300000 inputs, and the model has 1",
    )
    inputs = [{**INPUT, "name": f"k{n}", "shape": [4]} for n in range(60_000)]
    answer = served.client.post("/v2/models/net/infer", json={"inputs": inputs})
    assert answer.json()["error"] == "the request has 60000 inputs, and the model has 1"
    assert served.metric("modpack_workers_lost_total") == lost


@pytest.mark.parametrize(("command", "error"), [(111.0, "KeyboardInterrupt"), (222.0, "OSError")])
def test_log_of_worker_that_ends_is_one_json_line(served, command, error):
    start = len(served.lines)
    answer = served.predict([[command, 0, 0, 0]])
    assert answer.status_code >= 500
    served.wait_for("worker lost", start)
    assert served.predict([[1, 1, 1, 1]]).json() == {"output": [[4, 4]]}
    ended = [line for line in served.lines[start:] if line["event"] == "process ends"]
    assert ended and all(error in line["error"] for line in ended)
    assert all("time" in line for line in served.lines)


def test_worker_that_cannot_be_forked_ends_with_a_killed_server(folder):
    (folder / "threaded").mkdir()
    thread = """
    import threading

    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    """
    endless = NET.replace("time.sleep(float", "exec('while True: pass') or (float")
    path = export(folder / "threaded", folder / "threaded" / "net.modpack", source=endless + thread)
    serving = Serving(f"net={path}")
    (worker,) = serving.wait_for("ready")["workers"]
    with connect(serving) as connection:
        body = json.dumps(slow(1)).encode()
        head = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        wait_until(lambda: serving.metric("modpack_busy_workers") == 1, lambda: "busy")
        serving.process.kill()
        serving.process.wait()
        wait_until(lambda: not is_running(worker), lambda: "the worker goes on")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
