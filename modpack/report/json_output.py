"""Facts as JSON: dataclasses field by field, and a table of those that are written otherwise.

``docs/reference/json`` describes every key. Keys are only ever added under one schema number; a
change that could mislead a reader of the present one raises :data:`SCHEMA`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from modpack.core.codec import record_to_json
from modpack.core.environment import RecordedDistribution
from modpack.core.plan import MockRisk
from modpack.core.rules import UNRECORDED, Action

if TYPE_CHECKING:
    from modpack.core.json_values import Json
    from modpack.core.plan import MockUse
    from modpack.core.rules import Rule
    from modpack.diagnostics import Diagnostic
    from modpack.report.audit import AuditResult, Gate
    from modpack.report.audit_facts import AuditFacts
    from modpack.report.diff_facts import TextDifference
    from modpack.report.facts import HookFacts, ModuleFacts, PackageFacts, PlanFacts
    from modpack.report.suggest import Suggestion
    from modpack.report.why import Why
    from modpack.security.code_listing import CodeListing

SCHEMA: Final = 1

Key: TypeAlias = str | tuple[str, str | Callable[[Any], object]]
"""A key of the name of an attribute; or a key and its attribute, or what computes its value."""


def report_json(value: object) -> Json:
    """A value as JSON: enums by their values, tuples as lists, dataclasses by their form."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): report_json(each) for key, each in value.items()}
    form = _FORMS.get(type(value).__name__)
    if callable(form):
        return report_json(form(value))
    if form is not None:
        return keyed(value, form)
    if dataclasses.is_dataclass(value):
        return keyed(value, [field.name for field in dataclasses.fields(value)])
    if hasattr(value, "_fields"):
        return keyed(value, value._fields)
    return [report_json(each) for each in cast("Iterable[object]", value)]


def keyed(value: object, keys: Iterable[Key]) -> dict[str, Json]:
    """A JSON object of some attributes of a value."""
    found: dict[str, Json] = {}
    for key in keys:
        name, get = (key, key) if isinstance(key, str) else key
        found[name] = report_json(_attribute(value, get) if isinstance(get, str) else get(value))
    return found


def _attribute(value: object, path: str) -> object:
    """An attribute, perhaps of an attribute; None where there is nothing on the way."""
    for name in path.split("."):
        value = getattr(value, name) if value is not None else None
    return value


def document(value: object, **more: Json) -> dict[str, Json]:
    """A whole document.

    Args:
        value: the facts.
        more: values of keys that the facts do not have; they stay where the form has them.
    """
    return {"schema": SCHEMA, **cast("dict[str, Json]", report_json(value)), **more}


def error_document(kind: str, message: str, **more: Json) -> dict[str, Json]:
    """What stands in place of facts when there are none.

    Args:
        kind: the error's class.
        message: what is wrong, for people.
        more: further keys.
    """
    return {"schema": SCHEMA, "error": {"type": kind, "message": message, **more}}


def dumps(document: dict[str, Json]) -> str:
    """JSON text, in ASCII, ending with a newline."""
    return json.dumps(document, indent=2) + "\n"


def package_document(facts: PackageFacts) -> dict[str, Json]:
    """A package: ``package``, ``modules``, ``problems`` (none), ``notes``."""
    return {
        "schema": SCHEMA,
        "package": report_json(facts),
        "modules": report_json(facts.modules),
        "problems": [],
        "notes": report_json(facts.notes),
        "files": report_json([each for each in facts.resources if each.kind.goes_along]),
    }


def plan_document(facts: PlanFacts) -> dict[str, Json]:
    """A plan: the same keys; ``package`` is null, because nothing was written."""
    keys = ("modules", "problems", "notes", "files")
    return {"schema": SCHEMA, "package": None, **keyed(facts, keys)}


def audit_document(
    audit: AuditFacts, gates: Iterable[Gate], verdict: AuditResult
) -> dict[str, Json]:
    """An audit and what becomes of it.

    Args:
        audit: what was found.
        gates: everything that it must not find.
        verdict: what becomes of it.
    """
    from modpack.report.audit_facts import files_of, place_in

    files, fired = files_of(audit), dict(verdict.fired)

    def use(each: MockUse) -> Json:
        place = place_in(files, each.importer, each.line)
        return {**keyed(each, _USE), "file": files.get(each.importer), "place": place}

    def gated(gate: Gate) -> Json:
        found = fired.get(gate, ())
        return {"gate": gate.text, "fired": bool(found), "findings": report_json(found)}

    return document(
        audit,
        passed=verdict.passed,
        gates=[gated(gate) for gate in gates],
        mocks=[{**keyed(each, _MOCK), "uses": list(map(use, each.uses))} for each in audit.mocks],
    )


