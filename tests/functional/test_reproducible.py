"""Equal inputs give equal bytes in every folder, process, and environment."""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import modpack

HERE = Path(__file__).parents[2] / "fixtures" / "reproducible"
PROJECT = HERE / "project"


def _cases() -> Iterator[str]:
    for file in sorted((PROJECT / "reprolib").glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                if any(ast.unparse(each) == "case" for each in node.decorator_list):
                    yield f"{file.stem}.{node.name}"


@dataclass(frozen=True)
class Maker:
    """A user who exports packages: a copy of the project, and a process environment.

    Attributes:
        root: The folder of all files of the user.
        source: The folder of the project.
        variables: The environment variables.
    """

    root: Path
    source: Path
    variables: Mapping[str, str]

    def starts(self, *command: str | Path, **variables: str) -> subprocess.Popen[str]:
        process = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=self.root / "here",
            env={**process, **self.variables, **variables},
            stderr=subprocess.PIPE,
            text=True,
        )

    def made(self, name: str) -> Path:
        return self.root / "made" / name


def maker(root: Path, name: str, seed: int, source: str, **variables: str) -> Maker:
    for folder in ("here", "made", "home", "temporary"):
        (root / folder).mkdir(parents=True)
    shutil.copytree(HERE, root / source, ignore=shutil.ignore_patterns("__pycache__"))
    (root / source / "project" / "reprolib" / ".env").write_text("MODE=test\n")
    return Maker(
        root,
        root / source,
        {
            "PYTHONPATH": str(root / source / "project"),
            "PYTHONHASHSEED": str(seed),
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "temporary"),
            "MODPACK_CACHE_DIR": str(root / "cache"),
            **{"USER": name, "LOGNAME": name, **variables},
        },
    )


@pytest.fixture(scope="module")
def alice(tmp_path_factory) -> Maker:
    """A user with a short path, UTC, and fresh processes."""
    root = tmp_path_factory.mktemp("of_alice")
    return maker(root, "alice_reproducible", 1, "source", TZ="UTC", PYTHONDONTWRITEBYTECODE="1")


@pytest.fixture(scope="module")
def bob(tmp_path_factory) -> Maker:
    """A user with a deep path, another time zone, old sources, and busy processes."""
    root = tmp_path_factory.mktemp("of_bob")
    made = maker(root, "bob_reproducible", 4242, "some/where/else", TZ="Asia/Tokyo", LC_ALL="C")
    for file in made.source.rglob("*"):
        os.utime(file, (1e9, 1e9))
    return made


def run_all(*running: subprocess.Popen[str]) -> None:
    for each in running:
        _, errors = each.communicate(timeout=600)
        assert each.returncode == 0, errors
        assert "cannot be saved" not in errors, errors


@pytest.fixture(scope="module")
def made(alice, bob) -> tuple[Maker, Maker]:
    """Both users with all cases saved, Bob's in another order and after other work."""
    # A load test for each of the cases would take a minute; the script's package has one.
    quick = {"MODPACK_SELF_TEST": "examples"}
    first = alice.starts(alice.source / "export.py", alice.root / "made", **quick)
    second = bob.starts(bob.source / "export.py", bob.root / "made", "--noisy", **quick)
    run_all(first, second)
    return alice, bob


def assert_same(one: Path, other: Path) -> None:
    """Check that two packages are equal, or list the differing records."""
    if one.read_bytes() == other.read_bytes():
        return
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        assert first.namelist() == second.namelist()
        differ = [name for name in first.namelist() if first.read(name) != second.read(name)]
    raise AssertionError(f"{one.name} differs in {differ}")


@pytest.mark.parametrize("case", list(_cases()))
def test_separate_processes_write_equal_bytes(made, case):
    one, other = made
    assert_same(one.made(f"{case}.modpack"), other.made(f"{case}.modpack"))


def contents_of(package: Path) -> Iterator[tuple[str, bytes]]:
    """Return every record, including those of nested archives."""
    todo = [("", package.read_bytes())]
    while todo:
        name, content = todo.pop()
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                todo += [(f"{name}/{each}", archive.read(each)) for each in archive.namelist()]
        else:
            yield name, content


@pytest.mark.parametrize("case", list(_cases()))
def test_package_contains_no_paths_users_or_times(made, case):
    for each in made:
        told = [
            str(each.root),
            each.variables["USER"],
            sys.prefix,
            str(Path(os.__file__).parent),
            socket.gethostname() if len(socket.gethostname()) > 8 else str(each.root),
        ]
        for name, content in contents_of(each.made(f"{case}.modpack")):
            assert [text for text in told if text.encode() in content] == [], name


