"""A policy without a recorded dry run does not act, unless its hash is given with `--accept-policy`."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import AppError, ErrorCode
from app.ledgers import ledger_name
from app.passes import Options, WatchdogKind
from cli.watch_pass import over_fleets
from gpufleet.domain.decisions import Reason
from gpufleet.ledger import operations
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument
from tests.fixtures.digests import DIGEST, UNSEEN
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.plain import document, instance
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDocument:
    return document().model_copy(update={"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}", "notify": None})


def idle_watchdog() -> WatchdogKind:
    """The idle watchdog with a fake cloud and the real ledger."""
    fake = idle_fleet(1)
    return WatchdogKind(
        name="idle", make=lambda read, ports: IdleWatchdog(read, replace(fake.ports(), ledger=ports.ledger))
    )


def reasons(kind: WatchdogKind, fleet: FleetDocument, options: Options) -> dict[str, str]:
    _, [answer] = over_fleets(kind, [fleet], options)
    return {decision["resource"]: decision["reason_code"] for decision in answer["decisions"]}


@pytest.mark.parametrize("how", ["dry", "hash"])
def test_policy_acts_after_a_dry_run_or_acceptance(fleet: FleetDocument, how: str) -> None:
    kind = idle_watchdog()
    assert reasons(kind, fleet, Options(apply=True)) == UNSEEN
    if how == "dry":
        reasons(kind, fleet, Options())
    accept = (DIGEST,) if how == "hash" else ()
    assert reasons(kind, fleet, Options(apply=True, accept=accept)) == {instance(1).id: Reason.IDLE}


def test_dry_run_that_creates_the_ledger_warns_about_other_machines(
    fleet: FleetDocument, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = idle_watchdog()
    reasons(kind, fleet, Options())
    assert "ledger.db is not on this machine: if " in " ".join(capsys.readouterr().err.split())
    reasons(kind, fleet, Options())
    assert "is not on this machine" not in capsys.readouterr().err
    assert reasons(kind, fleet, Options(apply=True)) == {instance(1).id: Reason.IDLE}, "it was seen here"


def test_unknown_hash_is_an_error_that_names_the_known_ones(fleet: FleetDocument) -> None:
    with pytest.raises(AppError, match=f"no pool has that idle policy; policies: batch {DIGEST}") as refused:
        over_fleets(idle_watchdog(), [fleet], Options(apply=True, accept=("0123abcd",)))
    assert refused.value.code is ErrorCode.WRONG_USE


def test_hash_applies_to_each_pool_with_such_a_policy(fleet: FleetDocument) -> None:
    twin = fleet.pools[0].model_copy(update={"name": "twin", "groups": []})
    pools = fleet.model_copy(update={"pools": [*fleet.pools, twin]})
    assert reasons(idle_watchdog(), pools, Options(apply=True, accept=(DIGEST,))) == {instance(1).id: Reason.IDLE}


@pytest.mark.parametrize("which", [0, 1], ids=["of the first", "of the second"])
def test_hash_of_one_fleet_does_not_apply_to_others(fleet: FleetDocument, tmp_path: Path, which: int) -> None:
    other = document(watchdogs={"idle": {"grace": "45m"}})
    places = {"ledger_url": f"sqlite:///{tmp_path / 'other.db'}", "notify": None}
    fleets = [fleet, other.model_copy(update=places)]
    accept = digests(fleets[which], "idle")["batch"]
    with pytest.raises(AppError, match="--accept-policy 0123abcd: no pool has that"):
        over_fleets(idle_watchdog(), fleets, Options(apply=True, accept=(accept, "0123abcd")))
    assert not any(accepted(one) for one in fleets), "a mistake is reported before anything is done"
    over_fleets(idle_watchdog(), fleets, Options(apply=True, accept=(accept,)))
    assert [accepted(one) for one in fleets] == [which == 0, which == 1]


def accepted(fleet: FleetDocument) -> bool:
    ledger, digest = open_ledger(fleet.ledger_url), digests(fleet, "idle")["batch"]
    try:
        return operations.policy_seen(ledger, ledger_name(fleet), "idle", "batch", digest)
    finally:
        ledger.dispose()
