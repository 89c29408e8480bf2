"""`gpufleet watch orphans` without a rule: it lists what an account costs outside every pool, and never writes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest

from gpufleet.domain import tags
from gpufleet.settings.document import render
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.moto_account import launched, moto_account
from tests.fixtures.watchdogs.plain import document

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    with moto_account() as url:
        yield url


def ec2_of(cloud: str) -> Any:
    return boto3.Session("local", "local", region_name="us-east-1").client("ec2", endpoint_url=cloud)


def asked(cloud: str, fleet: Path, *options: str) -> tuple[int, Any]:
    environment = os.environ | {
        "AWS_ENDPOINT_URL": cloud,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "watch", "orphans", "--fleet", str(fleet), "--json", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_account_without_resources_of_this_product(cloud: str, tmp_path: Path) -> None:
    """By machine type or by tag; missing metrics hide nothing; afterwards all runs as before."""
    fleet = tmp_path / "fleet.json"
    fleet.write_text(render(document(groups=[]).model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/ledger.db"})))
    assert asked(cloud, fleet)[0] == 0
    forgotten = launched(ec2_of(cloud), "g6.xlarge", Name="notebook", team="research")
    other = launched(ec2_of(cloud), "p3.2xlarge")
    launched(ec2_of(cloud), "t3.micro", team="research")
    # the tags of a pool make no member of it: no group launched this one
    claims = launched(ec2_of(cloud), "g6.xlarge", **{tags.ENVIRONMENT: "test", tags.POOL: "batch"})
    code, (answer,) = asked(cloud, fleet)
    found = {d["resource"]: d for d in answer["decisions"]}
    assert code == 3
    assert set(found) == {forgotten, other, claims}
    assert answer["slices"] is None, "no metrics store answers"
    prices = [Decimal(one["usd_per_hour"]) for one in found.values()]
    assert min(prices) > 0
    assert (Decimal(answer["usd_per_hour"]), answer["unpriced"]) == (sum(prices), 0)
    code, (answer,) = asked(cloud, fleet, "--tag", "team=research")
    assert [d["resource"] for d in answer["decisions"]] == [forgotten]
