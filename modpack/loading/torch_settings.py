"""Process-wide settings of torch that change what a model computes.

A script may set a default dtype and then build and call a model. The package records settings that
are not torch's defaults, because a process without them may compute something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch

from modpack.core.text import dtype_name

DEFAULTS: Final[Mapping[str, Any]] = {
    "default_dtype": "float32",
    "default_device": "cpu",
    "matmul_precision": "highest",
    "deterministic": False,
    "deterministic_warn_only": False,
    "autocast": {},
    "mkldnn": True,
}
"""The settings of a new process."""


def read_settings() -> dict[str, Any]:
    """Return the settings of this process, as records of conditions contain them."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {
        "default_dtype": dtype_name(torch.get_default_dtype()),
        "default_device": str(torch.get_default_device()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "autocast": {
            device: dtype_name(torch.get_autocast_dtype(device))
            for device in devices
            if torch.is_autocast_enabled(device)
        },
        "mkldnn": bool(torch.backends.mkldnn.enabled),
    }


class _Setting(NamedTuple):
    """A setting, or several that one statement sets.

    Attributes:
        name: Its name in records and messages.
        text: Returns its value as text from :func:`read_settings`.
        statement: The statement that sets a value.
    """

    name: str
    text: Callable[[Mapping[str, Any]], str]
    statement: str


def _deterministic(settings: Mapping[str, Any]) -> str:
    is_enabled, only_warns = settings["deterministic"], settings["deterministic_warn_only"]
    return f"{is_enabled}{', warn_only=True' if is_enabled and only_warns else ''}"


def _autocast(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{device!r}, torch.{dtype}" for device, dtype in settings["autocast"].items())


_SETTINGS: Final = (
    _Setting(
        "default dtype",
        lambda settings: f"torch.{settings['default_dtype']}",
        "torch.set_default_dtype({})",
    ),
    _Setting(
        "default device",
        lambda settings: str(settings["default_device"]),
        "torch.set_default_device({!r})",
    ),
    _Setting(
        "float32 matmul precision",
        lambda settings: str(settings["matmul_precision"]),
        "torch.set_float32_matmul_precision({!r})",
    ),
    _Setting("deterministic algorithms", _deterministic, "torch.use_deterministic_algorithms({})"),
    _Setting("autocast", _autocast, "with torch.autocast({}): ..."),
    _Setting(
        "oneDNN", lambda settings: str(settings["mkldnn"]), "torch.backends.mkldnn.enabled = {}"
    ),
)


def changed_settings() -> dict[str, str]:
    """Return the settings of this process that are not torch's defaults, by name.

    >>> changed_settings()
    {}
    """
    now = read_settings()
    changed = (each for each in _SETTINGS if each.text(now) != each.text(DEFAULTS))
    return {each.name: each.text(now) for each in changed}


def differing_settings(recorded: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return name, recorded value, and present value of each recorded setting that differs."""
    now = read_settings()
    rows = ((s.name, recorded[s.name], s.text(now)) for s in _SETTINGS if s.name in recorded)
    return tuple(row for row in rows if row[1] != row[2])


def statements_for(recorded: Mapping[str, str]) -> str:
    """Return the statements that set recorded values, separated by ``; ``."""
    return "; ".join(s.statement.format(recorded[s.name]) for s in _SETTINGS if s.name in recorded)
