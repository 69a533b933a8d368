"""Addresses in place of paths: no command opens them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from modpack import save
from modpack.cli import cli

ADDRESS = "s3://bucket/net.modpack"
COMMANDS = [
    ["inspect", ADDRESS],
    ["verify", ADDRESS],
    ["audit", ADDRESS],
    ["why", ADDRESS, "torch"],
    ["report", ADDRESS],
    ["sbom", ADDRESS],
    ["requirements", ADDRESS],
    ["self-test", ADDRESS],
    ["sign", ADDRESS, "--key", "team"],
    ["diff", "net.modpack", ADDRESS],
    ["run", ADDRESS, "x.npy"],
    ["run", "net.modpack", f"x={ADDRESS}"],
    ["serve", ADDRESS],
    ["serve", f"net={ADDRESS}"],
    ["inspect", "https://example.org/net.modpack"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_refuses_address_in_one_sentence(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "addresses are not supported yet. Download the file first." in result.output
    assert len(result.output.splitlines()) == 1


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
    result = CliRunner().invoke(cli, ["inspect", ADDRESS, "--json"])
    assert "addresses are not supported" in json.loads(result.stdout)["error"]["message"]


def test_file_that_looks_like_an_address_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "net.modpack").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["inspect", "s3://net.modpack"])
    assert "an empty file" in result.output
