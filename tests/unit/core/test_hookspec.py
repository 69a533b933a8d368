"""Hook specs as JSON: what is written is read back, and what is not understood is refused."""

import json

import pytest

from modpack.core.hookspec import (
    HOOK_KINDS,
    CallableSpec,
    HookSpec,
    specs_from_json,
    specs_to_json,
)
from modpack.errors import ModpackError

SPECS = (
    HookSpec(
        name="layer/forward/0",
        kind="forward",
        target=("layer",),
        position=0,
        callable=CallableSpec("source", "m.<lambda>", "lambda *a: None", "m:3", ("seen",)),
        aliases=("other.layer",),
        flags={"with_kwargs": True},
    ),
    HookSpec(
        name="a+b/multi_grad/1",
        kind="multi_grad",
        target=("a", "b"),
        position=1,
        callable=CallableSpec("reference", "m.f"),
        flags={"mode": "any"},
    ),
    HookSpec(
        "global.forward/0", "global.forward", (), 0, CallableSpec("object", "instance of m.C")
    ),
)


def record():
    return json.loads(json.dumps(specs_to_json(SPECS)))


def test_hook_specs_round_trip():
    assert specs_from_json(record()) == SPECS


def test_every_kind_is_read_back():
    for kind in HOOK_KINDS:
        spec = SPECS[0]._replace(kind=kind)
        assert specs_from_json(specs_to_json((spec,))) == (spec,)


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_another_version_is_refused(version):
    with pytest.raises(
        ModpackError, match=f"version {version!r} are not supported, only version 1"
    ):
        specs_from_json({**record(), "version": version})


def test_unknown_hook_kind_is_rejected():
    wrong = record()
    wrong["hooks"][1]["kind"] = "telepathy"
    with pytest.raises(ModpackError, match=r"unknown kinds of hooks: telepathy.*upgrade modpack"):
        specs_from_json(wrong)


def test_fields_that_are_not_known_are_left_alone():
    extended = {**record(), "written_by": "someone"}
    extended["hooks"][0]["color"] = "red"
    extended["hooks"][0]["callable"]["digest"] = "0"
    assert specs_from_json(extended) == SPECS


HOOK_FIELDS = ["name", "kind", "target", "aliases", "position", "flags", "callable"]
CALLABLE_FIELDS = ["by", "name", "source", "location", "state"]


@pytest.mark.parametrize("field", HOOK_FIELDS)
def test_missing_field_is_named(field):
    wrong = record()
    del wrong["hooks"][1][field]
    with pytest.raises(ModpackError, match=f"hook 1 has no '{field}'"):
        specs_from_json(wrong)


@pytest.mark.parametrize("field", CALLABLE_FIELDS)
def test_missing_field_of_callable_is_named(field):
    wrong = record()
    del wrong["hooks"][0]["callable"][field]
    with pytest.raises(ModpackError, match=f"the callable of hook 0 has no '{field}'"):
        specs_from_json(wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1),
        ("kind", None),
        ("target", "layer"),
        ("target", [1]),
        ("aliases", None),
        ("position", "0"),
        ("position", -1),
        ("position", True),
        ("flags", []),
        ("flags", {"with_kwargs": 1}),
        ("callable", "f"),
        ("callable", None),
    ],
)
def test_field_of_wrong_type_is_named(field, value):
    wrong = record()
    wrong["hooks"][0][field] = value
    with pytest.raises(ModpackError, match=f"'{field}' of hook 0|the {field} of hook 0"):
        specs_from_json(wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [("by", "magic"), ("by", None), ("name", 3), ("source", 1), ("location", []), ("state", "x")],
)
def test_callable_field_of_wrong_type_is_named(field, value):
    wrong = record()
    wrong["hooks"][0]["callable"][field] = value
    with pytest.raises(ModpackError, match=rf"'?{field}'? of the callable of hook 0 must be"):
        specs_from_json(wrong)


@pytest.mark.parametrize(
    "wrong", [None, [], "specs", 1, {}, {"version": 1}, {"version": 1, "hooks": {}}]
)
def test_invalid_record_of_specs_is_rejected(wrong):
    with pytest.raises(ModpackError, match="hook specs"):
        specs_from_json(wrong)


def test_hook_spec_text_includes_source():
    assert str(SPECS[0]) == ("layer/forward/0: m.<lambda> (with_kwargs=True)\n    lambda *a: None")
