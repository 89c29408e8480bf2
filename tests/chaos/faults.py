"""All faults of a run, with their names and how each is injected and cleared. A seed determines the order."""

import time
from typing import Final

import httpx

from gpufleet.settings.document import PATH_IN_BUCKET
from tests.chaos import bucket, host, machines, market, notifications
from tests.chaos.fault import Fault, Memory, down, each, nothing, still
from tests.chaos.setup import write_settings
from tests.chaos.testbed import STACK, ChaosTestbed
from tests.fixtures.e2e.embedded_cloud import wait_for
from tests.fixtures.local_token import BEARER

BLIND_LIMIT_S: Final = 180.0
"""A throttled call is retried for up to a minute."""


RESOLVER_S: Final = 5
"""How long a resolver waits for an unreachable server, once."""


def _throttle(testbed: ChaosTestbed, memory: Memory) -> None:
    for service, code, status in (("ec2", "RequestLimitExceeded", 503), ("autoscaling", "Throttling", 400)):
        fault = {"service": service, "operation": "*", "code": code, "status": status, "times": 400}
        testbed.cloud.control("api-fault", fault)


def _throttle_bucket(testbed: ChaosTestbed, memory: Memory) -> None:
    """The bucket answers `slow down` while an instance is being replaced and the new one boots from it."""
    fault = {"service": "s3", "operation": "*", "code": "SlowDown", "status": 503, "times": 400}
    testbed.cloud.control("api-fault", fault)
    market.take(testbed, market.spot_of(testbed)[:1])


def _unthrottle(testbed: ChaosTestbed, memory: Memory) -> None:
    """The fault is cleared when the router sees the cloud again: a replica unknown to the router is idle, and is
    rightly terminated."""
    testbed.delete("api-fault")
    _wait_for_router(testbed)


def _wait_for_router(testbed: ChaosTestbed) -> None:
    cleared = time.time()
    wait_for("the router sees the cloud again", lambda: testbed.router_sees(cleared), BLIND_LIMIT_S)


def _lose_names(testbed: ChaosTestbed, memory: Memory) -> None:
    """The control host's resolver fails after some seconds, while an instance is being replaced."""
    if not testbed.names.is_there:
        testbed.announce("no C compiler is installed: the fault of name resolution is skipped")
    testbed.names.set(RESOLVER_S)
    market.take(testbed, market.spot_of(testbed)[:1])


def _names_back(testbed: ChaosTestbed, memory: Memory) -> None:
    testbed.names.set(0)
    _wait_for_router(testbed)


def _up_in_the_middle(testbed: ChaosTestbed, memory: Memory) -> None:
    """Replace the launch templates of all groups while watchdogs replace a preempted instance."""
    market.take(testbed, market.spot_of(testbed)[:1])
    memory.held["number"] = number = 100 + time.time_ns() % 97
    write_settings(testbed, disk_gib=number)
    testbed.engine.run("up", "--yes", "--skip-preview", "--stack", STACK)


