"""Signing and verifying of envelopes, and errors of invalid ones."""

import base64
import importlib
import json
import sys

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from modpack.archive.layout import MAX_SIGNATURE_BYTES
from modpack.errors import ModpackError, SignatureError
from modpack.security.signing_envelope import ValidSignature, check, read_envelope, sign
from modpack.security.signing_keys import PrivateKey, requiring_sign_extra

DIGEST = "ab" * 32
OTHER = "cd" * 32
SOURCE = "shop/tea.modpack"


@pytest.fixture
def envelope(alice):
    return sign(DIGEST, "tea.modpack", alice)


def refused(envelope, *signers, digest=DIGEST):
    """Return why an envelope is rejected."""
    with pytest.raises(SignatureError) as caught:
        check(envelope, digest, signers, SOURCE, "tea.sig")
    assert caught.value.path == SOURCE
    return caught.value.reason


def changed(envelope, **changes):
    """Return an envelope with changed keys; None removes a key."""
    document = {**json.loads(envelope), **changes}
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


def payload_of(envelope):
    return json.loads(base64.b64decode(json.loads(envelope)["payload"]))


def encoded(value):
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.b64encode(content).decode()


def signed_by(key: PrivateKey, payload: bytes, payload_type="application/vnd.in-toto+json"):
    """Return an envelope for any payload, built without modpack's code."""
    pae = f"DSSEv1 {len(payload_type)} {payload_type} {len(payload)} ".encode() + payload
    signature = {"keyid": key.key_id, "sig": encoded(key.secret.sign(pae))}
    document = {"payloadType": payload_type, "payload": encoded(payload), "signatures": [signature]}
    return json.dumps(document).encode()


def test_check_accepts_matching_digest_and_key(envelope, alice, bob, trusted):
    held = check(envelope, DIGEST, [trusted("bob", bob), trusted("alice", alice)], SOURCE, "x.sig")
    assert held == (ValidSignature(alice.key_id, "x.sig", "alice"),)


def test_sign_is_deterministic(envelope, alice):
    assert sign(DIGEST, "tea.modpack", alice) == envelope


def test_statement_contains_only_subject(envelope):
    assert payload_of(envelope) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "tea.modpack", "digest": {"sha256": DIGEST}}],
        "predicateType": "urn:x-modpack:package:v1",
        "predicate": {"digestOf": ".data/modpack/manifest.json"},
    }


def test_envelope_is_verified_by_securesystemslib(envelope, alice):
    document = json.loads(envelope)
    payload, kind = base64.b64decode(document["payload"]), document["payloadType"]
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
    (signature,) = document["signatures"]
    assert signature["keyid"] == alice.key_id
    key = load_pem_public_key(alice.public_key.encode())
    key.verify(base64.b64decode(signature["sig"]), signed)
    with pytest.raises(InvalidSignature):
        key.verify(base64.b64decode(signature["sig"]), signed + b" ")


def test_check_accepts_envelopes_of_other_tools(envelope, alice, trusted):
    """Key IDs are hints. Other tools use other IDs, none, or another base64 alphabet."""
    (signature,) = json.loads(envelope)["signatures"]
    url_safe = signature["sig"].replace("+", "-").replace("/", "_")
    for named in ({"keyid": "SHA256:abc"}, {"keyid": ""}, {"keyid": None}, {}):
        other = changed(envelope, signatures=[{**named, "sig": url_safe}], more="ignored")
        assert check(other, DIGEST, [trusted("alice", alice)], SOURCE)


def test_sign_adds_signatures(envelope, alice, bob, trusted):
    both = sign(DIGEST, "renamed.modpack", bob, envelope)
    assert payload_of(both) == payload_of(envelope)
    for key in (alice, bob):
        assert check(both, DIGEST, [trusted("x", key)], SOURCE)
    held = check(both, DIGEST, [trusted("bob", bob), trusted("alice", alice)], SOURCE)
    assert [each.signer for each in held] == ["bob", "alice"]
    assert sign(DIGEST, "tea.modpack", alice, both) == both


def test_check_rejects_changed_package(envelope, alice, trusted):
    reason = refused(envelope, trusted("alice", alice), digest=OTHER)
    assert reason.startswith(
        "the package was changed after it was signed: the signed digest is abababab"
    )
    assert "the package digest is cdcdcdcd" in reason


