"""Trust policies reject packages before their code runs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import modpack
from modpack import PackageExporter, PackageImporter, TrustError, TrustPolicy
from modpack.archive.reader import open_archive
from modpack.core.policy import Signer
from modpack.errors import SignatureError
from modpack.report.verify import verify_package
from modpack.writing.writer import ArchiveWriter
from tests.warm_python import run_python

KEY = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=
-----END PUBLIC KEY-----
"""


class ByCalling:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that appears if code of a package runs."""
    return tmp_path / "canary"


@pytest.fixture
def busy(tmp_path: Path, canary: Path) -> Path:
    """A package with extern modules, hooks, native code, and a pickle that calls functions."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0].register_forward_hook(torch.nn.functional.relu)
    model[0].weight.register_hook(torch.nn.functional.relu)
    path = tmp_path / "busy.modpack"
    with PackageExporter(path) as exporter:
        exporter.extern(["yaml.**", "click"])
        source = f"import yaml, click, socket\nopen({str(canary)!r}, 'w')\n"
        exporter.save_source_string("shop", source)
        exporter.save_binary("shop", "fast.so", b"\x7fELF")
        exporter.save_model("model", "model.pkl", model)
        exporter.save_pickle("model", "other.pkl", ByCalling(os.mkdir, str(canary)))
    return path


def test_load_lists_all_violations_before_code_runs(busy, canary, clean_python):
    problems = clean_python(
        """
        import modpack
        policy = modpack.TrustPolicy(
            allow_code=True, allow_externs="click", allow_stdlib="math", allow_native=False,
        )
        try:
            modpack.PackageImporter(package, policy=policy)
        except modpack.TrustError as failure:
            print(*failure.problems, sep=chr(10))
        """,
        package=busy,
    ).stdout.splitlines()
    for expected in (
        "extern module 'yaml' is not allowed by the trust policy. If you trust the package, add",
        "standard-library module 'socket' is not allowed by the trust policy. If you trust",
        "native extensions and libraries are not allowed by the trust policy: 'shop/fast.so'. ",
    ):
        assert any(expected in line for line in problems)
    assert not any("'click'" in line for line in problems)
    assert not canary.exists()


def test_load_accepts_allowed_package(busy):
    policy = TrustPolicy(allow_code=True, allow_externs=("yaml", "click"))
    model = modpack.load(busy, package="model", resource="model.pkl", policy=policy)
    assert isinstance(model, torch.nn.Sequential)


def test_rejected_package_leaves_no_modules(busy, monkeypatch, tmp_path):
    cache = tmp_path / "cache"
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(cache))
    before = set(sys.modules), list(sys.meta_path)
    with pytest.raises(TrustError):
        modpack.load(busy, policy=TrustPolicy(allow_code=True, allow_externs=()))
    assert (set(sys.modules), list(sys.meta_path)) == before
    assert not cache.exists()


@pytest.mark.parametrize("namespace", ["private", "process"])
@pytest.mark.parametrize(
    "statement",
    [
        "import socketserver",
        "import xml.dom as dom",
        "from xml import dom",
        "from xml.dom import minidom",
        "import importlib; importlib.import_module('socketserver')",
        "__import__('socketserver')",
        "import importlib; importlib.import_module('.dom', 'xml')",
        "import pkgutil; pkgutil.resolve_name('socketserver:TCPServer')",
    ],
)
def test_undeclared_import_is_rejected_at_import(tmp_path, clean_python, namespace, statement):
    with PackageExporter(tmp_path / "sly.modpack") as exporter:
        exporter.save_source_string("sly", statement + "\n", dependencies=False)
    printed = clean_python(
        f"""
        import modpack
        allowed = ("importlib.**", "pkgutil", "xml")
        policy = modpack.TrustPolicy(allow_code=True, allow_stdlib=allowed)
        importer = modpack.PackageImporter(package, namespace={namespace!r}, policy=policy)
        try:
            importer.import_module("sly")
        except modpack.TrustError as failure:
            print(type(failure).__name__, isinstance(failure, ImportError), failure)
        """,
        package=tmp_path / "sly.modpack",
    ).stdout
    assert printed.startswith("UntrustedImportError True")
    assert "is not allowed by the trust policy" in printed
    assert "'socketserver'" in printed or "'xml.dom'" in printed


