"""The OpenAI API of the simulated engine, with vLLM's answers and errors."""

import json
import os
import re
import select
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from gpufleet.domain.loopback import foreign, header_of
from gpufleet.domain.parsed import is_list
from localcloud.callers import MESSAGES, log_refusal
from localcloud.documents import inner, is_document
from localcloud.engine.arguments import SimulatorSettings
from localcloud.engine.batch import Batch, CompletionRequest, Finish, QueueFullError, ShuttingDownError
from localcloud.engine.endpoints import Served, answer
from localcloud.engine.responses import delta, part, usage
from localcloud.faults import FAULT_FOLDER

_PIECES: Final = re.compile(r"\w{1,6}|[^\w\s]")
_LARGEST_BODY: Final = 16 * 1024 * 1024
_GUARDED: Final = ("/v1", "/v2", "/inference", "/cohere")
"""Prefixes of the paths that need the API key, as in vLLM 0.32 (`AuthenticationMiddleware`)."""


_OPEN_OF_SGLANG: Final = frozenset({"/health", "/health_generate", "/ready", "/metrics"})
"""The paths that need no API key, as in SGLang 0.5.23."""


class EngineServer(ThreadingHTTPServer):
    """Binds its address at once, accepts connections when the model is loaded."""

    daemon_threads = True
    request_queue_size = 512
    allow_reuse_address = True

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.batch: Batch | None = None
        self.draining = threading.Event()
        """Whether SIGTERM was received. SGLang shows it, and accepts requests until none runs."""
        self.faults = Path(os.environ.get("GPUFLEET_ROOT", "/")) / FAULT_FOLDER
        super().__init__((settings.host, settings.port), _Handler, bind_and_activate=False)

    def hangs(self) -> bool:
        """Whether the fault `engine-hang` is on."""
        return (self.faults / "engine-hang").exists()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _RefusedError(Exception):
    """An error response in OpenAI's format."""

    def __init__(self, status: HTTPStatus, message: str, kind: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.parameter = status, kind, parameter


def _bad(message: str, parameter: str | None = None) -> _RefusedError:
    return _RefusedError(HTTPStatus.BAD_REQUEST, message, "BadRequestError", parameter)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gpu-fleet-simulated-engine/0.32.0"
    sys_version = ""
    timeout = 600

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the engine's unit disables the request log."""

    def parse_request(self) -> bool:
        """Wait while the fault `engine-hang` is on, as an engine whose core hangs."""
        understood = super().parse_request()
        while understood and self._engine.hangs():
            time.sleep(0.5)
        return understood and self._is_of_no_other_site()

    def _is_of_no_other_site(self) -> bool:
        """Whether the request comes from no page of another site. A proxy sets Host, so any name is valid."""
        host = header_of(self.headers, "Host") or ""
        found = foreign(lambda name: host if name == "Host" else header_of(self.headers, name), {host})
        if found is not None:
            log_refusal("simulated engine", self.command, self.path, found)
            self.close_connection = True
            self._answer(HTTPStatus.FORBIDDEN, f"{MESSAGES[found]}\n".encode(), "text/plain")
        return found is None

    @property
    def _engine(self) -> EngineServer:
        assert isinstance(self.server, EngineServer)
        return self.server

    @property
    def _batch(self) -> Batch:
        assert self._engine.batch is not None
        return self._engine.batch

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if not self._authorised(path):
            return
        if not self._page("GET", path):
            self._json(HTTPStatus.NOT_FOUND, {"detail": "Not Found"})

    def _page(self, method: str, path: str) -> bool:
        """Answer one of the engine's pages; False: it has no such page."""
        engine = self._engine
        served = Served(
            settings=engine.settings,
            loaded=engine.batch,
            draining=engine.draining.is_set(),
            accept=header_of(self.headers, "Accept") or "",
        )
        found = answer(method, path, served)
        if found is not None:
            self._answer(found.status, found.body, found.content_type)
        return found is not None

    def do_POST(self) -> None:
        path = self.path.split("?")[0]
        body = self._read_body()
        if not self._authorised(path):
            return
        if self._page("POST", path):
            return
        if path not in ("/v1/completions", "/v1/chat/completions"):
            self._json(HTTPStatus.NOT_FOUND, {"detail": "Not Found"})
            return
        try:
            self._complete(body, chat=path.endswith("/chat/completions"))
        except _RefusedError as error:
            self._error(error.status, str(error), error.kind, error.parameter)
        except ShuttingDownError as error:
            self._error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), "InternalServerError")
        except QueueFullError as error:
            self._error(HTTPStatus.SERVICE_UNAVAILABLE, str(error), "ServiceUnavailableError")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _authorised(self, path: str) -> bool:
        key = self._engine.settings.api_key
        scheme, _, given = (self.headers.get("Authorization") or "").partition(" ")
        known = scheme.lower() == "bearer" and key is not None and compare_digest(given.encode(), key.encode())
        guarded = path not in _OPEN_OF_SGLANG if self._engine.settings.kind == "sglang" else path.startswith(_GUARDED)
        if key is None or known or not guarded:
            return True
        self._json(HTTPStatus.UNAUTHORIZED, {"error": "Unauthorized"})
        return False

    def _read_body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _LARGEST_BODY:
            self.close_connection = True
            return b""
        return self.rfile.read(length)

    def _complete(self, raw: bytes, *, chat: bool) -> None:
        body = self._parsed(raw)
        request = self._request(body, chat=chat)
        try:
            self._batch.admit(request)
        except QueueFullError as error:
            if not (body.get("stream") and self._engine.settings.kind == "sglang"):
                raise
            self._refuse_in_stream(str(error))
            return
        except ShuttingDownError:
            if not is_list(body.get("prompt")) or self._engine.settings.kind != "vllm":
                raise
            # vLLM refuses while it makes tokens of a text; token IDs reach its scheduler, which aborts them
            request.finish = Finish.ABORT
            if body.get("stream"):
                self._stream(body, request, iter(()), chat=chat)
            else:
                self._json(HTTPStatus.OK, self._whole(body, request, "", chat=chat))
            return
        try:
            tokens = self._batch.generate(request, self._is_disconnected)
            if body.get("stream"):
                self._stream(body, request, tokens, chat=chat)
                return
            text = " ".join(tokens)
        finally:
            # otherwise a client that left before the first token would block the head of the queue
            self._batch.leave(request)
        if request.finish is None or self._batch.stuck:
            self._hang()
            return
        self._json(HTTPStatus.OK, self._whole(body, request, text, chat=chat))

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise _bad(f"the body is not JSON: {error}") from error
        if not is_document(body):
            raise _bad("the body must be a JSON object")
        names = self._engine.settings.served_names
        self._check_model(str(body.get("model", names[0])))
        return body

    def _check_model(self, asked: str) -> None:
        settings = self._engine.settings
        if settings.kind == "sglang":
            # a name without a colon selects the model itself, whatever it is (`_parse_model_parameter`)
            adapter = asked.removeprefix(f"{settings.served_names[0]}:").rpartition(":")[2] if ":" in asked else ""
            if asked not in settings.served_names and adapter and adapter not in settings.adapters:
                raise _bad(f"The following requested LoRA adapters are not loaded: ['{adapter}']")
        elif asked not in (*settings.served_names, *settings.adapters):
            raise _RefusedError(
                HTTPStatus.NOT_FOUND, f"The model `{asked}` does not exist.", "NotFoundError", "model"
            )

    def _request(self, body: dict[str, Any], *, chat: bool) -> CompletionRequest:
        pieces = tuple(_PIECES.findall(_prompt(body, chat=chat))) or ("",)
        remaining = self._batch.max_model_len - len(pieces)
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or (remaining if chat else 16)
        if not isinstance(asked, int) or asked < 1:
            raise _bad(f"max_tokens must be at least 1, got {asked!r}.", "max_tokens")
        if asked > remaining:
            raise _bad(
                f"This model's maximum context length is {self._batch.max_model_len} tokens. However, you requested "
                f"{asked} output tokens and your prompt contains {len(pieces)} input tokens.",
                "max_tokens",
            )
        return CompletionRequest(
            pieces=pieces, max_tokens=asked, ignore_eos=bool(body.get("ignore_eos")), arrived=time.monotonic()
        )

    def _whole(self, body: dict[str, Any], request: CompletionRequest, text: str, *, chat: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": request.finish}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return {**self._head(body, chat=chat, chunk=False), "choices": [choice], "usage": usage(request)}

    def _head(self, body: dict[str, Any], *, chat: bool, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": body.get("model", self._engine.settings.served_names[0]),
            "system_fingerprint": "simulated",
        }

    def _stream(self, body: dict[str, Any], request: CompletionRequest, tokens: Iterator[str], *, chat: bool) -> None:
        self.send_response(HTTPStatus.OK)
        self._common_headers("text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = self._head(body, chat=chat, chunk=True)
        if chat:
            self._event({**head, "choices": [delta({"role": "assistant", "content": ""})]})
        for number, token in enumerate(tokens):
            if self._batch.stuck:
                self._hang()
                return
            text = token if number == 0 else f" {token}"
            self._event({**head, "choices": [delta({"content": text}) if chat else part(text)]})
        if request.finish is None:
            self.close_connection = True
            return
        self._event({**head, "choices": [delta({}, request.finish) if chat else part("", request.finish)]})
        if inner(body, "stream_options").get("include_usage"):
            self._event({**head, "choices": [], "usage": usage(request)})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _refuse_in_stream(self, message: str) -> None:
        """SGLang answers 200 to a stream before its queue takes the request."""
        self.send_response(HTTPStatus.OK)
        self._common_headers("text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        status = HTTPStatus.SERVICE_UNAVAILABLE
        self._event({"error": {"message": message, "type": "SERVICE_UNAVAILABLE", "code": int(status)}})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, value: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _is_disconnected(self) -> bool:
        """Whether the client closed the connection. While the engine is stuck: wait until it does."""
        while True:
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable:
                try:
                    if self.connection.recv(1, socket.MSG_PEEK) == b"":
                        return True
                except OSError:
                    return True
            if not self._batch.stuck:
                return False
            time.sleep(0.1)

    def _hang(self) -> None:
        self._is_disconnected()
        self.close_connection = True

    def _error(self, status: HTTPStatus, message: str, kind: str, parameter: str | None = None) -> None:
        error = {"message": message, "type": kind, "param": parameter, "code": int(status)}
        self._json(status, {"error": error})

    def _json(self, status: HTTPStatus, value: Any) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self._common_headers(content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _common_headers(self, content_type: str) -> None:
        self.send_header("Content-Type", content_type)
        self.send_header("X-Simulated-Engine", "true")
        if request_id := self.headers.get("X-Request-Id"):
            self.send_header("X-Request-Id", request_id)


def _prompt(body: dict[str, Any], *, chat: bool) -> str:
    if not chat:
        prompt = body.get("prompt")
        if is_list(prompt) and prompt and isinstance(prompt[0], int):
            return " ".join(f"t{token}" for token in prompt)
        if not isinstance(prompt, str):
            raise _bad("prompt must be a text or a list of token ids.", "prompt")
        return prompt
    messages = body.get("messages")
    if not is_list(messages) or not messages:
        raise _bad("messages must be a list of at least one message.", "messages")
    return "\n".join(f"{m.get('role')} {_content(m.get('content'))}" for m in messages if is_document(m))


def _content(content: object) -> str:
    if is_list(content):
        return " ".join(str(part.get("text", "")) for part in content if is_document(part))
    return str(content or "")
