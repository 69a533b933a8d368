"""``modpack serve`` when resources run out, and models that do their worst."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.serving_process import NET, Serving, export, wait_until

WORST = (
    NET
    + """
    import threading

    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    forward = Net.forward


    def worse(self, x):
        if (x == 111.0).any():
            while True:
                pass
        if (x == 222.0).any():
            raise KeyboardInterrupt
        if (x == 333.0).any():
            os.closerange(3, 256)
        return forward(self, x)


    Net.forward = worse
"""
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worst")
    return export(folder, folder / "net.modpack", source=WORST)


def connect(serving: Serving) -> socket.socket:
    port = int(serving.url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def test_heads_are_limited_in_time_and_bytes(package):
    serving = Serving(package, "--timeout", 1)
    try:
        clients = [connect(serving) for _ in range(200)]
        for client in clients:
            client.sendall(b"POST /predict HTTP/1.1\r\nhost: a\r\n")
        assert [client.recv(1) for client in clients] == [b""] * 200
        large = connect(serving)
        with pytest.raises(OSError):
            for _ in range(1000):
                large.sendall(b"x" * 40_000 if _ else b"GET / HTTP/1.1\r\nx: ")
        assert serving.predict([[1.0, 1, 1, 1]]).status_code == 200
    finally:
        serving.stop()


@pytest.mark.parametrize("trailer", [b"x" * 40_000, b"a: b\r\n" * 7_000])
def test_trailers_are_limited_and_small_chunks_are_not(package, trailer):
    serving = Serving(package, "--timeout", 20)
    head = b"POST /predict HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"x": [[1, 1, 1, 1]]}' + b" " * 30_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)  # more framing than a head may have
    try:
        client = connect(serving)
        client.sendall(head + chunks + b"0\r\na: b\r\n\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        client = connect(serving)
        client.sendall(head + chunks + b"0\r\na: ")
        with pytest.raises(OSError):
            for _ in range(1000):
                client.sendall(trailer)
    finally:
        serving.stop()


@pytest.mark.parametrize("number", [222.0, 333.0])
def test_every_line_of_the_log_is_json(package, number):
    serving = Serving(package, "--timeout", 60)
    try:
        assert serving.predict([[1.0, number, 0, 0]]).status_code == 500
        serving.wait_for("worker lost")
        assert all("time" in line for line in serving.lines), serving.lines
    finally:
        serving.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="a service of Linux")
def test_killed_server_leaves_no_process_in_an_endless_forward(package):
    serving = Serving(package, "--timeout", 60)
    worker = serving.wait_for("ready")["workers"][0]
    with connect(serving) as client:
        body = b'{"x": [[111, 0, 0, 0]]}'
        client.sendall(b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-length: 23\r\n\r\n" + body)
        wait_until(lambda: serving.metric("modpack_busy_workers") == 1, lambda: "busy")
        serving.process.kill()
        serving.process.wait()
    try:
        gone = lambda: not Path(f"/proc/{worker}").exists() or "Z" in _state(worker)  # noqa: E731
        wait_until(gone, lambda: "an orphan", 5)
    except AssertionError:
        os.kill(worker, signal.SIGKILL)
        raise


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_replacement_is_loaded_when_descriptors_are_free_again(package, tmp_path):
    import resource

    path = tmp_path / "net.modpack"
    shutil.copy(package, path)
    serving = Serving(path)
    try:
        before = resource.prlimit(serving.process.pid, resource.RLIMIT_NOFILE)
        start = len(serving.lines)
        resource.prlimit(serving.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        shutil.copy(package, tmp_path / "new")
        (tmp_path / "new").replace(path)
        assert "Too many open files" in str(serving.wait_for("replacement failed", start)["error"])
        time.sleep(1.5)
        resource.prlimit(serving.process.pid, resource.RLIMIT_NOFILE, before)
        serving.wait_for("ready", start)
        assert serving.predict([[1.0, 1, 1, 1]]).json() == {"output": [[4, 4]]}
    finally:
        serving.stop()
