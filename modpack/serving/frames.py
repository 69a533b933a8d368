"""Frames: the messages between the server and the processes that run its models.

A frame is the length of its header, the length of its payload, the header (JSON), and the payload.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from modpack.core.call_signature import CallSignature
from modpack.core.policy import TrustPolicy
from modpack.serving.settings import ServerSettings

Header = Mapping[str, Any]

_LENGTHS: Final = struct.Struct(">IQ")
_CHUNK: Final = 1 << 20
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class LoadOrder(NamedTuple):
    """An order to load a package in a process of its own.

    Attributes:
        name: Name of the model.
        path: The package.
        settings: The settings of the server.
        policy: The trust policy. None allows everything.
        digest: The digest that the package must have, or "" for any.
    """

    name: str
    path: str
    settings: ServerSettings = ServerSettings()
    policy: TrustPolicy | None = None
    digest: str = ""


class LoadedPackage(NamedTuple):
    """The description of a loaded package.

    Attributes:
        digest: Digest of the package, in hexadecimal.
        signature: Its call signature.
        can_fork: Whether workers can be forks of the process that loaded the package.
        warnings: Warnings of loading.
    """

    digest: str
    signature: CallSignature
    can_fork: bool
    warnings: tuple[str, ...]


def encode_frame(header: Header, parts: Sequence[bytes] = ()) -> bytes:
    """Return a frame, whose payload is the concatenation of ``parts``."""
    content = _encode(header)
    lengths = _LENGTHS.pack(len(content), sum(map(len, parts)))
    return b"".join([lengths, content, *parts])


class FrameDecoder:
    """Collects bytes and returns complete frames.

    >>> decoder = FrameDecoder()
    >>> sent = encode_frame({"jobs": 1}, [b"ab", b"c"])
    >>> [list(decoder.feed(sent[:5])), list(decoder.feed(sent[5:]))]
    [[], [({'jobs': 1}, bytearray(b'abc'))]]
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = _LENGTHS.size

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[dict[str, Any], bytearray]]:
        """Add bytes, and yield the frames that they complete."""
        self._buffer += data
        while len(self._buffer) >= self._needed:
            header_size, size = _LENGTHS.unpack_from(self._buffer)
            start = _LENGTHS.size + header_size
            self._needed = start + size
            # The pieces of a large payload are only appended until then, and nothing is parsed
            # again.
            if len(self._buffer) < self._needed:
                return
            payload, self._buffer = self._buffer, self._buffer[self._needed :]
            header = _decode(payload[_LENGTHS.size : start])
            del payload[self._needed :], payload[:start]  # without copying the rest
            self._needed = _LENGTHS.size
            yield header, payload


class Channel:
    """A blocking socket that sends and receives frames.

    Args:
        connection: The socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = memoryview(bytearray(_CHUNK))
        self._decoder = FrameDecoder()
        self._frames: deque[tuple[dict[str, Any], bytearray]] = deque()

    def send(self, header: Header, parts: Sequence[bytes] = ()) -> None:
        self.connection.sendall(encode_frame(header, parts))

    def receive(self) -> tuple[dict[str, Any], bytearray] | None:
        """Return the next frame, or None if the other end has closed the socket."""
        while not self._frames:
            count = self.connection.recv_into(self._received)
            if not count:
                return None
            self._frames.extend(self._decoder.feed(self._received[:count]))
        return self._frames.popleft()
