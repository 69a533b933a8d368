"""Holding what a package asks for against a policy: values in, sentences out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from modpack.core.names import root_of
from modpack.core.trust import TrustPolicy

__all__ = ["Violation", "import_violation", "violations"]

_MOST_NAMED: Final = 5
_MOST_CHARACTERS: Final = 100
_NONE: Mapping[str, Sequence[str]] = MappingProxyType({})


@dataclass(frozen=True)
class Violation:
    """Something that a policy does not allow.

    Attributes:
        field: the field of :class:`TrustPolicy` that does not.
        subject: what it is about: a module, a kind of hook, a record.
        text: what the package asks for, in one sentence.
        remedy: what to do about it.
    """

    field: str
    subject: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}. Remedy: {self.remedy}"


def violations(
    policy: TrustPolicy,
    *,
    code: Sequence[str] = (),
    externs: Iterable[str] = (),
    hook_kinds: Mapping[str, Sequence[str]] = _NONE,
    native_records: Sequence[str] = (),
) -> tuple[Violation, ...]:
    """Everything that a package asks for and a policy does not allow.

    Args:
        policy: the policy.
        code: what of the package is code, in some words for each kind.
        externs: the modules that the package takes from where it is loaded.
        hook_kinds: the kinds of its hooks, and the names of those hooks.
        native_records: the records that hold machine code.

    >>> [each.text for each in violations(TrustPolicy(externs=()), externs=["torch.nn", "yaml"])]
    ["it takes 'yaml' from where it is loaded, which externs of the policy does not allow"]
    """
    found = [*_of_code(policy, code), *_of_externs(policy, externs)]
    found += _of_hooks(policy, hook_kinds)
    if native_records and not policy.native:
        found.append(
            Violation(
                "native",
                native_records[0],
                f"it holds machine code, which native of the policy does not allow: "
                f"{_listed(native_records)}",
                "load only a package without compiled modules, or set native to true in the policy",
            )
        )
    return tuple(found)


def import_violation(policy: TrustPolicy, module: str) -> Violation | None:
    """What is wrong with importing a module from outside of a package; None if nothing is."""
    if policy.allows_extern(module):
        return None
    field = _field_of(module)
    return Violation(
        field,
        module,
        f"it imports {_shown(module)}, which {field} of the policy does not allow",
        _allowing(f"{module}", field),
    )


def _of_code(policy: TrustPolicy, code: Sequence[str]) -> Iterator[Violation]:
    if code and not policy.allow_code:
        text = f"it holds code, which allow_code of the policy does not allow: {'; '.join(code)}"
        remedy = (
            "load only packages of data. If you trust whoever made this one, set allow_code to "
            "true in the policy, beside the signers who may have; if all that stands in the way "
            "are names of which you know that they run nothing, add them to pickle_globals"
        )
        yield Violation("allow_code", code[0], text, remedy)


def _of_externs(policy: TrustPolicy, externs: Iterable[str]) -> Iterator[Violation]:
    """One for each top-level module."""
    by_root: dict[str, list[str]] = {}
    for module in dict.fromkeys(externs):
        if not policy.allows_extern(module):
            by_root.setdefault(root_of(module), []).append(module)
    for root, modules in by_root.items():
        field = _field_of(root)
        text = (
            f"it takes {_listed(modules)} from where it is loaded, which {field} of the policy "
            "does not allow"
        )
        pattern = modules[0] if modules == [root] else f"{root}.**"
        yield Violation(field, root, text, _allowing(pattern, field))


def _of_hooks(policy: TrustPolicy, hook_kinds: Mapping[str, Sequence[str]]) -> Iterator[Violation]:
    for kind, names in hook_kinds.items():
        if policy.allows_hook(kind):
            continue
        text = (
            f"it has hooks of the kind {_shown(kind)}, which hook_kinds of the policy does not "
            f"allow: {_listed(names)}"
        )
        yield Violation("hook_kinds", kind, text, _allowing(kind, "hook_kinds"))


def _field_of(module: str) -> str:
    return "standard_library" if root_of(module) in sys.stdlib_module_names else "externs"


def _allowing(pattern: str, field: str) -> str:
    return f"add {_shown(pattern)} to {field} of the policy, if you trust the package with it"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(_shown, names[:_MOST_NAMED]))
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _shown(name: str) -> str:
    """A name from a package, which may be anything."""
    text = repr(name)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
