"""Log lines: their two formats, the choice of a format, and safety against hostile values and secrets."""

import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gpufleet import logs
from gpufleet.logs import HIDDEN, LONGEST_LINE, LONGEST_TEXT, Level, LineLog, LogFormat, WrongSettingError

AT = datetime(2026, 11, 21, 2, 0, 0, 5000, tzinfo=UTC)
HEAD = {"time": AT, "level": Level.INFO, "component": "test", "event": "x"}


def as_json(**fields: Any) -> dict[str, Any]:
    return json.loads(logs.line(HEAD | fields, LogFormat.JSON))


def as_text(**fields: Any) -> str:
    return logs.line(HEAD | fields, LogFormat.TEXT)


def test_a_line_begins_with_time_level_component_and_event() -> None:
    shown = logs.line({"pool": "chat", "detail": "drains", **HEAD, "group": None}, LogFormat.JSON)
    assert shown == (
        '{"time": "2026-11-21T02:00:00.005Z", "level": "info", "component": "test", "event": "x",'
        ' "pool": "chat", "detail": "drains"}'
    )


def test_a_text_line_has_the_sentence_before_the_fields() -> None:
    assert as_text(pool="chat", outcome="done", detail="the instance drained", duration_s=1.5, action="end") == (
        "2026-11-21T02:00:00.005Z INFO    test x done: the instance drained  pool=chat duration_s=1.5 action=end"
    )
    assert as_text(error="no answer", names=["a", "b c"]).endswith(' test x  error="no answer" names=["a", "b c"]')


def test_a_traceback_in_text_is_indented() -> None:
    assert as_text(traceback="one\n  two\n2026-11-21T02:00:00.005Z ERROR   forged").splitlines()[1:] == [
        "    one",
        "      two",
        "    2026-11-21T02:00:00.005Z ERROR   forged",
    ]


class Kind(StrEnum):
    SPOT = "spot"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Kind.SPOT, "spot"),
        (AT, "2026-11-21T02:00:00.005Z"),
        (timedelta(minutes=1), 60.0),
        (Decimal("1.50"), "1.50"),
        (Path("/a/b"), "/a/b"),
        (ValueError("no"), "no"),
        (ValueError(), "ValueError()"),
        (b"\xff!", "\ufffd!"),
        (True, True),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        ((1, 2), [1, 2]),
        (range(2), "range(0, 2)"),
    ],
)
def test_a_value_is_converted_to_json(value: Any, shown: Any) -> None:
    assert as_json(value=value)["value"] == shown


def test_an_integer_of_many_digits_is_named() -> None:
    assert as_json(value=10**5000)["value"] == "(an integer of 16610 bits)"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Endless(dict[str, int]):
    def items(self) -> Any:
        while True:
            yield Broken(), 1


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


ESCAPES = "\x1b[2J\x1b]52;c;Y3VybA==\x07\x9b31m\u202e\u2066"
LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00"
HOSTILE = [
    f'a{LINE_ENDS}{{"time": "2026-11-21T02:00:00.000Z", "level": "error", "event": "forged"}}',
    f"a{LINE_ENDS}2026-11-21T02:00:00.000Z ERROR   test forged",
    ESCAPES,
    "\ud800\udfff\udce9",
    "x" * 10_000_000,
    "\x00" * 100_000,
    '"' * 100_000,
    "\U0001f600" * 100_000,
    b"\n\xff" * 1000,
    Broken(),
    Endless(),
    nested(500),
    {"a\nb": "c\nd", "e" * 100_000: "f"},
    {str(number): "x" * 5000 for number in range(1000)},
    ["x" * 5000] * 1000,
    ValueError("a\nb"),
    -(10**5000),
]


@pytest.mark.parametrize("value", HOSTILE, ids=map(str, range(len(HOSTILE))))
def test_no_value_breaks_or_forges_a_line(value: Any) -> None:
    shown = logs.line(HEAD | {"detail": value, "error": value, "name": [value, value]}, LogFormat.JSON)
    assert shown.isascii() and len(shown.splitlines()) == 1 and len(shown) <= LONGEST_LINE
    found = json.loads(shown)
    assert (found["event"], found["level"]) == ("x", "info")
    assert "\\ud8" not in shown or "\\ude" in shown, "no half of a character"
    text = logs.line(HEAD | {"detail": value, "error": value, "name": [value, value]}, LogFormat.TEXT)
    assert len(text.splitlines()) == 1 and len(text) <= LONGEST_LINE
    assert not any(sign in text for sign in "\x1b\x9b\x07\u202e\u2066\x00")
    assert text.startswith("2026-11-21T02:00:00.005Z INFO    test x")


