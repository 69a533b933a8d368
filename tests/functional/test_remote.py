"""Packages at URLs: how much is read, downloads into the cache, pins, and trust."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.implementations.memory
import pytest
import torch
from click.testing import CliRunner
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

import modpack
from modpack.cli import cli
from modpack.core.cache_dir import cache_folder
from modpack.core.policy import Signer, TrustPolicy
from modpack.errors import (
    ArchiveError,
    ModpackError,
    NotAPackageError,
    PackageNotFoundError,
    SignatureError,
)
from modpack.loading.cache_maintenance import clear, list_entries
from modpack.security.signing import sign_package
from modpack.security.signing_keys import generate
from modpack.services import Services
from tests.range_server import RangeServer, serve_folder

SIZE = 64 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a package of 64 MiB, nearly all of it a tensor."""
    file = tmp_path_factory.mktemp("large") / "net.modpack"
    modpack.save(torch.nn.Embedding(SIZE >> 8, 64, _weight=torch.ones(SIZE >> 8, 64)), file)
    return file.read_bytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the server. The cache is empty."""
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "served").mkdir()
    return tmp_path / "served"


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with serve_folder(folder) as running:
        yield running


@pytest.fixture
def url(folder: Path, server: RangeServer, large: bytes) -> str:
    """Return the URL of the large package."""
    (folder / "net.modpack").write_bytes(large)
    return server.url("net.modpack")


LOOKS = (
    ["inspect", "URL"],
    ["inspect", "URL", "--tree"],
    ["audit", "URL"],
    ["why", "URL", "torch"],
    ["diff", "URL", "URL"],
    ["requirements", "URL"],
    ["verify", "URL", "--code"],
    ["sbom", "URL"],
    ["report", "URL", "--force"],
)


def assert_commands_read_little(url: str, sent: Iterator[int]) -> None:
    too_much = {}
    for command in LOOKS:
        before = next(sent)
        result = CliRunner().invoke(cli, [url if each == "URL" else each for each in command])
        assert result.exit_code == 0, result.output
        read = next(sent) - before
        if not 0 < read < SIZE / 100 * command.count("URL"):
            too_much[" ".join(command)] = read
    # The page and the list of materials are made from several passes over the package.
    assert set(too_much) <= {"report URL --force", "sbom URL"}
    assert all(read < SIZE / 25 for read in too_much.values())


def test_commands_read_less_than_a_hundredth_over_http(url: str, server: RangeServer) -> None:
    assert_commands_read_little(url, iter(lambda: server.sent, -1))


def test_commands_read_less_than_a_hundredth_from_s3(
    large: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0
    application = DomainDispatcherApplication(create_backend_app)

    def counting(environ: Any, start: Any) -> Iterator[bytes]:
        nonlocal sent
        for chunk in application(environ, start):
            sent += len(chunk)
            yield chunk

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    server = make_server("127.0.0.1", 0, counting, threaded=True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        bucket = fsspec.filesystem("s3")
        bucket.mkdir("models")
        bucket.pipe("models/net.modpack", large)
        sent = 0
        assert_commands_read_little("s3://models/net.modpack", iter(lambda: sent, -1))
        with pytest.raises(PackageNotFoundError):
            modpack.load("s3://models/other.modpack")
        bucket.pipe("models/net.modpack", large[:-1])
        with pytest.raises(ArchiveError, match="probably truncated"):
            modpack.load("s3://models/net.modpack")
        bucket.pipe("models/net.modpack", large)
        sent = 0
        for _ in range(2):
            assert isinstance(modpack.load("s3://models/net.modpack"), torch.nn.Embedding)
        assert SIZE < sent < SIZE * 1.1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_call_signature_reads_ranges(url: str, server: RangeServer) -> None:
    assert modpack.call_signature(url) is None
    assert 0 < server.sent < SIZE / 100


def test_inspect_prints_pinned_url_that_loads(url: str) -> None:
    printed = CliRunner().invoke(cli, ["inspect", url]).output.split()[0]
    assert printed.startswith(f"{url}#sha256=")
    assert isinstance(modpack.load(printed), torch.nn.Embedding)


def test_other_digest_than_the_pinned_one_is_refused(url: str, server: RangeServer) -> None:
    pinned = f"{url}#sha256={'0' * 64}"
    result = CliRunner().invoke(cli, ["inspect", pinned])
    assert result.exit_code == 2
    assert f"the URL pins {'0' * 64}" in result.output
    for use in (modpack.load, modpack.load_weights, modpack.call_signature):
        with pytest.raises(ArchiveError, match="the URL pins 000"):
            use(pinned)
    assert server.sent < SIZE / 25


@pytest.mark.parametrize("pin", ["#sha256=", "#sha256=abc", "#SHA256=" + "0" * 64, "#sha512=0"])
def test_malformed_pin_is_refused(pin: str) -> None:
    for use in (modpack.load, modpack.call_signature):
        with pytest.raises(ModpackError, match="does not consist of '#sha256=' and 64 hex digits"):
            use(f"memory://bucket/net.modpack{pin}")


def test_other_format_is_named_before_a_download(folder: Path, server: RangeServer) -> None:
    torch.save(torch.zeros(1 << 20), folder / "net.pt")
    with pytest.raises(NotAPackageError, match=r"a file from torch\.save.* torch\.load"):
        modpack.load(server.url("net.pt"))
    assert server.sent < 1 << 20


def test_archive_of_torch_package_cannot_be_pinned(folder: Path, server: RangeServer) -> None:
    with torch.package.PackageExporter(str(folder / "old.pt")) as exporter:
        exporter.save_pickle("objects", "one.pkl", [1])
    url = server.url("old.pt")
    assert modpack.load(url) == [1]
    with pytest.raises(ArchiveError, match="without digests, so it cannot be pinned"):
        modpack.load(f"{url}#sha256={'0' * 64}")


def test_package_is_downloaded_once(url: str, server: RangeServer) -> None:
    loaded = modpack.load(url)
    importer = modpack.importer_of(loaded)
    assert importer is not None and importer.filename == url
    assert modpack.PackageImporter(Path(url)).filename == url
    assert SIZE < server.sent < SIZE * 1.1
    modpack.load(url)
    assert list(modpack.load_weights(url)) == ["weight"]
    assert server.sent < SIZE * 1.1


def test_second_url_of_a_package_is_not_downloaded(
    url: str, folder: Path, server: RangeServer
) -> None:
    modpack.load(url)
    os.link(folder / "net.modpack", folder / "same.modpack")
    modpack.load(server.url("same.modpack"))
    assert server.sent < SIZE * 1.1


def test_downloaded_package_is_an_entry_of_the_cache(url: str) -> None:
    modpack.load(url)
    sizes = {each.size_bytes: each.name for each in list_entries(cache_folder())}
    assert sizes[max(sizes)] == "net.modpack" and max(sizes) > SIZE


def test_ten_processes_download_once(url: str, server: RangeServer) -> None:
    code = "import sys; from modpack.remote import downloaded; print(downloaded(sys.argv[1]))"
    running = [
        subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    printed = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0] * 10
    assert len(printed) == 1
    assert server.sent < SIZE * 1.2


def test_interrupted_download_is_continued(url: str, server: RangeServer) -> None:
    def fail_late(count: int) -> None:
        if count > 5:
            raise ConnectionError

    server.before_range = fail_late
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(ArchiveError, match="the object cannot be read"):
        modpack.load(url)
    received = server.sent
    assert received > SIZE / 2
    server.before_range = lambda count: None
    modpack.load(url)
    assert server.sent < SIZE * 1.1 + received - SIZE / 2


def test_interrupted_download_is_removed_with_the_cache(url: str, server: RangeServer) -> None:
    server.before_range = lambda count: server.url if count < 3 else 1 / 0
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    code = "import sys; from modpack.remote import downloaded; downloaded(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, url], stderr=subprocess.DEVNULL)
    assert list(cache_folder().rglob("*.part"))
    assert clear(cache_folder()).leftovers == 1
    assert not list(cache_folder().rglob("*.part"))


def test_damaged_object_is_refused_before_use(
    url: str, folder: Path, server: RangeServer, large: bytes
) -> None:
    damaged = bytearray(large)
    damaged[SIZE // 2] ^= 1
    (folder / "net.modpack").write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(ArchiveError, match=r"#sha256=\w+: 1 record does not match"):
            modpack.load(url)
    assert not list(cache_folder().rglob("package.modpack"))


def test_file_that_was_changed_in_the_cache_is_downloaded_again(
    url: str, server: RangeServer, caplog: pytest.LogCaptureFixture
) -> None:
    modpack.load(url)
    (kept,) = cache_folder().rglob("package.modpack")
    with kept.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"other")
    assert modpack.load(url).weight.min() == 1
    assert "files were modified in the cache" in caplog.text


def test_truncated_object_is_refused(url: str, folder: Path, large: bytes) -> None:
    (folder / "net.modpack").write_bytes(large[:-100])
    with pytest.raises(ArchiveError, match="the file is probably truncated"):
        modpack.load(url)


def test_truncated_answer_is_refused(url: str, server: RangeServer) -> None:
    server.missing_bytes = 1
    result = CliRunner().invoke(cli, ["inspect", url])
    assert "the object ends too early" in result.output


def test_replaced_object_is_refused(
    url: str, folder: Path, server: RangeServer, large: bytes
) -> None:
    def replace_once(count: int) -> None:
        if count == 0:
            (folder / "other").write_bytes(large)
            (folder / "other").replace(folder / "net.modpack")

    server.before_range = replace_once
    result = CliRunner().invoke(cli, ["inspect", url])
    assert result.exit_code == 2
    assert "the file was replaced or changed after it was opened" in result.output
    server.requested = 0
    with pytest.raises(ArchiveError, match="replaced"):
        modpack.load(url)


def test_missing_and_deleted_object_is_reported(
    url: str, folder: Path, server: RangeServer
) -> None:
    with pytest.raises(PackageNotFoundError, match=r"the object was not found \(404"):
        modpack.load(server.url("other.modpack"))

    def delete(count: int) -> None:
        if count == 1:
            (folder / "net.modpack").unlink()

    server.requested, server.before_range = 0, delete
    with pytest.raises(ArchiveError, match="the object was deleted while modpack read it"):
        modpack.load(url)


def test_server_without_ranges_is_named(url: str, server: RangeServer) -> None:
    server.has_ranges = False
    with pytest.raises(ArchiveError, match=r"(?s)range requests.*\. Download the file and"):
        modpack.load(url)
    assert server.sent < SIZE / 10


def test_url_without_fsspec_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for use in (modpack.load, modpack.call_signature):
        with pytest.raises(ModpackError, match=r"Run: pip install 'modpack\[remote\]'"):
            use("s3://bucket/net.modpack")


def test_runtime_without_other_layers_names_the_extra() -> None:
    runtime = Services()
    for use in (runtime.downloaded, runtime.open_remote):
        with pytest.raises(ArchiveError, match=r"this is a URL. Install modpack: .*\[remote\]"):
            use("s3://bucket/net.modpack")


def test_files_are_opened_without_fsspec(tmp_path: Path) -> None:
    modpack.save([1], tmp_path / "net.modpack")
    code = "import modpack, sys; modpack.load(sys.argv[1]); print('fsspec' in sys.modules)"
    alone = [sys.executable, "-c", code, str(tmp_path / "net.modpack")]
    assert subprocess.run(alone, capture_output=True, text=True).stdout.split() == ["False"]


class Bucket(fsspec.implementations.memory.MemoryFileSystem):
    """A store of another provider, whose library is not installed here."""

    protocol = "gs", "hf"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in the class above
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.rpartition("://")[2])


@pytest.mark.parametrize("scheme", Bucket.protocol)
def test_other_schemes_reach_their_file_systems(scheme: str, folder: Path) -> None:
    fsspec.register_implementation(scheme, Bucket, clobber=True)
    modpack.save([1], folder / "net.modpack")
    Bucket().pipe("/models/net.modpack", (folder / "net.modpack").read_bytes())
    url = f"{scheme}://models/net.modpack"
    assert CliRunner().invoke(cli, ["inspect", url]).output.startswith(f"{url}#sha256=")
    assert modpack.load(url) == [1]
    with pytest.raises(PackageNotFoundError, match="the object was not found"):
        modpack.load(f"{scheme}://models/other.modpack")


def test_detached_signature_is_read_next_to_the_url(folder: Path, server: RangeServer) -> None:
    modpack.save(torch.nn.Linear(1, 1).half(), folder / "net.modpack")
    key, url = generate(), server.url("net.modpack")
    policy = TrustPolicy(require_signature_from=(Signer("me", key.public_key),))
    with pytest.raises(SignatureError, match="not signed"):
        modpack.load_weights(url, policy=policy)
    sign_package(folder / "net.modpack", generate(), embed=False)
    with pytest.raises(SignatureError, match=f"{url}: .*is not from a trusted signer"):
        modpack.load_weights(url, policy=policy)
    sign_package(folder / "net.modpack", key, embed=False)
    assert list(modpack.load_weights(url, policy=policy)) == ["weight", "bias"]
    (folder / "me.pub").write_text(key.public_key)
    pinned = CliRunner().invoke(cli, ["inspect", url]).output.split()[0]
    for command in "verify", "audit":
        result = CliRunner().invoke(cli, [command, pinned, "--key", str(folder / "me.pub")])
        assert result.exit_code == 0, result.output


def test_worker_checks_the_detached_signature_again(
    folder: Path, server: RangeServer, clean_python: Any
) -> None:
    with modpack.PackageExporter(folder / "net.modpack") as exporter:
        exporter.save_source_string("lab", "class Net(list): pass")
    key = generate()
    sign_package(folder / "net.modpack", key, embed=False)
    signer = Signer("me", key.public_key)
    policy = TrustPolicy(allow_code=True, require_signature_from=(signer,))
    with modpack.PackageImporter(server.url("net.modpack"), policy=policy) as importer:
        (folder / "sent.pkl").write_bytes(pickle.dumps(importer.import_module("lab").Net([1])))
    code = "import pickle; print(pickle.loads(path.read_bytes()))"
    assert clean_python(code, path=folder / "sent.pkl").stdout == "[1]\n"


def test_query_of_a_url_is_not_passed_on_to_a_signature(folder: Path, server: RangeServer) -> None:
    modpack.save([1], folder / "net.modpack")
    sign_package(folder / "net.modpack", generate(), embed=False)
    result = CliRunner().invoke(cli, ["verify", server.url("net.modpack") + "?token=1"])
    assert "the signature names" not in result.output and result.exit_code == 0, result.output
    result = CliRunner().invoke(cli, ["verify", server.url("net.modpack")])
    assert "net.modpack.sig: the signature names" in result.output
