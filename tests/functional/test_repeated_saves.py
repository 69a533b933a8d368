"""Saves of a training loop: what was tested with other weights is compared, not run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

LOOP = """
import json, logging, sys, warnings
import torch
import modpack, net

class Seen(logging.Handler):
    runs = 0
    def emit(self, record):
        if record.getMessage().startswith("self-test 1 of"):
            Seen.runs += 1

logging.getLogger("modpack").addHandler(Seen())
logging.getLogger("modpack").setLevel(logging.INFO)
torch.manual_seed(0)
model = net.Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def save(path, **options):
    before = Seen.runs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        modpack.save(model, path, **options)
    return Seen.runs - before, [str(each.message) for each in caught]

def step():
    model(torch.rand(3, 2)).pow(3).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

results = []
"""
NET = """
import torch
SCALE = [1.0]
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.steps = 0
    def forward(self, x):
        return self.norm(self.first(x)) * SCALE[0]
    def other(self, x):
        return x
"""


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "net.py").write_text(NET)

    def run(code: str) -> list:
        script = LOOP + textwrap.dedent(code) + "\nprint(json.dumps(results))\n"
        (tmp_path / "train.py").write_text(script)
        command = [sys.executable, "train.py"]
        tested = {name: value for name, value in os.environ.items() if name != "MODPACK_SELF_TEST"}
        done = subprocess.run(command, cwd=tmp_path, env=tested, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_only_first_save_of_a_loop_runs_the_package(loop):
    results = loop("""
        for epoch in range(4):
            results.append(save(f"{epoch}.modpack"))
            step()
        weights = [modpack.load(f"{n}.modpack").first.weight.tolist() for n in range(4)]
        results.append(len({json.dumps(each) for each in weights}))
    """)
    assert results == [[1, []], [0, []], [0, []], [0, []], 4]


def test_package_of_a_later_save_has_the_bytes_of_a_first_one(loop, tmp_path):
    (digest,) = loop("save('a.modpack'); step(); save('b.modpack'); results.append(0)")
    loop("step(); save('c.modpack')")
    assert digest == 0
    assert (tmp_path / "b.modpack").read_bytes() == (tmp_path / "c.modpack").read_bytes()


CHANGES = {
    "net.SCALE[0] = 2.0": "net.SCALE[0] (net.py:3): live float 2.0, loaded float 1.0",
    "net.Net.forward = net.Net.other": "net.Net.forward",
    "model.steps = 1": "",
    "model.register_forward_hook(torch.nn.Module.forward)": "",
    "model.first = torch.nn.Linear(2, 3)": "",
    "model.first.to(torch.float64)": "",
}


def test_what_changed_besides_weights_is_tested(loop):
    results = loop(f"""
        clean = save("a.modpack")
        for change in {list(CHANGES)!r}:
            exec(change)
            results.append(save("b.modpack", self_test="warn"))
            results.append(save("b.modpack", self_test="warn"))
    """)
    told = set()
    for (change, text), (runs, first), (_, again) in zip(
        CHANGES.items(), results[::2], results[1::2], strict=True
    ):
        told.update([text] if text else [])
        for warned in ("".join(first), "".join(again)):
            assert [each for each in told if each not in warned] == [], change
        assert runs == (0 if text else 1), change  # the package's own contents are the same


def test_save_with_examples_runs_the_package_each_time(loop):
    results = loop("""
        for epoch in range(2):
            results.append(save(f"{epoch}.modpack", example_inputs=torch.rand(3, 2)))
            step()
    """)
    assert [runs for runs, _ in results] == [1, 1]
