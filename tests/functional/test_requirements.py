"""``modpack requirements``: output for pip, and comparison with the environment."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
from click.testing import CliRunner
from packaging.requirements import Requirement

import modpack
from modpack.archive.reader import open_archive
from modpack.cli import cli
from modpack.writing.writer import ArchiveWriter

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ".data/modpack/environment.json"
TORCH = torch.__version__.partition("+")[0]
DIGEST = "ab" * 32


def run(*arguments):
    return CliRunner().invoke(cli, ["requirements", *map(str, arguments)])


@pytest.fixture
def shop(installed, tmp_path):
    """A package that requires a distribution with a requirement."""
    origin = {"url": "file:///home/x.whl", "archive_info": {"hashes": {"sha256": DIGEST}}}
    hashed = {"direct_url.json": json.dumps(origin)}
    installed("req-notes", {"reqnotes.py": ""}, version="3.0", metadata=hashed)
    installed("req-tea", {"reqtea.py": ""}, version="2.0", requires=["req-notes"], metadata=hashed)
    path = tmp_path / "shop.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.extern("reqnowhere")
        exporter.use_preset("pinned")
        source = "import torch, json, reqtea\ntry:\n    import reqnowhere\nexcept ImportError: pass"
        exporter.save_source_string("requser", source)
    return path


@pytest.fixture
def changed(shop):
    """Rewrite the recorded environment of the package of ``shop``."""

    def rewrite(change):
        copy = shop.with_name("changed.modpack")
        with open_archive(shop) as archive, ArchiveWriter(copy) as writer:
            for name in archive.names():
                content = archive.read(name)
                if name == ENVIRONMENT:
                    record = json.loads(content)
                    change(record)
                    content = json.dumps(record).encode()
                if not name.startswith(".data/modpack/manifest."):
                    writer.write(name, content)
            writer.commit()
        return copy

    return rewrite


def requirements_in(text):
    """Return requirements with their options, without comments and continuation lines."""
    joined = text.replace("\\\n", " ").splitlines()
    lines = [line for line in joined if line and not line.startswith("#")]
    return {str(Requirement(line.split(" --")[0])): line.split(" --")[1:] for line in lines}


def test_requirements_pin_torch_and_extern_distributions(shop):
    result = run(shop)
    assert result.exit_code == 0
    assert requirements_in(result.output) == {"req-tea==2.0": [], f"torch=={TORCH}": []}
    assert "json" not in result.output
    assert "reqnowhere" not in requirements_in(result.output)
    absent = "# Optional, and not installed at export: reqnowhere"
    assert absent in result.output.splitlines()


def test_requirements_list_modpack_as_installed(shop, changed):
    assert f"# modpack {modpack.__version__} was an editable install" in run(shop).output

    def installed(record):
        record["installed"]["modpack"]["editable"] = False

    printed = run(changed(installed)).output
    assert f"modpack=={modpack.__version__}" in requirements_in(printed)
    # Once it is on one, both go.
    assert "# modpack is not on a package index yet. Install it from a clone first." in printed
    assert "is not on a package index yet" in (Path(__file__).parents[2] / "README.md").read_text()

    def older(record):
        del record["installed"]["modpack"]

    assert f"modpack=={modpack.__version__}" in requirements_in(run(changed(older)).output)


def test_lock_lists_requirements_of_modpack(shop):
    assert {"click", "rich"} <= {
        line.partition("==")[0] for line in run(shop, "--lock").output.split()
    }


def test_requirements_list_deferrable_distributions_last(installed, tmp_path):
    installed("req-first", {"reqfirst.py": ""}, version="1.0")
    for how in ("guarded", "late", "both"):
        installed(f"req-{how}", {f"req{how}.py": ""}, version="1.0")
    path = tmp_path / "later.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.extern(["reqgone", "reqneeded"])
        exporter.use_preset("pinned")
        source = (
            "import reqfirst, reqboth, reqneeded\n"
            "try:\n    import reqguarded\nexcept ImportError: pass\n"
            "def f():\n    import reqlate, reqboth, reqgone\n"
        )
        exporter.save_source_string("requser", source)
    text = run(path).output
    now, later = text.split("# Optional: ")
    assert {"req-first==1.0", "req-both==1.0"} <= set(requirements_in(now))
    assert set(requirements_in(f"# {later}")) == {"req-guarded==1.0", "req-late==1.0"}
    assert "not installed at export: reqneeded\n" in now
    assert "not installed at export: reqgone\n" in later
    listed = json.loads(run(path, "--json").output)["requirements"]
    optional = {each["distribution"] for each in listed if each["optional"]}
    assert optional == {"req-guarded", "req-late"}

    audit = CliRunner().invoke(cli, ["audit", str(path)], env={"COLUMNS": "200"}).output
    marked = {line.split()[0] for line in audit.splitlines() if line.endswith("not needed to load")}
    assert marked == {"req-guarded==1.0", "req-late==1.0"}
    found = json.loads(CliRunner().invoke(cli, ["audit", str(path), "--json"]).output)
    codes = {(f["code"], f["subject"]) for f in found["findings"]}
    assert ("extern-local", "reqneeded") in codes and (
        "optional-import-missing",
        "reqgone",
    ) in codes
    optional = {each["name"] for each in found["distributions"] if each["optional"]}
    assert optional == {"req-guarded", "req-late"}


def test_lock_lists_transitive_requirements(shop):
    locked = requirements_in(run(shop, "--lock").output)
    assert {"req-tea==2.0", "req-notes==3.0", f"torch=={TORCH}"} <= set(locked)
    assert len(locked) > 3


def test_requirements_output_is_readable_by_pip(shop, tmp_path):
    (tmp_path / "requirements.txt").write_text(run(shop, "--lock").output)
    code = (
        "import sys\n"
        "from pip._internal.req.req_file import parse_requirements\n"
        "from pip._internal.network.session import PipSession\n"
        "for each in parse_requirements(sys.argv[1], session=PipSession()):\n"
        "    print(each.requirement)\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "requirements.txt"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"req-tea==2.0", "req-notes==3.0"} <= set(done.stdout.split())


def test_requirements_list_uninstallable_distributions_as_comments(changed):
    def odd(record):
        record["installed"]["req-tea"]["editable"] = True
        record["installed"]["torch"].update(name="-r evil.txt\n--index-url x")
        record["providers"]["requnknown"] = "nowhere"

    text = run(changed(odd)).output
    assert requirements_in(text) == {}
    assert "# req-tea 2.0 was an editable install" in text
    assert "\n--index-url" not in text


def test_requirements_of_torch_package_archive_are_comments(tmp_path):
    archive = ROOT / "fixtures/archives/torch_package/torch-2.13-py3.11/with_mock.pt"
    text = run(archive).output
    assert requirements_in(text) == {}
    assert "# farplotlib: its distribution is not recorded" in text


def test_check_passes_in_export_environment(shop):
    result = run(shop, "--check", "--exact")
    assert result.exit_code == 0
    assert "Same: " in result.output


def test_check_lists_differences_and_install_command(changed):
    def older(record):
        record["installed"]["req-tea"]["version"] = "1.0"
        record["installed"]["req-notes"]["version"] = "1.0"

    path = changed(older)
    result = run(path, "--check")
    assert result.exit_code == 1
    assert "Run: pip install 'req-tea==1.0'\n" in result.output
    result = run(path, "--check", "--lock")
    assert "Run: pip install 'req-notes==1.0' 'req-tea==1.0'\n" in result.output


def test_check_counts_minor_differences_only_with_exact(changed):
    path = changed(lambda record: record["installed"]["req-tea"].update(version="2.0+here"))
    relaxed, strict = run(path, "--check"), run(path, "--check", "--exact")
    assert (relaxed.exit_code, strict.exit_code) == (0, 1)
    assert "Minor differences" in relaxed.output
    assert "Different" in strict.output


def test_exact_without_check_is_usage_error(shop):
    result = run(shop, "--exact")
    assert result.exit_code == 2
    assert "--check" in result.output


@pytest.mark.parametrize("options", [[], ["--lock"], ["--check"], ["--check", "--lock"]])
def test_requirements_json_follows_schema(shop, changed, options):
    schema = json.loads((ROOT / "docs/reference/json/requirements.schema.json").read_text())
    for path in (shop, changed(lambda record: record.update(python="3.1.0"))):
        document = json.loads(run(path, "--json", *options).output)
        jsonschema.validate(document, schema, jsonschema.Draft202012Validator)
        assert (document["comparison"] is not None) == ("--check" in options)
    assert {each["distribution"] for each in document["requirements"]} >= {"req-tea", "torch"}


def test_requirements_of_missing_package_prints_one_error(tmp_path):
    result = run(tmp_path / "nothing.modpack")
    assert result.exit_code == 2
    assert result.output.startswith("Error: ")
    document = json.loads(run(tmp_path / "nothing.modpack", "--json").output)
    assert document["error"]["type"] == "PackageNotFoundError"


def test_requirements_import_neither_torch_nor_package(shop):
    code = (
        "import sys\n"
        "from modpack.cli import cli\n"
        f"cli(['requirements', {str(shop)!r}, '--check'], standalone_mode=False)\n"
        "print(sorted({'torch', 'reqtea', 'requser'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_requirements_omit_main_module(project, tmp_path, clean_python):
    project({"desk.py": "import __main__\nclass Desk: pass\n"})
    modpack.save(importlib.import_module("desk").Desk(), tmp_path / "a.modpack")
    command = [sys.executable, "-m", "modpack", "requirements", str(tmp_path / "a.modpack")]
    listed = subprocess.run(command, capture_output=True, text=True)
    checked = subprocess.run([*command, "--check"], capture_output=True, text=True)
    assert "__main__" not in listed.stdout + checked.stdout + listed.stderr + checked.stderr
    code = "import modpack, warnings; warnings.simplefilter('error'); modpack.load(path)"
    clean_python(code, path=tmp_path / "a.modpack")
