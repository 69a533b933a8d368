"""``modpack keygen`` and ``modpack sign``, and what becomes of packages that are signed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
from click.testing import CliRunner

import modpack
from modpack.archive.manifest import package_digest
from modpack.archive.reader import open_archive
from modpack.cli import cli
from modpack.security.signing import check_signatures
from modpack.security.signing_keys import read_private, read_public

SCHEMAS = Path(__file__).parents[2] / "docs/reference/json"
EMBEDDED = ".data/modpack/signature.json"
SOURCE = """
import torch
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    def forward(self, x):
        return x * self.factor
"""


def run(*arguments, **environment):
    given = [str(each) for each in arguments]
    return CliRunner().invoke(cli, given, env=environment)


def document(result, name):
    """A command's JSON, checked against its schema."""
    found = json.loads(result.stdout)
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.validate(found, schema, cls=jsonschema.Draft202012Validator)
    return found


@pytest.fixture
def package(project, tmp_path):
    """A package with a model, code, and a hook."""
    project({"signedscale.py": SOURCE})
    import signedscale

    model = signedscale.Scale()
    model.register_forward_hook(lambda module, args, output: output.relu())
    modpack.save(model, tmp_path / "scale.modpack")
    return tmp_path / "scale.modpack"


@pytest.fixture
def key(tmp_path):
    """The file of a private key."""
    assert run("keygen", tmp_path / "release").exit_code == 0
    return tmp_path / "release"


def held(path, *keys):
    signers = [read_public(f"{each}.pub") for each in keys]
    with open_archive(path) as archive:
        return [each.signer for each in check_signatures(archive, signers, path)]


def digest_of(path):
    with open_archive(path) as archive:
        return package_digest(archive)


def test_keygen_writes_key_pair_and_prints_id(tmp_path):
    result = run("keygen", tmp_path / "release")
    assert result.exit_code == 0
    key = read_private(tmp_path / "release")
    assert f"key id:      {key.key_id}" in result.output
    assert "PRIVATE KEY" not in result.output
    assert read_public(tmp_path / "release.pub").public_key == key.public_key


def test_keygen_json_describes_keys(tmp_path):
    result = run("keygen", tmp_path / "k", "--passphrase", "--json", MODPACK_KEY_PASSPHRASE="tea")
    key = read_private(tmp_path / "k", "tea")
    assert document(result, "keygen") == {
        "schema": 1,
        "key_id": key.key_id,
        "private_key": str(tmp_path / "k"),
        "public_key": str(tmp_path / "k.pub"),
        "encrypted": True,
    }


def test_keygen_keeps_existing_key_without_force(key):
    before = key.read_bytes()
    result = run("keygen", key)
    assert result.exit_code == 2
    assert "already exists" in result.output
    assert key.read_bytes() == before
    assert run("keygen", key, "--force").exit_code == 0
    assert key.read_bytes() != before


def test_keygen_rejects_name_of_public_key(tmp_path):
    result = run("keygen", tmp_path / "release.pub")
    assert result.exit_code == 2
    assert "would contain the private key" in result.output
    assert not any(tmp_path.iterdir())


def test_sign_embeds_signature(package, key):
    digest = digest_of(package)
    result = run("sign", package, "--key", key)
    assert result.exit_code == 0
    assert f"digest:    {digest}" in result.output
    assert f"signature: embedded in {package}" in result.output
    assert held(package, key) == ["release"]
    assert digest_of(package) == digest


@pytest.mark.parametrize(("option", "placement"), [("embed", "embedded"), ("detached", "detached")])
def test_sign_json_describes_signature(package, key, option, placement):
    found = document(run("sign", package, "--key", key, f"--{option}", "--json"), "sign")
    key_id = read_private(key).key_id
    assert found == {
        "schema": 1,
        "path": str(package),
        "digest": digest_of(package),
        "key_id": key_id,
        "placement": placement,
        "signature_path": str(package) if placement == "embedded" else f"{package}.sig",
        "key_ids": [key_id],
    }
    assert held(package, key) == ["release"]


def test_sign_keeps_existing_signatures(package, key, tmp_path):
    run("keygen", tmp_path / "second")
    run("sign", package, "--key", key)
    result = run("sign", package, "--key", tmp_path / "second")
    assert "(kept 1 signature with another key)" in result.output
    assert held(package, key, tmp_path / "second") == ["release", "second"]
    run("sign", package, "--key", tmp_path / "second", "--replace")
    assert held(package, key, tmp_path / "second") == ["second"]


def test_sign_reads_passphrase_of_encrypted_key(package, tmp_path):
    key = tmp_path / "k"
    run("keygen", key, "--passphrase", MODPACK_KEY_PASSPHRASE="tea")
    result = run("sign", package, "--key", key)
    assert result.exit_code == 2
    assert "Set MODPACK_KEY_PASSPHRASE, or run the command in a terminal." in result.output
    result = run("sign", package, "--key", key, MODPACK_KEY_PASSPHRASE="coffee")
    assert result.exit_code == 2
    assert "the passphrase is wrong" in result.output
    assert run("sign", package, "--key", key, MODPACK_KEY_PASSPHRASE="tea").exit_code == 0
    assert held(package, key) == ["k"]


def test_sign_warns_about_key_that_others_can_read(package, key):
    key.chmod(0o644)
    result = run("sign", package, "--key", key)
    assert result.exit_code == 0
    assert f"Warning: {key}: other users can read this private key. Run: chmod 600" in result.stderr


