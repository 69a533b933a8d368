"""The options of saving and loading: defaults, checks, signatures, and help."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import modpack
from modpack import options
from modpack.exporting import options as save_options

FUNCTIONS = {
    "save": (modpack.save, save_options.SaveOptions),
    "load": (modpack.load, options.LoadOptions),
    "load_weights": (modpack.load_weights, options.LoadWeightsOptions),
    "self_test": (modpack.self_test, options.SelfTestOptions),
    "PackageExporter": (modpack.PackageExporter.__init__, save_options.ExporterOptions),
    "save_model": (modpack.PackageExporter.save_model, save_options.SaveModelOptions),
    "PackageImporter": (modpack.PackageImporter.__init__, options.OpenOptions),
    "load_model": (modpack.PackageImporter.load_model, options.LoadModelOptions),
}
EACH = pytest.mark.parametrize(("function", "kind"), FUNCTIONS.values(), ids=FUNCTIONS)


@EACH
def test_signature_shows_each_option_with_its_default(function, kind):
    parameters = inspect.signature(function).parameters
    declared = inspect.get_annotations(kind)
    assert "options" not in parameters
    for name, annotation in declared.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is annotation.__metadata__[0].default


@EACH
def test_help_documents_each_option(function, kind):
    text = inspect.getdoc(function)
    assert "**options" not in text
    for name in inspect.get_annotations(kind):
        assert re.search(rf"^ *{name}: [A-Z]", text, re.MULTILINE), name


@EACH
def test_mistyped_option_raises_with_the_closest_name(function, kind):
    name = next(iter(inspect.get_annotations(kind)))
    title = re.escape(function.__qualname__.removesuffix(".__init__"))
    message = rf"{title}\(\) got an unexpected .* '{name}s'\. Did you mean '{name}'\?"
    with pytest.raises(TypeError, match=message):
        function(None, None, None, **{f"{name}s": None})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reference_lists_each_parameter_and_default(name):
    page = (Path(__file__).parents[2] / "docs/reference/api.md").read_text(encoding="utf-8")
    shown = re.search(rf"`{name}\((.*?)\)`", page)[1]
    function, _ = FUNCTIONS[name]
    expected = [each for each in inspect.signature(function).parameters if each != "self"]
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


def test_save_and_load_share_options_with_the_classes():
    assert (
        save_options.SaveOptions.__annotations__.items()
        > save_options.ExporterOptions.__annotations__.items()
    )
    assert options.LoadOptions.__annotations__.items() > options.OpenOptions.__annotations__.items()
