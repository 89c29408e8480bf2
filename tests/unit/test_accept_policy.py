"""A policy whose dry run nobody has seen acts on nothing, unless its hash is given with `--accept-policy`."""

from dataclasses import replace
from pathlib import Path

import pytest

from cli.output import Exit, UserError
from cli.watch_pass import Kind, Options, over_fleets
from fleet.document import FleetDocument
from tests.watchdogs.plain import document, instance
from tests.watchdogs.worlds import idle_world
from watchdogs.idle.watchdog import IdleWatchdog, policy_digest
from watchdogs.plan import Reason

UNSEEN, DIGEST = {instance(1).id: Reason.POLICY_UNSEEN}, policy_digest(document(), "batch") or ""


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDocument:
    return document().model_copy(update={"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}", "notify": None})


def over_world() -> Kind:
    """The idle watchdog, with a made-up cloud and the real ledger."""
    world = idle_world(1)
    return Kind(
        name="idle",
        make=lambda read, ports: IdleWatchdog(read, replace(world.ports(), ledger=ports.ledger)),
        digest=policy_digest,
    )


def reasons(kind: Kind, fleet: FleetDocument, options: Options) -> dict[str, str]:
    _, [answer] = over_fleets(kind, [fleet], options)
    return {decision["resource"]: decision["reason"] for decision in answer["decisions"]}


@pytest.mark.parametrize("how", ["dry", "hash"])
def test_a_policy_acts_once_it_was_seen_or_accepted(fleet: FleetDocument, how: str) -> None:
    kind = over_world()
    assert reasons(kind, fleet, Options(apply=True)) == UNSEEN
    if how == "dry":
        reasons(kind, fleet, Options())
    accept = (DIGEST,) if how == "hash" else ()
    assert reasons(kind, fleet, Options(apply=True, accept=accept)) == {instance(1).id: Reason.IDLE}


def test_a_hash_that_is_no_policys_is_a_mistake_and_names_those_that_are(fleet: FleetDocument) -> None:
    with pytest.raises(UserError, match=f"no pool has that idle policy; there is batch {DIGEST}") as said:
        over_fleets(over_world(), [fleet], Options(apply=True, accept=("0123abcd",)))
    assert said.value.code is Exit.WRONG_USE
