"""Addresses in place of paths: commands open those of packages, and no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import fsspec
import pytest
import torch
from click.testing import CliRunner

from modpack import save
from modpack.cli import cli
from modpack.running import isolated

ADDRESS = "s3://bucket/net.modpack"
COMMANDS = [
    ["sign", ADDRESS, "--key", "team"],
    ["verify", "net.modpack", "--policy", ADDRESS],
    ["verify", "net.modpack", "--key", ADDRESS],
    ["run", "net.modpack", f"x={ADDRESS}"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_refuses_address_of_other_file_than_package(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "addresses are not supported yet. Download the file first." in result.output
    assert len(result.output.splitlines()) == 1


PACKAGES = [
    ["inspect", "URL"],
    ["verify", "URL"],
    ["audit", "URL"],
    ["why", "URL", "torch"],
    ["report", "URL"],
    ["sbom", "URL"],
    ["requirements", "URL"],
    ["self-test", "URL"],
    ["diff", "net.modpack", "URL"],
    ["run", "URL", "x.csv"],
]


def test_commands_open_package_at_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(torch.nn.Linear(1, 1), "net.modpack", example_inputs=torch.ones(2, 1))
    (tmp_path / "x.csv").write_text("input\n1\n")
    url = "memory://bucket/net.modpack"
    fsspec.filesystem("memory").pipe(url, (tmp_path / "net.modpack").read_bytes())
    failed = {}
    for arguments in PACKAGES:
        command = [url if each == "URL" else each for each in arguments]
        result = CliRunner().invoke(cli, command)
        if result.exit_code != 0:
            failed[" ".join(arguments)] = result.output
    assert failed == {}
    assert (tmp_path / "net.html").is_file()


def test_isolated_command_gets_the_downloaded_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Sequence[str]] = []
    monkeypatch.setattr(isolated, "isolated_python", lambda package, found: Path("python"))
    monkeypatch.setattr(isolated, "run_isolated", lambda python, line: lines.append(line) or 0)
    save(torch.nn.Linear(1, 1), tmp_path / "net.modpack", example_inputs=torch.ones(2, 1))
    url = "memory://bucket/isolated.modpack"
    fsspec.filesystem("memory").pipe(url, (tmp_path / "net.modpack").read_bytes())
    assert CliRunner().invoke(cli, ["self-test", url, "--isolated"]).exit_code == 0
    assert Path(lines[0][-1]).read_bytes() == (tmp_path / "net.modpack").read_bytes()


OUTPUTS = [
    ["export", "net:make", "-o", ADDRESS],
    ["run", "net.modpack", "x.npy", "-o", "s3://bucket/out.npz"],
    ["report", "net.modpack", "-o", "s3://bucket/page.html"],
    ["sbom", "net.modpack", "-o", "s3://bucket/sbom.json"],
    ["sign", "net.modpack", "--key", "team", "-o", ADDRESS],
]


@pytest.mark.parametrize("arguments", OUTPUTS, ids=" ".join)
def test_command_refuses_address_as_output(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "addresses are not supported yet. Write a file and upload it." in result.output
    assert len(result.output.splitlines()) == 1


def test_output_in_folder_that_looks_like_an_address_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s3:").mkdir()
    monkeypatch.chdir(tmp_path)
    save({}, "net.modpack")
    result = CliRunner().invoke(cli, ["report", "net.modpack", "-o", "s3://page.html"])
    assert result.exit_code == 0
    assert (tmp_path / "s3:" / "page.html").is_file()


def test_command_refuses_address_as_json() -> None:
    result = CliRunner().invoke(cli, ["sign", ADDRESS, "--key", "team", "--json"])
    assert "addresses are not supported" in json.loads(result.stdout)["error"]["message"]


def test_file_that_looks_like_an_address_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "net.modpack").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["inspect", "s3://net.modpack"])
    assert "an empty file" in result.output
