"""One process: ``worker.py JOB ARGUMENTS`` does a job, and prints as JSON what it measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from jobs import JOBS, Missing


def main() -> None:
    """Do it."""
    name, arguments = sys.argv[1:]
    sys.path.insert(0, str(Path.cwd()))  # the models' modules are there
    try:
        figures: object = JOBS[name](**json.loads(arguments))
    except Missing as missing:
        figures = {"missing": str(missing)}
    print("\n" + json.dumps(figures))


if __name__ == "__main__":
    main()
