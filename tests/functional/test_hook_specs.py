"""Hook specs of real packages, and their schema."""

import copy
import json
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

import modpack
from modpack.core.hookspec import (
    HOOK_KINDS,
    HOOK_SPEC_VERSION,
    Way,
    specs_from_json,
    specs_to_json,
)

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
HOOK_FIELDS = ["name", "kind", "target", "aliases", "position", "flags", "callable"]
CALLABLE_FIELDS = ["by", "name", "source", "location", "state"]

WITHOUT_TORCH = """
    import sys
    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("torch", "mylib"):
                raise ModuleNotFoundError(f"no module named {name}", name=name)
    sys.meta_path.insert(0, Blocked())
    import modpack
    importer = modpack.PackageImporter(path)
    for spec in importer.hook_specs("net", "model.pkl"):
        print(spec.name, spec.callable.by, spec.callable.name)
        print(spec)
    assert not any(name.partition(".")[0] in ("torch", "mylib") for name in sys.modules)
    """

MYLIB = """
    import functools
    import torch
    def imported(module, args, output): return output
    def limits(high):
        low = -high
        def clamp(grad):
            # keeps gradients small
            return grad.clamp(low, high)
        return clamp
    def helper(): return 1
    class Meter:
        def __init__(self): self.seen = []
        def __call__(self, module, args): self.seen.append(1)
        def ended(self, module, args, output): self.seen.append(2)
    def make():
        @torch.no_grad()
        def quiet(module, args, output): return None
        return quiet
    def text():
        def long(module, args, output):
            return '''a
            b'''
        return long
    """


@pytest.fixture
def model(project):
    project({"mylib.py": MYLIB})
    import functools

    import mylib

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    meter = mylib.Meter()
    model[0].register_forward_hook(mylib.imported)
    model[0].weight.register_hook(mylib.limits(1.0))
    model[0].register_forward_pre_hook(meter)
    model[1].register_forward_hook(meter.ended)
    model[1].register_forward_hook(functools.partial(mylib.text(), extra=1), with_kwargs=True)
    model[1].register_full_backward_hook(mylib.make())
    return model


@pytest.fixture
def package(model, tmp_path):
    path = tmp_path / "net.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.intern("mylib")
        exporter.save_model("net", "model.pkl", model)
    return path


def test_specs_are_readable_without_torch_and_library(package, clean_python):
    printed = clean_python(WITHOUT_TORCH, path=package).stdout
    assert "0/forward/0 reference mylib.imported\n" in printed
    assert "0.weight/tensor/0 source mylib.limits.<locals>.clamp\n" in printed
    assert "        # keeps gradients small\n" in printed


def test_specs_contain_callable_and_state(package):
    specs = {s.name: s for s in modpack.PackageImporter(package).hook_specs("net", "model.pkl")}
    clamp = specs["0.weight/tensor/0"].callable
    assert clamp.source == (
        "def clamp(grad):\n    # keeps gradients small\n    return grad.clamp(low, high)"
    )
    assert (clamp.location, clamp.state) == ("mylib:7", ("high", "low"))
    meter = specs["0/forward_pre/0"].callable
    assert (meter.by, meter.name, meter.state) == ("object", "instance of mylib.Meter", ("seen",))
    ended = specs["1/forward/0"].callable
    assert (ended.by, ended.name, ended.state) == ("object", "mylib.Meter.ended (bound)", ("self",))
    assert specs["0/forward/0"].callable.source is None


def test_specs_show_source_behind_partials_and_decorators(package):
    specs = {s.name: s for s in modpack.PackageImporter(package).hook_specs("net", "model.pkl")}
    partial = specs["1/forward/1"].callable
    assert partial.name == "partial of mylib.text.<locals>.long"
    assert "def long(module, args, output):" in partial.source
    quiet = specs["1/full_backward/0"].callable
    assert "def quiet(module, args, output): return None" in quiet.source


DECORATED = {
    "torchs": ("hooked.torchs.<locals>.quiet", "def quiet"),
    "of_another_file": ("hooked.of_another_file.<locals>.<lambda>", "lambda *args: None"),
    "dispatched": ("hooked.dispatched.<locals>.chosen", "def chosen"),
    "managed": ("hooked.managed.<locals>.opened", "def opened"),
    "cached": ("hooked.cached.<locals>.once", "def once"),
}


