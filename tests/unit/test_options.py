"""The options of saving and loading: defaults, checks, signatures, and help."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import modpack
from modpack.predicting.predictor import Predictor

FUNCTIONS = {
    "save": modpack.save,
    "load": modpack.load,
    "load_weights": modpack.load_weights,
    "self_test": modpack.self_test,
    "PackageExporter": modpack.PackageExporter,
    "save_model": modpack.PackageExporter.save_model,
    "PackageImporter": modpack.PackageImporter,
    "load_model": modpack.PackageImporter.load_model,
}


@pytest.mark.parametrize("function", [*FUNCTIONS.values(), Predictor])
def test_help_documents_each_parameter(function):
    text = inspect.getdoc(function)
    for name in inspect.signature(function).parameters:
        assert name == "self" or re.search(rf"^ *{name}: [A-Z]", text, re.MULTILINE), name


def test_functions_share_the_defaults_of_common_options():
    defaults = {}
    for function in [*FUNCTIONS.values(), Predictor]:
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                assert defaults.setdefault(name, parameter.default) == parameter.default, name


def test_mistyped_option_raises_at_the_call_itself():
    with pytest.raises(TypeError, match="unexpected keyword argument 'polcy'") as raised:
        modpack.load("absent.modpack", polcy=None)
    assert len(raised.traceback) == 1


def test_public_call_adds_one_frame_to_the_traceback():
    with pytest.raises(ValueError, match="verify") as raised:
        modpack.load_weights("absent.modpack", verify="ful")
    assert [each.name for each in raised.traceback][1] == "load_weights"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reference_lists_each_parameter_and_default(name):
    page = (Path(__file__).parents[2] / "docs/reference/api.md").read_text(encoding="utf-8")
    shown = re.search(rf"`{name}\((.*?)\)`", page)[1]
    expected = [each for each in inspect.signature(FUNCTIONS[name]).parameters if each != "self"]
    assert re.findall(r"(?:^|, )(\w+)", shown) == expected


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("namespace", "mine", ValueError, r"must be 'auto', 'private', or 'process', not 'mine'"),
        ("namespace", 3, TypeError, r"must be 'auto', 'private', or 'process', not int"),
        ("on_mismatch", "warm", ValueError, r".*not 'warm'\. Did you mean 'warn'\?"),
        ("policy", "x", TypeError, r"must be a TrustPolicy or None; .*, not str"),
        ("with_optimizer", 1, TypeError, r"must be a bool, not int"),
        ("progress", "yes", TypeError, r"must be a bool or None, not str"),
        ("package", 3, TypeError, r"must be a str or None, not int"),
    ],
)
def test_load_rejects_invalid_option(option, value, error, message):
    with pytest.raises(error, match=f"^{option} {message}"):
        modpack.load("absent.modpack", **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("preset", "hermtic", ValueError, r".*not 'hermtic'\. Did you mean 'hermetic'\?"),
        ("self_test", "no", ValueError, r"must be True, False, 'warn', or None, not 'no'"),
        ("self_test", 1, TypeError, r"must be True, False, 'warn', or None, not int"),
        ("pickle_protocol", True, TypeError, r"must be an int, not bool"),
        ("pickle_protocol", 9, ValueError, r"must be 2, 3, 4, or 5, not 9"),
    ],
)
def test_save_rejects_invalid_option_and_writes_nothing(option, value, error, message, tmp_path):
    with pytest.raises(error, match=f"^{option} {message}"):
        modpack.save({}, tmp_path / "x.modpack", **{option: value})
    assert list(tmp_path.iterdir()) == []


def test_self_test_accepts_int_timeout_and_rejects_text():
    with pytest.raises(TypeError, match=r"^timeout must be a number, not str"):
        modpack.self_test("absent.modpack", timeout="1")
    with pytest.raises(modpack.errors.PackageNotFoundError):
        modpack.self_test("absent.modpack", timeout=1)
