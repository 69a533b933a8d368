from modpack.archive import layout


def test_is_internal_matches_format_records():
    internal = [
        layout.VERSION,
        layout.BYTEORDER,
        layout.MANIFEST,
        layout.storage_name(0),
        "version",
    ]
    assert all(map(layout.is_internal, internal))
    assert not any(map(layout.is_internal, ["pkg/version", "pkg/a.py", "data/x.storage"]))


def test_is_storage_matches_torch_locations():
    assert layout.is_storage(layout.storage_name(12))
    assert not layout.is_storage("pkg/.data/12.storage")
    assert not layout.is_storage(".data/a/12.storage")
