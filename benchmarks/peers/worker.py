"""One process: ``worker.py JOB ARGUMENTS [PROFILE]`` prints as JSON what a job measured."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from clocks import profile_clocks
from jobs import JOBS, Missing


def main() -> None:
    """Do it."""
    name, arguments, *profile = sys.argv[1:]
    sys.path.insert(0, str(Path.cwd()))  # the models' modules are there
    with profile_clocks(profile[0]) if profile else contextlib.nullcontext():
        try:
            figures: object = JOBS[name](**json.loads(arguments))
        except Missing as missing:
            figures = {"missing": str(missing)}
    print("\n" + json.dumps(figures))


if __name__ == "__main__":
    main()
