"""One unary gRPC call to a server on this machine: HTTP/2 without encryption. Standard library only.

It supports what such a call needs (RFC 9113, and gRPC over HTTP/2): header fields without compression, one stream,
messages below the first flow-control window. Statuses are not decoded: a call without a complete message failed.
"""

import socket
import struct
import time
from collections.abc import Iterator
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_ACK, _END_STREAM, _END_HEADERS, _PADDED = 1, 1, 4, 8
_STREAM: Final = 1
_LONGEST_NAME: Final = 127
"""Length of a name or value that fits into one byte of HPACK."""
_LARGEST: Final = 65_535
"""Bytes of an answer: the first window of flow control, which is not extended."""


class CallError(OSError):
    """The call has no complete answer."""


def call(address: tuple[str, int], method: str, message: bytes, timeout_s: float) -> bytes:
    """Return the serialized answer. `method`: `/package.Service/Method`. Raises OSError."""
    until = time.monotonic() + timeout_s
    with socket.create_connection(address, timeout_s) as connection:
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": f"{address[0]}:{address[1]}",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        fields = b"".join(_field(name, value) for name, value in headers.items())
        body = struct.pack(">BI", 0, len(message)) + message
        connection.sendall(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, b"")
            + _frame(_HEADERS, _END_HEADERS, _STREAM, fields)
            + _frame(_DATA, _END_STREAM, _STREAM, body)
        )
        return _message(b"".join(_answer(connection, until)))


def _field(name: str, value: str) -> bytes:
    """Encode a literal field that is neither compressed nor indexed (RFC 7541, 6.2.2)."""
    parts = [name.encode(), value.encode()]
    if any(len(part) >= _LONGEST_NAME for part in parts):
        raise ValueError(f"header field {name}: expected less than {_LONGEST_NAME} bytes, got {value!r}")
    return b"\0" + b"".join(bytes([len(part)]) + part for part in parts)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _answer(connection: socket.socket, until: float) -> Iterator[bytes]:
    """Yield the data of the stream until its end. Raises OSError."""
    total = 0
    while True:
        head = _exactly(connection, 9, until)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if size > _LARGEST:
            raise CallError(f"the server sent a frame of {size} bytes")
        payload = _exactly(connection, size, until)
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            connection.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind in (_RST_STREAM, _GOAWAY):
            raise CallError("the server ended the call")
        elif kind == _DATA:
            data = payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
            total += len(data)
            if total > _LARGEST:
                raise CallError(f"the answer is longer than {_LARGEST} bytes")
            yield data
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return


def _exactly(connection: socket.socket, size: int, until: float) -> bytes:
    received = b""
    while len(received) < size:
        rest = until - time.monotonic()
        if rest <= 0:
            raise CallError("the server did not answer in time")
        connection.settimeout(rest)
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise CallError("the server closed the connection")
        received += chunk
    return received


def _message(data: bytes) -> bytes:
    """Return the message of a stream. Raises CallError without a complete, uncompressed one."""
    head = 5
    if len(data) < head or data[0] != 0 or len(data) - head < int.from_bytes(data[1:head], "big"):
        raise CallError("the server refused the call")
    return data[head : head + int.from_bytes(data[1:head], "big")]
