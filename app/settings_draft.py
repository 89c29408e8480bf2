"""Drafts the settings file of an environment from a scan and a few answers. It lists what is left to decide."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import resources
from typing import Any, Final

import yaml

from app.errors import AppError, ErrorCode
from app.stated_names import check_account, check_environment, check_project, check_region
from gpufleet.domain import catalogue, money
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.parsed import is_list, is_map
from gpufleet.prices.book import machine_sku
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.settings import KEY

_EXAMPLES: Final = {
    Cloud.AWS: ("111122223333", "us-east-1", "us-east-1a"),
    Cloud.GCP: ("example-dev", "us-central1", "us-central1-a"),
}
"""Account, region and zone of the shipped example."""
BUDGET_MARGIN: Final = Decimal("1.1")
"""Budget in proportion to the cost of the pools at their maximum. The rest is for disks and the control host."""
REVIEW_AFTER: Final = timedelta(days=90)
"""When operators review a reservation without an end."""
PLACEHOLDER: Final = {"name": "model-1", "source": "hf://ORGANISATION/MODEL", "weights_gib": 1.0}
LONGEST_POOL: Final = 20
"""Maximum number of characters of the name of a pool."""
_HIDDEN: Final = re.compile(r"account(-\d+)?")
"""An account in a scan with `--redact`."""
_FAMILY: Final = re.compile(r"[.-]")
"""Ends the family in the name of a machine type."""
_NAME: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the user states. None: from the scan, or a default that is left to decide."""

    environment: str
    cloud: Cloud | None = None
    account: str | None = None
    region: str | None = None
    zones: tuple[str, ...] = ()
    machine_types: tuple[str, ...] = ()
    """For one pool, if there is no scan."""
    model: str | None = None
    """Source of the model of all pools, such as hf://ORGANISATION/MODEL."""
    weights_gib: float | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsDraft:
    """The text of a settings file, its name, and what is left to decide."""

    name: str
    text: str
    decide: tuple[str, ...]


@dataclass(slots=True)
class _PoolDraft:
    name: str
    owner: str
    machine_type: str
    zones: set[str] = field(default_factory=set[str])
    counts: dict[CapacityType, int] = field(default_factory=lambda: defaultdict[CapacityType, int](int))
    reservations: Sequence[Mapping[str, Any]] = ()

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    @property
    def most(self) -> int:
        """Its `max`: as many instances as run or are reserved."""
        return max(1, self.count, sum(one["total"] for one in self.reservations))


def draft(answers: Answers, scan: Mapping[str, Any] | None, now: datetime) -> SettingsDraft:
    """Return the settings file. Raises AppError for a place that the scan does not contain and nothing states."""
    check_environment(answers.environment, "--environment")
    if answers.weights_gib is not None and answers.model is None:
        raise AppError("--weights-gib: name the model, too, with --model", ErrorCode.WRONG_USE)
    place = _place(answers, scan)
    cloud, account, region = place
    instances = [] if scan is None else [one for one in scan["instances"] if _is_here(one, place)]
    decide = list(_of_scan(instances))
    pools = list(_pools([one for one in instances if one["use"] not in ("idle", "stopped")], answers))
    if pools and answers.machine_types:
        raise AppError(
            "--machine-type: the scan has instances in use, whose types the pools get; omit --machine-type or --from",
            ErrorCode.WRONG_USE,
        )
    pools = pools or [_stated_pool(answers, region)]
    reserved = _reservations(scan, place)
    for pool in pools:
        pool.reservations = reserved.pop(pool.machine_type, ())
    config = _example(cloud, account, region, answers.environment)
    fleet: dict[str, Any] = config["config"][KEY]
    zones = sorted({zone for pool in pools for zone in pool.zones} | set(answers.zones))
    fleet["zones"] = zones or fleet["zones"]
    model = _model(answers)
    fleet["models"] = [model]
    review = f"{now + REVIEW_AFTER:%Y-%m-%d}"
    template = fleet["pools"][0]
    fleet["pools"] = [_pool(template, pool, model["name"], review) for pool in pools]
    types = sorted({pool.machine_type for pool in pools})
    fleet["policies"]["machine_types"] = types
    prices, unknown = _prices(types, cloud, region, instances, now)
    fleet["prices"] = [*prices, *(one for one in fleet["prices"] if not _is_machine(one["sku"], cloud))]
    hourly = sum((_highest(pool.machine_type, prices, cloud, region) * pool.most for pool in pools), Decimal(0))
    hourly *= BUDGET_MARGIN
    fleet["budget"] = {
        "usd_per_month": str(math.ceil(hourly * money.HOURS_PER_MONTH)),
        "usd_per_hour_at_max": str(math.ceil(hourly)),
    }
    decide += _left(answers, fleet, unknown)
    name = f"Pulumi.{cloud}-{answers.environment}.yaml"
    return SettingsDraft(name=name, text=_render(config, decide), decide=tuple(decide))


