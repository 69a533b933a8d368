"""Commands show the hooks that the pickle restores."""

from __future__ import annotations

import functools
import json
import pickle
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from modpack.archive.layout import hook_records
from modpack.archive.reader import open_archive
from modpack.cli import cli
from modpack.core.hookspec import CallableSpec
from modpack.pickling import rebuild
from modpack.security.pickled_hooks import read_hooks
from modpack.writing.writer import ArchiveWriter
from tests.warm_python import run_python

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
    folder = tmp_path_factory.mktemp("agreeing")
    (folder / "agreeing.py").write_text(LIBRARY)
    head = f"from pathlib import Path\nfolder, protocol = Path({str(folder)!r}), {request.param}\n"
    (folder / "script.py").write_text(head + SCRIPT)
    done = run_python("-I", folder / "script.py", folder=folder)
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


def pickled(file: Path) -> dict[str, CallableSpec]:
    with open_archive(file) as archive:
        return {hook.name: hook.callable for hook in read_hooks(archive, RECORD)}


def run(*arguments) -> str:
    return CliRunner().invoke(cli, [*map(str, arguments)]).output


NAMES = [
    "agreeing.plain",
    "agreeing.Owner.method (bound)",
    "agreeing.Owner._Owner__private (bound)",
    "agreeing.Owner.of_class",
    "agreeing.Owner.of_class",
    "agreeing.Owner.static",
    "agreeing.Owner.method (bound)",
    "agreeing.Owner.decorated (bound)",
    "agreeing.Owner.barely (bound)",
    "instance of agreeing.Owner",
    "result of agreeing.make()",
    "agreeing.local.<locals>.inner",
    "instance of agreeing.local.<locals>.Local",
    "agreeing.local.<locals>.Local.method (bound)",
    "partial of agreeing.local.<locals>.inner",
    "result of modpack.pickling.rebuild.lru_cached(..., ..., ...)",
    "agreeing.plain",
    "script_definitions.decorated",
    "script_definitions.Owner.method (bound)",
    "instance of script_definitions.Owner",
    "script_definitions.Owner.decorated (bound)",
    "script_definitions.uses",
    "script_definitions.<lambda>",
    "list.append (bound)",
    "torch._C._VariableFunctionsClass.add",
    "result of modpack.pickling.rebuild.operator_of(aten, relu)",
    "result of modpack.pickling.rebuild.operator_of(aten, relu, default)",
    "torch.nn.functional.relu",
    "agreeing.Owner",
    "script_definitions.Owner",
    "partial of agreeing.Owner.method (bound)",
    "partial of script_definitions.Owner.method (bound)",
    "partial of agreeing.plain",
    "object outside of the pickle",
    "result of operator.itemgetter(...)",
    "builtins.print",
    "math.sin",
    "torch._C.TensorBase.relu",
    "agreeing.Owner.method",
    "script_definitions.<lambda> (bound)",
]


def test_each_kind_of_callable_is_named(package):
    found = pickled(package)
    assert [found[f"{at}/forward/0"].name for at in range(len(NAMES))] == NAMES
    assert found["0/graph.output_grad/0"].name == "script_definitions.kept"


def test_functions_in_the_pickle_are_shown_with_their_sources(package):
    found = pickled(package)
    inner = found["11/forward/0"]
    assert inner.by == "source"
    assert (
        inner.source == 'def inner(m, a, o):\n\n    text = """a\nb\n\nc"""\n    return o'
        or inner.source
    )
    assert found["14/forward/0"].source == inner.source
    assert "def method(self, m, a, o): return k" in str(found["13/forward/0"].source)
    assert found["15/forward/0"].source == "lambda m, a, o: o"
    assert "def wrapping(*a): return plain(*a)" in str(found["16/forward/0"].source)
    both = found["1/graph.saved_tensors/0"].source
    assert both == "# pack\nlambda x: x\n\n# unpack\nlambda x: x"
    assert found["0/forward/0"].source is None


