"""Enum members in packages: saved by name, so that they are the class's own after loading."""

from __future__ import annotations

import importlib
import textwrap

import pytest

import modpack

KINDS = """
import enum
import functools

import torch

as_member = getattr(enum, "member", lambda function: functools.partial(function))


def add(a, b):
    return a + b


class AlwaysEqual:
    __hash__ = None

    def __eq__(self, other):
        return True


class Kind(enum.Enum):
    PARTIAL = functools.partial(add, 1)
    OTHER = functools.partial(add, 2)
    LAMBDA = as_member(lambda x: x)
    TENSOR = torch.ones(2)
    NAN = float("nan")
    ALWAYS = AlwaysEqual()
    TEXT = "text"
    ALIAS = "text"
    value_ = "name with an underscore"

    @classmethod
    def _missing_(cls, value):
        return cls.TEXT


class Outer:
    class Inner(enum.Enum):
        LIST = [1]


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()
    BOTH = READ | WRITE


class Mode(enum.IntFlag):
    A = 1
    B = 2


class Text(str, enum.Enum):
    X = "x"


class Number(enum.IntEnum):
    ONE = 1


class Custom(enum.Enum):
    ONE = 1

    def __reduce_ex__(self, protocol):
        return Custom, (1,)


MEMBERS = [
    *Kind, *Kind.__members__.values(), Kind("unknown"), Outer.Inner.LIST, *Access, Access(0),
    Access.BOTH, Access.READ | Access.RUN, Access.READ | Access.WRITE | Access.RUN,
    Mode.A | Mode.B, Mode(8), Text.X, Number.ONE, Custom.ONE,
]
NAMED = {Kind.OTHER: Kind.LAMBDA}
"""


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_members_are_those_of_the_loaded_class(project, tmp_path, clean_python, protocol):
    project({"kinds.py": KINDS})
    kinds = importlib.import_module("kinds")
    with modpack.PackageExporter(tmp_path / "o.modpack") as exporter:
        exporter.use_preset("pinned")
        saved = [kinds.MEMBERS, kinds.NAMED]
        exporter.save_pickle("m", "o.pkl", saved, pickle_protocol=protocol)
    code = """
        importer = modpack.PackageImporter(path)
        kinds = importer.import_module("kinds")
        members, named = importer.load_pickle("m", "o.pkl")
        same = [a is b for a, b in zip(members, kinds.MEMBERS, strict=True)]
        print(all(same), same, named == kinds.NAMED)
        """
    printed = clean_python("import modpack\n" + textwrap.dedent(code), path=tmp_path / "o.modpack")
    assert printed.stdout.startswith("True "), printed.stdout
    assert printed.stdout.endswith("] True\n")
