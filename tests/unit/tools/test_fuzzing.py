"""The fuzzer of the closed unpickler finds nothing, and would find what is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TORTURE = Path(__file__).parents[3] / "tools" / "torture"

RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import fuzzing
{before}
found = fuzzing.fuzz({tries}, seed=1)
print(found.tries, found.counts["accepted"])
print(*found.wrong[:3], sep="\\n")
"""


def fuzzed(tries: int, before: str = "") -> list[str]:
    code = RUN.format(tries=tries, before=before)
    command = [sys.executable, "-c", code, str(TORTURE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_ten_thousand_pickles_make_data_or_nothing() -> None:
    numbers, *wrong = fuzzed(10_000)
    tries, accepted = map(int, numbers.split())
    assert tries == 10_000 and accepted > 500
    assert [each for each in wrong if each] == []


def test_fuzzing_finds_allowed_name_that_executes_code() -> None:
    """The same with a hole: a constant that is made by a call of the shell."""
    hole = """
import os
from modpack.pickling import data_unpickler as closed
closed._MADE[complex] = lambda *parts: os.system("true") or 1j
"""
    _, *wrong = fuzzed(2_000, hole)
    assert any("os.system" in each or "subprocess" in each for each in wrong)


def test_fuzzing_finds_attribute_that_protocol_looks_up() -> None:
    """The same with a hole: all attributes of tensors are set."""
    hole = """
from modpack.pickling import data_unpickler as closed
def set_all(made, state=None):
    vars(made).update(state or {})
    return made
closed._with_attributes.__code__ = set_all.__code__
"""
    _, *wrong = fuzzed(10_000, hole)
    assert any("loaded the attribute" in each for each in wrong)