FAULTS: Final = (
    Fault(
        name="spot loss of a whole zone",
        inject=market.lose_zone,
        heal=market.zone_back,
        lasts_s=market.NOTICE_S + 2,
        long_s=45,
        needs_whole=True,
    ),
    Fault(
        name="no capacity in any zone",
        inject=market.lose_all,
        heal=market.all_back,
        lasts_s=market.NOTICE_S + 2,
        long_s=60,
        needs_whole=True,
    ),
    down(
        "control host restarted",
        ChaosTestbed.kill,
        "watchdogs",
        "console",
        "router",
        "prometheus",
        "alertmanager",
        lasts_s=1,
        long_s=5,
    ),
    down("watchdogs restarted", ChaosTestbed.end, "watchdogs", lasts_s=0, long_s=10),
    still("suspended watchdogs", "watchdogs", lasts_s=6, long_s=30),
    down("Prometheus down", ChaosTestbed.end, "prometheus", lasts_s=6, long_s=120),
    still("a suspended Prometheus", "prometheus", lasts_s=6, long_s=30),
    down("router killed", ChaosTestbed.kill, "router", lasts_s=1, long_s=10),
    Fault(name="HAProxy killed", inject=host.kill_haproxy, heal=nothing, lasts_s=1, long_s=5),
    down("Alertmanager and console down", ChaosTestbed.end, "console", "alertmanager", lasts_s=4, long_s=60),
    down("Alertmanager killed", ChaosTestbed.kill, "alertmanager", lasts_s=1, long_s=10),
    Fault(name="ledger locked", inject=host.lock_ledger, heal=host.unlock_ledger, lasts_s=4, long_s=45),
    Fault(name="ledger's disk full", inject=host.fill_disk, heal=host.empty_disk, lasts_s=4, long_s=30),
    Fault(
        name="an instance that hangs",
        inject=machines.broken("engine-hang"),
        heal=machines.clear,
        lasts_s=12,
        long_s=15,
        needs_whole=True,
    ),
    Fault(
        name="a GPU falls off the bus",
        inject=machines.lose_gpus,
        heal=machines.give_gpus_back,
        lasts_s=6,
        long_s=notifications.MISSING_S + 10,
        needs_whole=True,
    ),
    Fault(
        name="node agents killed",
        inject=machines.kill_agents,
        heal=nothing,
        lasts_s=2,
        long_s=20,
        needs_whole=True,
    ),
    Fault(
        name="a suspended node agent",
        inject=machines.broken("agent"),
        heal=machines.clear,
        lasts_s=6,
        long_s=60,
        needs_whole=True,
    ),
    Fault(
        name="an engine killed",
        inject=machines.kill_engine,
        heal=nothing,
        lasts_s=2,
        long_s=5,
        needs_whole=True,
    ),
    Fault(
        name="metadata services that do not respond",
        inject=machines.silence_metadata,
        heal=machines.clear,
        lasts_s=6,
        long_s=15,
        needs_whole=True,
    ),
    Fault(
        name="an exporter without values",
        inject=machines.broken("exporter-blank"),
        heal=machines.clear,
        lasts_s=6,
        long_s=45,
        needs_whole=True,
    ),
    Fault(
        name="an exporter with frozen values",
        inject=machines.broken("exporter-frozen"),
        heal=machines.clear,
        lasts_s=6,
        long_s=45,
        needs_whole=True,
    ),
    Fault(
        name="a bad model revision",
        inject=machines.bad_revision,
        heal=machines.roll_back,
        lasts_s=0,
        long_s=0,
        needs_whole=True,
    ),
    Fault(
        name="pulumi up in the middle",
        inject=_up_in_the_middle,
        heal=nothing,
        lasts_s=0,
        long_s=0,
        needs_whole=True,
    ),
    Fault(
        name="a throttled bucket while an instance boots",
        inject=_throttle_bucket,
        heal=_unthrottle,
        lasts_s=6,
        long_s=60,
        needs_whole=True,
    ),
    Fault(
        name="a throttled cloud API",
        inject=_throttle,
        heal=_unthrottle,
        lasts_s=4,
        long_s=60,
        # Meanwhile the router learns of no new replica, for twice the time after which a replica without work is
        # idle here.
        needs_whole=True,
    ),
    Fault(
        name="a cloud that does not respond",
        inject=host.freeze_cloud,
        heal=host.thaw_cloud,
        lasts_s=6,
        long_s=30,
        needs_whole=True,
    ),
    Fault(
        name="no name is resolved",
        inject=_lose_names,
        heal=_names_back,
        lasts_s=6,
        long_s=45,
        needs_whole=True,
    ),
    Fault(
        name="an invalid fleet document",
        inject=bucket.spoil(PATH_IN_BUCKET),
        heal=bucket.restore,
        lasts_s=6,
        long_s=30,
    ),
    Fault(
        name="an invalid served revision",
        inject=bucket.spoil("models/chat/served.json"),
        heal=bucket.restore,
        lasts_s=6,
        long_s=30,
    ),
    Fault(
        name="a size changed by hand",
        inject=market.add_by_hand,
        heal=nothing,
        lasts_s=6,
        long_s=20,
        needs_whole=True,
    ),
    Fault(name="a clock step back", inject=host.step_clock(-120), heal=host.step_clock(0), lasts_s=6, long_s=60),
    Fault(name="a clock step ahead", inject=host.step_clock(120), heal=host.step_clock(0), lasts_s=6, long_s=60),
    Fault(
        name="a second watchdog",
        inject=each(ChaosTestbed.start, "watchdogs-2"),
        heal=each(ChaosTestbed.end, "watchdogs-2"),
        lasts_s=5,
        long_s=60,
    ),
)
BY_NAME: Final = {fault.name: fault for fault in FAULTS}


def silence_slack(testbed: ChaosTestbed, seed: int) -> None:
    """Slack is down during the whole run: it refuses, drops and hangs up, sometimes after it accepted the message."""
    kinds = ["500", "drop", "429", "500-after", "drop-after"]
    body = {"kinds": kinds, "share": 1.0, "seed": seed}
    httpx.post(f"{testbed.slack_url}/faults", json=body, headers=BEARER, timeout=60).raise_for_status()