def test_rejected_optional_import_is_logged(packaged, caplog):
    source = """\
        import importlib.util
        try:
            import socketserver
        except ImportError:
            socketserver = None
        spec = importlib.util.find_spec("socketserver")
        import json
    """
    path = packaged({"shop.py": source}, dependencies=False).filename
    policy = TrustPolicy(allow_code=True, allow_stdlib=("importlib.**", "json.**"))
    with PackageImporter(path, policy=policy) as importer, caplog.at_level(logging.WARNING):
        shop = importer.import_module("shop")
    assert shop.socketserver is None and shop.spec is None and shop.json.dumps(1) == "1"
    assert "standard-library module 'socketserver' is not allowed" in caplog.text


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_extern_below_interned_package_is_rejected(tmp_path, project, clean_python, namespace):
    root = project(
        {"shop/__init__.py": "", "shop/fast.py": "", "shop/till.py": "from . import fast"}
    )
    with PackageExporter(tmp_path / "shop.modpack") as exporter:
        exporter.extern("shop.fast")
        exporter.intern("shop.**")
        exporter.save_module("shop.till")
    printed = clean_python(
        f"""
        import sys, modpack
        sys.path.append(str(root))
        def attempt(**restrictions):
            policy = modpack.TrustPolicy(allow_code=True, **restrictions)
            return modpack.PackageImporter(package, namespace={namespace!r}, policy=policy)
        attempt(allow_externs="shop.fast").import_module("shop.till")
        print("imported")
        try:
            attempt(allow_externs="other")
        except modpack.TrustError as failure:
            print(failure)
        """,
        package=tmp_path / "shop.modpack",
        root=root,
    ).stdout
    assert (
        printed.startswith("imported\n") and "extern module 'shop.fast' is not allowed" in printed
    )


def test_imports_of_extern_modules_are_not_restricted(packaged):
    path = packaged({"shop.py": "import torch, json\nvalue = torch.ones(1)"}).filename
    with PackageImporter(
        path, policy=TrustPolicy(allow_code=True, allow_stdlib="json")
    ) as importer:
        assert importer.import_module("shop").value == 1


def test_package_with_code_is_rejected_before_unpickling(tmp_path, canary, clean_python):
    path = tmp_path / "calls.modpack"
    with PackageExporter(path) as exporter:
        exporter.save_pickle("a", "a.pkl", [ByCalling(os.mkdir, str(canary)), torch.ones(2)])
        exporter.save_pickle("b", "b.pkl", ByCalling(eval, f"open({str(canary)!r}, 'w')"))
    printed = clean_python(
        """
        import modpack
        try:
            modpack.PackageImporter(package, policy=modpack.TrustPolicy())
        except modpack.TrustError as failure:
            print(*failure.problems, sep=chr(10))
        """,
        package=path,
    ).stdout
    assert f"a/a.pkl names {os.mkdir.__module__}.mkdir" in printed
    assert "b/b.pkl names builtins.eval" in printed
    assert "set allow_code to true and name trusted signers" in printed
    assert not canary.exists()


def test_model_loads_if_code_is_allowed(tmp_path, project):
    project({"shop.py": "import torch\nclass Net(torch.nn.Sequential): state = 1"})
    import shop

    model = shop.Net(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.LSTM(2, 2))
    model.register_forward_hook(torch.nn.functional.dropout)
    path = tmp_path / "shop.modpack"
    modpack.save(model, path, optimizer=torch.optim.Adam(model.parameters()))
    loaded = modpack.load(path, policy=TrustPolicy(allow_code=True))
    assert type(loaded).__name__ == "Net" and len(loaded._forward_hooks) == 1
    with pytest.raises(TrustError, match=r"1 Python source \(shop\.py\)"):
        modpack.load(path, policy=TrustPolicy())


