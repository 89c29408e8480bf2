"""People write which revision is served; the control host changes one instance at a time, and only when it may."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app import revisions
from app.errors import AppError
from app.model_rollouts import Waiting
from app.revisions import RevisionSources, run_once, wanted
from gpufleet.domain.activity import CloudError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.model import Instance
from gpufleet.settings import document
from gpufleet.settings.document import FleetDocument
from serving.cache.store import FolderStore
from tests.fixtures.logs import RecordedLog
from tests.fixtures.model_document import DOCUMENT
from tests.fixtures.rollouts import NEW, OLD, POOL
from tests.fixtures.watchdogs import plain


def fleet(**pool: Any) -> FleetDocument:
    return document.parse(json.dumps({**DOCUMENT, "pools": [{**POOL, **pool}]}), "a test")


def instance(name: str, pool: str | None = "chat") -> Instance:
    return plain.instance(id=name, pool=pool)


@dataclass(slots=True)
class Agents:
    """The agents of a pool. An instance that gets an order keeps changing until `finish`."""

    digests: dict[str, str]
    asked: list[str] = field(default_factory=list[str])
    changing: dict[str, str] = field(default_factory=dict[str, str])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    refuse: frozenset[str] = frozenset()

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, Mapping[str, Any]]:
        return {
            one.id: {
                "ready": one.id not in self.changing,
                "model_digest": self.digests[one.id],
                "switching_to": self.changing.get(one.id),
                "switch_error": self.errors.get(one.id),
            }
            for one in instances
        }

    def switch(self, instance: Instance, digest: str) -> None:
        if instance.id in self.refuse:
            raise CloudError(f"{instance.id}: refused the revision")
        self.asked.append(instance.id)
        self.changing[instance.id] = digest

    def finish(self) -> None:
        self.digests |= self.changing
        self.changing.clear()


@dataclass(slots=True)
class Host:
    agents: Agents
    brakes: list[Brake] = field(default_factory=list[Brake])
    log: RecordedLog = field(default_factory=RecordedLog)
    unmanaged: tuple[Instance, ...] = ()

    def look(self, fleet: FleetDocument, *, apply: bool = True) -> bool:
        """Whether no rollout failed."""
        sources = RevisionSources(
            instances=lambda: [*map(instance, self.agents.digests), *self.unmanaged],
            agents=self.agents,
            brakes=lambda: self.brakes,
            log=self.log,
        )
        return run_once(fleet.pools, {"chat": NEW}, sources, apply=apply).well


def test_instances_change_one_at_a_time() -> None:
    host = Host(Agents({"a": OLD, "b": OLD, "c": NEW}))
    assert host.look(fleet())
    assert host.look(fleet()), "one changes: no other does"
    assert host.agents.asked == ["a"]
    host.agents.finish()
    host.look(fleet())
    host.agents.finish()
    assert host.look(fleet())
    assert host.agents.asked == ["a", "b"]


def test_floor_pause_and_dry_run_prevent_changes() -> None:
    host = Host(Agents({"a": OLD, "b": OLD}))
    assert host.look(fleet(min=2))
    assert host.look(fleet(), apply=False)
    host.brakes.append(
        Brake(
            kind=BrakeKind.PAUSE,
            scope="chat",
            owner="ann",
            reason="release",
            since=datetime(2026, 11, 21, tzinfo=UTC),
            until=datetime(2026, 11, 22, tzinfo=UTC),
        )
    )
    assert host.look(fleet())
    assert host.agents.asked == []
    dry, paused = host.log.lines
    assert (dry["outcome"], paused["outcome"]) == ("dry_run", "paused") and "paused by ann" in paused["detail"]


def test_rolled_back_revision_stops_the_rollout() -> None:
    host = Host(Agents({"a": OLD, "b": OLD}, errors={"a": f"{NEW[:12]}: the engine stopped during its start"}))
    assert not host.look(fleet())
    assert host.agents.asked == []
    assert "the engine stopped during its start" in host.log.lines[0]["error"]
    host.agents.errors = {"a": f"{'7' * 12}: an earlier one"}
    assert host.look(fleet()) and host.agents.asked == ["a"], "that was another revision"


def test_refusing_agent_does_not_stop_other_pools() -> None:
    host = Host(Agents({"a": OLD, "b": OLD}, refuse=frozenset({"a"})))
    assert not host.look(fleet())
    assert host.log.lines[-1]["pool"] == "chat" and str(host.log.lines[-1]["error"]) == "a: refused the revision"


def test_an_instance_outside_the_pool_gets_no_order() -> None:
    host = Host(Agents({"a": NEW}), unmanaged=(instance("unmanaged", None), instance("other", "embed")))
    assert host.look(fleet()) and host.agents.asked == []


@pytest.mark.parametrize(
    ("served", "follows"),
    [
        (None, False),
        ({"version": 1, "digest": NEW}, False),
        ({"version": 1, "digest": NEW, "changes_running": False}, False),
        ({"version": 1, "digest": NEW, "changes_running": "yes"}, False),
        ({"version": 1, "digest": NEW, "changes_running": True}, True),
    ],
)
def test_running_instances_change_only_if_served_json_allows_it(
    tmp_path: Path, served: dict[str, Any] | None, follows: bool
) -> None:
    if served is not None:
        path = tmp_path / "models/chat/served.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(served))
    assert wanted(fleet(), FolderStore(tmp_path)) == ({"chat": NEW} if follows else {})


def test_invalid_served_json_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "models/chat/served.json"
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    with pytest.raises(AppError, match=r"models/chat/served\.json"):
        wanted(fleet(), FolderStore(tmp_path))


def test_the_control_host_writes_nothing_into_the_bucket() -> None:
    assert "writer" not in Path(revisions.__file__).read_text()


@dataclass(slots=True)
class Person:
    """A user who waits while a control host runs a pass every 30 s."""

    host: Host | None
    agents: Agents
    now: float = 0
    announced: list[str] = field(default_factory=list[str])

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.host is not None and self.now % 30 == 0:
            self.agents.finish()
            self.host.look(fleet())

    def wait(self) -> int:
        def statuses(_: object) -> tuple[list[str], Mapping[str, Mapping[str, Any]]]:
            return list(self.agents.digests), self.agents.statuses([*map(instance, self.agents.digests)])

        return Waiting(
            pool=fleet().pools[0],
            digest=NEW,
            limit=timedelta(minutes=5),
            statuses=statuses,
            announce=self.announced.append,
            clock=lambda: self.now,
            sleep=self.sleep,
        ).run()


def test_command_waits_until_all_serve_it_and_sends_no_order() -> None:
    agents = Agents({"a": OLD, "b": OLD, "c": NEW})
    person = Person(Host(agents), agents)
    assert person.wait() == 2
    assert agents.digests == dict.fromkeys("abc", NEW)
    assert person.announced == [f"chat: {name} serves {NEW[:12]}" for name in "ab"]


def test_without_a_control_host_the_error_names_where_to_look() -> None:
    person = Person(None, Agents({"a": OLD}))
    with pytest.raises(AppError, match="watch run --apply"):
        person.wait()
    assert person.agents.asked == []


def test_rolled_back_revision_ends_the_wait() -> None:
    agents = Agents({"a": OLD}, errors={"a": f"{NEW[:12]}: no free space"})
    with pytest.raises(AppError, match="rolled back.*no free space.*rollback"):
        Person(None, agents).wait()