def _place(answers: Answers, scan: Mapping[str, Any] | None) -> tuple[Cloud, str, str]:
    """Cloud, account and region: stated, or those of the scan with the highest USD per hour."""
    amounts: dict[tuple[Cloud, str, str], Decimal] = defaultdict(Decimal)
    for one in () if scan is None else scan["instances"]:
        place = Cloud(one["cloud"]), str(one["account"]), str(one["region"])
        wanted = (answers.cloud, answers.account, answers.region)
        if all(stated in (None, found) for stated, found in zip(wanted, place, strict=True)):
            amounts[place] += Decimal(one["usd_per_hour"] or 0)
    if amounts:
        return max(amounts, key=lambda place: (amounts[place], place))
    if scan is not None and (answers.region is None or scan["instances"]):
        places = sorted({f"{one['cloud']} {one['account']} {one['region']}" for one in scan["instances"]})
        wanted = " ".join(filter(None, (answers.cloud, answers.account, answers.region)))
        where = f" in {wanted}, only in {', '.join(places)}" if places else ""
        raise AppError(
            f"--from: the scan has no GPU instances{where}: omit --from, and state --machine-type, --account and"
            " --region",
            ErrorCode.WRONG_USE,
        )
    cloud = answers.cloud or Cloud.AWS
    if answers.account is not None:
        (check_account if cloud is Cloud.AWS else check_project)(answers.account, "--account")
    if answers.region is not None:
        check_region(cloud, answers.region)
    account, region, _ = _EXAMPLES[cloud]
    return cloud, answers.account or account, answers.region or region


def _is_here(one: Mapping[str, Any], place: tuple[Cloud, str, str]) -> bool:
    return (one["cloud"], one["account"], one["region"]) == (place[0].value, place[1], place[2])


