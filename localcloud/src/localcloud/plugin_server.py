"""gRPC servers for the Pulumi engine: on a free port of loopback, for processes of the same Unix user only.

Pulumi's plugin protocol has no authentication, and a language host runs any program in a request. A web page cannot
use gRPC, but another user of this computer can.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Final

import grpc

from localcloud.callers import MESSAGES, Unknown, log_refusal
from localcloud.same_user import is_of_user

HOST: Final = "127.0.0.1"
LARGEST_MESSAGE: Final = 400 * 1024 * 1024
"""Bytes; what Pulumi's own hosts allow."""
OPTIONS: Final = tuple((f"grpc.max_{way}_message_length", LARGEST_MESSAGE) for way in ("receive", "send"))
_grpc: Any = grpc  # the classes are generic in the library's stubs alone
_MAKERS: Final = MappingProxyType(
    {
        (False, False): ("unary_unary", _grpc.unary_unary_rpc_method_handler),
        (False, True): ("unary_stream", _grpc.unary_stream_rpc_method_handler),
        (True, False): ("stream_unary", _grpc.stream_unary_rpc_method_handler),
        (True, True): ("stream_stream", _grpc.stream_stream_rpc_method_handler),
    }
)


def make_server(
    workers: int, handlers: tuple[Any, ...] = (), uid: int | None = None, address: tuple[str, int] = (HOST, 0)
) -> tuple[grpc.Server, int]:
    """A server that has not been started, and its port.

    `uid`: whose processes may call it; None: our own user's. `address`: on loopback; port 0: a free one. Raises
    RuntimeError when the address is taken.
    """
    check = _OwnUserOnly(os.getuid() if uid is None else uid, address[0])
    pool = ThreadPoolExecutor(max_workers=workers)
    server: grpc.Server = _grpc.server(pool, handlers=handlers, interceptors=[check], options=OPTIONS)
    check.port = server.add_insecure_port(f"{address[0]}:{address[1]}")
    return server, check.port


class _OwnUserOnly(grpc.ServerInterceptor):
    def __init__(self, uid: int, host: str) -> None:
        self._uid = uid
        self._host = host
        self.port = 0

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        kind, make = _MAKERS[handler.request_streaming, handler.response_streaming]
        behaviour = getattr(handler, kind)

        def call(request: Any, context: Any) -> Any:
            if not self._is_own(context.peer()):
                log_refusal("plugin", "gRPC", handler_call_details.method, Unknown.OTHER_USER)
                context.abort(grpc.StatusCode.PERMISSION_DENIED, MESSAGES[Unknown.OTHER_USER])
            return behaviour(request, context)

        return make(
            call,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _is_own(self, peer: str) -> bool:
        """`peer` is `ipv4:127.0.0.1:PORT`, as gRPC names the other end."""
        family, _, rest = peer.partition(":")
        host, _, port = rest.rpartition(":")
        return (
            family == "ipv4" and port.isdigit() and is_of_user(self._uid, (host, int(port)), (self._host, self.port))
        )
