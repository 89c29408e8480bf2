"""Serves the web page, the metrics of the ledger, and Alertmanager's webhook. Few paths, no script, one form."""

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from gpufleet.console import page
from gpufleet.console.access import COOKIE, SESSION_S, Access
from gpufleet.console.alerts import MOST_BYTES, AlertMessage, WebhookError, read
from gpufleet.console.document import document
from gpufleet.console.view import FleetView, InstanceView
from gpufleet.domain.connections import Bounded, TimelyRequests
from gpufleet.domain.decisions import Past
from gpufleet.domain.loopback import FOREIGN_MESSAGES, foreign, header_of
from gpufleet.logs import SILENT, Log

ALERTS: Final = "/alerts"
REFUSED: Final = frozenset({401, 403, 404, 413})
REFUSALS_S: Final = 10.0
MOST_REFUSALS: Final = 20
"""In the log within `REFUSALS_S`; the next line counts those left out."""
MOST_FORM: Final = 4096
TIMEOUT_S: Final = 15
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class KeepError(Exception):
    """An instance could not be kept. Says why, for the person who asked."""


class ConsoleDataError(Exception):
    """What is asked for cannot be known or written now. Says why."""


class ConsoleData(Protocol):
    """What the page shows and does. Each may raise BookError."""

    def views(self) -> Sequence[FleetView]:
        """Every fleet, as of some seconds ago at most."""
        ...

    def about(self, view: FleetView, instance: str) -> Sequence[Past]:
        """Every decision about one instance."""
        ...

    def costs(self, view: FleetView) -> str:
        """A fleet's cost report as an HTML page."""
        ...

    def keep(self, view: FleetView, instance: str, user: str) -> str:
        """Keep an instance; a sentence about it. Raises KeepError."""
        ...

    def metrics(self) -> str:
        """The ledger as metrics."""
        ...

    def tell(self, notice: AlertMessage) -> None:
        """Put an alert's message into the outbox."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleResponse:
    """One response."""

    status: int
    body: str
    kind: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleRequest:
    """One request."""

    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    headers: Mapping[str, str]
    client: str


class Console:
    """Answers requests; knows no socket."""

    def __init__(self, book: ConsoleData, access: Access, *, own: str = "") -> None:
        """`own`: the address that requests must name as their Host, where no proxy and no port forward stands before
        it; then pages of other sites may ask for nothing, either.
        """
        self._book = book
        self._access = access
        self._own = own

    def refused(self, asked: ConsoleRequest) -> ConsoleResponse | None:
        """The refusal of a request for where it comes from; None: it is to be answered."""
        found = foreign(lambda name: asked.headers.get(name.lower()), {self._own}) if self._own else None
        return None if found is None else _plain(403, FOREIGN_MESSAGES[found])

    def unknown(self, asked: ConsoleRequest) -> ConsoleResponse | None:
        """The refusal of a post by nobody who is known, but for the form that makes one known."""
        return None if asked.path == "/sign-in" or self._user(asked) is not None else _who(asked)

    def get(self, asked: ConsoleRequest) -> ConsoleResponse:
        """A page."""
        if asked.path == "/healthz":
            return _plain(200, "ok")
        if asked.path == "/metrics":
            return self._metrics()
        if self._user(asked) is None:
            return ConsoleResponse(status=401, body=page.sign_in(wrong=False))
        try:
            return self._page(asked)
        except ConsoleDataError as error:
            return ConsoleResponse(status=503, body=page.message("Not known now", str(error)))

    def _metrics(self) -> ConsoleResponse:
        try:
            return _plain(200, self._book.metrics())
        except ConsoleDataError as error:
            return _plain(503, str(error))

    def _page(self, asked: ConsoleRequest) -> ConsoleResponse:
        user = self._user(asked) or ""
        if asked.path == "/":
            return _html(page.overview(self._book.views(), datetime.now(UTC), self._access.stamp(user)))
        if asked.path == "/status.json":
            found = [document(view) for view in self._book.views()]
            return ConsoleResponse(status=200, body=json.dumps(found), kind="application/json")
        view = _fleet(self._book.views(), asked.query.get("fleet"))
        if asked.path == "/costs" and view is not None:
            return _html(self._book.costs(view))
        if asked.path == "/costs" and "fleet" not in asked.query:
            return _html(page.costs(self._book.views()))
        if asked.path == "/instances" and view is not None:
            return _html(page.instances(view, asked.query.get("pool"), _whole(asked.query.get("start"))))
        if asked.path.startswith("/instance/") and view is not None:
            one = _instance(view, unquote(asked.path.removeprefix("/instance/")))
            if one is not None:
                stamp = self._access.stamp(user)
                return _html(page.instance(view, one, self._book.about(view, one.id), stamp))
        return ConsoleResponse(status=404, body=page.message("Not here", "There is no such page, fleet or instance."))

    def post(self, asked: ConsoleRequest) -> ConsoleResponse:
        """A form."""
        if asked.path == "/sign-in":
            return self._sign_in(asked)
        user = self._user(asked)
        if user is None:
            return _who(asked)
        if asked.path == "/sign-out":
            return _away("/", cookie=f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict")
        if asked.path == "/keep":
            return self._keep(asked, user)
        return ConsoleResponse(status=404, body=page.message("Not here", "There is no such form."))

    def webhook(self, body: bytes, asked: ConsoleRequest) -> ConsoleResponse:
        """Alertmanager's post; needs the token as `Authorization: Bearer`."""
        if self._user(asked) is None:
            return _who(asked)
        try:
            notice = read(json.loads(body))
        except (WebhookError, ValueError, RecursionError) as error:
            return _plain(400, str(error))
        try:
            if notice is not None:
                self._book.tell(notice)
        except ConsoleDataError as error:
            return _plain(503, str(error))  # Alertmanager tries again
        return _plain(200, "ok")

    def _user(self, asked: ConsoleRequest) -> str | None:
        return self._access.user(asked.headers, time.time())

    def _sign_in(self, asked: ConsoleRequest) -> ConsoleResponse:
        if not self._access.is_token(asked.form.get("token", "")):
            return ConsoleResponse(status=401, body=page.sign_in(wrong=True))
        value = self._access.session(time.time())
        secure = "; Secure" if asked.headers.get("x-forwarded-proto") == "https" else ""
        return _away("/", f"{COOKIE}={value}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict{secure}")

    def _keep(self, asked: ConsoleRequest, user: str) -> ConsoleResponse:
        if asked.form.get("stamp") != self._access.stamp(user):
            words = "This form is old or comes from elsewhere; load the page again."
            return ConsoleResponse(status=403, body=page.message("Not kept", words))
        try:
            view = _fleet(self._book.views(), asked.form.get("fleet"))
            if view is None:
                return ConsoleResponse(status=404, body=page.message("Not kept", "There is no such fleet."))
            words = self._book.keep(view, asked.form.get("instance", ""), user)
        except (KeepError, ConsoleDataError) as error:
            return ConsoleResponse(status=409, body=page.message("Not kept", str(error)))
        return _html(page.message("Kept", words))


