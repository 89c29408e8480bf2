"""The one endpoint: AWS requests go to moto, `/_localcloud/` to the admin API; every AWS call is counted.

What comes from a page of another site, or shows neither the token nor a signature, reaches neither.
"""

import io
import json
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

from localcloud.admin_api import PREFIX as ADMIN_PREFIX
from localcloud.api_faults import ApiFault, ApiFaults
from localcloud.aws import price_list
from localcloud.aws.api_errors import error_response
from localcloud.aws.bucket_policy import arn_of, caller
from localcloud.aws.operation_names import operation_name
from localcloud.aws.signature import LARGEST_BODY, Signature, header_of
from localcloud.aws.state import AwsState
from localcloud.callers import CallerCheck, RefusedError, Unknown, log_refusal
from localcloud.calls import Calls

_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]
_LOCKED: Final = frozenset({"ec2", "autoscaling"})


class QuietHandler(MotoRequestHandler):
    """Logs no line per request: calls are counted instead."""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        if type == "error":
            super().log(type, message, *args)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing."""


class Front:
    """The WSGI application of the endpoint."""

    def __init__(
        self, cloud_state: AwsState, recorded: Calls, faults: ApiFaults, admin: _Wsgi, check: CallerCheck
    ) -> None:  # noqa: PLR0913
        self._cloud_state = cloud_state
        self._faults = faults
        self._calls = recorded
        self._admin = admin
        self._check = check
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
        is_admin = path.startswith(f"{ADMIN_PREFIX}/")
        signature = Signature.read(environ.get("HTTP_AUTHORIZATION", ""))
        try:
            if is_admin:
                self._check.check_admin(lambda name: header_of(environ, name), method, path)
                return self._admin(environ, start_response)
            self._check.check_site(lambda name: header_of(environ, name))
            if signature is None:
                raise RefusedError(Unknown.NO_SIGNATURE)
            principal, body = self._signer(signature, environ)
        except RefusedError as error:
            log_refusal("AWS API", method, path, error.refusal)
            service = signature.service if signature else ""
            return _send(start_response, _admin_refusal(error) if is_admin else _api_refusal(error, service))
        operation = operation_name(environ, signature.service, body)
        self._calls.record(signature.service, operation, principal)
        fault = self._faults.take(signature.service, operation)
        if fault is not None:
            return _send(start_response, error_response(fault))
        if signature.service == price_list.SERVICE:
            return _send(start_response, price_list.answer(operation, body))
        caller.set(arn_of(principal))
        with self._cloud_state.lock if signature.service in _LOCKED else nullcontext():
            return self._moto(environ, start_response)

    def _signer(self, signature: Signature, environ: dict[str, Any]) -> tuple[str, bytes]:
        """The caller who signed the request, and the body if the check read it. Raises RefusedError."""
        body = _peek(environ) if signature.needs_body(environ) else b""
        secret_key, principal = self._check.callers.key(signature.access_key)
        if body is None or not signature.is_of(secret_key, environ, body):
            raise RefusedError(Unknown.WRONG_SIGNATURE)
        return principal, body


def _admin_refusal(error: RefusedError) -> tuple[str, list[tuple[str, str]], bytes]:
    body = json.dumps({"error": str(error)}).encode() + b"\n"
    return "403 Forbidden", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))], body


def _api_refusal(error: RefusedError, service: str) -> tuple[str, list[tuple[str, str]], bytes]:
    code = "SignatureDoesNotMatch" if error.refusal is Unknown.WRONG_SIGNATURE else "AccessDenied"
    fault = ApiFault(service=service, operation="*", code=code, status=403, times=1, message=str(error))
    return error_response(fault)


def _send(start_response: Any, answer: tuple[str, list[tuple[str, str]], bytes]) -> list[bytes]:
    status, headers, body = answer
    start_response(status, headers)
    return [body]


def _peek(environ: dict[str, Any]) -> bytes | None:
    """Read the body and put it back for the next reader. None if it is too large or has no stated length."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > LARGEST_BODY or "HTTP_TRANSFER_ENCODING" in environ:
        return None
    body = environ["wsgi.input"].read(length)
    environ["wsgi.input"] = io.BytesIO(body)
    return body


class Endpoint:
    """A threaded server of the application on one loopback address. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int, app: _Wsgi) -> None:
        self._server: BaseWSGIServer = make_server(host, port, app, threaded=True, request_handler=QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="aws-endpoint", daemon=True)

    def start(self) -> None:
        """Serve in a separate thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
