"""Packages in MLflow: logged to a tracking server, loaded elsewhere, scored, and evaluated."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import modpack
from modpack.errors import ModpackError, PackageNotFoundError
from modpack.integrations import mlflow as packages

pytestmark = pytest.mark.mlflow

LAB = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)[:, 0]


class Two(torch.nn.Module):
    def forward(self, left, right, scale: float, shift: int = 0):
        return {"sum": (left + right) * scale + shift, "half": left.to(torch.bfloat16)}


class Words(torch.nn.Module):
    def forward(self, text: str, times: int = 1):
        return torch.tensor(len(text) * times)
"""
X = torch.arange(8.0).view(2, 4) / 7


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a tracking server with a model registry."""
    import mlflow

    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    stores = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    stores += ["--artifacts-destination", str(folder / "artifacts")]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *stores], stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
        try:
            wait_for(f"{url}/health", process, folder / "log")
            mlflow.set_tracking_uri(url)
            yield url
        finally:
            mlflow.set_tracking_uri("")
            os.killpg(process.pid, 15)
            process.wait(60)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(log.read_text())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a module that no other process can import."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "lab.py").write_text(LAB)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        torch.manual_seed(0)
        yield importlib.import_module("lab")
    del sys.modules["lab"]


@pytest.fixture(scope="module")
def net(lab: Any) -> Any:
    return lab.Net().eval()


@pytest.fixture(scope="module")
def package(net: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("package") / "net.modpack"
    modpack.save(net, file, example_inputs=X)
    return file


@pytest.fixture(scope="module")
def logged(server: str, package: Path) -> Any:
    """Return the description of the logged package, which is version 1 of the model net."""
    return packages.log_model(package, "net", registered_model_name="net")


@pytest.fixture(scope="module")
def pyfunc(logged: Any) -> Any:
    import mlflow.pyfunc

    return mlflow.pyfunc.load_model("models:/net/1")


def run_elsewhere(server: str, tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has another cache, and cannot import the module of the model."""
    script = tmp_path / "elsewhere.py"
    script.write_text(textwrap.dedent(code))
    added = {"MLFLOW_TRACKING_URI": server, "MODPACK_CACHE_DIR": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, "-I", "-W", "ignore", str(script)],
        cwd=tmp_path,
        env={**os.environ, **added},
        capture_output=True,
        text=True,
    )


