"""Names in pickles and hooks of objects, judged while they are loaded."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from modpack import TrustPolicy
from modpack.errors import TrustError, UntrustedImportError
from modpack.hooks.restoring import kinds_in
from modpack.pickling.loading import unpickle_object
from modpack.unpacking.trusting import ObjectTrust

Load = Callable[..., Any]

SOURCES = {
    "shop/__init__.py": "",
    "shop/till.py": """\
        import os
        from os import system
        from subprocess import Popen

        class Till:
            class Drawer: pass
            def ring(self): return 3

        class Base(Popen): pass

        EMPTY = Till()
        def make(): return Till()
    """,
}


def named(module: str, name: str) -> bytes:
    """A pickle that looks one name up and does nothing with it."""
    texts = (bytes([len(t)]) + t.encode() for t in (module, name))
    return b"\x80\x04" + b"".join(b"\x8c" + text for text in texts) + b"\x93."


@pytest.fixture
def load(packaged) -> Load:
    """Loads a pickle as one of a package that holds SOURCES, under a policy."""
    importer = packaged(SOURCES)

    def loading(data: bytes, *allowed: str) -> Any:
        policy = TrustPolicy(pickle_globals=allowed)
        namespace = importer._namespace
        trust = ObjectTrust(importer._archive, policy, importer._index, namespace.local_name)
        return unpickle_object(
            data,
            resource="x.pkl",
            import_module=importer.import_module,
            storages=None,  # type: ignore[arg-type]
            package=None,
            check=trust,
        )

    return loading


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("collections", "OrderedDict"),
        ("torch.nn.modules.linear", "Linear"),
        ("shop.till", "Till"),
        ("shop.till", "Till.Drawer"),
        ("shop.till", "Till.ring"),
        ("shop.till", "make"),
        ("shop.till", "EMPTY"),
    ],
)
def test_known_names_and_the_packages_own_need_no_pattern(load, module, name):
    assert load(named(module, name)) is not None


@pytest.mark.parametrize(
    ("module", "name", "told"),
    [
        ("os", "system", "'os.system'"),
        ("builtins", "eval", "'builtins.eval'"),
        ("torch", "os.system", "'torch.os.system'"),
        ("shop.till", "os.system", "'os.system'"),
        ("shop.till", "system", "'posix.system'"),
        ("shop.till", "Till.ring.__globals__", "'shop.till.Till.ring.__globals__'"),
        ("shop.till", "EMPTY.ring", "'shop.till.EMPTY.ring'"),
        ("shop.till", "__builtins__", "'shop.till.__builtins__'"),
        ("shop.till", "Till.__subclasses__", "'shop.till.Till.__subclasses__'"),
        ("shop.till", "Base.communicate", "'subprocess.Popen.communicate'"),
        ("shop", "till.os.system", "'os.system'"),
        ("decimal", "Context.__class__", "'decimal.Context.__class__'"),
    ],
)
def test_anything_else_is_refused_with_the_pattern_that_would_allow_it(load, module, name, told):
    with pytest.raises(TrustError) as refused:
        load(named("shop.till", "make"))  # so that the module is an attribute of its package
        load(named(module, name))
    assert told in refused.value.problems[0]
    assert "Remedy: add " in refused.value.problems[0]


def test_a_refused_module_is_not_even_imported(load, project):
    project({"trap.py": "raise SystemExit"})
    with pytest.raises(TrustError, match=r"trap\.Trap"):
        load(named("trap", "Trap"))


def test_a_pattern_allows_what_it_names(load):
    import os

    assert load(named("os", "getcwd"), "os.getcwd") is os.getcwd
    with pytest.raises(TrustError, match=r"os\.system"):
        load(named("os", "system"), "os.getcwd")


def test_a_pattern_for_one_library_does_not_reach_through_to_another(load):
    with pytest.raises(TrustError, match=r"'os\.system'"):
        load(named("torch.serialization", "os.system"), "torch.**")


def test_names_of_old_pickles_are_judged_by_what_they_mean_today(load):
    old = b"\x80\x02cUserDict\nUserDict\n."
    assert load(old, "collections.UserDict").__name__ == "UserDict"
    with pytest.raises(TrustError, match=r"'builtins\.eval'"):
        load(b"\x80\x02c__builtin__\neval\n.")


def test_held_modules_are_judged_too(load):
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return ("module", obj[1:]) if isinstance(obj, str) and obj[:1] == "@" else None

    def holding(module):
        import io

        buffer = io.BytesIO()
        Pickler(buffer, 4).dump("@" + module)
        return buffer.getvalue()

    assert load(holding("math")).__name__ == "math"
    assert load(holding("shop.till")).EMPTY is not None
    with pytest.raises(TrustError, match="'antigravity'"):
        load(holding("antigravity"))


def test_a_module_that_may_be_named_must_still_be_allowed_as_an_extern(packaged, installed):
    installed("yaml2", {"yaml2.py": "class Loader: pass"})
    importer = packaged(SOURCES, extern=["yaml2"])
    index = importer._index
    object.__setattr__(index, "policy", TrustPolicy(externs=(), pickle_globals="yaml2.**"))
    object.__setattr__(index, "extern_roots", frozenset({"yaml2"}))
    with pytest.raises(UntrustedImportError, match="'yaml2'"):
        importer.import_module("yaml2")


def test_kinds_of_hooks_are_found_on_live_modules():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert list(kinds_in(model)) == []
    model[0].register_forward_pre_hook(print)
    model[1].register_full_backward_hook(print)
    torch.nn.utils.parametrizations.orthogonal(model[0])
    assert {kind for kind, _ in kinds_in({"m": [model]})} == {
        "forward_pre",
        "full_backward",
        "parametrization",
    }


def test_kinds_of_hooks_are_found_on_live_tensors_and_optimizers():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    assert list(kinds_in((model, optimizer))) == []
    model.weight.register_hook(print)
    model.bias.register_post_accumulate_grad_hook(print)
    optimizer.register_step_pre_hook(print)
    assert set(kinds_in((model, {"optimizer": optimizer}))) == {
        ("tensor", "Parameter"),
        ("post_accumulate_grad", "Parameter"),
        ("optimizer.step_pre", "SGD"),
    }
    others = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    torch.autograd.graph.register_multi_grad_hook(others, print)
    assert {kind for kind, _ in kinds_in(others)} == {"multi_grad"}


def test_hooks_of_other_kinds_are_refused(packaged):
    importer = packaged(SOURCES)
    policy = TrustPolicy(hook_kinds="forward")
    trust = ObjectTrust(importer._archive, policy, importer._index, importer._namespace.local_name)
    trust.require_hooks([("forward", "a")])
    with pytest.raises(TrustError, match=r"of the kind 'tensor'.*'b', 'c'"):
        trust.require_hooks([("forward", "a"), ("tensor", "b"), ("tensor", "c")])
