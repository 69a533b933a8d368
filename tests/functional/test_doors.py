"""Every way to load a package refuses what a trust policy does not allow, before any code runs."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import modpack
from modpack import pickle_by_source
from modpack.archive.manifest import package_digest
from modpack.archive.reader import open_archive
from modpack.core.policy import Signer, TrustPolicy
from modpack.loading.package_record import PackageRecord, leave_record, namespace_name
from modpack.security.signing import sign_package
from modpack.security.signing_keys import generate
from tests import ray_cluster
from tests.range_server import serve_folder
from tests.registry import push_unchecked, run_registry
from tests.rezipped import rezipped
from tests.serving_process import MODPACK

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "what-a-package-may-do.md"
ROW = re.compile(r"^\| (.*)" + r" \| (refused|not checked)" * 4 + r" \|$", re.MULTILINE)
SOURCE = """
import torch

open({ran!r}, "a").close()

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1
"""


class Case(NamedTuple):
    """A package that a policy does not allow."""

    file: Path
    policy: TrustPolicy
    policy_file: Path
    reason: str


class Cases(NamedTuple):
    """The columns of the table, and the file that appears when code of a package runs."""

    ran: Path
    refused: Mapping[str, Case]
    allowed: Case


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    folder = tmp_path_factory.mktemp("doors")
    ran = folder / "ran"
    (folder / "lab.py").write_text(SOURCE.format(ran=str(ran)))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        net = importlib.import_module("lab").Net()
        unsigned = folder / "unsigned.modpack"
        modpack.save(net, unsigned, example_inputs=torch.ones(2, 2), bundle_loader=True)
        del sys.modules["lab"]
    (folder / "lab.py").unlink()
    ran.unlink()
    keys = {"own": generate(), "other": generate()}
    for name, key in keys.items():
        (folder / f"{name}.pub").write_text(key.public_key)
        sign_package(unsigned, key, output=folder / f"{name}.modpack")
    tampered = rezipped((folder / "own.modpack").read_bytes(), {"lab.py": b"Net = list"})
    (folder / "tampered.modpack").write_bytes(tampered)

    def case(name: str, reason: str = "", allow_code: bool = True) -> Case:
        file = folder / f"{name}{allow_code}.toml"
        signers = '[{ name = "me", key = "own.pub" }]'
        file.write_text(
            f"[trust]\nallow_code = {str(allow_code).lower()}\nrequire_signature_from = {signers}"
        )
        signer = Signer("me", keys["own"].public_key)
        policy = TrustPolicy(allow_code=allow_code, require_signature_from=(signer,))
        return Case(folder / f"{name}.modpack", policy, file, reason)

    refused = {
        "unsigned": case("unsigned", r"is not signed|this runtime cannot verify"),
        "wrong key": case("other", r"not from a trusted signer|this runtime cannot verify"),
        "tampered": case("tampered", r"lab\.py.*: the record has 10 bytes instead of"),
        "code not allowed": case(
            "own", r"code is not allowed|this runtime cannot verify", allow_code=False
        ),
    }
    yield Cases(ran, refused, case("own"))


def load_file(case: Case) -> None:
    modpack.load(case.file, policy=case.policy)


def load_url(case: Case) -> None:
    with serve_folder(case.file.parent) as server:
        modpack.load(server.url(case.file.name), policy=case.policy)


def load_from_registry(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder, run_registry(Path(folder)) as front:
        push_unchecked(case.file, f"{front.host}/lab/net:1")
        modpack.load(f"oci://{front.host}/lab/net:1", policy=case.policy)


def finish(*command: object, **options: object) -> None:
    """Run a command, and raise a ModpackError if it refuses a package."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        assert "Traceback" not in done.stderr, done.stderr
        raise modpack.ModpackError(done.stderr)


def run_rows(case: Case) -> None:
    (case.file.parent / "rows.json").write_text("[[1, 2]]")
    rows, out = case.file.with_name("rows.json"), case.file.with_name("out.json")
    finish(MODPACK, "run", case.file, rows, "-o", out, "--policy", case.policy_file)


def run_on_ray(case: Case) -> None:
    (case.file.parent / "rows.json").write_text("[[1, 2]]")
    rows, out = case.file.with_name("rows.json"), case.file.with_name("out.json")
    options = ("-o", out, "--engine", "ray", "--workers", "1")
    address = ray_cluster.started()  # first, because Ray sets variables that commands need
    environment = {**os.environ, "RAY_ADDRESS": address}
    command = (MODPACK, "run", case.file, rows, *options, "--policy", case.policy_file)
    finish(*command, env=environment)


def predict(case: Case) -> None:
    modpack.Predictor(case.file, policy=case.policy).close()


def predict_in_ray(case: Case) -> None:
    from modpack.integrations.ray import Predictor

    rows = {"x": np.ones((2, 2), "float32")}
    Predictor(case.file, policy=case.policy)(rows)


