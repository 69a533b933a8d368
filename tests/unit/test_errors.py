"""Properties of all errors."""

from __future__ import annotations

import pickle

import pytest

import modpack.errors
from modpack.errors import (
    ArchiveError,
    DisallowedModuleError,
    EnvironmentMismatchError,
    ExternNotFoundError,
    ModpackError,
    NativeModuleError,
    PackageNotFoundError,
    PicklingError,
    PolicyNotFoundError,
    RecordNotFoundError,
    ReopenError,
    SelfTestError,
    TrustError,
    UnpicklingError,
    UntrustedImportError,
)


@pytest.mark.parametrize("name", modpack.errors.__all__)
def test_error_module_is_its_public_module(name):
    kind = getattr(modpack.errors, name)
    assert (kind.__module__, kind.__qualname__) == ("modpack.errors", name)
    assert pickle.loads(pickle.dumps(kind)) is kind


@pytest.mark.parametrize("name", modpack.errors.__all__)
def test_every_error_derives_from_modpack_error(name):
    bases = (modpack.errors.ModpackError, modpack.errors.ModpackWarning)
    assert issubclass(getattr(modpack.errors, name), bases)


def test_every_error_is_public():
    kinds = _all_below(modpack.errors.ModpackError)
    ours = {kind.__name__ for kind in kinds if kind.__module__.startswith("modpack.errors")}
    assert ours <= set(modpack.errors.__all__)


def _all_below(kind):
    return {kind}.union(*map(_all_below, kind.__subclasses__()))


RAISED = [
    ModpackError("text", hint="Fix it."),
    ArchiveError("net.modpack", "it is damaged", "model.pkl", hint="Copy it."),
    PackageNotFoundError("net.modpack", "the file does not exist"),
    RecordNotFoundError("net.modpack", "a.txt", ("b.txt",)),
    PicklingError("model/model.pkl", (("model.lock", "it is a lock"),)),
    UnpicklingError("model/model.pkl", "it is damaged"),
    EnvironmentMismatchError("net.modpack", (("torch", "1", "2"),)),
    DisallowedModuleError("net.modpack", ("yaml",)),
    ExternNotFoundError("net.modpack", "yaml", "pyyaml==6"),
    NativeModuleError("net.modpack", "fast", "cannot be loaded", hint="Move it."),
    ReopenError("modpack.packages.p0", "it was closed", "net.modpack", hint="Open it."),
    TrustError("net.modpack", ("it has code.",)),
    UntrustedImportError("net.modpack", "yaml", "it is not allowed."),
    PolicyNotFoundError("trust.toml", ("the file does not exist",)),
    SelfTestError("net.modpack", "it fails", ("line",), "log"),
]


@pytest.mark.parametrize("failure", RAISED, ids=lambda each: type(each).__name__)
def test_error_is_the_same_in_another_process(failure):
    received = pickle.loads(pickle.dumps(failure))
    assert type(received) is type(failure)
    assert (str(received), received.args) == (str(failure), failure.args)
    for name in ("path", "reason", "hint", "name", "module", *vars(failure)):
        assert getattr(received, name, None) == getattr(failure, name, None)
    assert getattr(failure, "path", "net.modpack") in ("net.modpack", "trust.toml", "model.lock")


def test_problems_with_one_cause_are_one_entry():
    problems = tuple(
        (f"model[{n}]", f"<class 'lib.C{n}'> is not found as lib.C{n}.") for n in range(32)
    )
    text = str(PicklingError("m/o.pkl", problems))
    assert text.startswith(
        "cannot save m/o.pkl (at model[0]): <class 'lib.C0'> is not found as lib.C0."
    )
    assert "<class 'lib.C9'> at model[9] and 22 more." in text
    assert "lib.C10" not in text
    same = tuple((f"model[{n}]", "locked") for n in range(12))
    assert str(PicklingError("m/o.pkl", same)).endswith("model[9] and 2 more): locked")
    different = (("a", "it is open"), ("b", "it is locked"))
    assert "for 2 reasons" in str(PicklingError("m/o.pkl", different))
