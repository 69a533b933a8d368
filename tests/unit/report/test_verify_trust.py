"""Signatures and policies in verifying."""

from __future__ import annotations

import io
import shutil
import zipfile

import pytest
from rich.console import Console

import modpack
from modpack.archive import layout
from modpack.archive.reader import open_archive
from modpack.core.policy import TrustPolicy
from modpack.errors import ModpackError, ModpackWarning
from modpack.report.verify import verify_package
from modpack.report.verify_text import verify_report
from modpack.security.signing import sign_package
from modpack.security.signing_keys import generate, read_public, write_pair
from modpack.writing.writer import ArchiveWriter
from tests.rezipped import rezipped


@pytest.fixture
def keys(tmp_path):
    """Two people: their private keys, and what their public ones are."""
    made = {name: generate() for name in ("ada", "bob")}
    public = {name: read_public(write_pair(key, tmp_path / name)[1]) for name, key in made.items()}
    return made, public


@pytest.fixture
def signed(good, tmp_path, keys):
    package = tmp_path / "signed.modpack"
    shutil.copy(good, package)
    sign_package(package, keys[0]["ada"])
    return package


def codes(facts):
    return [each.code for each in facts.findings]


def rows(facts):
    return {check.name: (check.count, check.is_passed) for check in facts.checks}


def test_valid_signature_is_reported_with_its_signer(signed, keys):
    facts = verify_package(signed, keys=[keys[1]["ada"]])
    assert facts.passed and codes(facts) == []
    assert [(each.signer, each.location) for each in facts.signatures] == [
        ("ada", ".data/modpack/signature.json")
    ]


def test_one_of_several_keys_suffices(signed, keys):
    assert verify_package(signed, keys=list(keys[1].values())).passed


def test_signature_of_another_key_is_rejected(signed, keys):
    facts = verify_package(signed, keys=[keys[1]["bob"]])
    assert codes(facts) == ["signature-invalid"] and not facts.passed
    assert "bob" in facts.findings[0].message


def test_package_without_required_signature_is_rejected(good, keys):
    facts = verify_package(good, keys=[keys[1]["ada"]])
    assert codes(facts) == ["signature-invalid"]
    assert "the package is not signed" in facts.findings[0].message
    assert facts.findings[0].hint.startswith("Ask the publisher")
    assert facts.findings[0].hint not in facts.findings[0].message


def test_key_and_policy_each_require_a_signature(signed, keys):
    policy = TrustPolicy(allow_code=True, require_signature_from=(keys[1]["bob"],))
    facts = verify_package(signed, keys=[keys[1]["ada"]], policy=policy)
    assert codes(facts) == ["signature-invalid"]
    assert [each.signer for each in facts.signatures] == ["ada"]
    assert rows(facts)["signature"] == (1, True)
    assert rows(facts)["policy-signature"] == (1, False)
    assert facts.findings[0].message.startswith("the policy's signers: ")


def test_policy_signature_is_a_check_of_its_own(signed, keys):
    facts = verify_package(
        signed, policy=TrustPolicy(allow_code=True, require_signature_from=keys[1].values())
    )
    assert facts.passed
    assert rows(facts)["policy-signature"] == (2, True)
    assert "signature" not in rows(facts)


def test_unrequested_signature_is_unchecked(signed):
    facts = verify_package(signed)
    assert codes(facts) == ["signature-unchecked"]
    assert facts.passed and facts.signatures == ()


def test_invalid_embedded_signature_is_rejected(good, tmp_path):
    package = tmp_path / "signed.modpack"
    package.write_bytes(rezipped(good.read_bytes(), {layout.SIGNATURE: b"{}"}))
    facts = verify_package(package)
    assert codes(facts) == ["record-invalid"]


def test_signature_file_of_another_tool_is_unchecked(good, tmp_path):
    package = tmp_path / "package.modpack"
    shutil.copy(good, package)
    package.with_name("package.modpack.sig").write_bytes(b"\x88\x75 what another tool wrote")
    facts = verify_package(package)
    assert codes(facts) == ["signature-unchecked"] and facts.passed


def test_signed_package_with_changed_tensor_is_rejected(signed, keys, tmp_path):
    content = bytearray(signed.read_bytes())
    with open_archive(signed) as archive:
        content[archive.data_range(".data/0.storage").offset] ^= 1
    signed.write_bytes(content)
    facts = verify_package(signed, keys=[keys[1]["ada"]])
    assert codes(facts) == ["signature-invalid", "record-corrupt"] and not facts.passed
    assert "changed after it was signed" in facts.findings[0].message
    assert not facts.signatures
    assert [each.is_passed for each in facts.checks if each.name == "signature"] == [False]


def test_policy_violations_are_reported_with_hints(good):
    policy = TrustPolicy(allow_externs=(), allow_stdlib=(), allow_native=False)
    facts = verify_package(good, policy=policy)
    refused = {each.subject: each for each in facts.findings if each.code == "policy-violation"}
    assert {"pathlib"} <= set(refused)
    assert all("trust policy" in each.hint or "allow_" in each.hint for each in refused.values())
    assert not facts.passed


