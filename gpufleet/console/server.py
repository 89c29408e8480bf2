"""Serves the web page, the ledger's metrics and Alertmanager's webhook. It has few paths, no script, and two actions:
Keep and Pause.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import parse_qs, unquote

from gpufleet.console import history_page, page
from gpufleet.console.access import COOKIE, SESSION_S, Access
from gpufleet.console.alerts import MAX_BYTES, AlertMessage, WebhookError, read
from gpufleet.console.document import document
from gpufleet.console.history import CostHistory, Grouping, Period
from gpufleet.console.view import FleetView, InstanceView
from gpufleet.domain.decisions import LedgerEntry
from gpufleet.domain.loopback import FOREIGN_MESSAGES, foreign
from gpufleet.http_server import Answer, Handler, HttpRequest, HttpServer, RequestError, Routes, ServerLimits
from gpufleet.logs import SILENT, Log
from gpufleet.metrics_page import CONTENT_TYPE

ALERTS: Final = "/alerts"
REFUSED: Final = frozenset({401, 403, 404, 405, 413})
REFUSALS_S: Final = 10.0
MAX_REFUSALS: Final = 20
"""Maximum number of log lines within `REFUSALS_S`. The next line counts the omitted ones."""
MAX_FORM: Final = 4096
_LIMITS: Final = ServerLimits(idle_s=15)
_OPEN: Final = frozenset({"GET /healthz", "GET /metrics", "POST /sign-in"})
"""Requests that need no authentication."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ActionError(Exception):
    """An instance was not kept, or a pool not paused. The message is for the user."""


class ConsoleDataError(Exception):
    """Data cannot be read or written now. The message names the reason."""


class ConsoleData(Protocol):
    """Data and actions of the page. Every method may raise ConsoleDataError."""

    def views(self) -> Sequence[FleetView]:
        """The view of every fleet, at most some seconds old."""
        ...

    def about(self, view: FleetView, instance: str) -> Sequence[LedgerEntry]:
        """Every decision about one instance."""
        ...

    def costs(self, view: FleetView) -> str:
        """A fleet's cost report as an HTML page."""
        ...

    def history(self, view: FleetView, period: Period) -> CostHistory:
        """A fleet's costs, actions and waste over time, at most some minutes old."""
        ...

    def keep(self, view: FleetView, instance: str, user: str) -> str:
        """Keep an instance. Returns a sentence about it. Raises ActionError."""
        ...

    def pause(self, view: FleetView, pool: str, user: str) -> str:
        """Pause all watchdogs of a pool. Returns a sentence about it. Raises ActionError."""
        ...

    def metrics(self) -> str:
        """The ledger as metrics."""
        ...

    def notify(self, notice: AlertMessage) -> None:
        """Add an alert's message to the outbox."""
        ...


