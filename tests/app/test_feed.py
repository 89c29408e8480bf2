"""The feed of a control host: one process reads the cloud for processes without credentials."""

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from app import console_data
from app.console_data import LiveConsoleData
from app.feed import FEED_VALID_S, FedFleet, FedInventory, FeedPaths, fed_limits
from app.feed_writer import LIMITS_EVERY_S, Feeder
from app.router_fleet import LiveFleet
from app.wiring import AllInstances
from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import InstanceList, InstanceState
from gpufleet.settings.document import FleetDocument, parse, render
from gpufleet.settings.quotas import QuotaNeed
from serving.router.policy import PoolPolicy, RouterPolicy
from serving.router.topology import from_document, replicas_of
from tests.fixtures.logs import RecordedLog
from tests.fixtures.router.router import document, instance

FLEET = document({"name": "chat", "model": "models/chat"})
KEY = "ab" * 32
ONE = replace(instance("i-1", "10.0.0.1", "chat"), tags={tags.ENVIRONMENT: "test"})
BOOTS = replace(instance("i-2", "10.0.0.2", "chat"), state=InstanceState.PENDING)
ROUTER = replace(instance("i-3", "10.0.0.3", ""), pool=None, group=None, tags={tags.ROLE: tags.ROUTER})


@dataclass
class Cloud:
    """A bucket and an account that may refuse access."""

    fleet: FleetDocument = FLEET
    rules: RouterPolicy = field(default_factory=RouterPolicy)
    listed_: InstanceList = field(default_factory=lambda: InstanceList(instances=(ONE, BOOTS, ROUTER)))
    refuses: set[str] = field(default_factory=set[str])
    asked: list[str] = field(default_factory=list[str])

    def _asked(self, what: str) -> None:
        self.asked.append(what)
        if what in self.refuses:
            raise CloudError(f"{what}: AccessDenied")

    def document(self) -> FleetDocument:
        self._asked("document")
        return self.fleet

    def policy(self) -> RouterPolicy:
        self._asked("policy")
        return self.rules

    def engine_key(self, document: FleetDocument) -> str:
        self._asked("key")
        return KEY

    def listed(self) -> InstanceList:
        self._asked("instances")
        return self.listed_

    def limits(self, document: FleetDocument, wanted: Sequence[QuotaNeed]) -> Mapping[str, float]:
        self._asked("limits")
        return {"L-1": 64.0}


@dataclass
class Fed:
    """A feed and its writer, with a clock that the test advances."""

    cloud: Cloud
    folder: Path
    now: float = 1_000_000.0
    log: RecordedLog = field(default_factory=RecordedLog)
    feeder: Feeder = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "router").mkdir()
        self.feeder = Feeder(
            fleet=cast(LiveFleet, self.cloud),
            paths=FeedPaths(folder=self.folder),
            log=self.log,
            inventory=lambda document: cast(AllInstances, self.cloud),
            limits=self.cloud.limits,
            clock=lambda: self.now,
        )

    def tick(self, after: float = 0.0) -> None:
        self.now += after
        self.feeder.tick()

    @property
    def inventory(self) -> FedInventory:
        return FedInventory(self.folder, lambda: self.now)

    @property
    def router(self) -> FedFleet:
        return FedFleet(f"file://{self.folder}/fleet.json", self.folder)


@pytest.fixture
def fed(tmp_path: Path) -> Fed:
    return Fed(cloud=Cloud(), folder=tmp_path)


def test_readers_get_the_data_of_the_cloud(fed: Fed) -> None:
    fed.cloud.rules = RouterPolicy(pools={"chat": PoolPolicy(hold=3)})
    fed.tick()
    assert fed.router.document() == FLEET
    assert fed.router.policy() == fed.cloud.rules
    assert fed.router.engine_key(FLEET) == KEY
    assert list(fed.inventory.instances()) == [ONE, BOOTS, ROUTER]
    assert fed.inventory.instance("i-2") == BOOTS and fed.inventory.instance("i-9") is None
    assert fed_limits(fed.folder)(FLEET, ()) == {"L-1": 64.0}
    assert fed.log.lines == []


