"""``modpack report``: where the page goes, and what the command refuses."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import modpack
from modpack.archive.reader import open_archive
from modpack.cli import cli


@pytest.fixture
def package(packaged, tmp_path, monkeypatch) -> Path:
    importer = packaged({"shop/__init__.py": "total = 3\n"})
    file = tmp_path / "shop.modpack"
    Path(importer.filename).rename(file)
    monkeypatch.chdir(tmp_path)
    return file


def report(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["report", *arguments])


def test_report_names_page_after_package(package):
    done = report("shop.modpack")
    assert done.exit_code == 0, done.output
    assert "Wrote shop.html" in done.output
    assert "shop.modpack" in Path("shop.html").read_text(encoding="utf-8")


def test_report_output_sets_path_of_page(package):
    Path("pages").mkdir()
    assert report("shop.modpack", "-o", "pages/audit.html").exit_code == 0
    assert Path("pages/audit.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [each.name for each in Path("pages").iterdir()] == ["audit.html"]


def test_report_keeps_existing_file_without_force(package):
    Path("shop.html").write_text("mine")
    refused = report("shop.modpack")
    assert refused.exit_code == 2
    assert "--force" in refused.output
    assert Path("shop.html").read_text() == "mine"
    assert report("shop.modpack", "--force").exit_code == 0
    assert Path("shop.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_report_does_not_overwrite_package(package):
    before = package.read_bytes()
    refused = report("shop.modpack", "-o", "shop.modpack", "--force")
    assert refused.exit_code == 2
    assert "is the package" in refused.output
    assert package.read_bytes() == before


def test_report_rejects_folder_as_output(package):
    Path("pages").mkdir()
    refused = report("shop.modpack", "-o", "pages", "--force")
    assert refused.exit_code == 2
    assert "is a folder" in refused.output


def test_report_rejects_output_in_missing_folder(package):
    refused = report("shop.modpack", "-o", "nowhere/audit.html")
    assert refused.exit_code == 2
    assert "nowhere: the folder does not exist" in refused.output


def test_report_writes_to_device(package):
    done = subprocess.run(
        [sys.executable, "-m", "modpack", "report", "shop.modpack", "-o", "/dev/stdout"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("<!DOCTYPE html>")


def test_report_of_other_file_writes_no_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.modpack").write_text("no package")
    refused = report("text.modpack")
    assert refused.exit_code == 2
    assert [each.name for each in tmp_path.iterdir()] == ["text.modpack"]


def test_report_no_sources_omits_sources(package):
    report("shop.modpack", "-o", "with.html")
    report("shop.modpack", "-o", "without.html", "--no-sources")
    assert '"shop":"' in Path("with.html").read_text(encoding="utf-8")
    assert '"shop":"' not in Path("without.html").read_text(encoding="utf-8")


def test_report_page_has_default_permissions(package):
    report("shop.modpack")
    Path("other").touch()
    assert Path("shop.html").stat().st_mode == Path("other").stat().st_mode


def test_report_without_jinja2_shows_install_command(package, tmp_path):
    code = (
        "import sys; sys.modules['jinja2'] = None; from modpack.cli import main; "
        "sys.argv = ['modpack', 'report', 'shop.modpack']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'modpack[report]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_report_does_not_import_torch_or_package(package):
    code = (
        "import sys; from modpack.cli import cli; "
        "cli(['report', 'shop.modpack'], standalone_mode=False); "
        "print(sorted({'torch', 'shop', 'pickle'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout
    assert "shop" not in done.stdout


def test_report_omits_sources_beyond_limit(packaged, tmp_path):
    text = f"key = '{random.Random(1).randbytes(480_000).hex()}'\n"
    importer = packaged({"shop/__init__.py": "total = 3\n", "shop/large.py": text})
    few, whole = tmp_path / "few.html", tmp_path / "whole.html"
    shown = report(importer.filename, "-o", str(few))
    assert "omits 1 source. Pass --all-sources" in shown.output
    assert '"shop":"' in few.read_text(encoding="utf-8")
    assert '"shop.large":"the page has only the sources nearest' in few.read_text(encoding="utf-8")
    assert "no room" not in report(importer.filename, "-o", str(whole), "--all-sources").output
    assert len(whole.read_bytes()) > len(few.read_bytes()) + 600_000


def test_report_rejects_all_sources_with_no_sources(package):
    refused = report("shop.modpack", "--all-sources", "--no-sources")
    assert refused.exit_code == 2
    assert "cannot be combined" in refused.output
    assert not Path("shop.html").exists()


def test_report_key_shows_signer_in_verdict(package):
    run = CliRunner().invoke
    assert run(cli, ["keygen", "team"]).exit_code == 0
    assert run(cli, ["sign", "shop.modpack", "--key", "team"]).exit_code == 0
    assert report("shop.modpack", "--key", "team.pub").exit_code == 0
    assert "signed by team, unchanged since" in Path("shop.html").read_text(encoding="utf-8")


def test_report_with_key_of_another_signer_writes_no_page(package):
    run = CliRunner().invoke
    assert run(cli, ["keygen", "team"]).exit_code == 0
    refused = report("shop.modpack", "--key", "team.pub")
    assert refused.exit_code != 0
    assert "not signed" in refused.output
    assert not Path("shop.html").exists()


def test_report_shows_damaged_tensor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modpack.save({"w": torch.arange(64.0)}, "net.modpack")
    content = bytearray(Path("net.modpack").read_bytes())
    with open_archive("net.modpack") as archive:
        content[archive.data_range(".data/0.storage").offset] ^= 1
    Path("net.modpack").write_bytes(content)
    assert report("net.modpack").exit_code == 0
    page = Path("net.html").read_text(encoding="utf-8")
    assert "verification failed" in page
    assert "record-corrupt" in page
