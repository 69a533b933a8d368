import logging

import pytest

from modpack.core.process import (
    Phase,
    ProgressUnit,
    advance,
    has_listener,
    phase,
    report_progress_to,
)


class RecordingListener:
    def __init__(self):
        self.events = []

    def begin(self, phase):
        self.events.append(f"begin {phase.text}")

    def end(self, phase):
        self.events.append(f"end {phase.text} at {phase.done}")


def test_listener_receives_nested_phases():
    listener = RecordingListener()
    with (
        report_progress_to(listener),
        phase("saving"),
        phase("writing", ProgressUnit.BYTES, 10) as writing,
    ):
        writing.advance(4)
        writing.advance()
    assert listener.events == [
        "begin saving",
        "begin writing",
        "end writing at 5",
        "end saving at 0",
    ]


def test_advance_counts_in_innermost_phase():
    with phase("saving") as saving:
        advance(2)
        with phase("writing") as writing:
            advance(3)
        advance()
    advance(100)  # without a phase, this has no effect
    assert (saving.done, writing.done) == (3, 3)


def test_failing_phase_ends():
    listener = RecordingListener()
    with pytest.raises(ValueError), report_progress_to(listener), phase("saving"):
        raise ValueError
    assert listener.events == ["begin saving", "end saving at 0"]
    with phase("alone"):
        pass
    assert len(listener.events) == 2  # no listener anymore


def test_major_phase_is_logged_at_info(caplog):
    caplog.set_level(logging.DEBUG, logger="modpack")
    with phase("walking", ProgressUnit.MODULES) as walking:
        walking.advance(7)
    with phase("saving", is_major=True):
        pass
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["DEBUG", "DEBUG", "DEBUG", "INFO"]
    assert told[0][1] == "walking ..."
    assert told[1][1].startswith("walking: 7 modules, done in ")
    assert told[3][1].startswith("saving: done in ")
    assert {record.name for record in caplog.records} == {"modpack"}


def test_phase_has_total():
    assert Phase("weighing", ProgressUnit.BYTES, 10).total == 10


def test_has_listener_reports_active_listener():
    assert not has_listener()
    with report_progress_to(RecordingListener()):
        assert has_listener()
    assert not has_listener()