def test_spec_of_decorated_hook_locates_user_function(project, tmp_path):
    project(
        {
            "wrapping.py": """
            import functools
            def logged(function):
                @functools.wraps(function)
                def inner(*args, **kwargs):
                    return function(*args, **kwargs)
                return inner
            """,
            "hooked.py": """
            import contextlib, functools, torch
            from wrapping import logged



            def torchs():
                @torch.no_grad()
                def quiet(*args): return None
                return quiet
            def of_another_file():
                return logged(lambda *args: None)
            def dispatched():
                @functools.singledispatch
                def chosen(*args): return None
                return chosen
            def managed():
                @contextlib.contextmanager
                def opened(*args): yield
                return opened
            def cached():
                @functools.lru_cache
                def once(*args): return None
                return once
            """,
        }
    )
    import hooked

    model = torch.nn.Identity()
    for name in DECORATED:
        model.register_forward_hook(getattr(hooked, name)())
    modpack.save(model, tmp_path / "one.modpack")
    first = modpack.PackageImporter(tmp_path / "one.modpack")
    loaded = first.load_model(*first.main_resource())
    modpack.save(loaded, tmp_path / "two.modpack", importer=[first, modpack.sys_importer])
    lines = Path(hooked.__file__).read_text().splitlines()
    for package in ("one", "two"):
        importer = modpack.PackageImporter(tmp_path / f"{package}.modpack")
        specs = importer.hook_specs(*importer.main_resource())
        for (name, text), spec in zip(DECORATED.values(), specs, strict=True):
            module, _, line = spec.callable.location.partition(":")
            assert (spec.callable.name, module) == (name, "hooked")
            assert text in lines[int(line) - 1] and text in spec.callable.source


def test_shown_source_keeps_strings(package):
    """Removing the indentation would change the string in the function."""
    specs = {s.name: s for s in modpack.PackageImporter(package).hook_specs("net", "model.pkl")}
    assert "'''a\n        b'''" in specs["1/forward/1"].callable.source


def test_specs_show_functions_that_hooks_of_main_call(tmp_path, clean_python):
    printed = clean_python(
        """
        import modpack, torch
        LIMIT = 1
        def helper(output): return output.clamp(max=LIMIT)
        def hook(module, args, output): return helper(output)
        model = torch.nn.Linear(1, 1)
        model.register_forward_hook(hook)
        modpack.save(model, path)
        importer = modpack.PackageImporter(path)
        print(importer.hook_specs(*importer.main_resource())[0].callable.source)
        """,
        path=tmp_path / "m.modpack",
    ).stdout
    assert "def hook(module, args, output)" in printed
    assert "def helper(output): return output.clamp(max=LIMIT)" in printed


def rewritten(package, target, change):
    """Return the package with changed specs, as another writer might write them."""
    from modpack.archive.reader import open_archive
    from modpack.writing.writer import ArchiveWriter

    record = ".data/modpack/hooks/net/model.pkl.json"
    archive = open_archive(package)
    with ArchiveWriter(target) as writer:
        for name in archive.names():
            content = archive.read(name)
            if name == record:
                specs = json.loads(content)
                change(specs)
                content = json.dumps(specs).encode()
            if "manifest" not in name:
                writer.write(name, bytes(content))
        writer.commit()
    return modpack.PackageImporter(target)


CHANGES = {
    "version 9 are not supported": lambda specs: specs.update(version=9),
    "unknown kinds of hooks: telepathy": lambda specs: specs["hooks"][0].update(kind="telepathy"),
    "hook 0 has no 'flags'": lambda specs: specs["hooks"][0].pop("flags"),
}


@pytest.mark.parametrize("said", CHANGES)
def test_invalid_specs_raise_error(package, tmp_path, said):
    importer = rewritten(package, tmp_path / "other.modpack", CHANGES[said])
    with pytest.raises(modpack.ModpackError, match=said):
        importer.hook_specs("net", "model.pkl")
    with pytest.raises(modpack.ModpackError, match=said):
        importer.load_model("net", "model.pkl")
    with pytest.raises(modpack.ModpackError, match=said):
        importer.load_pickle("net", "model.pkl")


def test_hook_without_source_raises_with_location_and_hint(model, tmp_path):
    namespace = {}
    exec("def make(x):\n    return lambda *args: x", namespace)
    model[1].weight.register_hook(namespace["make"](1))
    with pytest.raises(modpack.PicklingError) as caught:
        modpack.save(model, tmp_path / "m.modpack")
    said = str(caught.value)
    assert "hook '1.weight/tensor/0'" in said
    assert "no source for '<string>'" in said
    assert "Define it with def at the top level of a module." in said
    assert not (tmp_path / "m.modpack").exists()
    with modpack.PackageExporter(tmp_path / "m.modpack") as exporter:  # the other fix
        exporter.intern("mylib")
        exporter.save_model("net", "model.pkl", model, hooks=lambda s: "1.weight" not in s.target)


