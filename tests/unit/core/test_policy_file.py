"""Trust policy files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from modpack.core.policy import Signer, TrustPolicy, violations
from modpack.errors import PolicyError, PolicyNotFoundError

KEY = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=
-----END PUBLIC KEY-----
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "trust.toml"
    file.write_text(text)
    return file


def problems(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        TrustPolicy.from_toml(write(folder, text))
    assert str(folder / "trust.toml") in str(caught.value)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def test_every_field_can_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "release.pub").write_text(KEY)
    file = write(
        tmp_path,
        """
        [trust]
        allow_code = true
        allow_externs = ["numpy.**", "yaml"]
        allow_stdlib = "collections.**"
        allow_pickle_globals = []
        allow_native = false
        verify = "code"
        require_signature_from = [{ name = "release", key = "keys/release.pub" }]
        """,
    )
    assert TrustPolicy.from_toml(file) == TrustPolicy(
        allow_code=True,
        allow_externs=("numpy.**", "yaml"),
        allow_stdlib=("collections.**",),
        allow_pickle_globals=(),
        allow_native=False,
        verify="code",
        require_signature_from=(Signer("release", KEY),),
    )


def test_allow_pickle_globals_needs_exact_names_without_code(tmp_path: Path) -> None:
    file = write(tmp_path, "[trust]\nallow_pickle_globals = ['numpy.dtype']\n")
    assert TrustPolicy.from_toml(file).allow_pickle_globals == ("numpy.dtype",)
    (problem,) = problems(tmp_path, "[trust]\nallow_pickle_globals = ['numpy.**']\n")
    assert problem.startswith("trust.allow_pickle_globals: 'numpy.**' is not an exact name")
    text = "[trust]\nallow_pickle_globals = ['numpy.dtype']\nallow_code = true\n"
    (problem,) = problems(tmp_path, text)
    assert "trust.allow_pickle_globals is for packages without code" in problem


def test_missing_keys_have_defaults_of_trust_policy(tmp_path: Path) -> None:
    assert TrustPolicy.from_toml(str(write(tmp_path, "[trust]\n"))) == TrustPolicy()


def test_misspelled_key_is_rejected(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "[trust]\nallow_extern = []\n")
    assert problem == "trust.allow_extern: unknown key. Did you mean 'allow_externs'?"


@pytest.mark.parametrize("field", ["allow_stdlib", "allow_pickle_globals"])
def test_keys_equal_field_names(tmp_path: Path, field: str) -> None:
    hyphenated = field.replace("_", "-")
    (problem,) = problems(tmp_path, f"[trust]\n{hyphenated} = []\n")
    assert problem == f"trust.{hyphenated}: unknown key. Did you mean {field!r}?"


def test_fix_of_violation_works_verbatim(tmp_path: Path) -> None:
    text = "[trust]\nallow_stdlib = []\nallow_externs = []\n"
    asked = {"externs": ["socket", "yaml.nodes"]}
    found = violations(TrustPolicy.from_toml(write(tmp_path, text)), **asked)
    assert len(found) == 2
    for each in found:
        fix = re.search(r"add ('.+?') to (\w+)\.", each.hint)
        assert fix is not None
        text = text.replace(f"{fix[2]} = []", f"{fix[2]} = [{fix[1]}]")
    assert not violations(TrustPolicy.from_toml(write(tmp_path, text)), **asked)


def test_keys_outside_the_table_are_rejected(tmp_path: Path) -> None:
    assert problems(tmp_path, "allow_native = false\n[trust]\n") == (
        "allow_native: unexpected key outside the table [trust]",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the table [trust] is missing"),
        ("trust = 3", "the table [trust] must be a table, not an integer"),
        ("[trust", "not valid TOML"),
        ("[trust]\nallow_native = 1", "trust.allow_native must be a bool, not int"),
        ("[trust]\nverify = 'much'", "trust.verify must be 'code', 'full', or None, not 'much'"),
        ("[trust]\nverify = ''", "trust.verify must be 'code', 'full', or None, not ''"),
        (
            "[trust]\nallow_externs = 3",
            "trust.allow_externs must be a pattern, several patterns or None, not int",
        ),
        (
            "[trust]\nallow_externs = ['a', 3]",
            "trust.allow_externs must be patterns (str), not int",
        ),
        (
            "[trust]\nallow_externs = ['a.']",
            "trust.allow_externs: the pattern 'a.' has an empty component",
        ),
        (
            "[trust]\nrequire_signature_from = 'x.pub'",
            "trust.require_signature_from must be an array of tables, not a string",
        ),
        ("[trust]\nrequire_signature_from = []", "the array is empty. Name a signer"),
        (
            "[trust]\nrequire_signature_from = ['x.pub']",
            "trust.require_signature_from[0] must be a table such as",
        ),
        (
            "[trust]\nrequire_signature_from = [{ key = 'k' }]",
            "trust.require_signature_from[0] must have a name and a key",
        ),
        (
            "[trust]\nrequire_signature_from = [{ name = 'n' }]",
            "trust.require_signature_from[0] must have a name and a key",
        ),
        (
            "[trust]\nrequire_signature_from = [{ name = 'n', key = 3 }]",
            "trust.require_signature_from[0] must have a name and a key",
        ),
        (
            "[trust]\nrequire_signature_from = [{ name = 'n', kee = 'k' }]",
            "trust.require_signature_from[0].kee: unknown key",
        ),
        (
            "[trust]\nrequire_signature_from = [{ name = 'n', key = 'gone.pub' }]",
            "gone.pub: No such file",
        ),
        (
            "[trust]\nrequire_signature_from = [{ name = 'n', key = 'trust.toml' }]",
            "no key in PEM form",
        ),
    ],
)
def test_problems_show_their_key(tmp_path: Path, text: str, message: str) -> None:
    assert any(message in problem for problem in problems(tmp_path, text))


def test_all_problems_are_listed_together(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "[trust]\nextern = 1\nallow_native = 1\nverify = 1\nrequire_signature_from = [1, 2]\n",
    )
    assert len(found) == 5


def test_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "trust.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="not valid UTF-8"):
        TrustPolicy.from_toml(file)


def test_file_that_is_not_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "k.pub").write_bytes(b"\xff" * 70000)
    text = "[trust]\nrequire_signature_from = [{ name = 'n', key = 'k.pub' }]"
    (problem,) = problems(tmp_path, text)
    path = "trust.require_signature_from[0].key"
    assert (
        problem
        == f"{path}: {tmp_path / 'k.pub'}: the file is larger than 65536 bytes, so it is not a key"
    )


def test_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(PolicyNotFoundError) as caught:
        TrustPolicy.from_toml(tmp_path / "gone.toml")
    assert isinstance(caught.value, FileNotFoundError)
    assert str(caught.value) == f"{tmp_path / 'gone.toml'}: the file does not exist"


@pytest.mark.parametrize("name", [".", "a\0b"])
def test_unreadable_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(PolicyError, match="cannot read the policy") as caught:
        TrustPolicy.from_toml(f"{tmp_path}/{name}")
    assert str(caught.value).startswith(str(tmp_path))
