"""`gpufleet local up`: starts the embedded environment, also from a partial start or after a crash."""

import fcntl
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import Folders
from localcloud.callers import TOKEN_FILE
from localcloud.lifecycle import parts
from localcloud.lifecycle.down import clear_out, end_recorded
from localcloud.lifecycle.environment import credentials_of
from localcloud.lifecycle.selected_cloud import choose, chosen, stack_of
from localcloud.lifecycle.waiting import LocalError

LOCK_LIMIT_S: Final = 120.0


def bring_up(  # noqa: PLR0913
    folders: Folders,
    pulumi: Path,
    environment: Mapping[str, str],
    *,
    which: Cloud,
    config: Mapping[str, str],
    announce: Callable[[str], None],
) -> None:
    """Start the parts that do not run. `config`: files of Prometheus and Alertmanager, by path in `.local/control`.

    Raises LocalError. Parts that have started keep running; the next run or `local down` finds them.
    """
    # imported here: boto3 and the provider take a second, which other commands must not spend
    from localcloud.lifecycle import seed, seed_google, stack

    with only_one(folders):
        cloud = parts.cloud(folders)
        if not parts.is_up(cloud, folders):
            # the cloud's state ended with its process, so what was built in it no longer exists
            left = clear_out(folders)
            if left.processes:
                announce(f"cleaned up after an earlier run: {left.processes} processes ended")
            for part in parts.control(folders):
                parts.check_addresses(part, folders)  # before any process starts
            choose(folders, which)
            parts.start(cloud, folders, environment)
        elif chosen(folders) is not which:
            raise LocalError(f"the embedded cloud runs for {chosen(folders)}: run `gpufleet local down` first")
        environment = {**environment, **credentials_of(folders)}
        announce(f"{cloud.what}: {parts.CLOUD.api_url} (AWS), {parts.CLOUD.google_url} (Google Cloud)")
        seed.seed(folders, announce)
        seed_google.seed(folders, announce)
        stack.prepare(folders, pulumi, environment)
        announce(f"Pulumi stack {stack_of(which)}, with the local provider of {which} in {folders.pulumi_home}")
        for name, text in config.items():
            _write(folders.control / name, text)
        _make_token(parts.console_token(folders))
        for part in parts.control(folders):
            if not parts.is_up(part, folders):
                end_recorded(part.name, folders)
                parts.start(part, folders, environment)
            announce(": ".join((part.what, *(f"http://{address}:{port}" for address, port in part.listens[:1]))))
        announce(f"the console's token: {parts.console_token(folders)}")
        announce(
            f"the embedded cloud's token: {folders.cloud / TOKEN_FILE}, also the password of {parts.CLOUD.slack_url}"
        )


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file() or file.read_text() != text:
        file.write_text(text)


def _make_token(file: Path) -> None:
    if not file.is_file():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(24) + "\n")


@contextmanager
def only_one(folders: Folders) -> Generator[None]:
    """One `up` or `down` at a time in this clone. Raises LocalError."""
    folders.local.mkdir(parents=True, exist_ok=True)
    with (folders.local / "lock").open("a") as lock:
        until = time.monotonic() + LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise LocalError(
                        f"another `gpufleet local up` or `down` of this clone held {folders.local / 'lock'} "
                        f"for {LOCK_LIMIT_S:.0f} s: wait for it or end it"
                    ) from None
                time.sleep(0.2)
        yield
