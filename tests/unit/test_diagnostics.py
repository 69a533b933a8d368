"""The table of codes, the reference page, and the codes of exceptions."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import modpack
from modpack import errors
from modpack.core.observations import MockEventKind, MockRisk
from modpack.core.plan import PackagingErrorReason, UseKind
from modpack.diagnostics import Diagnostic, Severity, diagnostic_codes, implied_codes

ROOT = Path(__file__).parents[2]
SOURCES = [file.read_text("utf-8") for file in sorted((ROOT / "modpack").rglob("*.py"))]


def _page_tool():
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools" / "diagnostics_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _page_tool()
PAGE = TOOL.PAGE.read_text("utf-8")
MESSAGES = TOOL.MESSAGES.read_text("utf-8")


@pytest.mark.parametrize("page", [PAGE, MESSAGES], ids=["diagnostics", "error-messages"])
def test_page_of_codes_is_up_to_date(page):
    assert TOOL.render(page) == page, "run: python tools/diagnostics_page.py"


def test_page_of_messages_shows_the_words_of_the_code():
    own, _, others = MESSAGES.partition("\n## Other programs\n")
    assert others
    messages = re.findall(r"^### (.+)$", own, re.MULTILINE)
    assert len(messages) > 40
    # An error of several parts is a message of several texts in the code.
    texts = [*texts_in_code(), *(kind.meaning for kind in diagnostic_codes().values())]
    parts = {part.strip(" ,:") for message in messages for part in message.split("...")}
    assert [part for part in parts if not any(part in text for text in texts)] == []


def texts_in_code():
    nodes = (node for source in SOURCES for node in ast.walk(ast.parse(source)))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_page_of_messages_has_an_entry_for_every_exception():
    own = MESSAGES.partition("\n## All codes\n")[0]
    codes = {each.code for each in TOOL.exceptions()} - {errors.ModpackError.code}
    assert [code for code in codes if f"`{code}`" not in own] == []


def test_page_of_diagnostics_has_unique_anchors_for_all_codes():
    anchors = re.findall(r'<a id="([\w-]+)">|^### `([\w-]+)`$', PAGE, re.MULTILINE)
    listed = [code or error for code, error in anchors]
    assert len(set(listed)) == len(listed)
    assert {*diagnostic_codes(), *(each.code for each in TOOL.exceptions())} == set(listed)


def test_page_of_diagnostics_lists_every_use_risk_event_and_severity():
    for kind in (*UseKind, *MockRisk, *MockEventKind, *Severity):
        assert f"\n| `{kind.value}` | " in PAGE


def test_every_exception_is_documented():
    every = {e for e in vars(errors).values() if isinstance(e, type)}
    every = {e for e in every if issubclass(e, errors.ModpackError)}
    every |= {modpack.PackagingError, modpack.EmptyMatchError}
    assert every == set(TOOL.exceptions())


@pytest.mark.parametrize("code", diagnostic_codes())
def test_every_code_is_used(code):
    assert any(f'"{code}"' in source for source in SOURCES)


def test_every_reason_is_the_code_of_a_problem():
    assert {reason.value for reason in PackagingErrorReason} == set(diagnostic_codes("problem"))


@pytest.mark.parametrize("kind", diagnostic_codes().values())
def test_every_code_has_sentences(kind):
    assert kind.meaning[0].isupper() and kind.meaning.endswith(".")
    assert kind.hint.endswith(".") or (kind.hint == "" and kind.severity is Severity.INFO)
    assert "\n" not in kind.meaning + kind.hint
    assert kind.where and set(kind.where) <= {"problem", "note", "audit", "verify"}
    assert "problem" not in kind.where or kind.severity is Severity.ERROR
    assert "note" not in kind.where or kind.severity is not Severity.ERROR


def test_codes_are_sorted_by_severity():
    ranks = [kind.severity.rank for kind in diagnostic_codes().values()]
    assert ranks == sorted(ranks)


def test_implied_codes_are_milder():
    codes = diagnostic_codes()
    for code in codes:
        ranks = [codes[each].severity.rank for each in implied_codes(code)]
        assert ranks == sorted(ranks)


def test_diagnostic_as_text_starts_with_the_location_or_the_subject():
    def text(*values, **more):
        return str(Diagnostic.from_code("storage-unused", *values, **more))

    assert text("shop", "changed", "shop.py:3") == "shop.py:3: changed"
    assert text("shop", "changed", hint="Do it.") == "shop: changed. Do it."
    assert text("shop", "shop changed") == "shop changed"
    assert text("os", "closed") == "os: closed"


def test_diagnostic_from_code_has_its_severity_and_hint():
    unused = Diagnostic.from_code("storage-unused", "a", "b")
    assert (unused.severity, unused.hint) == (Severity.INFO, "")
    called = Diagnostic.from_code("mock-called", "a", "b", severity=Severity.WARNING)
    assert (called.severity, called.hint) == (Severity.WARNING, "Intern or extern the module.")


def test_diagnostic_from_code_takes_a_reason():
    problem = Diagnostic.from_code(PackagingErrorReason.NO_ACTION, "a", "b")
    assert type(problem.code) is str and problem.code == PackagingErrorReason.NO_ACTION
