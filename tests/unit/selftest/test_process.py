"""Messages between parent and child of a self-test."""

from __future__ import annotations

import json
import subprocess
import sys

from modpack.core.codec import from_json, record_to_json
from modpack.core.observations import MockEvent, MockEventKind, Observations, UnfilledTable
from modpack.core.policy import TrustPolicy
from modpack.core.selftest import SelfTestCase
from modpack.selftest import process
from modpack.selftest.process import (
    Difference,
    Failure,
    HiddenModules,
    Job,
    ResolvedResources,
    ResourceRequest,
    RunResult,
)


def sent(record):
    return from_json(type(record), json.loads(json.dumps(record_to_json(record))), "it")


def test_job_sent_to_the_child_is_the_same():
    policy = TrustPolicy(allow_externs="numpy.**", allow_native=False)
    table = UnfilledTable("shop", "KINDS", "shop.Net")
    hidden = HiddenModules(("a",), ("b",), ("/c",))
    case = SelfTestCase(("model", "model.pkl"), 0)
    asked = process.ProbeLevel.USES
    job = Job("x.modpack", "private", (case,), hidden, ("/p",), asked, ("o",), (table,), policy)
    assert sent(job) == job


def test_result_sent_to_the_parent_is_the_same():
    event = MockEvent("tracker", MockEventKind.USED, "tracker.log", "was called", "shop/net.py:3")
    difference = (3, Difference("output", "expected 1, found 2", True))
    failure = Failure("it failed", ("shop/net.py:3, in f",))
    observed = Observations(("shop",), ("shop.late",), ("shop/x.txt",), mock_events=(event,))
    verdict = RunResult(
        failure, (difference,), (("a", "b"),), ("o",), True, (("c", None),), observed
    )
    assert sent(verdict) == verdict


def test_request_and_resources_are_sent_with_bytes():
    question = ResourceRequest("module", "shop.parts", None, None)
    assert sent(question) == question
    answer = ResolvedResources({"shop/x.bin": b"\0\xff"}, ("numpy",), ("folder/",))
    assert sent(answer) == answer


def test_child_does_not_import_torch_before_it_hides_modules():
    code = "import sys, modpack.selftest.child; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
