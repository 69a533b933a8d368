"""OCI registries: addresses, requests through oras, and the files of the packages in them.

A package is an artifact whose layers, one after the other, are the bytes of its file. Its shards
are further files of the artifact, and its detached signature is a referrer of the artifact.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import oras.auth
import oras.provider
import oras.utils
import requests
from fsspec.caching import BaseCache, BlockCache
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from modpack.archive import layout
from modpack.core.codec import from_json, json_keys
from modpack.core.json_values import parse_json
from modpack.errors import ArchiveError, ModpackError, NotAPackageError, PackageNotFoundError

PACKAGE_TYPE: Final = "application/vnd.modpack.package.v1"
SIGNATURE_TYPE: Final = "application/vnd.modpack.signature.v1"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
_DOCKER: Final = "application/vnd.docker.distribution.manifest"
_ACCEPTED: Final = (MANIFEST_TYPE, INDEX_TYPE, f"{_DOCKER}.v2+json", f"{_DOCKER}.list.v2+json")
TITLE: Final = "org.opencontainers.image.title"
FILE: Final = "io.github.modpack.file"
"""The annotation of a layer with the name of the file that it is a part of."""

_NAME: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_ADDRESS: Final = re.compile(
    r"(?P<registry>[A-Za-z0-9.-]*[.:][A-Za-z0-9.:-]*)"
    rf"/(?P<repository>{_NAME}(?:/{_NAME})*)"
    r"(?:(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})|@(?P<digest>sha256:[0-9a-f]{64}))"
    r"(?:/(?P<file>[^/]+))?)?"
)
_HOSTS: Final = {"docker.io": ("registry-1.docker.io", "https://index.docker.io/v1/")}
"""Hosts whose API has another name than their addresses, and Docker's name of the credentials."""
_LOOPBACK: Final = re.compile(r"(localhost|127(\.\d+){3})(:\d+)?")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_MANIFEST_BYTES: Final = 4 << 20
"""The size that registries accept (OCI distribution specification, section "Push")."""
_MAX_MANIFEST_MEMORY: Final = 256 << 20
_BLOCK_BYTES: Final = 1 << 18
_BLOCKS: Final = 64
"""Blocks of an open file that are kept; of a file with very many layers, two of each."""
_SECONDS: Final = 60
"""The time that a registry may take for the next bytes."""

# Pushing it again does not help: the registry would answer that it has the blob.
_RESTORE: Final = "Restore the registry's storage, or push the package to another registry."


class Address(NamedTuple):
    """The address of an artifact, or of a file of it.

    Attributes:
        registry: Host and port.
        repository: Path of the repository.
        reference: A tag, or the digest of a manifest.
        file: A shard or ``.sig``. Empty for the package.
    """

    registry: str
    repository: str
    reference: str
    file: str = ""

    @property
    def url(self) -> str:
        """The artifact's URL."""
        separator = "@" if ":" in self.reference else ":"
        return f"oci://{self.registry}/{self.repository}{separator}{self.reference}"


def parse_address(text: str) -> Address:
    """Return the address in ``REGISTRY/REPOSITORY:TAG``, with or without ``oci://`` before it.

    Raises:
        ModpackError: If the text is not an address.

    >>> parse_address("oci://ghcr.io/team/net:1.0").repository
    'team/net'
    >>> parse_address("ghcr.io/team/net").url
    'oci://ghcr.io/team/net:latest'
    """
    text = re.sub("^oci://", "", text, flags=re.IGNORECASE)
    found = _ADDRESS.fullmatch(text)
    if found is None:
        # A password in an address must not get into logs.
        shown = text.rpartition("@")[2] if "@" in text.partition("/")[0] else text
        reason = "this is not the address of a package in a registry"
        hint = "Pass REGISTRY/REPOSITORY:TAG in lower case, such as ghcr.io/team/net:1.0."
        if shown != text:
            reason, hint = "the address contains credentials", "Remove them, and run: docker login"
        raise ModpackError(f"{shown}: {reason}", hint=hint)
    reference = found["tag"] or found["digest"] or "latest"
    return Address(found["registry"], found["repository"], reference, found["file"] or "")