def test_registered_package_loads_in_other_process(server, logged, net, tmp_path):
    code = """
        import torch
        from modpack.integrations.mlflow import load_model

        net = load_model("models:/net/1")
        print(net(torch.arange(8.0).view(2, 4) / 7).tolist())
        print(type(net).__module__.startswith("modpack.packages."))
    """
    done = run_elsewhere(server, tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{net(X).tolist()}\nTrue\n"


def test_logged_package_is_stored_by_value(logged, package, tmp_path):
    from mlflow.artifacts import download_artifacts

    stored = Path(download_artifacts(artifact_uri=logged.model_uri), "data", "net.modpack")
    assert stored.read_bytes() == package.read_bytes()
    loaded = packages.load_model(logged.model_uri, dst_path=str(tmp_path))
    assert modpack.importer_of(loaded).filename.startswith(str(tmp_path))


def test_description_is_that_of_the_package(logged, package):
    import numpy as np
    from mlflow.models import Model
    from mlflow.types import Schema, TensorSpec

    signature = logged.signature
    assert signature.inputs == Schema([TensorSpec(np.dtype("float32"), (-1, 4))])
    assert signature.outputs == Schema([TensorSpec(np.dtype("float32"), (-1,))])
    assert signature.params is None
    description = Model.load(logged.model_uri)
    assert description.flavors["modpack"]["package"] == "net.modpack"
    assert np.array_equal(description.load_input_example(logged.model_uri), X[:1].numpy())


def test_requirements_are_those_of_the_package(logged):
    import mlflow.pyfunc

    file = mlflow.pyfunc.get_model_dependencies("models:/net/1")
    lines = Path(file).read_text().splitlines()
    version = torch.__version__.partition("+")[0]
    assert {f"modpack=={modpack.__version__}", f"torch=={version}"} <= set(lines)


def test_requirement_of_modpack_can_be_chosen(package, tmp_path):
    own = "modpack @ https://example.org/modpack-0.1.0-py3-none-any.whl"
    packages.save_model(package, tmp_path / "m", requirements=[own, "tabulate"])
    lines = (tmp_path / "m" / "requirements.txt").read_text().splitlines()
    assert own in lines and "tabulate" in lines
    assert not any(line.startswith("modpack==") for line in lines)


def require_equal_elsewhere(server, folder, info, model):
    """Check that another process loads the logged model, and that it answers as this one."""
    code = f"""
        import torch
        from modpack.integrations.mlflow import load_model
        print(load_model({info.model_uri!r})(torch.ones(1, 4)).tolist())
    """
    done = run_elsewhere(server, folder, code)
    assert done.stdout == f"{model(torch.ones(1, 4)).tolist()}\n", done.stderr


def test_model_is_packaged_when_it_is_logged(server, lab, tmp_path):
    model = lab.Net().eval()
    info = packages.log_model(
        model, "fresh", example_inputs=X, mlflow_options={"metadata": {"team": "vision"}}
    )
    assert info.metadata["team"] == "vision"
    require_equal_elsewhere(server, tmp_path, info, model)


def test_loaded_model_is_logged_by_value(server, logged, tmp_path):
    loaded = packages.load_model("models:/net/1")
    info = packages.log_model(loaded, "again", example_inputs=X)
    require_equal_elsewhere(server, tmp_path, info, loaded)


def test_pytorch_flavor_stores_a_reference_and_says_so(server, logged, tmp_path):
    import mlflow.pytorch

    loaded = packages.load_model("models:/net/1")
    info = mlflow.pytorch.log_model(loaded, name="reference", serialization_format="pickle")
    code = f"""
        import sys
        import modpack
        import mlflow.pytorch
        try:
            mlflow.pytorch.load_model({info.model_uri!r})
        except modpack.errors.ReopenError as failure:
            sys.exit(str(failure))
    """
    done = run_elsewhere(server, tmp_path, code)
    assert done.returncode == 1, done.stderr
    assert "cannot reopen the package" in done.stderr
    assert "modpack.save" in done.stderr


def test_pyfunc_takes_arrays_and_frames(pyfunc, net):
    import numpy as np
    import pandas as pd

    expected = net(X).detach().numpy()
    assert np.allclose(pyfunc.predict(X.numpy()), expected)
    frame = pd.DataFrame(X.numpy(), columns=list("abcd"))
    assert np.allclose(pyfunc.predict(frame), expected)
    assert type(pyfunc.get_raw_model()).__name__ == "Net"


def test_pyfunc_names_wrong_columns(pyfunc):
    import pandas as pd
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match=r"\(-1, 4\)"):
        pyfunc.predict(pd.DataFrame(X[:, :3].numpy()))
    with pytest.raises(MlflowException, match="float32"):
        pyfunc.predict(X.long().numpy())


def test_several_inputs_and_plain_values_have_names(lab, tmp_path):
    import mlflow.pyfunc
    import numpy as np
    from mlflow.exceptions import MlflowException

    file = tmp_path / "two.modpack"
    example = {"left": X, "right": X, "scale": 2.0, "shift": 1}
    modpack.save(lab.Two(), file, example_inputs=example)
    packages.save_model(file, tmp_path / "logged")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "logged"))
    signature = loaded.metadata.signature
    assert signature.inputs.input_names() == ["left", "right"]
    assert [each.name for each in signature.params] == ["scale", "shift"]
    assert signature.outputs.input_names() == ["sum", "half"]
    arrays = {"left": X.numpy(), "right": X.numpy()}
    found = loaded.predict(arrays, params={"scale": 3.0})
    assert np.allclose(found["sum"], (X * 6).numpy())
    assert found["half"].dtype == np.float32
    with pytest.raises(MlflowException, match="'scale': missing; expected float"):
        loaded.predict(arrays)
    with pytest.raises(MlflowException, match="right"):
        loaded.predict({"left": X.numpy()}, params={"scale": 3.0})


def test_call_without_tensors_takes_a_row_for_each_call(lab, tmp_path):
    import mlflow.pyfunc
    import pandas as pd

    file = tmp_path / "words.modpack"
    modpack.save(lab.Words(), file, example_inputs={"text": "four", "times": 2})
    packages.save_model(file, tmp_path / "logged")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "logged"))
    frame = pd.DataFrame({"text": ["a", "four"], "times": [1, 3]})
    assert [int(each) for each in loaded.predict(frame)] == [1, 12]
    assert [int(each) for each in loaded.predict(pd.DataFrame({"text": ["abc"]}))] == [3]


