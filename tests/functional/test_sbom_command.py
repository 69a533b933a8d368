"""``modpack sbom``, driven as a user drives it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator

from modpack import PackageExporter
from modpack.cli import cli


def run(*arguments: str | Path, **more: str) -> Result:
    return CliRunner().invoke(cli, ["sbom", *map(str, arguments)], env=more)


def is_valid(text: str, form: OutputFormat = OutputFormat.JSON) -> bool:
    return make_schemabased_validator(form, SchemaVersion.V1_6).validate_str(text) is None


@pytest.fixture
def package(installed, project, tmp_path):
    """One's own code, an interned distribution, an extern one, a mocked module, a model."""
    installed(
        "sbom-lib",
        {"sbomlib/__init__.py": "import sbomleaf\n"},
        version="1.2",
        requires=["sbom-leaf>=3"],
    )
    installed("sbom-leaf", {"sbomleaf.py": "x = 1\n"}, version="3.4")
    project(
        {
            "sbomown/__init__.py": "",
            "sbomown/net.py": """\
                import torch
                import sbomlib
                import sbomspy

                class Net(torch.nn.Linear):
                    def forward(self, x):
                        return super().forward(x)
            """,
            "sbomspy.py": "",
        }
    )
    from sbomown.net import Net

    file = tmp_path / "net.modpack"
    with PackageExporter(file) as exporter:
        exporter.mock("sbomspy")
        exporter.extern("sbomleaf")
        exporter.intern(["sbomown.**", "sbomlib.**"])
        exporter.save_model("model", "model.pkl", Net(2, 2))
    return file


def test_sbom_lists_contents_and_requirements(package):
    result = run(package)
    assert result.exit_code == 0, result.output
    assert is_valid(result.stdout)
    document = json.loads(result.stdout)
    found = {each["bom-ref"]: each for each in document["components"]}
    assert found["pypi:sbom-lib@1.2"]["purl"] == "pkg:pypi/sbom-lib@1.2"
    assert found["pypi:sbom-leaf@3.4"]["scope"] == "required"
    assert found["mocked:sbomspy"]["scope"] == "excluded"
    assert found["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert found[f"pypi:torch@{torch.__version__}"]["type"] == "framework"
    needs = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert "pypi:sbom-leaf@3.4" in needs["pypi:sbom-lib@1.2"]
    assert "code:sbomown" in needs["model"]


def test_sbom_has_digest_of_the_file(package):
    document = json.loads(run(package).stdout)
    whole = hashlib.sha256(package.read_bytes()).hexdigest()
    assert document["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": whole}]


def test_sbom_is_reproducible(package, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = elsewhere / package.name
    copy.write_bytes(package.read_bytes())
    assert run(package).stdout == run(copy).stdout


def test_sbom_timestamp_includes_time(package):
    result = run(package, "--timestamp", SOURCE_DATE_EPOCH="86400")
    assert json.loads(result.stdout)["metadata"]["timestamp"] == "1970-01-02T00:00:00+00:00"
    assert is_valid(run(package, "--timestamp").stdout)
    broken = run(package, "--timestamp", SOURCE_DATE_EPOCH="yesterday")
    assert (broken.exit_code, "SOURCE_DATE_EPOCH must be a number" in broken.stderr) == (2, True)


def test_sbom_output_is_written_to_file(package, tmp_path):
    output = tmp_path / "net.cdx.json"
    assert run(package, "-o", output).stdout == ""
    assert output.read_text() == run(package).stdout


def test_sbom_of_unzipped_package_has_no_file_digest(package, tmp_path):
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "unzipped")
    document = json.loads(run(tmp_path / "unzipped").stdout)
    assert "hashes" not in document["metadata"]["component"]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
def test_sbom_supports_torch_package_archive(tmp_path):
    file = tmp_path / "old.pt"
    with torch.package.PackageExporter(file) as exporter:
        exporter.extern("json")
        exporter.save_source_string("old.code", "import json\n")
        exporter.save_pickle("model", "model.pkl", {"weight": torch.ones(2)})
    result = run(file)
    assert result.exit_code == 0, result.output
    assert is_valid(result.stdout)
    found = {each["bom-ref"]: each for each in json.loads(result.stdout)["components"]}
    assert found["extern:torch"]["type"] == "framework"
    assert found["code:old"]["scope"] == "required"


def test_sbom_reports_errors_with_status_2(package, tmp_path):
    for arguments, expected in (
        ([tmp_path / "absent.modpack"], "absent.modpack"),
        ([package, "-o", package], "is the package"),
        ([package, "-o", tmp_path / "no" / "where.json"], "does not exist"),
        ([package, "--json"], "--json"),
    ):
        result = run(*arguments)
        assert (result.exit_code, expected in result.output) == (2, True), result.output


def test_sbom_without_extra_shows_install_command(package):
    code = "import sys; sys.modules['cyclonedx'] = None\nfrom modpack.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sbom", str(package)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode == 2
    assert "Run: pip install 'modpack[sbom]'" in done.stderr
    assert "Traceback" not in done.stderr
