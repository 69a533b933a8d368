"""The training script, whose functions are hooks too."""

import sys
from pathlib import Path
from typing import Any

from matrixlib.effects import apply
from matrixlib.packaging import package_all


def double(*args: Any, **kwargs: Any) -> Any:
    """A function of ``__main__``."""
    return apply("double", 0.0, args, kwargs)


def shift(*args: Any, **kwargs: Any) -> Any:
    """A function of ``__main__``."""
    return apply("shift", 0.0, args, kwargs)


if __name__ == "__main__":
    package_all((double, shift), Path(sys.argv[1]), Path(sys.argv[2]))