def test_scoring_server_answers_with_the_outputs(pyfunc, net):
    from mlflow.pyfunc import scoring_server
    from starlette.testclient import TestClient

    client = TestClient(scoring_server.init(pyfunc))
    answer = client.post("/invocations", json={"inputs": X.tolist()})
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.text)["predictions"] == pytest.approx(net(X).tolist())
    wrong = client.post("/invocations", json={"inputs": [[1.0, 2.0]]})
    assert wrong.status_code == 400 and "(-1, 4)" in wrong.text


def test_libraries_of_the_extra_suffice_for_logging_and_scoring(server, package, net, tmp_path):
    code = f"""
        import sys

        # The rest of what the distribution mlflow requires.
        others = "flask sklearn scipy matplotlib sqlalchemy alembic docker graphene pyarrow aiohttp"
        sys.modules.update(dict.fromkeys(others.split()))
        import mlflow.pyfunc
        from mlflow.pyfunc import scoring_server
        from starlette.testclient import TestClient
        from modpack.integrations.mlflow import log_model

        info = log_model({str(package)!r}, "lean")
        client = TestClient(scoring_server.init(mlflow.pyfunc.load_model(info.model_uri)))
        print(client.post("/invocations", json={{"inputs": {X.tolist()}}}).text)
    """
    done = run_elsewhere(server, tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predictions"] == pytest.approx(net(X).tolist())


def test_evaluate_scores_a_registered_package(logged, net):
    import mlflow
    import pandas as pd

    frame = pd.DataFrame(X.numpy(), columns=list("abcd"))
    frame["y"] = (net(X).detach() + torch.tensor([0.5, -0.5])).numpy()
    with mlflow.start_run():
        result = mlflow.models.evaluate(
            "models:/net/1", frame, targets="y", model_type="regressor", evaluators=["default"]
        )
    assert result.metrics["mean_absolute_error"] == pytest.approx(0.5, abs=1e-6)


def test_signature_and_shards_of_a_package_are_stored(net, tmp_path):
    from modpack.security.signing import sign_package
    from modpack.security.signing_keys import generate

    file, key = tmp_path / "net.modpack", generate()
    modpack.save(net, file, example_inputs=X, weights="external")
    sign_package(file, key, embed=False)
    packages.save_model(file, tmp_path / "logged")
    for each in [*tmp_path.glob("*.safetensors"), file, tmp_path / "net.modpack.sig"]:
        each.unlink()
    signer = modpack.Signer("me", key.public_key)
    policy = modpack.TrustPolicy(allow_code=True, require_signature_from=[signer])
    loaded = packages.load_model(str(tmp_path / "logged"), policy=policy)
    assert torch.equal(loaded(X), net(X))


def test_policy_in_the_environment_applies_to_commands(logged, tmp_path, monkeypatch):
    import mlflow.pyfunc

    policy = tmp_path / "trust.toml"
    policy.write_text("[trust]\nallow_code = false\n")
    monkeypatch.setenv("MLFLOW_PYFUNC_INFERENCE_CONFIG", json.dumps({"policy": str(policy)}))
    with pytest.raises(modpack.TrustError, match="code is not allowed"):
        mlflow.pyfunc.load_model("models:/net/1")


def test_log_model_explains_what_it_cannot_log(net, package, tmp_path):
    with pytest.raises(ModpackError, match=r"no call signature.*\n?.*example_inputs"):
        packages.log_model(net)
    modpack.save(net, tmp_path / "bare.modpack")
    with pytest.raises(ModpackError, match=r"bare\.modpack: there is no call signature"):
        packages.log_model(tmp_path / "bare.modpack")
    with pytest.raises(PackageNotFoundError, match=r"nowhere\.modpack"):
        packages.log_model(tmp_path / "nowhere.modpack")
    with pytest.raises(TypeError, match=r"example_inputs: options of modpack\.save"):
        packages.log_model(package, example_inputs=X)


def test_load_model_names_the_flavors_of_another_model(server):
    import mlflow.pyfunc

    class Constant(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            return model_input

    info = mlflow.pyfunc.log_model(name="constant", python_model=Constant())
    with pytest.raises(ModpackError, match=r"not a package; its flavors are python_function"):
        packages.load_model(info.model_uri)


def test_load_model_reads_only_files_of_the_logged_model(package, tmp_path):
    packages.save_model(package, tmp_path / "logged")
    description = tmp_path / "logged" / "MLmodel"
    text = description.read_text()
    assert "package: net.modpack" in text
    description.write_text(text.replace("package: net.modpack", f"package: {package}"))
    (tmp_path / "logged" / "data" / "net.modpack").unlink()
    with pytest.raises(PackageNotFoundError):
        packages.load_model(str(tmp_path / "logged"))
