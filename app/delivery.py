"""Sends the messages in the outbox to Slack."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from sqlalchemy import Engine

from app.errors import AppError
from gpufleet.domain.clocks import WallClock
from gpufleet.notify.deliver import Delivered, deliver_until_empty
from gpufleet.notify.slack import Receiver, SlackSettingsError, from_environment

DELIVERY_LIMIT: Final = timedelta(seconds=60)


def receiver(environ: Mapping[str, str] | None = None) -> Receiver:
    """Slack as the environment variables configure it. Raises AppError."""
    try:
        return from_environment(os.environ if environ is None else environ)
    except SlackSettingsError as error:
        raise AppError(str(error)) from error


def send(engine: Engine, *, wait: timedelta = DELIVERY_LIMIT) -> Delivered:
    """Deliver the messages in the outbox. Raises AppError when no way to Slack is configured."""
    return deliver_until_empty(engine, receiver(), WallClock(), wait)


def log_fields(done: Delivered) -> dict[str, int | str]:
    """The fields of a log line about a delivery."""
    counts = {"sent": done.sent + done.found, "waiting": done.later, "refused": done.refused}
    return {"outcome": "done" if not done.refused else "refused", **counts}


def summary(done: Delivered) -> str:
    """The result of a delivery, in one line."""
    counts = {"sent": done.sent + done.found, "waiting": done.later, "refused": done.refused}
    return "Slack: " + ", ".join(f"{n} {word}" for word, n in counts.items() if n or word == "sent")
