"""What a self-test tells the user: the reasons of a failure, and warnings of one that passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from modpack.core.observations import MockEvent, MockEventKind
from modpack.core.selftest import Difference, SelfTestRecord
from modpack.core.text import counted
from modpack.diagnostics import Diagnostic
from modpack.errors import SelfTestError, listed, with_hint
from modpack.selftest.module_compare import ModuleDifference
from modpack.selftest.process import RunResult

MAX_DIFFERENCES = 5
_MAX_REFUSED = 5
_MAX_PLACES = 4


class Explanation(NamedTuple):
    """The reason why a self-test did not pass.

    Attributes:
        reason: The problem in one sentence.
        details: Lines with the traceback, differences, and possible causes.
        log: The end of stdout and stderr.
    """

    reason: str
    details: tuple[str, ...] = ()
    log: str = ""


def explain_failure(result: RunResult, differences: Sequence[Difference]) -> Explanation:
    """Explain why a self-test did not pass.

    Args:
        result: The result of the run.
        differences: The differences between outputs that count as failures.
    """
    changed = [each for each in result.changed if each.is_error]
    details = [
        *_first(changed),
        *_first(differences),
        *map(str, result.observations.unfilled_tables),
    ]
    if result.failure is None:
        places = [
            f"{what} differs from the live one in {counted(len(each), 'place')}"
            for what, each in (("the loaded object", changed), ("the output", differences))
            if each
        ]
        return Explanation(" and ".join(places), tuple(details), result.log)
    trace = result.failure.trace
    trace = tuple(line if line.startswith("caused by ") else f"at {line}" for line in trace)
    # Modules and files that the package contains, but that code looked up outside it.
    for name, by in result.blocked[:_MAX_REFUSED]:
        details.append(
            f"{by} looked for {name}, a file next to the original source of packaged code"
            if "/" in name or "\\" in name
            else f"{by} looked for {name} outside the package, which contains it; the loading "
            "environment may not have it"
        )
    return Explanation(result.failure.text, (*trace, *details), result.log)


def _first(differences: Sequence[object]) -> list[str]:
    """Return the first differences, and the number of the others."""
    left = len(differences) - MAX_DIFFERENCES
    return [*map(str, differences[:MAX_DIFFERENCES]), *([f"and {left} more"] if left > 0 else [])]


def outcome_warnings(
    source: str,
    failure: SelfTestError | None,
    record: SelfTestRecord,
    result: RunResult,
    modules: Sequence[ModuleDifference],
    failed_calls: Sequence[str],
) -> Iterator[str]:
    """Yield the failure, or what a self-test that passed saw, and what loading changes.

    Args:
        source: The package.
        failure: The failure, if the self-test failed.
        record: The record of the self-test.
        result: The deciding run.
        modules: Names in modules that differ after loading.
        failed_calls: Stated dimensions with which a call failed.
    """
    if failure is not None:
        yield str(failure)
    else:
        yield from _caught_mock_uses(record.observations.mock_events)
        for table in record.observations.unfilled_tables:
            yield with_hint(
                f"the self-test passed, but {table}",
                "Construct one object of the class after loading.",
            )
    if record.operators:
        operators = listed(record.operators)
        yield f"{source}: the package needs operators. Declare them before loading: {operators}"
    if failed_calls:
        shown = listed(failed_calls, _MAX_PLACES)
        yield with_hint(
            f"the self-test passed, but the model fails with another size of a dimension that "
            f"'dynamic' names: {shown}",
            "Remove the dimension from 'dynamic' if its size is fixed.",
        )
    if attributes := result.changed_attributes:
        shown = listed(list(map(str, attributes)), MAX_DIFFERENCES)
        yield (
            f"the package loads, but {counted(len(attributes), 'attribute')} of the loaded object "
            f"differ from the live one: {shown}. If the class sets them when it is loaded, this is "
            "expected; otherwise set them in __setstate__."
        )
    if modules and failure is None:
        yield with_hint(
            f"the package loads, but {counted(len(modules), 'name')} in its modules "
            f"{'differs' if len(modules) == 1 else 'differ'} from the state in this process: "
            f"{listed([each.text for each in modules], MAX_DIFFERENCES)}",
            "If the model needs the live value, set it in the module's source, extern the module, "
            "or package its current state with PackageExporter.treat_as_script().",
        )
    if result.copy_failure and failure is None:  # although the live object can be copied
        yield (
            f"the package loads, but the loaded object cannot be copied or pickled as the live one "
            f"can: {result.copy_failure}"
        )


def module_notes(changed: Sequence[ModuleDifference]) -> Iterator[Diagnostic]:
    """Yield a note that lists names in modules that the outputs do not depend on."""
    if changed:
        names = [each.name for each in changed]
        text = (
            f"{counted(len(names), 'name')} in packaged modules differ between this process and "
            f"the loaded package: {listed(names, MAX_DIFFERENCES)}"
        )
        yield Diagnostic.from_code("module-state", names[0], text)


def _caught_mock_uses(events: Sequence[MockEvent]) -> Iterator[str]:
    """Yield a warning for each mocked module that was used although the self-test passed."""
    used: dict[str, list[MockEvent]] = {}
    for event in events:
        if event.kind is MockEventKind.USED:
            used.setdefault(event.module, []).append(event)
    for module, events in used.items():
        uses = dict.fromkeys(
            f"{e.name} {e.operation}" + (f" at {e.location}" if e.location else "") for e in events
        )
        shown = listed(list(uses), _MAX_PLACES)
        yield (
            f"the self-test passed, but the package used the mocked module {module!r} and caught "
            f"the exception: {shown}. Intern or extern {module!r}, or remove the use."
        )
