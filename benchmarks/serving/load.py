"""A closed-loop HTTP load generator: each client sends its next request after an answer.

It writes prepared bytes to sockets and looks for the end of each answer, so that it takes little
time away from the server, with which it shares the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from functools import partial


class Client(asyncio.Protocol):
    """A connection that sends the same request again and again."""

    def __init__(self, request: bytes, until: float, begin: float) -> None:
        self._request = request
        self._until = until
        self._begin = begin
        self._buffer = b""
        self._sent = 0.0
        self.seconds: list[float] = []
        self.answers = 0
        self.errors: dict[str, int] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lowered = head.lower()
        start = lowered.index(b"content-length:") + 15
        end = lowered.find(b"\r\n", start)
        length = int(lowered[start : end if end > 0 else None])
        if len(body) < length:
            return
        now = time.perf_counter()
        self.answers += 1
        status = head[9:12].decode()
        if status != "200":
            self.errors[status] = self.errors.get(status, 0) + 1
        elif self._sent >= self._begin:
            self.seconds.append(now - self._sent)
        self._buffer = b""
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if time.perf_counter() < self._until:
            self.errors["connection lost"] = self.errors.get("connection lost", 0) + 1
        if not self.done.done():
            self.done.set_result(None)


async def run(
    host: str, port: int, path: str, body: bytes, clients: int, seconds: float, warmup: float
) -> dict[str, object]:
    """Return requests per second, percentiles of latency in milliseconds, and errors.

    ``answers`` also counts those of the warm-up.
    """
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    begin = time.perf_counter() + warmup
    loop = asyncio.get_running_loop()
    started = []
    for _ in range(clients):
        make = partial(Client, request, begin + seconds, begin)
        started.append((await loop.create_connection(make, host, port))[1])
    await asyncio.gather(*(client.done for client in started))
    times = sorted(each for client in started for each in client.seconds)
    errors: dict[str, int] = {}
    for client in started:
        for kind, count in client.errors.items():
            errors[kind] = errors.get(kind, 0) + count
    return {
        "requests": len(times),
        "answers": sum(client.answers for client in started),
        "rate": len(times) / seconds,
        "p50": 1000 * times[len(times) // 2] if times else float("nan"),
        "p99": 1000 * times[int(len(times) * 0.99)] if times else float("nan"),
        "errors": errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("clients", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--warmup", type=float, default=1.0)
    options = parser.parse_args()
    body = sys.stdin.buffer.read()
    done = run(
        "127.0.0.1",
        options.port,
        options.path,
        body,
        options.clients,
        options.seconds,
        options.warmup,
    )
    print(json.dumps(asyncio.run(done)))


if __name__ == "__main__":
    main()
