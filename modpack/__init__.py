"""modpack packages a PyTorch model in one file, with its code, weights, and hooks.

Names are imported on first use (PEP 562): importing modpack imports neither torch nor other slow
modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modpack import services
from modpack.core import RUNTIME_NAMES, define_lazily

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from modpack import analyze as analyze
    from modpack import hooks as hooks
    from modpack import pickle_by_source as pickle_by_source
    from modpack._version import __version__ as __version__
    from modpack.api import call_signature as call_signature
    from modpack.api import current_importer as current_importer
    from modpack.api import importer_of as importer_of
    from modpack.api import is_from_package as is_from_package
    from modpack.archive.base import Archive
    from modpack.capturing.report import HookReport as HookReport
    from modpack.capturing.report import HookStatus as HookStatus
    from modpack.core.call_signature import CallSignature as CallSignature
    from modpack.core.call_signature import ContainerSpec as ContainerSpec
    from modpack.core.call_signature import ValueSpec as ValueSpec
    from modpack.core.graph import CodeKind as CodeKind
    from modpack.core.graph import DependencyGraph as DependencyGraph
    from modpack.core.graph import Edge as Edge
    from modpack.core.graph import Location as Location
    from modpack.core.hookspec import CallableSpec as CallableSpec
    from modpack.core.hookspec import HookSpec as HookSpec
    from modpack.core.names import Directory as Directory
    from modpack.core.names import GlobGroup as GlobGroup
    from modpack.core.observations import Observations as Observations
    from modpack.core.plan import Decision as Decision
    from modpack.core.plan import EmptyMatchError as EmptyMatchError
    from modpack.core.plan import FileKind as FileKind
    from modpack.core.plan import MockUse as MockUse
    from modpack.core.plan import PackagingError as PackagingError
    from modpack.core.plan import PackagingErrorReason as PackagingErrorReason
    from modpack.core.plan import Plan as Plan
    from modpack.core.plan import PlannedDistribution as PlannedDistribution
    from modpack.core.plan import PlannedFile as PlannedFile
    from modpack.core.plan import UseKind as UseKind
    from modpack.core.policy import Signer as Signer
    from modpack.core.policy import TrustPolicy as TrustPolicy
    from modpack.core.rules import Action as Action
    from modpack.core.rules import Owner as Owner
    from modpack.core.rules import Rule as Rule
    from modpack.core.rules import RuleOrigin as RuleOrigin
    from modpack.core.scan import ImportKind as ImportKind
    from modpack.core.selftest import SelfTestCase as SelfTestCase
    from modpack.core.selftest import SelfTestRecord as SelfTestRecord
    from modpack.diagnostics import Diagnostic as Diagnostic
    from modpack.diagnostics import Severity as Severity
    from modpack.environment.importers import Importer as Importer
    from modpack.environment.importers import OrderedImporter as OrderedImporter
    from modpack.environment.importers import sys_importer as sys_importer
    from modpack.errors import EnvironmentMismatchError as EnvironmentMismatchError
    from modpack.errors import EnvironmentMismatchWarning as EnvironmentMismatchWarning
    from modpack.errors import ExampleError as ExampleError
    from modpack.errors import InputMismatchError as InputMismatchError
    from modpack.errors import ModpackError as ModpackError
    from modpack.errors import ModpackWarning as ModpackWarning
    from modpack.errors import ObjMismatchError as ObjMismatchError
    from modpack.errors import ObjNotFoundError as ObjNotFoundError
    from modpack.errors import PicklingError as PicklingError
    from modpack.errors import SelfTestError as SelfTestError
    from modpack.errors import SignatureError as SignatureError
    from modpack.errors import TrustError as TrustError
    from modpack.errors import UnpicklingError as UnpicklingError
    from modpack.examples.recorded import example_inputs as example_inputs
    from modpack.exporter import PackageExporter as PackageExporter
    from modpack.exporter import save as save
    from modpack.exporting.match_hooks import RuleMatch as RuleMatch
    from modpack.importer import PackageImporter as PackageImporter
    from modpack.importer import load as load
    from modpack.loading.weights import load_weights as load_weights
    from modpack.predicting.predictor import Predictor as Predictor
    from modpack.selftest.self_test import SelfTestResult as SelfTestResult
    from modpack.selftest.self_test import self_test as self_test

_NAMES = {
    **RUNTIME_NAMES,
    "modpack": ("analyze", "hooks", "pickle_by_source"),
    "modpack.capturing.report": ("HookReport", "HookStatus"),
    "modpack.exporter": ("PackageExporter", "save"),
    "modpack.exporting.match_hooks": ("RuleMatch",),
    "modpack.selftest.self_test": ("SelfTestResult", "self_test"),
}
"""The public names by the module that defines them."""

_DEFINED_IN = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_DEFINED_IN)


define_lazily(__name__, _DEFINED_IN)


class _Services(services.Services):
    """The services of an installation with all layers, which are imported on first use."""

    def check_signatures(
        self, archive: Archive, signers: Sequence[Signer], path: str | None
    ) -> None:
        from modpack.security.signing import check_signatures

        check_signatures(archive, signers, path)

    def open_remote(self, url: str) -> Archive:
        from modpack.remote import RemoteArchive

        return RemoteArchive(url)

    def downloaded(self, url: str) -> str:
        from modpack.remote import downloaded

        return downloaded(url)

    def working(self, task: str, progress: bool | None) -> AbstractContextManager[None]:
        from modpack.report.progress import working

        return working(task, progress)


services.installed = _Services()
