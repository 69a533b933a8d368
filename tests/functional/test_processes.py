"""Objects of a package in processes that have not loaded the package."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import modpack
from modpack.errors import ReopenError

SHOP = {
    "shop/__init__.py": "",
    "shop/helper.py": "VALUE = 'package'",
    "shop/things.py": """
        import enum
        import shop.helper
        import gone

        class Thing:
            def __init__(self, n):
                self.n = n
            def value(self):
                return self.n, shop.helper.VALUE
            def late(self):
                import shop.helper as helper
                return helper.VALUE

        class Marked(gone.Base):
            pass

        class Color(enum.Enum):
            RED = 1

        class Problem(Exception):
            def __init__(self, code):
                super().__init__(code)

        def double(thing):
            return Thing(thing.n * 2)

        def fail(thing):
            raise Problem(thing.n)

        def hooks(log):
            def add(value):
                import shop.helper
                log.append(value)
                return shop.helper.VALUE
            def count():
                return len(log)
            return add, count, lambda value: value * len(log)
    """,
}
"""A library, whose module ``gone`` is mocked."""
HOST = {"shop/__init__.py": "", "shop/helper.py": "VALUE = 'host'", "gone.py": ""}
"""What other processes would import by the real names."""
STDLIB = "abc", "collections", "enum", "functools", "inspect", "operator", "sys", "types", "typing"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about code from anyone
    POLICY = modpack.TrustPolicy(allow_code=True, allow_stdlib=STDLIB, verify="full")


def write_package(path: Path, number: int = 0) -> Path:
    with modpack.PackageExporter(path) as exporter:
        exporter.mock("gone.**")
        for name, text in SHOP.items():
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            source = textwrap.dedent(text) + f"\nNUMBER = {number}\n"
            exporter.save_source_string(module, source, name.endswith("__init__.py"))
        exporter.save_pickle("data", "tensor.pkl", torch.ones(1000))
    return path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_package(tmp_path / "shop.modpack")


@pytest.fixture
def importer(package):
    with modpack.PackageImporter(package) as opened:
        yield opened


@pytest.fixture
def receive(tmp_path, clean_python):
    """Run code in another process, in which ``received`` is the unpickled object.

    Returns what the code printed, or the error of unpickling if ``fails``.
    """

    def run(obj: object, code: str, *, fails: bool = False, dumps=pickle.dumps) -> str:
        sent, host = tmp_path / "sent.pkl", tmp_path / "host"
        sent.write_bytes(obj if isinstance(obj, bytes) else dumps(obj))
        for name, text in HOST.items():
            (host / name).parent.mkdir(parents=True, exist_ok=True)
            (host / name).write_text(text)
        start = f"import pickle, sys\nsys.path.insert(0, {str(host)!r})\nimport modpack\n"
        loads = f"pickle.loads(Path({str(sent)!r}).read_bytes())"
        if fails:
            code = f"try:\n    {loads}\nexcept modpack.ModpackError as e:\n    print(repr(e))"
        else:
            code = code if "LOADS" in code else f"received = LOADS\n{textwrap.dedent(code)}"
        return clean_python(start + textwrap.dedent(code).replace("LOADS", loads)).stdout

    return run


def things(importer):
    return importer.import_module("shop.things")


def test_object_unpickles_in_process_without_package(importer, receive):
    module = things(importer)
    sent = [module.Thing(3), module.Thing, module.double, module.Color.RED, module.Problem(7)]
    code = """
    thing, kind, double, color, problem = received
    print(type(thing) is kind, double(thing).value(), thing.late(), color.name, problem.args)
    print(type(thing).__module__, modpack.importer_of(thing).filename)
    """
    first = f"True (6, 'package') package RED (7,)\n{module.__name__} {importer.filename}\n"
    assert receive(sent, code) == first


def test_types_are_identical_on_return(importer, receive):
    module = things(importer)
    code = "print(pickle.dumps([received, type(received).__module__, received.n]).hex())"
    back, _, _ = pickle.loads(bytes.fromhex(receive(module.Thing(3), code)))
    assert type(back) is module.Thing


def test_mock_raises_as_in_first_process(importer, receive):
    with pytest.raises(NotImplementedError) as first:
        things(importer).Marked()
    code = "try: received()\nexcept NotImplementedError as e: print(e)"
    assert receive(things(importer).Marked, code).strip() == str(first.value)


def test_versions_and_loads_stay_apart(tmp_path, importer, receive):
    other = write_package(tmp_path / "other.modpack", 1)
    with modpack.PackageImporter(other) as second, modpack.PackageImporter(other) as third:
        sent = [things(each).Thing(1) for each in (importer, second, third)]
        code = """
        kinds = [type(each) for each in received]
        print(*(sys.modules[kind.__module__].NUMBER for kind in kinds), len(set(kinds)))
        print(*(kind.__module__ for kind in kinds))
        """
        names = " ".join(type(each).__module__ for each in sent)
        assert receive(sent, code) == f"0 1 1 3\n{names}\n"


ADOPTIONS = {
    "after": "received = LOADS\nimporter = modpack.PackageImporter({file!r})",
    "before": "importer = modpack.PackageImporter({file!r})\nreceived = LOADS",
    "at once": """
        import threading
        done = []
        threads = [
            threading.Thread(target=lambda: done.append(modpack.PackageImporter({file!r}))),
            threading.Thread(target=lambda: done.append(LOADS)),
        ]
        for each in threads: each.start()
        for each in threads: each.join()
        (importer, received) = sorted(done, key=lambda each: hasattr(each, "n"))
    """,
}


@pytest.mark.parametrize("order", ADOPTIONS)
def test_load_in_other_process_shares_types(package, importer, receive, order):
    code = textwrap.dedent(ADOPTIONS[order]).format(file=str(package)) + textwrap.dedent("""
    module = importer.import_module("shop.things")
    print(type(received) is module.Thing, modpack.importer_of(received) is importer)
    print(module.__modpack__ is importer, len([n for n in sys.modules if n.endswith(".things")]))
    importer.close()
    print(type(received).__module__ in sys.modules)
    """)
    assert receive(things(importer).Thing(1), code) == "True True\nTrue 1\nFalse\n"


def test_second_load_in_other_process_has_own_types(package, importer, receive):
    code = f"""
    importers = [modpack.PackageImporter({str(package)!r}) for _ in range(2)]
    print([type(received) is each.import_module("shop.things").Thing for each in importers])
    """
    assert receive(things(importer).Thing(1), code) == "[True, False]\n"


def test_policy_applies_in_other_process(package, receive):
    with modpack.PackageImporter(package, policy=POLICY) as it:
        code = """
        importer = modpack.importer_of(received)
        print(importer._policy == policy, importer._verify)
        try: importer.import_module("json")
        except modpack.TrustError as e: print("json" in str(e))
        """
        start = f"from modpack import TrustPolicy\npolicy = {POLICY!r}\n"
        sent = things(it).Thing(1)
        assert receive(sent, f"received = LOADS\n{start}{textwrap.dedent(code)}") == (
            "True full\nTrue\n"
        )


def test_load_without_policy_does_not_replace_policy(package, importer, receive):
    with modpack.PackageImporter(package, policy=POLICY) as restricted:
        sent = [things(each).Thing(1) for each in (importer, restricted)]
        code = "print([modpack.importer_of(each)._policy is None for each in received])"
        assert receive(sent, code) == "[True, False]\n"


def test_options_of_load_apply_in_other_process(package, receive):
    options = {"verify": "full", "on_mismatch": "error", "lazy": False}
    with modpack.PackageImporter(package, **options) as importer:
        sent = pickle.dumps(things(importer).Thing(1))
    code = """
    import modpack.importer
    modpack.importer.PackageImporter._defer_imports = lambda importer, is_lazy: print(is_lazy)
    modpack.importer.check_environment = lambda *arguments: print(arguments[3])
    LOADS
    """
    assert receive(sent, code) == "error\nFalse\n"
    data = bytearray(package.read_bytes())
    place = data.index(torch.ones(1000).numpy().tobytes())
    data[place] ^= 1
    package.write_bytes(data)
    assert "the SHA-256 does not match the manifest" in receive(sent, "", fails=True)


def test_function_as_option_is_not_forgotten(package, importer, receive):
    with modpack.PackageImporter(package, module_allowed=lambda name: True) as filtered:
        told = receive(things(filtered).Thing(1), "", fails=True)
    assert "module_allowed" in told and "TrustPolicy" in told


def test_package_from_buffer_names_remedy(package, receive):
    write_package(package, 3)
    with package.open("rb") as file, modpack.PackageImporter(file) as importer:
        told = receive(things(importer).Thing(1), "", fails=True)
        assert "no record" in told and "by its path" in told and "modpack.save" in told


def removed(package):
    package.unlink()


def moved(package):
    package.rename(package.with_name("elsewhere.modpack"))


def replaced(package):
    package.unlink()
    write_package(package, 2)


def truncated(package):
    package.write_bytes(package.read_bytes()[:-100])


def damaged(package):
    data = bytearray(package.read_bytes())
    data[data.index(b"VALUE = ")] ^= 1
    package.write_bytes(data)


@pytest.mark.parametrize("change", [removed, moved, replaced, truncated, damaged])
def test_changed_file_is_refused_before_code_runs(package, importer, receive, change):
    sent, digest = (
        pickle.dumps(things(importer).Thing(1)),
        importer.id()[len("modpack.packages.p") :],
    )
    importer.close()
    change(package)
    code = """
    try: LOADS
    except modpack.errors.ReopenError as e: print(e.digest, e.path, pickle.loads(pickle.dumps(e)))
    print([name for name in sys.modules if "shop" in name])
    """
    told = receive(sent, code)
    assert told.startswith(f"{digest} {package} {package}: cannot reopen the package with digest")
    assert told.endswith(".\n[]\n")  # the remedy is a sentence


def record_of(importer) -> Path:
    name = importer.id().rpartition(".")[2]
    return Path(os.environ["MODPACK_CACHE_DIR"]) / "packages" / "v1" / f"{name}.json"


def test_record_is_private_and_removed_with_package(package, importer):
    record = record_of(importer)
    assert record.stat().st_mode & 0o777 == 0o600
    assert json.loads(record.read_bytes())["path"] == str(package)
    package.unlink()
    from modpack.loading.cache_maintenance import clear

    clear(Path(os.environ["MODPACK_CACHE_DIR"]))
    assert not record.exists()


def forge(**fields):
    def change(record):
        record.write_text(json.dumps({**json.loads(record.read_bytes()), **fields}))

    return change


def link(record):
    record.rename(record.with_suffix(".aside"))
    record.symlink_to(record.with_suffix(".aside"))


FORGED = {
    "world-writable": lambda record: record.chmod(0o666),
    "symlink": link,
    "digest": forge(digest="0" * 64),
    "policy": forge(policy={"allow_code": True}),
    "text": lambda record: record.write_text("{}"),
}


@pytest.mark.parametrize("how", FORGED)
def test_forged_record_is_refused(importer, receive, how):
    sent = pickle.dumps(things(importer).Thing(1))
    FORGED[how](record_of(importer))
    told = receive(sent, "", fails=True)
    assert "ReopenError" in told and "cannot reopen the package with digest" in told
    assert "load the package" in told


def test_record_of_another_user_is_refused(importer, monkeypatch):
    from modpack.loading import package_record

    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(OSError, match="belongs to another user"):
        package_record.read_record(importer.id())


def test_closed_importer_is_not_reopened(package, importer):
    sent = pickle.dumps(things(importer).Thing(1))
    thing = things(importer).Thing(1)
    importer.close()
    with pytest.raises(ReopenError, match="closed in this process"):
        pickle.loads(sent)
    with pytest.raises((ReopenError, pickle.PicklingError)):
        pickle.dumps(thing)
    with modpack.PackageImporter(package) as again:
        assert type(pickle.loads(sent)) is things(again).Thing


def test_process_namespace_keeps_real_names(package):
    with modpack.PackageImporter(package, namespace="process") as importer:
        assert pickle.dumps(things(importer).Thing(1)).find(b"modpack.packages") == -1


NAMING = (
    "import {other}.shop.helper",
    "from {other}.shop import helper",
    "from {other} import shop",
    "from modpack import packages",
    "import modpack.packages",
    "import importlib; importlib.import_module('{other}.shop')",
    "from ...{short}.shop import helper",
    "from .... import packages",
)


@pytest.mark.parametrize("statement", NAMING)
def test_packaged_code_cannot_name_another_package(importer, packaged, statement):
    things(importer)
    importlib.import_module("modpack.packages")
    own = statement.format(other=importer.id(), short=importer.id().rpartition(".")[2])
    other = packaged(
        {"spy/__init__.py": f"def spy():\n    {own}\n"}, extern=["modpack.**"], dependencies=False
    )
    with pytest.raises(ImportError):
        other.import_module("spy").spy()


def test_pickle_cannot_name_another_package(importer, tmp_path):
    path = tmp_path / "names.modpack"
    with modpack.PackageExporter(path) as exporter:
        data = pickle.dumps(things(importer).Thing(1))
        exporter.save_binary("data", "thing.pkl", data)
    refused = pytest.raises(modpack.UnpicklingError, match="other loaded packages")
    with modpack.PackageImporter(path) as reader, refused:
        reader.load_pickle("data", "thing.pkl")


@pytest.mark.parametrize("statement", ["import {other}.shop", "from {other}.shop import helper"])
def test_export_of_code_that_names_package_is_an_error(importer, tmp_path, project, statement):
    things(importer)
    own = statement.format(other=importer.id())
    project({"spy.py": f"{own}\nclass Spy: pass"})
    refused = pytest.raises(modpack.PackagingError, match="loaded package")
    with refused, modpack.PackageExporter(tmp_path / "spy.modpack") as exporter:
        exporter.intern("spy")
        exporter.save_pickle("spy", "spy.pkl", importlib.import_module("spy").Spy())


def test_policy_does_not_allow_another_package():
    assert modpack.TrustPolicy(allow_externs=()).allows_extern("modpack.hooks")
    assert not modpack.TrustPolicy(allow_externs=()).allows_extern("modpack.packages.p0.shop")


def test_functions_without_name_are_sent_by_source(importer, receive):
    log = [1]
    add, count, scale = things(importer).hooks(log)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(add)
    code = """
    add, count, scale, log = received
    print(add(5), count(), scale(10), log)
    print(modpack.pickle_by_source.loads(modpack.pickle_by_source.dumps(add))(6))
    """
    assert receive([add, count, scale, log], code, dumps=modpack.pickle_by_source.dumps) == (
        "package 2 20 [1, 5]\npackage\n"
    )
    assert log == [1]


def test_hook_of_script_is_sent_with_its_package(tmp_path, receive, clean_python):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mylib.py").write_text("VALUE = 'package'")
    file = tmp_path / "hooked.modpack"
    code = """
    import sys
    sys.path.insert(0, str(folder))
    import torch, modpack
    model = torch.nn.Linear(1, 1)
    calls = []
    def hook(module, inputs, output):
        import mylib
        calls.append(mylib.VALUE)
        module.seen = calls
    model.register_forward_hook(hook)
    modpack.save(model, file, intern="mylib", extern="torch.**")
    """
    clean_python(code, folder=tmp_path / "lib", file=file)
    model = modpack.load(file)
    code = """
    import torch
    received(torch.ones(1))
    print(received.seen)
    """
    dumps = modpack.pickle_by_source.dumps
    assert receive(model, code, dumps=dumps) == "['package']\n"
    with torch.no_grad():
        torch.save(model, tmp_path / "model.pt", pickle_module=modpack.pickle_by_source)
    code = f"""
    import torch
    model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
    model(torch.ones(1))
    print(model.seen)
    """
    assert receive(b"N.", code) == "['package']\n"


SCRIPT_VALUES = """
import torch, modpack
limits = {"low": 3}
class Net(torch.nn.Module):
    def forward(self, x):
        return x + limits["low"]
