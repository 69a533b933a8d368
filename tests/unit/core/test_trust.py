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


KEY = pem(ED25519 + bytes(32))


def test_default_policy_allows_everything_but_code() -> None:
    policy = TrustPolicy()
    assert not policy.allow_code and policy.allow_pickle_globals == ()
    assert policy.allows_extern("anything") and policy.allows_extern("os")
    assert policy.allows_hook("tensor")
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


def test_the_language_and_torch_cannot_be_forbidden() -> None:
    policy = TrustPolicy(allow_externs=(), allow_stdlib=())
    assert all(map(policy.allows_extern, ("builtins", "__future__", "torch", "modpack.hooks")))
    assert not policy.allows_extern("torchvision")


def test_one_pattern_needs_no_tuple() -> None:
    assert TrustPolicy(allow_externs="torch.**") == TrustPolicy(allow_externs=("torch.**",))
    assert TrustPolicy(require_signature_from=Signer("a", KEY)).signers == (Signer("a", KEY),)  # type: ignore[arg-type]


def test_policy_with_unsigned_code_warns_at_its_line() -> None:
    with pytest.warns(ModpackWarning, match="demands no signature") as told:
        TrustPolicy(allow_code=True)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrustPolicy(allow_code=True, require_signature_from=[Signer("release", KEY)])


def test_allow_pickle_globals_conflicts_with_allow_code() -> None:
    assert TrustPolicy(allow_pickle_globals="numpy.dtype").pickle_globals == ("numpy.dtype",)
    with pytest.raises(ValueError, match="with allow_code=True pickles may name everything"):
        TrustPolicy(allow_code=True, allow_pickle_globals=("numpy.dtype",))


def test_kinds_of_hooks_are_patterns_too() -> None:
    policy = TrustPolicy(allow_hook_kinds=("forward", "optimizer.*"))
    assert policy.allows_hook("forward") and policy.allows_hook("optimizer.step_pre")
    assert not policy.allows_hook("forward_pre") and not policy.allows_hook("global.forward")


def test_required_signature_implies_full_verification() -> None:
    signed = TrustPolicy(require_signature_from=[Signer("release", KEY)])
    assert signed.verify == "all"
    assert TrustPolicy(require_signature_from=signed.signers, verify="code").verify == "code"


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TrustPolicy().native = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "error", "told"),
    [
        ("externs", 3, TypeError, "externs must be a pattern, several patterns or None, not int"),
        ("externs", b"os", TypeError, "externs must be a pattern"),
        ("externs", [3], TypeError, "externs must be patterns"),
        ("externs", ["a..b"], ValueError, r"externs: the pattern 'a\.\.b' has an empty component"),
        ("standard_library", ["a.**b"], ValueError, r"standard_library: .*'\*\*' must be a whole"),
        ("allow_code", 1, TypeError, "allow_code must be a bool, not int"),
        ("pickle_globals", [""], ValueError, "pickle_globals: '' is no exact name"),
        ("pickle_globals", ["numpy.**"], ValueError, "'numpy.[*][*]' is no exact name"),
        ("pickle_globals", "numpy", ValueError, "'numpy' is no exact name"),
        ("pickle_globals", None, TypeError, "must be a name or several names, not NoneType"),
        ("pickle_globals", [3], TypeError, "pickle_globals must be names"),
        ("hook_kinds", ["foward"], ValueError, "matches 'foward'. Did you mean 'forward'?"),
        ("hook_kinds", ["tensors.*.x"], ValueError, "no kind of hook matches"),
        ("signers", "me", TypeError, "signers must be Signer objects: .*, not str"),
        ("signers", ["me"], TypeError, "signers must be Signer objects: .*, not str"),
        ("signers", {"name": "me"}, TypeError, "signers must be Signer objects: .*, not dict"),
        (
            "signers",
            [{"name": "me"}],
            TypeError,
            r"signers must be Signer objects: modpack\.Signer\(name, public_key\), not dict",
        ),
        ("native", 1, TypeError, "native must be a bool, not int"),
        ("verify", "none", ValueError, "verify must be 'code' or 'all', not 'none'"),
        ("verify", None, TypeError, "verify must be 'code' or 'all', not NoneType"),
    ],
)
def test_a_wrong_value_is_named(
    field: str, value: object, error: type[Exception], told: str
) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(error, match=told):
        TrustPolicy(**arguments)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("", "no key in PEM form"),
        ("ssh-ed25519 AAAAC3 me@here", "a key of OpenSSH"),
        (KEY + KEY, "more than one key"),
        (pem(ED25519 + bytes(32), "PRIVATE KEY"), "it is a private key"),
        (pem(X25519 + bytes(32)), "not one of Ed25519"),
        (pem(ED25519 + bytes(31)), "not one of Ed25519"),
        (KEY.replace("AAA", "A-A"), "its PEM is damaged"),
    ],
)
def test_a_key_is_an_ed25519_public_key(key: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Signer("somebody", key)


def test_a_signer_has_a_name() -> None:
    with pytest.raises(ValueError, match="name must say whose key it is"):
        Signer(" ", KEY)


def test_policy_survives_json() -> None:
    policy = TrustPolicy(
        allow_externs="a.**",
        allow_stdlib=(),
        allow_pickle_globals=("b.c",),
        allow_hook_kinds="tensor",
        require_signature_from=(Signer("x", KEY),),
        allow_native=False,
    )
    for each in (policy, TrustPolicy()):
        assert from_json(TrustPolicy, json.loads(json.dumps(to_json(each))), "it") == each
