from __future__ import annotations

import builtins
import importlib
import pkgutil
import sys
import types
import warnings

import pytest

from modpack.core.knownnames import (
    is_known,
    is_known_module,
    is_standard,
    may_be_called,
    special_attribute,
)

HARMLESS = [
    ("builtins", "dict"),
    ("builtins", "ValueError"),
    ("collections", "OrderedDict"),
    ("datetime", "timedelta"),
    ("math", "sqrt"),
    ("torch", "float32"),
    ("torch", "relu"),
    ("torch._C", "TensorBase._make_subclass"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch.nn.functional", "gelu"),
    ("torch.nn.modules.linear", "Linear"),
    ("torch.nn.modules.linear", "Linear.forward"),
    ("torch.optim.adam", "Adam"),
    ("modpack.pickling.functions", "make_function"),
]
HARMFUL = [
    ("builtins", "eval"),
    ("os", "system"),
    ("torch", "load"),
    ("torch", "os"),
    ("torch", "from_file"),
    ("torch._C", "TensorBase._make_wrapper_subclass"),
    ("torch._C", "TensorBase._make_dtensor"),
    ("torch", "Tensor._make_subclass"),
    ("torch.nn.modules.linear", "F"),
    ("torch.nn.modules.linear", "F.importlib"),
    ("torch.nn.functional", "importlib"),
    ("torch.nn.modules.linear", "Linear.forward.__globals__"),
    ("torch.nn.modules.linear", "Linear.__subclasses__"),
    ("modpack.pickling.remade", "sys"),
    ("", "dict"),
]


@pytest.mark.parametrize(("module", "name"), HARMLESS)
def test_what_objects_are_made_of_is_known(module, name):
    assert is_known(module, name)


@pytest.mark.parametrize(("module", "name"), HARMFUL)
def test_what_does_harm_or_leads_to_it_is_not_known(module, name):
    assert not is_known(module, name)
    assert not may_be_called(module, name)


def test_what_is_only_held_may_not_be_called():
    assert is_known("builtins", "print") and not may_be_called("builtins", "print")
    assert is_known("torch", "relu") and not may_be_called("torch", "relu")
    assert may_be_called("builtins", "KeyError")


def test_modules_are_known_that_do_nothing_when_imported():
    assert is_known_module("math") and is_known_module("os.path")
    assert is_known_module("torch.nn.functional") and is_known("torch", "")
    unknown = ("antigravity", "this", "numpy", "torch.utils.bottleneck.__main__", "torch..nn", "")
    assert not any(map(is_known_module, unknown))


def test_the_standard_library_and_torch_are_no_third_parties():
    assert is_standard("json.decoder") and is_standard("torch.nn") and is_standard("modpack")
    assert not is_standard("numpy") and not is_standard("jsonlike")


def test_special_attributes_lead_elsewhere_but_for_ordinary_methods():
    assert special_attribute("Net.__init__") is None
    assert special_attribute("Net._private") is None
    assert special_attribute("a.__dict__.b") == "__dict__"


def torch_modules() -> list[types.ModuleType]:
    """Modules of torch below those for whose classes there are rules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in ("torch.nn", "torch.ao.nn", "torch.optim", "torch.distributions"):
            path = importlib.import_module(package).__path__
            for found in pkgutil.walk_packages(path, f"{package}."):
                if "experimental" not in found.name and "_pt2e" not in found.name:
                    importlib.import_module(found.name)
    return [module for name, module in sys.modules.items() if name.split(".")[0] == "torch"]


def test_no_rule_for_torch_lets_a_module_or_something_of_others_pass():
    fine = {"abc", "builtins", "collections", "collections.abc", "enum", "typing", "types"}
    fine |= {"contextlib", "numbers", "dataclasses", "weakref", "io", "typing_extensions"}
    for module in torch_modules():
        for name, value in list(vars(module).items()):
            if is_known(module.__name__, name):
                place = f"{module.__name__}.{name}"
                assert not isinstance(value, types.ModuleType), place
                home = getattr(value, "__module__", None) or "torch"
                assert home.split(".")[0] == "torch" or home in fine, place
                if may_be_called(module.__name__, name):
                    assert value not in (eval, exec, open, builtins.__import__), place


def test_every_listed_name_of_the_standard_library_is_there_in_some_python():
    """A name that is nowhere would be a typing error."""
    from modpack.core._knownstandard import CALLED, HELD

    missing = {
        f"{module}.{name}"
        for names in (CALLED, HELD)
        for module in names
        for name in names[module]
        if not _is_there(module, name)
    }
    assert missing - _OF_OTHER_VERSIONS == set()


_PATHS = ("Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath")
_OF_OTHER_VERSIONS = {
    *(
        f"{module}.{name}"
        for module in ("_operator", "operator")
        for name in ("is_none", "is_not_none")
    ),
    *(
        f"{module}.{name}"
        for module in ("_collections_abc", "collections.abc")
        for name in ("Buffer", "ByteString")
    ),
    *(f"calendar.{name}" for name in ("Day", "Month")),
    *(f"enum.{name}" for name in ("EnumCheck", "EnumType", "FlagBoundary", "ReprEnum", "StrEnum")),
    *(f"enum.{name}" for name in ("member", "nonmember", "property")),
    *(f"math.{name}" for name in ("cbrt", "exp2", "fma", "sumprod")),
    *(f"pathlib._local.{name}" for name in (*_PATHS, "UnsupportedOperation")),
    *(f"random.{owner}binomialvariate" for owner in ("", "Random.", "SystemRandom.")),
    *(f"typing.{name}" for name in ("LiteralString", "Never", "NotRequired", "Required", "Self")),
    *("typing.TypeVarTuple", "typing.Unpack", "http.HTTPMethod", "pathlib.UnsupportedOperation"),
}
"""Added to Python after 3.10, or taken out of it later, or named otherwise."""


def _is_there(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return True


def test_methods_of_values_are_known():
    assert is_known("decimal", "Decimal.sqrt") and is_known("re", "Pattern.match")
    assert not is_known("decimal", "getcontext.x") and not is_known("pathlib", "Path.unlink")
    assert not is_known("builtins", "str.__class__")


def test_classes_that_act_when_they_are_built_or_dropped_are_known_only_if_they_were_looked_at():
    """What runs by itself: ``__del__``, and a ``__setstate__`` of something that is no model."""
    found = set()
    for module in torch_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and is_known(module.__name__, name):
                for base in value.__mro__:
                    is_torchs = base.__module__.startswith("torch.")
                    for method in ("__del__", "__setstate__"):
                        if is_torchs and method in vars(base):
                            found.add(f"{base.__module__}.{base.__qualname__}.{method}")
    fine = ("torch.nn.modules.", "torch.ao.nn.", "torch.optim.")
    assert {each for each in found if not each.startswith(fine)} <= _LOOKED_AT


_LOOKED_AT = {
    f"torch.{name}.__setstate__"
    for name in (
        "_C.Generator",
        "_C._autograd.DeviceType",
        "_C._profiler.ProfilerActivity",
        "_C._profiler.ProfilerState",
        "_C._profiler._ExperimentalConfig",
        "_dynamo.decorators._DimRange",
        "_dynamo.eval_frame.OptimizedModule",
        "amp.grad_scaler.GradScaler",
        "ao.pruning._experimental.data_sparsifier.base_data_sparsifier.BaseDataSparsifier",
        "ao.pruning.sparsifier.base_sparsifier.BaseSparsifier",
        "autograd.graph._MultiHandle",
        "fx.node.Node",
        "nn.attention.SDPBackend",
        "nn.attention._SDPBackend",
        "nn.parallel.distributed.DistributedDataParallel",
        "utils._pytree.LeafSpec",
        "utils._pytree.TreeSpec",
        "utils.data.datapipes.map.combinatorics.ShufflerIterDataPipe",
        "utils.hooks.RemovableHandle",
    )
}
"""They set attributes. A compiled module calls what it has, and the scan follows that."""