def test_check_rejects_signature_of_other_package(alice, trusted):
    reason = refused(sign(OTHER, "coffee.modpack", alice), trusted("alice", alice))
    assert "tea.sig is for another package, named 'coffee.modpack'" in reason


def test_check_rejects_untrusted_signer(envelope, alice, bob, trusted):
    reason = refused(envelope, trusted("bob", bob))
    assert "is not from a trusted signer" in reason
    assert alice.key_id[:16] in reason
    assert f"the trusted keys are 'bob' ({bob.key_id[:16]}...)" in reason


def test_check_rejects_forged_key_id(alice, bob, trusted):
    forged = changed(
        sign(DIGEST, "tea.modpack", bob),
        signatures=[{**json.loads(sign(DIGEST, "t", bob))["signatures"][0], "keyid": alice.key_id}],
    )
    reason = refused(forged, trusted("alice", alice))
    assert "is invalid: it names the key of 'alice'" in reason


def test_check_rejects_changed_payload(envelope, alice, trusted):
    statement = payload_of(envelope)
    statement["subject"][0]["digest"]["sha256"] = OTHER
    reason = refused(
        changed(envelope, payload=encoded(statement)), trusted("alice", alice), digest=OTHER
    )
    assert "that key did not sign this content" in reason


@pytest.mark.parametrize("position", range(64))
def test_check_rejects_flipped_signature_bit(envelope, alice, trusted, position):
    (signature,) = json.loads(envelope)["signatures"]
    value = bytearray(base64.b64decode(signature["sig"]))
    value[position] ^= 1
    forged = changed(envelope, signatures=[{**signature, "sig": encoded(bytes(value))}])
    assert "is invalid" in refused(forged, trusted("alice", alice))


@pytest.mark.parametrize("value", [b"", b"x", b"x" * 63, b"x" * 65, b"x" * 5000])
def test_check_rejects_signature_of_wrong_length(envelope, alice, trusted, value):
    signatures = [{"keyid": alice.key_id, "sig": encoded(value)}]
    assert "is invalid" in refused(
        changed(envelope, signatures=signatures), trusted("alice", alice)
    )


def test_check_rejects_signature_of_bare_payload(envelope, alice, trusted):
    """The signed data includes the payload type, which prevents confusion."""
    bare = alice.secret.sign(base64.b64decode(json.loads(envelope)["payload"]))
    signatures = [{"keyid": alice.key_id, "sig": encoded(bare)}]
    assert "is invalid" in refused(
        changed(envelope, signatures=signatures), trusted("alice", alice)
    )


def statement(**changes):
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "tea.modpack", "digest": {"sha256": DIGEST}}],
        "predicateType": "urn:x-modpack:package:v1",
        "predicate": {"digestOf": ".data/modpack/manifest.json"},
        **changes,
    }
    return {key: value for key, value in document.items() if value is not None}


STATEMENTS = {
    "no JSON": (b"{", "is not for a package"),
    "no text": (b"\xff\xfe{\0}\0", "is not for a package"),
    "a list": ([], "is not an in-toto statement of version 1"),
    "an older version": (
        statement(_type="https://in-toto.io/Statement/v0.1"),
        "is not an in-toto statement of version 1",
    ),
    "another predicate": (
        statement(predicateType="https://slsa.dev/provenance/v1"),
        "got 'https://slsa.dev/provenance/v1'",
    ),
    "no predicate type": (statement(predicateType=None), "got NoneType"),
    "more in the predicate": (
        statement(predicate={"digestOf": "all of it"}),
        "predicate does not declare",
    ),
    "no predicate": (statement(predicate=None), "predicate does not declare"),
    "no subject": (statement(subject=None), "has no subject"),
    "empty subjects": (statement(subject=[]), "has no subject"),
    "subject of another kind": (statement(subject=["tea"]), "has no SHA-256"),
    "no digest": (statement(subject=[{"name": "tea.modpack"}]), "has no SHA-256"),
    "another digest": (
        statement(subject=[{"name": "tea", "digest": {"sha512": DIGEST}}]),
        "has no SHA-256",
    ),
    "digest of another kind": (
        statement(subject=[{"name": "tea", "digest": {"sha256": DIGEST.upper()}}]),
        "has no SHA-256",
    ),
    "name of another kind": (
        statement(subject=[{"name": 1, "digest": {"sha256": DIGEST}}]),
        "has no SHA-256",
    ),
    "a key twice": (
        json.dumps(statement()).replace('"_type"', '"subject": [], "_type"').encode(),
        "a key occurs twice in one object",
    ),
    "levels": (b"[" * 100_000, "nested too deeply"),
    "no number": (b'{"_type": NaN}', "NaN is not a JSON number"),
    "a long number": (b'{"_type": ' + b"1" * 100_000 + b"}", "is not for a package"),
}


