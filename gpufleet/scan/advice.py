"""The things to do first after a scan, each with the command that does it. Pure."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from gpufleet.domain import catalogue, money
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.scan.model import (
    CapacityKind,
    Scan,
    ScannedCapacity,
    ScannedInstance,
    ScanScope,
    ScopeResult,
    Verdict,
    VerdictReason,
)

MAX_NAMED: Final = 100
"""Maximum number of instances in one command."""
_TARGETS: Final = 50
"""Maximum number of instances that one `aws ssm send-command` names."""
_OPS_AGENT: Final = (
    "curl -sSO https://dl.google.com/cloudagents/add-google-cloud-ops-agent-repo.sh"
    " && sudo bash add-google-cloud-ops-agent-repo.sh --also-install"
)
"""Google's own installation of the Ops Agent on one machine."""
_LOCAL_DISKS: Final = "local disks"
_TERMINATED: Final = "local disks, and on disks that are deleted with the instance,"
"""What a terminated or deleted instance loses."""


class AdviceCode(StrEnum):
    """What to do. The values are stable codes; they are also the order of equal amounts."""

    STOP_IDLE = "stop_idle"
    RELEASE_CAPACITY = "release_capacity"
    USE_SPOT = "use_spot"
    """Working on-demand instances cost less as spot, which the cloud may interrupt."""
    CHECK_LIKELY_IDLE = "check_likely_idle"
    MEASURE = "measure"
    """Nothing shows whether the GPUs work: add a GPU metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do."""

    code: AdviceCode
    scope: ScanScope
    text: str
    command: str
    """For a shell. It changes the account only where its text says so; the scan runs none."""
    usd_per_month: Decimal
    """What it saves at most, at 730 hours a month, without the instances of unknown price."""
    unpriced: int = 0
    """Number of its instances without a price."""
    is_saving: bool = True
    """False: the amount is only what the instances cost, because nothing proves that they are idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """Instances that one command ends."""

    verb: str
    """What the command does: Stop, Terminate, Delete or End."""
    instances: Sequence[ScannedInstance]
    command: str
    lost: str = ""
    """What data is lost. Empty: none."""

    @property
    def loss(self) -> str:
        """A clause of a sentence about the lost data."""
        return f"; data on {self.lost} is lost" if self.lost else ""


def advise(scan: Scan, profiles: Mapping[str, str] | None = None) -> list[Advice]:
    """Return everything to do: savings first, then the most expensive. `profiles`: AWS profile by account."""
    names = profiles or {}
    found: list[Advice] = []
    for result in scan.results:
        found += _of_instances(result.scope, result.instances, names)
        found += (one for capacity in result.capacity for one in _of_capacity(capacity, names))
        found += _of_spot(result)
    return sorted(found, key=lambda one: (not one.is_saving, -one.usd_per_month, list(AdviceCode).index(one.code)))


def _of_instances(
    scope: ScanScope, instances: Sequence[ScannedInstance], profiles: Mapping[str, str]
) -> Iterator[Advice]:
    # prepaid capacity costs the same without its instances
    charged = [one for one in instances if not one.is_prepaid]
    idle = [one for one in charged if one.verdict is Verdict.IDLE]
    for one in _endings(scope, idle, profiles):
        of = f" of {len(idle):,} that are idle" if len(one.instances) < len(idle) else ""
        yield _advice(
            AdviceCode.STOP_IDLE,
            scope,
            one.instances,
            one.command,
            f"{one.verb} {_count(one.instances)}{of}: no GPU worked in the idle window{one.loss}",
        )
    likely = [one for one in charged if one.verdict is Verdict.LIKELY_IDLE]
    for one in _endings(scope, likely, profiles):
        yield _advice(
            AdviceCode.CHECK_LIKELY_IDLE,
            scope,
            one.instances,
            one.command,
            f"Ask the owners of {_count(one.instances)}, then {one.verb.lower()} them: no sign of work, but a GPU"
            f" metric is missing{one.loss}",
            is_saving=False,
        )
    without = [one for one in instances if one.reason in (VerdictReason.NO_METRIC, VerdictReason.METRIC_INCOMPLETE)]
    for group, command, more in _measure_commands(scope, without, profiles):
        yield _advice(
            AdviceCode.MEASURE,
            scope,
            group,
            command,
            f"Add a GPU metric to {_count(group)}: nothing shows whether the GPUs work ({more})",
            is_saving=False,
        )


def _advice(  # noqa: PLR0913, PLR0917
    code: AdviceCode,
    scope: ScanScope,
    instances: Sequence[ScannedInstance],
    command: str,
    text: str,
    *,
    is_saving: bool = True,
) -> Advice:
    priced = [one.usd_per_hour for one in instances if one.usd_per_hour is not None]
    return Advice(
        code=code,
        scope=scope,
        text=text,
        command=command,
        usd_per_month=sum(priced, Decimal(0)) * money.HOURS_PER_MONTH,
        unpriced=len(instances) - len(priced),
        is_saving=is_saving,
    )


def _count(instances: Sequence[ScannedInstance]) -> str:
    types = sorted({one.instance.machine_type for one in instances})
    few = ", ".join(types[:3]) + (", …" if len(types) > 3 else "")
    return f"{len(instances)} instance{'s' if len(instances) > 1 else ''} ({few})"


def _endings(
    scope: ScanScope, instances: Sequence[ScannedInstance], profiles: Mapping[str, str]
) -> Iterator[_Ending]:
    """Yield instances that one command ends, in the way that suits their owner."""
    managed = [one for one in instances if one.instance.environment]
    for environment in sorted({str(one.instance.environment) for one in managed}):
        own = [one for one in managed if one.instance.environment == environment]
        command = f"gpufleet watch idle --apply  # with --fleet or GPUFLEET_FLEET of {shlex.quote(environment)}"
        yield _Ending(verb="End", instances=own, command=command, lost=_TERMINATED)
    others = [one for one in instances if not one.instance.environment]
    if scope.cloud == Cloud.AWS:
        yield from _aws_endings(scope, others, profiles)
    else:
        yield from _google_endings(scope, others)


def _aws_endings(
    scope: ScanScope, instances: Sequence[ScannedInstance], profiles: Mapping[str, str]
) -> Iterator[_Ending]:
    options = _aws_options(scope, profiles)
    grouped = [one for one in instances if one.instance.group]
    spot = [one for one in instances if one.instance.capacity_type is CapacityType.SPOT and not one.instance.group]
    others = [one for one in instances if one not in grouped and one not in spot]
    for part in _parts(grouped):
        # the group would replace an instance that is stopped
        command = (
            f"for id in {_ids(part)}; do aws autoscaling terminate-instance-in-auto-scaling-group{options}"
            " --instance-id $id --should-decrement-desired-capacity; done"
        )
        yield _Ending(verb="Terminate", instances=part, command=command, lost=_TERMINATED)
    for part in _parts(spot):
        command = f"aws ec2 terminate-instances{options} --instance-ids {_ids(part)}"
        yield _Ending(verb="Terminate", instances=part, command=command, lost=_TERMINATED)
    for part in _parts(others):
        command = f"aws ec2 stop-instances{options} --instance-ids {_ids(part)}"
        yield _Ending(verb="Stop", instances=part, command=command, lost=_lost_by_stop(part))


def _google_endings(scope: ScanScope, instances: Sequence[ScannedInstance]) -> Iterator[_Ending]:
    project = f" --project {shlex.quote(scope.account)}"
    grouped = [one for one in instances if one.instance.group]
    for group in sorted({one.instance.group or "" for one in grouped}):
        # the group would create an instance again that is stopped
        kind, place, name = _google_group(group)
        for part in _parts([one for one in grouped if one.instance.group == group]):
            names = ",".join(shlex.quote(one.instance.id) for one in part)
            command = (
                f"gcloud compute instance-groups managed delete-instances {shlex.quote(name)} --instances {names}"
                f" --{kind} {shlex.quote(place)}{project}"
            )
            yield _Ending(verb="Delete", instances=part, command=command, lost=_TERMINATED)
    others = [one for one in instances if not one.instance.group]
    for zone, here in _by_zone(others):
        for part in _parts(here):
            command = f"gcloud compute instances stop {_ids(part)} --zone {zone}{project}"
            yield _Ending(verb="Stop", instances=part, command=command, lost=_lost_by_stop(part))


def _lost_by_stop(instances: Iterable[ScannedInstance]) -> str:
    known = {_has_local_disks(one) for one in instances}
    if True in known:
        return _LOCAL_DISKS
    return f"{_LOCAL_DISKS}, if any," if None in known else ""


def _has_local_disks(one: ScannedInstance) -> bool | None:
    """None: unknown."""
    try:
        machine = catalogue.machine(one.instance.cloud, one.instance.machine_type)
    except UnknownMachineError:
        return None
    return None if machine.nvme_optional and machine.nvme_disks else machine.nvme_disks > 0


def _google_group(path: str) -> tuple[str, str, str]:
    """`zone` or `region`, its name, and the name of the group `zones/ZONE/NAME` or `regions/REGION/NAME`."""
    kind, _, rest = path.partition("/")
    place, _, name = rest.rpartition("/")
    return ("region" if kind == "regions" else "zone"), place, name


def _of_capacity(one: ScannedCapacity, profiles: Mapping[str, str]) -> Iterator[Advice]:
    if not one.unused or one.usd_per_hour is None:
        return
    options = _aws_options(one.scope, profiles)
    left = one.total - one.unused
    match one.kind:
        case CapacityKind.CAPACITY_RESERVATION if left:
            command = (
                f"aws ec2 modify-capacity-reservation{options} --capacity-reservation-id {shlex.quote(one.id)}"
                f" --instance-count {left}"
            )
        case CapacityKind.CAPACITY_RESERVATION:
            command = f"aws ec2 cancel-capacity-reservation{options} --capacity-reservation-id {shlex.quote(one.id)}"
        case CapacityKind.RESERVATION if not left:
            command = (
                f"gcloud compute reservations delete {shlex.quote(one.id)} --zone {one.place}"
                f" --project {shlex.quote(one.scope.account)}"
            )
        case CapacityKind.RESERVATION:
            command = (
                f"gcloud compute reservations update {shlex.quote(one.id)} --vm-count {left} --zone {one.place}"
                f" --project {shlex.quote(one.scope.account)}"
            )
        case CapacityKind.CAPACITY_BLOCK | CapacityKind.RESERVED_INSTANCES | CapacityKind.COMMITMENT:
            return  # nothing cancels them before their end
    yield Advice(
        code=AdviceCode.RELEASE_CAPACITY,
        scope=one.scope,
        text=f"Release {one.unused} of {one.total} {one.machine_type} of {one.kind} {one.id}: no instance uses them",
        command=command,
        usd_per_month=one.usd_per_hour * money.HOURS_PER_MONTH,
    )


def _of_spot(result: ScopeResult) -> Iterator[Advice]:
    """Working on-demand instances that would cost less as spot, by region and machine type.

    Instances of gpu-fleet are left out, because its settings say how they are bought. So is the number of instances
    that reserved instances or commitments pay for.
    """
    cheaper: dict[tuple[str, str], list[tuple[Decimal, Decimal]]] = {}
    for one in result.instances:
        spot, usd = one.spot_usd_per_hour, one.usd_per_hour
        if one.verdict is Verdict.IN_USE and not one.instance.environment and spot and usd and spot < usd:
            cheaper.setdefault((one.instance.region, one.instance.machine_type), []).append((usd, spot))
    for (region, machine_type), prices in cheaper.items():
        paid = sum(
            one.total - (one.unused or 0)
            for one in result.capacity
            if one.kind in (CapacityKind.RESERVED_INSTANCES, CapacityKind.COMMITMENT)
            if (one.region, one.machine_type) == (region, machine_type)
        )
        # the smallest savings stay: which of them a commitment pays for is unknown
        left = sorted(prices, key=lambda pair: pair[0] - pair[1])[: max(0, len(prices) - paid)]
        if not left:
            continue
        usd, spot = (sum(amounts, Decimal(0)) for amounts in zip(*left, strict=True))
        scope = result.scope
        yield Advice(
            code=AdviceCode.USE_SPOT,
            scope=scope,
            text=f"Consider spot for {len(left)} on-demand {machine_type} in {region}: {_per_hour(spot)} instead of"
            f" {_per_hour(usd)} USD/h ({(spot / usd - 1) * 100:+.0f} %); the cloud may interrupt spot at any time,"
            " so use it for what can move. The command drafts settings with on-demand as the fallback",
            command=f"gpufleet init --cloud {scope.cloud} --account {shlex.quote(scope.account)} --region {region}"
            f" --machine-type {shlex.quote(machine_type)}",
            usd_per_month=(usd - spot) * money.HOURS_PER_MONTH,
        )


def _per_hour(usd: Decimal) -> str:
    return f"{usd.quantize(money.CENT):,f}"


def _measure_commands(
    scope: ScanScope, instances: Sequence[ScannedInstance], profiles: Mapping[str, str]
) -> Iterator[tuple[Sequence[ScannedInstance], str, str]]:
    """Yield instances, the command that installs the cloud's agent on them, and what remains to be done after it."""
    if scope.cloud == Cloud.AWS:
        for part in _parts(instances, _TARGETS):
            yield (
                part,
                f"aws ssm send-command{_aws_options(scope, profiles)} --document-name AWS-ConfigureAWSPackage"
                " --parameters action=Install,name=AmazonCloudWatchAgent"
                f" --targets Key=InstanceIds,Values={','.join(shlex.quote(one.instance.id) for one in part)}",
                "the command installs CloudWatch's agent; then add `nvidia_gpu` to its configuration",
            )
        return
    for zone, others in _by_zone(instances):
        for part in _parts(others):
            yield (
                part,
                f"for vm in {_ids(part)}; do gcloud compute ssh $vm --zone {zone}"
                f" --project {shlex.quote(scope.account)} --command {shlex.quote(_OPS_AGENT)}; done",
                "the command installs the Ops Agent, which writes one",
            )


def _by_zone(instances: Sequence[ScannedInstance]) -> Iterator[tuple[str, Sequence[ScannedInstance]]]:
    for zone in sorted({one.instance.zone for one in instances}):
        yield zone, [one for one in instances if one.instance.zone == zone]


def _aws_options(scope: ScanScope, profiles: Mapping[str, str]) -> str:
    profile = profiles.get(scope.account)
    return (f" --profile {shlex.quote(profile)}" if profile else "") + f" --region {scope.region}"


def _parts(instances: Sequence[ScannedInstance], most: int = MAX_NAMED) -> Iterable[Sequence[ScannedInstance]]:
    return (instances[start : start + most] for start in range(0, len(instances), most))


def _ids(instances: Sequence[ScannedInstance]) -> str:
    return " ".join(shlex.quote(one.instance.id) for one in instances)