modpack.save(Net(), file, extern="torch.**")
"""


def test_values_of_script_are_there_in_other_process(tmp_path, receive, clean_python):
    file = tmp_path / "script.modpack"
    clean_python(SCRIPT_VALUES, file=file)
    assert receive(modpack.load(file), "print(received(1))") == "4\n"


POOLS = """
import json, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

def value(thing):
    return thing.value()

def same(thing):
    return thing

def call(function, *arguments):
    return function(*arguments), function

if __name__ == "__main__":
    import modpack, modpack.pickle_by_source
    from joblib import Parallel, delayed
    importer = modpack.PackageImporter(sys.argv[1])
    things = importer.import_module("shop.things")
    add, _, scale = things.hooks([2])
    modpack.pickle_by_source.register()
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            print(method, *pool.map(value, [things.Thing(n) for n in range(3)]))
            print(type(pool.apply(same, (things.Thing(1),))) is things.Thing)
            print(type(pool.apply(things.double, (things.Thing(1),))) is things.Thing)
            try:
                pool.apply(things.fail, (things.Thing(4),))
            except things.Problem as problem:
                print("raised", problem.args)
            result, function = pool.apply(call, (add, 1))
            print(result, function(1), pool.apply(scale, (10,)))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print("executor", pool.submit(value, things.Thing(5)).result())
        try:
            pool.submit(things.fail, things.Thing(6)).result()
        except things.Problem as problem:
            print("raised", problem.args)
    results = Parallel(n_jobs=2)(delayed(same)(things.Thing(n)) for n in range(2))
    print("loky", [type(each) is things.Thing for each in results])
    calls = [delayed(call)(add, 1), delayed(value)(things.Thing(1))]
    result, function = Parallel(n_jobs=2)(calls)[0]
    print(result, function(1))