def serve(case: Case) -> None:
    command = [MODPACK, "serve", case.file, "--policy", case.policy_file, "--port", "0"]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if "listening" in line:
                server.terminate()
        status = server.wait()
    if status:
        raise modpack.ModpackError("".join(lines))


def warm(case: Case) -> None:
    finish(MODPACK, "cache", "warm", case.file, "--policy", case.policy_file)


REOPENING = """
import pickle, sys
import modpack
try:
    pickle.loads(sys.argv[1].encode())
except modpack.errors.ReopenError as failure:
    sys.exit(str(failure))
"""


def reopen(case: Case) -> None:
    with open_archive(case.file.with_name("own.modpack")) as archive:
        digest = package_digest(archive)
    name = namespace_name(digest, case.policy)
    leave_record(name, PackageRecord(digest, str(case.file), "code", "warn", case.policy))
    finish(sys.executable, "-c", REOPENING, f"c{name}.lab\nNet\n.")


def load_pickle(case: Case) -> None:
    carried = pickle_by_source._Carried(case.file.read_bytes())
    pickle_by_source.load(io.BytesIO(pickle.dumps(carried, 4)), policy=case.policy)


BUNDLED = """
import sys
sys.path[:0] = [sys.argv[1]]
import modpack
signers = [modpack.Signer("me", open(sys.argv[2]).read())]
policy = modpack.TrustPolicy(allow_code=sys.argv[3] == "True", require_signature_from=signers)
assert "site-packages" not in modpack.__file__
try:
    modpack.load(sys.argv[1], policy=policy)
except modpack.ModpackError as failure:
    sys.exit(str(failure))
"""


def load_bundled(case: Case) -> None:
    arguments = case.file, case.file.with_name("own.pub"), case.policy.allow_code
    finish(*ALONE, "-c", BUNDLED, *arguments, env=WITHOUT_MODPACK)


def run_bundled(case: Case) -> None:
    finish(*ALONE, case.file, "--self-test", env=WITHOUT_MODPACK)


def logged(case: Case) -> str:
    """Return a model of MLflow with the package of a case."""
    from modpack.integrations.mlflow import save_model

    folder = case.file.parent / "logged" / case.file.stem
    if not folder.exists():
        save_model(case.file.with_name("own.modpack"), folder)
        # As a registry that somebody else can write to.
        case.file.with_name("ran").unlink(missing_ok=True)
        (folder / "data" / "own.modpack").write_bytes(case.file.read_bytes())
    return str(folder)


def load_logged(case: Case) -> None:
    from modpack.integrations.mlflow import load_model

    load_model(logged(case), policy=case.policy)


def load_pyfunc(case: Case) -> None:
    import mlflow.pyfunc

    mlflow.pyfunc.load_model(logged(case), model_config={"policy": str(case.policy_file)})


ALONE = sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-W", "ignore"
WITHOUT_MODPACK = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
DOORS: Mapping[str, Callable[[Case], None]] = {
    "`modpack.load(FILE)`": load_file,
    "`modpack.load(URL)`": load_url,
    "`modpack.load` of an [address in a registry](../how-to/push-to-a-registry.md)": (
        load_from_registry
    ),
    "`modpack run`": run_rows,
    "`modpack serve`": serve,
    "`modpack cache warm`": warm,
    "`modpack run --engine ray`": run_on_ray,
    "`modpack.Predictor`": predict,
    "`Predictor` of [`modpack.integrations.ray`](../how-to/run-on-ray.md)": predict_in_ray,
    "a [pickle that refers to the package](../how-to/send-to-other-processes.md)": reopen,
    "`modpack.pickle_by_source.load(FILE)`": load_pickle,
    "`modpack.load` of a [bundled loader](../how-to/load-without-modpack.md)": load_bundled,
    "`python FILE`, with a bundled loader": run_bundled,
    "`modpack.integrations.mlflow.load_model(URI)`": load_logged,
    "`mlflow.pyfunc.load_model(URI, model_config=...)`": load_pyfunc,
}
GROUPS = {
    load_from_registry: pytest.mark.oci,
    load_logged: pytest.mark.mlflow,
    load_pyfunc: pytest.mark.mlflow,
    run_on_ray: pytest.mark.ray,
}
"""Marks of the doors that need a library of their own."""


@pytest.mark.parametrize(
    "door", [pytest.param(door, marks=GROUPS.get(use, ())) for door, use in DOORS.items()]
)
def test_door_checks_what_the_page_says(
    door: str, cases: Cases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    documented = {row[0]: row[1:] for row in ROW.findall(PAGE.read_text())}
    assert list(documented) == list(DOORS)
    use = DOORS[door]
    for (name, case), answer in zip(cases.refused.items(), documented[door], strict=True):
        if answer == "refused":
            with pytest.raises(modpack.ModpackError, match=case.reason):
                use(case)
            assert not cases.ran.exists(), name
        else:
            assert answer == "not checked"
            use(case)
            cases.ran.unlink()
    if use is not load_bundled:  # it refuses all of them
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use(cases.allowed)
        cases.ran.unlink()
