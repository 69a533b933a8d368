"""The allowlist of plain data, and its reference page."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from modpack.pickling.allowlist import CALLABLE, DATA, is_dangerous

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "trust-policies.md"


def table() -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in DATA.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {reason} |" for reason, names in by_reason.items()]
    return "\n".join(["| names | why they are data |", "|---|---|", *rows])


def test_allowlist_page_lists_every_name_with_its_reason():
    listed = re.search(
        r"<!-- closed table -->\n\n(.*?)\n\n<!-- end -->", PAGE.read_text("utf-8"), re.S
    )
    assert listed is not None and listed.group(1) == table()


def test_allowlist_names_exist_in_current_torch():
    missing = []
    for name in DATA:
        module, _, attribute = name.rpartition(".")
        if not hasattr(importlib.import_module(module), attribute):
            missing.append(name)
    assert not missing or torch.__version__ < "2.13", missing
    assert not any("*" in name for name in DATA) and len(DATA) < 120


def test_is_dangerous_matches_whole_names_and_modules():
    for name in ("os.system", "builtins.exec", "subprocess.Popen", "importlib.import_module"):
        module, _, attribute = name.rpartition(".")
        assert is_dangerous(module, attribute)
    for name in ("os.path.join", "builtins.getattr", "functools.partial", "torch.nn.Linear"):
        module, _, attribute = name.rpartition(".")
        assert not is_dangerous(module, attribute)


@pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="torch 2.6 lacks some names")
def test_allowlist_callables_match_those_of_unpickler():
    from modpack.pickling.data_unpickler import _Data

    actions = _Data(None, (), importlib.import_module)  # type: ignore[arg-type]
    called = {name for name in DATA if id(actions.find(*_parted(name))) in actions._calls}
    assert called == set(CALLABLE)


def _parted(name: str) -> tuple[str, str]:
    module, _, attribute = name.rpartition(".")
    return module, attribute
