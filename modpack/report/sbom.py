"""The bill of materials of a package: its contents and its requirements, as CycloneDX 1.6.

Needs the extra ``sbom``.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Final

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import (
    DisjunctiveLicense,
    License,
    LicenseAcknowledgement,
    LicenseExpression,
)
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.spdx import fixup_id, is_expression
from packageurl import PackageURL

from modpack._version import __version__
from modpack.archive.layout import RUNTIME_MODULE
from modpack.core.environment import RecordedDistribution, RecordedEnvironment, needed_at_once
from modpack.core.names import file_name, normalized, root_of
from modpack.core.rules import Action, Owner
from modpack.core.text import printable
from modpack.errors import ArchiveError
from modpack.report.audit_facts import AuditFacts
from modpack.report.distribution_index import OUR_LICENSE, PYTHONS_LICENSE
from modpack.report.facts import ModuleFacts

_DECLARED: Final = LicenseAcknowledgement.DECLARED
"""Licenses come from metadata. They are not verified."""
_LONGEST_EXPRESSION: Final = 1000
"""Limit of the length of a license that is parsed as an expression."""
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""A distribution's name (core metadata)."""
_MAX_ITEMS: Final = 5000
"""Far beyond any environment. The time of the library grows with the square."""
_MAX_NEEDS: Final = 20_000
"""The same limit for all dependencies together."""
_LONGEST_VERSION: Final = 1024
"""Limit of the schema, in characters."""
PYTHON: Final = "python"
"""Key of Python, including the standard library."""


