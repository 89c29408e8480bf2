"""Start and end of a run: everything applied and serving, with clients; afterwards no process remains."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpufleet.domain.model import Cloud
from gpufleet.settings.document.alerts import AlertSettings
from hosts.monitoring import alertmanager, alerts
from hosts.monitoring.prometheus import PrometheusSettings, render
from hosts.monitoring.rules import RuleSettings
from localcloud import tiny_model
from tests.chaos.clients import TIMEOUT_S, PatientTraffic
from tests.chaos.clock import make_clock
from tests.chaos.names import make_names, name_of, url
from tests.chaos.testbed import (
    CONSOLE_TOKEN,
    ENGINE_KEY,
    GROUP_INTERVAL,
    GROUP_WAIT,
    MARK,
    ORDER_KEY,
    PARTS,
    STACK,
    ChaosTestbed,
)
from tests.fixtures import signing
from tests.fixtures.e2e.embedded_cloud import BUCKET, started, wait_for
from tests.fixtures.stacks.engine import make_engine


@contextmanager
def set_up(folder: Path, network: str, announce: Callable[[str], None]) -> Iterator[ChaosTestbed]:
    """Start everything, with clients. After the block every process is ended."""
    os.environ[MARK] = str(folder)  # also for the children of the embedded cloud
    (folder / "pulumi").mkdir()
    (folder / "ledger").mkdir()
    try:
        with started(folder, network, "--name", name_of("cloud", f"{network}.0.2")) as cloud:
            for name, value in ((ENGINE_KEY, signing.ENGINE_KEY), (ORDER_KEY, signing.pem())):
                cloud.client("ssm").put_parameter(Name=name, Value=value, Type="SecureString")
            cloud.publish_model("chat", tiny_model.TinyModelShape())
            engine = make_engine(folder / "pulumi", network, ("aws",))
            traffic = PatientTraffic(
                host=f"{network}.0.10", port=8080, model="chat", clients=4, pause_s=0.2, timeout_s=TIMEOUT_S
            )
            testbed = ChaosTestbed(
                cloud=cloud,
                engine=engine,
                traffic=traffic,
                folder=folder,
                announce=announce,
                clock=make_clock(folder),
                names=make_names(folder),
            )
            write_settings(testbed)
            try:
                _apply(testbed)
                yield testbed
            finally:
                traffic.stop()
                for part in reversed([*PARTS, "watchdogs-2"]):
                    testbed.end(part)
    finally:
        os.environ.pop(MARK, None)


def _monitoring(testbed: ChaosTestbed) -> None:
    """The shipped configuration of Prometheus and Alertmanager, with shorter intervals."""
    host = testbed.control_host
    settings = PrometheusSettings(
        cloud=Cloud.AWS,
        environment="local",
        scrape_interval=timedelta(seconds=1),
        haproxy=(f"{host}:8404",),
        watchdogs=(f"{host}:9600", f"{host}:9470"),
        alertmanagers=(f"{host}:9093",),
        rule_files=("rules.yml",),
    )
    webhook = alertmanager.AlertmanagerSettings(
        webhook=f"http://{host}:9600/alerts",
        token_file=str(testbed.folder / "console.token"),
        group_wait=GROUP_WAIT,
        group_interval=GROUP_INTERVAL,
    )
    (testbed.folder / "prometheus.yml").write_text(render(settings))
    (testbed.folder / "rules.yml").write_text(alerts.render(AlertSettings(), RuleSettings()))
    (testbed.folder / "alertmanager.yml").write_text(alertmanager.render(webhook))
    (testbed.folder / "console.token").write_text(CONSOLE_TOKEN)


def _apply(testbed: ChaosTestbed) -> None:
    _monitoring(testbed)
    testbed.announce("pulumi up")
    testbed.engine.run("stack", "init", STACK)
    testbed.engine.run("up", "--yes", "--skip-preview", "--stack", STACK)
    for part in ("alertmanager", "prometheus", "targets", "router", "console"):
        testbed.start(part)
    wait_for("chat whole and serving", testbed.is_whole, 600)
    testbed.traffic.start()
    # a policy acts only after a user has seen its dry run
    for kind in ("spot", "idle"):
        testbed.gpufleet("watch", kind, "--quiet", codes=(0, 3))
    testbed.start("watchdogs")


def write_settings(testbed: ChaosTestbed, disk_gib: int = 100) -> None:
    """Write the settings for the next `pulumi up`. Another disk size creates new launch templates for all groups.

    These are the shipped settings of the demo with the addresses of this run, shorter times, and one idle
    instance.
    """
    engine, network = testbed.engine, testbed.cloud.network
    config = engine.settings(STACK)
    fleet: dict[str, Any] = config["config"]["gpu-fleet:fleet"]
    fleet["network"]["cidr"] = f"{network}.0.0/16"
    fleet["machines"]["disk_gib"] = disk_gib
    fleet["bucket"]["name"] = BUCKET
    fleet["engine_key"] = ENGINE_KEY
    fleet["orders"] = {"private_key": ORDER_KEY, "public_keys": [signing.key().public.text]}
    fleet["models"][0]["source"] = f"s3://{BUCKET}/models/chat"
    fleet["prometheus_url"] = url(testbed.names, "prometheus", testbed.control_host, 9090)
    fleet["router_url"] = f"http://{testbed.control_host}:8080"
    fleet["ledger_url"] = f"sqlite:///{testbed.ledger}"
    for pool in fleet["pools"]:
        pool["engine"]["start_limit"] = "45s"
        pool["watchdogs"] = {
            "idle": {"window": "30s", "grace": "8s", "min_age": "25s", "stop_price": None},
            "spot": {"fallback_after": "3s", "hold": "5s", "zone_backoff": "10s", "max_stops_per_hour": 600},
        }
    fleet["pools"][1] |= {"target": 1, "max": 2}
    engine.settings(STACK, config)