"""


def run_script(text: str, tmp_path: Path, *arguments: object, **environment: str) -> str:
    host = tmp_path / "project"
    for name, source in {**HOST, "script.py": text}.items():
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).write_text(source)
    done = subprocess.run(
        [sys.executable, str(host / "script.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(modpack.__file__).parents[1]), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_process_pools_send_objects(package, tmp_path):
    of_pool = "{} (0, 'package') (1, 'package') (2, 'package')\nTrue\nTrue\nraised (4,)\n"
    of_pool += "package package 10\n"
    assert run_script(POOLS, tmp_path, package) == (
        of_pool.format("spawn")
        + of_pool.format("forkserver")
        + "executor (5, 'package')\nraised (6,)\nloky [True, True]\npackage package\n"
    )


TORCH = """
import sys

def check(rank, model, file):
    import torch
    with open(file, "w") as out:
        print(type(model).__module__, model(torch.ones(1)).item(), file=out)

if __name__ == "__main__":
    import torch, modpack
    model, file = modpack.load(sys.argv[1]), sys.argv[2]
    torch.multiprocessing.spawn(check, (model, file), nprocs=1)
    name, result = open(file).read().split()
    print(name == type(model).__module__, result)
    data = model.dataset()
    loader = torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context="spawn")
    print([batch["x"].item() for batch in loader])
