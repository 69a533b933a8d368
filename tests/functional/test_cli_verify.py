"""``modpack verify``, driven as a user drives it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from modpack import PackageExporter
from modpack.archive.reader import open_archive
from modpack.cli import cli
from modpack.writing.writer import ArchiveWriter

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/reference/json/verify.schema.json").read_text())
ANCESTOR = ROOT / "fixtures/archives/torch_package/torch-2.13-py3.11/tiny_model.pt"


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    import torch

    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(torch.nn.functional.relu)
    file = tmp_path_factory.mktemp("verified") / "good.modpack"
    with PackageExporter(file) as exporter:
        exporter.save_source_string("shop", "total = 3\n")
        exporter.save_model("model", "model.pkl", model)
    return file


@pytest.fixture
def damaged(package, tmp_path) -> Path:
    """The package with another byte in a tensor."""
    content = bytearray(package.read_bytes())
    with open_archive(package) as archive:
        content[archive.data_range(".data/0.storage").offset] ^= 1
    (tmp_path / "damaged.modpack").write_bytes(content)
    return tmp_path / "damaged.modpack"


def with_records(package, target, **records):
    with open_archive(package) as archive, ArchiveWriter(target) as writer:
        for name in archive.names():
            if not name.startswith(".data/modpack/manifest."):
                writer.write(name, archive.read(name))
        for name, content in records.items():
            writer.write(name, content)
        writer.commit()
    return target


def run(*arguments):
    return CliRunner().invoke(cli, ["verify", *map(str, arguments)])


def document(*arguments, status=0):
    result = run(*arguments, "--json")
    assert result.exit_code == status, result.output
    found = json.loads(result.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


def test_verify_accepts_intact_package(package):
    result = run(package)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "passed")
    assert "FAILED" not in result.stdout


def test_verify_rejects_damaged_package_with_hint(damaged):
    result = run(damaged)
    assert result.exit_code == 1
    assert ".data/0.storage: the content is damaged" in result.stdout
    assert "-> Get a fresh copy of the package." in result.stdout
    assert result.stdout.splitlines()[-1] == "failed: 1 error"


def test_verify_json_agrees_with_text(package, damaged):
    accepted = document(package)
    assert (accepted["passed"], accepted["findings"]) == (True, [])
    failed = document(damaged, status=1)
    assert (failed["passed"], len(failed["findings"])) == (False, 1)
    assert failed["digest"] == accepted["digest"]


def test_verify_of_invalid_structure_has_no_digest(package, tmp_path):
    (tmp_path / "longer.modpack").write_bytes(package.read_bytes() + b"more")
    failed = document(tmp_path / "longer.modpack", status=1)
    assert (failed["format"], failed["digest"]) == (None, None)
    assert [each["code"] for each in failed["findings"]] == ["archive-invalid"]


@pytest.mark.parametrize("content", [None, b"no package"])
def test_verify_of_other_file_exits_with_2(tmp_path, content):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    assert run(file).exit_code == 2
    result = run(file, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["type"] in (
        "NotAPackageError",
        "PackageNotFoundError",
    )


def test_verify_accepts_torch_package_archive_with_note():
    found = document(ANCESTOR)
    assert [each["code"] for each in found["findings"]] == ["torch-package-no-digests"]


def test_verify_checks_policy(package, tmp_path):
    policy = tmp_path / "trust.toml"
    policy.write_text("[trust]\nallow_code = true\nallow_stdlib = []\n")
    failed = document(package, "--policy", policy, status=1)
    assert [(each["code"], each["subject"]) for each in failed["findings"]] == [
        ("policy-violation", "collections"),
        ("policy-allows-any-code", str(package)),
    ]
    policy.write_text('[trust]\nallow_code = true\nallow_stdlib = ["collections"]\n')
    assert document(package, "--policy", policy)["passed"]
    policy.write_text("[trust]\nallow_code = true\nhooks = []\n")
    assert run(package, "--policy", policy).exit_code == 2
    missing = run(package, "--policy", tmp_path / "nope.toml")
    assert missing.exit_code == 2
    assert "nope.toml: the file does not exist" in missing.stderr.replace("\n", "")


def test_verify_shows_hint_for_each_policy_violation(package, tmp_path):
    policy = tmp_path / "trust.toml"
    policy.write_text("[trust]\nallow_code = true\nallow_native = false\nallow_stdlib = []\n")
    lines = [line.strip() for line in run(package, "--policy", policy).stdout.splitlines()]
    hint = lines.index("-> If you trust the package, add 'collections' to allow_stdlib.")
    assert "'collections'" in lines[hint - 1]


def test_verify_key_requires_its_signature(package, tmp_path):
    from modpack.security.signing import sign_package
    from modpack.security.signing_keys import generate, write_pair

    key = generate()
    _, public = write_pair(key, tmp_path / "team")
    assert run(package, "--key", public).exit_code == 1
    signed = tmp_path / "signed.modpack"
    sign_package(package, key, output=signed)
    assert document(signed, "--key", public)["signatures"][0]["signer"] == "team"
    shown = "".join(run(signed, "--key", public).stdout.split())  # however it was wrapped
    assert f"signedwiththekey{key.key_id}ofteam" in shown
    assert run(signed, "--key", tmp_path / "missing.pub").exit_code == 2


def test_verify_escapes_control_characters(package, tmp_path):
    name = "x\u202e\u2028.py"
    hostile = with_records(package, tmp_path / "hostile.modpack", **{name: b"x = 1\n"})
    result = run(hostile)
    assert r"x\u202e\u2028.py" in result.stdout
    assert result.stdout.replace("\n", "").isprintable()


def test_verify_counts_alike_findings(package, tmp_path):
    more = {f"extra{number}.py": b"" for number in range(30)}
    crowded = with_records(package, tmp_path / "crowded.modpack", **more)
    (finding,) = document(crowded)["findings"]
    assert "extra0.py" in str(finding) and "as for 29 others" in finding["message"]
    assert "passed, with 1 warning" in run(crowded).stdout


def test_verify_does_not_import_torch_or_unpickle(package, tmp_path):
    canary = tmp_path / "canary"
    source = f"open({str(canary)!r}, 'w')\n".encode()
    hostile = with_records(package, tmp_path / "hostile.modpack", **{"spy.py": source})
    code = (
        "import pickle, sys\n"
        "pickle.Unpickler = pickle.loads = pickle.load = None\n"
        "from modpack.report.verify import verify_package\n"
        "verify_package(sys.argv[1])\n"
        "print(*({'torch', 'spy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, hostile], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
    assert not canary.exists()
