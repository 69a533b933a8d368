"""Hook specs that agree or disagree with the pickle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from modpack.archive.layout import hook_records
from modpack.archive.reader import open_archive
from modpack.archive.records import read_specs
from modpack.archive.writer import ArchiveWriter
from modpack.cli import cli
from modpack.security.pickled_hooks import find_disagreements

RECORD = "__model__/model.pkl"
LIBRARY = '''
import functools, torch
def plain(m, a, o): return o
class Owner:
    def __init__(self): self.x = 1
    def method(self, m, a, o): return o
    def __private(self, m, a, o): return o
    def private(self): return self.__private
    @classmethod
    def of_class(cls, m, a, o): return o
    @staticmethod
    def static(m, a, o): return o
    alias = method
    @torch.no_grad()
    def decorated(self, m, a, o): return o
    def bare(function):
        def wrapper(self, m, a, o): return function(self, m, a, o)
        return wrapper
    @bare
    def barely(self, m, a, o): return o
    def __call__(self, m, a, o): return o
class Remade:
    def __call__(self, m, a, o): return o
    def __reduce__(self): return make, ()
def make(): return Remade()
def local(k):
    """Two

    paragraphs."""
    def inner(m, a, o):

        text = """a
    b

c"""
        return o
    @functools.wraps(plain)
    def wrapping(*a): return plain(*a)
    class Local:
        def __call__(self, m, a, o): return o
        def method(self, m, a, o): return k
    cached = functools.lru_cache(lambda m, a, o: o)
    return inner, Local(), Local().method, functools.partial(inner), cached, wrapping
'''
SCRIPT = """
import functools, math, operator, sys, types, warnings
sys.path.insert(0, str(folder))
import modpack, torch
import agreeing as lib

@torch.no_grad()
def decorated(m, a, o): return o
class Owner:
    def method(self, m, a, o):
        "text"

        return o
    def __call__(self, m, a, o): return o
    @torch.no_grad()
    def decorated(self, m, a, o): return o
helper = lambda x: x
def uses(m, a, o): return helper(other(o))
def other(o): return o
owner = lib.Owner()
hooks = [
    lib.plain, owner.method, owner.private(), lib.Owner.of_class, owner.of_class,
    lib.Owner.static, owner.alias, owner.decorated, owner.barely, owner, lib.Remade(),
    *lib.local(1), decorated, Owner().method, Owner(), Owner().decorated, uses,
    lambda m, a, o: helper(o), [].append, torch.add, torch.ops.aten.relu,
    torch.ops.aten.relu.default, torch.nn.functional.relu, lib.Owner, Owner,
    functools.partial(owner.method, 1), functools.partial(Owner().method),
    functools.partial(functools.partial(lib.plain, 1), x=helper),
    torch.jit.script(torch.nn.ReLU()), operator.itemgetter(1), print, math.sin,
    torch.Tensor.relu, lib.Owner.method, types.MethodType(lambda s, m, a, o: o, owner),
]
model = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in hooks])
for layer, hook in zip(model, hooks):
    layer.register_forward_hook(hook)