def code_document(listing: CodeListing) -> Json:
    """The code of a package as JSON, all of it."""
    from modpack.pickling.allowlist import is_dangerous

    return {
        **keyed(listing, ("sources", "native", "programs")),
        "pickles": [
            {
                "record": record,
                "names": [
                    {"name": str(name), "dangerous": is_dangerous(name.module, name.name)}
                    for name in contents.code_names
                ],
                "functions": [source.name for source in contents.sources],
                "unreadable": contents.unreadable,
            }
            for record, contents in listing.pickles.items()
        ],
    }


def suggestions_document(
    target: str, preset: str, found: Sequence[Suggestion], problems: Sequence[Diagnostic]
) -> dict[str, Json]:
    """Every suggested rule, and what no rule can cure.

    Args:
        target: the target, as it was given.
        preset: the preset whose choices the suggestions follow.
        found: the rules, in the order in which they must be given.
        problems: what is wrong even with them.
    """
    return {
        "schema": SCHEMA,
        "target": target,
        "preset": preset,
        "suggestions": report_json(found),
        "problems": report_json(problems),
    }


def _given_by_caller(_: object) -> None:
    """Keep the place of a key that :func:`document` is given."""


def _hook(facts: HookFacts) -> dict[str, Json]:
    disagreement = facts.disagreement
    more: dict[str, Json] = {} if disagreement is None else {"disagreement": disagreement}
    return {"resource": facts.resource, **keyed(facts.spec, _HOOK), **more}


def _entry(facts: PackageFacts) -> Json:
    entry = facts.entry
    return None if entry is None else {"package": entry[0], "resource": entry[1]}


def _compared_module(facts: ModuleFacts | None) -> Json:
    return None if facts is None else keyed(facts, _COMPARED_MODULE)


def _text(text: TextDifference) -> Json:
    unified = "".join(f"{line}\n" for line in text.unified)
    return {"unified": unified, "added": text.added, "removed": text.removed}


def _why_rule(found: Why) -> Rule | None:
    """The rule that decided, if the package records it."""
    rule = found.decision.rule if found.decision is not None else None
    return rule if rule is not None and rule.label != UNRECORDED else None


def _suggestion(found: Suggestion) -> dict[str, Json]:
    patterns = found.advice.patterns
    can_be_mocked = found.mock_risk not in (None, MockRisk.REACHABLE)
    return {
        **_rule(found.advice.action, patterns),
        **keyed(found, _SUGGESTION),
        "alternative": _rule(Action.MOCK, patterns) if can_be_mocked else None,
    }


def _rule(action: Action, patterns: Sequence[str]) -> dict[str, Json]:
    from modpack.report.suggest import as_option, as_toml

    return {
        "action": action.value,
        "patterns": list(patterns),
        "option": as_option(action, patterns),
        "toml": as_toml(action, patterns),
    }


def _reasons(found: Suggestion) -> list[str]:
    from modpack.report.suggest import reasons

    return list(reasons(found))


def _of(part: str, *names: str) -> tuple[Key, ...]:
    """Keys of the names of a part's attributes."""
    return tuple((name, f"{part}.{name}") for name in names)


_HOOK: Final = ("name", "kind", "target", "aliases", "position", "flags", "callable")
_MODULE: Final = (
    *("module", "action", "rule", "overridden_by", "importers", "provided_by"),
    *("distribution", "version", "record", "size_bytes"),
)
_AUDITED_MODULE: Final = (*_MODULE, "license", "editable")
_COMPARED_MODULE: Final = (
    *("action", "rule", "overridden_by", "distribution", "version", "license", "record"),
    "size_bytes",
)
_COMPARED_PACKAGE: Final = ("file", "size_bytes", "format", "digest")
_MOCK: Final = ("module", "rule", "risk", "importers", "uses", ("tried", "is_tried"), "touches")
_USE: Final[tuple[Key, ...]] = (
    *("name", "importer", ("file", _given_by_caller), "line", ("place", _given_by_caller)),
    *("kind", "scope", ("live", "is_live"), ("called_later", "is_called_later"), "via"),
)
_SUGGESTION: Final[tuple[Key, ...]] = (
    *(*_of("advice", "kind", "name"), "modules", ("distribution", "distribution.name")),
    *_of("distribution", "version", "license", "editable"),
    *(("compiled", "is_compiled"), "reach", "importers", ("reasons", _reasons), "mock_risk"),
)

