"""The token of the embedded clouds that tests start, and all that shows it: one for every test."""

from collections.abc import Collection
from pathlib import Path

from google.oauth2.credentials import Credentials

from localcloud.callers import VARIABLE, Callers, Door
from localcloud.places import ACCESS_KEY

TOKEN = "the-token-of-embedded-clouds-of-tests"  # noqa: S105 - of tests
BEARER = {"Authorization": f"Bearer {TOKEN}"}
BOT, APP = f"xoxb-{TOKEN}", f"xapp-{TOKEN}"
WEBHOOK = f"/services/T/B/{TOKEN}"
"""The path of the Slack sink's webhook."""
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": TOKEN}
ENVIRONMENT = {**KEYS, VARIABLE: TOKEN}
"""Of clients of both clouds."""


def google() -> Credentials:
    """For Google's own clients."""
    return Credentials(token=TOKEN)  # type: ignore[no-untyped-call]


def callers() -> Callers:
    """Who may call a server of this process."""
    return Callers(TOKEN)


def door(hosts: Collection[str]) -> Door:
    """The check of a server of this process at these addresses."""
    return Door(callers(), hosts)


def options(folder: Path) -> tuple[str, str]:
    """Those of `python -m localcloud.cloud` that let it ask for the token."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "token-of-tests"
    file.write_text(TOKEN)
    return "--token-file", str(file)
