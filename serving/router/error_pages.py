"""What the router itself answers: errors in OpenAI's shape, as lines of HAProxy's configuration."""

import json


def error_body(message: str, kind: str, code: str, param: str | None = None) -> str:
    """An error as one line of JSON."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def invalid(message: str, code: str, param: str | None = None) -> str:
    """The client's mistake."""
    return error_body(message, "invalid_request_error", code, param)


def busy(message: str, code: str) -> str:
    """Nobody's mistake; worth another try."""
    return error_body(message, "server_error", code)


def quoted(text: str) -> str:
    """A word of the configuration, safe in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


def answer(status: int, body: str, *, when: str, retry_after: int | None = None) -> str:
    """A rule that ends the request with this JSON."""
    hint = f" hdr Retry-After {retry_after}" if retry_after is not None else ""
    # a log-format string, in which % begins a variable
    text = quoted(body.replace("%", "%%"))
    return f"    http-request return status {status} content-type application/json lf-string {text}{hint} if {when}"


def error_page(status: int, body: str, retry_after: int | None = None) -> str:
    """The same for an error that HAProxy itself finds."""
    hint = f" hdr Retry-After {retry_after}" if retry_after is not None else ""
    return f"    http-error status {status} content-type application/json string {quoted(body)}{hint}"
