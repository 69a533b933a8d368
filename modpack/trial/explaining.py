"""Why a trial did not pass, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modpack.trial.comparing import Difference
from modpack.trial.process import Verdict

__all__ = ["Explanation", "explained"]

_MOST_DIFFERENCES = 5
_MOST_REFUSED = 5


@dataclass(frozen=True)
class Explanation:
    """Why a trial did not pass.

    Attributes:
        reason: what is wrong, in one sentence.
        details: lines that show it.
        log: the end of what was written to stdout and stderr.
    """

    reason: str
    details: tuple[str, ...] = ()
    log: str = ""

    @property
    def text(self) -> str:
        """All but the log."""
        return "\n".join((self.reason, *self.details))

    def __str__(self) -> str:
        return self.reason


def explained(
    verdict: Verdict,
    differences: Sequence[Difference],
    suspects: Sequence[str] = (),
    process: Verdict | None = None,
    process_differences: Sequence[Difference] = (),
) -> Explanation:
    """Put the reason into words.

    Args:
        verdict: what came of the private namespace.
        differences: the differences in it that count.
        suspects: what is known to differ between the live process and the package.
        process: what came of the process namespace, if that was tried.
        process_differences: likewise.
    """
    reason, details = _reason(verdict, differences), list(_details(verdict, differences))
    details += [f"perhaps because {each}" for each in suspects]
    if process is not None:
        other = _reason(process, process_differences)
        also = "" if other == reason else f": {other}"
        details.append(f"it fails with namespace='process', too{also}")
    return Explanation(reason, tuple(details), verdict.log)


def _reason(verdict: Verdict, differences: Sequence[Difference]) -> str:
    if verdict.failure is not None:
        return verdict.failure.text
    count = len(differences)
    return f"its output differs from the live model's in {count} place{'s' if count != 1 else ''}"


def _details(verdict: Verdict, differences: Sequence[Difference]) -> Iterator[str]:
    if verdict.failure is not None:
        for line in verdict.failure.trace:
            yield line if line.startswith("because of ") else f"at {line}"
    yield from map(str, differences[:_MOST_DIFFERENCES])
    if len(differences) > _MOST_DIFFERENCES:
        yield f"and {len(differences) - _MOST_DIFFERENCES} more"
    yield from map(str, verdict.unfilled)
    if verdict.failure is not None:
        yield from _refusals(verdict.refused)


def _refusals(refused: Sequence[tuple[str, str]]) -> Iterator[str]:
    """What was looked for outside the package although the package holds it."""
    for name, by in refused[:_MOST_REFUSED]:
        if "/" in name or "\\" in name:
            yield f"{by} looked for {name}, a file of this machine beside packaged code"
        else:
            yield (
                f"{by} looked for {name} outside the package, which holds it: where the package is "
                "loaded it need not be installed"
            )
