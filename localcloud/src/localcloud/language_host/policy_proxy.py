"""A proxy between the engine and a policy pack. It starts the pack when the stack is known.

A pack of Python reads its stack's name and configuration from its environment when it starts, but the engine sends
them in a later call (`ConfigureStack`). Pulumi's own language host has such a proxy, too.
"""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import analyzer_pb2 as analyzer

from localcloud.plugin_server import OPTIONS, make_server

SERVICE: Final = "/pulumirpc.Analyzer/"

if TYPE_CHECKING:
    # bytes pass as they came; the classes are generic in the library's stubs alone
    _Handler = grpc.RpcMethodHandler[bytes, bytes]
    _Passed = grpc.UnaryUnaryMultiCallable[bytes, bytes]

Start = Callable[[Mapping[str, str]], "subprocess.Popen[bytes]"]


class PolicyProxy(grpc.GenericRpcHandler):
    """Serves Analyzer on `port`: answers the handshake, then passes everything on to the pack."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.start_ended = threading.Event()
        """Set when the pack has started, has failed to start, or will not be started."""
        self._server, self.port = make_server(8, (self,))
        self._server.start()

    @property
    def process(self) -> "subprocess.Popen[bytes] | None":
        """The pack's process; its first line of output, the port, has been read."""
        return self._process

    def stop(self) -> None:
        """Stop serving, and start no more processes."""
        self.start_ended.set()
        self._server.stop(grace=None)
        if self._channel is not None:
            self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "_Handler | None":
        method = str(handler_call_details.method)
        if not method.startswith(SERVICE):
            return None

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            return self._answer(method, request, context)

        handler: _Handler = grpc.unary_unary_rpc_method_handler(answer)
        return handler

    def _answer(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        name = method.removeprefix(SERVICE)
        if name == "Handshake":
            return analyzer.AnalyzerHandshakeResponse().SerializeToString()
        if name == "Cancel" and self._channel is None:
            self.start_ended.set()
            return empty_pb2.Empty().SerializeToString()
        environment: Mapping[str, str] = {}
        if name == "ConfigureStack":
            environment = stack_environment(analyzer.AnalyzerStackConfigureRequest.FromString(request))
        try:
            channel = self._pack(environment)
            call: _Passed = channel.unary_unary(method)
            return call(request)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details() or "")
        except (OSError, ValueError) as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the policy pack did not start: {error}")

    def _pack(self, environment: Mapping[str, str]) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                try:
                    self._process = self._start(environment)
                    port = int(_first_line(self._process))
                finally:
                    self.start_ended.set()
                self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
            return self._channel


def stack_environment(request: analyzer.AnalyzerStackConfigureRequest) -> dict[str, str]:
    """The environment variables of the stack that `pulumi.policy` reads."""
    return {
        "PULUMI_PROJECT": request.project,
        "PULUMI_STACK": request.stack,
        "PULUMI_ORGANIZATION": request.organization or "organization",
        "PULUMI_DRY_RUN": "true" if request.dry_run else "false",
        "PULUMI_CONFIG": json.dumps(dict(request.config)),
        "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(request.config_secret_keys)),
    }


def _first_line(process: "subprocess.Popen[bytes]") -> bytes:
    # byte by byte: what comes after the line belongs to another reader
    line = b""
    while process.stdout is not None and not line.endswith(b"\n"):
        if not (byte := os.read(process.stdout.fileno(), 1)):
            break
        line += byte
    return line
