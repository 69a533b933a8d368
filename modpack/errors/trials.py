"""Models that do not run on their examples, and packages that fail their trial."""

from __future__ import annotations

from modpack.errors.base import ModpackError

__all__ = ["ExampleError", "TrialError"]


class ExampleError(ModpackError):
    """The live model itself fails on the example inputs that were given.

    Args:
        resource: the model, as ``package/resource``.
        failure: what it raised.
        place: the line of the model's code that did, if it is known.
    """

    def __init__(self, resource: str, failure: BaseException, place: str = "") -> None:
        self.resource = resource
        self.failure = failure
        self.place = place
        where = f"\n  at {place}" if place else ""
        super().__init__(
            f"{resource}: the model does not run on the example inputs: "
            f"{type(failure).__name__}: {failure}{where}"
        )


_WRITE_ANYWAY = (
    "Nothing was written. trial='warn', or --no-trial on the command line, writes it all the same"
)


class TrialError(ModpackError):
    """A package does not load, or computes something else, where it was tried.

    Args:
        source: the package, as the user named it.
        reason: what is wrong, in one sentence.
        details: lines that show it: where it was raised, which outputs differ.
        log: the end of what the trial wrote to stdout and stderr.
        is_written: whether the package was written all the same.
    """

    def __init__(
        self,
        source: str,
        reason: str,
        details: tuple[str, ...] = (),
        log: str = "",
        is_written: bool = False,
    ) -> None:
        self.source = source
        self.reason = reason
        self.details = details
        self.log = log
        lines = [f"the trial run of {source} failed: {reason}", *(f"  {x}" for x in details)]
        if log:
            lines += ["It wrote:", *(f"  {line}" for line in log.splitlines())]
        if not is_written:
            lines.append(_WRITE_ANYWAY)
        super().__init__("\n".join(lines))
