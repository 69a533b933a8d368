"""What a policy does not allow, and signatures that do not hold."""

from __future__ import annotations

from modpack.errors.base import ModpackError

__all__ = [
    "KeyFileError",
    "PolicyError",
    "PolicyNotFoundError",
    "SignatureError",
    "TrustError",
    "UntrustedImportError",
]


class TrustError(ModpackError):
    """A package asks for something that the loader's policy does not allow.

    Args:
        source: the package file.
        problems: everything that is not allowed, one sentence each, with its remedy.
    """

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        self.source = source
        self.problems = problems
        shown = problems[:_MOST_PROBLEMS_TOLD]
        more = len(problems) - len(shown)
        lines = [*shown, f"and {more} more"] if more else shown
        listed = f" {shown[0]}" if len(problems) == 1 else "".join(f"\n* {each}" for each in lines)
        super().__init__(f"{source}: the policy does not allow it:{listed}")


_MOST_PROBLEMS_TOLD = 50


class UntrustedImportError(TrustError, ImportError):
    """Code or a pickle of a package imports a module that the loader's policy does not allow.

    Args:
        source: the package file.
        module: the module.
        problem: the same in one sentence, with the remedy.
    """

    def __init__(self, source: str, module: str, problem: str) -> None:
        super().__init__(source, (problem,))
        self.module = self.name = module


class PolicyError(ModpackError):
    """The file of a policy cannot be used.

    Args:
        file: the file.
        problems: everything that is wrong with it.
    """

    def __init__(self, file: str, problems: tuple[str, ...]) -> None:
        self.file = file
        self.problems = problems
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{file}: {problems[0]}" if len(problems) == 1 else f"{file}:{listed}")


class PolicyNotFoundError(PolicyError, FileNotFoundError):
    """There is no file where a policy should be."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SignatureError(ModpackError):
    """A signature is missing, or does not hold.

    Args:
        source: the package file.
        reason: what is wrong, in one sentence.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"{source}: {reason}")


class KeyFileError(ModpackError):
    """A key for signatures cannot be used.

    Args:
        source: the file, or whose key it is.
        reason: what is wrong, in one sentence, and the remedy.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"{source}: {reason}")