@pytest.mark.parametrize("value", HOSTILE, ids=map(str, range(len(HOSTILE))))
def test_a_hostile_traceback_starts_no_line(value: Any) -> None:
    rest = as_text(traceback=value).splitlines()[1:]
    assert all(one.startswith("    ") for one in rest)


def test_a_long_text_is_cut() -> None:
    found = as_json(detail="x" * 5000)["detail"]
    assert (len(found), found[-1]) == (LONGEST_TEXT, "…")


def test_an_oversized_line_keeps_its_first_fields() -> None:
    found = as_json(**{f"field_{number}": "x" * 30 for number in range(2000)})
    assert found == as_json(error="the line was too long")


# Secrets.


AWS_KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
SECRETS = {
    "Slack token": "xoxb-" + "123456789012-abcdefghijklmnop",
    "Slack app token": "xapp-" + "1-A0123456789-0123456789-abcdef",
    "Slack webhook": "https://hooks.slack.com/services/" + "T0123/B0123/abcdefghijklmnop",
    "AWS access key": AWS_KEY,
    "AWS secret key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Hugging Face token": "hf_" + "a" * 34,
    "GitHub token": "ghp_" + "a" * 36,
    "Google access token": "ya29." + "a0AfH6SMBx-abcdefghij",
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "private key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n-----END PRIVATE KEY-----",
}
AROUND = {
    "database URL": ("postgresql+psycopg://gpufleet:", "S3cr3t/p@ss", "@db.internal:5432/ledger?sslmode=require"),
    "redis URL": ("redis://:", "S3cr3tpass", "@cache:6379/0"),
    "bearer token": ("Authorization: Bearer ", "abcdefghijklmnopqrst", "\r\n"),
    "short bearer token": ("authorization: bearer ", "s3cr3t-token", ""),
    "basic credentials": ("{'Authorization': 'Basic ", "YWxhZGRpbjpvcGVuc2VzYW1l", "'}"),
    "setting": ("engine: api_key=", "0123456789abcdef", " and more"),
    "role credentials": ('{"SecretAccessKey": "', "wJalrXUtnFEMI", '", "Expiration": "2026"}'),
    "session": ('{"SessionToken":"', "IQoJb3JpZ2luX2VjE", '"}'),
    "escaped JSON": ('{\\"access_token\\": \\"', "abcdefgh1234", '\\"}'),
    "XML": ("<SecretAccessKey>", "wJalrXUtnFEMIK7", "</SecretAccessKey>"),
    "presigned URL": ("https://b.s3.amazonaws.com/k?X-Amz-Signature=", "0123456789abcdef" * 4, "&x=1"),
}


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("kind", SECRETS)
def test_a_known_kind_of_secret_is_in_no_line(kind: str, form: LogFormat) -> None:
    secret = SECRETS[kind]
    shown = logs.line(HEAD | {"detail": f"x {secret} y", "error": ValueError(secret), "more": [{"a": secret}]}, form)
    assert all(part not in shown for part in secret.splitlines()), shown


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("kind", AROUND)
def test_a_secret_is_detected_by_its_context(kind: str, form: LogFormat) -> None:
    before, secret, after = AROUND[kind]
    shown = logs.line(
        HEAD | {"detail": f"x {before}{secret}{after}", "error": OSError(before + secret + after)}, form
    )
    assert secret not in shown, shown


def test_a_secret_at_the_limit_of_a_text_is_not_shown_in_part() -> None:
    for start in range(LONGEST_TEXT - 60, LONGEST_TEXT + 10):
        assert "AKIA" not in as_json(detail="." * start + f" {AWS_KEY}")["detail"]


def test_a_value_with_the_name_of_a_secret_is_hidden() -> None:
    found = as_json(token="abc", nested={"password": "x", "api_key": 1, "user": "ana"})
    assert (found["token"], found["nested"]) == (HIDDEN, {"password": HIDDEN, "api_key": HIDDEN, "user": "ana"})


@pytest.mark.parametrize("form", LogFormat)
def test_a_known_secret_is_hidden_in_every_form(form: LogFormat) -> None:
    secret = 'a "quoted"\nsecret/with é'
    logs.hide(secret, 'a "quoted"', "", "abc")
    shapes = [secret, repr(secret), json.dumps(secret), f"?key={quote(secret, safe='')}"]
    shown = logs.line(HEAD | {"detail": " ".join(shapes), "error": ValueError(secret), "short": "abc"}, form)
    assert not any(part in shown for part in ("quoted", "secret/", "secret%2F"))
    assert HIDDEN in shown and "abc" in shown


