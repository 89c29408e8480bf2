"""Error responses of the router itself: in OpenAI's format, as lines of HAProxy's configuration."""

import json


def error_body(message: str, kind: str, code: str, param: str | None = None) -> str:
    """Return an error as one line of JSON."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def invalid(message: str, code: str, param: str | None = None) -> str:
    """Return an error that the client caused."""
    return error_body(message, "invalid_request_error", code, param)


def busy(message: str, code: str) -> str:
    """Return a temporary error that the client did not cause; a retry can succeed."""
    return error_body(message, "server_error", code)


def quoted(text: str) -> str:
    """Quote a configuration argument with double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


def answer(status: int, body: str, *, when: str, retry_after: int | None = None) -> str:
    """Return a rule that ends the request with this JSON body."""
    hint = f" hdr Retry-After {retry_after}" if retry_after is not None else ""
    # a log-format string, in which % starts a variable
    text = quoted(body.replace("%", "%%"))
    return f"    http-request return status {status} content-type application/json lf-string {text}{hint} if {when}"


def error_page(status: int, body: str, retry_after: int | None = None) -> str:
    """Return a JSON response for an error that HAProxy itself detects."""
    hint = f" hdr Retry-After {retry_after}" if retry_after is not None else ""
    return f"    http-error status {status} content-type application/json string {quoted(body)}{hint}"