def _of_scan(instances: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    idle = [one for one in instances if one["use"] == "idle"]
    if idle:
        what = "1 idle instance is" if len(idle) == 1 else f"{len(idle)} idle instances are"
        yield f"{what} not part of a pool: stop what is idle, or raise `target` if you need it"
    unknown = sum(one["use"] not in ("idle", "stopped", "in use") for one in instances)
    if unknown:
        what = "1 instance whose use is unknown counts" if unknown == 1 else f"{unknown} of unknown use count"
        yield f"{what} as needed in `target`"


def _pools(instances: Sequence[Mapping[str, Any]], answers: Answers) -> Iterator[_PoolDraft]:
    """One pool for each owner and machine type that the product can launch."""
    found: dict[tuple[str, str], _PoolDraft] = {}
    for one in instances:
        owner = answers.owner or one["owner"] or "team"
        key = (owner, one["machine_type"])
        if key not in found:
            family = _FAMILY.split(key[1])[0]
            name = f"{_slug(owner, most=LONGEST_POOL - 1 - len(family))}-{family}"
            found[key] = _PoolDraft(name=name, owner=_slug(owner), machine_type=key[1])
        found[key].zones.add(one["zone"])
        found[key].counts[CapacityType(one["capacity_type"])] += 1
    names: set[str] = set()
    for pool in found.values():
        base, number = pool.name, 2
        while pool.name in names:
            pool.name, number = f"{base[: LONGEST_POOL - 3].rstrip('-')}-{number}", number + 1
        names.add(pool.name)
        yield pool


def _slug(text: str, kind: str = "team", most: int = 24) -> str:
    """A valid name, which begins with a letter."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = _NAME.sub("-", plain.lower()).strip("-")
    name = f"{kind}-{name}" if name[:1].isdigit() else name
    return name[:most].strip("-") or kind


def _stated_pool(answers: Answers, region: str) -> _PoolDraft:
    if not answers.machine_types:
        raise AppError("state --machine-type, or --from with a scan that has instances in use", ErrorCode.WRONG_USE)
    machine_type, *others = answers.machine_types
    if others:
        raise AppError(
            f"--machine-type: expected one, for the one pool; got {', '.join(answers.machine_types)}",
            ErrorCode.WRONG_USE,
        )
    zones = set(answers.zones) or {f"{region}a" if answers.cloud is not Cloud.GCP else f"{region}-a"}
    owner = _slug(answers.owner or "team")
    pool = _PoolDraft(name="chat", owner=owner, machine_type=machine_type, zones=zones)
    pool.counts[CapacityType.SPOT] = 1
    return pool


def _example(cloud: Cloud, account: str, region: str, environment: str) -> dict[str, Any]:
    """The shipped example of a development environment, with this account, region and environment."""
    text = resources.files("stacks").joinpath(f"config/Pulumi.{cloud}-dev.yaml").read_text("utf-8")
    old_account, old_region, _ = _EXAMPLES[cloud]
    # after parsing: a name may have a meaning in YAML
    config = _replaced(yaml.safe_load(text), {old_account: account, old_region: region})
    fleet: dict[str, Any] = config["config"][KEY]
    fleet["environment"], fleet["account"] = environment, account
    fleet["bucket"]["name"] = f"{account}-gpu-fleet-{environment}"
    for holder, key in ((fleet, "engine_key"), (fleet["orders"], "private_key")):
        holder[key] = holder[key].replace("/dev/", f"/{environment}/").replace("-dev-", f"-{environment}-")
    fleet["notify"]["slack_channel"] = f"#gpu-cost-{environment}"
    return config


def _replaced(value: Any, names: Mapping[str, str]) -> Any:
    """The value with other names in its texts."""
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if is_map(value):
        return {key: _replaced(one, names) for key, one in value.items()}
    return [_replaced(one, names) for one in value] if is_list(value) else value


def _model(answers: Answers) -> dict[str, Any]:
    if answers.model is None:
        return dict(PLACEHOLDER)
    weights = answers.weights_gib or PLACEHOLDER["weights_gib"]
    return {"name": _slug(answers.model.rsplit("/", 1)[-1], "model"), "source": answers.model, "weights_gib": weights}


def _reservations(scan: Mapping[str, Any] | None, place: tuple[Cloud, str, str]) -> dict[str, list[Any]]:
    """Existing reservations of the region, by machine type."""
    found: dict[str, list[Any]] = defaultdict(list)
    for one in () if scan is None else scan.get("capacity", ()):
        if _is_here(one, place) and one["kind"] in ("capacity reservation", "reservation") and one["total"]:
            found[one["machine_type"]].append(one)
    return found


def _pool(example: Mapping[str, Any], pool: _PoolDraft, model: str, review: str) -> dict[str, Any]:
    capacity: dict[str, Any] = {}
    if pool.reservations:
        capacity["reserved"] = [
            {"zone": one["place"], "machine_type": one["machine_type"], "count": one["total"]}
            | {"existing": one["id"], "review_by": review}
            for one in pool.reservations
        ]
        pool.zones |= {one["place"] for one in pool.reservations}
    # spot with on-demand as the fallback; a pool that ran on-demand only keeps its size on on-demand
    capacity["spot"] = {"zones": sorted(pool.zones), "machine_types": [pool.machine_type]}
    capacity["on_demand"] = {"max": pool.most, "machine_types": [pool.machine_type]}
    return {
        **example,
        "name": pool.name,
        "model": model,
        "owner": pool.owner,
        "target": pool.count,
        "min": 0,
        "max": pool.most,
        "capacity": capacity,
        "watchdogs": {"idle": {"window": "30m", "grace": "10m"}, "spot": {"fallback_after": "60s", "hold": "15m"}},
    }


def _is_machine(sku: str, cloud: Cloud) -> bool:
    """Whether a price of the example is that of a GPU machine."""
    name = sku.split(":")[2]
    return any(one.name == name for one in catalogue.machines(cloud))


def _prices(
    types: Sequence[str], cloud: Cloud, region: str, instances: Sequence[Mapping[str, Any]], now: datetime
) -> tuple[list[dict[str, Any]], list[str]]:
    """Prices that the package lacks: those of the scan, else the on-demand price as the upper limit of spot."""
    found: list[dict[str, Any]] = []
    unknown: list[str] = []
    for name in types:
        seen = [one for one in instances if one["machine_type"] == name]
        listed = _packaged(cloud, name, CapacityType.ON_DEMAND, region)
        on_demand = listed or _seen(seen, CapacityType.ON_DEMAND, "usd_per_hour")
        spot = _seen(seen, CapacityType.ON_DEMAND, "spot_usd_per_hour") or _seen(
            seen, CapacityType.SPOT, "usd_per_hour"
        )
        if on_demand is None:
            unknown.append(machine_sku(cloud, name, CapacityType.ON_DEMAND))
        elif listed is None:
            found.append(_stated(machine_sku(cloud, name, CapacityType.ON_DEMAND), on_demand, "scan", now))
        if _packaged(cloud, name, CapacityType.SPOT, region) is None:
            price = spot or on_demand
            if price is not None:
                source = "scan" if spot else "on-demand price, the upper limit of spot"
                found.append(_stated(machine_sku(cloud, name, CapacityType.SPOT), price, source, now))
    return found, unknown


def _packaged(cloud: Cloud, name: str, capacity_type: CapacityType, region: str) -> Decimal | None:
    known = PackagedPrices().prices(machine_sku(cloud, name, capacity_type), region)
    return known[-1].usd_per_hour if known else None


def _seen(instances: Sequence[Mapping[str, Any]], capacity_type: CapacityType, price: str) -> Decimal | None:
    return next(
        (Decimal(one[price]) for one in instances if one["capacity_type"] == capacity_type.value and one[price]), None
    )


def _stated(sku: str, usd: Decimal, source: str, now: datetime) -> dict[str, Any]:
    as_of = f"{now.astimezone(UTC):%Y-%m-%d}"
    return {"sku": sku, "usd_per_hour": str(usd), "source": source, "as_of": as_of, "unverified": True}


def _highest(name: str, prices: Sequence[Mapping[str, Any]], cloud: Cloud, region: str) -> Decimal:
    """The on-demand price of a machine type; 0 if it is unknown."""
    packaged = _packaged(cloud, name, CapacityType.ON_DEMAND, region)
    sku = machine_sku(cloud, name, CapacityType.ON_DEMAND)
    stated = next((Decimal(one["usd_per_hour"]) for one in prices if one["sku"] == sku), Decimal(0))
    return packaged if packaged is not None else stated


def _left(answers: Answers, fleet: Mapping[str, Any], unknown: Sequence[str]) -> Iterator[str]:
    """What the draft cannot know."""
    environment = fleet["environment"]
    if _HIDDEN.fullmatch(fleet["account"]):
        yield f"`account` and the names with it: the scan hides the account as {fleet['account']} (--redact)"
    if fleet["account"] in {account for account, *_ in _EXAMPLES.values()}:
        yield "`account`: this is the account of the example"
    yield f"`orders.public_keys`: replace the example with the key that `gpufleet bootstrap {environment}` prints"
    yield "`machines.image` and `control.image`: docs/first-week.md lists their requirements"
    yield "digests of `engine.image` and `machines.dcgm_image` (zeros): `gpufleet images mirror` prints them"
    if answers.model is None:
        yield "`models` and the `model` of each pool: their source and the size of their weights"
    elif answers.weights_gib is None:
        yield "`models.0.weights_gib`: `gpufleet size` computes it"
    yield "`engine.args` of each pool, as the longest context: `gpufleet size` computes what fits"
    if any("reserved" in pool["capacity"] for pool in fleet["pools"]):
        yield "`review_by` of each reservation, or `ends`"
    yield "`budget`, `notify` and `control.client_networks`"
    yield "prices that are marked `unverified`"
    yield from (f"`prices`: no price for {sku} is known" for sku in unknown)


def _render(config: Mapping[str, Any], decide: Sequence[str]) -> str:
    head = "# Drafted by `gpufleet init`. Before the first `pulumi up`, decide:\n"
    body = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=150)
    return head + "".join(f"# - {one}\n" for one in decide) + body


def check_types(answers: Answers) -> None:
    """Raise AppError for a machine type that the catalogue does not list."""
    for name in answers.machine_types:
        try:
            catalogue.machine(answers.cloud or Cloud.AWS, name)
        except UnknownMachineError as error:
            raise AppError(f"--machine-type: {error}", ErrorCode.WRONG_USE) from error