def test_a_hidden_key_does_not_show_another_one() -> None:
    logs.hide("-----BEGIN PRIVATE KEY-----\nMIIEotherotherotherother\n-----END PRIVATE KEY-----")
    shown = as_json(detail=f"{SECRETS['private key']} and a line of the first: MIIEotherotherotherother")
    assert shown["detail"] == f"[a private key] and a line of the first: {HIDDEN}"


def test_values_of_variables_that_hold_secrets_are_hidden() -> None:
    logs.hide_variables(
        {
            "GPUFLEET_CONSOLE_TOKEN": "console-value",
            "GPUFLEET_SLACK_SIGNING_SECRET": "signing-value",
            "PGPASSWORD": "database-value",
            "AWS_SECRET_ACCESS_KEY": "aws-value",
            "GOOGLE_APPLICATION_CREDENTIALS": "/etc/google.json",
            "AWS_REGION": "eu-central-1",
            "A_TOKEN": "short",
        }
    )
    line = "console-value signing-value database-value aws-value /etc/google.json eu-central-1 short"
    assert (
        as_json(detail=line)["detail"] == f"{HIDDEN} {HIDDEN} {HIDDEN} {HIDDEN} /etc/google.json eu-central-1 short"
    )


# The choice of a format.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Any]:
    with (tmp_path / "journal").open("w") as stream:
        yield stream


def journal_of(stream: Any) -> dict[str, str]:
    found = os.fstat(stream.fileno())
    return {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}


def test_under_systemd_lines_are_json(journal: Any) -> None:
    assert logs.wanted_form(journal_of(journal), journal, service=False) is LogFormat.JSON


def test_an_inherited_journal_variable_is_ignored(journal: Any) -> None:
    assert logs.wanted_form({"JOURNAL_STREAM": "8:1", "INVOCATION_ID": "x"}, journal, service=False) is None
    assert logs.wanted_form({"JOURNAL_STREAM": "8:1"}, Terminal(), service=True) is LogFormat.TEXT


def test_a_service_writes_text_at_a_terminal_and_json_elsewhere() -> None:
    assert logs.wanted_form({}, Terminal(), service=True) is LogFormat.TEXT
    assert logs.wanted_form({}, io.StringIO(), service=True) is LogFormat.JSON
    assert logs.wanted_form({}, io.StringIO(), service=False) is None


@pytest.mark.parametrize("form", LogFormat)
def test_the_form_is_chosen_on_request(form: LogFormat, journal: Any) -> None:
    environ = {"GPUFLEET_LOG": form.value} | journal_of(journal)
    for stream in (journal, Terminal(), io.StringIO()):
        assert logs.wanted_form(environ, stream, service=False) is form


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(WrongSettingError, match="^`GPUFLEET_LOG`: expected json or text, got 'yes'$"):
        logs.wanted_form({"GPUFLEET_LOG": "yes"}, io.StringIO(), service=True)
    message = "^`GPUFLEET_LOG_LEVEL`: expected one of debug, info, warning, error, got 'loud'$"
    with pytest.raises(WrongSettingError, match=message):
        logs.wanted_level({"GPUFLEET_LOG_LEVEL": "loud"})


# The log that uses only the standard library.


def test_a_log_writes_its_level_and_those_above() -> None:
    written: list[str] = []
    log = LineLog(component="node", now=lambda: AT, write=written.append, least=Level.WARNING, pool="chat")
    for write in (log.debug, log.info, log.warning, log.error):
        write("x")
    assert [json.loads(one)["level"] for one in written] == ["warning", "error"]
    assert json.loads(written[0])["pool"] == "chat"


def test_a_service_reports_and_ignores_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUFLEET_LOG", "yes")
    logs.from_environment("node").info("x")
    first, second = (json.loads(one) for one in capsys.readouterr().err.splitlines())
    assert (first["event"], first["level"]) == ("setting", "warning") and "`GPUFLEET_LOG`" in first["error"]
    assert (second["event"], second["component"]) == ("x", "node")


def test_a_failed_write_raises_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed, None):
        monkeypatch.setattr("sys.stderr", stream)
        LineLog(component="test").info("x")


def test_an_ascii_stream_accepts_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(written, encoding="ascii", errors="strict"))
    for form in LogFormat:
        LineLog(component="test", form=form).info("x", detail="é\U0001f600")
    assert len(written.getvalue().splitlines()) == 2


def test_an_unhandled_exception_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    written: list[str] = []
    logs.log_crashes(LineLog(component="test", write=written.append))

    def fail() -> None:
        raise ValueError(f"token={'x' * 20}\nforged")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    try:
        fail()
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    for one in map(json.loads, written):
        assert (one["event"], one["level"]) == ("crash", "error")
        assert one["error"] == "ValueError: [a password]\nforged"
        assert "in fail" in one["traceback"] and "xxxxx" not in one["traceback"]
    assert len(written) == 2
