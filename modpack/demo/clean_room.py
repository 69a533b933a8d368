"""Reloading the package in a clean interpreter that cannot import the project.

:func:`reload_package` starts the interpreter with ``python -I`` in an empty folder. :func:`main`
runs there and prints one line of JSON. :func:`observe` measures a model in both interpreters.
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
"""The number of threads determines the order of float additions, so both interpreters use the
same. One is fast enough for a small network, and busy cores do not slow it down."""
BATCH = 64
SHOWN = 8
"""The number of test images to draw."""

_HERE = Path(__file__).parent
_DATA = (  # in an installed modpack and in its source tree
    _HERE / "data" / "digits.csv.gz",
    _HERE.parent.parent / "fixtures" / "data" / "digits" / "digits.csv.gz",
)


class Digits(NamedTuple):
    """Images and their labels.

    Attributes:
        images: float32 of shape ``(n, 8, 8)``, each pixel from 0 (paper) to 16 (ink).
        labels: int64 of shape ``(n,)``, from 0 to 9.
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Observation:
    """The behavior of a model on the test images.

    Attributes:
        images: Number of images.
        accuracy: Accuracy, from 0 to 1.
        logits: SHA-256 digest of all logits, in hex.
        normalize_calls: Number of calls of the pre-hook that scales pixels.
        feature_map_calls: Number of calls of the hook that collects feature maps.
        feature_maps: SHA-256 digest of the collected values.
        rejection: Error message of the hook that checks shapes. Empty if it raised no error.
        predictions: Predicted digits of the first images.
        gradients: SHA-256 digest of all gradients after one backward pass.
        largest_gradient: Largest absolute value of a gradient.
    """

    images: int
    accuracy: float
    logits: str
    normalize_calls: int
    feature_map_calls: int
    feature_maps: str
    rejection: str
    predictions: list[int]
    gradients: str
    largest_gradient: float

    @property
    def hooks(self) -> str:
        """The hook calls, on one line."""
        shapes = "1 wrong shape rejected" if self.rejection else "wrong shape accepted"
        return f"normalize {self.normalize_calls}, feature maps {self.feature_map_calls}, {shapes}"


@dataclass(frozen=True)
class Reloaded:
    """The report of the clean interpreter.

    Attributes:
        unknown: The project's Python packages that cannot be imported there.
        load_seconds: Time to load the package, in seconds.
        seconds: Run time of the interpreter, in seconds.
        module: Module name of the model's class there.
        mocked: Error message of a mocked class. Empty if using it raised no error.
        observed: The behavior of the reloaded model.
    """

    unknown: list[str]
    load_seconds: float
    seconds: float
    module: str
    mocked: str
    observed: Observation


def clean_python(code: str, *arguments: str) -> list[str]:
    """Return the command of a clean interpreter that can import modpack.

    Args:
        code: The code to run, after ``import sys``.
        arguments: The rest of ``sys.argv``.
    """
    # Last on the path: only a modpack that runs from its source tree needs this entry.
    start = f"import sys; sys.path.append(sys.argv.pop(1)); {code}"
    return [sys.executable, "-I", "-c", start, str(_HERE.parent.parent), *arguments]


def reload_package(package: Path, folder: Path) -> Reloaded:
    """Load a package in a clean interpreter, and return its report.

    Args:
        package: The package.
        folder: The working folder of the interpreter.

    Raises:
        ModpackError: If the interpreter fails. The message includes its stderr.
    """
    code = "from modpack.demo.clean_room import main; main(sys.argv[1])"
    command = clean_python(code, str(package.resolve()))
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise ModpackError(
            f"{package}: loading in a clean interpreter failed (exit {done.returncode}):\n"
            f"{done.stderr.strip()}"
        )
    report = json.loads(done.stdout.splitlines()[-1])
    observed = Observation(**report.pop("observed"))
    return Reloaded(seconds=seconds, observed=observed, **report)


def main(package: str) -> None:
    """Load and use the package, and print a report. Runs in the clean interpreter."""
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
    report = {
        "unknown": unknown,
        "load_seconds": time.perf_counter() - started,
        "module": type(model).__module__,
        "mocked": _error_message(NotImplementedError, lambda: model.report([1.0, 0.5], [0.5, 1.0])),
        "observed": asdict(observe(model, test)),
    }
    print(json.dumps(report))


def load_digits() -> tuple[Digits, Digits]:
    """Read the data set, with every fifth sample for testing.

    Returns:
        The training set and the test set, which are always the same.

    Raises:
        ModpackError: If the data file is missing.
    """
    file = next((file for file in _DATA if file.is_file()), None)
    if file is None:
        searched = " or ".join(map(str, _DATA))
        raise ModpackError(
            f"the demo's data set was not found: {searched}", hint="Reinstall modpack."
        )
    with gzip.open(file, "rt", encoding="ascii", newline="") as lines:
        rows = torch.tensor([[int(cell) for cell in row] for row in csv.reader(lines)])
    images, labels = rows[:, :64].float().reshape(-1, 8, 8), rows[:, 64]
    tested = torch.arange(len(rows)) % 5 == 0
    return Digits(images[~tested], labels[~tested]), Digits(images[tested], labels[tested])


def observe(model: Any, test: Digits) -> Observation:
    """Run a model on the test images, and return its outputs and hook calls.

    Args:
        model: The network. The counters of its hooks are reset.
        test: The test images and their labels.
    """
    model.eval()
    model.feature_maps.reset()
    model.normalize.calls = 0
    with torch.inference_mode():
        logits = torch.cat([model(batch) for batch in torch.split(test.images, BATCH)])
    predicted = logits.argmax(dim=1)
    calls, maps = model.feature_maps.calls, _digest(model.feature_maps.means)
    normalized = model.normalize.calls
    model.zero_grad()
    nll_loss(model(test.images[:BATCH]), test.labels[:BATCH]).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    observed = Observation(
        images=len(test.images),
        accuracy=(predicted == test.labels).double().mean().item(),
        logits=_digest([logits]),
        normalize_calls=normalized,
        feature_map_calls=calls,
        feature_maps=maps,
        rejection=_error_message(ValueError, lambda: model(torch.zeros(1, 8, 9))),
        predictions=predicted[:SHOWN].tolist(),
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


def _error_message(expected: type[Exception], do: Callable[[], object]) -> str:
    """Return the message of the exception that a function raises; empty if it raises none."""
    try:
        do()
    except expected as error:
        return str(error)
    return ""
