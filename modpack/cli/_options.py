"""Types and options that several commands have."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

FILE: Final = click.Path(readable=False)
"""The type of an argument or option that shells complete as a file."""
PACKAGE: Final = click.Path(readable=False)
"""The type of a package to read: a file, a folder, or a URL."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_SIZES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A size in bytes, with an optional unit: ``800M``.

    Args:
        least: The smallest size.
    """

    name = "size"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        # Few digits, so that no size is too large for the integers of C libraries.
        found = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is not a size such as 5G or 800M.", param, ctx)
        size = int(found[1]) * _SIZES[found[2].upper()]
        if size < self._least:
            self.fail(f"{value!r} is less than {self._least}.", param, ctx)
        return size


_policy_option = click.option(
    "--policy",
    metavar="FILE",
    type=FILE,
    help="Reject a package that requires more than this trust policy allows (a TOML file).",
)

key_option = click.option(
    "--key",
    "keys",
    metavar="PUB",
    multiple=True,
    type=FILE,
    help="Require a valid signature of this public key (a PEM file). Repeatable: one valid "
    "signature is enough.",
)

_on_mismatch_option = click.option(
    "--on-mismatch",
    type=click.Choice(["warn", "error", "ignore"]),
    default="warn",
    show_default=True,
    help="Warn, fail, or continue if installed versions differ from the recorded ones.",
)

_verify_option = click.option(
    "--verify",
    type=click.Choice(["code", "full"]),
    default="code",
    show_default=True,
    help="Verify the digests of all records (full), or of all but tensors (code).",
)

isolated_option = click.option(
    "--isolated",
    is_flag=True,
    help="Run in a virtual environment that contains the package's requirements and nothing else.",
)


def load_options(function: _Function) -> _Function:
    """Add the options of all commands that load packages."""
    # The last decorator is the first option in the help.
    for option in (_verify_option, _policy_option, _on_mismatch_option, key_option):
        function = option(function)
    return function
