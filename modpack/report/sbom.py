"""The bill of materials of a package: its contents and its requirements.

First as values, then as CycloneDX 1.6. Needs the extra ``sbom``.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import PurePath
from typing import Final, Literal

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
from cyclonedx.model.dependency import Dependable, Dependency
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
from modpack.archive.base import Archive
from modpack.archive.layout import RUNTIME_MODULE
from modpack.archive.manifest import read_manifest
from modpack.core.environment import RecordedDistribution, RecordedEnvironment, needed_at_once
from modpack.core.names import normalized_distribution as normalized
from modpack.core.names import root_of
from modpack.core.observations import MockRisk
from modpack.core.rules import Action, Owner
from modpack.core.text import printable
from modpack.errors import ArchiveError
from modpack.report.audit_facts import AuditFacts
from modpack.report.distribution_index import OUR_LICENSE, PYTHONS_LICENSE
from modpack.report.facts import ModuleFacts, PackageFacts

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
_HASHES: Final = {
    "md5": (HashAlgorithm.MD5, 32),
    "sha1": (HashAlgorithm.SHA_1, 40),
    "sha256": (HashAlgorithm.SHA_256, 64),
    "sha384": (HashAlgorithm.SHA_384, 96),
    "sha512": (HashAlgorithm.SHA_512, 128),
}
"""Algorithms that both pip and CycloneDX support, with the length of their digests in hex."""
PYTHON: Final = "python"
"""Key of Python, including the standard library."""


@dataclass(frozen=True)
class SbomComponent:
    """A component of a package, or a requirement.

    Attributes:
        key: Identifier within the bill (``pypi:numpy@2.1.0``).
        name: Its name.
        need: ``REQUIRED`` if the package contains it or imports it when loaded. ``OPTIONAL`` if
            only functions, or code that handles its absence, import it. ``EXCLUDED`` if mocks
            replace it.
        origins: ``intern``, ``extern``, ``mock``, or ``required`` if only other components need it.
        version: Its version, or None.
        license: Its license, or None.
        is_indexed: Whether the Python package index is expected to have this name and version.
        url: URL that it was installed from instead, or None.
        hashes: Digests of the installed file in hex, by algorithm.
        facts: Further properties, by name.
        needs: Keys of its direct dependencies.
    """

    key: str
    name: str
    need: ComponentScope
    origins: tuple[str, ...]
    version: str | None = None
    license: str | None = None
    is_indexed: bool = False
    url: str | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Sbom:
    """The bill of materials of a package.

    Attributes:
        name: Name of the package file, without its suffix.
        digest: Digest that names its content, in hex.
        facts: Further properties, by name.
        needs: Keys of its direct dependencies.
        items: All components, by key.
    """

    name: str
    digest: str
    facts: Mapping[str, str]
    needs: frozenset[str]
    items: tuple[SbomComponent, ...]


def bill_of(audit: AuditFacts, digests: Mapping[str, str]) -> Sbom:
    """Return the bill of materials of a package.

    Args:
        audit: Audit of a package file.
        digests: SHA-256 in hex of all records with code, by record.

    Raises:
        ValueError: If it is the audit of a plan.
    """
    package = audit.package
    if package is None:
        raise ValueError(f"{audit.subject} is a plan. Only packages have a bill of materials.")
    environment = audit.environment or RecordedEnvironment(package.python, torch=package.torch)
    draft = _Draft(audit, environment, digests)
    items = {key: draft.item(key) for key in dict.fromkeys([*draft.members, PYTHON])}
    for name, need in draft.closure().items():
        found = _required_item(environment.distributions[name], need, draft)
        known = items.get(found.key, found)
        is_needed = need is ComponentScope.REQUIRED and known.need is ComponentScope.OPTIONAL
        items[found.key] = replace(known, need=need) if is_needed else known
    needed = frozenset().union(*(item.needs for item in items.values()))
    return Sbom(
        PurePath(package.path).stem,
        package.digest,
        _package_facts(package),
        draft.needs.get("", frozenset()) | (items.keys() - needed),
        tuple(items[key] for key in sorted(items)),
    )


def code_digests(archive: Archive) -> dict[str, str]:
    """Return the SHA-256 in hex of the records with code, by record.

    Raises:
        ArchiveError: If the archive is damaged.
    """
    manifest = read_manifest(archive)
    if manifest is not None:
        return {name: record.sha256 for name, record in manifest.records.items()}
    code = [name for name in archive.names() if name.endswith(".py")]
    return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in code}


class _Draft:
    """Intermediate state of a bill of materials.

    Attributes:
        members: Modules of each component, by key.
        needs: Keys that the code of each component imports; ``""`` for saved objects.
    """

    def __init__(
        self, audit: AuditFacts, environment: RecordedEnvironment, digests: Mapping[str, str]
    ) -> None:
        self._environment = environment
        self._digests = digests
        writer = audit.package.writer if audit.package is not None else None
        self._own_version = (writer or "").removeprefix("modpack ") or None
        self.members: dict[str, list[ModuleFacts]] = defaultdict(list)
        for facts in audit.modules:
            self.members[_key(facts)].append(facts)
        self._risks = {mock.module: mock.risk for mock in audit.mocks}
        self._at_once = needed_at_once(audit.graph)
        key_of = {facts.module: _key(facts) for facts in audit.modules}
        needs: defaultdict[str, set[str]] = defaultdict(set)
        for edge in audit.graph.edges():
            needed = key_of.get(edge.imported)
            if needed is not None and edge.kind.is_dependency:
                needs[key_of.get(edge.importer, "")].add(needed)
        self.needs = {key: frozenset(keys - {key}) for key, keys in needs.items()}

    def item(self, key: str) -> SbomComponent:
        """Return the component with a key."""
        if key == PYTHON:
            return self._python()
        members = self.members[key]
        first = members[0]
        known = self._recorded(first)
        version = self._own_version if root_of(first.module) == "modpack" else first.version
        is_editable = any(facts.editable for facts in members)
        return SbomComponent(
            key,
            first.distribution or root_of(first.module),
            self._need(members),
            tuple(dict.fromkeys(facts.action.value for facts in members)),
            version,
            _license(members),
            first.distribution is not None and not is_editable and not (known and known.url),
            _address(known),
            known.hashes if known is not None else {},
            self._facts(members, is_editable),
            (self.needs.get(key, frozenset()) | self.required_by(known)) - {key},
        )

    def closure(self) -> dict[str, ComponentScope]:
        """Return all requirements of extern distributions, by normalized name."""
        found: dict[str, ComponentScope] = {}
        for need in (ComponentScope.REQUIRED, ComponentScope.OPTIONAL):
            waiting = [
                name
                for members in self.members.values()
                if (known := self._recorded(members[0])) and self._need(members) is need
                for name in known.requires
            ]
            while waiting:
                name = waiting.pop()
                if name in found or name not in self._environment.distributions:
                    continue
                found[name] = need
                waiting += self._environment.distributions[name].requires
        return found

    def required_by(self, known: RecordedDistribution | None) -> frozenset[str]:
        """Return the keys of the recorded requirements of a distribution."""
        names = known.requires if known is not None else ()
        found = filter(None, map(self._environment.distributions.get, names))
        return frozenset(_distribution_key(each.name, each.version) for each in found)

    def _python(self) -> SbomComponent:
        implementation = self._environment.implementation
        return SbomComponent(
            PYTHON,
            "Python",
            ComponentScope.REQUIRED,
            (Action.EXTERN.value,),
            self._environment.python,
            PYTHONS_LICENSE,
            facts={"implementation": implementation} if implementation is not None else {},
        )

    def _recorded(self, facts: ModuleFacts) -> RecordedDistribution | None:
        """Return the recorded distribution of an extern module, or None."""
        if facts.distribution is None:
            return None
        known = self._environment.distributions.get(normalized(facts.distribution))
        return known if known is not None and known.version == facts.version else None

    def _need(self, members: Iterable[ModuleFacts]) -> ComponentScope:
        actions = {facts.action for facts in members}
        if actions == {Action.MOCK}:
            return ComponentScope.EXCLUDED
        if Action.INTERN in actions or self._at_once is None:
            return ComponentScope.REQUIRED
        is_at_once = any(facts.module in self._at_once for facts in members)
        return ComponentScope.REQUIRED if is_at_once else ComponentScope.OPTIONAL

    def _facts(self, members: list[ModuleFacts], is_editable: bool) -> dict[str, str]:
        found = {"modules": str(len(members))}
        records = sorted(each.record for each in members if each.record)
        records = [record for record in records if record in self._digests]
        if records and members[0].action is Action.INTERN:
            found["code:bytes"] = str(sum(facts.size_bytes or 0 for facts in members))
            # The SHA-256 of the output of sha256sum for the records.
            lines = (f"{self._digests[record]}  {record}\n" for record in records)
            found["code:sha256"] = hashlib.sha256("".join(lines).encode()).hexdigest()
        found |= {"editable": "true"} if is_editable else {}
        risks = [self._risks[each.module] for each in members if each.module in self._risks]
        if risks:
            found["mock:risk"] = max(risks, key=list(MockRisk).index).value
        return found


def _required_item(
    found: RecordedDistribution, need: ComponentScope, draft: _Draft
) -> SbomComponent:
    """Return the component of a distribution that only other distributions require."""
    key = _distribution_key(found.name, found.version)
    return SbomComponent(
        key,
        found.name,
        need,
        ("required",),
        found.version,
        found.license,
        not found.editable and found.url is None,
        _address(found),
        found.hashes,
        {"editable": "true"} if found.editable else {},
        draft.required_by(found) - {key},
    )


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


def _license(members: Iterable[ModuleFacts]) -> str | None:
    known = (OUR_LICENSE if each.module == RUNTIME_MODULE else each.license for each in members)
    return next(filter(None, known), None)


def _address(known: RecordedDistribution | None) -> str | None:
    """Return the checked URL that a distribution was installed from, or None for an index."""
    _, at, url = (known.requirement or "").partition(" @ ") if known is not None else ("", "", "")
    return url if at else None


def _distribution_key(name: str, version: str) -> str:
    return f"pypi:{normalized(name)}@{version}"


def _package_facts(package: PackageFacts) -> dict[str, str]:
    self_test = package.self_test
    found = {
        "digest": package.digest,
        "format": package.format,
        "writer": package.writer,
        "platform": package.platform,
        "main-resource": "/".join(package.main_resource) if package.main_resource else None,
        "namespace": package.namespace,
        "self-test": ("passed" if self_test.passed else "failed")
        if self_test is not None
        else "none",
        "tensors:storages": str(package.storages.count),
        "tensors:bytes": str(package.storages.size_bytes),
        "hooks": str(len(package.hooks)),
    }
    return {name: value for name, value in found.items() if value is not None}


def sbom_of(
    audit: AuditFacts,
    digests: Mapping[str, str],
    *,
    form: Literal["json", "xml"] = "json",
    file_sha256: str | None = None,
    timestamp: datetime | None = None,
) -> str:
    """Return the bill of materials of a package as a CycloneDX 1.6 document.

    The same package gives the same document: the serial number follows from the digest, and the
    document contains no time unless one is given.

    Args:
        audit: Audit of a package file.
        digests: SHA-256 in hex of all records with code, by record.
        form: JSON or XML.
        file_sha256: SHA-256 of the package file in hex. None for a directory.
        timestamp: Time of the document. None to omit it.

    Raises:
        ValueError: If it is the audit of a plan.
        ArchiveError: If the package records values that such a document cannot contain.
    """
    bill = bill_of(audit, digests)
    if len(bill.items) > _MAX_ITEMS:
        reason = (
            f"the bill of materials has {len(bill.items)} components, and the limit is {_MAX_ITEMS}"
        )
        raise ArchiveError(audit.subject, reason)
    needs = len(bill.needs) + sum(len(item.needs) for item in bill.items)
    if needs > _MAX_NEEDS:
        reason = f"the bill of materials has {needs} dependencies, and the limit is {_MAX_NEEDS}"
        raise ArchiveError(audit.subject, reason)
    model = Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        name=printable(bill.name),
        version=f"sha256:{bill.digest}",
        hashes=_hashes({"sha256": file_sha256} if file_sha256 is not None else {}),
        properties=_properties(bill.facts.items()),
    )
    tool = Component(type=ComponentType.APPLICATION, name="modpack", version=__version__)
    components = {item.key: _component(audit.subject, item) for item in bill.items}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:modpack:{bill.digest}:{timestamp or ''}")
    bom = Bom(components=components.values(), serial_number=serial)
    bom.metadata.component = model
    bom.metadata.tools.components.add(tool)
    bom.metadata.timestamp = timestamp  # type: ignore[assignment]
    # Set all dependencies at once: adding them one by one takes quadratic time in the library.
    bom.dependencies = [
        _dependency(model, bill.needs, components),
        *(_dependency(components[item.key], item.needs, components) for item in bill.items),
    ]
    vars(bom)["register_dependency"] = _skip_registration
    output = make_outputter(bom, OutputFormat[form.upper()], SchemaVersion.V1_6)
    return output.output_as_string(indent=2) + "\n"


def _skip_registration(target: Dependable, depends_on: Iterable[Dependable] | None = None) -> None:
    """Do nothing, because the document has the dependencies of all components already.

    On output, the library registers each of them again, in quadratic time. A subclass cannot
    replace the method, because the library does not serialize subclasses.
    """


def _component(source: str, item: SbomComponent) -> Component:
    if len(item.version or "") > _LONGEST_VERSION:
        reason = f"the recorded version of {printable(item.name)[:80]} is too long for a version"
        raise ArchiveError(source, reason)
    version = printable(item.version) if item.version is not None else None
    facts = [*(("origin", origin) for origin in item.origins), *item.facts.items()]
    kind = ComponentType.FRAMEWORK if item.name == "torch" else ComponentType.LIBRARY
    urls = [XsUri(item.url)] if item.url is not None else []
    return Component(
        type=ComponentType.PLATFORM if item.key == PYTHON else kind,
        bom_ref=printable(item.key),
        name=printable(item.name),
        version=version,
        scope=item.need,
        licenses=_licenses(item.license),
        hashes=_hashes(item.hashes),
        purl=_purl(item),
        external_references=[
            ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=url) for url in urls
        ],
        properties=_properties(facts),
    )


def _purl(item: SbomComponent) -> PackageURL | None:
    """Return the package URL of a component (ECMA-427), or None."""
    if not item.is_indexed or not _NAME.fullmatch(item.name):
        return None
    return PackageURL("pypi", name=item.name, version=printable(item.version or "") or None)


def _licenses(stated: str | None) -> Iterator[License]:
    """Yield a license as an SPDX identifier, an SPDX expression, or free text."""
    if not stated:
        return
    known = fixup_id(stated)
    if known is not None:
        yield DisjunctiveLicense(id=known, acknowledgement=_DECLARED)
    elif len(stated) <= _LONGEST_EXPRESSION and is_expression(stated):
        yield LicenseExpression(stated, acknowledgement=_DECLARED)
    else:
        yield DisjunctiveLicense(name=printable(stated), acknowledgement=_DECLARED)


def _hashes(digests: Mapping[str, str]) -> Iterator[HashType]:
    for name, digest in digests.items():
        algorithm, length = _HASHES.get(name, (None, 0))
        if algorithm is not None and re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", digest):
            yield HashType(alg=algorithm, content=digest)


def _properties(facts: Iterable[tuple[str, str]]) -> Iterator[Property]:
    for name, value in facts:
        yield Property(name=f"modpack:{name}", value=printable(value))


def _dependency(
    component: Component, needs: Iterable[str], components: Mapping[str, Component]
) -> Dependency:
    known = (components[key] for key in needs if key in components)
    return Dependency(component.bom_ref, (Dependency(need.bom_ref) for need in known))