def test_script_writes_equal_bytes_for_every_way_of_starting(alice, bob):
    starts = []
    for each in (alice, bob):
        script = each.source / "project" / "train.py"
        started = os.path.relpath(script, each.root / "here") if each is bob else script
        starts.append(each.starts(started, each.made("script.modpack")))
    run_all(*starts)
    assert_same(alice.made("script.modpack"), bob.made("script.modpack"))
    records = dict(contents_of(alice.made("script.modpack")))
    assert b"Definitions from train.py" in records["/archive/train_definitions.py"]
    assert [n for n, text in records.items() if str(alice.root).encode() in text] == []


LOADED = """
import collections, warnings
import modpack, torch
warnings.simplefilter("ignore")
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
load = lambda name: modpack.load(f"{folder}/{name}.modpack")

sets = load("held.sets")
assert type(sets["words"]) is set and sets["words"] == set(WORDS)
assert type(sets["own frozen"]) is not frozenset and sets["own frozen"].note == "kept"
assert sets["bytes"] == {word.encode() for word in WORDS}
assert sets["mixed"] == {None, 1, "one", 2.5, b"x", (1, "a"), frozenset(WORDS[:4]), ...}
assert sets["nested"] == frozenset(frozenset(WORDS[i : i + 3]) for i in range(6))
assert sets["own"] == set(WORDS) and type(sets["own"]).__name__ == "Tags"
assert sets["key"] == {frozenset(WORDS): 1} and sets["empty"] == set()

rings = load("held.sets_in_circles")
ring = rings["ring"]
assert ring in ring.members and len(ring.members) == 4
shared = rings["shared"]
assert shared[0] is shared[1][0] is shared[2]["again"] and shared[0] == set(WORDS)

objects = load("held.sets_of_objects")
layers = objects["model"]
assert layers.frozen == {layers[0], layers[2], layers[4]}
assert {id(w) for w in layers.tied} == {id(layer.weight) for layer in layers}
assert {holder.name for holder in objects["only here"]} == set(WORDS)

weak = load("held.weak")
assert set(weak["set"]) == set(weak["holders"])

names = load("held.sets_of_names")
assert torch.nn.Linear in names["classes"] and torch.float16 in names["dtypes"]

for protocol in (2, 5):
    words = load(f"plain.protocol_{protocol}")["words"]
    assert words == {"some", "words", "in", "a", "set"}, words

x = torch.ones(1, 2)
traced = load("graphs.traced")
assert torch.equal(traced(x), traced.forward(x)) and traced(x).shape == (2, 2)
assert load("graphs.scripted")(x).shape == (1, 2)
assert torch.equal(load("graphs.script_function")["function"](x), x * 2 + 1)
assert load("graphs.exported")["program"].module()(x).shape == (2, 2)
assert load("graphs.fx_quantized")[1](x).shape == (1, 2)

model = load("hooked.handles")
assert len(model[0]._forward_hooks) == 1
model.handle.remove()
assert len(model[0]._forward_hooks) == 0
for handle in model.handles:
    handle.remove()
assert not any(part._forward_pre_hooks for part in model)

config = load("classes.local_classes").config
assert config.tags == {"alpha", "beta", "gamma"} and "Config(width: int = 3" in type(config).__doc__

pool = load("special.objects_of_the_process").pool
assert pool.submit(int, "3").result() == 3
pool.shutdown()
print("as it was")
"""


@pytest.mark.filterwarnings("ignore")
def test_sorted_objects_load_unchanged(made, clean_python):
    folder = made[1].root / "made"
    assert clean_python(LOADED, folder=str(folder)).stdout.endswith("as it was\n")


def test_file_name_does_not_change_bytes(tmp_path, project):
    project({"twins.py": "import torch\nclass Net(torch.nn.Linear): pass\n"})
    import torch
    import twins

    model = twins.Net(2, 2)
    model.words = {"alpha", "beta", "gamma", "delta"}
    paths = [
        tmp_path / "one.modpack",
        tmp_path / "other.modpack",
        tmp_path / "else" / "one.modpack",
    ]
    paths[2].parent.mkdir()
    for path in paths:
        torch.nn.Linear(1, 1).register_forward_hook(len)  # another hook, which takes an id
        model.hook = model.register_forward_hook(lambda *args: None)
        modpack.save(model, path)
        model.hook.remove()
    assert len({path.read_bytes() for path in paths}) == 1


def test_self_test_records_only_generators_used_by_model(tmp_path):
    import torch

    def states(model: object) -> set[str]:
        path = tmp_path / "tried.modpack"
        modpack.save(model, path, example_inputs=torch.ones(8))
        conditions = dict(contents_of(path))["/archive/.data/modpack/self_test/0/conditions.json"]
        return set(re.findall(r'"(torch|python|numpy)":', conditions.decode()))

    assert states(torch.nn.Dropout(0.5).eval()) == set()
    assert states(torch.nn.Dropout(0.5).train()) == {"torch"}
