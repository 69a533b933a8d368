"""What other scanners call dangerous must be refused here as well; they are not asked elsewhere."""

from __future__ import annotations

import io
import itertools

import pytest

from modpack.core.knownnames import is_known, may_be_called
from modpack.discovery.pickles import NameUse, scan_pickle
from tests.hostile_pickles import HOSTILE_PICKLES

scanner = pytest.importorskip("picklescan.scanner")

_LISTED_HERE_AND_THERE = {
    ("builtins", "getattr"),
    ("functools", "partial"),
    *(
        (m, n)
        for m in ("operator", "_operator")
        for n in ("attrgetter", "itemgetter", "methodcaller")
    ),
}
"""What modpack lets pass because it looks at what it is called with."""


def listed() -> list[tuple[str, str]]:
    names = scanner._unsafe_globals
    return [
        (module, name)
        for module, those in names.items()
        for name in (
            ["system", "run", "Popen"]
            if those == "*"
            else [those]
            if isinstance(those, str)
            else those
        )
    ]


@pytest.mark.parametrize(("module", "name"), sorted(set(listed()) - _LISTED_HERE_AND_THERE))
def test_names_that_picklescan_lists_are_not_known(module, name):
    assert not is_known(module, name)
    assert not may_be_called(module, name)


@pytest.mark.parametrize("hostile", HOSTILE_PICKLES, ids=lambda each: each.name)
def test_what_picklescan_calls_dangerous_is_refused(hostile):
    try:
        found = scanner.scan_pickle_bytes(io.BytesIO(hostile.data), "hostile")
    except Exception:  # an oracle may fail on what is no pickle
        return
    if found.infected_files:
        assert is_refused(hostile.data)


@pytest.mark.parametrize("hostile", HOSTILE_PICKLES, ids=lambda each: each.name)
def test_what_fickling_calls_unsafe_is_refused(hostile):
    analysis = pytest.importorskip("fickling.analysis")
    fickle = pytest.importorskip("fickling.fickle")
    try:
        parsed = fickle.Pickled.load(hostile.data[:100_000])
        severity = analysis.check_safety(parsed).severity
    except Exception:  # an oracle may fail on what is no pickle
        return
    if severity >= analysis.Severity.LIKELY_OVERTLY_MALICIOUS:
        assert is_refused(hostile.data)


def is_refused(data: bytes) -> bool:
    """Whether a scan by the built-in list alone would refuse it: the package has no modules."""
    scan = scan_pickle(data)
    unknown = (name for name in scan.names if not is_known(name.module, name.name))
    called = (
        name
        for name in scan.names
        if name.use is NameUse.CALLED and not may_be_called(name.module, name.name)
    )
    return bool(scan.flaws) or any(True for _ in itertools.chain(unknown, called))