def test_hook_with_changed_file_raises_with_location(model, tmp_path):
    import mylib

    file = Path(sys.modules["mylib"].__file__)
    model[1].register_state_dict_pre_hook(mylib.limits(2.0))
    file.write_text(file.read_text().replace("grad.clamp(low, high)", "grad"))
    with pytest.raises(modpack.PicklingError) as caught:
        modpack.save(model, tmp_path / "m.modpack")
    said = str(caught.value)
    assert "mylib.py:7" in said and "changed since import" in said
    assert "hook '0.weight/tensor/0'" in said or "hook '1/state_dict_pre/0'" in said


@pytest.fixture(scope="module")
def schema():
    return json.loads((REFERENCE / "hook-spec.schema.json").read_text())


TYPES = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
}


def problems(value, rule, schema, place="record"):
    """Return violations of a schema, as far as this schema uses JSON Schema."""
    known = {"$ref", "type", "required", "properties", "additionalProperties", "items", "enum"}
    known |= {"const", "minimum", "minLength", "$schema", "$defs", "title"}
    assert set(rule) <= known, f"the validator does not know {set(rule) - known}"
    if "$ref" in rule:
        rule = schema["$defs"][rule["$ref"].rpartition("/")[2]]
    allowed = rule.get("type", TYPES)
    allowed = [allowed] if isinstance(allowed, str) else allowed
    if not any(TYPES[name](value) for name in allowed):
        return [f"{place}: {value!r} is not {allowed}"]
    found = []
    if "const" in rule and (value != rule["const"] or type(value) is not type(rule["const"])):
        found.append(f"{place}: {value!r} is not {rule['const']!r}")
    if "enum" in rule and value not in rule["enum"]:
        found.append(f"{place}: {value!r} is not one of them")
    if "minimum" in rule and value < rule["minimum"]:
        found.append(f"{place}: {value!r} is too small")
    if "minLength" in rule and len(value) < rule["minLength"]:
        found.append(f"{place}: {value!r} is too short")
    if isinstance(value, list) and "items" in rule:
        for index, each in enumerate(value):
            found += problems(each, rule["items"], schema, f"{place}[{index}]")
    if isinstance(value, dict):
        found += [f"{place}: no {name!r}" for name in rule.get("required", []) if name not in value]
        rules, others = rule.get("properties", {}), rule.get("additionalProperties", {})
        for name, each in value.items():
            found += problems(each, rules.get(name, others), schema, f"{place}.{name}")
    return found


@pytest.fixture
def record(package):
    """The record of hook specs of a real package."""
    importer = modpack.PackageImporter(package)
    return specs_to_json(importer.hook_specs("net", "model.pkl"))


def test_written_specs_follow_schema(record, schema):
    assert problems(record, schema, schema) == []


def test_schema_describes_every_written_field(record, schema):
    hook = record["hooks"][0]
    assert set(schema["properties"]) == set(record)
    assert set(schema["$defs"]["hook"]["properties"]) == set(hook) == set(HOOK_FIELDS)
    assert set(schema["$defs"]["callable"]["properties"]) == set(hook["callable"])
    assert set(hook["callable"]) == set(CALLABLE_FIELDS)


def test_schema_lists_kinds_ways_and_version(schema):
    assert schema["$defs"]["hook"]["properties"]["kind"]["enum"] == sorted(HOOK_KINDS)
    assert schema["$defs"]["callable"]["properties"]["by"]["enum"] == list(get_args(Way))
    assert schema["properties"]["version"]["const"] == HOOK_SPEC_VERSION


def test_schema_rejects_what_reader_rejects(record, schema):
    changes = [("kind", "telepathy"), ("position", -1), ("target", "x"), ("flags", {"a": 1})]
    for field, value in changes:
        wrong = copy.deepcopy(record)
        wrong["hooks"][0][field] = value
        assert problems(wrong, schema, schema)
        with pytest.raises(modpack.ModpackError):
            specs_from_json(wrong)


def test_reference_page_names_every_kind_and_field():
    page = (REFERENCE / "hook-spec.md").read_text()
    missing = [
        each for each in (*HOOK_KINDS, *HOOK_FIELDS, *CALLABLE_FIELDS) if f"`{each}`" not in page
    ]
    assert missing == []


def test_reference_page_example_is_valid_record():
    page = (REFERENCE / "hook-spec.md").read_text()
    example = page.partition("```json\n")[2].partition("```")[0]
    (spec,) = specs_from_json(json.loads(example))
    assert spec.flags == {"with_kwargs": True}
