"""How calls reach attributes: ``getattr`` and all that comes to the same."""

from __future__ import annotations

from typing import Final

from modpack.core.knownnames import is_standard, special_attribute
from modpack.discovery._picklemachine.makers import INSTANCE
from modpack.discovery._picklemachine.reach import give_method, is_attribute_harmless
from modpack.discovery._picklemachine.values import (
    OPAQUE,
    Arguments,
    Made,
    Named,
    Recorder,
    Value,
    shown,
)
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["attribute", "defined", "getter", "operator_of", "set_in_script", "taken_attribute"]

_METHOD: Final = Named("", "a method")


def taken_attribute(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``getattr(owner, name)``."""
    if arguments is None or len(arguments) not in (2, 3):
        to.flaw(FlawKind.UNRESOLVED, "it takes an attribute of which it is not known what it is")
        return OPAQUE
    return attribute(to, arguments[0], arguments[1])


def attribute(to: Recorder, owner: Value, name: Value) -> Value:
    """Follow how an attribute is taken.

    Args:
        to: is told what is wrong with it.
        owner: what it is an attribute of.
        name: its name.
    """
    if not isinstance(name, str):
        to.flaw(FlawKind.UNRESOLVED, "it takes an attribute by a name that is made while it runs")
        return OPAQUE
    special = special_attribute(name)
    if special is not None:
        to.flaw(FlawKind.REACHES, f"it takes the attribute {special} of {shown(owner)}")
        return OPAQUE
    if isinstance(owner, Named):
        return to.named(owner.module, f"{owner.name}.{name}" if owner.name else name)
    if isinstance(owner, Made):
        last = owner.by.name.rpartition(".")[2]
        if last[:1].isupper() or last.lstrip("_")[:1].isupper():  # a method of an instance
            to.named(owner.by.module, f"{owner.by.name}.{name}")
            return Made(_METHOD, None)  # or whatever the instance was given under that name
        if owner.by is INSTANCE:
            return _attribute_of_instance(to, owner, name)
    if not is_attribute_harmless(owner, name):
        to.flaw(FlawKind.REACHES, f"it takes the attribute {name[:100]!r} of {shown(owner)}")
    return Made(_METHOD, None)


def _attribute_of_instance(to: Recorder, owner: Made, name: str) -> Value:
    """Of an instance of a class that the pickle makes: what it has from its bases."""
    for base in owner.arguments or ():
        if not isinstance(base, Named):
            continue
        if is_standard(base.module) and not base.module.startswith("torch"):
            to.named(base.module, f"{base.name}.{name}")
    return Made(_METHOD, None)


def getter(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``attrgetter`` and ``methodcaller``: names that are taken later."""
    names = arguments or ()
    if called.name == "methodcaller" and names:
        give_method(to, names[0])
    for name in names[:1] if called.name == "methodcaller" else names:
        special = special_attribute(name) if isinstance(name, str) else None
        if special is not None:
            to.flaw(FlawKind.REACHES, f"it makes something that takes the attribute {special}")
    if not names or not all(isinstance(name, str) for name in names[:1]):
        to.flaw(FlawKind.UNRESOLVED, "it takes an attribute by a name that is made while it runs")
    return Made(called, arguments)


def defined(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``defined(module, name)``: of a script's definitions."""
    if not arguments or len(arguments) < 2:
        to.flaw(FlawKind.UNRESOLVED, f"it is not known what {called} takes")
        return OPAQUE
    return attribute(to, arguments[0], arguments[1])


def set_in_script(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``set_in_script(module, path, value)``: what the name stands for from here on."""
    module, path, value = arguments if arguments and len(arguments) == 3 else (OPAQUE,) * 3
    texts = [each for each in path if isinstance(each, str)] if isinstance(path, tuple) else []
    if not isinstance(module, Named) or module.name or not texts or texts != list(path):  # type: ignore[call-overload]
        to.flaw(FlawKind.CHANGES, f"it is not known what {called} sets")
        return OPAQUE
    if is_standard(module.module):
        to.flaw(FlawKind.CHANGES, f"it sets a name in {module}")
    name = ".".join(texts)
    special = special_attribute(name)
    if special is not None:
        to.flaw(FlawKind.REACHES, f"it sets the attribute {special} in {module}")
    to.filled(module.module, name, value)
    return OPAQUE


def operator_of(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``operator_of(*path)``: an operator of torch, below ``torch.ops``."""
    texts = [each for each in arguments or () if isinstance(each, str)]
    if not texts or len(texts) != len(arguments or ()):
        to.flaw(FlawKind.UNRESOLVED, "it takes an operator by a name that is made while it runs")
        return OPAQUE
    return to.named("torch.ops", ".".join(texts))
