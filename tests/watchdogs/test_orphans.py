"""`gpufleet watch orphans`: GPU instances of an account that no pool owns. It reads and never writes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from fleet import tags
from fleet.document import render
from fleet.model import Instance, InstanceState
from tests.watchdogs.worlds import START, FakePrices, document, instance
from watchdogs.idle import orphans
from watchdogs.plan import Action, Reason

ROOT = Path(__file__).parents[2]


class Prices(FakePrices):
    """One of them has no price."""

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        return {"g6.xlarge": Decimal("0.8"), "p5.48xlarge": Decimal(98)}.get(instance.machine_type)


@pytest.mark.parametrize(
    ("changes", "listed"),
    [
        pytest.param({}, False, id="of a pool"),
        pytest.param({"pool": None}, True, id="of no pool"),
        pytest.param({"pool": "gone"}, True, id="of a pool that is no more"),
        pytest.param({"environment": "other"}, True, id="a pool of that name, elsewhere"),
        pytest.param({"environment": None, "pool": None}, True, id="without tags"),
        pytest.param({"pool": None, "state": InstanceState.STOPPED}, False, id="stopped"),
    ],
)
def test_who_is_outside(changes: Mapping[str, Any], listed: bool) -> None:
    assert bool(orphans.outside([instance(1, **changes)], [document()])) is listed


def test_the_dearest_first_and_an_unknown_price_before_it() -> None:
    cheap, dear, unknown = (
        instance(n, pool=None, machine_type=kind)
        for n, kind in ((1, "g6.xlarge"), (2, "p5.48xlarge"), (3, "p9.metal"))
    )
    named = replace(cheap, tags={"Name": "notebook"}, launched_at=START - timedelta(days=41))
    plan = orphans.listed([named, dear, unknown], {dear.id: 0.0}, Prices(), START)
    assert [d.resource for d in plan.decisions] == [unknown.id, dear.id, named.id]
    assert {(d.action, d.reason) for d in plan.decisions} == {(Action.KEEP, Reason.OUTSIDE_POOLS)}
    assert "gpu_active at most 0" in plan.decisions[1].detail
    assert plan.decisions[2].detail.startswith("notebook: g6.xlarge")
    assert "41 days old" in plan.decisions[2].detail and "not measured" in plan.decisions[2].detail


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def launched(cloud: str, machine_type: str, **written: str) -> str:
    ec2: Any = boto3.Session("local", "local", region_name="us-east-1").client("ec2", endpoint_url=cloud)  # pyright: ignore[reportCallIssue, reportArgumentType]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    pairs = [{"Key": key, "Value": value} for key, value in written.items()]
    tagged = [{"ResourceType": "instance", "Tags": pairs}] if pairs else []
    made = ec2.run_instances(
        ImageId=image, InstanceType=machine_type, MinCount=1, MaxCount=1, TagSpecifications=tagged
    )
    return made["Instances"][0]["InstanceId"]


def asked(cloud: str, fleet: Path, *words: str) -> tuple[int, Any]:
    environment = os.environ | {
        "AWS_ENDPOINT_URL": cloud,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "watch", "orphans", "--fleet", str(fleet), "--json", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_an_account_that_this_product_never_touched(cloud: str, tmp_path: Path) -> None:
    """By machine type or by tag; metrics that cannot be had hide nothing; afterwards all runs as before."""
    fleet = tmp_path / "fleet.json"
    fleet.write_text(render(document(groups=[]).model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/ledger.db"})))
    assert asked(cloud, fleet)[0] == 0
    forgotten = launched(cloud, "g6.xlarge", Name="notebook", team="research")
    other = launched(cloud, "p3.2xlarge")
    launched(cloud, "t3.micro", team="research")
    launched(cloud, "g6.xlarge", **{tags.ENVIRONMENT: "test", tags.POOL: "batch"})
    code, (answer,) = asked(cloud, fleet)
    found = {d["resource"]: d for d in answer["decisions"]}
    assert code == 3
    assert set(found) == {forgotten, other}
    prices = [Decimal(one["usd_per_hour"]) for one in found.values()]
    assert min(prices) > 0
    assert (Decimal(answer["usd_per_hour"]), answer["unpriced"]) == (sum(prices), 0)
    code, (answer,) = asked(cloud, fleet, "--tag", "team=research")
    assert [d["resource"] for d in answer["decisions"]] == [forgotten]
