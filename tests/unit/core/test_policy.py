"""TrustPolicy: fields, defaults, and checks."""

from __future__ import annotations

import base64
import json
import warnings
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from modpack.core.codec import from_json, to_json
from modpack.core.policy import Signer, TrustPolicy
from modpack.errors import ModpackWarning

ED25519 = bytes.fromhex("302a300506032b6570032100")
X25519 = bytes.fromhex("302a300506032b656e032100")


def pem(content: bytes, label: str = "PUBLIC KEY") -> str:
    return f"-----BEGIN {label}-----\n{base64.b64encode(content).decode()}\n-----END {label}-----\n"


_ORDER_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
_OTHER_ORDER_8 = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"
_POSITIVE = [
    *(number.to_bytes(32, "little") for number in (0, 1)),
    *((2**255 - 19 + number).to_bytes(32, "little") for number in (-1, 0, 1)),
    *map(bytes.fromhex, (_ORDER_8, _OTHER_ORDER_8)),
]
WEAK = [*_POSITIVE, *(key[:31] + bytes([key[31] | 0x80]) for key in _POSITIVE)]
"""All encodings of the points of small order."""
KEY = pem(ED25519 + bytes(range(32)))


def test_default_policy_allows_everything_but_code() -> None:
    policy = TrustPolicy()
    assert not policy.allow_code and policy.allow_pickle_globals == ()
    assert policy.allows_extern("anything") and policy.allows_extern("os")
    assert policy.allow_native and policy.verify == "code" and policy.require_signature_from == ()


def test_allow_externs_restricts_neither_stdlib_nor_torch() -> None:
    policy = TrustPolicy(allow_externs=["numpy.**"])
    allowed = ("numpy", "numpy.linalg", "os", "torch.nn", "modpack.pickling", "builtins")
    assert all(map(policy.allows_extern, allowed))
    assert not policy.allows_extern("numpyx") and not policy.allows_extern("__main__")


def test_allow_stdlib_restricts_only_stdlib() -> None:
    policy = TrustPolicy(allow_stdlib=["collections.**", "math"])
    assert policy.allows_extern("collections.abc") and policy.allows_extern("numpy")
    assert not policy.allows_extern("os") and not policy.allows_extern("os.path")


def test_policy_always_allows_builtins_and_torch() -> None:
    policy = TrustPolicy(allow_externs=(), allow_stdlib=())
    assert all(map(policy.allows_extern, ("builtins", "__future__", "torch", "modpack.hooks")))
    assert not policy.allows_extern("torchvision")


def test_one_pattern_needs_no_tuple() -> None:
    assert TrustPolicy(allow_externs="torch.**") == TrustPolicy(allow_externs=("torch.**",))
    assert TrustPolicy(require_signature_from=Signer("a", KEY)).require_signature_from == (  # type: ignore[arg-type]
        Signer("a", KEY),
    )


def test_policy_with_unsigned_code_warns_at_its_line() -> None:
    with pytest.warns(ModpackWarning, match="allows code without a signature") as caught:
        TrustPolicy(allow_code=True)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrustPolicy(allow_code=True, require_signature_from=[Signer("release", KEY)])


def test_allow_pickle_globals_conflicts_with_allow_code() -> None:
    assert TrustPolicy(allow_pickle_globals="numpy.dtype").allow_pickle_globals == ("numpy.dtype",)
    with pytest.raises(ValueError, match="is for packages without code, but allow_code is True"):
        TrustPolicy(allow_code=True, allow_pickle_globals=("numpy.dtype",))


def test_required_signature_implies_full_verification() -> None:
    signed = TrustPolicy(require_signature_from=[Signer("release", KEY)])
    assert signed.verify == "full"
    assert (
        TrustPolicy(require_signature_from=signed.require_signature_from, verify="code").verify
        == "code"
    )


def test_policy_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        TrustPolicy().allow_native = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        (
            "allow_externs",
            3,
            TypeError,
            "allow_externs must be a pattern, several patterns or None, not int",
        ),
        ("allow_externs", b"os", TypeError, "allow_externs must be a pattern"),
        ("allow_externs", [3], TypeError, "allow_externs must be patterns"),
        (
            "allow_externs",
            ["a..b"],
            ValueError,
            r"allow_externs: the pattern 'a\.\.b' has an empty component",
        ),
        ("allow_stdlib", ["a.**b"], ValueError, r"allow_stdlib: .*'\*\*' must be a whole"),
        ("allow_code", 1, TypeError, "allow_code must be a bool, not int"),
        ("allow_pickle_globals", [""], ValueError, "allow_pickle_globals: '' is not an exact name"),
        ("allow_pickle_globals", ["numpy.**"], ValueError, "'numpy.[*][*]' is not an exact"),
        ("allow_pickle_globals", "numpy", ValueError, "'numpy' is not an exact name"),
        ("allow_pickle_globals", None, TypeError, "must be a name or several names, not NoneType"),
        ("allow_pickle_globals", [3], TypeError, "allow_pickle_globals must be names"),
        (
            "require_signature_from",
            "me",
            TypeError,
            "require_signature_from must be Signer objects: .*, not str",
        ),
        (
            "require_signature_from",
            ["me"],
            TypeError,
            "require_signature_from must be Signer objects: .*, not str",
        ),
        (
            "require_signature_from",
            {"name": "me"},
            TypeError,
            "require_signature_from must be Signer objects: .*, not dict",
        ),
        (
            "require_signature_from",
            [{"name": "me"}],
            TypeError,
            r"must be Signer objects: modpack\.Signer\(name, public_key\), not dict",
        ),
        ("allow_native", 1, TypeError, "allow_native must be a bool, not int"),
        ("verify", "none", ValueError, "verify must be 'code', 'full', or None, not 'none'"),
        ("verify", 3, TypeError, "verify must be 'code', 'full', or None, not int"),
    ],
)
def test_policy_with_invalid_value_names_the_field(
    field: str, value: object, error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(error, match=message):
        TrustPolicy(**arguments)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "no key in PEM form"),
        ("ssh-ed25519 AAAAC3 me@here", "got an OpenSSH key"),
        (KEY + KEY, "expected one key, got 2"),
        (pem(ED25519 + bytes(32), "PRIVATE KEY"), "got a private key"),
        (pem(X25519 + bytes(32)), "not an Ed25519 key"),
        (pem(ED25519 + bytes(31)), "not an Ed25519 key"),
        (KEY.replace("AAE", "A-E"), "PEM data is damaged"),
        *((pem(ED25519 + weak), "the public key is weak") for weak in WEAK),
    ],
)
def test_signer_rejects_other_keys(key: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^public_key: .*{message}"):
        Signer("release", key)


def test_signer_rejects_empty_name() -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        Signer(" ", KEY)


def test_policy_survives_json() -> None:
    policy = TrustPolicy(
        allow_externs="a.**",
        allow_stdlib=(),
        allow_pickle_globals=("b.c",),
        require_signature_from=(Signer("x", KEY),),
        allow_native=False,
    )
    for each in (policy, TrustPolicy()):
        assert from_json(TrustPolicy, json.loads(json.dumps(to_json(each))), "it") == each