@json_keys(
    {"media_type": "mediaType", "artifact_type": "artifactType"},
    optional=("artifact_type", "annotations"),
)
class Descriptor(NamedTuple):
    """The reference of a manifest to a blob, or of an index to a manifest."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    annotations: Mapping[str, str] | None = None


@json_keys(
    {"artifact_type": "artifactType"},
    optional=("artifact_type", "layers", "manifests", "annotations"),
)
class Manifest(NamedTuple):
    """A manifest or an index, as far as modpack reads it."""

    artifact_type: str = ""
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()
    annotations: Mapping[str, str] | None = None


class Artifact(NamedTuple):
    """A package in a registry.

    Attributes:
        digest: Digest of the artifact's manifest.
        files: The layers of each file. The name of the package is empty.
    """

    digest: str
    files: dict[str, list[Descriptor]]


class Repository(oras.provider.Registry):  # type: ignore[misc] # has no types
    """A repository, as oras reaches it. Credentials are those of Docker's configuration.

    Args:
        address: An address in the repository, which errors name.

    Raises:
        ArchiveError: If the host is not a registry, or requires credentials that are missing.
    """

    def __init__(self, address: Address) -> None:
        host, login = _HOSTS.get(address.registry, (address.registry, address.registry))
        # As in Docker and its relatives: only registries on this machine need no TLS.
        is_local = _LOOPBACK.fullmatch(host) is not None
        super().__init__(host, insecure=is_local)
        self.address = address
        self.root = f"{self.prefix}://{host}/v2/"
        self.container = self.get_container(f"{host}/{address.repository}")
        self.session.request = partial(self.session.request, timeout=_SECONDS)
        retries = Retry(3, connect=1, backoff_factor=0.5, status_forcelist=(429, 502, 503, 504))
        self.session.mount(f"{self.prefix}://", HTTPAdapter(max_retries=retries))
        with self._errors_explained():
            answer = self.session.get(self.root)
        if answer.status_code not in (200, 401):
            reason = f"{address.registry} is not an OCI registry (HTTP {answer.status_code})"
            raise ArchiveError(address.url, reason, hint="Check the host and the port.")
        is_basic = answer.headers.get("WWW-Authenticate", "").lower().startswith("basic")
        if is_basic:
            self.auth = oras.auth.get_auth_backend("basic", self.session, is_local)
        config = Path(os.environ.get("DOCKER_CONFIG", "~/.docker"), "config.json").expanduser()
        try:
            configs = [str(config)] if config.is_file() else []
            self.container.registry = login
            self.auth.load_configs(self.container, configs=configs)
            self.container.registry = host
        except (ValueError, KeyError) as error:
            reason = f"the credentials in Docker's configuration cannot be read ({config})"
            raise ArchiveError(address.url, reason, hint="Run: docker login") from error
        if is_basic and not hasattr(self.auth, "_basic_auth"):
            raise self._denied()

    def do_request(self, url: str, method: str = "GET", **given: Any) -> requests.Response:
        """Make a request, as all methods of oras do.

        Without oras's decorator, which repeats a refusal like any failure for two minutes.

        Raises:
            ArchiveError: If the registry cannot be reached, or refuses.
        """
        send = inspect.unwrap(oras.provider.Registry.do_request)
        try:
            with self._errors_explained():
                answer: requests.Response = send(self, url, method, **given)
                if answer.status_code == 401 and getattr(self.auth, "token", None):
                    # oras keeps its first token, and one for pulling does not allow to push.
                    self.auth.token = None
                    answer = send(self, url, method, **given)
        except ValueError as error:  # oras has no credentials for what the registry requires
            raise self._denied() from error
        if answer.status_code in (401, 403):
            raise self._denied()
        return answer

    def request(self, method: str, path: str, *expected: int, **given: Any) -> requests.Response:
        """Make a request in the repository.

        Raises:
            ArchiveError: If the registry answers with another status than the expected ones.
        """
        url = f"{self.root}{self.address.repository}/{path}"
        answer = self.do_request(url, method, **given)
        if answer.status_code not in expected:
            reason = f"the registry answered {method} {path} with HTTP {answer.status_code}"
            raise ArchiveError(self.address.url, reason)
        return answer

    def read_manifest(self, reference: str) -> tuple[Manifest, bytes] | None:
        """Return a manifest and its content, or None if it does not exist.

        Raises:
            ArchiveError: If it cannot be read, or is not the one that the digest names.
        """
        path, headers = f"manifests/{reference}", {"Accept": ", ".join(_ACCEPTED)}
        answer = self.request("GET", path, 200, 404, headers=headers, stream=True)
        if answer.status_code == 404:
            return None
        content = b"".join(self._chunks_of(answer, _MAX_MANIFEST_BYTES))
        digest = digest_of(content)
        if ":" in reference and reference != digest:
            reason = f"the registry answered with the manifest {digest}"
            raise ArchiveError(self.address.url, reason)
        return self._decode(content), content

    @cached_property
    def artifact(self) -> Artifact:
        """The package at the address.

        Raises:
            PackageNotFoundError: If the tag or the repository does not exist.
            ArchiveError: If it cannot be read, or is not a package.
        """
        url = self.address.url
        found = self.read_manifest(self.address.reference)
        if found is None:
            raise PackageNotFoundError(
                url, "the registry has no such repository or tag", hint="Check the address."
            )
        manifest, content = found
        if manifest.artifact_type != PACKAGE_TYPE:
            kind = manifest.artifact_type or "a container image"
            hint = "Push the package with modpack push."
            raise NotAPackageError(url, f"this is not a package, but {kind}", hint=hint)
        files: dict[str, list[Descriptor]] = {}
        for each in manifest.layers:
            files.setdefault((each.annotations or {}).get(FILE, ""), []).append(each)
        files[""] = files.pop((manifest.annotations or {}).get(TITLE, ""), [])
        return Artifact(digest_of(content), files)

    def find_signature(self, digest: str) -> Descriptor | None:
        """Return the blob of the signature that refers to a manifest, the newest of several.

        Raises:
            ArchiveError: If the registry cannot be read.
        """
        answer = self.request("GET", f"referrers/{digest}", 200, 400, 404, 405, stream=True)
        if answer.status_code == 200:
            index = self._decode(b"".join(self._chunks_of(answer, _MAX_MANIFEST_BYTES)))
        else:
            found = self.read_manifest(fallback_tag(digest))
            index = found[0] if found is not None else Manifest()
        signatures = [e.digest for e in index.manifests if e.artifact_type == SIGNATURE_TYPE]
        referrer = self.read_manifest(signatures[-1]) if signatures else None
        blob = referrer[0].layers[0] if referrer and referrer[0].layers else None
        if blob is not None and blob.size > layout.MAX_SIGNATURE_BYTES:
            raise self._damaged(blob, f"is larger than {layout.MAX_SIGNATURE_BYTES} bytes")
        return blob

    def read_range(self, blob: Descriptor, start: int, stop: int) -> bytes:
        """Return a part of a blob, which may end before ``stop``; see :meth:`read_blob`."""
        return b"".join(self.read_blob(blob, start, min(stop, blob.size)))

    def read_blob(
        self, blob: Descriptor, start: int = 0, stop: int | None = None
    ) -> Iterator[bytes]:
        """Yield a blob, or a part of it, in chunks. After the last one, the digest is checked.

        Raises:
            ArchiveError: If the blob is missing, truncated, or damaged, or the registry has no
                ranges.
        """
        size = (blob.size if stop is None else stop) - start
        is_whole = size == blob.size
        headers = {} if is_whole else {"Range": f"bytes={start}-{start + size - 1}"}
        path = f"blobs/{blob.digest}"
        answer = self.request("GET", path, 200, 206, 404, 416, headers=headers, stream=True)
        if answer.status_code == 404:
            raise self._damaged(blob, "is missing", "Push the package again.")
        if answer.status_code == 416:
            raise self._damaged(blob, f"is truncated: byte {start} does not exist")
        if answer.status_code == 200 and not is_whole:
            reason = "the registry does not answer range requests"
            raise ArchiveError(self.address.url, reason, hint="Use modpack pull.")
        digest, received = hashlib.sha256(), 0
        for chunk in self._chunks_of(answer, size):
            digest.update(chunk)
            received += len(chunk)
            yield chunk
        if received != size:
            problem = "truncated" if received < size else "too long"
            raise self._damaged(blob, f"is {problem}: {received} bytes of {size}")
        if is_whole and f"sha256:{digest.hexdigest()}" != blob.digest:
            raise self._damaged(blob, "is damaged: its content has another digest")

    def put_blob(self, digest: str, content: bytes) -> None:
        """Upload a blob.

        Raises:
            ArchiveError: If the registry does not accept it.
        """
        opened = self.request("POST", "blobs/uploads/", 202)
        location = self._get_location(opened, self.container)
        url = oras.utils.append_url_params(location, {"digest": digest})
        headers = {"Content-Type": "application/octet-stream"}
        answer = self.do_request(url, "PUT", data=content, headers=headers)
        if answer.status_code != 201:
            reason = f"the registry refused a blob (HTTP {answer.status_code})"
            raise ArchiveError(self.address.url, reason, hint="Push the package again.")

    def put_manifest(
        self, reference: str, content: bytes, kind: str = MANIFEST_TYPE
    ) -> requests.Response:
        """Upload a manifest.

        Args:
            reference: The tag or the digest.
            content: The manifest.
            kind: Its media type.

        Raises:
            ArchiveError: If the registry does not accept it.
        """
        headers = {"Content-Type": kind}
        return self.request("PUT", f"manifests/{reference}", 201, data=content, headers=headers)

    def _chunks_of(self, answer: requests.Response, max_bytes: int) -> Iterator[bytes]:
        """Yield the body of an answer; of a longer one, its start with one chunk too many."""
        with answer, self._errors_explained():
            for chunk in answer.iter_content(1 << 18):
                yield chunk
                max_bytes -= len(chunk)
                if max_bytes < 0:
                    return

    def _decode(self, content: bytes) -> Manifest:
        try:
            if len(content) > _MAX_MANIFEST_BYTES:
                raise ValueError(f"the manifest has more than {_MAX_MANIFEST_BYTES} bytes")
            document = parse_json(content, _MAX_MANIFEST_MEMORY)
            manifest = from_json(Manifest, document, "the manifest")
            for each in (*manifest.layers, *manifest.manifests):
                if not _DIGEST.fullmatch(each.digest):
                    raise ValueError(f"{each.digest!r:.80} is not a SHA-256 digest")
        except (TypeError, ValueError) as failure:
            reason = f"the manifest in the registry cannot be read: {failure}"
            raise NotAPackageError(self.address.url, reason) from failure
        return manifest

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except requests.RequestException as error:
            # Texts of these errors contain URLs, and those of redirects can be credentials.
            cause = getattr(error.args[0] if error.args else None, "reason", None)
            reason = f"the request to the registry failed: {cause or type(error).__name__}"
            hint = "Check the host, the port, and the network."
            raise ArchiveError(self.address.url, reason, hint=hint) from error

    def _denied(self) -> ArchiveError:
        hint = f"Run: docker login {self.address.registry}, or ask for access to the repository."
        return ArchiveError(self.address.url, "the registry denied access", hint=hint)

    def _damaged(self, blob: Descriptor, problem: str, hint: str = _RESTORE) -> ArchiveError:
        return ArchiveError(self.address.url, f"the blob {blob.digest} {problem}", hint=hint)


class RegistryFiles(AbstractFileSystem):  # type: ignore[misc] # has no types
    """The packages of registries as files that fsspec reads."""

    protocol = "oci-registry"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._repositories: dict[str, Repository] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        address = parse_address(path)
        return address.url.removeprefix("oci://") + (f"/{address.file}" if address.file else "")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        _, layers = self.find(path)
        digests = ",".join(each.digest for each in layers)
        size = sum(each.size for each in layers)
        return {"name": path, "size": size, "type": "file", "digest": digests}

    def invalidate_cache(self, path: str | None = None) -> None:
        # A digest always names the same artifact, and shards and signatures are read after it.
        address = parse_address(path or "")
        found = self._repositories.get(address.url)
        known = found.__dict__ if found is not None else {}
        if address.file and "artifact" in known:
            known["artifact"].files.pop(layout.DETACHED_SIGNATURE, None)
        elif ":" not in address.reference:
            known.pop("artifact", None)

    def cat_file(self, path: str, start: int, end: int, **options: Any) -> bytes:
        repository, layers = self.find(path)
        return _read((BaseCache(0, *_source(repository, each)) for each in layers), start, end)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> AbstractBufferedFile:
        return _RegistryFile(self, path, mode, cache_type="none", size=self.info(path)["size"])

    def find(self, path: str) -> tuple[Repository, list[Descriptor]]:
        """Return the repository and the layers of a file."""
        address = parse_address(path)
        repository = self._repositories.pop(address.url, None) or Repository(address)
        artifact = repository.artifact
        # Only now: if the registry refuses, the next attempt may have other credentials.
        self._repositories[address.url] = repository
        if address.file == layout.DETACHED_SIGNATURE and address.file not in artifact.files:
            signature = repository.find_signature(artifact.digest)
            artifact.files[address.file] = [signature] if signature is not None else []
        layers = artifact.files.get(address.file)
        if not layers:
            raise FileNotFoundError(path)
        return repository, layers


class _RegistryFile(AbstractBufferedFile):  # type: ignore[misc] # has no types
    @cached_property
    def _layers(self) -> list[BlockCache]:
        # Most layers without weights are smaller than a block, so that each is requested once.
        repository, layers = self.fs.find(self.path)
        most = max(_BLOCKS // len(layers), 2)
        return [BlockCache(_BLOCK_BYTES, *_source(repository, each), most) for each in layers]

    def _fetch_range(self, start: int, stop: int) -> bytes:
        return _read(self._layers, start, stop)


def _source(repository: Repository, layer: Descriptor) -> tuple[Callable[..., bytes], int]:
    return partial(repository.read_range, layer), layer.size


def _read(layers: Iterable[BaseCache], start: int, stop: int) -> bytes:
    pieces = []
    for layer in layers:
        pieces.append(layer._fetch(max(start, 0), min(stop, layer.size)))
        start, stop = start - layer.size, stop - layer.size
    return b"".join(pieces)


def digest_of(content: bytes) -> str:
    """Return the digest of a blob as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def fallback_tag(digest: str) -> str:
    """Return the tag of the index of a manifest's referrers, in registries that keep no list.

    >>> fallback_tag("sha256:ab")
    'sha256-ab'
    """
    return digest.replace(":", "-")
