"""The micro benchmarks run, each once. Nothing is timed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_micro_benchmark_does_its_work(tmp_path):
    options = ["--benchmark-disable", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "benchmarks/micro", *options],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
