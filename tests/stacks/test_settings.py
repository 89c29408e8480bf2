"""Invalid settings: each error is one line with path, value and remedy, and all errors are reported at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.errors import AppError
from cli import settings as command
from gpufleet.domain.model import CapacityType
from gpufleet.settings.reading import json_schema
from serving.instance_settings import to_json
from stacks import reading
from stacks.pools import instance_settings
from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, REMOVED, ROOT, TODAY, changed, problems

POOL0, SPOT0 = f"{FLEET}.pools.0", "pools.0.capacity.spot"
P5 = {"pools.0.capacity.reserved.0.machine_type": "p5.48xlarge"}
BLOCK = {"starts": "2026-12-01T11:30:00Z", "ends": "2026-12-15T11:30:00Z"}
BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("engine without a key and without a gate", AWS, {"pools.1.engine.kind": "trtllm", "pools.1.engine.args": []},
     f"{FLEET}.machines.gate_image: is missing, and the engine of pool chat-large, trtllm, cannot protect itself; "
     "name an HAProxy image, 2.6 or later, by its digest: it runs in front of the engine"),
    ("unknown machine type", AWS, {f"{SPOT0}.machine_types.0": "g6e.xlage"},
     f"{POOL0}.capacity.spot.machine_types.0: no aws machine type 'g6e.xlage' in the catalogue (is 'g6e.xlage'); "
     "did you mean g6e.xlarge or g6e.8xlarge or g6e.4xlarge?"),
    ("machine type of the other cloud", AWS, {f"{SPOT0}.machine_types.0": "g2-standard-4"},
     f"{POOL0}.capacity.spot.machine_types.0: machine type 'g2-standard-4' is offered by gcp, not by aws "
     "(is 'g2-standard-4'); choose a machine type of this cloud"),
    ("machine type that is not a name", AWS, {f"{SPOT0}.machine_types.0": "G6E XLarge"},
     f"{POOL0}.capacity.spot.machine_types.0: "
     "expected a machine type such as g6e.xlarge or g2-standard-12, got 'G6E XLarge'"),
    ("GPU memory too small", AWS, {"pools.1.capacity.spot.machine_types.0": "g6e.xlarge"},
     f"{FLEET}.pools.1.capacity.spot.machine_types.0: has 40.2 GiB of GPU memory for weights, and chat-70b "
     "needs 131.5 (is 'g6e.xlarge'); choose a machine type with more GPU memory"),
    ("EFA of a machine type that has none", AWS,
     {"pools.1.network": "efa", "pools.1.capacity": {"spot": {"zones": ["us-east-1a"],
                                                              "machine_types": ["g5.48xlarge", "g7e.8xlarge"]},
                                                     "reserved": [{"zone": "us-east-1a", "machine_type": "g6e.xlarge",
                                                                   "count": 1, "ends": "2027-03-01"}]},
      "models.1.weights_gib": 30},
     f"{FLEET}.pools.1.capacity.reserved.0.machine_type: does not have EFA (is 'g6e.xlarge'); choose "
     "g6e.8xlarge or g6e.16xlarge, or remove network: efa"),
    ("EFA of machine types with other numbers of cards", AWS,
     {"pools.1.network": "efa", "pools.1.capacity": {"spot": {"zones": ["us-east-1a"],
                                                              "machine_types": ["g6e.12xlarge", "g6e.48xlarge"]}}},
     f"{FLEET}.pools.1.capacity.spot.machine_types: names machine types with 1 and 4 EFA interfaces, and "
     "one launch template needs the same number for all (is ['g6e.12xlarge', 'g6e.48xlarge']); keep "
     "machine types with the same number; use the others in another pool"),
    ("EFA over several zones", AWS,
     {"pools.1.network": "efa", "pools.1.capacity": {"on_demand": {"max": 4, "machine_types": ["p5.48xlarge"]}}},
     f"{FLEET}.pools.1.capacity.on_demand.zones: names 3 zones, and machines with EFA must be in the same "
     "zone (is ['us-east-1a', 'us-east-1b', 'us-east-1c']); name one zone, or remove network: efa"),
    ("EFA on Google Cloud", GCP, {"pools.0.network": "efa"},
     f"{POOL0}.network: is only for AWS (is 'efa'); remove it; Google Cloud's machine types have their own "
     "network between GPUs"),
    ("EFA in an unknown order of cards", AWS,
     {"pools.1.network": "efa", "pools.1.capacity": {"spot": {"zones": ["us-east-1a"],
                                                              "machine_types": ["p6-b300.48xlarge"]}}},
     f"{FLEET}.pools.1.capacity.spot.machine_types.0: has EFA interfaces in an unknown order (is "
     "'p6-b300.48xlarge'); remove network: efa"),
    ("zone named twice", AWS, {"zones": ["us-east-1a", "us-east-1b", "us-east-1c", "us-east-1a"]},
     f"{FLEET}.zones.3: is named twice (is 'us-east-1a'); name it once"),
    ("machine type named twice", AWS, {"pools.1.capacity.spot.machine_types": ["g6e.12xlarge", "g6e.12xlarge"]},
     f"{FLEET}.pools.1.capacity.spot.machine_types.1: is named twice (is 'g6e.12xlarge'); name it once"),
    ("budget of a pool that is not there", AWS, {"budgets": [{"pool": "chta", "usd_per_month": "5"}]},
     f"{FLEET}.budgets.0.pool: is not one of the pools chat, chat-large (is 'chta'); write one of them"),
    ("allowed machine type that does not exist", AWS, {"policies.machine_types": ["g6e.xlage"]},
     f"{FLEET}.policies.machine_types.0: no aws machine type 'g6e.xlage' in the catalogue (is 'g6e.xlage'); "
     "did you mean g6e.xlarge or g6e.8xlarge or g6e.4xlarge?"),
    ("price of another cloud", AWS,
     {"prices": [{"sku": "gcp:dns:zone", "usd_per_hour": "1", "source": "list", "as_of": "2026-11-01"}]},
     f"{FLEET}.prices.0.sku: is a sku of another cloud (is 'gcp:dns:zone'); write a sku of aws, or remove "
     "the price"),
    ("price of no day", AWS,
     {"prices": [{"sku": "aws:route53:zone", "usd_per_hour": "1", "source": "list", "as_of": "yesterday"}]},
     f"{FLEET}.prices.0.as_of: is not a date (is 'yesterday'); write the day of the price, for example "
     "2026-11-21"),
    ("pool name that makes a group's name too long", GCP,
     {"pools.0.name": "chat-of-search-teams",
      "pools.0.capacity.reserved.0.machine_type": "a3-ultragpu-8g"},
     f"{POOL0}.name: is too long: the group name chat-of-search-teams-reserved-us-central1-a-a3-ultragpu-8g "
     "exceeds Google Cloud's limit by 3 characters (is 'chat-of-search-teams'); shorten it to 17 "
     "characters"),
    ("several spot machine types on Google Cloud", GCP,
     {f"{SPOT0}.machine_types": ["g2-standard-12", "g2-standard-16"]},
     f"{POOL0}.capacity.spot.machine_types: names several machine types, and a zonal instance group of "
     "Google Cloud has one (is ['g2-standard-12', 'g2-standard-16']); keep the one that fits best; a "
     "second pool of the same model may use another"),
    ("reservation that has ended", AWS, {"pools.0.capacity.reserved.0.ends": "2026-11-01"},
     f"{POOL0}.capacity.reserved.0.ends: is in the past (is '2026-11-01'); remove the reservation, or write "
     "a later end"),
    ("reservation without end or review", AWS, {"pools.0.capacity.reserved.0.review_by": REMOVED},
     f"{POOL0}.capacity.reserved.0: has neither an end nor a review date; add ends, or review_by with the "
     "date of the next review"),
    ("reservation on Google Cloud without end", GCP,
     {"pools.0.capacity.reserved.0.ends": REMOVED, "pools.0.capacity.reserved.0.review_by": "2027-01-01"},
     f"{POOL0}.capacity.reserved.0.ends: is missing; add ends, because Google's reservations cannot store a "
     "review date"),
    ("block without a purchase", AWS, {**P5, "pools.0.capacity.reserved.0.block": BLOCK},
     f"{POOL0}.capacity.reserved.0.block: requires the id of a purchased block; buy the block first, "
     "because it is paid in advance, and write its id as existing"),
    ("block that ends before it starts", AWS,
     {**P5, "pools.0.capacity.reserved.0.existing": "cr-1",
      "pools.0.capacity.reserved.0.block": {**BLOCK, "ends": "2026-12-01T11:30:00Z"}},
     f"{POOL0}.capacity.reserved.0.block.ends: is not after starts 2026-12-01T11:30:00+00:00 "
     "(is '2026-12-01T11:30:00+00:00'); write both as the cloud shows them"),
    ("block that is over", AWS,
     {**P5, "pools.0.capacity.reserved.0.existing": "cr-1",
      "pools.0.capacity.reserved.0.block": {"starts": "2026-11-01T11:30:00Z", "ends": "2026-11-20T11:30:00Z"}},
     f"{POOL0}.capacity.reserved.0.block.ends: is in the past (is '2026-11-20T11:30:00+00:00'); remove the "
     "reservation"),
    ("block without a time zone", AWS,
     {**P5, "pools.0.capacity.reserved.0.existing": "cr-1",
      "pools.0.capacity.reserved.0.block": {**BLOCK, "starts": "2026-12-01T11:30:00"}},
     f"{POOL0}.capacity.reserved.0.block.starts: "
     "expected a time with its offset, for example 2026-12-01T11:30:00Z, got '2026-12-01T11:30:00'"),
    ("block with an invalid time", AWS,
     {**P5, "pools.0.capacity.reserved.0.existing": "cr-1", "pools.0.capacity.reserved.0.block": True},
     f"{POOL0}.capacity.reserved.0.block: "
     "expected a map, got true"),
    ("block and a second end", AWS,
     {**P5, "pools.0.capacity.reserved.0.existing": "cr-1", "pools.0.capacity.reserved.0.block": BLOCK,
      "pools.0.capacity.reserved.0.ends": "2026-12-15"},
     f"{POOL0}.capacity.reserved.0.ends: must not be set with a block (is '2026-12-15'); remove it: "
     "block.ends is the end"),
    ("block without the spot watchdog", AWS,
     {**P5, "pools.0.capacity.reserved.0.existing": "cr-1", "pools.0.capacity.reserved.0.block": BLOCK,
      "pools.0.watchdogs.spot": REMOVED},
     f"{POOL0}.capacity.reserved.0.block: requires the spot watchdog, which starts and terminates its "
     "instances; add watchdogs.spot to the pool, or remove the block"),
    ("reservation with an invalid end", AWS, {"pools.0.capacity.reserved.0.ends": "soon"},
     f"{POOL0}.capacity.reserved.0.ends: "
     "expected a date as YYYY-MM-DD, for example 2027-06-01, got 'soon'"),
    ("the same reservation twice", AWS,
     {"pools.0.capacity.reserved.1": {"zone": "us-east-1a", "machine_type": "g6e.xlarge", "count": 1,
                                      "review_by": "2027-06-01"}},
     f"{POOL0}.capacity.reserved.1: reserves the same machine type in the same zone twice (is 'us-east-1a "
     "g6e.xlarge'); merge them into one reservation with the sum of their counts"),
    ("more reserved than max", AWS, {"pools.0.capacity.reserved.0.count": 13},
     f"{POOL0}.capacity.reserved: reserves more instances than max 12 (is 13); raise max, or reserve fewer"),
    ("overlapping pool names", AWS, {"pools.1.name": "chat"},
     f"{FLEET}.pools.1.name: is used already (is 'chat'); write a different name"),
    ("overlapping model names", AWS, {"models.1.name": "chat-8b", "pools.1.model": "chat-8b"},
     f"{FLEET}.models.1.name: is used already (is 'chat-8b'); write a different name"),
    ("pool name too long", AWS, {"pools.0.name": "chat-with-a-name-of-21"},
     f"{POOL0}.name: "
     "expected up to 20 lowercase letters, digits and '-', beginning with a letter and not ending with '-', "
     "got 'chat-with-a-name-of-21'"),
    ("environment name too long", AWS, {"environment": "production-of-everything"},
     f"{FLEET}.environment: "
     "expected up to 16 lowercase letters, digits and '-', beginning with a letter and not ending with '-', "
     "got 'production-of-everything'"),
    ("owner that no label can hold", AWS, {"pools.0.owner": "Search Team"},
     f"{POOL0}.owner: "
     "expected up to 63 lowercase letters, digits, '_' and '-', beginning with a letter, got 'Search Team'"),
    ("min above max", AWS, {"pools.0.min": 20}, f"{POOL0}.min: is above max 12 (is 20); lower it"),
    ("target above max", AWS, {"pools.0.target": 13},
     f"{POOL0}.target: is outside min 2 to max 12 (is 13); choose a target between them"),
    ("target of a schedule above max", AWS,
     {"pools.0.watchdogs.scale.schedule": [{"days": ["mon"], "start": "08:00", "end": "18:00", "target": 50}]},
     f"{POOL0}.watchdogs.scale.schedule.0.target: is outside min 2 to max 12 (is 50); choose a target between them"),
    ("negative size", AWS, {"pools.0.min": -1},
     f"{POOL0}.min: expected 0 or more, got -1"),
    ("a number in quotes", AWS, {"pools.0.max": "12"},
     f"{POOL0}.max: expected a whole number, got '12'"),
    ("half an instance", AWS, {"pools.0.max": 2.5},
     f"{POOL0}.max: expected a whole number, got 2.5"),
    ("a target that can never be reached", AWS, {"pools.1.capacity": {"on_demand": {"max": 1, "machine_types":
     ["g6e.12xlarge"]}}},
     f"{FLEET}.pools.1.capacity: allows at most 1 instances, which is below target 2; raise on_demand.max, "
     "reserve more, or add spot"),
    ("capacity that buys nothing", AWS, {"pools.0.capacity": {}},
     f"{POOL0}.capacity: is empty; add at least one of reserved, spot, on_demand, "
     "flex_start (Google Cloud)"),
    ("no machine types", AWS, {f"{SPOT0}.machine_types": []},
     f"{POOL0}.capacity.spot.machine_types: "
     "expected at least 1 entry, got []"),
    ("one machine type, not a list", AWS, {f"{SPOT0}.machine_types": "g6e.xlarge"},
     f"{POOL0}.capacity.spot.machine_types: expected a list, got 'g6e.xlarge'"),
    ("missing model", AWS, {"pools.0.model": "chat-9b"},
     f"{POOL0}.model: is not one of the models chat-8b, chat-70b (is 'chat-9b'); write one of them, or add "
     "it to models"),
    ("zone outside the environment", AWS, {f"{SPOT0}.zones.0": "us-east-1f"},
     f"{POOL0}.capacity.spot.zones.0: is not one of the environment's zones us-east-1a, us-east-1b, "
     "us-east-1c (is 'us-east-1f'); write one of them, or add it to zones"),
    ("zone twice", AWS, {f"{SPOT0}.zones.1": "us-east-1a"},
     f"{POOL0}.capacity.spot.zones.1: is named twice (is 'us-east-1a'); name it once"),
    ("zone of another region", AWS, {"zones.2": "us-west-2a", f"{SPOT0}.zones": ["us-east-1a"],
                                     "pools.1.capacity.spot.zones": ["us-east-1b"]},
     f"{FLEET}.zones.2: is outside region us-east-1 (is 'us-west-2a'); write zones of that region"),
    ("no region", AWS, {"/aws:region": REMOVED},
     f"aws:region: is missing; write the region there, next to {FLEET}"),
    ("region in the wrong place", AWS, {"region": "us-east-1"},
     f"{FLEET}.region: "
     "is not a known setting; write aws:region next to gpu-fleet:fleet"),
    ("unknown cloud", AWS, {"cloud": "azure"},
     f"{FLEET}.cloud: expected 'aws' or 'gcp', got 'azure'"),
    ("account of the other cloud", AWS, {"account": "example-project"},
     f"{FLEET}.account: is not an account of aws (is 'example-project'); write 12 digits, in quotes"),
    ("account without quotes", AWS, {"account": 111122223333},
     f"{FLEET}.account: expected text in quotes, got 111122223333"),
    ("unknown setting", AWS, {"pools.0.drain_dedline": "90s"},
     f"{POOL0}.drain_dedline: is not a known setting (is '90s'); did you mean drain_deadline?"),
    ("missing setting", AWS, {"pools.0.owner": REMOVED}, f"{POOL0}.owner: is missing"),
    ("duration without a unit", AWS, {"pools.0.drain_deadline": "90"},
     f"{POOL0}.drain_deadline: "
     "'90' is not a duration: write a whole number and s, m, h or d, such as 90s or 30m"),
    ("engine with no time to start", AWS, {"pools.0.engine.start_limit": "0s"},
     f"{POOL0}.engine.start_limit: is too short for an engine to start (is '0s'); write at least 10s, or "
     "leave it out for the default, 15m"),
    ("release of an engine that is not one", AWS, {"pools.0.engine.version": "latest"},
     f"{POOL0}.engine.version: is not a release (is 'latest'); write the release of vLLM in the image, for example "
     "0.18.0"),
    ("money that is not exact", AWS, {"budget.usd_per_month": 0.1},
     f"{FLEET}.budget.usd_per_month: "
     "write money and shares as text or a whole number, because 0.1 is not exact (is 0.1)"),
    ("image without digest", AWS, {"pools.0.engine.image": "vllm/vllm-openai:latest"},
     f"{POOL0}.engine.image: "
     "expected an image pinned by digest: REGISTRY/NAME@sha256:… with 64 hexadecimal digits, "
     "got 'vllm/vllm-openai:latest'"),
    ("machine image that moves", AWS, {"machines.image": "resolve:ssm:/gpu-fleet/machine-image"},
     f"{FLEET}.machines.image: is not a pinned machine image of aws (is "
     "'resolve:ssm:/gpu-fleet/machine-image'); write an AMI id or resolve:ssm:/<parameter>:<version>"),
    ("machine image of the other cloud", GCP, {"machines.image": "ami-0123456789abcdef0"},
     f"{FLEET}.machines.image: is not a pinned machine image of gcp (is 'ami-0123456789abcdef0'); write "
     "projects/<project>/global/images/<image>"),
    ("network that is none", AWS, {"network.cidr": "10.42.0.1/16"},
     f"{FLEET}.network.cidr: is not a network (is '10.42.0.1/16'); write the first address and the prefix "
     "length, for example 10.40.0.0/16"),
    ("network on the internet", AWS, {"network.cidr": "52.0.0.0/16"},
     f"{FLEET}.network.cidr: is not a private network (is '52.0.0.0/16'); use a part of 10.0.0.0/8, "
     "172.16.0.0/12 or 192.168.0.0/16"),
    ("network that is too small", AWS, {"network.cidr": "10.42.0.0/19"},
     f"{FLEET}.network.zone_prefix: is too short: 3 subnets for zones and one for internet access do not "
     "fit into 10.42.0.0/19 (is 20); raise it, or widen cidr"),
    ("network of no kind", AWS, {"network.kind": REMOVED},
     f"{FLEET}.network.kind: is missing"),
    ("subnets that lack a zone", AWS,
     {"network": {"kind": "given", "id": "vpc-1", "cidr": "10.42.0.0/16", "subnets": {"us-east-1a": "subnet-1"}}},
     f"{FLEET}.network.subnets: does not contain us-east-1b, us-east-1c; name a private subnet for every "
     "zone"),
    ("everybody as client", AWS, {"control.client_networks.0": "0.0.0.0/0"},
     f"{FLEET}.control.client_networks.0: contains all addresses of the internet (is '0.0.0.0/0'); write "
     "the networks of your clients"),
    ("more routers than zones", AWS, {"control.routers": 4},
     f"{FLEET}.control.routers: is more than the 3 zones, and each router needs its own zone (is 4); lower "
     "it, or add zones"),
    ("no control host and no addresses", AWS, {"control": REMOVED, "ledger_url": "sqlite:////x", "router_url": "http://r"},
     f"{FLEET}.prometheus_url: is missing, and the settings have no control host; write its URL, or add "
     "control"),
    ("argument that the instance decides", AWS, {"pools.0.engine.args": ["--api-key", "x"]},
     f"{POOL0}.engine.args.0: is set by the node agent (is '--api-key'); remove it from the settings"),
    ("model from a web page", AWS, {"models.0.source": "https://example.com/model.bin"},
     f"{FLEET}.models.0.source: is not a source of models (is 'https://example.com/model.bin'); write "
     "hf://org/name@revision, s3://bucket/folder or gs://bucket/folder with safetensors"),
    ("exception that has ended", AWS,
     {"policies.exceptions": [{"rule": "imdsv2", "resource": "*", "owner": "ops", "reason": "r",
                              "until": "2026-01-01"}]},
     f"{FLEET}.policies.exceptions.0.until: is in the past, so the exception is no longer valid (is "
     "'2026-01-01'); remove it, or agree with its owner on a later day"),
    ("a pool that is not a map", AWS, {"pools.1": "chat"}, f"{FLEET}.pools.1: "
     "expected a map, got 'chat'"),
    ("settings that are not a map", {FLEET: ["aws"]}, {},
     f"{FLEET}: must be a map (is ['aws'])"),
    ("no settings", {"aws:region": "us-east-1"}, {},
     f"{FLEET}: is missing; write the settings of the environment there"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "changes", "expected"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_an_error_is_one_line(config: dict[str, Any], changes: dict[str, Any], expected: str) -> None:
    assert problems(changed(config, changes)) == [expected]


@pytest.mark.parametrize("config", [AWS, GCP], ids=["aws-prod", "gcp-prod"])
def test_valid_settings_produce_no_error(config: dict[str, Any]) -> None:
    assert problems(config) == []


def test_an_instance_receives_the_start_limit_of_its_engine() -> None:
    parsed = reading.parse(changed(AWS, {"pools.0.engine.start_limit": "40m"}), "file", TODAY)
    limits = [
        to_json(instance_settings(parsed, pool, CapacityType.SPOT))["boot_limits_s"]["engine"]
        for pool in parsed.pools[:2]
    ]
    assert limits == [2400, 900]


def test_an_instance_receives_the_release_of_its_engine() -> None:
    parsed = reading.parse(changed(AWS, {"pools.0.engine.version": "v0.32.0.post1"}), "file", TODAY)
    engines = [to_json(instance_settings(parsed, pool, CapacityType.SPOT))["engine"] for pool in parsed.pools[:2]]
    assert engines[0]["version"] == "v0.32.0.post1"
    assert "version" not in engines[1], "the user data of other pools does not change"


def test_two_errors_are_both_shown() -> None:
    lines = problems(changed(AWS, {"pools.0.max": "12", "pools.1.min": -1}))
    assert [line.split(":")[1].split("fleet.")[1] for line in lines] == ["pools.0.max", "pools.1.min"]


def test_a_file_of_another_stack_is_detected() -> None:
    assert problems(AWS, "gcp-prod") == [
        f"{FLEET}.environment: is inconsistent: environment and cloud give aws-prod, but the stack is gcp-prod; "
        "correct them, or use the file for stack aws-prod"
    ]


def test_the_committed_schema_is_the_code_s() -> None:
    committed = json.loads((ROOT / "docs" / "settings.schema.json").read_text())
    assert committed == json_schema(), "write `gpufleet settings schema` there again"


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("- a\n- b\n", "expected a map, got a list; write it as", id="list"),
        pytest.param("", "is empty; write it as", id="empty"),
        pytest.param("other: 1\n", "has no config: map; write it as", id="no config"),
        pytest.param("a: [1\n", "is not YAML: while parsing", id="broken"),
        pytest.param("\x00", "is not YAML", id="not text"),
        pytest.param("a: 2026-99-99\n", "is not YAML: month must be", id="an invalid day"),
        pytest.param(f"a: {'1' * 5000}\n", "is not YAML: Exceeds the limit", id="a number of 5000 digits"),
        pytest.param("? [a]\n: b\n", r"\['a'\] is a key that is not a scalar", id="a list for a key"),
        pytest.param("? {a: 1}\n: b\n", "is a key that is not a scalar", id="a map for a key"),
        pytest.param("a: 1\nb: 2\na: 3\n", "'a' is written twice, first in line 1", id="a key twice"),
        pytest.param("a: &a [x, *a]\nconfig: *a\n", "refers to a value that contains it", id="alias of itself"),
        pytest.param(LAUGHS, "its aliases expand to more than 100000 values", id="aliases of billions of values"),
        pytest.param("[" * 5000, "is nested too deep", id="nested deep"),
        pytest.param("a: 1\n" * 300_000, "is larger than 1 MiB", id="huge"),
        pytest.param("!!python/object/apply:os.getcwd []\n", "is not YAML: could not determine", id="code"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "Pulumi.aws-x.yaml"
    path.write_text(text)
    with pytest.raises(AppError, match=message):
        command.problems_of(path)


WITHOUT_PRICE = {"max": 1, "machine_types": ["a2-ultragpu-2g", "a2-ultragpu-2g"]}


def test_a_machine_type_without_a_price_in_the_region_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    changes = {"pools.1.capacity.on_demand.machine_types.1": "a3-ultragpu-8g"}
    path.write_text(
        yaml.safe_dump({"config": changed(GCP, {"pools.1.capacity.on_demand": WITHOUT_PRICE, **changes})})
    )
    assert [str(problem) for problem in command.problems_of(path)] == [
        f"{FLEET}.pools.1.capacity.on_demand.machine_types.1: has no price in us-central1 in the packaged list, "
        "so its cost is unknown and it may not be sold there (is 'a3-ultragpu-8g'); "
        "choose another machine type, or state its price under prices"
    ]


IMAGE = "projects/deeplearning-platform-release/global/images/common-cu128-ubuntu-2404-nvidia-570-v20261001"
OLDER = (
    "use a machine image with driver 580 or newer, or an engine image built with an older CUDA, "
    "and name the CUDA version in engine.env: NVIDIA_REQUIRE_CUDA: cuda>=12.9"
)


@pytest.mark.parametrize(
    ("image", "env", "message"),
    [
        pytest.param(
            IMAGE, {"NVIDIA_REQUIRE_CUDA": "cuda>=13.0"}, "needs a newer GPU driver than version 570", id="old"
        ),
        pytest.param(IMAGE, {}, "may need a newer GPU driver than the 570", id="unknown CUDA version"),
        pytest.param(IMAGE, {"NVIDIA_REQUIRE_CUDA": "cuda>=12.9"}, None, id="old enough an engine"),
        pytest.param(IMAGE, {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}, None, id="libraries of its own"),
        pytest.param(IMAGE.replace("570", "580"), {"NVIDIA_REQUIRE_CUDA": "cuda>=13.0"}, None, id="new enough"),
        pytest.param("projects/p/global/images/of-our-own", {}, None, id="a name without a driver"),
    ],
)
def test_a_driver_too_old_for_the_engine_is_reported(
    tmp_path: Path, image: str, env: dict[str, str], message: str | None
) -> None:
    path = tmp_path / "settings.yaml"
    changes = {"machines.image": image, "pools.0.engine.env": env, "pools.1.engine.env": {**env, "A": "b"}}
    path.write_text(yaml.safe_dump({"config": changed(GCP, changes)}))
    lines = [str(problem) for problem in command.problems_of(path)]
    assert len(lines) == (0 if message is None else 2)
    for index, line in enumerate(lines):
        assert line.startswith(f"{FLEET}.pools.{index}.engine: {message} of machines.image")
        assert line.endswith(OLDER)


@pytest.mark.parametrize(
    ("image", "python"),
    [
        pytest.param("common-cu129-ubuntu-2204-nvidia-580-v20260818", "3.10", id="Ubuntu 22.04"),
        pytest.param("ubuntu-accelerator-2004-amd64-with-nvidia", "3.8", id="Ubuntu 20.04"),
        pytest.param("ubuntu-2204-lts", "3.10", id="the distributor's"),
        pytest.param("debian-11-bullseye-v20260813", "3.9", id="Debian 11"),
        pytest.param("common-cu129-ubuntu-2404-nvidia-580-v20260819", None, id="Ubuntu 24.04"),
        pytest.param("debian-12-bookworm-v20260813", None, id="Debian 12"),
        pytest.param("gpu-2204", None, id="a number of their own"),
        pytest.param("of-our-own", None, id="a name without a system"),
    ],
)
def test_a_system_with_python_too_old_for_the_agent_is_reported(
    tmp_path: Path, image: str, python: str | None
) -> None:
    path = tmp_path / "settings.yaml"
    env = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.0"}
    changes = {
        "machines.image": f"projects/p/global/images/{image}",
        "pools.0.engine.env": env,
        "pools.1.engine.env": env,
    }
    path.write_text(yaml.safe_dump({"config": changed(GCP, changes)}))
    lines = [str(problem) for problem in command.problems_of(path)]
    assert len(lines) == (0 if python is None else 1)
    for line in lines:
        assert line.startswith(
            f"{FLEET}.machines.image: has Python {python} as python3, but the node agent needs 3.11"
        )
        assert line.endswith("use an image with Ubuntu 24.04, Debian 12 or newer")


def test_an_exception_with_an_old_rule_id_is_reported_with_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    exception = {"rule": "no-wildcard-iam", "resource": "x", "owner": "ops", "reason": "r", "until": "2999-01-01"}
    path.write_text(yaml.safe_dump({"config": changed(AWS, {"policies.exceptions": [exception]})}))
    (line,) = [str(problem) for problem in command.problems_of(path)]
    assert line.endswith("(is 'no-wildcard-iam'); name a rule; similar names: iam-in-list")


def test_questions_for_the_operator_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    exception = {"rule": "imds-v2", "resource": "*", "owner": "ops", "reason": "r", "until": "2999-01-01"}
    changes = {"pools.0.capacity.reserved.0.review_by": "2020-01-01", "policies.exceptions": [exception]}
    path.write_text(yaml.safe_dump({"config": changed(AWS, changes)}))
    lines = [str(problem) for problem in command.problems_of(path)]
    assert lines[0].startswith(
        f"{FLEET}.policies.exceptions.0.rule: is not a rule of the policy pack (is 'imds-v2'); name a rule; "
        "similar names: "
    )
    assert lines[1:] == [
        f"{POOL0}.capacity.reserved.0.review_by: is in the past (is '2020-01-01'); "
        "check whether the reservation is still used, then write the date of the next review"
    ]