"""
MODEL = {
    "netlib.py": """
        import torch
        def doubled(module, inputs, output):
            return output * 2
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, n):
                return {"x": n}
        class Net(torch.nn.Module):
            def forward(self, x):
                return x + 1
            def dataset(self):
                return Data()
    """
}


def test_torch_sends_models_and_datasets(project, tmp_path, receive):
    project(MODEL)
    netlib = importlib.import_module("netlib")
    net = netlib.Net()
    net.register_forward_hook(netlib.doubled)
    file = tmp_path / "net.modpack"
    modpack.save(net, file, intern="netlib", extern="torch.**")
    assert run_script(TORCH, tmp_path, file, tmp_path / "out") == "True 4.0\n[0, 1]\n"
    torch.save(modpack.load(file), tmp_path / "net.pt")
    code = f"""
    import torch
    print(torch.load({str(tmp_path / "net.pt")!r}, weights_only=False)(1))
    """
    assert receive(b"N.", code) == "4\n"


MISSING = """
import multiprocessing, os, sys
kept = []

def use(thing=None):
    return (thing or kept[0]).n

def same(thing):
    return thing

def keep(thing):
    thing.value()
    kept.append(thing)

if __name__ == "__main__":
    import modpack
    importer = modpack.PackageImporter(sys.argv[1])
    things = importer.import_module("shop.things")
    thing = things.Thing(1)
    os.unlink(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    def show(pool, *call):
        try:
            print(pool.apply_async(*call).get(60))
        except Exception as failure:
            print(type(failure).__name__, "does not exist" in str(failure))
    with context.Pool(1) as pool:
        show(pool, use, (thing,))
        show(pool, things.double, (thing,))
        show(pool, thing.value)
        show(pool, same, (thing,))
        show(pool, len, ([1],))
    with context.Pool(1, keep, (thing,)) as pool:
        show(pool, use)
"""


def test_pool_reports_package_that_cannot_be_reopened(package, tmp_path):
    reported = "ReopenError True\n"
    encoding = "MaybeEncodingError True\n"
    assert run_script(MISSING, tmp_path, package) == 3 * reported + encoding + "1\n" + reported


TUNE = """
import functools, torch, modpack
k = 3
model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.ones_(model.weight)
model.register_forward_hook(lambda m, a, o: o + k)
model.weight.register_hook(lambda g: g * 2)
def scale(factor, parameter): parameter.grad.mul_(factor)
model.weight.register_post_accumulate_grad_hook(functools.partial(scale, 10))
modpack.save(model, "m.modpack")
"""
RUNS = """
import torch

def run(model):
    model.weight.grad = None
    output = model(torch.ones(2))
    output.backward()
    return output.item(), model.weight.grad.tolist()

def call(function):
    module = __import__("sys").modules[function.__module__]
    return function(None, None, 1), hasattr(module, "__modpack__")
"""
SPAWNED = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor

import modpack
from modpack import pickle_by_source
from runs import call, run

if __name__ == "__main__":
    pickle_by_source.register()
    model = modpack.load("m.modpack")
    hook = next(iter(model._forward_hooks.values()))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        print(pool.submit(call, hook).result(60), pool.submit(run, model).result(60))
    with spawn.Pool(1) as pool:
        print(pool.apply_async(call, (hook,)).get(60), pool.apply_async(run, (model,)).get(60))
    again = pickle_by_source.loads(pickle_by_source.dumps(model))
    print(call(hook), run(again))
    again.weight._backward_hooks.clear()
    print(run(model)[1] != run(again)[1])
"""


def test_script_lambdas_and_tensor_hooks_work_in_other_processes(tmp_path):
    for name, text in {"tune.py": TUNE, "runs.py": RUNS, "pools.py": SPAWNED}.items():
        (tmp_path / name).write_text(text)
    for script in "tune.py", "pools.py":
        command = [sys.executable, "-W", "error", script]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "(4, True) (5.0, [[20.0, 20.0]])\n" * 3 + "True\n"