@pytest.mark.parametrize("payload, reason", STATEMENTS.values(), ids=STATEMENTS)
def test_check_rejects_other_statements(alice, trusted, payload, reason):
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    told = refused(signed_by(alice, content), trusted("alice", alice))
    assert reason in told
    assert len(told) < 400


def test_check_accepts_statement_with_several_subjects(alice, trusted):
    subjects = [
        {"name": name, "digest": {"sha256": digest}}
        for name, digest in (("a", OTHER), ("b", DIGEST))
    ]
    several = signed_by(alice, json.dumps(statement(subject=subjects)).encode())
    for digest in (OTHER, DIGEST):
        assert check(several, digest, [trusted("alice", alice)], SOURCE)
    assert "named 'a', 'b'" in refused(several, trusted("alice", alice), digest="ef" * 32)


def test_check_rejects_other_payload_type(alice, trusted):
    content = json.dumps(statement()).encode()
    told = refused(signed_by(alice, content, "text/plain"), trusted("alice", alice))
    assert "expected the payloadType 'application/vnd.in-toto+json', got 'text/plain'" in told


ENVELOPES = {
    "nothing": (b"", "is not a valid envelope"),
    "no JSON": (b"{", "is not a valid envelope"),
    "no text": (b"\xff\xff", "is not a valid envelope"),
    "a list": (b"[]", "not a JSON object"),
    "levels": (b"[" * 500_000, "nested too deeply"),
    "levels that just fit": (
        b'{"payloadType": ' + b"[" * 300 + b"]" * 300 + b"}",
        "got list",
    ),
    "large": (b" " * (MAX_SIGNATURE_BYTES + 1), f"larger than {MAX_SIGNATURE_BYTES} bytes"),
    "a key twice": (b'{"payload": "", "payload": ""}', "a key occurs twice in one object"),
}
PARTS = {
    "no type": ({"payloadType": None}, "got NoneType"),
    "no payload": ({"payload": None}, "the payload is not valid base64"),
    "payload of another kind": ({"payload": {}}, "the payload is not valid base64"),
    "payload that is not base64": ({"payload": "a b"}, "the payload is not valid base64"),
    "payload that is not ASCII": ({"payload": "é"}, "the payload is not valid base64"),
    "no signatures": ({"signatures": None}, "no signatures"),
    "empty signatures": ({"signatures": []}, "no signatures"),
    "signatures of another kind": ({"signatures": {"a": 1}}, "no signatures"),
    "a signature of another kind": ({"signatures": ["a"]}, "a signature is not a JSON object"),
    "no signature in it": ({"signatures": [{"keyid": "a"}]}, "a signature is not valid base64"),
    "key id of another kind": (
        {"signatures": [{"keyid": 1, "sig": ""}]},
        "the keyid of a signature is not printable text",
    ),
    "key id that steers a terminal": (
        {"signatures": [{"keyid": "\x1b[2J", "sig": ""}]},
        "the keyid of a signature is not printable text",
    ),
    "key ID that is not text": (
        {"signatures": [{"keyid": "\ud800", "sig": ""}]},
        "the keyid of a signature is not printable text",
    ),
    "a key twice": (
        {"signatures": [{"keyid": "a" * 64, "sig": ""}] * 2},
        "two signatures of the key aaaaaaaaaaaaaaaa...",
    ),
    "many": (
        {"signatures": [{"keyid": f"{n}", "sig": ""} for n in range(101)]},
        "more than 100 signatures",
    ),
}


@pytest.mark.parametrize("content, reason", ENVELOPES.values(), ids=ENVELOPES)
def test_check_rejects_invalid_envelope(alice, trusted, content, reason):
    told = refused(content, trusted("alice", alice))
    assert told.startswith("tea.sig is not a valid envelope: ")
    assert reason in told