def test_sign_reads_key_from_pipe(package, key):
    code = "from modpack.cli import main; main()"
    reader, writer = os.pipe()
    os.write(writer, key.read_bytes())
    os.close(writer)
    command = [sys.executable, "-c", code, "sign", str(package), "--key", f"/dev/fd/{reader}"]
    done = subprocess.run(command, capture_output=True, text=True, pass_fds=(reader,))
    os.close(reader)
    assert done.returncode == 0, done.stderr
    assert held(package, key) == ["release"]


def test_sign_reports_invalid_arguments_on_one_line(package, key, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    for arguments, reason in (
        (
            (package, "--key", f"{key}.pub"),
            "this is a public key, and signing needs the private key",
        ),
        ((package, "--key", tmp_path / "none"), "or create a key pair with: modpack keygen NAME"),
        ((package, "--key", tmp_path / "a.txt"), "no key in PEM form found"),
        ((tmp_path / "a.txt", "--key", key), "a.txt: this is"),
        ((tmp_path / "none", "--key", key), "the file does not exist"),
        ((package,), "Missing option '--key'"),
        ((package, "--key", key, "--detached", "-o", package), "is"),
        ((package, "--key", key, "-o", tmp_path / "no" / "x"), "does not exist"),
    ):
        result = run("sign", *arguments)
        assert result.exit_code == 2, arguments
        assert reason in result.output
        assert isinstance(result.exception, SystemExit)
    result = run("sign", package, "--key", tmp_path / "none", "--json")
    assert json.loads(result.stdout)["error"]["type"] == "KeyFileError"


def test_sign_rejects_torch_package_archive(key, tmp_path):
    with torch.package.PackageExporter(str(tmp_path / "old.pt")) as exporter:
        exporter.save_text("texts", "a.txt", "hello")
    result = run("sign", tmp_path / "old.pt", "--key", key)
    assert result.exit_code == 2
    assert "torch.package stores only CRC-32 checksums" in result.output


def test_sign_without_extra_shows_install_command(package, key, tmp_path):
    code = (
        "import sys; sys.modules['cryptography'] = sys.modules['securesystemslib'] = None\n"
        "from modpack.cli import main; main()"
    )
    for arguments in (["keygen", tmp_path / "new"], ["sign", package, "--key", key]):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert "Run: pip install 'modpack[sign]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_sign_with_broken_library_shows_install_command(package, key, tmp_path):
    (tmp_path / "broken" / "cryptography").mkdir(parents=True)
    source = "raise ImportError('libssl.so.9: cannot open shared object file')\n"
    (tmp_path / "broken" / "cryptography" / "__init__.py").write_text(source)
    run("sign", package, "--key", key)
    public = f"{key}.pub"
    for arguments in (["sign", package, "--key", key], ["verify", package, "--key", public]):
        done = subprocess.run(
            [sys.executable, "-m", "modpack", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "broken")},
        )
        assert done.returncode == 2
        assert "libssl.so.9: cannot open shared object file" in done.stderr
        assert "Run: pip install --force-reinstall" in done.stderr
        assert "Traceback" not in done.stderr


def test_signed_package_gives_same_reports(package, key, tmp_path):
    signed = tmp_path / "signed.modpack"
    run("sign", package, "--key", key, "-o", signed)
    result = run("diff", package, signed)
    assert result.exit_code == 0
    assert "identical" in result.output
    for command in (["inspect"], ["audit"], ["requirements"], ["why", "torch"], ["sbom"]):
        name, *more = command
        assert run(name, signed, *more).exit_code == run(name, package, *more).exit_code
    first, second = (
        json.loads(run("inspect", path, "--json").stdout) for path in (package, signed)
    )
    for each in (first, second):
        del each["package"]["path"], each["package"]["size_bytes"]
    assert first == second


def test_sign_detached_does_not_follow_symlink(package, key, tmp_path):
    (tmp_path / "mine").write_text("kept")
    package.with_name(package.name + ".sig").symlink_to(tmp_path / "mine")
    done = run("sign", package, "--key", key, "--detached", "--replace")
    assert done.exit_code == 2 and "this is a symlink" in done.output
    assert (tmp_path / "mine").read_text() == "kept"


def test_signed_package_loads(package, key, tmp_path):
    run("sign", package, "--key", key)
    run("sign", package, "--key", key, "--detached")
    model = modpack.load(package)
    assert model(torch.ones(2)).tolist() == [1.0, 0.0]
    assert modpack.load_weights(package)["factor"].tolist() == [1.0, -2.0]
    importer = modpack.importer_of(model)
    with (
        importer,
        modpack.PackageExporter(
            tmp_path / "again.modpack", importer=[importer, modpack.sys_importer]
        ) as exporter,
    ):
        exporter.use_preset("pinned")
        exporter.save_model("model", "model.pkl", model)
    with open_archive(tmp_path / "again.modpack") as archive:
        assert not archive.has(EMBEDDED)


def test_torch_package_reads_signed_package(key, tmp_path):
    path = tmp_path / "plain.pt"
    with modpack.PackageExporter(path) as exporter:
        exporter.save_pickle("m", "w.pkl", torch.arange(5.0))
        exporter.save_text("m", "a.txt", "tea")
    run("sign", path, "--key", key)
    importer = torch.package.PackageImporter(str(path))
    assert importer.load_text("m", "a.txt") == "tea"
    assert importer.load_pickle("m", "w.pkl").tolist() == [0, 1, 2, 3, 4]


def test_sign_does_not_execute_package(key, tmp_path):
    canary, path = tmp_path / "canary", tmp_path / "evil.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.save_source_string("evil", f"open({str(canary)!r}, 'w')\n")
    assert run("sign", path, "--key", key).exit_code == 0
    assert not canary.exists()
