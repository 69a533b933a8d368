"""Names that modpack imports on first use, next to libraries that set attributes on object."""

from __future__ import annotations

import pytest

import modpack
from tests.warm_python import run_python

PATCHED = """
import gc, sys, torch
names = "save", "load", "self_test", "attach", "the_same"
gc.get_referents(object.__dict__)[0].update(dict.fromkeys(names, lambda *args, **named: "wrong"))
sys._clear_type_cache()
import modpack, modpack.hooks
from modpack.pickling import rebuild
assert object().save() == "wrong"
model = torch.nn.Linear(1, 1)
model.register_forward_hook(lambda module, args, output: output + 1)
modpack.save(model, "m.modpack", example_inputs=(torch.ones(1),))
print(torch.equal(modpack.load("m.modpack")(torch.ones(1)), model(torch.ones(1))))
print(modpack.hooks.attach.__module__, rebuild.the_same.__name__, modpack.self_test.__name__)
"""


def test_attributes_of_object_do_not_hide_names(tmp_path):
    (tmp_path / "patched.py").write_text(PATCHED)
    done = run_python("patched.py", folder=tmp_path)
    assert done.stdout == "True\nmodpack.hooks.graph_parts the_same self_test\n", done.stderr


def test_unknown_name_is_missing_and_names_can_be_replaced(monkeypatch):
    with pytest.raises(AttributeError, match="module 'modpack' has no attribute 'nothing'"):
        modpack.nothing  # noqa: B018
    monkeypatch.setattr(modpack, "save", "replaced")
    assert modpack.save == "replaced"