@pytest.mark.parametrize("changes, reason", PARTS.values(), ids=PARTS)
def test_check_reports_problem_of_envelope(envelope, alice, trusted, changes, reason):
    told = refused(changed(envelope, **changes), trusted("alice", alice))
    assert told.startswith("tea.sig is not a valid envelope: ")
    assert reason in told
    assert len(told) < 300


def test_sign_rejects_unusable_existing_envelope(envelope, alice, bob):
    foreign = signed_by(alice, json.dumps(statement(), indent=2).encode())
    unnamed = changed(envelope, signatures=[{"sig": encoded(b"x")}])
    for existing, reason in (
        (b"{}", "the existing signature is not a valid envelope"),
        (sign(OTHER, "tea.modpack", alice), "the package was changed after it was signed"),
        (sign(OTHER, "coffee.modpack", alice), "is for another package"),
        (signed_by(alice, b"{}"), "is not for a package"),
        (foreign, "has a statement that modpack does not write"),
        (unnamed, "does not name its key"),
    ):
        with pytest.raises(SignatureError, match=reason) as caught:
            sign(DIGEST, "tea.modpack", bob, existing, SOURCE)
        assert caught.value.path == SOURCE
        assert "Pass --replace" in caught.value.hint


def test_sign_accepts_undecodable_file_name(alice, trusted):
    odd = sign(DIGEST, "t\udce9.modpack", alice)
    assert payload_of(odd)["subject"][0]["name"] == "t?.modpack"
    assert check(sign(DIGEST, "x", alice, odd), DIGEST, [trusted("alice", alice)], SOURCE)


def test_read_envelope_checks_only_form(envelope, alice):
    (signature,) = read_envelope(envelope, SOURCE).signatures
    assert signature.key_id == alice.key_id
    forged = changed(envelope, signatures=[{"keyid": "anybody", "sig": encoded(b"x")}])
    assert read_envelope(forged, SOURCE).signatures[0].key_id == "anybody"


@pytest.mark.parametrize("missing", ["securesystemslib", "cryptography"])
def test_missing_extra_is_named(envelope, alice, trusted, monkeypatch, missing):
    for name in [*sys.modules, missing]:
        if name.partition(".")[0] == missing:
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModpackError, match=r"Run: pip install 'modpack\[sign\]'"):
        check(envelope, DIGEST, [trusted("alice", alice)], SOURCE)
    if missing == "securesystemslib":
        with pytest.raises(ModpackError, match=r"Run: pip install 'modpack\[sign\]'"):
            sign(DIGEST, "tea.modpack", alice)


@pytest.mark.parametrize(
    "failure", [ImportError("libssl.so.9: cannot open"), AttributeError("lib has no attribute X")]
)
def test_broken_extra_is_not_reported_as_missing(failure):
    with pytest.raises(ModpackError, match="cannot be imported") as told, requiring_sign_extra():
        raise failure
    assert str(failure) in str(told.value) and "--force-reinstall" in str(told.value)


def test_missing_submodule_is_not_a_missing_extra():
    with pytest.raises(ModpackError, match="cannot be imported"), requiring_sign_extra():
        importlib.import_module("cryptography.hazmat.gone")


@pytest.mark.parametrize("content", [b"", b" \n"])
def test_check_reports_empty_envelope(alice, trusted, content):
    with pytest.raises(
        SignatureError, match=r"not a valid envelope: no content\. Ask the publisher"
    ):
        check(content, DIGEST, [trusted("alice", alice)], SOURCE)


def test_every_changed_byte_of_envelope_is_detected(envelope, alice, trusted):
    """The envelope is rejected or unchanged: base64 has two alphabets and optional whitespace."""
    signer = trusted("alice", alice)
    for position, byte in enumerate(envelope):
        for other in {byte ^ 1, byte ^ 32, byte ^ 128, 0, ord('"'), ord("A")} - {byte}:
            mutant = bytearray(envelope)
            mutant[position] = other
            try:
                check(bytes(mutant), DIGEST, [signer], SOURCE)
            except SignatureError:
                continue
            assert (
                read_envelope(bytes(mutant), SOURCE).payload
                == read_envelope(envelope, SOURCE).payload
            )


def test_every_truncation_of_envelope_is_detected(envelope, alice, trusted):
    for length in range(len(envelope) - 1):  # the last byte is a newline
        with pytest.raises(SignatureError):
            check(envelope[:length], DIGEST, [trusted("alice", alice)], SOURCE)
