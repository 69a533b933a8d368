import pytest

from modpack.archive.layout import NameRegistry, check_record_name, find_collision, find_unsafe_name

UNSAFE = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "./a",
    "a/.",
    "..",
    "a/../b",
    "a\\b",
    "a\0b",
    "a\nb",
    "\x1b[2J",
]
UNSAFE += ["C:/a", "c:a", "pkg/d:x", "model/model.pkl:ads", "time/12:30", ":a", "a:", "a\ud800b"]
UNSAFE += ["a.", "...", "a /b", "a./b", "nul", "pkg/CON.txt", "com1/a", "LPT9", "a/aux.py"]
UNSAFE += ["a" * 256, "é" * 128, "b/" + "ü" * 130 + "/c", "/".join("a" * 65)]
SAFE = ["a", "a.py", ".data/version", "a/..b", "a b", "ünï/模型.txt", ". a"]
SAFE += ["common/auxiliary.py", "console", "nulls/con_.py", "com/lpt", "com10/a", "a/prn-x.py"]
SAFE += ["a" * 255, "é" * 127, "/".join("a" * 64), "/".join(["a" * 60] * 60)]


@pytest.mark.parametrize("name", UNSAFE)
def test_check_record_name_rejects_unsafe_names(name):
    assert check_record_name(name)
    found = find_unsafe_name(["fine.py", name, "fine/too.py"])
    assert found is not None
    assert found[0] == name


def test_check_record_name_accepts_ordinary_names():
    assert [check_record_name(name) for name in SAFE] == [None] * len(SAFE)
    assert find_unsafe_name(SAFE) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a.py", "a.py"),
        ("pkg/A.py", "pkg/a.py"),
        ("é.txt", "e\u0301.txt"),
        ("straße", "STRASSE"),
        ("pkg/a", "pkg/a/b"),
        ("pkg/a/b/c", "PKG/A"),
        ("a", "a\u200d"),
        ("pkg/a\u2060.py", "pkg/A.py"),
        ("a\u00ad/b", "a/b"),
        ("heart\u2764", "heart\u2764\ufe0f"),
        ("a\u3164", "a"),
        ("\ufb01le.py", "file.py"),
        ("\uff4b.txt", "k.txt"),
    ],
)
def test_colliding_names_are_found(first, second):
    registry = NameRegistry()
    assert registry.add(first) is None
    assert registry.add(second)
    collision = find_collision(["other", first, second])
    assert collision is not None
    assert collision[0] == second


def test_names_in_common_folders_do_not_collide():
    names = ["a/b.py", "a/c.py", "a/d/e.py", "ab", "é/x"]
    registry = NameRegistry()
    assert [registry.add(name) for name in names] == [None] * len(names)
    assert find_collision(names) is None