HARMLESS = "def harmless(module, args, output):\n    return output"


def test_commands_show_restored_hooks_whatever_specs_say(package, tmp_path):
    def change(hooks) -> None:
        for each in hooks:
            each["callable"].update(by="source", name="a.harmless", source=HARMLESS)

    file = changed(package, tmp_path / "edited.modpack", change)
    shown = " ".join(run("inspect", file).split())
    assert "harmless" not in shown and "agreeing.plain" in shown and "def inner" in shown
    listed = json.loads(run("inspect", "--json", file))["package"]["hooks"]
    hook = next(each for each in listed if each["spec"]["name"] == "0/forward/0")
    assert hook["spec"]["callable"]["name"] == "agreeing.plain"


def test_hook_that_specs_hide_is_shown(package, tmp_path):
    file = changed(package, tmp_path / "edited.modpack", lambda hooks: hooks.remove(first(hooks)))
    assert "the hook has no spec" in run("verify", "--json", file)
    assert "forward on 0 agreeing.plain" in " ".join(run("inspect", file).split())


def test_spec_without_hook_is_rejected_and_not_shown(package, tmp_path):
    def change(hooks) -> None:
        hooks.append({**first(hooks), "name": "0/forward/9", "position": 9})

    file = changed(package, tmp_path / "edited.modpack", change)
    assert "the pickle does not contain this hook" in run("verify", "--json", file)
    assert "0/forward/9" not in run("inspect", "--json", file)


def test_another_kind_of_hook_is_found(package, tmp_path):
    change = lambda hooks: first(hooks).update(kind="forward_pre")  # noqa: E731
    told = run("verify", "--json", changed(package, tmp_path / "edited.modpack", change))
    assert "has the kind 'forward_pre', the pickle 'forward'" in told


def test_unreadable_pickle_of_hooks_is_reported(package, tmp_path):
    _, pickle_record = hook_records(RECORD)
    with open_archive(package) as archive, ArchiveWriter(tmp_path / "x.modpack") as writer:
        for name in archive.names():
            content = bytes(archive.read(name))
            if "manifest" not in name:
                writer.write(name, b"\x80\x03\x82\x01." if name == pickle_record else content)
        writer.commit()
    assert "cannot be read" in run("verify", "--json", tmp_path / "x.modpack")
    assert "unknown" in run("inspect", tmp_path / "x.modpack")


class Called:
    """An object that is pickled as a call, which this test never runs."""

    def __init__(self, function, *arguments) -> None:
        self.called = function, arguments

    def __reduce__(self):
        return self.called


def test_many_hooks_that_share_a_large_function_take_little_time(package, tmp_path):
    """A hundred kilobytes of hooks could otherwise show gigabytes of sources."""
    identity = ("f", "f", "mylib")
    text = "def f(): pass\n" * 40_000
    function = Called(rebuild.make_function, (text, 1), identity, None, ())
    partials = [Called(functools.partial, function) for _ in range(5_000)]
    rows = [(f"{n}/forward/0", "forward", None, {}, (), each) for n, each in enumerate(partials)]
    _, pickle_record = hook_records(RECORD)
    with open_archive(package) as archive, ArchiveWriter(tmp_path / "x.modpack") as writer:
        for name in archive.names():
            if "manifest" not in name and name not in (RECORD, pickle_record):
                writer.write(name, bytes(archive.read(name)))
        writer.write(RECORD, pickle.dumps(None))
        writer.write(pickle_record, pickle.dumps({"hooks": rows}))
        writer.commit()
    before = time.process_time()
    found = pickled(tmp_path / "x.modpack")
    assert time.process_time() - before < 5
    sources = {each.source for each in found.values()}
    assert len(found) == 5_000 and {each.name for each in found.values()} == {"partial of mylib.f"}
    assert sum(map(len, map(str, sources))) < 10_000_000
    assert any("More sources are omitted" in str(each) for each in sources)
