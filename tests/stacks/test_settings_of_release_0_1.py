"""Settings and fleet documents of release 0.1: `settings check` names each change that the changelog states."""

from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from cli.commands import build
from gpufleet.settings import KEY, document
from gpufleet.toolchain.folders import ROOT
from tests.fixtures import signing

RECORDED = ROOT / "tests" / "recorded" / "release-0.1"
AWS, GOOGLE = "Pulumi.aws-prod.yaml", "Pulumi.gcp-dev.yaml"
ORDERS = {"private_key": "/gpu-fleet/prod/order-key", "public_keys": [signing.key("orders").public.text]}
GOOGLE_ORDERS = {"private_key": "gpu-fleet-dev-order-key", "public_keys": [signing.key("orders").public.text]}


def check(path: Path) -> list[str]:
    done = CliRunner().invoke(build("settings"), ["settings", "check", str(path)])
    lines = [line.strip() for line in done.stdout.splitlines()]
    errors = [line.removeprefix(f"{KEY}.") for line in lines if line.startswith(KEY)]
    assert done.exit_code == (3 if errors else 0), done.output
    return errors


class Upgrade:
    """A settings file of release 0.1, which a person changes as the errors say."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = folder / name
        self.config: dict[str, Any] = yaml.safe_load((RECORDED / name).read_text("utf-8"))["config"]
        self.fleet: dict[str, Any] = self.config[KEY]

    def errors(self) -> list[str]:
        self.path.write_text(yaml.safe_dump({"config": self.config}))
        return check(self.path)


def test_settings_for_aws_are_upgraded_by_what_errors_state(tmp_path: Path) -> None:
    fleet = Upgrade(AWS, tmp_path)
    of_form, errors = fleet.errors()[:3], fleet.errors()[3:]
    assert [line.split(":")[0] for line in of_form] == ["engine_key", "orders", "agent_token"]
    assert "orders and engine_key replace it since release 0.2: `gpufleet bootstrap`" in of_form[2]
    assert errors[-1] == (
        "policies.exceptions.0.rule: is not a rule of the policy pack (is 'no-wildcard-iam');"
        " name a rule; similar names: iam-in-list"
    )
    remedies = {line.split(": ")[0]: line.split("; ", 1)[1] for line in errors[:-1]}
    variables = {f"pools.0.engine.env.{name}": "remove it" for name in ("XDG_CACHE_HOME", "USER", "LOGNAME")}
    assert remedies == {
        "ledger_url": "write ledger_url as postgresql://USER@HOST/DATABASE?sslmode=verify-full&sslrootcert=FILE",
        "orphans.0.gpu_job": "write gpu_job: accelerator, or remove it",
        **variables,
    }

    del fleet.fleet["agent_token"]
    fleet.fleet |= {"engine_key": "/gpu-fleet/prod/engine-key", "orders": ORDERS}
    fleet.fleet["ledger_url"] += "?sslmode=verify-full&sslrootcert=/etc/ssl/ledger.pem"
    fleet.fleet["orphans"][0]["gpu_job"] = "accelerator"
    del fleet.fleet["pools"][0]["engine"]["env"]
    fleet.fleet["policies"]["exceptions"][0]["rule"] = "iam-in-list"
    assert fleet.errors() == []


def test_settings_for_google_are_upgraded_by_what_errors_state(tmp_path: Path) -> None:
    fleet = Upgrade(GOOGLE, tmp_path)
    other = fleet.path.with_name("Pulumi.gcp-staging.yaml")
    other.write_text(yaml.safe_dump({"config": fleet.config | {KEY: fleet.fleet | {"environment": "staging"}}}))
    *of_form, error = fleet.errors()
    assert [line.split(":")[0] for line in of_form] == ["engine_key", "orders", "agent_token"]
    assert error.startswith("account: is also the project of environment staging (Pulumi.gcp-staging.yaml)")
    assert "`shared_project: true` allows a shared one" in error
    del fleet.fleet["agent_token"]
    fleet.fleet |= {"engine_key": "gpu-fleet-dev-engine-key", "orders": GOOGLE_ORDERS, "shared_project": True}
    assert fleet.errors() == []


def test_errors_of_form_and_of_values_are_reported_together(tmp_path: Path) -> None:
    fleet = Upgrade(AWS, tmp_path)
    pool = fleet.fleet["pools"][0]
    pool |= {"gpus": 1, "model": "chat-9b"}
    pool["capacity"]["spot"]["machine_types"] = ["g99.xlarge"]
    found = [line.split(":")[0] for line in fleet.errors()]
    assert {"pools.0.gpus", "pools.0.model", "pools.0.capacity.spot.machine_types.0"} < set(found)
    assert len(found) == len(set(found))

    fleet.fleet["zones"] = 3  # without a valid form of all values, they are not compared
    of_form = {"engine_key", "orders", "agent_token", "zones", "pools.0.gpus"}
    assert {line.split(":")[0] for line in fleet.errors()} == of_form


def test_a_prometheus_of_the_user_may_still_have_the_job_of_release_0_1(tmp_path: Path) -> None:
    fleet = Upgrade(AWS, tmp_path)
    del fleet.fleet["agent_token"]
    fleet.fleet |= {"engine_key": "/gpu-fleet/prod/engine-key", "orders": ORDERS}
    fleet.fleet["prometheus_url"] = "https://prometheus.example.com"
    assert not [line for line in fleet.errors() if "gpu_job" in line]


def test_fleet_document_with_sqlite_is_read() -> None:
    text = (RECORDED / "fleet.gcp.json").read_text("utf-8")
    found = document.parse(text, "gs://example-project-gpu-fleet-dev/fleet/fleet.json")
    assert found.environment == "dev"
    assert [pool.name for pool in found.pools] == ["chat"]
    assert (found.orders, found.engine_key, found.why_no_ledger) == (None, None, None)


def test_fleet_document_with_postgresql_is_read_and_its_ledger_refused_with_the_reason() -> None:
    text = (RECORDED / "fleet.aws.json").read_text("utf-8")
    found = document.parse(text, "s3://111122223333-gpu-fleet-prod/fleet/fleet.json")
    assert [len(pool.groups) for pool in found.pools] == [5, 4]
    idle = found.pools[0].watchdogs.idle
    assert idle is not None
    assert idle.max_stops_per_day == 2
    assert found.why_no_ledger == (
        "has no sslmode=verify-full, so a server that impersonates the database could get the password"
    )