def test_library_values_require_exact_names(tmp_path, installed):
    installed("tills", {"tills.py": "class Till: pass\nclass Drawer: pass\n"})
    import tills

    path = tmp_path / "till.modpack"
    modpack.save({"till": tills.Till()}, path)
    with pytest.raises(TrustError, match=r"names tills\.Till"):
        modpack.load(path, policy=TrustPolicy(allow_pickle_globals="tills.Drawer"))
    loaded = modpack.load(path, policy=TrustPolicy(allow_pickle_globals="tills.Till"))
    assert type(loaded["till"]) is tills.Till


def flip_a_bit_of_a_tensor(package: Path) -> None:
    with open_archive(package) as archive:
        place = archive.data_range(".data/0.storage")
    assert place is not None
    content = bytearray(package.read_bytes())
    content[place.offset] ^= 1
    package.write_bytes(content)


def forged(package: Path, record: str, change: Callable[[dict], None]) -> Path:
    """Return a copy with other JSON in one record, and valid digests."""
    copy = package.with_name("forged.modpack")
    with open_archive(package) as archive, ArchiveWriter(copy) as writer:
        for name in archive.names():
            content = archive.read(name)
            if name == record:
                document = json.loads(content)
                change(document)
                content = json.dumps(document).encode()
            if not name.startswith(".data/modpack/manifest."):
                writer.write(name, content)
        writer.commit()
    return copy


def test_native_code_is_found_under_any_name(packaged):
    path = packaged({"shop/words.bin": "\x7fELF...", "shop/__init__.py": ""}).filename
    with pytest.raises(TrustError, match=r"native extensions.*'shop/words\.bin'"):
        PackageImporter(path, policy=TrustPolicy(allow_code=True, allow_native=False))


def test_missing_required_signature_raises(busy):
    demanding = TrustPolicy(allow_code=True, require_signature_from=[Signer("release", KEY)])
    with pytest.raises(SignatureError, match="the package is not signed"):
        PackageImporter(busy, policy=demanding)
    with pytest.raises(SignatureError, match="the package is not signed"):
        modpack.load_weights(busy, package="model", resource="model.pkl", policy=demanding)


def test_missing_signature_is_listed_with_violations(busy):
    demanding = TrustPolicy(
        allow_code=True, require_signature_from=[Signer("release", KEY)], allow_native=False
    )
    with pytest.raises(TrustError) as refused:
        PackageImporter(busy, policy=demanding)
    signature, native = refused.value.problems
    assert "the package is not signed" in signature and "native extensions" in native


def test_policy_can_require_full_verification(tmp_path):
    modpack.save(torch.nn.Linear(2, 2), tmp_path / "m.modpack")
    flip_a_bit_of_a_tensor(tmp_path / "m.modpack")
    modpack.load(tmp_path / "m.modpack", policy=TrustPolicy(allow_code=True))
    with pytest.raises(modpack.ModpackError, match=r"0\.storage"):
        modpack.load(tmp_path / "m.modpack", policy=TrustPolicy(allow_code=True, verify="full"))


