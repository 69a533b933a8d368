from __future__ import annotations

import pytest

from modpack.core.names import (
    is_within,
    module_record,
    parents,
    require_module_name,
    resource_record,
    root_of,
    similar_modules,
    why_too_long,
)


def test_parents_are_listed_innermost_first():
    assert list(parents("a.b.c")) == ["a.b", "a"]
    assert list(parents("a")) == []


def test_module_parents_of_too_deep_path_are_empty():
    assert len(list(parents("a" + ".a" * 63))) == 63
    assert list(parents("a" + ".a" * 64)) == []
    assert list(parents("a" + ".a" * 5_000_000)) == []


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("a" + ".a" * 63, None),
        ("a" + ".a" * 64, "it has 65 components, and 64 are allowed"),
        ("a" * 4096, None),
        ("a" * 4097, "it has 4097 characters, and 4096 are allowed"),
    ],
)
def test_module_path_has_maximum_length(module, why):
    assert why_too_long(module) == why


def test_root_module_is_first_component():
    assert (root_of("a.b.c"), root_of("a")) == ("a", "a")


def test_within_means_by_whole_components():
    assert is_within("a", "a") and is_within("a.b", "a")
    assert not is_within("ab", "a") and not is_within("a", "a.b")


def test_module_record_is_file_and_package_record_is_init():
    assert module_record("a.b", False) == "a/b.py"
    assert module_record("a.b", True) == "a/b/__init__.py"


@pytest.mark.parametrize("name", ["a", "a.b", "fx-generated._0", "naïve.modül"])
def test_module_paths_are_accepted_as_they_are(name):
    assert require_module_name(name) == name


@pytest.mark.parametrize("name", ["", ".", ".a", "a.", "a..b", "a/b", "a\\b", "a.b\0"])
def test_invalid_module_path_raises_value_error(name):
    with pytest.raises(ValueError, match="where"):
        require_module_name(name, "where")


@pytest.mark.parametrize("name", [None, 3, b"a", ["a"]])
def test_module_path_of_wrong_type_raises_type_error(name):
    with pytest.raises(TypeError, match="where"):
        require_module_name(name, "where")


def test_resource_record_is_in_folder_of_package():
    assert resource_record("a.b", "c.txt") == "a/b/c.txt"
    assert resource_record("", "c.txt") == "c.txt"
    assert resource_record("a", "sub/c.txt") == "a/sub/c.txt"


@pytest.mark.parametrize("resource", ["", ".", "..", "../c", "a//b", "/c", "c/", "a\\b", "a\0"])
def test_resource_name_outside_package_is_rejected(resource):
    with pytest.raises(ValueError, match="resource"):
        resource_record("a", resource)


def test_misspelled_module_path_gets_suggestion():
    known = ["shop", "shop.till", "shop.tools", "other.till", "numpy"]
    assert similar_modules("shop.til", known)[0] == "shop.till"
    assert similar_modules("till", known) == ["shop.till", "other.till"]
    assert similar_modules("shop.tools.Hammer.swing", known)[-1] == "shop.tools"
    assert similar_modules("entirely_different", known) == []


def test_similar_modules_of_many_compares_siblings():
    known = [f"big.part{n}.module{m}" for n in range(100) for m in range(100)]
    assert similar_modules("big.part77.modul42", known)[0] == "big.part77.module42"
