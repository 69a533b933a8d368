"""The HTML report as text: complete, self-contained, and escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from modpack.archive.reader import open_archive
from modpack.core.environment import EnvironmentComparison, EnvironmentRow, RowStatus
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.observations import MockRisk
from modpack.core.policy import Signer
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic, Severity
from modpack.errors import ArchiveError
from modpack.report.audit import audit_package
from modpack.report.audit_facts import AuditFacts, DistributionFacts, MockFacts
from modpack.report.audit_text import by_severity
from modpack.report.facts import ImporterFacts, ModuleFacts
from modpack.report.html import html_report
from modpack.report.html_document import PackagedSources, read_sources
from modpack.report.verify import VerifyFacts, verify_package
from modpack.security.signing import sign_package
from modpack.security.signing_keys import generate, read_public, write_pair
from modpack.trust.code_listing import CodeListing
from tests.described_packages import package_of

HOSTILE = "</script></style><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(made) -> str:
    audit = audit_package(made.file)
    return html_report(audit, read_sources(made.file, audit))


class Addresses(HTMLParser):
    """Collects whatever a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        named = ("src", "href", "action", "data", "srcset", "poster")
        self.found += [value or "" for name, value in attrs if name in named]


def contents(page: str, tag: str, attributes: str = "") -> list[str]:
    return re.findall(rf"<{tag}{attributes}>(.*?)</{tag}>", page, re.DOTALL)


def policy_of(page: str) -> dict[str, str]:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    directives = (each.split(maxsplit=1) for each in policy.replace("&#39;", "'").split(";"))
    return {name: "".join(value) for name, *value in directives}


def unpacked(page: str, name: str) -> str:
    """What boot.js unpacks."""
    (text,) = contents(page, "script", f' id="{name}" type="text/plain"')
    return zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS).decode()


