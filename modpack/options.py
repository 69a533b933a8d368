"""Types and checks of the options that several public functions share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin

from modpack.core.json_values import require_type
from modpack.core.names import did_you_mean

VerifyLevel = Literal["code", "full"]
OnMismatch = Literal["warn", "error", "ignore"]
NamespaceKind = Literal["auto", "private", "process"]
SelfTest = Literal[True, False, "warn"]
Preset = Literal["none", "pinned", "hermetic"]
WeightsPlace = Literal["inside", "external"]

DEFAULT_PROTOCOL: Final = 3
"""The pickle protocol that torch.package writes."""


def require_options(**options: object) -> None:
    """Check options by their names.

    Raises:
        TypeError: If an option has the wrong type.
        ValueError: If an option has an invalid value.

    >>> require_options(verify="ful")
    Traceback (most recent call last):
    ValueError: verify must be 'code' or 'full', not 'ful'. Did you mean 'full'?
    """
    for name, value in options.items():
        if name in _TYPES:
            _require_value(value, name, _TYPES[name])
        elif value is not None:
            _CHECKS[name](value, name)


def require_object_choice(package: str | None, resource: str | None) -> None:
    """Check the choice of one saved object.

    Raises:
        TypeError: If one of the names is not a string, or is missing.
    """
    require_options(package=package, resource=resource)
    if (package is None) != (resource is None):
        raise TypeError("package and resource must be given together")


def is_tested_by_default(has_example: bool) -> bool:
    """Return whether a package is tested if the caller did not choose."""
    chosen = os.environ.get("MODPACK_SELF_TEST")
    return chosen != "0" and (has_example or chosen != "examples")


def _require_value(value: object, name: str, hint: Any) -> None:
    """Check an argument against a type of choices (Literal) and of plain values, such as bool."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    literals = [member for member in members if get_origin(member) is Literal]
    choices = [choice for literal in literals for choice in get_args(literal)]
    plain = [member for member in members if member not in literals]
    expected = _join([*map(repr, choices), *(_NOUNS[member] for member in plain)])
    if any(_is_instance(value, type(choice)) for choice in choices):
        if value not in choices:
            similar = did_you_mean(str(value), filter(lambda each: isinstance(each, str), choices))
            hint = f". {similar}" if similar else ""
            raise ValueError(f"{name} must be {expected}, not {value!r}{hint}")
    elif not any(_is_instance(value, member) for member in plain):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}")


def _is_instance(value: object, kind: type) -> bool:
    """Return whether a value is an instance of a type, where a bool is not a number."""
    if isinstance(value, bool) and kind is not bool:
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _join(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)}{',' if len(most) > 1 else ''} or {last}" if most else last


def _require_policy(policy: object, argument: str) -> None:
    from modpack.core.policy import TrustPolicy  # most loads have no policy

    expected = "a TrustPolicy or None; TrustPolicy.from_toml reads one from a file"
    require_type(policy, TrustPolicy, argument, expected)


def _require_dynamic(dynamic: object, argument: str) -> None:
    require_type(dynamic, Mapping, argument, "a mapping such as {'x': {0: 'batch'}}")
    for name, dimensions in cast("Mapping[object, object]", dynamic).items():
        require_type(name, str, f"a key of {argument}", "the name of an argument")
        require_type(dimensions, Mapping, f"{argument}[{name!r}]", "a mapping such as {0: 'batch'}")
        for dimension, label in cast("Mapping[object, object]", dimensions).items():
            require_type(dimension, int, f"a key of {argument}[{name!r}]", "a dimension (int)")
            require_type(label, str, f"{argument}[{name!r}][{dimension}]", "a name (str)")
            if not str(label).isidentifier():
                raise ValueError(f"{argument}[{name!r}][{dimension}] is not a name: {label!r}")


def _require_device(device: object, argument: str) -> None:
    require_type(device, str, argument, "the name of a device, such as 'cpu'")
    import torch

    try:
        torch.device(cast("str", device))
    except RuntimeError as failure:
        raise ValueError(f"{argument} {device!r} is not a device: {failure}") from failure


_NOUNS: Final = {bool: "a bool", float: "a number", int: "an int", str: "a str", NoneType: "None"}
"""The plain types of options, as error messages name them."""
_TYPES: Final[Mapping[str, Any]] = {
    "bundle_loader": bool,
    "debug": bool,
    "global_hooks": bool,
    "intern_native": bool,
    "lazy": bool | None,
    "namespace": NamespaceKind,
    "on_mismatch": OnMismatch,
    "package": str | None,
    "pickle_protocol": int,
    "preset": Preset,
    "progress": bool | None,
    "resource": str | None,
    "self_test": SelfTest | None,
    "timeout": float,
    "verify": VerifyLevel,
    "weights": WeightsPlace,
    "with_optimizer": bool,
}
_CHECKS: Final[Mapping[str, Callable[[object, str], None]]] = {
    "dynamic": _require_dynamic,
    "policy": _require_policy,
    "self_test_device": _require_device,
}