def test_sufficient_policy_accepts_the_package(signed, keys):
    policy = TrustPolicy(
        allow_code=True,
        allow_externs=(),
        require_signature_from=keys[1].values(),
    )
    facts = verify_package(signed, policy=policy)
    assert facts.passed, facts.findings
    assert rows(facts)["policy"] == (1, True)


MODEL = "__model__/model.pkl"


def test_policy_that_allows_any_code_is_a_warning(good):
    with pytest.warns(ModpackWarning):
        policy = TrustPolicy(allow_code=True)
    facts = verify_package(good, policy=policy)
    assert facts.passed and codes(facts) == ["policy-allows-any-code"]


def test_default_policy_rejects_code_and_lists_it(good):
    facts = verify_package(good, policy=TrustPolicy())
    (refused,) = [each for each in facts.findings if each.code == "policy-violation"]
    assert "Python source" in refused.message and MODEL in refused.message
    assert "set allow_code to true and name trusted signers" in refused.hint
    assert rows(facts)["policy"] == (1, False) and rows(facts)["pickles"][1]


def test_default_policy_accepts_data(tmp_path):
    import torch

    modpack.save({"weight": torch.ones(2), "steps": 3}, tmp_path / "data.modpack")
    facts = verify_package(tmp_path / "data.modpack", policy=TrustPolicy())
    assert facts.passed and facts.code.is_empty


def test_allowed_pickle_global_is_not_code(tmp_path):
    import fractions

    modpack.save([fractions.Fraction(1, 2)], tmp_path / "data.modpack")
    refused = verify_package(tmp_path / "data.modpack", policy=TrustPolicy())
    assert "fractions.Fraction" in "".join(each.message for each in refused.findings)
    added = TrustPolicy(allow_pickle_globals="fractions.Fraction")
    assert verify_package(tmp_path / "data.modpack", policy=added).passed


def test_policy_rejects_unreadable_pickles(good, tmp_path):
    content = bytearray(good.read_bytes())
    with open_archive(good) as archive:
        content[archive.data_range(MODEL).offset] ^= 1
    (tmp_path / "damaged.modpack").write_bytes(content)
    facts = verify_package(tmp_path / "damaged.modpack", policy=TrustPolicy())
    assert not rows(facts)["policy"][1]


def test_invalid_key_raises(signed, tmp_path):
    (tmp_path / "odd.pub").write_text("no key")
    with pytest.raises(ModpackError, match=r"odd\.pub"):
        verify_package(signed, keys=[read_public(tmp_path / "odd.pub")])


def changed_file(signed, tmp_path):
    """A package with a changed source, whose digests are those of the original."""
    unzipped = tmp_path / "unzipped"
    with zipfile.ZipFile(signed) as archive:
        archive.extractall(unzipped)
    source = next(unzipped.rglob("*.py"))
    source.write_bytes(source.read_bytes() + b"# changed\n")
    return unzipped


def changed_digests(signed, tmp_path):
    """A package with an additional record that its manifest lists, and the former signature."""
    target = tmp_path / "other.modpack"
    with open_archive(signed) as archive, ArchiveWriter(tmp_path / "new.modpack") as writer:
        for name in archive.names():
            if name not in layout.UNLISTED:
                writer.write(name, archive.read(name))
        writer.write("more.txt", b"more")
        writer.commit()
        signature = archive.read(layout.SIGNATURE)
    changes = {layout.SIGNATURE: signature}
    target.write_bytes(rezipped((tmp_path / "new.modpack").read_bytes(), changes))
    return target


def changed_manifest(signed, tmp_path):
    """A package whose manifest does not match its digest."""
    target = tmp_path / "other.modpack"
    target.write_bytes(rezipped(signed.read_bytes(), {layout.MANIFEST: b"{}"}))
    return target


@pytest.mark.parametrize("change", [changed_file, changed_digests, changed_manifest])
@pytest.mark.parametrize("signer", ["ada", "bob", None])
def test_changed_signed_package_is_called_changed_first(signed, keys, tmp_path, change, signer):
    package = change(signed, tmp_path)
    facts = verify_package(package, keys=[keys[1][signer]] if signer else [])
    if not (change is changed_digests and signer == "bob"):  # whose signature there never was
        assert "the package was changed after it was signed" in facts.findings[0].message
    assert not facts.signatures and not facts.passed
    assert not any(check.is_passed for check in facts.checks if check.name == "signature")


def test_report_of_changed_signed_package_begins_with_that(signed, keys, tmp_path):
    report = verify_report(verify_package(changed_file(signed, tmp_path), keys=[keys[1]["ada"]]))
    console = Console(file=io.StringIO(), width=200)
    console.print(report)
    text = console.file.getvalue()
    assert 0 < text.index("changed after it was signed") < text.index("structure")
    assert "signed with the key" not in text


def test_detached_signature_of_changed_package_does_not_pass(good, keys, tmp_path):
    unzipped = tmp_path / "unzipped"
    with zipfile.ZipFile(good) as archive:
        archive.extractall(unzipped)
    sign_package(unzipped, keys[0]["ada"], embed=False)
    source = next(unzipped.rglob("*.py"))
    source.write_bytes(source.read_bytes() + b"# changed\n")
    facts = verify_package(unzipped, keys=[keys[1]["ada"]])
    assert facts.findings[0].message == "the package was changed after it was signed"
    assert not facts.signatures