class Console:
    """Answers requests, independently of sockets."""

    def __init__(self, data: ConsoleData, access: Access, *, own: str = "") -> None:
        """`own`: the required Host of requests, if no proxy or port forward is in front of the console.

        With `own`, requests from pages of other sites are refused, too.
        """
        self._data = data
        self._access = access
        self._own = own
        self._routes = Routes(
            {
                "GET /healthz": lambda _: _plain(200, "ok"),
                "GET /metrics": self._metrics,
                "GET /": _readable(self._overview),
                "GET /status.json": _readable(self._status),
                "GET /costs": _readable(self._costs),
                "GET /history": _readable(self._history),
                "GET /instances": _readable(self._instances),
                "GET /instance/*": _readable(self._instance),
                "POST /sign-in": self._sign_in,
                "POST /sign-out": _sign_out,
                "POST /keep": self._keep,
                "POST /pause": self._pause,
                f"POST {ALERTS}": self._alerts,
            }
        )

    def answer(self, request: HttpRequest) -> Answer | None:
        """Answer a request. An unauthorized request is refused before its body is read. Raises RequestError."""
        found = foreign(request.header, {self._own}) if self._own else None
        if found is not None:
            return _plain(403, FOREIGN_MESSAGES[found])
        if f"{request.method} {request.path}" not in _OPEN and self._user(request) is None:
            return _unauthorized(request)
        return self._routes(request)

    def _metrics(self, _: HttpRequest) -> Answer:
        try:
            return Answer(body=self._data.metrics(), content_type=CONTENT_TYPE)
        except ConsoleDataError as error:
            return _plain(503, str(error))

    def _overview(self, request: HttpRequest) -> Answer:
        csrf_token = self._access.csrf_token(self._user(request) or "")
        updates = _fields(request.query).get("updates") == "on"
        return _html(page.overview(self._data.views(), datetime.now(UTC), csrf_token, updates=updates))

    def _status(self, _: HttpRequest) -> Answer:
        found = [document(view) for view in self._data.views()]
        return Answer(body=json.dumps(found), content_type="application/json")

    def _costs(self, request: HttpRequest) -> Answer:
        views, query = self._data.views(), _fields(request.query)
        view = _fleet(views, query.get("fleet"))
        if view is not None:
            return _html(self._data.costs(view))
        return _NOT_FOUND if "fleet" in query else _html(page.costs(views))

    def _history(self, request: HttpRequest) -> Answer:
        views, query = self._data.views(), _fields(request.query)
        view = views[0] if views and "fleet" not in query else _fleet(views, query.get("fleet"))
        try:
            period, by = Period(query.get("span", Period.DAY)), Grouping(query.get("by", Grouping.POOL))
        except ValueError:
            return _NOT_FOUND
        if view is None:
            return _NOT_FOUND
        csrf_token = self._access.csrf_token(self._user(request) or "")
        return _html(history_page.page(views, view, self._data.history(view, period), by, csrf_token))

    def _instances(self, request: HttpRequest) -> Answer:
        query = _fields(request.query)
        view = _fleet(self._data.views(), query.get("fleet"))
        if view is None:
            return _NOT_FOUND
        return _html(page.instances(view, query.get("pool"), _whole(query.get("start"))))

    def _instance(self, request: HttpRequest) -> Answer:
        view = _fleet(self._data.views(), _fields(request.query).get("fleet"))
        name = unquote(request.path.removeprefix("/instance/"))
        one = None if view is None else _instance(view, name)
        if view is None or one is None:
            return _NOT_FOUND
        csrf_token = self._access.csrf_token(self._user(request) or "")
        return _html(page.instance(view, one, self._data.about(view, one.id), csrf_token))

    def _alerts(self, request: HttpRequest) -> Answer:
        """Handles Alertmanager's post. It needs the token as `Authorization: Bearer`."""
        try:
            notice = read(json.loads(request.body(MAX_BYTES)))
        except (WebhookError, ValueError, RecursionError) as error:
            return _plain(400, str(error))
        try:
            if notice is not None:
                self._data.notify(notice)
        except ConsoleDataError as error:
            return _plain(503, str(error))  # Alertmanager retries
        return _plain(200, "ok")

    def _user(self, request: HttpRequest) -> str | None:
        return self._access.user(request.headers, time.time())

    def _sign_in(self, request: HttpRequest) -> Answer:
        if not self._access.is_token(_form(request).get("token", "")):
            return _html(page.sign_in(wrong=True), 401)
        value = self._access.session(time.time())
        secure = "; Secure" if request.header("X-Forwarded-Proto") == "https" else ""
        return _redirect("/", f"{COOKIE}={value}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict{secure}")

    def _keep(self, request: HttpRequest) -> Answer:
        return self._acted(request, "instance", self._data.keep, ("Kept", "Not kept"))

    def _pause(self, request: HttpRequest) -> Answer:
        return self._acted(request, "pool", self._data.pause, ("Paused", "Not paused"))

    def _acted(
        self, request: HttpRequest, field: str, act: Callable[[FleetView, str, str], str], titles: tuple[str, str]
    ) -> Answer:
        """Acts on what the form names in `field`, if the form came from a page of this console."""
        done, not_done = titles
        form, user = _form(request), self._user(request) or ""
        if form.get("stamp") != self._access.csrf_token(user):
            text = "This form is too old or is not from this page; load the page again."
            return _html(page.message(not_done, text), 403)
        try:
            view = _fleet(self._data.views(), form.get("fleet"))
            if view is None:
                return _html(page.message(not_done, "This console does not show a fleet of that name."), 404)
            text = act(view, form.get(field, ""), user)
        except (ActionError, ConsoleDataError) as error:
            return _html(page.message(not_done, str(error)), 409)
        return _html(page.message(done, text))


