"""Facts for the orphan watchdog: unmanaged instances, matching rules, obstacles to a stop. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.decisions import ChangeBudget, OpenAttempts
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import CapacityType, Cloud, Instance
from gpufleet.domain.ownership import owning_pool
from gpufleet.domain.policies import OrphanPolicy
from gpufleet.settings.document import FleetDocument

OWNER_TAGS: Final = (tags.OWNER, "owner", "Owner")
KEEPERS: Final = (
    "aws:autoscaling:",
    "aws:ec2:fleet-id",
    "aws:batch:",
    "aws:elasticmapreduce:",
    "aws:eks:",
    "eks:",
    "karpenter.sh/",
    "kubernetes.io/cluster/",
    "parallelcluster:",
    "goog-gke-",
    "goog-k8s-",
    "goog-dataproc-",
)
"""Prefixes of tags that an orchestrator writes: it would replace a stopped instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanObservation:
    """What one pass observed."""

    environment: str
    """Environment of this fleet; instances of another environment are never changed."""
    orphans: Sequence[Instance]
    rules: Sequence[OrphanPolicy]
    """The first rule that matches an instance applies to it."""
    evidence: Mapping[str, Evidence]
    budget: ChangeBudget
    """Budget over all rules."""
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """By instance of the account that could not be read: the error."""
    active: Mapping[str, float] = field(default_factory=dict[str, float])
    """Highest `gpu_active` by instance, also without a rule: only shown."""
    marked_at: Mapping[tuple[str, str], datetime] = field(default_factory=dict[tuple[str, str], datetime])
    """By instance and rule: when this fleet marked it last. A mark of another fleet does not start a grace."""
    paused_by: Mapping[str, str] = field(default_factory=dict[str, str])
    """By rule: who paused it, until when and why."""
    unaccepted: frozenset[str] = frozenset()
    """Rules without a dry run."""
    stopped_this_hour: Mapping[str, int] = field(default_factory=dict[str, int])
    """Stops within the hour, by rule."""
    gpus_expected: Mapping[str, int] = field(default_factory=dict[str, int])
    """By machine type; absent: unknown."""
    watts_rated: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rated power of one GPU, by machine type."""
    without_local_disks: frozenset[str] = frozenset()
    """Machine types that have no local disks for certain."""
    kept_by: Mapping[str, str] = field(default_factory=dict[str, str])
    usd_per_hour: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    """By instance; absent: unknown."""
    attempts: Mapping[str, OpenAttempts] = field(default_factory=dict[str, OpenAttempts])
    """By instance: stops that failed recently."""

    def rule_of(self, instance: Instance, now: datetime) -> OrphanPolicy | None:
        """The first rule that matches it; always None for instances of another environment."""
        if instance.environment not in (None, self.environment):
            return None
        return next((rule for rule in self.rules if names(rule, instance, now)), None)

    def marked(self, instance: Instance, rule: OrphanPolicy, now: datetime) -> datetime | None:
        """When this fleet marked it by this rule; None: it did not, or the mark was removed.

        If another fleet marked it later, the later time counts.
        """
        own = self.marked_at.get((instance.id, rule.name))
        if own is None or not instance.tags.get(tags.IDLE_SINCE):
            return None
        written = instance.idle_since
        return own if written is None or written > now else max(own, written)


def unmanaged_instances(instances: Sequence[Instance], documents: Collection[FleetDocument]) -> tuple[Instance, ...]:
    """Running instances that no pool of these fleets owns. Those of an adopted group have no environment's tag."""
    known = [(document.environment, document.group_names()) for document in documents]

    def has_owner(instance: Instance) -> bool:
        return any(instance.environment in (None, name) and owning_pool(groups, instance) for name, groups in known)

    return tuple(i for i in instances if i.alive and not has_owner(i))


def names(rule: OrphanPolicy, instance: Instance, now: datetime) -> bool:
    """Whether an instance meets all conditions of a rule. A rule without conditions matches nothing."""
    conditions = [
        *(
            fnmatchcase(instance.tags.get(key, ""), value) and key in instance.tags
            for key, value in rule.tags.items()
        ),
        *([] if rule.name_like is None else [fnmatchcase(display_name(instance), rule.name_like)]),
        *([] if rule.owner is None else [rule.owner in (instance.tags.get(key) for key in OWNER_TAGS)]),
        *([] if rule.older_than is None else [now - instance.launched_at >= rule.older_than]),
    ]
    return bool(conditions) and all(conditions)


def display_name(instance: Instance) -> str:
    """The name for people: the `Name` tag on AWS; on Google Cloud the id."""
    return instance.id if instance.cloud is Cloud.GCP else instance.tags.get("Name", "")


def stop_obstacle(instance: Instance, rule: OrphanPolicy, without_local_disks: Collection[str]) -> str | None:
    """Why a machine cannot be stopped permanently, or not without a loss; None: it can."""
    if instance.group is not None:
        return f"its group {instance.group} would replace it"
    keeper = next((key for key in instance.tags if key.startswith(KEEPERS)), None)
    if keeper is not None:
        return f"by its tag {keeper} another system manages it and would replace it"
    if instance.cloud is Cloud.AWS and instance.capacity_type is CapacityType.SPOT:
        return "AWS cannot stop a one-time spot instance"
    if not rule.lose_local_disks and instance.machine_type not in without_local_disks:
        return "a stop loses the data on its local disks; to allow that, set lose_local_disks in the rule"
    return None
