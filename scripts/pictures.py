"""`make docs`: pictures of a cost report, the console and a Slack message, taken by headless Chromium.

The pages come from the product's own commands, on an example fleet: a small ledger and a list of instances that this
module writes. Nothing leaves the machine: Slack is the sink of `localcloud`. Without Chromium the site has no
pictures, and the script states that.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from localcloud.callers import Callers
from localcloud.slack.server import SlackSink
from sqlalchemy import Connection

from app.feed import SEEN, FeedPaths, Seen
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.domain.prices import Price
from gpufleet.ledger import decisions, facts, rollups
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import ActivityHour, CostPass, EndCause, Run, RunEnd, TokenReading
from gpufleet.ledger.schema import open_ledger
from gpufleet.toolchain.folders import ROOT

FLEET: Final = "aws/example/us-east-1"
TOKEN: Final = "token-of-the-example"  # noqa: S105 - of servers on loopback that end with this script
LIMIT_S: Final = 120
PRIVATE: Final = ("AWS_", "GOOGLE_", "GPUFLEET_")
"""Beginnings of variables that commands of this script do not get."""
HOUR: Final = timedelta(hours=1)
HEIGHTS: Final = {"report": 1400, "console": 1500, "slack": 880}
"""Of each picture, in pixels: to the end of the page, or of the first table of the report."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance of the example: when it began and ended (hours before now), and its share of busy time."""

    name: str
    pool: str
    kind: CapacityType
    began: float
    ended: float | None
    busy: float


MACHINES: Final = (
    Machine("i-0a1c5e7f9b2d40011", "chat", CapacityType.SPOT, 23.5, None, 0.82),
    Machine("i-0a1c5e7f9b2d40012", "chat", CapacityType.SPOT, 23.5, 9.0, 0.78),
    Machine("i-0a1c5e7f9b2d40013", "chat", CapacityType.ON_DEMAND, 9.0, 4.0, 0.74),
    Machine("i-0a1c5e7f9b2d40014", "chat", CapacityType.SPOT, 4.2, None, 0.8),
    Machine("i-0b2d6f8a0c3e50021", "batch", CapacityType.ON_DEMAND, 22.0, None, 0.31),
    Machine("i-0b2d6f8a0c3e50022", "batch", CapacityType.ON_DEMAND, 20.0, 14.0, 0.04),
)
OWNERS: Final = {"chat": "search", "batch": "research"}
USD: Final = {CapacityType.SPOT: "0.3217", CapacityType.ON_DEMAND: "0.8048"}


def groups_of(pool: str) -> list[dict[str, Any]]:
    """Return the groups of a pool, as the fleet document has them."""
    common = {"zone": "us-east-1a", "max": 5, "machine_types": ["g6.xlarge"]}
    return [common | {"type": kind, "name": f"{pool}-{kind}"} for kind in (CapacityType.SPOT, CapacityType.ON_DEMAND)]


def write_fleet(folder: Path, now: datetime) -> Path:
    """Write document, ledger and feed of the example into a folder. Returns the document's path."""
    pool: dict[str, Any] = {
        "engine": "vllm",
        "target": 2,
        "min": 0,
        "max": 5,
        "drain_deadline": "90s",
        "watchdogs": {"idle": {}},
    }
    document: dict[str, Any] = {
        "version": 1,
        "environment": "example",
        "cloud": "aws",
        "region": "us-east-1",
        "account": "000000000000",
        "generated_by": {"project": "gpu-fleet", "stack": "aws-example", "revision": "1", "at": now.isoformat()},
        "bucket": "s3://models",
        "prometheus_url": "http://127.0.0.1:9",
        "ledger_url": f"sqlite:///{folder}/ledger.db",
        "router": {"url": "http://127.0.0.1:9"},
        "notify": {"slack_channel": "#gpu-cost"},
        "budget": {"usd_per_month": "900", "usd_per_hour_at_max": "9"},
        "pools": [
            pool | {"name": name, "model": f"models/{name}-8b", "owner": owner, "groups": groups_of(name)}
            for name, owner in OWNERS.items()
        ],
    }
    paths = FeedPaths(folder=folder)
    paths.document.write_text(json.dumps(document))
    engine = open_ledger(f"sqlite:///{folder}/ledger.db")
    with writing(engine) as connection:
        _add_machines(connection, now)
        for kind, usd in USD.items():
            price = Price(
                sku=f"aws:ec2:g6.xlarge:{kind}", region="us-east-1", zone=None, source="example",
                valid_from=now - 48 * HOUR, usd_per_hour=Decimal(usd), as_of=now,
            )  # fmt: skip
            facts.add_prices(connection, [price])
        for minutes in range(0, 24 * 60 + 1, 5):
            at = now - timedelta(minutes=minutes)
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    ended = Decision(resource=MACHINES[-1].name, pool="batch", action=Action.END, reason=Reason.IDLE, detail="")
    done = Outcome(decision=ended, kind=OutcomeKind.DONE, detail="", error=None)
    decisions.record_outcome(engine, FLEET, "idle", done, now - (MACHINES[-1].ended or 0) * HOUR)
    engine.dispose()
    return paths.document