_FORMS: Final[Mapping[str, tuple[Key, ...] | Callable[[Any], object]]] = {
    "AuditFacts": (
        *("subject", ("passed", _given_by_caller), ("gates", _given_by_caller), "findings"),
        *("problems", ("mocks", _given_by_caller)),
        ("modules", lambda audit: [keyed(each, _AUDITED_MODULE) for each in audit.modules]),
        *("distributions", "files", "notes", "code", "environment", "package"),
    ),
    "CheckFacts": ("name", "count", "unit", ("passed", "is_passed")),
    "CodeListing": code_document,
    "DistributionFacts": (
        *("name", ("version", lambda each: each.version or None), "license", "editable"),
        *("interned", "extern", "size_bytes", ("optional", "is_optional")),
    ),
    "EnvironmentComparison": (
        ("matches", lambda found: not found.differences),
        ("matches_exactly", lambda found: not found.deviations),
        *("repair", "rows"),
    ),
    "EnvironmentRow": (
        *("name", "recorded", "installed", "status", "modules", "requirement"),
        ("optional", "is_optional"),
    ),
    "Diagnostic": ("severity", "code", "subject", "message", "location", "chain", "hint"),
    "ValidSignature": ("key_id", "place", ("signer", lambda each: each.signer or None)),
    "HookFacts": _hook,
    "CallableSpec": record_to_json,
    "HookSpec": _HOOK,
    "ImportDifference": ("change", *_of("edge", "importer", "imported", "kind", "line")),
    "MockEvent": record_to_json,
    "ModuleDifference": (
        *("module", "change", ("before", lambda each: _compared_module(each.before))),
        *(("after", lambda each: _compared_module(each.after)), "fields", "has_other_code"),
        "source",
    ),
    "ModuleFacts": _MODULE,
    "Needed": (
        ("distribution", "distribution.name"),
        *_of("distribution", "version", "requirement", "editable", "license"),
        *("modules", ("requires", "distribution.requires"), "hashes", ("optional", "is_optional")),
    ),
    "NoteDifference": (
        "change",
        *_of("note", "severity", "code", "subject", "message", "location", "hint"),
    ),
    "UndeclaredImport": (
        *("distribution", "version"),
        (
            "requirement",
            lambda each: RecordedDistribution(each.distribution, each.version).requirement,
        ),
        *("module", "by"),
    ),
    "PackageDifferences": (
        ("before", lambda found: keyed(found.before, _COMPARED_PACKAGE)),
        ("after", lambda found: keyed(found.after, _COMPARED_PACKAGE)),
        ("identical", "is_same_content"),
        ("different", lambda found: not found.are_none),
        *("package", "distributions", "modules", "imports", "uses", "hooks", "tensors", "sharing"),
        *("storages", "resources", "self_test", "examples", "notes", "records"),
    ),
    "PackageFacts": (
        *("file", "size_bytes", "format", "digest", "writer", "python", "torch", "platform"),
        *(("entry", _entry), "namespace", "self_test", "resources", "hooks", "storages"),
    ),
    "RecordedEnvironment": ("python", "implementation", "platform", "machine", "torch"),
    "Requirements": (
        *("file", ("python", "environment.python"), ("platform", "environment.place")),
        *(("torch", "environment.torch"), ("lock", "is_lock"), ("requirements", "needed")),
        *("unknown", "absent", "imported", "comparison"),
    ),
    "Suggestion": _suggestion,
    "TensorFacts": (
        *("kind", "dtype", "shape", "requires_grad", ("persistent", "is_persistent"), "device"),
        "size_bytes",
    ),
    "TextDifference": _text,
    "SelfTestRecord": lambda self_test: self_test.to_json(),
    "UseDifference": (
        "change",
        *_of("use", "module", "name", "importer", "line", "kind", "scope", "is_live"),
    ),
    "VerifyFacts": (
        *(("file", "subject"), ("accepted", "is_accepted")),
        *(("format", lambda facts: facts.format or None),),
        *(("digest", lambda facts: facts.digest or None), "size_bytes", "checks", "findings"),
        *("signatures", "code"),
    ),
    "Why": (
        *(("file", _given_by_caller), "module", "standing", ("action", "decision.action")),
        ("rule", lambda found: None if (rule := _why_rule(found)) is None else str(rule)),
        ("origin", lambda found: None if (rule := _why_rule(found)) is None else rule.origin),
        ("overridden_by", "decision.overridden_by"),
        ("hooks", lambda found: found.decision.hooks if found.decision is not None else ()),
        *(("provided_by", "provider"), ("chains", "chains.chains")),
        *(("every_chain", _given_by_caller), ("more_chains", "chains.more")),
        *(("is_complete", "chains.is_complete"), ("as_short", "chains.as_short")),
        *("importers", "notes"),
    ),
}
"""What is not simply written field by field, by the name of its class: a command that writes one
kind of document does not import what the others are about."""
