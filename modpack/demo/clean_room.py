"""The other side: an interpreter that has never seen the project loads the package.

:func:`visit` starts it, with ``python -I`` and in an empty folder; :func:`main` runs in it
and answers with one line of JSON. :func:`observe` puts a model to the test on both sides.
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
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from modpack import ModpackError, PackageImporter

THREADS = 1
"""The number of threads decides in which order floats are added, so both sides use the same.
One is fast enough for so small a network, and does not suffer where cores are busy."""
BATCH = 64
SHOWN = 8
"""How many of the test images are drawn."""

_HERE = Path(__file__).parent
_DATA = (  # in an installed modpack, and in its source tree
    _HERE / "data" / "digits.csv.gz",
    _HERE.parent.parent / "fixtures" / "data" / "digits" / "digits.csv.gz",
)
# Last in the path, and only for a modpack that runs from its sources without an install.
_START = """
import sys
sys.path.append(sys.argv[1])
from modpack.demo.clean_room import main
main(sys.argv[2])
"""


class Digits(NamedTuple):
    """Some images and what they show.

    Attributes:
        images: float32 of shape ``(n, 8, 8)``, each pixel from 0 (paper) to 16 (ink).
        labels: int64 of shape ``(n,)``, from 0 to 9.
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Observation:
    """What a model does with the test images.

    Attributes:
        images: how many there were.
        accuracy: the share that was read right, from 0 to 1.
        logits: the sha256 of all logits, bit by bit, in hexadecimal.
        normalize_calls: how often the pre-hook that scales the pixels fired.
        feature_map_calls: how often the hook that collects feature maps fired.
        feature_maps: the sha256 of what it collected.
        refusal: what the hook that guards the shape says to a wrong one; empty if nothing.
        predictions: the digits read in the first images.
        gradients: the sha256 of all gradients after one backward pass.
        largest_gradient: the largest of their absolute values.
    """

    images: int
    accuracy: float
    logits: str
    normalize_calls: int
    feature_map_calls: int
    feature_maps: str
    refusal: str
    predictions: list[int]
    gradients: str
    largest_gradient: float

    @property
    def hooks(self) -> str:
        """What the hooks did, in one line."""
        refused = "1 wrong shape refused" if self.refusal else "a wrong shape let through"
        return f"normalize {self.normalize_calls}, feature maps {self.feature_map_calls}, {refused}"


@dataclass(frozen=True)
class Reloaded:
    """What the clean interpreter reported.

    Attributes:
        unknown: the project's packages that could not be imported there.
        load_seconds: how long the package took to load.
        seconds: how long the interpreter ran.
        module: the name under which the model's code lives there.
        mocked: what using a mocked class says there; empty if it did not fail.
        observed: what the reloaded model does with the test images.
    """

    unknown: list[str]
    load_seconds: float
    seconds: float
    module: str
    mocked: str
    observed: Observation


def visit(package: Path, folder: Path) -> Reloaded:
    """Load a package in a clean interpreter and let it tell what it saw.

    Args:
        package: the file to load.
        folder: where the interpreter runs.

    Raises:
        ModpackError: if the interpreter fails; the text holds what it wrote.
    """
    home = str(_HERE.parent.parent)
    command = [sys.executable, "-I", "-c", _START, home, str(package.resolve())]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise ModpackError(
            f"the clean interpreter could not load {package} (exit {done.returncode}):\n"
            f"{done.stderr.strip()}"
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    observed = Observation(**answer.pop("observed"))
    return Reloaded(seconds=seconds, observed=observed, **answer)


def main(package: str) -> None:
    """Runs in the clean interpreter: load the package, use it, print what happened."""
    unknown = []
    for name in ("digits_cnn", "labplot"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            unknown.append(name)
    torch.set_num_threads(THREADS)
    _, test = load_digits()
    started = time.perf_counter()
    model = PackageImporter(package).load_model("model", "model.pkl")
    answer = {
        "unknown": unknown,
        "load_seconds": time.perf_counter() - started,
        "module": type(model).__module__,
        "mocked": _said(NotImplementedError, lambda: model.report([1.0, 0.5], [0.5, 1.0])),
        "observed": asdict(observe(model, test)),
    }
    print(json.dumps(answer))


def load_digits() -> tuple[Digits, Digits]:
    """Read the data set: four fifths to train on, every fifth sample to test with.

    Returns:
        The training part and the test part; always the same ones.

    Raises:
        ModpackError: if the data file is missing.
    """
    file = next((file for file in _DATA if file.is_file()), None)
    if file is None:
        looked = " and ".join(map(str, _DATA))
        raise ModpackError(
            f"the demo's data set is missing; looked for {looked}. Reinstall modpack"
        )
    with gzip.open(file, "rt", encoding="ascii", newline="") as lines:
        rows = torch.tensor([[int(cell) for cell in row] for row in csv.reader(lines)])
    images, labels = rows[:, :64].float().reshape(-1, 8, 8), rows[:, 64]
    tested = torch.arange(len(rows)) % 5 == 0
    return Digits(images[~tested], labels[~tested]), Digits(images[tested], labels[tested])


def observe(model: Any, test: Digits) -> Observation:
    """Run a model over the test images, and note its answers and what its hooks did.

    Args:
        model: the network, of a class that only one side can import; its hooks' counters start
            from 0.
        test: the test images and their labels.
    """
    model.eval()
    model.feature_maps.reset()
    model.normalize.calls = 0
    with torch.inference_mode():
        logits = torch.cat([model(batch) for batch in torch.split(test.images, BATCH)])
    read = logits.argmax(dim=1)
    calls, strengths = model.feature_maps.calls, _digest(model.feature_maps.strengths)
    normalized = model.normalize.calls
    model.zero_grad()
    nll_loss(model(test.images[:BATCH]), test.labels[:BATCH]).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    observed = Observation(
        images=len(test.images),
        accuracy=(read == test.labels).double().mean().item(),
        logits=_digest([logits]),
        normalize_calls=normalized,
        feature_map_calls=calls,
        feature_maps=strengths,
        refusal=_said(ValueError, lambda: model(torch.zeros(1, 8, 9))),
        predictions=read[:SHOWN].tolist(),
        gradients=_digest(gradients),
        largest_gradient=max(gradient.abs().max().item() for gradient in gradients),
    )
    model.zero_grad()
    return observed


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


def _said(expected: type[Exception], do: Callable[[], object]) -> str:
    """What an error says; empty if there is none."""
    try:
        do()
    except expected as error:
        return str(error)
    return ""