def _add_machines(connection: Connection, now: datetime) -> None:
    for machine in MACHINES:
        began = now - machine.began * HOUR
        until = now if machine.ended is None else now - machine.ended * HOUR
        run = Run(
            cloud=Cloud.AWS, instance_id=machine.name, environment=FLEET, region="us-east-1", zone="us-east-1a",
            capacity_type=machine.kind, pool=machine.pool, model=f"models/{machine.pool}-8b",
            owner=OWNERS[machine.pool], machine_type="g6.xlarge", started_at=began, last_seen_at=until,
        )  # fmt: skip
        facts.add_runs(connection, [run])
        if machine.ended is not None:
            cause = EndCause.PREEMPTED if machine.kind is CapacityType.SPOT else EndCause.ENDED
            end = RunEnd(
                cloud=Cloud.AWS, instance_id=machine.name, started_at=began, ended_at=until, cause=cause, exact=True
            )
            facts.add_ends(connection, [end])
        readings = _readings(machine, began + timedelta(minutes=6), until)
        facts.add_readings(connection, readings)
        rollups.roll_up(connection, readings)
        facts.add_activity(connection, _activity(machine, began + timedelta(minutes=6), until))


def _readings(machine: Machine, ready: datetime, until: datetime) -> list[TokenReading]:
    """Counters every five minutes."""
    step = timedelta(minutes=5)
    tokens = [round(number * 90_000 * machine.busy) for number in range((until - ready) // step + 1)]
    return [
        TokenReading(
            environment=FLEET,
            instance_id=machine.name,
            engine="0",
            model=f"models/{machine.pool}-8b",
            at=ready + number * step,
            prompt=count * 4,
            cached=count,
            generation=count,
            created_at=ready,
        )  # fmt: skip
        for number, count in enumerate(tokens)
    ]


def _activity(machine: Machine, ready: datetime, until: datetime) -> list[ActivityHour]:
    """One bit for each ten seconds of an hour in which the instance was ready."""
    found: list[ActivityHour] = []
    hour = ready.replace(minute=0, second=0, microsecond=0)
    while hour < until:
        ran = sum(1 << slot for slot in range(360) if ready <= hour + slot * timedelta(seconds=10) < until)
        busy = ((1 << round(360 * machine.busy)) - 1) & ran
        found.append(
            ActivityHour(environment=FLEET, instance_id=machine.name, hour=hour, busy=busy, idle=ran & ~busy)
        )
        hour += HOUR
    return found


def write_feed(folder: Path, now: datetime) -> None:
    """Write the list of instances that the console reads. It is valid for a minute."""
    alive = tuple(
        Instance(
            id=machine.name,
            cloud=Cloud.AWS,
            region="us-east-1",
            zone="us-east-1a",
            machine_type="g6.xlarge",
            capacity_type=machine.kind,
            state=InstanceState.RUNNING,
            launched_at=now - machine.began * HOUR,
            environment="example",
            pool=machine.pool,
            group=f"{machine.pool}-{machine.kind}",
            private_address="127.0.0.1",
        )  # fmt: skip
        for machine in MACHINES
        if machine.ended is None
    )
    FeedPaths(folder=folder).instances.write_bytes(SEEN.dump_json(Seen(at=time.time(), instances=alive)))


def command(environment: Mapping[str, str], *arguments: str) -> str:
    """Run a command of gpufleet. Returns its output. Raises CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    return done.stdout


def pages(folder: Path, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield name and address of each page to show. An address is valid until the next one is requested."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(PRIVATE)}
    environment = plain | {
        "GPUFLEET_FLEET": str(write_fleet(folder, now)),
        "GPUFLEET_CONSOLE_TOKEN": TOKEN,
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    report = folder / "report.html"
    report.write_text(command(environment, "report", "cost", "--since", "24h", "--format", "html"))
    yield "report", report.as_uri()
    slack = SlackSink("127.0.0.1", 0, Callers(TOKEN))
    slack.start()
    try:
        to_slack = {"GPUFLEET_SLACK_TOKEN": f"xoxb-{TOKEN}", "GPUFLEET_SLACK_API_URL": f"{slack.url}/api/"}
        command(environment | to_slack, "report", "cost", "--since", "24h", "--post")
        yield "slack", slack.url.replace("://", f"://x:{TOKEN}@")
    finally:
        slack.stop()
    console = folder / "console.html"
    console.write_bytes(console_page(folder, environment, now))
    yield "console", console.as_uri()


def console_page(folder: Path, environment: Mapping[str, str], now: datetime) -> bytes:
    """Return the page of costs of `gpufleet console`. It contains everything that it needs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = [sys.executable, "-m", "cli.main", "console", "--listen", listen, "--feed", str(folder)]
    quiet = subprocess.DEVNULL
    console = subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=quiet, stderr=quiet)
    try:
        request = urllib.request.Request(f"http://{listen}/history", headers={"Authorization": f"Bearer {TOKEN}"})
        end = time.monotonic() + LIMIT_S
        while True:
            write_feed(folder, now)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    page: bytes = answer.read()
                    return page
            except (urllib.error.URLError, ConnectionError):  # it starts
                if console.poll() is not None or time.monotonic() > end:
                    raise
            time.sleep(0.3)
    finally:
        console.terminate()
        console.wait(LIMIT_S)


def take(chromium: str, folder: Path, address: str, picture: Path) -> None:
    """Take a picture of a page, of the height in HEIGHTS. Raises CalledProcessError, TimeoutExpired."""
    subprocess.run(
        [
            chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-proxy-server",
            "--hide-scrollbars", f"--user-data-dir={folder}/profile",
            f"--window-size=1100,{HEIGHTS[picture.stem]}",
            f"--screenshot={picture}", address,
        ],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=True,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip


def main() -> None:
    """Write the pictures into the built site."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("pictures: none, because Chromium is missing (`make setup-tests` installs it)", file=sys.stderr)
        return
    out = ROOT / ".local" / "site" / "pictures"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpufleet-pictures-", ignore_cleanup_errors=True) as name:
        try:
            for shown, address in pages(Path(name), datetime.now(UTC).replace(microsecond=0)):
                take(chromium, Path(name), address, out / f"{shown}.png")
        except (subprocess.SubprocessError, OSError) as error:
            print(f"pictures: the site lacks some of them: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
