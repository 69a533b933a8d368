"""The types that public functions return can be imported from modpack."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator

import pytest

import modpack

PUBLIC = {name: getattr(modpack, name) for name in modpack.__all__}
RECORDS = sorted(
    name
    for name, value in PUBLIC.items()
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields")
)
INTERNAL = {"Observations", "SelfTestRecord"}
"""Types with fields for the record of a package, which commands show."""


def own_types(hint: object) -> Iterator[type]:
    if isinstance(hint, type) and hint.__module__.startswith("modpack"):
        yield hint
    for argument in typing.get_args(hint):
        yield from own_types(argument)


@pytest.mark.parametrize("name", sorted(set(RECORDS) - INTERNAL))
def test_types_of_public_fields_are_public(name):
    hints = typing.get_type_hints(PUBLIC[name])
    found = {each for hint in hints.values() for each in own_types(hint)}
    assert found <= {each for each in PUBLIC.values() if isinstance(each, type)}


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_public_record_documents_its_fields(name):
    text = PUBLIC[name].__doc__
    assert text and not text.startswith(f"{name}(")


def test_tracebacks_show_public_modules_of_errors():
    kinds = [each for each in PUBLIC.values() if isinstance(each, type)]
    errors = [each for each in kinds if issubclass(each, Exception)]
    assert {each.__module__ for each in errors} == {"modpack", "modpack.errors"}
