"""The table ``[tool.modpack]`` of a project's pyproject.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from modpack.core.allowances import as_allowances
from modpack.core.json_values import BrokenTomlError, kind_in_toml, read_toml, unknown_keys
from modpack.core.names import GlobGroup
from modpack.core.rules import Action
from modpack.errors import ModpackError
from modpack.exporting.presets import PRESETS
from modpack.options import Preset

_TABLE = "tool.modpack"
_ACTIONS = {action.value: action for action in Action}


class ConfigError(ModpackError):
    """A configuration file is invalid.

    Args:
        path: The file.
        problems: Every problem in it.
    """

    def __init__(self, path: Path, problems: tuple[str, ...]) -> None:
        self.path = path
        self.problems = problems
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{path}: {problems[0]}" if len(problems) == 1 else f"{path}:{listed}")


@dataclass(frozen=True)
class GivenRule:
    """A rule from the command line or a file: an exporter method and its arguments.

    Attributes:
        action: The method.
        include: Module patterns.
        exclude: Patterns of modules that the rule does not match.
        allow_empty: Whether the rule may match no module.
    """

    action: Action
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    allow_empty: bool = True


@dataclass(frozen=True)
class ProjectSettings:
    """The settings of a project. The command line overrides them.

    Attributes:
        folder: The folder that paths in the settings are relative to.
        rules: The rules, in order.
        preset: The preset for modules that no rule matches.
        target: The object to export.
        output: The path of the package.
        allow_secrets_in: Patterns of modules and records that may contain possible secrets.
    """

    folder: Path = Path()
    rules: tuple[GivenRule, ...] = ()
    preset: Preset | None = None
    target: str | None = None
    output: str | None = None
    allow_secrets_in: tuple[str, ...] = ()


def read_settings(config: Path | None) -> ProjectSettings:
    """Read the settings of a project.

    Args:
        config: The file to read. None searches the current folder and its parents for a
            pyproject.toml with settings.

    Raises:
        ConfigError: If the file or its settings are invalid, or if ``config`` has no settings.
        OSError: If the file cannot be read.
    """
    if config is not None:
        # A file that is named must have settings. One that is found may belong to another tool.
        table = _table(config)
        if table is None:
            raise ConfigError(config, (f"the table [{_TABLE}] is missing",))
        return _settings(config, table)
    current = Path.cwd()
    for folder in (current, *current.parents):
        file = folder / "pyproject.toml"
        # Most files on the way up concern other tools, and parsing TOML takes longer than this.
        if file.is_file() and b"modpack" in file.read_bytes():
            table = _table(file)
            if table is not None:
                return _settings(file, table)
    return ProjectSettings()


def _table(file: Path) -> object | None:
    try:
        tool = read_toml(file).get("tool")
    except BrokenTomlError as failure:
        raise ConfigError(file, (str(failure),)) from failure
    return tool.get("modpack") if isinstance(tool, Mapping) else None


def _settings(file: Path, table: object) -> ProjectSettings:
    if not isinstance(table, Mapping):
        raise ConfigError(file, (f"{_TABLE}: must be a table, not {kind_in_toml(table)}",))
    known = ("rules", "preset", "target", "output", "allow_secrets_in")
    # Problems are collected, so that one run shows all of them.
    problems = [*unknown_keys(table, known, _TABLE)]
    preset = _string(table, "preset", problems)
    if preset is not None and preset not in PRESETS:
        named = ", ".join(map(repr, PRESETS))
        problems.append(f"{_TABLE}.preset: must be one of {named}, not {preset!r}")
    target, output = _string(table, "target", problems), _string(table, "output", problems)
    rules = _rules(table.get("rules", []), problems)
    path = f"{_TABLE}.allow_secrets_in"
    allowed = _patterns(table.get("allow_secrets_in", []), path, problems)
    try:
        as_allowances(allowed, path)
    except ValueError as failure:
        problems.append(str(failure))
    if problems:
        raise ConfigError(file, tuple(problems))
    chosen = cast("Preset | None", preset)
    return ProjectSettings(file.resolve().parent, rules, chosen, target, output, allowed)


def _rules(value: object, problems: list[str]) -> tuple[GivenRule, ...]:
    if not isinstance(value, list):
        problems.append(f"{_TABLE}.rules: must be an array of tables, not {kind_in_toml(value)}")
        return ()
    rules = [_rule(each, f"{_TABLE}.rules[{index}]", problems) for index, each in enumerate(value)]
    return tuple(rule for rule in rules if rule is not None)


def _rule(entry: object, path: str, problems: list[str]) -> GivenRule | None:
    """Return a rule; None if it is invalid, with its problems added to ``problems``."""
    if not isinstance(entry, Mapping):
        example = '{ intern = "mylib.**" }'
        problems.append(f"{path}: must be a table such as {example}, not {kind_in_toml(entry)}")
        return None
    found = [*unknown_keys(entry, (*_ACTIONS, "exclude", "allow_empty"), path)]
    # A table is one rule, because the order of keys in TOML has no meaning.
    actions = [key for key in entry if key in _ACTIONS]
    if len(actions) != 1:
        given = " and ".join(actions) or "none"
        found.append(f"{path}: must have one of intern, extern, mock, deny, not {given}")
    patterns = {
        key: _globs(entry[key], f"{path}.{key}", found)
        for key in (*actions, "exclude")
        if key in entry
    }
    allow_empty = entry.get("allow_empty", True)
    if not isinstance(allow_empty, bool):
        found.append(f"{path}.allow_empty: must be true or false, not {kind_in_toml(allow_empty)}")
    # Only its own problems make a rule invalid, not those of earlier ones.
    problems += found
    if found:
        return None
    action = actions[0]
    return GivenRule(_ACTIONS[action], patterns[action], patterns.get("exclude", ()), allow_empty)


def _globs(value: object, path: str, problems: list[str]) -> tuple[str, ...]:
    """Return patterns of modules: at least one, except for ``exclude``."""
    # A value of another type is a problem already, and has no patterns either.
    problems_before = len(problems)
    patterns = _patterns(value, path, problems)
    if not patterns and len(problems) == problems_before and not path.endswith(".exclude"):
        problems.append(f"{path}: must contain at least one pattern")
    for each in patterns:
        try:
            GlobGroup(each)
        except ValueError as failure:
            problems.append(f"{path}: {str(failure).removeprefix('include: ')}")
    return patterns


def _patterns(value: object, path: str, problems: list[str]) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if isinstance(listed, list) and all(isinstance(each, str) for each in listed):
        return tuple(listed)
    kind = kind_in_toml(value)
    problems.append(f"{path}: must be a pattern or an array of patterns, not {kind}")
    return ()


def _string(table: Mapping[str, object], key: str, problems: list[str]) -> str | None:
    value = table.get(key)
    if value is None or (isinstance(value, str) and value):
        return value
    shown = "an empty string" if value == "" else kind_in_toml(value)
    problems.append(f"{_TABLE}.{key}: must be a string, not {shown}")
    return None
