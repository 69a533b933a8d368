"""A policy in a file: the table ``[trust]`` of a TOML document.

.. code-block:: toml

    [trust]
    allow_code = true
    externs = ["numpy.**"]
    hook_kinds = ["forward", "forward_pre"]
    native = false
    signers = [{ name = "release", key = "keys/release.pub" }]

Each key is a field of :class:`TrustPolicy`, by its very name, so that what an error says about a
field can be done in a file as well; what is left out is as in :class:`TrustPolicy`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modpack.core.tomlfile import BrokenTomlError, kind_in_toml, read_toml, unknown_keys
from modpack.core.trust import (
    PATTERN_FIELDS,
    VERIFY_LEVELS,
    Signer,
    TrustPolicy,
    require_exact_name,
    require_pattern,
)
from modpack.errors import PolicyError, PolicyNotFoundError

__all__ = ["read_policy"]

_TABLE: Final = "trust"
_KEYS: Final = ("allow_code", *PATTERN_FIELDS, "pickle_globals", "native", "signers", "verify")
_MOST_KEY_BYTES: Final = 1 << 16


def read_policy(path: str | os.PathLike[str]) -> TrustPolicy:
    """Read a policy from a file; see :meth:`TrustPolicy.from_toml`.

    Raises:
        PolicyNotFoundError: there is no such file.
        PolicyError: it cannot be read, or something in it is wrong; all of it is told.
    """
    file = Path(path)
    try:
        document = read_toml(file)
    except FileNotFoundError as failure:
        raise PolicyNotFoundError(str(file), ("there is no such file",)) from failure
    except BrokenTomlError as failure:
        raise PolicyError(str(file), (str(failure),)) from failure
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        reason = getattr(failure, "strerror", None) or str(failure)
        raise PolicyError(str(file), (f"the policy cannot be read: {reason}",)) from failure
    reading = _Reading(file.parent)
    policy = reading.policy(document)
    if reading.problems:
        raise PolicyError(str(file), tuple(reading.problems))
    return policy


class _Reading:
    """One file, read to its end whatever is wrong with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.problems: list[str] = []

    def policy(self, document: Mapping[str, object]) -> TrustPolicy:
        """The policy, if nothing is wrong; that stands among the problems otherwise."""
        table = document.get(_TABLE)
        if not isinstance(table, Mapping):
            is_there = _TABLE in document
            found = f"must be a table, not {kind_in_toml(table)}" if is_there else "is missing"
            self.problems.append(f"the table [{_TABLE}] {found}")
            return TrustPolicy()
        others = [key for key in document if key != _TABLE]
        self.problems += [f"{key}: nothing but the table [{_TABLE}] is read here" for key in others]
        self.problems += unknown_keys(table, _KEYS, _TABLE)
        patterns = {field: self._patterns(table, field) for field in PATTERN_FIELDS}
        allow_code = self._truth(table, "allow_code", False)
        names = self._names(table)
        if allow_code and names:
            self.problems.append(
                f"{_TABLE}.pickle_globals: adds names for packages without code, and allow_code is "
                "true. Remedy: give one of the two"
            )
        native = self._truth(table, "native", True)
        verify = self._verify(table.get("verify"))
        signers = self._signers(table["signers"]) if "signers" in table else ()
        if self.problems:
            return TrustPolicy()
        return TrustPolicy(
            allow_code=allow_code,
            pickle_globals=names,
            native=native,
            verify=verify,
            signers=signers,
            **patterns,
        )

    def _patterns(self, table: Mapping[str, object], field: str) -> tuple[str, ...] | None:
        if field not in table:
            return None
        value = table[field]
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            self._expected(field, "a pattern or an array of patterns", value)
            return None
        for pattern in listed:
            try:
                require_pattern(pattern, field)
            except ValueError as failure:
                self.problems.append(f"{_TABLE}.{field}: {failure}")
        return tuple(listed)

    def _names(self, table: Mapping[str, object]) -> tuple[str, ...]:
        value = table.get("pickle_globals", [])
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            self._expected("pickle_globals", "a name or an array of names", value)
            return ()
        for name in listed:
            try:
                require_exact_name(name)
            except ValueError as failure:
                self.problems.append(f"{_TABLE}.{failure}")
        return tuple(listed)

    def _truth(self, table: Mapping[str, object], field: str, default: bool) -> bool:
        value = table.get(field, default)
        if not isinstance(value, bool):
            self._expected(field, "true or false", value)
        return value is True

    def _verify(self, value: object) -> str:
        if value is None or value in VERIFY_LEVELS:
            return str(value or "")
        known = " or ".join(f'"{level}"' for level in VERIFY_LEVELS)
        shown = f'"{value}"' if isinstance(value, str) else kind_in_toml(value)
        self.problems.append(f"{_TABLE}.verify: must be {known}, not {shown}")
        return ""

    def _signers(self, value: object) -> tuple[Signer, ...]:
        if not isinstance(value, list):
            self._expected("signers", "an array of tables", value)
            return ()
        if not value:
            self.problems.append(
                f"{_TABLE}.signers: an empty array names nobody who could have signed. Remedy: "
                "name a signer, or leave signers out, which demands no signature"
            )
        made = (self._signer(f"signers[{place}]", each) for place, each in enumerate(value))
        return tuple(signer for signer in made if signer is not None)

    def _signer(self, path: str, value: object) -> Signer | None:
        if not isinstance(value, Mapping):
            self._expected(path, 'a table such as { name = "release", key = "release.pub" }', value)
            return None
        self.problems += unknown_keys(value, ("name", "key"), f"{_TABLE}.{path}")
        name, key = (self._text(path, value, each) for each in ("name", "key"))
        if name is None or key is None:
            return None
        try:
            return Signer(name, self._key(key))
        except OSError as failure:
            reason = f"{self._folder / key} cannot be read: {failure.strerror or failure}"
        except ValueError as failure:
            reason = f"{self._folder / key}: {failure}"
        self.problems.append(f"{_TABLE}.{path}.key: {reason}")
        return None

    def _text(self, path: str, table: Mapping[str, object], key: str) -> str | None:
        value = table.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if key not in table:
            self.problems.append(f"{_TABLE}.{path}: has no {key!r}")
        else:
            shown = "a string that says something"
            self._expected(f"{path}.{key}", shown, value)
        return None

    def _key(self, name: str) -> str:
        with (self._folder / name).open("rb") as file:
            content = file.read(_MOST_KEY_BYTES + 1)
        if len(content) > _MOST_KEY_BYTES:
            raise ValueError("it is too large for a key")
        try:
            return content.decode("ascii")
        except UnicodeDecodeError:
            return ""  # no PEM, and told as that

    def _expected(self, key: str, expected: str, value: object) -> None:
        self.problems.append(f"{_TABLE}.{key}: must be {expected}, not {kind_in_toml(value)}")
