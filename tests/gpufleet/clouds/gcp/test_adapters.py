"""Adapters of watchdogs and rollouts for Google Cloud, with the embedded Compute Engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.cloud import compute_v1

from gpufleet.clouds.gcp.calls import ENDPOINT, GoogleCalls
from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.clouds.gcp.instance_history import GoogleInstanceHistory, NoPriceSource
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.clouds.gcp.rollouts import GoogleRollouts
from gpufleet.domain import tags
from gpufleet.domain.activity import ActivityKind, CloudError, ConflictError
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Instance, InstanceState
from gpufleet.domain.ownership import OwnedGroup
from gpufleet.settings.document import FleetDocument
from tests.fixtures.clouds.emulator import start_cloud, stop_cloud, wait_for
from tests.fixtures.clouds.google import PROJECT, REGION, ZONE, Google
from tests.fixtures.clouds.google_document import document

pytestmark = pytest.mark.slow

LONG = timedelta(seconds=60)
FLEX_START: dict[str, Any] = {
    "scheduling": {
        "provisioning_model": "FLEX_START",
        "max_run_duration": {"seconds": 86400},
        "automatic_restart": False,
        "on_host_maintenance": "TERMINATE",
        "instance_termination_action": "DELETE",
    },
    "reservation_affinity": {"consume_reservation_type": "NO_RESERVATION"},
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    cloud = start_cloud(tmp_path_factory.mktemp("google"))
    try:
        google = Google(cloud=cloud)
        google.make_network()
        yield google
    finally:
        stop_cloud(cloud)


@pytest.fixture
def google(shared: Google, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """The embedded cloud with full capacity. Deletes the groups of the test at its end."""
    monkeypatch.setenv(ENDPOINT, shared.cloud.places.google_url)
    shared.control("POST", "restore", {})
    yield shared
    shared.control("POST", "restore", {})
    for group in shared.groups.list(project=PROJECT, zone=ZONE):
        shared.groups.delete_unary(project=PROJECT, zone=ZONE, instance_group_manager=group.name)
    wait_for("the end of the test's groups", lambda: not list(shared.groups.list(project=PROJECT, zone=ZONE)))


def made(google: Google, name: str, size: int, **more: Any) -> list[Any]:
    """Create a group with `size` running members and return them."""
    google.make_group(name, google.make_template(name), size, **more)
    return wait_for("the members", lambda: len(found := google.running(name)) == size and found)


def inventory(group: str = "seen") -> GoogleInventory:
    """An inventory with one zonal group; its pool has the same name."""
    groups = {group: OwnedGroup(pool=group, zone=ZONE)}
    return GoogleInventory(GoogleCalls(PROJECT), REGION, "test", groups)


def test_instances_have_the_fields_that_watchdogs_need(google: Google) -> None:
    member = made(google, "seen", 1)[0]
    (found,) = inventory().instances()
    assert found.id == member.name
    assert (found.pool, found.environment, found.group) == ("seen", "test", "seen")
    assert (found.zone, found.machine_type, found.capacity_type) == (ZONE, "g2-standard-8", CapacityType.SPOT)
    assert found.state is InstanceState.RUNNING
    assert (found.private_address or "").startswith(google.cloud.places.network)
    assert datetime.now(UTC) - found.launched_at < timedelta(minutes=5)
    assert inventory().instance("missing") is None
    assert GoogleInventory(GoogleCalls(PROJECT), REGION, "other").instances() == ()
    assert GoogleInventory(GoogleCalls(PROJECT), REGION, "other").gpus().instances, "whoever made them"
    assert GoogleInventory(GoogleCalls(PROJECT), "europe-west4", "test").gpus().instances == ()
    assert GoogleInventory(GoogleCalls(PROJECT), "europe-west4", "test").instances() == ()


def test_labels_are_written_and_removed_and_others_stay(google: Google) -> None:
    name = made(google, "marked", 1)[0].name
    mine = inventory()
    assert mine.tag([name], {tags.IDLE_SINCE: "20261121t0215z"}) == {}
    found = mine.instance(name)
    assert found is not None
    assert found.tags[tags.IDLE_SINCE] == "20261121t0215z"
    assert found.tags[tags.POOL] == "marked", "labels of others stay"
    assert mine.untag([name], [tags.IDLE_SINCE]) == {}
    again = mine.instance(name)
    assert again is not None
    assert tags.IDLE_SINCE not in again.tags
    failed = mine.tag([name, "missing"], {tags.IDLE_SINCE: "x"})
    assert list(failed) == ["missing"]


def test_a_size_is_written_only_over_the_one_that_was_seen(google: Google) -> None:
    made(google, "sized", 1)
    groups = GoogleGroups(GoogleCalls(PROJECT), document("sized"))
    (seen,) = groups.groups(["sized"])
    assert (seen.desired, seen.max, seen.zone, len(seen.instance_ids)) == (1, 3, ZONE, 1)
    groups.resize(seen, 2)
    with pytest.raises(ConflictError, match="was 1 when it was read, and is 2"):
        groups.resize(seen, 3)
    with pytest.raises(CloudError, match="contains no group missing"):
        groups.groups(["missing"])


def test_a_failed_creation_is_not_an_instance(google: Google) -> None:
    limit = {"zone": ZONE, "type": "g2-standard-8", "kind": "spot", "count": 0}
    assert google.control("POST", "capacity", limit)[0] == 200
    google.make_group("wanting", google.make_template("wanting"), 1)
    wait_for("the member that waits", lambda: google.members("wanting"))
    groups = GoogleGroups(GoogleCalls(PROJECT), document("wanting"))
    (seen,) = groups.groups(["wanting"])
    assert (seen.desired, seen.instance_ids) == (1, ())
    groups.resize(seen, 0)
    wait_for("its end", lambda: not google.members("wanting"))


def test_ending_an_instance_lowers_the_size_or_recreates_it(google: Google) -> None:
    first, second = (m.name for m in made(google, "ended", 2))
    groups = GoogleGroups(GoogleCalls(PROJECT), document("ended"))
    groups.end(first, "ended", lower_desired=True)
    assert groups.groups(["ended"])[0].instance_ids == (second,), "what is on its way out counts no more"
    wait_for("the end", lambda: [m.name for m in google.members("ended")] == [second])
    assert groups.groups(["ended"])[0].desired == 1
    groups.end(first, "ended", lower_desired=True)  # already left: no error
    born = google.instance(second).creation_timestamp
    groups.end(second, "ended", lower_desired=False)
    wait_for("it is recreated", lambda: _born(google, second) not in (None, born))
    assert groups.groups(["ended"])[0].desired == 1


def _born(google: Google, name: str) -> str | None:
    return next(
        (i.creation_timestamp for i in google.instances.list(project=PROJECT, zone=ZONE) if i.name == name), None
    )


def test_shortage_quota_and_preemption_are_distinguished(google: Google) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    name = made(google, "short", 1)[0].name
    groups = GoogleGroups(GoogleCalls(PROJECT), document("short"))
    google.control("POST", "preempt", {"instance": name, "notice_s": 0, "capacity_lost": True})

    def kinds() -> set[ActivityKind]:
        return {activity.kind for activity in groups.activities(["short"], before)}

    wait_for("both", lambda: {ActivityKind.PREEMPTED, ActivityKind.NO_CAPACITY} <= kinds())
    assert ActivityKind.QUOTA not in kinds()
    assert groups.activities(["short"], datetime.now(UTC) + timedelta(minutes=1)) == ()
    google.control("POST", "restore", {})
    google.control("POST", "capacity", {"kind": "spot", "gpus": 0})
    groups.resize(groups.groups(["short"])[0], 3)
    wait_for("the quota", lambda: ActivityKind.QUOTA in kinds())


def test_a_preemption_in_another_environment_is_ignored(google: Google) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    theirs = made(google, "shared-1", 1, base_instance_name="prod-shared")[0].name
    ours = made(google, "shared-2", 1, base_instance_name="dev-shared")[0].name
    fleets = {name: GoogleGroups(GoogleCalls(PROJECT), document(name)) for name in ("shared-1", "shared-2")}

    def lost(group: str) -> set[str | None]:
        found = fleets[group].activities([group], before)
        return {a.instance_id for a in found if a.kind is ActivityKind.PREEMPTED}

    google.control("POST", "preempt", {"instance": theirs, "notice_s": 0, "capacity_lost": False})
    wait_for("their loss", lambda: lost("shared-1") == {theirs})
    assert lost("shared-2") == set()
    google.control("POST", "preempt", {"instance": ours, "notice_s": 0, "capacity_lost": False})
    wait_for("our loss", lambda: lost("shared-2") == {ours})
    assert lost("shared-1") == {theirs}


@dataclass(slots=True)
class Agents:
    """Simulated agents. An instance is ready as soon as it runs, and drained as soon as it is asked to drain."""

    drained: list[str] = field(default_factory=list[str])

    def statuses(self, instances: Sequence[Instance]) -> dict[str, dict[str, Any]]:
        return {
            i.id: {"ready": i.id not in self.drained, "drained": i.id in self.drained}
            for i in instances
            if i.state is InstanceState.RUNNING
        }

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline_seconds: int) -> object:
        assert (by, deadline_seconds) == (DrainOwner.ROLLOUT, 20)
        self.drained.append(instance.id)
        return None


def rollouts(described: FleetDocument, agents: Agents) -> GoogleRollouts:
    calls = GoogleCalls(PROJECT)
    return GoogleRollouts(
        groups=GoogleGroups(calls, described),
        inventory=inventory(described.pools[0].groups[0].name),
        agents=agents,
        pool=described.pools[0],
        announce=lambda _: None,
    )


def renewed(google: Google, group: str) -> str:
    """Give a group a new template and return its name."""
    link = google.make_template(f"{group}-new")
    change = compute_v1.InstanceGroupManager({"versions": [{"instance_template": link}]})
    google.finish(
        google.groups.patch_unary(
            project=PROJECT, zone=ZONE, instance_group_manager=group, instance_group_manager_resource=change
        )
    )
    return f"{group}-new"


@pytest.mark.parametrize(
    ("kind", "limit"),
    [pytest.param("spot", 3, id="with headroom"), pytest.param("reserved", 2, id="without headroom")],
)
def test_a_rollout_replaces_every_instance_and_keeps_the_size(google: Google, kind: str, limit: int) -> None:
    name = f"roll-{kind}"
    old = {m.name for m in made(google, name, 2)}
    described = document(name, kind=kind, limit=limit)
    agents = Agents()
    rolling = rollouts(described, agents)
    assert rolling.version(name).outdated == ()
    wanted = renewed(google, name)
    version = rolling.version(name)
    assert (version.wanted, set(version.outdated), version.current) == (wanted, old, ())
    rolling.roll(described.pools[0].groups[0], LONG)
    done = rolling.version(name)
    assert done.outdated == ()
    assert len(done.current) == 2
    assert old.isdisjoint(done.current)
    assert set(agents.drained) == old, "each was drained before it was deleted"
    assert google.group(name).target_size == 2


def test_a_rollout_without_free_capacity_respects_the_minimum(google: Google) -> None:
    (old,) = (m.name for m in made(google, "floor", 1))
    described = document("floor", kind="reserved", limit=1, floor=1)
    rolling = rollouts(described, Agents())
    renewed(google, "floor")
    with pytest.raises(CloudError, match="gpufleet target floor 2"):
        rolling.roll(described.pools[0].groups[0], LONG)
    assert [m.name for m in google.members("floor")] == [old]


def test_the_old_instance_stays_without_a_replacement(google: Google) -> None:
    (old,) = (m.name for m in made(google, "stuck", 1))
    described = document("stuck")
    agents = Agents()
    renewed(google, "stuck")
    google.control("POST", "capacity", {"zone": ZONE, "type": "g2-standard-8", "kind": "spot", "count": 0})
    with pytest.raises(CloudError, match="waited too long for a replacement in stuck to serve"):
        rollouts(described, agents).roll(described.pools[0].groups[0], timedelta(seconds=3))
    assert agents.drained == []
    assert old in [m.name for m in google.members("stuck")]
    with pytest.raises(CloudError, match="waited too long for a replacement in stuck to serve"):
        rollouts(described, agents).roll(described.pools[0].groups[0], timedelta(seconds=3))
    assert google.group("stuck").target_size == 2, "the first run has asked for the replacement"
    google.control("POST", "restore", {})
    rollouts(described, agents).roll(described.pools[0].groups[0], LONG)
    assert (agents.drained, google.group("stuck").target_size) == ([old], 1)


def test_history_and_reservations_are_read(google: Google) -> None:
    name = made(google, "billed", 1)[0].name
    reservations = google.client(compute_v1.ReservationsClient)
    body = compute_v1.Reservation(
        {
            "name": "paid",
            "specific_reservation": {"count": 2, "instance_properties": {"machine_type": "g2-standard-8"}},
            "specific_reservation_required": True,
            "delete_at_time": "2030-03-01T00:00:00Z",
        }
    )
    google.finish(reservations.insert_unary(project=PROJECT, zone=ZONE, reservation_resource=body))
    history = GoogleInstanceHistory(GoogleCalls(PROJECT), REGION, "test")
    assert [record.instance.id for record in history.history().records] == [name]
    (paid,) = history.paid()
    assert (paid.reservation, paid.zone, paid.machine_type, paid.instances) == ("paid", ZONE, "g2-standard-8", 2)
    assert paid.ends_at == datetime(2030, 3, 1, tzinfo=UTC)
    assert paid.available == 2
    assert not list(NoPriceSource().prices(["g2-standard-8"], datetime.now(UTC), datetime.now(UTC)))
    google.finish(reservations.delete_unary(project=PROJECT, zone=ZONE, reservation="paid"))
    assert history.paid() == ()


def test_a_flex_start_instance_has_an_end_time(google: Google) -> None:
    google.make_group("flex", google.make_template("flex", **FLEX_START), 1)
    name = wait_for("the member", lambda: google.running("flex"))[0].name
    seen = inventory().instance(name)
    assert seen is not None and seen.ends_at is not None
    assert seen.capacity_type is CapacityType.FLEX_START
    assert timedelta(days=1) <= seen.ends_at - seen.launched_at <= timedelta(days=1) + LONG


def reported_end(name: str, since: datetime) -> Any:
    """Wait until the cloud reports the end of an instance that is no longer listed."""
    history = GoogleInstanceHistory(GoogleCalls(PROJECT), REGION, "test")
    (found,) = wait_for("the end", lambda: [e for e in history.endings([ZONE]) if e.instance_id == name])
    assert since - timedelta(seconds=1) <= found.ended_at <= datetime.now(UTC) + timedelta(seconds=1)
    return found


def test_operations_report_how_an_instance_ended(google: Google) -> None:
    since = datetime.now(UTC)
    preempted, dismissed, deleted = (member.name for member in made(google, "endings", 3))
    google.control("POST", "preempt", {"instance": preempted, "notice_s": 1, "capacity_lost": True})
    assert reported_end(preempted, since).preempted
    described = document("endings")
    GoogleGroups(GoogleCalls(PROJECT), described).end(dismissed, "endings", lower_desired=True)
    assert not reported_end(dismissed, since).preempted
    google.instances.delete_unary(project=PROJECT, zone=ZONE, instance=deleted)
    assert not reported_end(deleted, since).preempted


def test_a_recreated_instance_has_its_own_end(google: Google) -> None:
    name = made(google, "again", 1)[0].name
    first = inventory().instance(name)
    assert first is not None
    google.control("POST", "preempt", {"instance": name, "notice_s": 1})
    history = GoogleInstanceHistory(GoogleCalls(PROJECT), REGION, "test")

    def renewed() -> Any:
        found = inventory().instance(name)
        return found if found and found.launched_at > first.launched_at and found.alive else None

    second = wait_for("the next record", renewed)
    (end,) = [e for e in history.endings([ZONE]) if e.instance_id == name]
    assert end.preempted and first.launched_at <= end.ended_at <= second.launched_at
    GoogleGroups(GoogleCalls(PROJECT), document("again")).end(name, "again", lower_desired=True)

    def both() -> Any:
        found = sorted((e for e in history.endings([ZONE]) if e.instance_id == name), key=lambda e: e.ended_at)
        return found if len(found) == 2 else None

    assert [end.preempted for end in wait_for("both ends", both)] == [True, False]


def test_an_error_has_the_call_the_project_and_googles_message(google: Google) -> None:
    calls = GoogleCalls(PROJECT)
    with pytest.raises(CloudError, match=f"compute:instances.get in {PROJECT} failed: [^:]+: .*missing.* not found"):
        calls.one("instances", "get", zone=ZONE, instance="missing")
    assert calls.counts == {"compute:instances.get": 1}
