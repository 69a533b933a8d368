"""A registry for tests: ``docker-registry`` behind a server that counts and interferes."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

HOP_BY_HOP = ("connection", "transfer-encoding", "content-length")


class Request(NamedTuple):
    """A request that the front has answered.

    Attributes:
        method: The HTTP method.
        path: The path below the repository, such as ``manifests/1.0``.
        received: Size of the request's body.
        sent: Size of the answer's body.
    """

    method: str
    path: str
    received: int
    sent: int


class Front(ThreadingHTTPServer):
    """The server before the registry. A test changes its attributes while it runs.

    Attributes:
        requests: The answered requests.
        has_ranges: Whether range requests reach the registry.
        has_referrers: Whether to keep a list of referrers, as newer registries do.
        needs_token: Whether requests need a token with their scope, as in large registries.
        fails: The status of the next answers to paths that contain the key.
    """

    daemon_threads = True

    def __init__(self, registry: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, registry))
        self.folder = folder
        self.requests: list[Request] = []
        self.has_ranges = True
        self.has_referrers = self.needs_token = False
        self.fails: dict[str, list[int]] = {}
        self.referrers: dict[str, list[dict[str, object]]] = {}

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.requests)

    def blob(self, digest: str) -> Path:
        """Return the file of a blob in the registry's storage."""
        name = digest.removeprefix("sha256:")
        return self.folder / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


class _Handler(BaseHTTPRequestHandler):
    server: Front
    protocol_version = "HTTP/1.1"

    def __init__(self, registry: str, *arguments: object) -> None:
        self.registry = registry
        super().__init__(*arguments)  # type: ignore[arg-type]

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        front, parts = self.server, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        scope = "pull" if self.command in ("GET", "HEAD") else "pull,push"
        kind, _, digest = parts.path.rpartition("/")
        if parts.path == "/token":
            token = "tok-" + parse_qs(parts.query)["scope"][0].rpartition(":")[2]
            return self.answer(200, {}, json.dumps({"token": token}).encode(), len(body))
        for part, statuses in front.fails.items():
            if part in self.path and statuses:
                return self.answer(statuses.pop(0), {}, b"{}", len(body))
        if front.needs_token and scope not in self.headers.get("Authorization", ""):
            realm = (
                f'Bearer realm="http://{front.host}/token",service="s",scope="repository:a:{scope}"'
            )
            return self.answer(401, {"WWW-Authenticate": realm}, b"{}", len(body))
        if front.has_referrers and kind.endswith("/referrers"):
            index = {"schemaVersion": 2, "manifests": front.referrers.get(digest, [])}
            return self.answer(200, {}, json.dumps(index).encode(), len(body))
        connection = http.client.HTTPConnection(self.registry)
        headers = dict(self.headers)
        if not front.has_ranges:
            headers.pop("Range", None)
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        passed = {k: v for k, v in answer.getheaders() if k.lower() not in HOP_BY_HOP}
        if self.command == "HEAD":
            passed["Content-Length"] = answer.getheader("Content-Length", "0")
        if front.has_referrers and self.command == "PUT" and b'"subject"' in body:
            manifest = json.loads(body)
            entry = {
                "mediaType": manifest["mediaType"],
                "artifactType": manifest["artifactType"],
                "digest": f"sha256:{hashlib.sha256(body).hexdigest()}",
                "size": len(body),
            }
            front.referrers.setdefault(manifest["subject"]["digest"], []).append(entry)
            passed["OCI-Subject"] = manifest["subject"]["digest"]
        connection.close()
        self.answer(answer.status, passed, content, len(body))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_GET

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # clients keep connections, and drop them
            super().handle()

    def answer(self, status: int, headers: dict[str, str], content: bytes, received: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        elif "Content-Length" not in headers:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        path = self.path.partition("?")[0].removeprefix("/v2/")
        for part in ("manifests", "blobs", "referrers"):
            found = path.find(f"/{part}/")
            path = path[found + 1 :] if found >= 0 else path
        self.server.requests.append(Request(self.command, path, received, len(content)))


@contextlib.contextmanager
def run_registry(folder: Path, users: str = "") -> Iterator[Front]:
    """Run a registry while the block runs.

    Args:
        folder: An empty folder for its configuration and storage.
        users: Lines of an htpasswd file. If empty, everybody is allowed.
    """
    folder.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    config: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": host},
    }
    if users:
        (folder / "users").write_text(users)
        config["auth"] = {"htpasswd": {"realm": "models", "path": str(folder / "users")}}
    (folder / "config.yml").write_text(json.dumps(config))  # YAML contains JSON
    command = ["docker-registry", "serve", str(folder / "config.yml")]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as registry:
        try:
            _wait(registry, host)
            with Front(host, folder / "storage") as front:
                thread = threading.Thread(target=front.serve_forever, args=(0.02,))
                thread.start()
                try:
                    yield front
                finally:
                    front.shutdown()
                    thread.join()
        finally:
            registry.terminate()


def _wait(registry: subprocess.Popen[bytes], host: str) -> None:
    deadline = time.monotonic() + 60
    while registry.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://{host}/v2/").close()
        except urllib.error.HTTPError:
            return  # it asks for a password
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("docker-registry does not run")


def push_unchecked(file: Path, address: str) -> None:
    """Push a file as a package without reading it, as somebody with another program would."""
    from modpack.integrations import oci, oci_registry  # tests without oras import this module, too

    content, target = file.read_bytes(), oci_registry.parse_address(address)
    repository = oci_registry.Repository(target)
    annotations = {oci_registry.TITLE: file.name, oci_registry.FILE: file.name}
    digest = oci_registry.digest_of(content)
    layer = {"mediaType": "a/b", "digest": digest, "size": len(content), "annotations": annotations}
    repository.put_blob(digest, content)
    repository.put_blob(oci_registry.digest_of(b"{}"), b"{}")
    manifest = oci._manifest(oci_registry.PACKAGE_TYPE, [layer], annotations)
    repository.put_manifest(target.reference, manifest)
    signature = file.with_name(f"{file.name}.sig")
    if signature.is_file():
        oci._push_signature(repository, manifest, file.name, signature.read_bytes())
