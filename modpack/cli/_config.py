"""``[tool.modpack]``: what a project's pyproject.toml says about its packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from modpack.cli._target import GivenRule
from modpack.core.json_values import BrokenTomlError, kind_in_toml, read_toml, unknown_keys
from modpack.core.names import GlobGroup, as_allowances
from modpack.core.rules import Action
from modpack.errors import ModpackError
from modpack.exporting.presets import POLICIES

_TABLE = "tool.modpack"
_ACTIONS = {action.value: action for action in Action}
_RULE_KEYS = (*_ACTIONS, "exclude", "allow_empty")


class ConfigError(ModpackError):
    """A configuration file cannot be used.

    Args:
        file: the file.
        problems: everything that is wrong with it.
    """

    def __init__(self, file: Path, problems: tuple[str, ...]) -> None:
        self.file = file
        self.problems = problems
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{file}: {problems[0]}" if len(problems) == 1 else f"{file}:{listed}")


@dataclass(frozen=True)
class Settings:
    """What a project says about its packages; the command line comes before all of it.

    Attributes:
        folder: what paths in it are relative to; None if there are no settings.
        rules: rules, in order.
        policy: the policy for modules that no rule names.
        target: what is exported.
        output: where it is written.
        allow_secrets: where something may be that looks like a secret.
    """

    folder: Path | None = None
    rules: tuple[GivenRule, ...] = ()
    policy: str | None = None
    target: str | None = None
    output: str | None = None
    allow_secrets: tuple[str, ...] = ()


def find_settings(start: Path) -> Settings:
    """The settings of the nearest pyproject.toml that has some, from a folder upwards.

    Raises:
        ConfigError: a pyproject.toml on the way is broken, or its settings are.
        OSError: it cannot be read.
    """
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file() and b"modpack" in file.read_bytes():
            table = _table(file)
            if table is not None:
                return _settings(file, table)
    return Settings()


def read_settings(file: Path) -> Settings:
    """The settings of a file that the user named.

    Raises:
        ConfigError: it has none, or is broken.
        OSError: it cannot be read.
    """
    table = _table(file)
    if table is None:
        raise ConfigError(file, (f"it has no table [{_TABLE}]",))
    return _settings(file, table)


def _table(file: Path) -> object | None:
    try:
        document = read_toml(file)
    except BrokenTomlError as failure:
        raise ConfigError(file, (str(failure),)) from failure
    tool = document.get("tool")
    return tool.get("modpack") if isinstance(tool, Mapping) else None


def _settings(file: Path, table: object) -> Settings:
    problems: list[str] = []
    if not isinstance(table, Mapping):
        raise ConfigError(file, (f"{_TABLE}: must be a table, not {kind_in_toml(table)}",))
    problems += unknown_keys(
        table, ("rules", "policy", "target", "output", "allow_secrets"), _TABLE
    )
    policy = _string(table, "policy", problems)
    if policy is not None and policy not in POLICIES:
        known = ", ".join(map(repr, POLICIES))
        problems.append(f"{_TABLE}.policy: must be one of {known}, not {policy!r}")
    target, output = _string(table, "target", problems), _string(table, "output", problems)
    rules = tuple(_rules(table.get("rules", []), problems))
    allowed = _allowed(table.get("allow_secrets", []), problems)
    if problems:
        raise ConfigError(file, tuple(problems))
    return Settings(file.resolve().parent, rules, policy, target, output, allowed)


def _allowed(value: object, problems: list[str]) -> tuple[str, ...]:
    path = f"{_TABLE}.allow_secrets"
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        kind = kind_in_toml(value)
        problems.append(f"{path}: must be a pattern or an array of patterns, not {kind}")
        return ()
    try:
        as_allowances(listed, path)
    except ValueError as failure:
        problems.append(str(failure))
    return tuple(listed)


def _rules(value: object, problems: list[str]) -> Iterator[GivenRule]:
    if not isinstance(value, list):
        problems.append(f"{_TABLE}.rules: must be an array of tables, not {kind_in_toml(value)}")
        return
    for position, entry in enumerate(value):
        path = f"{_TABLE}.rules[{position}]"
        rule = _rule(entry, path, problems)
        if rule is not None:
            yield rule


def _rule(entry: object, path: str, problems: list[str]) -> GivenRule | None:
    """One rule; None if it is none, and the reasons are then among the problems."""
    if not isinstance(entry, Mapping):
        example = '{ intern = "mylib.**" }'
        problems.append(f"{path}: must be a table such as {example}, not {kind_in_toml(entry)}")
        return None
    found = list(unknown_keys(entry, _RULE_KEYS, path))
    actions = [key for key in entry if key in _ACTIONS]
    if len(actions) != 1:
        given = " and ".join(actions) or "none"
        found.append(f"{path}: must have one of intern, extern, mock, deny; it has {given}")
    patterns = {
        key: _patterns(entry[key], f"{path}.{key}", found)
        for key in (*actions, "exclude")
        if key in entry
    }
    allow_empty = entry.get("allow_empty", True)
    if not isinstance(allow_empty, bool):
        found.append(f"{path}.allow_empty: must be true or false, not {kind_in_toml(allow_empty)}")
    problems += found
    if found:
        return None
    action = actions[0]
    return GivenRule(
        _ACTIONS[action], patterns[action], patterns.get("exclude", ()), bool(allow_empty)
    )


def _patterns(value: object, path: str, problems: list[str]) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        problems.append(
            f"{path}: must be a pattern or an array of patterns, not {kind_in_toml(value)}"
        )
        return ()
    if not listed and not path.endswith(".exclude"):
        problems.append(f"{path}: must hold at least one pattern")
    for each in listed:
        try:
            GlobGroup(each)
        except ValueError as failure:
            problems.append(f"{path}: {str(failure).removeprefix('include: ')}")
    return tuple(listed)


def _string(table: Mapping[str, object], key: str, problems: list[str]) -> str | None:
    value = table.get(key)
    if value is None or (isinstance(value, str) and value):
        return value
    shown = "an empty one" if value == "" else kind_in_toml(value)
    problems.append(f"{_TABLE}.{key}: must be a string, not {shown}")
    return None