def hash_of(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def test_page_policy_allows_own_scripts_and_style_only(page):
    policy = policy_of(page)
    packed = [unpacked(page, "library"), unpacked(page, "script")]
    scripts, styles = contents(page, "script") + packed, contents(page, "style", ' id="[^"]*"')
    assert policy["default-src"] == "'none'"
    assert policy["script-src"].split() == [hash_of(script) for script in scripts]
    assert policy["style-src"].split() == [hash_of(style) for style in styles]
    assert "unsafe" not in str(policy)


def test_page_has_no_external_references(page):
    addresses = Addresses()
    addresses.feed(page)
    assert addresses.found
    assert [address for address in addresses.found if not address.startswith("#")] == []
    assert "url(" not in "".join(contents(page, "style", ' id="[^"]*"'))
    assert "@import" not in page


def test_page_has_no_inline_styles_or_handlers(page):
    without_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<[^>]*\s(style|on\w+)=", without_scripts)


def test_page_document_has_every_module(page, made):
    names = {node["name"] for node in json.loads(unpacked(page, "data"))["nodes"]}
    assert set(made.plan.decisions) <= names


def test_page_contains_sources(page):
    (data,) = contents(page, "script", ' id="sources" type="application/json"')
    assert "reportshop.till" in json.loads(data)["texts"]


def test_page_escapes_package_texts():
    audit = AuditFacts(
        package_of(HOSTILE),
        (ModuleFacts(HOSTILE, Action.INTERN, HOSTILE, distribution=HOSTILE, version=HOSTILE),),
        findings=(Diagnostic.from_code("dynamic-import", HOSTILE, HOSTILE, HOSTILE),),
    )
    page = html_report(audit, PackagedSources({}, {HOSTILE: HOSTILE}))
    assert "<img" not in page
    assert "&lt;img src=x" in page
    assert page.count("<script") == 5
    assert page.encode()


def test_verdict_is_most_severe_finding():
    assert worst_of() == ("info", "no findings")
    assert worst_of(Severity.INFO) == ("info", "1 info")
    assert worst_of(Severity.WARNING, Severity.INFO) == ("warning", "1 warning, 1 info")
    assert worst_of(Severity.ERROR, Severity.ERROR) == ("error", "2 errors")


def worst_of(*severities: Severity) -> tuple[str, str]:
    findings = tuple(
        Diagnostic.from_code("storage-unused", "x", "x", severity=severity)
        for severity in severities
    )
    page = html_report(AuditFacts(package_of(), (), findings=findings))
    ((kind, text),) = re.findall(r'<ul class="verdict (\w+)".*?<b>([^<]*)</b>', page, re.DOTALL)
    return kind, text


def verdict(page: str) -> dict[str, str]:
    """The statements of the verdict, with their tones."""
    (statements,) = re.findall(r'<ul class="verdict.*?</ul>', page, re.DOTALL)
    found = re.findall(r'<li class="(\w+)">(?:<a[^>]*>)?([^<]*)', statements)
    return {text: tone for tone, text in found}


def verdict_of(file: Path, *signers: Signer, only_code: bool = False) -> dict[str, str]:
    verification = verify_package(file, keys=signers, only_code=only_code)
    return verdict(html_report(audit_package(file, signers), verification=verification))


@pytest.fixture
def signed(good, tmp_path) -> tuple[Path, Signer]:
    """A package and its signer."""
    package, key = tmp_path / "signed.modpack", generate()
    shutil.copy(good, package)
    sign_package(package, key)
    return package, read_public(write_pair(key, tmp_path / "ada")[1])


def test_verdict_of_unsigned_package(good):
    found = verdict_of(good)
    assert found["not signed, digests match"] == "info"
    assert found["self-test passed (unverified)"] == "info"
    assert found["1 mock, none called (unverified)"] == "warning"
    assert any(each.startswith("runs code: ") for each in found)
    assert any(each.startswith("licenses: ") for each in found)


def test_verdict_names_signer_of_unchanged_package(signed):
    package, signer = signed
    found = verdict_of(package, signer)
    assert found["signed by ada, unchanged since"] == "fine"
    assert found["self-test passed"] == "fine"
    assert found["1 mock, none called"] == "fine"


def test_verdict_without_key_does_not_trust_signature(signed):
    package, _ = signed
    found = verdict_of(package)
    assert found["signature not checked, digests match"] == "info"
    assert "self-test passed (unverified)" in found


def test_verdict_says_that_tensors_were_not_read(signed):
    package, signer = signed
    found = verdict_of(package, signer, only_code=True)
    assert "signed by ada, unchanged since (tensors were not read)" in found


def test_verdict_of_changed_tensor_is_an_error(signed):
    package, signer = signed
    content = bytearray(package.read_bytes())
    with open_archive(package) as archive:
        content[archive.data_range(".data/0.storage").offset] ^= 1
    package.write_bytes(content)
    audit = audit_package(package, [signer])
    page = html_report(audit, verification=verify_package(package, keys=[signer]))
    assert verdict(page)["verification failed"] == "error"
    assert "signed by" not in "".join(verdict(page))
    assert "record-corrupt" in page and "signature-invalid" in page


def test_verdict_of_package_that_was_not_verified():
    assert verdict(html_report(AuditFacts(package_of(), ())))["not verified"] == "warning"


def test_verdict_of_plain_data():
    code = CodeListing((), (), (), (), {})
    found = verdict(html_report(AuditFacts(package_of(), (), code=code)))
    assert found["only data, no code"] == found["no mocks"] == "fine"
    assert found["no self-test"] == "info"


def test_verdict_counts_code():
    def found(sources: tuple[str, ...], native: tuple[str, ...], programs: tuple[str, ...]):
        code = CodeListing((), sources, native, programs, {})
        return verdict(html_report(AuditFacts(package_of(), (), code=code)))

    assert "runs code: 2 sources, 1 native" in found(("a.py", "b.py"), ("c.so",), ())
    assert "runs code: 1 native" in found((), ("c.so",), ())
    assert "runs code" in found((), (), ("x.pt",))


def test_verdict_counts_called_and_unobserved_mocks():
    def found(*risks: MockRisk) -> dict[str, str]:
        mocks = tuple(MockFacts(f"m{n}", None, risk=risk) for n, risk in enumerate(risks))
        modules = tuple(ModuleFacts(mock.module, Action.MOCK) for mock in mocks)
        return verdict(html_report(AuditFacts(package_of(), modules, mocks)))

    called, unseen = MockRisk.CALLED, MockRisk.NOT_OBSERVED
    assert found(called, unseen, unseen)["1 of 3 mocks called"] == "error"
    assert found(unseen, unseen)["2 of 2 mocks not observed"] == "warning"


def test_verdict_shortens_licenses():
    licenses = ("MIT", "BSD-3-Clause", "MIT", None, "free text " * 900)
    distributions = tuple(DistributionFacts(f"d{n}", "1", each) for n, each in enumerate(licenses))
    found = verdict(html_report(AuditFacts(package_of(), (), distributions=distributions)))
    assert "licenses: MIT 2, BSD-3-Clause 1, unknown 1 and 1 more" in found


def test_page_groups_findings_as_the_text_does(made):
    audit = audit_package(made.file)
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(*by_severity(audit.findings, {}))
    codes = re.findall(r"^  ([a-z-]+)$", captured.get(), re.MULTILINE)
    page = html_report(audit)
    assert re.findall(r"<summary>.*?<code>(.*?)</code>", page) == codes


def test_page_folds_findings_of_one_code_with_one_hint():
    findings = tuple(
        Diagnostic.from_code("dynamic-import", f"lib{n}.part", "x computed", f"lib{n}.py:3")
        for n in range(30)
    )
    page = html_report(AuditFacts(package_of(), (), findings=findings))
    assert page.count(findings[0].hint) == 1
    assert '<details class="warning">' in page
    (about,) = re.findall(r'<span class="about">(.*?)</span>', page)
    assert about == "lib0, lib1, lib2, lib3, lib4, lib5, lib6, lib7, …"
    assert all(f"{each.location}</span>" in page for each in findings)


def test_page_opens_errors():
    finding = Diagnostic.from_code("missing-module", "lib", "lib is missing")
    page = html_report(AuditFacts(package_of(), (), findings=(finding,)))
    assert '<details class="error" open>' in page


def test_finding_of_audit_and_verification_is_shown_once():
    finding = Diagnostic.from_code("pickle-malformed", "m/m.pkl", "ends too early")
    audit = AuditFacts(package_of(), (), findings=(finding,))
    verification = VerifyFacts("x", None, None, 0, findings=(finding,))
    page = html_report(audit, verification=verification)
    assert page.count("ends too early") == 1


def test_page_shows_environment_comparison():
    row = EnvironmentRow("numpy", "2.1.0", "1.26.4", RowStatus.DIFFERENT, (), "numpy==2.1.0")
    page = html_report(AuditFacts(package_of(), ()), comparison=EnvironmentComparison((row,)))
    assert "1.26.4" in page
    assert "pip install" in page
    assert "numpy==2.1.0" in page


def test_page_of_torch_package_archive(tmp_path):
    from torch.package import PackageExporter

    file = tmp_path / "theirs.pt"
    with PackageExporter(file) as exporter:
        exporter.save_source_string("shop.till", "import json\n")
        exporter.extern("json")
    audit = audit_package(file)
    page = html_report(audit, read_sources(file, audit))
    assert "shop.till" in page
    assert "torch.package" in page


def test_page_is_reproducible(made):
    audit = audit_package(made.file)
    assert html_report(audit) == html_report(audit_package(made.file))


def test_page_shows_chains_from_saved_objects_before_self_test_inputs():
    inputs, saved = "<.data/modpack/self_test/0/inputs.pkl>", "<model/net.pkl>"
    graph = DependencyGraph()
    for root in (inputs, saved):
        graph.mark_root(root)
        graph.add_edge(Edge(root, "torch", ImportKind.PICKLE))
    importers = tuple(
        ImporterFacts(root, None, None, ImportKind.PICKLE) for root in (inputs, saved)
    )
    modules = (ModuleFacts("torch", Action.EXTERN, importers=importers),)
    page = html_report(AuditFacts(package_of(), modules, graph=graph))
    nodes = json.loads(unpacked(page, "data"))["nodes"]
    by_name = {node["name"]: node for node in nodes}
    assert by_name[inputs]["label"] == "inputs of the self-test"
    assert nodes[by_name["torch"]["previous"]]["name"] == saved


@pytest.mark.parametrize("many", ["modules", "imports"])
def test_page_rejects_too_many_modules(many):
    graph = DependencyGraph()
    modules = [ModuleFacts(f"m{number}", Action.INTERN) for number in range(20_001)]
    if many == "imports":
        modules = modules[:2]
        for line in range(100_001):
            graph.add_edge(Edge("m0", "m1", ImportKind.REQUIRED, line))
    with pytest.raises(ArchiveError, match=f"{many}, and the limit is .*. Run modpack audit"):
        html_report(AuditFacts(package_of(), tuple(modules), graph=graph))
