"""Files in TOML that a user writes: read, and told what is wrong with them."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

__all__ = ["BrokenTomlError", "kind_in_toml", "read_toml", "unknown_keys"]


class BrokenTomlError(ValueError):
    """A file is no TOML, or nothing here can read TOML."""


def read_toml(file: Path) -> dict[str, object]:
    """The document in a file.

    Raises:
        BrokenTomlError: it is no TOML; says why.
        OSError: it cannot be read.
    """
    loads, errors = _reader()
    try:
        return loads(file.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as failure:
        raise BrokenTomlError(f"it is no UTF-8: {failure}") from failure
    except (errors, RecursionError) as failure:
        raise BrokenTomlError(f"it is no valid TOML: {failure}") from failure


def _reader() -> tuple[Callable[[str], dict[str, object]], type[Exception]]:
    for name in ("tomllib", "tomli"):
        try:
            reader = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return cast(Callable[[str], dict[str, object]], reader.loads), reader.TOMLDecodeError
    raise BrokenTomlError(
        "Python 3.10 cannot read TOML by itself. Remedy: pip install tomli, or Python 3.11"
    )


def unknown_keys(table: Mapping[str, object], known: Sequence[str], path: str) -> Iterator[str]:
    """A sentence for each key of a table that nobody reads, with what may have been meant.

    >>> list(unknown_keys({"extern": 1}, ["externs", "native"], "trust"))
    ["trust.extern: there is no such key. Did you mean 'externs'?"]
    """
    for key in table:
        if key not in known:
            similar = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {similar[0]!r}?" if similar else f"Known are {', '.join(known)}"
            yield f"{path}.{key}: there is no such key. {hint}"


def kind_in_toml(value: object) -> str:
    """What TOML calls a value's type.

    >>> kind_in_toml(True), kind_in_toml({})
    ('a boolean', 'a table')
    """
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    names |= {list: "such an array", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")
