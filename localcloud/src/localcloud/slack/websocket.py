"""The server's side of a websocket (RFC 6455), as far as Socket Mode needs it: text, ping, close."""

import base64
import hashlib
import socket
import struct
import threading
from contextlib import suppress
from enum import IntEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final

_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_BYTES: Final = 1 << 20


class Opcode(IntEnum):
    """What a frame holds."""

    TEXT = 1
    CLOSE = 8
    PING = 9
    PONG = 10


class WebSocket:
    """One connection, taken over from an HTTP request that asks for it. Raises ValueError when it does not."""

    def __init__(self, request: BaseHTTPRequestHandler) -> None:
        key = request.headers.get("Sec-WebSocket-Key")
        if request.headers.get("Upgrade", "").lower() != "websocket" or not key:
            raise ValueError("the request asks for no websocket")
        accept = base64.b64encode(hashlib.sha1(f"{key}{_GUID}".encode(), usedforsecurity=False).digest()).decode()
        request.send_response(HTTPStatus.SWITCHING_PROTOCOLS)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            request.send_header(name, value)
        request.end_headers()
        request.close_connection = True
        self._request = request
        self._lock = threading.Lock()

    def send(self, text: str, opcode: Opcode = Opcode.TEXT) -> None:
        """One whole frame. Raises OSError when the client has disconnected."""
        data = text.encode()
        head = bytes([0x80 | opcode])
        if len(data) < 126:
            head += bytes([len(data)])
        elif len(data) < 1 << 16:
            head += b"\x7e" + struct.pack(">H", len(data))
        else:
            head += b"\x7f" + struct.pack(">Q", len(data))
        with self._lock:
            self._request.wfile.write(head + data)
            self._request.wfile.flush()

    def receive(self) -> str | None:
        """The next text; pings are answered on the way. None: the client closed the connection."""
        while True:
            head = self._request.rfile.read(2)
            if len(head) < 2:
                return None
            opcode, length = head[0] & 0x0F, head[1] & 0x7F
            if length >= 126:
                more = self._request.rfile.read(2 if length == 126 else 8)
                length = int.from_bytes(more, "big")
            if length > _MAX_BYTES:
                return None
            mask = self._request.rfile.read(4) if head[1] & 0x80 else bytes(4)
            masked = self._request.rfile.read(length)
            data = bytes(byte ^ mask[n % 4] for n, byte in enumerate(masked))
            if opcode == Opcode.TEXT:
                return data.decode()
            if opcode == Opcode.CLOSE:
                return None
            if opcode == Opcode.PING:
                self.send(data.decode(), Opcode.PONG)

    def close(self) -> None:
        """Send a close frame and close: a client may miss one that arrives together with another frame."""
        with suppress(OSError):  # the client closed first
            self.send("", Opcode.CLOSE)
            self._request.connection.shutdown(socket.SHUT_RDWR)
