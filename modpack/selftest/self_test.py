"""Repetition of a package's stored self-test."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modpack.archive.manifest import package_digest, read_manifest
from modpack.archive.reader import local_source, open_archive
from modpack.archive.records import load_environment, read_externs, require_self_test
from modpack.core.json_values import require_type
from modpack.core.observations import NO_OBSERVATIONS, Observations
from modpack.core.process import phase
from modpack.core.selftest import SelfTestRecord
from modpack.loading.checks import (
    check_environment,
    compare_environment,
    require_contents,
    require_trust,
    stricter_level,
)
from modpack.options import OnMismatch, VerifyLevel, require_options

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy


@dataclass(frozen=True, repr=False)
class SelfTestResult:
    """The result of repeating a package's self-test.

    Attributes:
        path: The package, as the user named it.
        passed: Whether the package loaded and its output equals the recorded one.
        recorded: The self-test that was recorded at export.
        observations: What this repetition showed.
        reason: The failure in one sentence. Empty if the self-test passed.
        details: Lines with the traceback or the differing outputs.
        log: The end of stdout and stderr. Empty if the self-test passed.
        seconds: The duration in seconds.
    """

    path: str
    passed: bool
    recorded: SelfTestRecord
    observations: Observations = NO_OBSERVATIONS
    reason: str = ""
    details: tuple[str, ...] = ()
    log: str = ""
    seconds: float = 0.0

    def __repr__(self) -> str:
        outcome = "passed" if self.passed else f"failed: {self.reason}"
        return f"<SelfTestResult of {self.path}: {outcome}>"


def self_test(
    path: str | os.PathLike[str],
    *,
    policy: TrustPolicy | None = None,
    verify: VerifyLevel = "code",
    on_mismatch: OnMismatch = "warn",
    timeout: float = 600.0,
) -> SelfTestResult:
    """Repeat a package's stored self-test in a clean interpreter.

    The interpreter loads the package, runs it on the stored inputs under the recorded conditions
    (random states, threads, modes), and compares the output with the stored one. Modules that were
    hidden at export are hidden again. This executes the package's code: only test packages you
    trust.

    Args:
        path: A package file, the folder of an unzipped package, or a URL.
        policy: Trust policy; see :func:`modpack.load`.
        verify: Records to compare with their digests first: ``'code'`` for all records except
            tensors, ``'full'`` for all records. The policy's level applies if it is stricter.
        on_mismatch: Reaction if the environment differs from that of the export: ``'warn'``,
            ``'error'``, or ``'ignore'``; see :func:`modpack.load`.
        timeout: Time limit in seconds.

    Returns:
        The result. A failed self-test does not raise an exception.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value.
        ArchiveError: If the file is not a package or is damaged.
        EnvironmentMismatchError: If ``on_mismatch="error"`` and a version differs. No code has run.
        TrustError: If the policy does not allow something that the package requires. No code has
            run.
        SignatureError: If the policy requires a signature that is missing or invalid. No code has
            run.
        ModpackError: If the package contains no self-test.
    """
    from modpack.selftest.explanations import explain_failure
    from modpack.selftest.process import HiddenModules, Job, ResolvedResources, run_job

    require_options(policy=policy, verify=verify, on_mismatch=on_mismatch, timeout=timeout)
    require_type(path, (str, os.PathLike), "path", "a path")
    file = local_source(path)
    with open_archive(file) as archive:
        manifest = read_manifest(archive)
        recorded = require_self_test(archive, manifest)
        # Before the policy, which judges by what the records contain.
        require_contents(archive, stricter_level(verify, policy))
        if policy is not None:
            require_trust(archive, policy, file)
        made = load_environment(archive, manifest)
        comparison = compare_environment(archive, made, read_externs(archive, manifest), manifest)
        check_environment(archive.path, package_digest(archive), comparison, on_mismatch)
    job = Job(
        str(Path(file).absolute()),
        recorded.namespace,
        recorded.cases,
        # Without paths, because those hidden at export are those of that machine.
        HiddenModules(recorded.hidden, recorded.hidden_distributions),
        # The interpreter runs in an empty folder, where relative entries would be others.
        tuple(str(Path(entry or Path.cwd()).absolute()) for entry in sys.path),
        operators=recorded.operators,
        policy=policy,
        objects=recorded.objects,
        device=recorded.device,
        lazy=None,
    )
    with phase("self-test"):
        result = run_job(job, lambda _: ResolvedResources(), timeout)
    differences = result.unexplained_differences(recorded.cases)
    name = os.fspath(path)
    test = SelfTestResult(name, True, recorded, result.observations, seconds=result.seconds)
    if result.failure is None and not differences:
        return test
    why = explain_failure(result, differences)
    return replace(test, passed=False, reason=why.reason, details=why.details, log=why.log)
