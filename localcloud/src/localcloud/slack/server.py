"""The Slack sink's server: incoming webhooks, the Web API that we use, and a page for people.

The token of the embedded cloud opens it: behind `xoxb-` or `xapp-` as a bot's or an app's token, as the last part of
a webhook's address, and as the password that a browser asks for. Addresses of uploads and sockets hold their own.
"""

import base64
import binascii
import json
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from gpufleet.domain.loopback import header_of
from localcloud.callers import CallerCheck, Callers, RefusedError, Unknown, bearer_of, log_refusal
from localcloud.slack import interactive
from localcloud.slack.faults import Fault, FaultPlan
from localcloud.slack.files import Files
from localcloud.slack.messages import Channels, SlackError, page
from localcloud.slack.websocket import WebSocket
from localcloud.time_scale import utc_now

_KEPT: Final = ("text", "blocks", "attachments", "metadata", "thread_ts", "unfurl_links", "username")
_WEBHOOK_CHANNEL: Final = "#webhook"
_TICKETS: Final = ("/link", "/upload/")
"""Pages whose address contains its own secret."""


class SlackSink:
    """A threaded server on one loopback address. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int, callers: Callers) -> None:
        self.channels = Channels()
        self.faults = FaultPlan()
        self.socket_mode = interactive.SocketMode()
        self._channel_names = {_WEBHOOK_CHANNEL}
        self._methods: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "auth.test": lambda _: {"user": "gpu-fleet", "team": "local", "url": f"http://{host}:{port}/"},
            "api.test": lambda _: {},
            "chat.postMessage": self._post_message,
            "chat.update": self._update,
            "conversations.history": self._history,
            "conversations.list": self._list,
            "apps.connections.open": self._open_connection,
            "files.getUploadURLExternal": lambda given: self.files.promise(given),
            "files.completeUploadExternal": lambda given: self.files.complete(given),
            "files.list": lambda given: self.files.listed(given),
        }
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if sink.is_admitted(self):
                    sink.get(self)

            def do_POST(self) -> None:
                if sink.is_admitted(self):
                    sink.post(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Nothing."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.files = Files(self.url, self.channels)
        own = self.url.removeprefix("http://")
        self._check = CallerCheck(callers, {own})
        # the client of slack_sdk leaves out the port when it opens a socket
        self._socket_check = CallerCheck(callers, {own, host})
        self._thread = threading.Thread(target=self._server.serve_forever, name="slack", daemon=True)

    @property
    def url(self) -> str:
        """Its URL, with the assigned port."""
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}"

    @property
    def port(self) -> int:
        """The port that it listens on, also if it was started with port 0."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve in a separate thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def is_admitted(self, request: BaseHTTPRequestHandler) -> bool:
        """Whether a request is allowed; a refused one is answered here."""
        path = urlsplit(request.path).path
        try:
            check = self._socket_check if path == "/link" else self._check
            check.check_site(lambda name: header_of(request.headers, name))
            if path.startswith("/services/"):
                self._check.check_owner(path.rpartition("/")[2])
            elif not path.startswith(_TICKETS):
                self._check.check_owner(_token(header_of(request.headers, "Authorization")))
        except RefusedError as error:
            self._refuse(request, path, error)
            return False
        return True

    def _refuse(self, request: BaseHTTPRequestHandler, path: str, error: RefusedError) -> None:
        # no more of the path: a webhook's holds a token
        log_refusal("Slack sink", request.command, f"/{path.split('/')[1]}", error.refusal)
        request.close_connection = True
        if path.startswith("/api/"):
            code = "not_authed" if error.refusal is Unknown.NO_TOKEN else "invalid_auth"
            text = json.dumps({"ok": False, "error": code, "detail": str(error)})
            _answer(request, text, "application/json", HTTPStatus.FORBIDDEN)
        elif path == "/" and isinstance(error.refusal, Unknown):
            # a browser then asks the user for the password
            ask = {"WWW-Authenticate": 'Basic realm="Slack sink of gpu-fleet: any name, the token as password"'}
            _answer(request, str(error), status=HTTPStatus.UNAUTHORIZED, headers=ask)
        else:
            _answer(request, str(error), status=HTTPStatus.FORBIDDEN)

    def get(self, request: BaseHTTPRequestHandler) -> None:
        """The page, the messages as JSON, and Web API methods that are read with GET."""
        url = urlsplit(request.path)
        if url.path == "/":
            _answer(request, page(self.channels.messages), "text/html; charset=utf-8")
        elif url.path == "/messages":
            _answer_json(request, [message.as_json() for message in self.channels.messages])
        elif url.path.startswith("/api/"):
            self._call(request, url.path.removeprefix("/api/"), _first(parse_qs(url.query)))
        elif url.path.startswith("/files/") and url.path.removeprefix("/files/") in self.files.contents:
            content = self.files.contents[url.path.removeprefix("/files/")]
            kind = "image/png" if content.startswith(b"\x89PNG") else "text/plain; charset=utf-8"
            _answer(request, content, kind)
        elif url.path == "/link":
            self._socket(request, _first(parse_qs(url.query)))
        else:
            _answer(request, "not found", status=HTTPStatus.NOT_FOUND)

    def post(self, request: BaseHTTPRequestHandler) -> None:
        """Webhooks, Web API methods, and `/throttle`, which requests responses with 429."""
        path = urlsplit(request.path).path
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if path == "/throttle":
            wanted = json.loads(body or b"{}")
            self.channels.throttle.extend([float(wanted.get("retry_after", 1))] * int(wanted.get("times", 1)))
            _answer_json(request, {"ok": True})
            return
        if path == "/faults":
            self._plan_faults(request, json.loads(body or b"{}"))
            return
        if path == "/click":
            self._click(request, body)
            return
        if path.startswith("/upload/"):
            taken = self.files.take(path.removeprefix("/upload/"), body)
            _answer(request, "OK" if taken else "no", status=HTTPStatus.OK if taken else HTTPStatus.BAD_REQUEST)
            return
        fault = self.faults.next() if path == "/api/chat.postMessage" or path.startswith("/services/") else None
        if fault is not None:
            self._fail(request, fault, path, body)
            return
        wait = self.channels.take_throttle()
        if wait is not None:
            headers = {"Retry-After": f"{wait:g}"}
            text = json.dumps({"ok": False, "error": "ratelimited"})
            _answer(request, text, "application/json", HTTPStatus.TOO_MANY_REQUESTS, headers)
        elif path.startswith("/services/"):
            self._webhook(request, body)
        elif path.startswith("/api/"):
            self._call(request, path.removeprefix("/api/"), _read(request, body))
        else:
            _answer(request, "not found", status=HTTPStatus.NOT_FOUND)

    def _socket(self, request: BaseHTTPRequestHandler, given: Mapping[str, Any]) -> None:
        """Socket Mode: a ticket opens one connection."""
        ticket = str(given.get("ticket"))
        if ticket not in self.socket_mode.tickets:
            _answer(request, "no such ticket", status=HTTPStatus.FORBIDDEN)
            return
        self.socket_mode.tickets.discard(ticket)
        try:
            socket = WebSocket(request)
        except ValueError as error:
            _answer(request, str(error), status=HTTPStatus.BAD_REQUEST)
            return
        self.socket_mode.serve(socket)

    def _open_connection(self, given: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{self.url.replace('http', 'ws', 1)}/link?ticket={self.socket_mode.ticket()}"
        return {"url": url}

    def _click(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Click a button as a user; the page sends the click as a form."""
        form = not request.headers.get("Content-Type", "").startswith("application/json")
        wanted = _first(parse_qs(body.decode())) if form else json.loads(body or b"{}")
        try:
            done = {"ok": True, **interactive.click(self.channels, wanted, self.socket_mode)}
        except SlackError as error:
            done = {"ok": False, "error": error.code}
        except OSError as error:
            done = {"ok": False, "error": f"listener_gone: {error}"}
        _answer_json(request, done)

    def _plan_faults(self, request: BaseHTTPRequestHandler, wanted: Mapping[str, Any]) -> None:
        """`{"queue": ["500", …]}` for the next posts, or `{"kinds": […], "share": 0.1, "seed": 1}` for all."""
        try:
            self.faults.queue.extend(Fault(kind) for kind in wanted.get("queue", ()))
            kinds = [Fault(kind) for kind in wanted.get("kinds", ())]
        except ValueError as error:
            _answer_json(request, {"ok": False, "error": str(error)})
            return
        self.faults.draw(kinds, float(wanted.get("share", 0)), int(wanted.get("seed", 1)))
        _answer_json(request, {"ok": True})

    def _fail(self, request: BaseHTTPRequestHandler, fault: Fault, path: str, body: bytes) -> None:
        given = json.loads(body) if path.startswith("/services/") else _read(request, body)
        channel = str(given.get("channel") or _WEBHOOK_CHANNEL)
        self._channel_names.add(channel)
        if fault.accepts:
            content = {key: given[key] for key in _KEPT if key in given}
            self.channels.post(channel, content, utc_now(), f"{path.rsplit('/', 1)[-1]}, {fault}")
        if fault is Fault.THROTTLE:
            headers = {"Retry-After": f"{self.faults.retry_after:g}"}
            text = json.dumps({"ok": False, "error": "ratelimited"})
            _answer(request, text, "application/json", HTTPStatus.TOO_MANY_REQUESTS, headers)
        elif fault in (Fault.ERROR, Fault.ERROR_AFTER):
            _answer(request, "server error", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        else:
            if fault is Fault.HANG_AFTER:
                time.sleep(self.faults.hang_s)
            request.close_connection = True

    def _webhook(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        try:
            given = json.loads(body)
            content = {key: given[key] for key in _KEPT if key in given}
            self.channels.post(given.get("channel", _WEBHOOK_CHANNEL), content, utc_now(), "webhook")
        except (ValueError, AttributeError):
            _answer(request, "invalid_payload", status=HTTPStatus.BAD_REQUEST)
        except SlackError as error:
            _answer(request, error.code, status=HTTPStatus.BAD_REQUEST)
        else:
            _answer(request, "ok")

    def _call(self, request: BaseHTTPRequestHandler, method: str, given: Mapping[str, Any]) -> None:
        if method == "apps.connections.open" and not request.headers.get("Authorization", "").startswith(
            "Bearer xapp-"
        ):
            _answer_json(request, {"ok": False, "error": "not_allowed_token_type"})
        elif method not in self._methods:
            _answer_json(request, {"ok": False, "error": "unknown_method"})
        else:
            try:
                _answer_json(request, {"ok": True, **self._methods[method](given)})
            except SlackError as error:
                _answer_json(request, {"ok": False, "error": error.code})

    def _post_message(self, given: Mapping[str, Any]) -> dict[str, Any]:
        channel = given.get("channel")
        if not channel:
            raise SlackError("channel_not_found")
        self._channel_names.add(str(channel))
        content = {key: given[key] for key in _KEPT if key in given}
        made = self.channels.post(str(channel), content, utc_now(), "chat.postMessage")
        return {"channel": made.channel, "ts": made.ts, "message": made.as_json()}

    def _update(self, given: Mapping[str, Any]) -> dict[str, Any]:
        content = {key: given[key] for key in _KEPT if key in given}
        found = self.channels.update(str(given.get("channel")), str(given.get("ts")), content)
        return {"channel": found.channel, "ts": found.ts, "text": found.content.get("text", "")}

    def _list(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All channels with messages; their ids are their names."""
        return {"channels": [{"id": name, "name": name.removeprefix("#")} for name in sorted(self._channel_names)]}

    def _history(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found = self.channels.history(str(given.get("channel")))
        oldest, latest = float(given.get("oldest") or 0), float(given.get("latest") or "inf")
        found = [message for message in found if oldest <= float(message.ts) <= latest]
        limit = int(given.get("limit") or 100)
        shown = [message.as_json() for message in found[:limit]]
        if str(given.get("include_all_metadata")).lower() not in ("true", "1"):
            for message in shown:
                message.pop("metadata", None)
        return {"messages": shown, "has_more": len(found) > limit}


def _token(authorization: str | None) -> str | None:
    """The token of a request: that of a bot or an app without its prefix, or a browser's password."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    token = bearer_of(authorization)
    return None if token is None else token.removeprefix("xoxb-").removeprefix("xapp-")


def _read(request: BaseHTTPRequestHandler, body: bytes) -> Mapping[str, Any]:
    """The parameters of a call: JSON, or a form whose structured values are JSON."""
    if request.headers.get("Content-Type", "").startswith("application/json"):
        return json.loads(body or b"{}")
    found: dict[str, Any] = _first(parse_qs(body.decode()))
    for key in ("blocks", "attachments", "metadata"):
        if isinstance(found.get(key), str):
            found[key] = json.loads(found[key])
    return found


def _first(values: Mapping[str, list[str]]) -> dict[str, Any]:
    return {key: value[0] for key, value in values.items()}


def _answer_json(request: BaseHTTPRequestHandler, value: object) -> None:
    _answer(request, json.dumps(value, indent=1), "application/json")


def _answer(
    request: BaseHTTPRequestHandler,
    text: str | bytes,
    kind: str = "text/plain; charset=utf-8",
    status: HTTPStatus = HTTPStatus.OK,
    headers: Mapping[str, str] | None = None,
) -> None:
    body = text if isinstance(text, bytes) else text.encode()
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
