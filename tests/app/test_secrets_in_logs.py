"""Secrets in the environment, in settings and in errors of clouds appear in no log line, in either form."""

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app import cost_pass, delivery, logs
from app.errors import AppError
from app.passes import Options, WatchdogKind
from cli import slack, watch_cost
from cli.output import STDERR, log_failure
from cli.watch_pass import Show, over_fleets
from cli.watch_run import Daemon
from gpufleet.domain.activity import CloudError
from gpufleet.logs import FORM_VARIABLE, LogFormat
from gpufleet.settings.document import FleetDocument, render
from tests.fixtures.secrets import IN_TEXTS, IN_VARIABLES, PASSWORD, PLANTED, check
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.plain import document
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests


@pytest.fixture(params=LogFormat)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogFormat]:
    """The form in which this process logs, with secrets in its environment."""
    for name, value in IN_VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(FORM_VARIABLE, request.param)
    logs.configure("daemon", service=True)
    yield request.param
    assert logs.is_on()


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDocument:
    return document().model_copy(update={"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}", "notify": None})


def idle(fake: Any) -> WatchdogKind:
    def make(read: FleetDocument, ports: Any) -> IdleWatchdog:
        return IdleWatchdog(read, replace(fake.ports(), ledger=ports.ledger, log=ports.log))

    return WatchdogKind(name="idle", make=make)


@pytest.mark.parametrize("call", ["instances", "groups", "tag", "query", "statuses", "hold"])
def test_a_pass_whose_cloud_answers_with_secrets(
    call: str, form: LogFormat, fleet: FleetDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = idle_fleet(2)

    def answer(name: str) -> None:
        if name == call:
            raise CloudError(PLANTED)

    fake.before = answer
    accepted = Options(apply=True, accept=(digests(fleet, "idle")["batch"],))
    over_fleets(idle(fake), [fleet], accepted, Show.PROBLEMS)
    check(capsys.readouterr().err, form, 1)


def broken(_: Any, __: Any) -> Any:
    try:
        raise OSError(PLANTED)
    except OSError as error:
        raise ValueError(f"planted in a chain: {PLANTED}") from error


def test_a_job_of_the_daemon_that_fails_with_secrets(
    form: LogFormat,
    fleet: FleetDocument,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(render(fleet))
    monkeypatch.setattr("cli.watch_run.kinds", lambda: {"idle": WatchdogKind(name="idle", make=broken)})
    daemon = Daemon(fleet_urls=(str(path),), apply=True)
    spans = {name: timedelta(minutes=1) for name in ("idle", "cost", "revisions")}
    (job,) = (job for job in daemon.jobs([fleet], spans) if job.name.startswith("idle"))
    with pytest.raises(ValueError, match="planted in a chain"):
        job.run()
    path.write_text(f'{{"bucket": "{IN_TEXTS["database URL"]}", "token": {json.dumps(PLANTED)}')
    with pytest.raises(AppError):
        job.run()
    check(capsys.readouterr().err, form, 2)


@pytest.mark.parametrize("url", ["postgresql://gpufleet:{}@127.0.0.1:9/ledger", "postgresql://u:{}@no.such.host/x"])
def test_a_ledger_that_does_not_answer_hides_the_password_of_its_url(
    url: str, form: LogFormat, fleet: FleetDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = fleet.model_copy(update={"ledger_url": url.format(PASSWORD)})
    watch_cost.over_fleets([lost, fleet], show=False)
    over_fleets(idle(idle_fleet(1)), [lost, lost], Options(), Show.PROBLEMS)
    check(capsys.readouterr().err, form, 3)


def test_prices_and_sources_that_answer_with_secrets(
    form: LogFormat, fleet: FleetDocument, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise CloudError(PLANTED)

    monkeypatch.setattr("app.cost_pass.prices.refresh_daily", refuse)
    monkeypatch.setattr("app.cost_pass.sources_of", refuse)
    watch_cost.over_fleets([fleet], show=False)
    progress = cost_pass.CostPassListener(written=lambda _: None, problem=lambda _: None)
    cost_pass.refresh_prices(fleet, None, progress, None)  # type: ignore[arg-type]
    check(capsys.readouterr().err, form, 2)


def test_messages_that_slack_refuses_with_secrets(
    form: LogFormat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AppError(PLANTED)

    monkeypatch.setattr(delivery, "send", refuse)
    buttons: Any = type("Buttons", (), {"engine": None, "name": f"aws/{IN_TEXTS['AWS access key']}/x"})
    slack._deliver(buttons)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setenv(slack.APP_TOKEN, IN_TEXTS["Slack token"])
    monkeypatch.setattr(slack, "_open_socket", refuse)
    slack.listen_if_set([])
    check(capsys.readouterr().err, form, 2)


def fail_with_secrets() -> None:
    raise RuntimeError(PLANTED)


def in_a_thread() -> None:
    thread = threading.Thread(target=fail_with_secrets)
    thread.start()
    thread.join()


def at_the_end() -> None:
    try:
        fail_with_secrets()
    except RuntimeError as error:
        sys.excepthook(RuntimeError, error, error.__traceback__)


def in_a_library() -> None:
    try:
        fail_with_secrets()
    except RuntimeError:
        logging.getLogger("botocore.auth").exception("signed with %s", PLANTED)


def in_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(PLANTED, stacklevel=1)


PLACES: dict[str, Callable[[], object]] = {
    "a thread": in_a_thread,
    "the end of the process": at_the_end,
    "a library": in_a_library,
    "a warning": in_a_warning,
    "a message": lambda: STDERR.print(f"! {PLANTED}", soft_wrap=True),
    "the end of a command": lambda: log_failure(AppError(PLANTED)),
    "a field": lambda: logs.get().info("message", detail=PLANTED, resources=[PLANTED], jobs={"a": PLANTED}),
    "a variable": lambda: logs.get().info("message", detail=str(dict(os.environ))),
}


@pytest.mark.parametrize("place", PLACES)
def test_other_places_that_show_secrets(place: str, form: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    logging.captureWarnings(True)  # pytest replaces the function that shows warnings
    PLACES[place]()
    check(capsys.readouterr().err, form, 1)