def _sign_out(_: HttpRequest) -> Answer:
    return _redirect("/", cookie=f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict")


def _readable(answer: Handler) -> Handler:
    """Wraps a handler: if the ledger or the fleet cannot be read, the page shows the reason."""

    def answered(request: HttpRequest) -> Answer | None:
        try:
            return answer(request)
        except ConsoleDataError as error:
            return _html(page.message("Not available now", str(error)), 503)

    return answered


def _unauthorized(request: HttpRequest) -> Answer:
    if request.path == ALERTS:
        return _plain(401, "this path needs the console's token: send the header `Authorization: Bearer TOKEN`")
    return _html(page.sign_in(wrong=False), 401)


def _fleet(views: Sequence[FleetView], name: str | None) -> FleetView | None:
    if name is None:
        return views[0] if len(views) == 1 else None
    return next((view for view in views if view.name == name), None)


def _instance(view: FleetView, name: str) -> InstanceView | None:
    return next((one for one in view.instances if one.id == name), None)


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 9 else 0


def _fields(text: str) -> dict[str, str]:
    """The first value of each field. Text with more than 20 fields gives none: no form or URL of the console has as
    many.
    """
    try:
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=20).items()}
    except ValueError:
        return {}


def _form(request: HttpRequest) -> dict[str, str]:
    return _fields(request.body(MAX_FORM).decode(errors="replace"))


def _html(body: str, status: int = 200) -> Answer:
    return Answer(status=status, body=body, content_type="text/html; charset=utf-8")


def _plain(status: int, body: str) -> Answer:
    return Answer(status=status, body=body)


def _redirect(location: str, cookie: str) -> Answer:
    return Answer(status=303, headers={"Location": location, "Set-Cookie": cookie})


_NOT_FOUND: Final = _html(page.message("Not found", "The console has no such page, fleet or instance."), 404)


class Refusals:
    """Logs each refused request. The rate is limited, so that a flood of requests does not fill the log."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._began, self._written, self._omitted = float("-inf"), 0, 0

    def note(self, request: HttpRequest, status: int) -> None:
        """Log a refused request, without its query, headers and form. Other requests are ignored."""
        if status not in REFUSED:
            return
        with self._lock:
            if self._clock() - self._began >= REFUSALS_S:
                self._began, self._written = self._clock(), 0
            if self._written == MAX_REFUSALS:
                self._omitted += 1
                return
            self._written += 1
            omitted, self._omitted = self._omitted, 0
        self._log.warning(
            "request", outcome="refused", status=status, method=request.method, path=request.path[:200],
            client=request.client[0], left_out=omitted,
        )  # fmt: skip


def serve(console: Console, host: str, port: int, log: Log = SILENT) -> HttpServer:
    """Serve from threads. Raises OSError when the address is taken."""
    refusals = Refusals(log)

    def answer(request: HttpRequest) -> Answer | None:
        try:
            found = console.answer(request)
        except RequestError as error:
            found = _NOT_FOUND if error.status is HTTPStatus.NOT_FOUND else _plain(error.status, str(error))
        if found is not None:
            refusals.note(request, found.status)
        return found

    return HttpServer((host, port), answer, limits=_LIMITS, headers=_HEADERS).start("console")