class _Draft:
    """Components of a bill of materials, and their dependencies.

    A component is ``required`` if the package contains it or imports it when loaded. It is
    ``optional`` if only functions, or code that handles its absence, import it. It is ``excluded``
    if mocks replace it. A key such as ``pypi:numpy@2.1.0`` identifies it within the bill.

    Attributes:
        components: The components, by key.
        needs: Keys of the direct dependencies of each component, and of saved objects (``""``).
    """

    def __init__(self, audit: AuditFacts) -> None:
        package = audit.package
        self._subject = audit.path
        recorded = RecordedEnvironment(package.python, torch=package.torch)
        self._environment = audit.environment or recorded
        self._own_version = (package.writer or "").removeprefix("modpack ") or None
        self._at_once = needed_at_once(audit.graph)
        self.components: dict[str, Component] = {}
        self.needs: defaultdict[str, set[str]] = defaultdict(set)
        members: dict[str, list[ModuleFacts]] = {}
        key_of = {facts.module: _key(facts) for facts in audit.modules}
        for facts in audit.modules:
            members.setdefault(key_of[facts.module], []).append(facts)
        for edge in audit.graph.edges():
            needed = key_of.get(edge.imported)
            if needed is not None and edge.kind.is_dependency:
                self.needs[key_of.get(edge.importer, "")].add(needed)
        members.pop(PYTHON, None)  # the standard library
        self._add(
            PYTHON,
            "Python",
            ComponentScope.REQUIRED,
            [("origin", Action.EXTERN.value)],
            version=self._environment.python,
            license=PYTHONS_LICENSE,
        )
        for key, group in members.items():
            self._add_modules(key, group)
        self._add_requirements(members.values())
        for key, keys in self.needs.items():
            # Modules of one distribution import each other, and a component must not depend on
            # itself.
            keys.discard(key)
        # A component that no other needs is a direct dependency of the model.
        depended_on = {each for key in self.components for each in self.needs[key]}
        self.needs[""] |= self.components.keys() - depended_on

    def _add_modules(self, key: str, members: Sequence[ModuleFacts]) -> None:
        """Add the component that some modules belong to."""
        first = members[0]
        is_editable = any(facts.editable for facts in members)
        origins = dict.fromkeys(facts.action.value for facts in members)
        licenses = (
            OUR_LICENSE if each.module == RUNTIME_MODULE else each.license for each in members
        )
        self._add(
            key,
            first.distribution or root_of(first.module),
            self._scope_of(members),
            [*(("origin", each) for each in origins), ("modules", str(len(members)))],
            version=self._own_version if root_of(first.module) == "modpack" else first.version,
            license=next(filter(None, licenses), None),
            recorded=self._recorded(first),
            is_editable=is_editable,
            is_distribution=first.distribution is not None,
        )

    def _add_requirements(self, groups: Iterable[Sequence[ModuleFacts]]) -> None:
        """Add all requirements of extern distributions, required ones first."""
        known = self._environment.distributions
        found: dict[str, ComponentScope] = {}
        for scope in (ComponentScope.REQUIRED, ComponentScope.OPTIONAL):
            # Required ones first, so that a shared requirement is required.
            waiting: list[str] = []
            for members in groups:
                recorded = self._recorded(members[0])
                if recorded is not None and self._scope_of(members) is scope:
                    waiting += recorded.requires
            while waiting:
                name = waiting.pop()
                if name not in found and name in known:
                    found[name] = scope
                    waiting += known[name].requires
        for name, scope in found.items():
            recorded = known[name]
            key = _distribution_key(recorded.name, recorded.version)
            if key not in self.components:
                self._add(
                    key,
                    recorded.name,
                    scope,
                    [("origin", "required")],
                    version=recorded.version,
                    license=recorded.license,
                    recorded=recorded,
                    is_editable=recorded.editable,
                    is_distribution=True,
                )
            elif scope is ComponentScope.REQUIRED:
                component = self.components[key]
                if component.scope is ComponentScope.OPTIONAL:
                    component.scope = scope

    def _add(
        self,
        key: str,
        name: str,
        scope: ComponentScope,
        facts: Sequence[tuple[str, str]],
        *,
        version: str | None,
        license: str | None,
        recorded: RecordedDistribution | None = None,
        is_editable: bool = False,
        is_distribution: bool = False,
    ) -> None:
        """Add a component.

        Args:
            key: Its key.
            name: Its name.
            scope: Whether loading needs it.
            facts: Properties. An ``origin`` is ``intern``, ``extern``, ``mock``, or ``required`` if
                only other components need it.
            version: Its version, or None.
            license: Its license, or None.
            recorded: The distribution as recorded at export, or None.
            is_editable: Whether it was an editable install, which no package index has.
            is_distribution: Whether its name and version are those of a distribution.
        """
        if len(self.components) >= _MAX_ITEMS:
            reason = f"the bill of materials has more than {_MAX_ITEMS} components"
            raise ArchiveError(self._subject, reason)
        if len(version or "") > _LONGEST_VERSION:
            reason = f"the recorded version of {printable(name)[:80]} is too long for a version"
            raise ArchiveError(self._subject, reason)
        # Other tools show the document, so it must not carry control characters to them.
        version = printable(version) if version is not None else None
        kind = ComponentType.FRAMEWORK if name == "torch" else ComponentType.LIBRARY
        # A distribution that was installed from a URL has the URL instead of a purl (ECMA-427).
        requirement = recorded.requirement if recorded is not None else None
        url = (requirement or "").partition(" @ ")[2]
        is_indexed = is_distribution and not is_editable and _NAME.fullmatch(name) is not None
        if recorded is not None and recorded.url:
            is_indexed = False
        link = ExternalReferenceType.DISTRIBUTION
        self.components[key] = Component(
            type=ComponentType.PLATFORM if key == PYTHON else kind,
            bom_ref=printable(key),
            name=printable(name),
            version=version,
            scope=scope,
            licenses=_licenses(license),
            hashes=_hashes(recorded.hashes.get("sha256") if recorded is not None else None),
            purl=PackageURL("pypi", name=name, version=version or None) if is_indexed else None,
            external_references=[ExternalReference(type=link, url=XsUri(url))] if url else [],
            properties=_properties([*facts, *([("editable", "true")] if is_editable else [])]),
        )
        required = map(self._environment.distributions.get, recorded.requires if recorded else ())
        for each in filter(None, required):
            self.needs[key].add(_distribution_key(each.name, each.version))

    def _recorded(self, facts: ModuleFacts) -> RecordedDistribution | None:
        """Return the recorded distribution of an extern module, or None."""
        if facts.distribution is None:
            return None
        known = self._environment.distributions.get(normalized(facts.distribution))
        return known if known is not None and known.version == facts.version else None

    def _scope_of(self, members: Iterable[ModuleFacts]) -> ComponentScope:
        actions = {facts.action for facts in members}
        # Loading imports the mock, and never the library.
        if actions == {Action.MOCK}:
            return ComponentScope.EXCLUDED
        if Action.INTERN in actions or self._at_once is None:
            return ComponentScope.REQUIRED
        is_at_once = any(facts.module in self._at_once for facts in members)
        return ComponentScope.REQUIRED if is_at_once else ComponentScope.OPTIONAL


