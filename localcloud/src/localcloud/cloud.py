"""`python -m localcloud.cloud`: the embedded cloud, one process. When it ends, everything it started ends with it."""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Final

from localcloud import time_scale
from localcloud.addresses import Places
from localcloud.callers import TOKEN_FILE, make_token

_LOCK_FILE: Final = "cloud.lock"


class BusyError(Exception):
    """Another cloud uses this state folder; the message states what to do."""


def strip_environment() -> None:
    """Remove all credentials and endpoints of real clouds from the environment."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_", "AZURE_")) or name.upper().endswith("_PROXY"):
            del os.environ[name]
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m localcloud.cloud", description="the embedded cloud on loopback")
    parser.add_argument(
        "--state", type=Path, required=True, help="folder for `cloud.json` (pid and addresses) and the token"
    )
    parser.add_argument("--machines", type=Path, help="folder of the machines (default: `machines` next to --state)")
    parser.add_argument("--network", default=Places().network, help="first two numbers of all addresses, 127.N")
    parser.add_argument(
        "--name", action="append", default=[], help="another host name that requests to AWS may be addressed to"
    )
    parser.add_argument(
        "--token-file", type=Path, help="file with the token that callers need (default: a new token)"
    )
    parser.add_argument("--plain", action="store_true", help="machines in plain folders, without namespaces")
    options = parser.parse_args()
    state: Path = options.state.resolve()
    machines: Path = (options.machines or state.parent / "machines").resolve()
    state.mkdir(parents=True, exist_ok=True)
    try:
        with _only_one(state):
            return _serve(options, state, machines)
    except (BusyError, OSError, ValueError) as error:
        return _cannot_start(error)


def _cannot_start(error: Exception) -> int:
    print(f"the embedded cloud cannot start: {error}", file=sys.stderr)
    return 1


def _serve(options: argparse.Namespace, state: Path, machines: Path) -> int:
    places = Places(network=options.network)
    given: Path | None = options.token_file
    token = make_token(state) if given is None else given.read_text("utf-8").strip()
    strip_environment()
    # imported here: boto3 and moto read the environment at import, and would use a real profile of the user
    from localcloud.embedded import CloudError, StartOptions, start

    ending = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        ending.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        cloud = start(
            StartOptions(
                places=places,
                machines=machines,
                time_scale=time_scale.of_environment(os.environ),
                token=token,
                names=tuple(options.name),
                plain=options.plain,
            )
        )
    except CloudError as error:
        return _cannot_start(error)
    ready = {
        "pid": os.getpid(),
        "api": places.api_url,
        "google": places.google_url,
        "slack": places.slack_url,
        "machines": str(machines),
    }
    (state / "cloud.json").write_text(json.dumps(ready, indent=1) + "\n", "utf-8")
    print(f"the embedded cloud answers at {places.api_url} (AWS) and {places.google_url} (Google Cloud)", flush=True)
    try:
        ending.wait()
    finally:
        cloud.stop()
        (state / "cloud.json").unlink(missing_ok=True)
        (state / TOKEN_FILE).unlink(missing_ok=True)
    return 0


@contextlib.contextmanager
def _only_one(state: Path) -> Generator[None]:
    """Lock the state folder. Raises BusyError when another cloud uses it."""
    with (state / _LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"another embedded cloud uses {state}: stop it with `gpufleet local down`") from error
        yield


if __name__ == "__main__":
    sys.exit(main())
