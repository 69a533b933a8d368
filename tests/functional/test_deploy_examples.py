"""The files in ``examples/deploy``: their commands, their paths, and the guides that show them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml

from modpack.cli import cli
from tests.serving_process import MODPACK, NET, export, wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
PROGRAMS = Path(sys.executable).parent
PAGES = {
    "github-actions.yml": "gate-a-ci-on-an-audit.md",
    "Dockerfile": "deploy-in-a-container.md",
    "kubernetes.yaml": "deploy-in-a-container.md",
}


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_guide_shows_the_file_unchanged(name):
    page = (ROOT / "docs" / "how-to" / PAGES[name]).read_text(encoding="utf-8")
    assert text_of(name) in re.findall(r"^```\w+\n(.*?)^```$", page, re.M | re.S)


def test_every_file_is_shown_in_a_guide():
    assert {file.name for file in DEPLOY.iterdir()} == set(PAGES)


# -- the workflow ------------------------------------------------------------------------------


def workflow_steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for job, described in yaml.safe_load(text_of("github-actions.yml"))["jobs"].items():
        for step in described["steps"]:
            yield job, step


TRAINING = """
    import torch

    def make_model():
        torch.manual_seed(0)
        return torch.nn.Linear(2, 1)

    def example():
        return torch.ones(3, 2)