def test_targets_are_running_machines_with_their_labels(fed: Fed) -> None:
    fed.tick()
    found = json.loads(FeedPaths(folder=fed.folder).targets.read_text())
    assert [one["targets"] for one in found] == [["10.0.0.1"], ["10.0.0.3"]]
    assert found[0]["labels"] == {
        **{"__gpufleet_role": "instance", "instance_id": "i-1", "pool": "chat", "environment": "test"},
        **{"group": "chat-any", "zone": "us-east-1a", "machine_type": "g6.xlarge", "capacity_type": "on-demand"},
    }
    assert found[1]["labels"]["__gpufleet_role"] == "router" and "pool" not in found[1]["labels"]


def targets_of(fed: Fed) -> list[str]:
    found = json.loads(FeedPaths(folder=fed.folder).targets.read_text())
    return [one["labels"]["instance_id"] for one in found]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"group": None}, id="tags alone"),
        pytest.param({"group": "dev-chat-a"}, id="another environment's group"),
        pytest.param({"group": None, "tags": {tags.POOL: "chat", tags.ROLE: tags.ROUTER}}, id="and a router's tag"),
    ],
)
def test_instance_that_only_claims_a_pool_is_neither_target_nor_replica(fed: Fed, changes: dict[str, Any]) -> None:
    claims = {"pool": None, "tags": {tags.POOL: "chat", tags.ENVIRONMENT: "test"}} | changes
    unmanaged = replace(instance("i-4", "10.0.0.4", "chat"), **claims)
    fed.cloud.listed_ = InstanceList(instances=(ONE, unmanaged))
    fed.tick()
    assert targets_of(fed) == ["i-1"]
    fleet = fed.router.document()
    assert [one.name for one in replicas_of(fed.inventory.instances(), from_document(fleet))] == ["i-1"]


@pytest.mark.parametrize(
    ("machines", "scraped"),
    [(("i-3",), ["i-1", "i-3"]), ((), ["i-1"]), (("i-9",), ["i-1"]), (None, ["i-1", "i-3"])],
    ids=["a router of ours", "there are none", "others", "a document of before"],
)
def test_router_tag_alone_makes_no_target(fed: Fed, machines: tuple[str, ...] | None, scraped: list[str]) -> None:
    """The numbers of a router change the size of pools and the costs of teams."""
    router = FLEET.router.model_copy(update={"machines": machines})
    fed.cloud.fleet = parse(render(FLEET.model_copy(update={"router": router})), "a test")
    fed.tick()
    assert targets_of(fed) == scraped


def test_targets_are_kept_while_cloud_or_instance_is_unreadable(fed: Fed) -> None:
    """A target that disappears removes its series, and watchdogs would decide by the remaining ones."""
    fed.tick()
    fed.cloud.refuses = {"instances"}
    for _ in range(100):
        fed.tick(after=3600)
    assert targets_of(fed) == ["i-1", "i-3"], "the last list, however old"
    fed.cloud.refuses, fed.cloud.listed_ = set(), InstanceList(instances=(ROUTER,), errors={"i-1": "not understood"})
    fed.tick(after=1)
    assert targets_of(fed) == ["i-1", "i-3"]
    fed.cloud.listed_ = InstanceList(instances=(ROUTER,))
    fed.tick(after=1)
    assert targets_of(fed) == ["i-3"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"labels": {}}]', "\xff"])
def test_unreadable_file_of_targets_is_rewritten(fed: Fed, text: str) -> None:
    FeedPaths(folder=fed.folder).targets.write_bytes(text.encode("latin-1"))
    fed.tick()
    assert targets_of(fed) == ["i-1", "i-3"]


def test_engine_key_is_readable_only_by_its_folders_group(fed: Fed) -> None:
    before = os.umask(0o000)
    try:
        fed.tick()
    finally:
        os.umask(before)
    path = FeedPaths(folder=fed.folder).engine_key
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    others = [one for one in fed.folder.rglob("*") if one.is_file() and one != path]
    assert len(others) == 5 and not [one for one in others if KEY in one.read_text()]


