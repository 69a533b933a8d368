"""The other side: an interpreter that has never seen the project loads the package.

:func:`visit` starts it, with ``python -I`` and in an empty folder; :func:`main` runs in it
and answers with one line of JSON.

The handwritten digits that the demo reads, as tensors.

Put a model to the test; the same code does it before the export and after the reload.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from modpack.demo.facts import Observation, Reloaded
from modpack.errors import ModpackError

PROJECT_NAMES = ("digits_cnn", "labplot")
MODPACK_HOME = Path(__file__).resolve().parents[2]
START = """
import sys
sys.path.append(sys.argv[1])
from modpack.demo.clean_room import main
main(sys.argv[2])
"""
"""Last in the path, and only for a modpack that runs from its sources without an install."""


def visit(package: Path, folder: Path) -> Reloaded:
    """Load a package in a clean interpreter and let it tell what it saw.

    Args:
        package: the file to load.
        folder: where the interpreter runs.

    Raises:
        ModpackError: if the interpreter fails; the text holds what it wrote.
    """
    command = [sys.executable, "-I", "-c", START, str(MODPACK_HOME), str(package.resolve())]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise ModpackError(
            f"the clean interpreter could not load {package} (exit {done.returncode}):\n"
            f"{done.stderr.strip()}"
        )
    return _understood(json.loads(done.stdout.splitlines()[-1]), seconds)


def _understood(answer: dict[str, Any], seconds: float) -> Reloaded:
    observed = answer["observed"]
    return Reloaded(
        folder=answer["folder"],
        unknown=tuple(answer["unknown"]),
        load_seconds=answer["load_seconds"],
        seconds=seconds,
        module=answer["module"],
        mocked=answer["mocked"],
        observed=Observation(**{**observed, "predictions": tuple(observed["predictions"])}),
    )


def main(package: str) -> None:
    """Runs in the clean interpreter: load the package, use it, print what happened.

    Args:
        package: the file to load.
    """
    unknown = [name for name in PROJECT_NAMES if not _importable(name)]
    import torch

    from modpack.importer import PackageImporter

    torch.set_num_threads(THREADS)
    _, test = load_digits()
    started = time.perf_counter()
    importer = PackageImporter(package)
    model = importer.load_model("model", "model.pkl")
    loaded = time.perf_counter() - started
    answer = {
        "folder": str(Path.cwd()),
        "unknown": unknown,
        "load_seconds": loaded,
        "module": type(model).__module__,
        "mocked": _use_of_a_mock(model),
        "observed": asdict(observe(model, test)),
    }
    print(json.dumps(answer))


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def _use_of_a_mock(model: Model) -> str:
    try:
        model.report([1.0, 0.5], [0.5, 1.0])
    except NotImplementedError as error:
        return str(error)
    return ""


HERE = Path(__file__).parent
PLACES = (
    HERE / "data" / "digits.csv.gz",
    HERE.parent.parent / "fixtures" / "data" / "digits" / "digits.csv.gz",
)
"""Where the file lies in an installed modpack, and in its source tree."""


@dataclass(frozen=True)
class Digits:
    """Some images and what they show.

    Attributes:
        images: float32 of shape ``(n, 8, 8)``, each pixel from 0 (paper) to 16 (ink).
        labels: int64 of shape ``(n,)``, from 0 to 9.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, wanted: Tensor) -> Digits:
        """The samples that a boolean mask of shape ``(n,)`` selects."""
        return Digits(self.images[wanted], self.labels[wanted])


def load_digits() -> tuple[Digits, Digits]:
    """Read the data set: four fifths to train on, every fifth sample to test with.

    Returns:
        The training part and the test part; always the same ones.

    Raises:
        ModpackError: if the data file is missing.
    """
    everything = _read(_data_file())
    tested = torch.arange(len(everything)) % 5 == 0
    return everything.where(~tested), everything.where(tested)


def _data_file() -> Path:
    for place in PLACES:
        if place.is_file():
            return place
    looked = " and ".join(str(place) for place in PLACES)
    raise ModpackError(f"the demo's data set is missing; looked for {looked}. Reinstall modpack")


def _read(file: Path) -> Digits:
    with gzip.open(file, "rt", encoding="ascii", newline="") as lines:
        rows = torch.tensor([[int(cell) for cell in row] for row in csv.reader(lines)])
    return Digits(rows[:, :64].float().reshape(-1, 8, 8), rows[:, 64])


THREADS = 1
"""The number of threads decides in which order floats are added, so both sides use the same.
One is fast enough for so small a network, and does not suffer where cores are busy."""
BATCH = 64
SHOWN = 8


class FeatureMaps(Protocol):
    """The hook that collects feature maps."""

    calls: int
    strengths: list[Tensor]

    def reset(self) -> None:
        """Forget what was collected."""


class Normalise(Protocol):
    """The hook that scales the pixels."""

    calls: int


class Model(Protocol):
    """What the demo needs to know of a network whose class it may not import."""

    feature_maps: FeatureMaps
    normalise: Normalise

    def __call__(self, images: Tensor) -> Tensor:
        """Images ``(n, 8, 8)`` to log-probabilities ``(n, 10)``."""

    def eval(self) -> object:
        """Switch to inference."""

    def parameters(self) -> Iterable[Tensor]:
        """What is trained."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def report(self, losses: Sequence[float], accuracies: Sequence[float]) -> str:
        """Draw the curves of a training run."""


def observe(model: Model, test: Digits) -> Observation:
    """Run a model over the test images, and note its answers and what its hooks did.

    Args:
        model: the network; its hooks' counters start from 0.
        test: the test images and their labels.
    """
    model.eval()
    model.feature_maps.reset()
    model.normalise.calls = 0
    with torch.inference_mode():
        starts = range(0, len(test), BATCH)
        logits = torch.cat([model(test.images[at : at + BATCH]) for at in starts])
    read = logits.argmax(dim=1)
    return Observation(
        images=len(test),
        accuracy=(read == test.labels).double().mean().item(),
        logits=_digest([logits]),
        normalise_calls=model.normalise.calls,
        feature_map_calls=model.feature_maps.calls,
        feature_maps=_digest(model.feature_maps.strengths),
        refusal=_refusal(model),
        **_gradients(model, test),
        predictions=tuple(int(digit) for digit in read[:SHOWN]),
    )


def _gradients(model: Model, test: Digits) -> dict[str, Any]:
    """What one backward pass leaves on the parameters, after the hooks on them."""
    model.zero_grad()
    loss = nll_loss(model(test.images[:BATCH]), test.labels[:BATCH])
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    largest = max(gradient.abs().max().item() for gradient in gradients)
    model.zero_grad()
    return {"gradients": _digest(gradients), "largest_gradient": largest}


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


def _refusal(model: Model) -> str:
    try:
        model(torch.zeros(1, 8, 9))
    except ValueError as error:
        return str(error)
    return ""
