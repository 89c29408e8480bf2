"""The two endpoints for clicks: Socket Mode (outbound only) and a signed HTTP endpoint. Both use `ClickHandler`."""

import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qs

from slack_sdk import WebClient
from slack_sdk.errors import SlackClientError
from slack_sdk.socket_mode.builtin import SocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse

from gpufleet.http_server import Answer, HttpRequest, HttpServer, Routes, ServerLimits
from gpufleet.notify.buttons import ClickError, read_click
from gpufleet.notify.clicks import ClickHandler

PATH: Final = "/slack/actions"
MAX_BYTES: Final = 256 * 1024
OLDEST: Final = timedelta(minutes=5)
_LIMITS: Final = ServerLimits(request_s=5, idle_s=5)


class SocketModeListener:
    """A websocket connection to Slack. It reconnects automatically, and needs an app token with connections:write."""

    def __init__(self, app_token: str, clicks: ClickHandler, base_url: str | None = None) -> None:
        url = WebClient.BASE_URL if base_url is None else base_url.rstrip("/") + "/"
        web: Any = cast(Any, WebClient)(base_url=url)
        log = logging.getLogger("gpufleet.slack")
        self._client = SocketModeClient(app_token=app_token, web_client=web, logger=log)
        self._client.socket_mode_request_listeners.append(self._receive)
        self._clicks = clicks

    def open(self) -> None:
        """Connect. Raises OSError when Slack refuses the connection."""
        try:
            self._client.connect()
        except SlackClientError as error:
            raise OSError(f"Slack's Socket Mode refused the connection: {error}") from error
        if not self._client.is_connected():
            raise OSError("Slack's Socket Mode returned an address that cannot be reached")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _receive(self, client: Any, request: SocketModeRequest) -> None:
        try:
            if request.type == "interactive":
                self._clicks.submit(read_click(cast(Any, request).payload))
        except ClickError as error:
            self._clicks.log.warning("click", outcome="refused", error=error)
        client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))


def is_signed(secret: str, header: Callable[[str], str | None], body: bytes, now: datetime) -> bool:
    """Check Slack's v0 signature of the raw body: at most five minutes old, compared in constant time."""
    stamp, given = header("X-Slack-Request-Timestamp") or "", header("X-Slack-Signature") or ""
    if not (stamp.isascii() and stamp.isdigit()) or abs(now.timestamp() - int(stamp[:15])) > OLDEST.total_seconds():
        return False
    wanted = hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"v0={wanted}".encode(), given.encode())


def serve_http(host: str, port: int, secret: str, clicks: ClickHandler, now: Callable[[], datetime]) -> HttpServer:
    """Serve `POST /slack/actions`, for installations that Slack can reach. Raises OSError when the port is taken."""

    def click(request: HttpRequest) -> Answer:
        body = request.body(MAX_BYTES)
        if not is_signed(secret, request.header, body, now()):
            return Answer(status=HTTPStatus.UNAUTHORIZED, body="the request is not signed")
        try:
            payload: object = json.loads(parse_qs(body.decode())["payload"][0])
        except (KeyError, ValueError, RecursionError):
            return Answer(status=HTTPStatus.BAD_REQUEST, body="the form has no readable field `payload`")
        try:
            clicks.submit(read_click(payload))
        except ClickError as error:
            return Answer(status=HTTPStatus.BAD_REQUEST, body=f"refused: {error}")
        return Answer()

    return HttpServer((host, port), Routes({f"POST {PATH}": click}), limits=_LIMITS).start("slack-http")