"""


def test_commands_of_the_workflow_succeed(tmp_path, monkeypatch):
    """The steps export, test, sign, and audit a package. Nothing is installed or pushed."""
    monkeypatch.setenv("PATH", str(PROGRAMS), prepend=os.pathsep)
    monkeypatch.delenv("MODPACK_SELF_TEST")
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING))
    subprocess.run(["modpack", "keygen", "release"], cwd=tmp_path, check=True)
    key = (tmp_path / "release").read_text()
    (tmp_path / "release").unlink()
    done = []
    for _, step in workflow_steps():
        command = step.get("run", "")
        if not command.startswith("modpack ") or command.startswith("modpack push "):
            continue
        # An environment of its own would be installed from an index.
        command = command.replace(" --isolated", "")
        secrets = {name: key for name in step.get("env", {})}
        environment = {**os.environ, **secrets}
        shell = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert shell.returncode == 0, (command, shell.stdout, shell.stderr)
        done.append(command.split()[1])
    assert done == ["export", "self-test", "sign", "audit"]


def test_job_with_the_key_runs_no_code_of_the_model():
    commands: dict[str, list[str]] = {}
    with_secrets = set()
    for job, step in workflow_steps():
        commands.setdefault(job, []).append(step.get("run", ""))
        if "secrets." in str(step):
            with_secrets.add(job)
    assert with_secrets == {"publish"}
    used = {c.split()[1] for c in commands["publish"] if c.startswith("modpack ")}
    assert used == {"sign", "audit", "push"}
    assert not any("requirements.txt" in command for command in commands["publish"])


# -- the image ---------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the last stage of the Dockerfile."""
    lines = [line for line in text_of("Dockerfile").splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    split = [line.partition(" ") for line in joined if line]
    found = [(name, re.sub(r" +", " ", rest)) for name, _, rest in split]
    stages = [number for number, (name, _) in enumerate(found) if name == "FROM"]
    assert len(stages) == 2
    return found[stages[-1] :]


def instruction(name: str) -> str:
    [value] = [rest for each, rest in instructions() if each == name]
    return value


def variables() -> dict[str, str]:
    return dict(each.split("=", 1) for each in instruction("ENV").split())


def deployment() -> dict[str, Any]:
    first, _ = yaml.safe_load_all(text_of("kubernetes.yaml"))
    return first


def pod() -> dict[str, Any]:
    return deployment()["spec"]["template"]["spec"]


def container() -> dict[str, Any]:
    [found] = pod()["containers"]
    return found


ENTER = """
mount --bind "$0/srv" /srv
mount -t tmpfs tmpfs /var/cache
mkdir /var/cache/modpack
mount --bind "$0/cache" /var/cache/modpack
if [ "$1" = ro ]; then
    mount -o remount,bind,ro /srv
    mount -o remount,bind,ro /var/cache/modpack
    mount -o remount,bind,ro /
    # Not over /tmp, where this checkout may be.
    mount -t tmpfs tmpfs "$0/tmp"
    export TMPDIR="$0/tmp"
fi
shift
exec "$@"
"""
"""Puts the paths of the image where the Dockerfile has them, as root of a user namespace."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the image has in ``/srv`` and in the cache."""
    can_mount = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true"]
    if shutil.which("unshare") is None or subprocess.run(can_mount, capture_output=True).returncode:
        pytest.skip("the system allows no user namespaces")
    folder = tmp_path_factory.mktemp("image")
    (folder / "srv").mkdir()
    (folder / "cache").mkdir()
    (folder / "tmp").mkdir()
    export(folder, folder / "srv" / "net.modpack", source=NET)
    subprocess.run([MODPACK, "keygen", "release"], cwd=folder, check=True)
    subprocess.run([MODPACK, "sign", "srv/net.modpack", "--key", "release"], cwd=folder, check=True)
    shutil.copy(folder / "release.pub", folder / "srv")
    for name, command in instructions():
        if name == "RUN" and command.startswith("modpack "):
            step = inside(folder, "rw", shlex.split(command))
            subprocess.run(step, check=True, env=environment())
    return folder


def inside(folder: Path, mode: str, command: list[str]) -> list[str]:
    namespaces = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    return ["unshare", *namespaces, "sh", "-ec", ENTER, str(folder), mode, *command]


def environment(**further: str) -> dict[str, str]:
    known = {**os.environ, **variables(), "OMP_NUM_THREADS": "1", **further}
    known["PATH"] = os.pathsep.join((str(PROGRAMS), os.environ["PATH"]))
    return known


class Served:
    """The server of the image, as PID 1 of a namespace whose file system is read-only."""

    def __init__(self, folder: Path, package: str = "net.modpack") -> None:
        self.port = free_port()
        command = json.loads(instruction("ENTRYPOINT")) + container()["args"]
        others = {"8000": str(self.port), "/srv/net.modpack": f"/srv/{package}"}
        command = [others.get(each, each) for each in command]
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            inside(folder, "ro", command), stderr=self.log, env=environment()
        )
        wait_until(lambda: '"listening"' in self.text() or self.process.poll(), self.text)

    def text(self) -> str:
        return Path(self.log.name).read_text()

    def get(self, path: str) -> int:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}").status_code

    def stop(self) -> int:
        """Send SIGTERM to PID 1 of the namespace, and return its exit status."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGTERM)
        return self.process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def served(image: Path) -> Iterator[Served]:
    found = Served(image)
    yield found
    if found.process.poll() is None:
        found.stop()
    found.log.close()


def test_probes_are_answered_by_the_image(served):
    probes = [container()[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [served.get(each["httpGet"]["path"]) for each in probes] == [200, 200, 200]
    annotations = deployment()["spec"]["template"]["metadata"]["annotations"]
    assert served.get(annotations["prometheus.io/path"]) == 200
    assert served.get("/v2/health/other") == 404


def test_health_check_of_the_image_succeeds(served):
    command = json.loads(instruction("HEALTHCHECK").partition(" CMD ")[2])
    command = [each.replace(":8000/", f":{served.port}/") for each in command]
    subprocess.run(command, env=environment(), check=True)
    wrong = [each.replace(f":{served.port}/", ":9/") for each in command]
    assert subprocess.run(wrong, env=environment(), capture_output=True).returncode


def test_image_loads_from_its_read_only_cache(served, image):
    body = {"x": [[1, 2, 3, 4]]}
    answer = httpx.post(f"http://127.0.0.1:{served.port}/predict", json=body)
    assert answer.json() == {"output": [[10, 10]]}
    assert "the cache cannot be used" not in served.text()
    assert list((image / "cache").rglob("*.code"))
    assert not list((image / "cache").rglob(".tmp"))


def test_server_unpacks_other_package_into_tmp_and_stops_on_sigterm(image):
    other = image / "srv" / "other.modpack"
    export(image, other, source=NET + "\n    OTHER = 1\n")
    subprocess.run([MODPACK, "sign", other, "--key", image / "release"], check=True)
    served = Served(image, other.name)
    assert served.get("/v2/health/ready") == 200
    assert "the cache cannot be used" in served.text()
    assert served.stop() == 0
    assert '"stopped"' in served.text()


def test_image_refuses_package_of_another_signer(image, tmp_path):
    other = tmp_path / "image"
    shutil.copytree(image / "srv", other / "srv")
    (other / "cache").mkdir()
    subprocess.run([MODPACK, "keygen", tmp_path / "other"], check=True)
    shutil.copy(tmp_path / "other.pub", other / "srv" / "release.pub")
    [warm] = [c for name, c in instructions() if name == "RUN" and "cache warm" in c]
    command = inside(other, "rw", shlex.split(warm))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2 and "not from a trusted signer" in done.stderr


# -- the deployment ----------------------------------------------------------------------------


def test_deployment_agrees_with_the_dockerfile():
    port = int(instruction("EXPOSE"))
    command = json.loads(instruction("ENTRYPOINT"))
    assert command[command.index("--port") + 1] == str(port)
    assert container()["ports"] == [{"name": "http", "containerPort": port}]
    names = [container()[n]["httpGet"]["port"] for n in ("livenessProbe", "readinessProbe")]
    assert names == ["http", "http"]
    user = re.search(r"useradd --uid (\d+)", text_of("Dockerfile"))
    assert user is not None and pod()["securityContext"]["runAsUser"] == int(user[1])
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    _, service = yaml.safe_load_all(text_of("kubernetes.yaml"))
    assert deployment()["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]


def test_pod_has_time_to_finish_requests():
    arguments = container()["args"]
    finishing = int(arguments[arguments.index("--shutdown-timeout") + 1])
    [_, pause] = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert pod()["terminationGracePeriodSeconds"] > finishing + int(pause)


def test_pod_needs_no_rights():
    security = container()["securityContext"]
    assert security["readOnlyRootFilesystem"] and pod()["securityContext"]["runAsNonRoot"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


# -- commands ----------------------------------------------------------------------------------


def shown_commands() -> list[str]:
    runs = [step.get("run", "") for _, step in workflow_steps()]
    image = [command for name, command in instructions() if name == "RUN"]
    entry = shlex.join(json.loads(instruction("ENTRYPOINT")) + container()["args"])
    return [each for each in (*runs, *image, entry) if each.startswith("modpack ")]


@pytest.mark.parametrize("command", shown_commands())
def test_command_and_its_options_exist(command):
    words = shlex.split(re.sub(r"<\(.*?\)", "FILE", command))[1:]
    if words[0] == "push" and "push" not in cli.commands:
        pytest.skip("this version has no registries")
    found: click.Command = cli
    while isinstance(found, click.Group):
        found = found.commands[words.pop(0)]
    found.make_context("modpack", words)