def kept(grad): return grad
modpack.hooks.attach(model, modpack.hooks.OutputGrad("0", kept))
modpack.hooks.attach(model, modpack.hooks.SavedTensors("1", lambda x: x, lambda x: x))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    modpack.save(model, folder / "net.modpack", pickle_protocol=protocol)
"""


@pytest.fixture(scope="module", params=[2, 3, 5])
def package(request, tmp_path_factory) -> Path:
    """A package with hooks of many kinds of callables."""
    import os
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("agreeing")
    (folder / "agreeing.py").write_text(LIBRARY)
    head = f"from pathlib import Path\nfolder, protocol = Path({str(folder)!r}), {request.param}\n"
    (folder / "script.py").write_text(head + SCRIPT)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", str(folder / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "net.modpack"


def changed(package: Path, target: Path, change) -> Path:
    """Return the package with other hook specs and valid digests."""
    specs_record, _ = hook_records(RECORD)
    with open_archive(package) as archive, ArchiveWriter(target) as writer:
        for name in archive.names():
            content = bytes(archive.read(name))
            if name == specs_record:
                specs = json.loads(content)
                change(specs["hooks"])
                content = json.dumps(specs).encode()
            if "manifest" not in name:
                writer.write(name, content)
        writer.commit()
    return target


def first(hooks: list) -> dict:
    """Return the hook of the first layer, an ordinary function of a module."""
    return next(each for each in hooks if each["name"] == "0/forward/0")


def disagreements(file: Path) -> list[str]:
    with open_archive(file) as archive:
        found = find_disagreements(archive, RECORD, read_specs(archive, RECORD))
        return [f"{each.hook}: {each.reason}" for each in found]


def run(*arguments) -> str:
    return CliRunner().invoke(cli, [*map(str, arguments)]).output


def test_specs_of_every_kind_of_callable_agree(package):
    assert disagreements(package) == []


HARMLESS = "def harmless(module, args, output):\n    return output"


@pytest.mark.parametrize(
    "edit",
    [
        lambda called: called.update(source=HARMLESS),
        lambda called: called.update(source=f"{called['source']}\n\n{HARMLESS}"),
        lambda called: called.update(source=called["source"][:-1] + "0"),
        lambda called: called.update(name="torch.nn.functional.softmax"),
        lambda called: called.update(by="reference", name="torch.softmax", source=None),
        lambda called: called.update(by="object", name="instance of nn.Linear", source=None),
    ],
)
def test_each_edited_spec_of_a_function_is_found(edit, package, tmp_path):
    with open_archive(package) as archive:
        specs = read_specs(archive, RECORD)
    # what a decorator of another module made is not all in the package
    # what a decorator of another module made is not all in the package
    functions = [spec for spec in specs if spec.callable.by == "source"]
    edited = {s.name for s in functions if "decorate_context" not in str(s.callable.source)}
    assert len(edited) >= 6

    def change(hooks) -> None:
        for each in hooks:
            if each["name"] in edited:
                edit(each["callable"])

    found = disagreements(changed(package, tmp_path / "edited.modpack", change))
    assert {each.partition(":")[0] for each in found} == edited


def test_verify_and_inspect_show_restored_hooks(package, tmp_path):
    def change(hooks) -> None:
        first(hooks)["callable"].update(by="source", name="a.harmless", source=HARMLESS)

    file = changed(package, tmp_path / "edited.modpack", change)
    told = run("verify", "--json", file)
    assert not json.loads(told)["passed"]
    assert "its spec says 'source'" in told
    shown = " ".join(run("inspect", file).split())
    assert (
        "harmless" not in shown
        and "agreeing.plain" in shown
        and "Loading restores this callable" in shown
    )
    listed = json.loads(run("inspect", "--json", file))["package"]["hooks"]
    hook = next(each for each in listed if each["spec"]["name"] == "0/forward/0")
    assert hook["spec"]["callable"]["name"] == "agreeing.plain" and hook["disagreement"]


def test_hook_that_specs_hide_is_shown(package, tmp_path):
    file = changed(package, tmp_path / "edited.modpack", lambda hooks: hooks.remove(first(hooks)))
    assert "the hook has no spec" in run("verify", "--json", file)
    assert "the hook has no spec" in " ".join(run("inspect", file).split())


def test_another_kind_of_hook_is_found(package, tmp_path):
    change = lambda hooks: first(hooks).update(kind="forward_pre")  # noqa: E731
    (told,) = disagreements(changed(package, tmp_path / "edited.modpack", change))
    assert "has the kind 'forward_pre', the pickle 'forward'" in told


def test_unreadable_pickle_of_hooks_is_reported(package, tmp_path):
    _, pickle_record = hook_records(RECORD)
    with open_archive(package) as archive, ArchiveWriter(tmp_path / "x.modpack") as writer:
        for name in archive.names():
            content = bytes(archive.read(name))
            if "manifest" not in name:
                writer.write(name, b"\x80\x03\x82\x01." if name == pickle_record else content)
        writer.commit()
    assert all("cannot be read" in each for each in disagreements(tmp_path / "x.modpack"))
    assert "cannot be read" in run("verify", "--json", tmp_path / "x.modpack")