def test_load_rejects_invalid_policy_argument(busy):
    for call in (PackageImporter, modpack.load, modpack.load_weights, modpack.self_test):
        with pytest.raises(TypeError, match="policy must be a TrustPolicy or None"):
            call(busy, policy="trust.toml")


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A signed package, with the public key and a policy that requires its signature next to it."""
    package = tmp_path / "signed.modpack"
    modpack.save(torch.nn.Linear(2, 2), package)
    (tmp_path / "trust.toml").write_text(
        "[trust]\nallow_code = true\n"
        "require_signature_from = [{ name = 'release', key = 'release.pub' }]\n"
    )
    for command in (["keygen", "release"], ["sign", package.name, "--key", "release"]):
        done = subprocess.run(
            [sys.executable, "-m", "modpack", *command],
            cwd=tmp_path,
            input="",
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    return package


def test_load_accepts_signature_of_trusted_key(signed):
    policy = TrustPolicy.from_toml(signed.with_name("trust.toml"))
    assert isinstance(modpack.load(signed, policy=policy), torch.nn.Linear)
    assert sorted(modpack.load_weights(signed, policy=policy)) == ["bias", "weight"]


def test_signature_covers_tensors(signed):
    policy = TrustPolicy.from_toml(signed.with_name("trust.toml"))
    flip_a_bit_of_a_tensor(signed)
    for call in (modpack.load, modpack.load_weights):
        with pytest.raises(modpack.ModpackError, match=r"0\.storage"):
            call(signed, policy=policy)


def test_reexported_package_has_no_signature(signed):
    policy = TrustPolicy.from_toml(signed.with_name("trust.toml"))
    modpack.save(torch.nn.Linear(2, 2), signed)
    with pytest.raises(SignatureError, match=r"a signature of .*'release'.* is required"):
        modpack.load(signed, policy=policy)


def test_signature_of_another_key_is_rejected(signed):
    demanding = TrustPolicy(allow_code=True, require_signature_from=[Signer("other", KEY)])
    with pytest.raises(SignatureError):
        modpack.load(signed, policy=demanding)


@pytest.fixture
def tried(tmp_path: Path, project) -> Path:
    project({"shop.py": "import torch, yaml\nclass Net(torch.nn.Linear): pass\n"})
    import shop

    modpack.save(shop.Net(2, 2), tmp_path / "t.modpack", example_inputs=torch.ones(1, 2))
    return tmp_path / "t.modpack"


def repeated(package: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    policy = package.with_name("trust.toml")
    policy.write_text(text)
    command = ["-m", "modpack", "self-test", package, "--policy", policy, *options]
    return run_python(*command, folder=package.parent)


def test_self_test_obeys_policy(tried):
    done = repeated(tried, "[trust]\nallow_code = true\nallow_externs = ['yaml.**']\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.startswith("Warning: the trust policy allows code without a signature")
    refused = repeated(tried, "[trust]\nallow_code = true\nallow_externs = []\n")
    assert refused.returncode == 2
    assert "extern module 'yaml' is not allowed" in refused.stderr
    as_json = json.loads(
        repeated(tried, "[trust]\nallow_code = true\nallow_externs = []\n", "--json").stdout
    )
    assert as_json["error"]["type"] == "TrustError"


def test_invalid_policy_file_is_named(tried):
    done = repeated(tried, "[trust]\nallow_code = true\nallow_extern = []\nallow_native = 1\n")
    assert done.returncode == 2
    assert "trust.toml" in done.stderr and "Did you mean 'allow_externs'?" in done.stderr
    assert "trust.allow_native" in done.stderr and "Traceback" not in done.stderr


def test_self_test_interpreter_rejects_imports(tmp_path, project):
    text = """\
        import torch
        class Net(torch.nn.Linear):
            def forward(self, x):
                __import__(["json", "socketserver"][x.shape[0]])
                return super().forward(x)
    """
    project({"shop.py": text})
    import shop

    modpack.save(shop.Net(2, 2), tmp_path / "t.modpack", example_inputs=torch.ones(1, 2))
    done = repeated(
        tmp_path / "t.modpack", "[trust]\nallow_code = true\nallow_stdlib = ['collections']\n"
    )
    assert done.returncode == 1
    assert "standard-library module 'socketserver' is not allowed" in done.stdout


def test_freed_tensors_require_permission(tmp_path):
    """torch does not check their bounds against a storage."""
    model = torch.nn.Linear(3, 2)
    model.weight.untyped_storage().resize_(0)
    path = tmp_path / "freed.modpack"
    modpack.save(model.state_dict(), path)
    with pytest.raises(TrustError, match=r"rebuild\.freed_tensor"):
        modpack.load(path, policy=TrustPolicy())
    allowing = TrustPolicy(allow_pickle_globals="modpack.pickling.rebuild.freed_tensor")
    for policy in (None, allowing):
        assert modpack.load(path, policy=policy)["weight"].untyped_storage().nbytes() == 0
    assert verify_package(path, policy=allowing).passed
    modpack.save(model, path)
    with pytest.raises(modpack.ModpackError, match=r"weight \(freed\)"):
        modpack.load_weights(path)
