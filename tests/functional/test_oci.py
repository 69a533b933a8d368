"""Packages in OCI registries: pushed, pulled, read at their address, and what goes wrong."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from oras.client import OrasClient

import modpack
from modpack.archive.reader import open_archive
from modpack.cli import cli
from modpack.core.policy import Signer, TrustPolicy
from modpack.errors import ArchiveError, ModpackError, NotAPackageError, PackageNotFoundError
from modpack.integrations import oci_registry
from modpack.integrations.oci import pull, push
from modpack.loading.cache_maintenance import clear
from modpack.security.signing import sign_package
from modpack.security.signing_keys import generate
from tests.range_server import serve_folder
from tests.registry import Front, run_registry

pytestmark = pytest.mark.oci

MIB = 1 << 20
TENSORS, TENSOR_BYTES = 4, 16 * MIB
PASSWORD = "open-sesame"
USERS = "me:$2y$05$abcdefghijklmnopqrstuutXu9KzOt.1yBoZUeFWoT/914/JfszCO"
"""An htpasswd file with the bcrypt hash of the password."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with run_registry(tmp_path_factory.mktemp("registry")) as front:
        yield front


@pytest.fixture
def front(running: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """Return the registry, without interference. The cache and Docker's configuration are empty."""
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    running.requests.clear()
    running.has_ranges, running.has_referrers, running.needs_token = True, False, False
    running.fails.clear()
    yield running


@pytest.fixture
def address(front: Front, request: pytest.FixtureRequest) -> str:
    """Return an address in a repository that no other test uses."""
    name = request.node.name.lower().replace("[", "-").strip("]")
    return f"{front.host}/team/{name}:1"


def large_model() -> torch.nn.ParameterList:
    torch.manual_seed(0)
    return torch.nn.ParameterList(torch.rand(TENSOR_BYTES >> 2) for _ in range(TENSORS))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a package of four tensors of 16 MiB."""
    file = tmp_path_factory.mktemp("large") / "net.modpack"
    modpack.save(large_model(), file)
    return file


@pytest.fixture
def small(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    modpack.save(torch.nn.Linear(4, 4), tmp_path / "net.modpack")
    return tmp_path / "net.modpack"


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# -- push and pull ---------------------------------------------------------------------------


def test_pulled_file_equals_pushed_file(large: Path, address: str, tmp_path: Path) -> None:
    pushed = run("push", large, address)
    assert pushed.exit_code == 0, pushed.output
    assert f"oci://{address}#sha256=" in pushed.output
    pulled = run("pull", address, "-o", tmp_path / "copy.modpack")
    assert pulled.exit_code == 0, pulled.output
    assert (tmp_path / "copy.modpack").read_bytes() == large.read_bytes()


def test_new_version_uploads_what_changed(
    large: Path, front: Front, address: str, tmp_path: Path
) -> None:
    first = push(large, address)
    assert first.uploaded == first.layers > TENSORS
    model = large_model()
    with torch.no_grad():
        model[1].add_(1)
    modpack.save(model, tmp_path / "net.modpack")
    front.requests.clear()
    second = push(tmp_path / "net.modpack", address)
    assert TENSOR_BYTES < second.uploaded_bytes < TENSOR_BYTES + MIB
    assert sum(each.received for each in front.requests) < TENSOR_BYTES + MIB
    assert second.layers == first.layers and second.size_bytes > TENSORS * TENSOR_BYTES
    pull(address, tmp_path / "copy.modpack")
    copy = (tmp_path / "copy.modpack").read_bytes()
    assert copy == (tmp_path / "net.modpack").read_bytes()


def test_second_push_of_a_package_uploads_nothing(small: Path, front: Front, address: str) -> None:
    first = push(small, address)
    front.requests.clear()
    second = push(small, address)
    assert (second.uploaded, second.uploaded_bytes) == (0, 0)
    assert second.manifest == first.manifest


def test_commands_print_documents_as_json(small: Path, address: str) -> None:
    pushed = json.loads(run("push", small, address, "--json").stdout)
    assert pushed["size_bytes"] == small.stat().st_size
    pulled = json.loads(run("pull", address, "-o", "copy.modpack", "--json").stdout)
    assert pulled["url"] == pushed["url"] and pulled["manifest"] == pushed["manifest"]
    assert pulled["signature_path"] is None


def test_pull_by_digest_of_the_manifest(small: Path, address: str) -> None:
    pushed = push(small, address)
    by_digest = f"{address.rpartition(':')[0]}@{pushed.manifest}"
    assert pull(by_digest, "copy.modpack").manifest == pushed.manifest
    assert modpack.load(f"oci://{by_digest}").in_features == 4
    with pytest.raises(ModpackError, match="packages are pushed to a tag"):
        push(small, by_digest)


def test_pull_without_a_tag_takes_latest(small: Path, address: str) -> None:
    untagged = address.removesuffix(":1")
    push(small, untagged)
    pull(f"{untagged}:latest", "copy.modpack")
    assert Path("copy.modpack").read_bytes() == small.read_bytes()
    assert modpack.load(f"oci://{untagged}").in_features == 4


def test_pull_keeps_the_file_if_it_fails(small: Path, front: Front, address: str) -> None:
    Path("copy.modpack").write_bytes(b"other")
    pushed = push(small, address)
    with pytest.raises(ArchiveError, match=r"the URL pins 000.* Inspect the new package"):
        pull(f"{address}#sha256={'0' * 64}", "copy.modpack")
    assert Path("copy.modpack").read_bytes() == b"other"
    pull(pushed.url, "copy.modpack")
    assert Path("copy.modpack").read_bytes() == small.read_bytes()


def test_summary_of_the_audit_is_in_the_annotations(front: Front, address: str) -> None:
    modpack.save(torch.nn.Linear(1, 1), "net.modpack", self_test=False)
    pushed = push("net.modpack", address)
    found = OrasClient(insecure=True).get_manifest(address)["annotations"]
    assert pushed.url.endswith(found["io.github.modpack.digest"])
    assert found["io.github.modpack.audit.passed"] == "true"
    assert found["io.github.modpack.audit.errors"] == "0"
    assert "self-test-missing" in found["io.github.modpack.audit.findings"].split(",")


def test_oras_pulls_parts_whose_concatenation_is_the_file(
    large: Path, address: str, tmp_path: Path
) -> None:
    push(large, address)
    files = OrasClient(insecure=True).pull(target=address, outdir=str(tmp_path / "parts"))
    assert {Path(each).name.rpartition(".")[0] for each in files} == {"net.modpack"}
    subprocess.run("cat parts/net.modpack.* > copy.modpack", shell=True, check=True)
    assert Path("copy.modpack").read_bytes() == large.read_bytes()


# -- reading at the address --------------------------------------------------------------------


LOOKS = (
    ["inspect", "URL"],
    ["audit", "URL"],
    ["why", "URL", "torch"],
    ["diff", "URL", "URL"],
    ["requirements", "URL"],
    ["verify", "URL", "--code"],
    ["report", "URL", "--force"],
)


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_command_reads_ranges(
    command: list[str], large: Path, front: Front, tmp_path: Path
) -> None:
    address = f"{front.host}/team/looked-at:1"
    push(large, address)
    front.requests.clear()
    result = run(*(f"oci://{address}" if each == "URL" else each for each in command))
    assert result.exit_code == 0, result.output
    assert 0 < front.sent < 200_000
    assert len(front.requests) < 10 * command.count("URL")


def test_load_downloads_once_and_pins(large: Path, front: Front, address: str) -> None:
    push(large, address)
    printed = run("inspect", f"oci://{address}").output.split()[0]
    assert printed.startswith(f"oci://{address}#sha256=")
    front.requests.clear()
    for _ in range(2):
        assert len(modpack.load(printed)) == TENSORS
    assert TENSORS * TENSOR_BYTES < front.sent < TENSORS * TENSOR_BYTES * 1.01
    with pytest.raises(ArchiveError, match="the URL pins 000"):
        modpack.load(f"oci://{address}#sha256={'0' * 64}")


def test_replaced_tag_is_noticed(small: Path, front: Front, address: str, tmp_path: Path) -> None:
    url = f"oci://{address}"
    push(small, address)
    modpack.save(torch.nn.Linear(3, 3), tmp_path / "other.modpack")
    replaced = pytest.raises(ArchiveError, match="replaced or changed after it was opened")
    with replaced, open_archive(url) as archive:
        push(tmp_path / "other.modpack", address)
        archive.read(archive.names()[-1])
    assert modpack.load(url).in_features == 3


def test_clean_process_runs_package_at_address(small: Path, address: str) -> None:
    modpack.save(torch.nn.Linear(4, 4), small, example_inputs=torch.ones(2, 4))
    push(small, address)
    Path("rows.json").write_text("[[1, 2, 3, 4]]")
    command = [sys.executable, "-m", "modpack", "run", f"oci://{address}", "rows.json"]
    done = subprocess.run([*command, "-o", "out.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(Path("out.json").read_text())) == 1


# -- shards and signatures -----------------------------------------------------------------------


def test_shards_are_pushed_and_shared(address: str, front: Front, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 2))
    modpack.save(model, "models/base.modpack", weights="external")
    with torch.no_grad():
        model[1].weight.add_(1)
    modpack.save(model, "models/tuned.modpack", weights="external")
    push("models/base.modpack", address)
    tuned = push("models/tuned.modpack", address.replace(":1", ":2"))
    assert tuned.uploaded_bytes < MIB < 4 * MIB < tuned.size_bytes
    (tmp_path / "copies").mkdir()
    pulled = pull(address.replace(":1", ":2"), "copies/tuned.modpack")
    for name in ("tuned.modpack", *pulled.shards):
        assert (Path("copies", name)).read_bytes() == Path("models", name).read_bytes()
    front.requests.clear()
    assert run("inspect", f"oci://{address}").exit_code == 0
    assert front.sent < MIB
    assert modpack.load(f"oci://{address}")[0].weight.shape == (1024, 1024)
    # A shard that is there is not downloaded again.
    front.requests.clear()
    pull(address, "copies/base.modpack")
    assert front.sent < MIB


@pytest.mark.parametrize("has_referrers", [False, True])
def test_detached_signature_is_a_referrer(
    has_referrers: bool, small: Path, front: Front, address: str, tmp_path: Path
) -> None:
    front.has_referrers = has_referrers
    key, url = generate(), f"oci://{address}"
    (tmp_path / "me.pub").write_text(key.public_key)
    policy = TrustPolicy(require_signature_from=(Signer("me", key.public_key),))
    push(small, address)
    with pytest.raises(ModpackError, match="not signed"):
        modpack.load_weights(url, policy=policy)
    sign_package(small, key, embed=False)
    assert push(small, address).signed
    clear(tmp_path / "cache")
    assert list(modpack.load_weights(url, policy=policy)) == ["weight", "bias"]
    assert run("verify", url, "--key", tmp_path / "me.pub").exit_code == 0
    pulled = pull(address, "copy.modpack")
    assert pulled.signature_path == str(Path("copy.modpack.sig"))
    assert run("verify", "copy.modpack", "--key", tmp_path / "me.pub").exit_code == 0


def test_signature_replaces_the_previous_one_only(
    small: Path, front: Front, address: str, tmp_path: Path
) -> None:
    sign_package(small, generate(), embed=False)
    digest = push(small, address).manifest
    repository = address.rpartition(":")[0]
    index_address = f"{repository}:{digest.replace(':', '-')}"
    index = OrasClient(insecure=True).get_manifest(index_address)
    other = {**index["manifests"][0], "artifactType": "application/spdx+json"}
    index["manifests"].append(other)
    client = OrasClient(insecure=True)
    url = f"http://{front.host}/v2/{repository.partition('/')[2]}/manifests/"
    kind = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
    put = client.do_request(
        url + digest.replace(":", "-"), "PUT", data=json.dumps(index).encode(), headers=kind
    )
    assert put.status_code == 201
    sign_package(small, generate(), embed=False)
    push(small, address)
    found = client.get_manifest(index_address)["manifests"]
    assert [each["artifactType"] for each in found] == [
        "application/spdx+json",
        "application/vnd.modpack.signature.v1",
    ]


def test_embedded_signature_stays_in_the_file(small: Path, address: str, tmp_path: Path) -> None:
    key = generate()
    (tmp_path / "me.pub").write_text(key.public_key)
    sign_package(small, key)
    assert push(small, address).signed
    assert pull(address, "copy.modpack").signature_path is None
    assert Path("copy.modpack").read_bytes() == small.read_bytes()
    assert run("verify", f"oci://{address}", "--key", tmp_path / "me.pub").exit_code == 0


# -- errors ------------------------------------------------------------------------------------


def test_registry_that_does_not_run_is_named(small: Path, front: Front) -> None:
    result = run("push", small, "127.0.0.1:1/team/net:1")
    assert result.exit_code == 2
    assert "oci://127.0.0.1:1/team/net:1: the request to the registry failed" in result.output
    assert "Connection refused" in result.output and len(result.output.splitlines()) == 1


def test_host_that_is_not_a_registry_is_named(small: Path, front: Front, tmp_path: Path) -> None:
    with serve_folder(tmp_path) as server:
        host = server.url("").removeprefix("http://").rstrip("/")
        for command in (["push", small, f"{host}/net:1"], ["audit", f"oci://{host}/net:1"]):
            result = run(*command)
            assert result.exit_code == 2
            assert f"{host} is not an OCI registry (HTTP 404)" in result.output


@pytest.mark.parametrize("command", [["pull", "-o", "copy.modpack"], ["inspect"]])
def test_missing_tag_and_repository_are_reported(
    command: list[str], small: Path, front: Front, address: str
) -> None:
    push(small, address)
    for wrong in (f"{address}1", f"{front.host}/nowhere:1"):
        name = wrong if command[0] == "pull" else f"oci://{wrong}"
        result = run(*command, name)
        assert result.exit_code == 2
        assert f"oci://{wrong}: the registry has no such repository or tag" in result.output
    with pytest.raises(PackageNotFoundError):
        modpack.load(f"oci://{front.host}/nowhere:1")


@pytest.mark.parametrize(
    "text", ["net", "team/net:1", "ghcr.io/Team/net:1", "ghcr.io/net@sha256:1"]
)
def test_malformed_address_is_refused(text: str, small: Path, front: Front) -> None:
    for use in (
        lambda: push(small, text),
        lambda: pull(text, "x"),
        lambda: modpack.load("oci://" + text),
    ):
        with pytest.raises(ModpackError, match="not the address of a package in a registry"):
            use()


def test_password_in_an_address_is_not_shown(small: Path, front: Front) -> None:
    for command in (
        ["push", small, "me:secret@ghcr.io/net:1"],
        ["audit", "oci://me:secret@ghcr.io/n:1"],
    ):
        result = run(*command)
        assert "the address contains credentials" in result.output
        assert "secret" not in result.output


def test_truncated_and_damaged_blobs_are_refused(small: Path, front: Front, address: str) -> None:
    push(small, address)
    layers = OrasClient(insecure=True).get_manifest(address)["layers"]
    blob = front.blob(layers[-1]["digest"])
    content = blob.read_bytes()
    blob.write_bytes(content[:-100])
    for use in (lambda: pull(address, "copy.modpack"), lambda: modpack.load(f"oci://{address}")):
        with pytest.raises(ArchiveError, match=r"the blob sha256:\w+ (is truncated|has \d+ bytes)"):
            use()
    blob.write_bytes(content[:-100] + bytes(100))
    with pytest.raises(ArchiveError, match="its content has another digest"):
        pull(address, "copy.modpack")
    blob.unlink()
    with pytest.raises(ArchiveError, match=r"is missing\. Push the package again"):
        pull(address, "copy.modpack")
    assert not Path("copy.modpack").exists()


def test_other_artifact_is_not_a_package(small: Path, front: Front, address: str) -> None:
    OrasClient(insecure=True).push(
        target=address, files=[str(small)], disable_path_validation=True, quiet=True
    )
    with pytest.raises(NotAPackageError, match=r"this is not a package.* modpack push"):
        pull(address, "copy.modpack")
    with pytest.raises(NotAPackageError, match="this is not a package"):
        modpack.load(f"oci://{address}")


def test_damaged_package_is_not_pushed(small: Path, front: Front, address: str) -> None:
    content = bytearray(small.read_bytes())
    content[100] ^= 1
    small.write_bytes(content)
    with pytest.raises(ArchiveError, match="does not match the manifest"):
        push(small, address)
    assert front.requests == []


def test_package_without_a_file_or_digests_is_refused(small: Path, address: str) -> None:
    with torch.package.PackageExporter("old.pt") as exporter:
        exporter.save_pickle("objects", "one.pkl", [1])
    with pytest.raises(ArchiveError, match="without digests, so it cannot be pushed"):
        push("old.pt", address)
    subprocess.run([sys.executable, "-m", "zipfile", "-e", small, "unzipped"], check=True)
    with pytest.raises(ArchiveError, match="the folder of an unzipped package"):
        push("unzipped", address)


def test_registry_without_ranges_is_named(large: Path, front: Front, address: str) -> None:
    push(large, address)
    front.has_ranges = False
    with pytest.raises(ArchiveError, match=r"does not answer range requests\. Use modpack pull"):
        modpack.load(f"oci://{address}")
    pull(address, "copy.modpack")


def test_failure_for_the_moment_is_repeated(small: Path, front: Front, address: str) -> None:
    front.fails["/manifests/"] = [503]
    push(small, address)
    front.fails["/blobs/"] = [502, 429]
    pull(address, "copy.modpack")
    front.fails["/blobs/uploads/"] = [500]
    modpack.save(torch.nn.Linear(2, 2), small)
    with pytest.raises(ArchiveError, match="answered POST blobs/uploads/ with HTTP 500"):
        push(small, address)


# -- credentials -------------------------------------------------------------------------------


def write_docker_config(folder: Path, registry: str, password: str) -> None:
    (folder / "docker").mkdir(exist_ok=True)
    auth = base64.b64encode(f"me:{password}".encode()).decode()
    config: Mapping[str, object] = {"auths": {registry: {"auth": auth}}}
    (folder / "docker" / "config.json").write_text(json.dumps(config))


def test_credentials_of_docker_are_used_and_not_shown(
    small: Path, front: Front, tmp_path: Path
) -> None:
    with run_registry(tmp_path / "private", USERS) as private:
        address = f"{private.host}/team/net:1"
        for password in (None, "wrong-horse"):
            if password is not None:
                write_docker_config(tmp_path, private.host, password)
            for command in (["push", small, address], ["audit", f"oci://{address}"]):
                result = run(*command)
                assert result.exit_code == 2
                assert "the registry denied access. Run: docker login" in result.output
                assert "wrong-horse" not in result.output
        write_docker_config(tmp_path, private.host, PASSWORD)
        assert run("push", small, address).exit_code == 0
        assert run("pull", address, "-o", "copy.modpack").exit_code == 0
        assert modpack.load(f"oci://{address}").in_features == 4


def test_short_name_of_docker_hub_stands_for_its_api_and_credentials(
    small: Path, front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_registry(tmp_path / "private", USERS) as private:
        login = "https://index.docker.io/v1/"
        assert oci_registry._HOSTS["docker.io"] == ("registry-1.docker.io", login)
        monkeypatch.setitem(oci_registry._HOSTS, "docker.io", (private.host, login))
        write_docker_config(tmp_path, login, PASSWORD)
        assert run("push", small, "docker.io/team/net:1").exit_code == 0
        assert modpack.load("oci://docker.io/team/net:1").in_features == 4


def test_unreadable_configuration_of_docker_is_named(
    small: Path, address: str, tmp_path: Path
) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{secret")
    result = run("push", small, address)
    assert "the credentials in Docker's configuration cannot be read" in result.output
    assert "secret" not in result.output


def test_tokens_of_several_scopes_are_requested(small: Path, front: Front, address: str) -> None:
    front.needs_token = True
    push(small, address)
    assert modpack.load(f"oci://{address}").in_features == 4


def test_missing_library_names_the_extra(small: Path, front: Front) -> None:
    code = "import sys; sys.modules['oras'] = None; from modpack.cli import main; main()"
    for command in (["push", small, "ghcr.io/net:1"], ["inspect", "oci://ghcr.io/net:1"]):
        line = [sys.executable, "-c", code, *command]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 2
        assert "Run: pip install 'modpack[oci]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1
