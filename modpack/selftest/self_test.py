"""Repeating a stored self-test here."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from modpack.archive.manifest import package_digest, read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.records import load_environment, read_externs, read_self_test
from modpack.core.policy import TrustPolicy
from modpack.core.process import phase
from modpack.core.selftest import SelfTestRecord
from modpack.errors import ModpackError
from modpack.loading.checks import (
    check_environment,
    compare_environment,
    level_of,
    require_contents,
    require_on_mismatch,
    require_policy,
    require_trust,
)

_LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class SelfTestResult:
    """What came of repeating a package's self-test.

    Attributes:
        file: the package, as the user named it.
        passed: whether it loaded and computed what was recorded.
        recorded: the self-test as it was when the package was made.
        reason: why it did not pass, in one sentence; empty if it did.
        details: lines that show it.
        log: the end of what was written to stdout and stderr, if it did not pass.
        seconds: how long it took.
    """

    file: str
    passed: bool
    recorded: SelfTestRecord
    reason: str = ""
    details: tuple[str, ...] = ()
    log: str = ""
    seconds: float = 0.0


def self_test(
    path: str | os.PathLike[str],
    *,
    timeout: float = _LIMIT_SECONDS,
    on_mismatch: str = "warn",
    policy: TrustPolicy | None = None,
    verify: str = "code",
) -> SelfTestResult:
    """Repeat here the self-test that is stored in a package, in a clean interpreter.

    It loads the package, runs it on the stored inputs under the recorded conditions (random
    states, threads, modes), and compares the output with the stored one. What was hidden when
    the package was made is hidden again. This runs the package's code: run it only
    for packages that you trust.

    Args:
        path: a package file, or the folder of an unzipped package.
        timeout: when to give up.
        on_mismatch: ``"warn"``, ``"error"`` or ``"ignore"``, if the installed versions differ
            from the recorded ones; see :class:`PackageImporter`.
        policy: what the package may ask for; see :class:`TrustPolicy`. None allows everything.
        verify: ``"code"`` compares everything but tensors with its digests first, ``"full"`` the
            tensors too; see :class:`PackageImporter`.

    Returns:
        What came of it. That it did not pass is no exception.

    Raises:
        TypeError: it is no path.
        ArchiveError: it is no package, or a damaged one.
        EnvironmentMismatchError: If ``on_mismatch="error"`` and anything differs; no code has run.
        TrustError, SignatureError: the policy does not allow what it asks for; no code has run.
        ModpackError: no self-test is stored in it.
    """
    from modpack.selftest.process import Answer, HiddenModules, Job, perform
    from modpack.selftest.rounds import explained

    require_on_mismatch(on_mismatch)
    require_policy(policy)
    recorded = _recorded(path, on_mismatch, policy, level_of(verify, policy))
    job = Job(
        str(Path(path).absolute()),
        recorded.namespace,
        recorded.cases,
        HiddenModules(recorded.hidden, recorded.hidden_distributions),
        tuple(str(Path(entry or Path.cwd()).absolute()) for entry in sys.path),
        operators=recorded.operators,
        policy=policy,
    )
    with phase("self-test"):
        verdict = perform(job, lambda _: Answer(), timeout)
    differences = verdict.unexplained(recorded.cases)
    file = os.fspath(path)
    if verdict.failure is None and not differences:
        return SelfTestResult(file, True, recorded, seconds=verdict.seconds)
    why = explained(verdict, differences)
    return SelfTestResult(file, False, recorded, why.reason, why.details, why.log, verdict.seconds)


def _recorded(
    path: str | os.PathLike[str], on_mismatch: str, policy: TrustPolicy | None, level: str
) -> SelfTestRecord:
    """The stored self-test of a package that was made with what is here, more or less."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a path, not {type(path).__name__}")
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        recorded = read_self_test(archive, manifest) if manifest is not None else None
        if recorded is None:
            raise ModpackError(
                f"{archive.path} holds no self-test that could be repeated. Remedy: give "
                "example_inputs when saving"
            )
        require_contents(archive, level)
        if policy is not None:
            require_trust(archive, policy, path)
        made = load_environment(archive, manifest)
        comparison = compare_environment(archive, made, read_externs(archive, manifest), manifest)
        check_environment(archive.path, package_digest(archive), comparison, on_mismatch)
        return recorded