def _key(facts: ModuleFacts) -> str:
    """Return the key of the component that a module belongs to."""
    root = root_of(facts.module)
    if facts.action is Action.MOCK:
        return f"mocked:{root}"
    if facts.provided_by is Owner.STDLIB:
        return PYTHON
    if facts.distribution is not None:
        return _distribution_key(facts.distribution, facts.version or "")
    return f"{'code' if facts.action is Action.INTERN else 'extern'}:{root}"


def _distribution_key(name: str, version: str) -> str:
    return f"pypi:{normalized(name)}@{version}"


def sbom_of(
    audit: AuditFacts,
    *,
    file_sha256: str | None = None,
    timestamp: datetime | None = None,
) -> str:
    """Return the bill of materials of a package as a CycloneDX 1.6 document in JSON.

    The same package gives the same document: the serial number follows from the digest, and the
    document contains no time unless one is given.

    Args:
        audit: Audit of a package file.
        file_sha256: SHA-256 of the package file in hex. None for a directory or URL.
        timestamp: Time of the document. None to omit it.

    Raises:
        ArchiveError: If the package records values that such a document cannot contain.
    """
    package = audit.package
    draft = _Draft(audit)
    number = sum(map(len, draft.needs.values()))
    if number > _MAX_NEEDS:
        reason = f"the bill of materials has {number} dependencies, and the limit is {_MAX_NEEDS}"
        raise ArchiveError(audit.path, reason)
    model = Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        name=printable(PurePath(file_name(package.path)).stem),
        version=f"sha256:{package.digest}",
        hashes=_hashes(file_sha256),
        properties=_properties(
            [("format", package.format), ("writer", package.writer), ("platform", package.platform)]
        ),
    )
    tool = Component(type=ComponentType.APPLICATION, name="modpack", version=__version__)
    components = {key: draft.components[key] for key in sorted(draft.components)}
    # A random number would make two documents of one package differ.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:modpack:{package.digest}:{timestamp or ''}")
    bom = Bom(components=components.values(), serial_number=serial)
    bom.metadata.component = model
    bom.metadata.tools.components.add(tool)
    bom.metadata.timestamp = timestamp  # type: ignore[assignment]
    # Set all dependencies at once: adding them one by one takes quadratic time in the library.
    bom.dependencies = [
        Dependency(
            component.bom_ref,
            (Dependency(components[n].bom_ref) for n in draft.needs[key] if n in components),
        )
        for key, component in {"": model, **components}.items()
    ]
    # On output, the library registers each of them again, in quadratic time. A subclass cannot
    # replace the method, because the library does not serialize subclasses.
    vars(bom)["register_dependency"] = lambda target, depends_on=None: None
    output = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return output.output_as_string(indent=2) + "\n"


def _licenses(stated: str | None) -> Iterator[License]:
    """Yield a license as an SPDX identifier, an SPDX expression, or free text."""
    if not stated:
        return
    # Metadata often spells identifiers differently, such as in lower case.
    known = fixup_id(stated)
    if known is not None:
        yield DisjunctiveLicense(id=known, acknowledgement=_DECLARED)
    elif len(stated) <= _LONGEST_EXPRESSION and is_expression(stated):
        yield LicenseExpression(stated, acknowledgement=_DECLARED)
    else:
        yield DisjunctiveLicense(name=printable(stated), acknowledgement=_DECLARED)


def _hashes(sha256: str | None) -> list[HashType]:
    """Return a recorded digest, if it is one."""
    # The digest is text from the package until this matches.
    is_digest = sha256 is not None and re.fullmatch(r"[0-9a-fA-F]{64}", sha256)
    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256 or "")] if is_digest else []


def _properties(facts: Iterable[tuple[str, str | None]]) -> Iterator[Property]:
    for name, value in facts:
        if value is not None:
            yield Property(name=f"modpack:{name}", value=printable(value))
