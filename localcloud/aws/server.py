"""The one endpoint: AWS requests go to moto, `/_localcloud/` to the control API; every AWS call is counted."""

import io
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Final

from moto.moto_server.werkzeug_app import (  # pyright: ignore[reportMissingTypeStubs]
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, make_server

from localcloud.aws import api_faults, calls, price_list
from localcloud.aws.api_faults import ApiFaults
from localcloud.aws.calls import Calls
from localcloud.aws.world import World

_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]
CONTROL_PREFIX: Final = "/_localcloud/"
_LOCKED: Final = frozenset({"ec2", "autoscaling"})
_PEEK_LIMIT: Final = 1024 * 1024


class QuietHandler(MotoRequestHandler):
    """No line per request: the calls are counted instead."""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        if type == "error":
            super().log(type, message, *args)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing."""


class Front:
    """The WSGI application of the endpoint."""

    def __init__(self, world: World, recorded: Calls, faults: ApiFaults, control: _Wsgi) -> None:
        self._world = world
        self._faults = faults
        self._calls = recorded
        self._control = control
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("PATH_INFO", "").startswith(CONTROL_PREFIX):
            return self._control(environ, start_response)
        access_key, service = calls.credential(environ)
        if service:
            operation = calls.operation(environ, service, _peek(environ))
            self._calls.record(service, operation, access_key)
            fault = self._faults.take(service, operation)
            if fault is not None:
                return _send(start_response, api_faults.answer(fault))
            if service == price_list.SERVICE:
                body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                return _send(start_response, price_list.answer(operation, body))
        with self._world.lock if service in _LOCKED else nullcontext():
            return self._moto(environ, start_response)


def _send(start_response: Any, answer: tuple[str, list[tuple[str, str]], bytes]) -> list[bytes]:
    status, headers, body = answer
    start_response(status, headers)
    return [body]


def _peek(environ: dict[str, Any]) -> bytes:
    """The body of a form post, put back for the next reader; nothing for other requests."""
    if not environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
        return b""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if not 0 < length <= _PEEK_LIMIT:
        return b""
    body = environ["wsgi.input"].read(length)
    environ["wsgi.input"] = io.BytesIO(body)
    return body


class Endpoint:
    """A threaded server of the application on one loopback address. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int, app: _Wsgi) -> None:
        self._server: BaseWSGIServer = make_server(host, port, app, threaded=True, request_handler=QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="aws-endpoint", daemon=True)

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