def _who(asked: ConsoleRequest) -> ConsoleResponse:
    if asked.path == ALERTS:
        return _plain(401, "give the console's token: Authorization: Bearer TOKEN")
    return ConsoleResponse(status=401, body=page.sign_in(wrong=False))


def _fleet(views: Sequence[FleetView], name: str | None) -> FleetView | None:
    if name is None:
        return views[0] if len(views) == 1 else None
    return next((view for view in views if view.name == name), None)


def _instance(view: FleetView, name: str) -> InstanceView | None:
    return next((one for one in view.instances if one.id == name), None)


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 9 else 0


def _split(target: str) -> tuple[str, str]:
    """Path and query of what was asked for; what is no address is a path that nobody has."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return target, ""
    return parts.path, parts.query


def _fields(text: str) -> dict[str, str]:
    """The first value of each field; none of a text with more fields than any form or address of ours has."""
    try:
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=20).items()}
    except ValueError:
        return {}


def _html(body: str) -> ConsoleResponse:
    return ConsoleResponse(status=200, body=body)


def _plain(status: int, body: str) -> ConsoleResponse:
    return ConsoleResponse(status=status, body=body, kind="text/plain; version=0.0.4; charset=utf-8")


def _away(where: str, cookie: str) -> ConsoleResponse:
    return ConsoleResponse(status=303, body="", headers={"Location": where, "Set-Cookie": cookie})


class Refusals:
    """A line of the log for each request that was refused, so many in a while: who floods fills no log."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._began, self._written, self._left_out = float("-inf"), 0, 0

    def note(self, method: str, asked: ConsoleRequest, status: int) -> None:
        """No query, header or form is in it; nor is a request that was answered otherwise."""
        if status not in REFUSED:
            return
        with self._lock:
            if self._clock() - self._began >= REFUSALS_S:
                self._began, self._written = self._clock(), 0
            if self._written == MOST_REFUSALS:
                self._left_out += 1
                return
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        self._log.warning(
            "request", outcome="refused", status=status, method=method, path=asked.path[:200], client=asked.client,
            left_out=left_out,
        )  # fmt: skip


class ConsoleServer(Bounded, HTTPServer):
    """Answers from threads that do not keep the process from ending."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who went away before the answer, as a scrape that waits no longer, is no news; all else is told."""
        if not isinstance(sys.exception(), ConnectionError):
            sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType] - there is an exception


def serve(console: Console, host: str, port: int, log: Log = SILENT) -> ConsoleServer:
    """Serve from threads. Raises OSError when the address is taken."""
    refusals = Refusals(log)

    class Handler(TimelyRequests, BaseHTTPRequestHandler):
        server_version = "gpufleet"
        sys_version = ""
        timeout = TIMEOUT_S

        def do_GET(self) -> None:
            asked = self._asked({})
            self._answer(console.refused(asked) or console.get(asked), asked)

        def do_POST(self) -> None:
            asked = self._asked({})
            length = _whole(self.headers.get("Content-Length"))
            # before the body, which may be large
            refused = console.refused(asked) or console.unknown(asked)
            if refused is not None:
                self.close_connection = True
                self._answer(refused, asked)
                # to close on what is on its way would take the answer back
                self.rfile.read(min(length, MOST_FORM))
                return
            alert = self.path == ALERTS
            if length > (MOST_BYTES if alert else MOST_FORM) or "Content-Length" not in self.headers:
                self.close_connection = True
                self._answer(_plain(413, "too large, or of no stated length"), asked)
                return
            body = self.rfile.read(length)
            if alert:
                self._answer(console.webhook(body, asked), asked)
                return
            self._answer(console.post(self._asked(_fields(body.decode(errors="replace")))), asked)

        def _asked(self, form: Mapping[str, str]) -> ConsoleRequest:
            path, query = _split(self.path)
            headers = {k.lower(): header_of(self.headers, k) or "" for k in self.headers}
            client = str(self.client_address[0])
            return ConsoleRequest(path=path, query=_fields(query), form=form, headers=headers, client=client)

        def _answer(self, answer: ConsoleResponse, asked: ConsoleRequest) -> None:
            refusals.note(self.command, asked, answer.status)
            body = answer.body.encode()
            self.send_response(answer.status)
            for name, value in (_HEADERS | dict(answer.headers or {})).items():
                self.send_header(name, value)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are no news but for those refused; what fails is shown to who asked."""

    server = ConsoleServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="console", daemon=True).start()
    return server
