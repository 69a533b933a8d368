"""A bill of materials in the words of CycloneDX 1.6; needs the extra ``sbom``."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
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
from modpack.core.text import printable
from modpack.errors import ArchiveError
from modpack.report.audit_facts import AuditFacts
from modpack.report.bill import PYTHON, Bill, Item, bill_of

_DECLARED: Final = LicenseAcknowledgement.DECLARED
"""Licences are what metadata says; nobody has looked whether that is true."""
_LONGEST_EXPRESSION: Final = 1000
"""Characters of a licence that are looked at for what they mean."""
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""A distribution's name (core metadata)."""
_MOST_ITEMS: Final = 5000
"""Far beyond what an environment holds; the library's time grows with the square of it."""
_MOST_NEEDS: Final = 20_000
"""Likewise, of dependencies in all."""
_LONGEST_VERSION: Final = 1024
"""Characters that the schema allows."""
_HASHES: Final = {
    "md5": (HashAlgorithm.MD5, 32),
    "sha1": (HashAlgorithm.SHA_1, 40),
    "sha256": (HashAlgorithm.SHA_256, 64),
    "sha384": (HashAlgorithm.SHA_384, 96),
    "sha512": (HashAlgorithm.SHA_512, 128),
}
"""The algorithms that both pip and CycloneDX know, with the length of their digests in hex."""


def sbom_of(
    audit: AuditFacts,
    digests: Mapping[str, str],
    *,
    form: Literal["json", "xml"] = "json",
    file_sha256: str | None = None,
    timestamp: datetime | None = None,
) -> str:
    """The bill of materials of a package as a CycloneDX 1.6 document.

    The same package gives the same document: its serial number is made of the package's digest,
    and no time is in it unless one is given.

    Args:
        audit: the audit of a package file.
        digests: the sha256 of records in hex, by record; of all that hold code.
        form: JSON or XML.
        file_sha256: the sha256 of the package's file in hex; None for a folder.
        timestamp: when the document is made, for those who must say so.

    Raises:
        ValueError: it is the audit of a plan.
        ArchiveError: the package records something that cannot stand in such a document.
    """
    bill = bill_of(audit, digests)
    if len(bill.items) > _MOST_ITEMS:
        reason = f"its bill of materials would have {len(bill.items)} items; {_MOST_ITEMS} is most"
        raise ArchiveError(audit.subject, reason)
    needs = len(bill.needs) + sum(len(item.needs) for item in bill.items)
    if needs > _MOST_NEEDS:
        reason = f"its bill of materials would have {needs} dependencies; {_MOST_NEEDS} is most"
        raise ArchiveError(audit.subject, reason)
    model = _model(bill, file_sha256)
    components = {item.key: _component(audit.subject, item) for item in bill.items}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:modpack:{bill.digest}:{timestamp or ''}")
    bom = Bom(components=components.values(), serial_number=serial)
    bom.metadata.component = model
    bom.metadata.tools.components.add(_tool())
    bom.metadata.timestamp = timestamp  # type: ignore[assignment]
    # All at once: one by one, the library looks each up among all that are there already.
    bom.dependencies = [
        _dependency(model, _chosen(components, bill.needs)),
        *(_dependency(components[i.key], _chosen(components, i.needs)) for i in bill.items),
    ]
    vars(bom)["register_dependency"] = _take_as_registered
    output = make_outputter(bom, OutputFormat[form.upper()], SchemaVersion.V1_6)
    return output.output_as_string(indent=2) + "\n"


def _take_as_registered(target: Dependable, depends_on: Iterable[Dependable] | None = None) -> None:
    """Do nothing, for a document that has been given the dependencies of all its components.

    When it is written, the library registers each of them again, and looks it up among all others.
    A class derived from its own would not be written like that.
    """


def _model(bill: Bill, file_sha256: str | None) -> Component:
    hashes = {"sha256": file_sha256} if file_sha256 is not None else {}
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        name=printable(bill.name),
        version=f"sha256:{bill.digest}",
        hashes=_hashes(hashes),
        properties=_properties(bill.facts.items()),
    )


def _tool() -> Component:
    return Component(type=ComponentType.APPLICATION, name="modpack", version=__version__)


def _component(source: str, item: Item) -> Component:
    if len(item.version or "") > _LONGEST_VERSION:
        reason = f"it records a version of {printable(item.name)[:80]} that is no version"
        raise ArchiveError(source, reason)
    version = printable(item.version) if item.version is not None else None
    facts = [*(("origin", origin) for origin in item.origins), *item.facts.items()]
    return Component(
        type=_type(item),
        bom_ref=printable(item.key),
        name=printable(item.name),
        version=version,
        scope=ComponentScope(item.need.value),
        licenses=_licences(item.licence),
        hashes=_hashes(item.hashes),
        purl=_purl(item),
        external_references=_references(item.url),
        properties=_properties(facts),
    )


def _type(item: Item) -> ComponentType:
    if item.key == PYTHON:
        return ComponentType.PLATFORM
    return ComponentType.FRAMEWORK if item.name == "torch" else ComponentType.LIBRARY


def _purl(item: Item) -> PackageURL | None:
    """What names it across ecosystems (ECMA-427)."""
    if not item.is_indexed or not _NAME.fullmatch(item.name):
        return None
    return PackageURL("pypi", name=item.name, version=printable(item.version or "") or None)


def _licences(stated: str | None) -> Iterator[License]:
    """A licence: by its SPDX identifier, as an SPDX expression, or in the words of its owner."""
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


def _references(url: str | None) -> Iterator[ExternalReference]:
    if url is not None:
        yield ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(url))


def _properties(facts: Iterable[tuple[str, str]]) -> Iterator[Property]:
    for name, value in facts:
        yield Property(name=f"modpack:{name}", value=printable(value))


def _dependency(component: Component, needs: Iterable[Component]) -> Dependency:
    return Dependency(component.bom_ref, (Dependency(need.bom_ref) for need in needs))


def _chosen(components: Mapping[str, Component], keys: Iterable[str]) -> Iterator[Component]:
    return (components[key] for key in keys if key in components)