def test_unreadable_sources_keep_their_files_and_are_logged_once(fed: Fed) -> None:
    fed.tick()
    fed.cloud.refuses = {"document", "policy", "key"}
    fed.cloud.fleet = document({"name": "other", "model": "models/other"})
    for _ in range(3):
        fed.tick(after=5)
    assert fed.router.document() == FLEET and fed.router.engine_key(FLEET) == KEY
    assert len(fed.log.of("problem")) == 3
    assert list(fed.inventory.instances()) == [ONE, BOOTS, ROUTER], "the others continue"
    fed.cloud.refuses = set()
    fed.tick(after=5)
    assert fed.router.document() == fed.cloud.fleet
    over = sorted(line["part"] for line in fed.log.lines if line["outcome"] == "over")
    assert over == ["engines' key", "fleet document", "routing policy"]


def test_old_inventory_is_an_error(fed: Fed) -> None:
    fed.tick()
    fed.cloud.refuses = {"instances"}
    fed.tick(after=FEED_VALID_S)
    assert list(fed.inventory.instances()) == [ONE, BOOTS, ROUTER]
    fed.tick(after=1)
    with pytest.raises(CloudError, match="is 61 s old: see `journalctl -u gpufleet-feed`"):
        fed.inventory.instances()


def test_incomplete_inventory_is_an_error_and_its_list_names_errors(fed: Fed) -> None:
    fed.cloud.listed_ = InstanceList(instances=(ONE,), errors={"i-2": "i-2 cannot be read"})
    fed.tick()
    assert list(fed.inventory.listed().instances) == [ONE]
    for call in (fed.inventory.instances, lambda: fed.inventory.instance("i-2")):
        with pytest.raises(CloudError, match="i-2 cannot be read"):
            call()


def test_instances_are_read_each_time_and_other_sources_at_intervals(fed: Fed) -> None:
    for _ in range(20):
        fed.tick(after=0.5)
    assert {what: fed.cloud.asked.count(what) for what in set(fed.cloud.asked)} == {
        **{"instances": 20, "document": 2, "policy": 2, "key": 2, "limits": 1}
    }
    fed.tick(after=LIMITS_EVERY_S)
    assert fed.cloud.asked.count("limits") == 2


def test_only_document_and_policy_are_read_before_a_document_exists(fed: Fed) -> None:
    fed.cloud.refuses = {"document"}
    fed.tick()
    assert set(fed.cloud.asked) == {"document", "policy"}
    with pytest.raises(CloudError, match=r"instances\.json: cannot be used"):
        fed.inventory.listed()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"at": 1, "instances": [{"id": "i-1"}]}', "\xff"])
def test_unreadable_feed_is_an_error_instead_of_an_empty_list(tmp_path: Path, text: str) -> None:
    FeedPaths(folder=tmp_path).instances.write_text(text)
    with pytest.raises(CloudError, match="cannot be used"):
        FedInventory(tmp_path).listed()


def test_reader_of_a_feed_cannot_change_the_cloud(fed: Fed) -> None:
    fed.tick()
    assert list(fed.inventory.tag(["i-1"], {"a": "b"})) == ["i-1"]
    assert list(fed.inventory.untag(["i-1"], ["a"])) == ["i-1"]
    for call in (lambda: fed.inventory.stop("i-1"), fed.inventory.gpus, lambda: fed.inventory.ended(["i-1"])):
        with pytest.raises(CloudError, match="no cloud credentials"):
            call()


def test_console_without_credentials_keeps_using_only_the_ledger(
    fed: Fed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_cloud(document: FleetDocument) -> AllInstances:
        raise AssertionError("it asks the cloud")

    monkeypatch.setattr(console_data, "inventory_of", no_cloud)
    fleet = FLEET.model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/ledger.db"})
    fed.cloud.fleet = fleet
    # without addresses, because the console asks agents for phases that Prometheus does not report
    silent = tuple(replace(one, private_address=None) for one in (ONE, BOOTS, ROUTER))
    fed.cloud.listed_ = InstanceList(instances=silent)
    import time

    fed.now = time.time()
    fed.tick()
    book = LiveConsoleData(lambda: [parse(render(fleet).encode(), "fleet.json")], fed.log, fed.folder)
    [view] = book.views()
    assert [one.id for one in view.read.instances or ()] == ["i-1", "i-2", "i-3"]
    assert "i-1 is kept until" in book.keep(view, "i-1", "ann")
    [brake] = book.views()[0].read.brakes
    assert (brake.scope, brake.owner) == ("i-1", "console (ann)")
