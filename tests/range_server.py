"""An HTTP server of files that answers range requests and counts the bytes that it sends."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class RangeServer(ThreadingHTTPServer):
    """The server. A test changes its attributes while it runs.

    Attributes:
        sent: Number of bytes sent in bodies.
        requested: Number of requests with a body.
        has_ranges: Whether range requests are answered with ranges.
        before_range: Called with the number of earlier requests before each answer.
        missing_bytes: Number of bytes that each body is too short.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, folder))
        self.sent = self.requested = self.missing_bytes = 0
        self.has_ranges = True
        self.before_range: Callable[[int], object] = lambda count: None
        self.counting = threading.Lock()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.folder = folder
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        with self.server.counting:
            count = self.server.requested
            self.server.requested += 1
        self.server.before_range(count)
        self._answer(has_body=True)

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, has_body: bool) -> None:
        file = self.folder / self.path.partition("?")[0].lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        status = file.stat()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = 0, status.st_size
        if asked and self.server.has_ranges:
            start, end = int(asked[1]), min(int(asked[2]) + 1, end)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{status.st_size}")
        else:
            self.send_response(200)
        end -= self.server.missing_bytes if has_body else 0
        self.send_header("ETag", f'"{status.st_mtime_ns:x}-{status.st_ino:x}"')
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if has_body:
            with file.open("rb") as stream, contextlib.suppress(ConnectionError):
                stream.seek(start)
                while start < end and (chunk := stream.read(min(1 << 20, end - start))):
                    self.wfile.write(chunk)
                    start += len(chunk)
                    with self.server.counting:
                        self.server.sent += len(chunk)


@contextlib.contextmanager
def serve_folder(folder: Path) -> Iterator[RangeServer]:
    """Serve the files in a folder while the block runs."""
    with RangeServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
