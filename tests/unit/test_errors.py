"""Properties of all errors."""

from __future__ import annotations

import pickle

import pytest

import modpack.errors


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
