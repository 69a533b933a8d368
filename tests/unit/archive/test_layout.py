from pathlib import Path

import pytest

from modpack.archive import layout


@pytest.mark.parametrize(
    ("target", "root"),
    [
        ("model.pt", "model"),
        ("/somewhere/model.v2.pt", "model.v2"),
        (Path("a b:c.pt"), "a_b_c"),
        ("modèle.pt", "modèle"),
        (".pt", "pt"),
        ("...", "archive"),
    ],
)
def test_the_top_level_folder_is_the_targets_stem_made_safe(target, root):
    assert layout.root_name(target) == root


def test_what_belongs_to_the_format_is_internal():
    internal = [
        layout.VERSION,
        layout.BYTEORDER,
        layout.MANIFEST,
        layout.storage_name(0),
        "version",
    ]
    assert all(map(layout.is_internal, internal))
    assert not any(map(layout.is_internal, ["pkg/version", "pkg/a.py", "data/x.storage"]))


def test_storages_are_recognised_where_torch_puts_them():
    assert layout.is_storage(layout.storage_name(12))
    assert not layout.is_storage("pkg/.data/12.storage")
    assert not layout.is_storage(".data/a/12.storage")
