"""Process-wide settings of torch that change what a model computes.

A script may set a default dtype and then build and call a model. The package records settings that
are not torch's defaults, because a process without them may compute something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch


class _Setting(NamedTuple):
    """A setting.

    Attributes:
        name: Its name in records and messages.
        read: Returns its value as text.
        default: The value in a new process.
        statement: The statement that sets a value.
    """

    name: str
    read: Callable[[], str]
    default: str
    statement: str


def _deterministic() -> str:
    is_enabled = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return f"{is_enabled}{', warn_only=True' if is_enabled and only_warns else ''}"


def _autocast() -> str:
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    enabled = (d for d in devices if torch.is_autocast_enabled(d))
    return ", ".join(f"{device!r}, {torch.get_autocast_dtype(device)}" for device in enabled)


_SETTINGS: Final = (
    _Setting(
        "default dtype",
        lambda: str(torch.get_default_dtype()),
        "torch.float32",
        "torch.set_default_dtype({})",
    ),
    _Setting(
        "default device",
        lambda: str(torch.get_default_device()),
        "cpu",
        "torch.set_default_device({!r})",
    ),
    _Setting(
        "float32 matmul precision",
        torch.get_float32_matmul_precision,
        "highest",
        "torch.set_float32_matmul_precision({!r})",
    ),
    _Setting(
        "deterministic algorithms",
        _deterministic,
        "False",
        "torch.use_deterministic_algorithms({})",
    ),
    _Setting("autocast", _autocast, "", "with torch.autocast({}): ..."),
    _Setting(
        "oneDNN",
        lambda: str(bool(torch.backends.mkldnn.enabled)),
        "True",
        "torch.backends.mkldnn.enabled = {}",
    ),
)


def changed_settings() -> dict[str, str]:
    """Return the settings of this process that are not torch's defaults, by name.

    >>> changed_settings()
    {}
    """
    values = ((each, each.read()) for each in _SETTINGS)
    return {each.name: value for each, value in values if value != each.default}


def differing_settings(recorded: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return name, recorded value, and present value of each recorded setting that differs."""
    rows = ((s.name, recorded[s.name], s.read()) for s in _SETTINGS if s.name in recorded)
    return tuple(row for row in rows if row[1] != row[2])


def statements_for(recorded: Mapping[str, str]) -> str:
    """Return the statements that set recorded values, separated by ``; ``."""
    return "; ".join(s.statement.format(recorded[s.name]) for s in _SETTINGS if s.name in recorded)
