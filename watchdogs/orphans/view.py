"""What the orphan watchdog knows: who is outside, which rule names it, and what stands against a stop. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Final

from gpufleet.domain import tags
from gpufleet.domain.decisions import ChangeBudget, FailedAttempts
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import CapacityType, Cloud, Instance
from gpufleet.domain.ownership import owner_of
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
"""How tags begin that somebody's orchestrator writes: it would replace what is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanObservation:
    """All that one pass looked at."""

    environment: str
    """Of the fleet that looks; machines of another environment are never touched."""
    orphans: Sequence[Instance]
    rules: Sequence[OrphanPolicy]
    """The first that names an instance holds for it."""
    evidence: Mapping[str, Evidence]
    budget: ChangeBudget
    """Over all rules."""
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    """By instance of the account that cannot be read, whoever it belongs to: why."""
    active: Mapping[str, float] = field(default_factory=dict[str, float])
    """Highest `gpu_active`, of instances that no rule names, too: only shown."""
    marked_at: Mapping[tuple[str, str], datetime] = field(default_factory=dict[tuple[str, str], datetime])
    """By instance and rule: when this fleet marked it last. A mark of somebody else starts no grace of ours."""
    paused_by: Mapping[str, str] = field(default_factory=dict[str, str])
    """By rule: who, until when and why."""
    unseen: frozenset[str] = frozenset()
    """Rules whose dry run nobody saw."""
    stopped_this_hour: Mapping[str, int] = field(default_factory=dict[str, int])
    """By rule."""
    gpus_expected: Mapping[str, int] = field(default_factory=dict[str, int])
    """By machine type; absent: unknown."""
    watts_rated: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of one GPU, by machine type."""
    without_local_disks: frozenset[str] = frozenset()
    """Machine types that are known to have none."""
    kept_by: Mapping[str, str] = field(default_factory=dict[str, str])
    usd_per_hour: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    """By instance; absent: unknown."""
    attempts: Mapping[str, FailedAttempts] = field(default_factory=dict[str, FailedAttempts])
    """By instance: stops that came to nothing lately."""

    def rule_of(self, instance: Instance, now: datetime) -> OrphanPolicy | None:
        """The first rule that names it; None for machines of another environment, whatever the rules say."""
        if instance.environment not in (None, self.environment):
            return None
        return next((rule for rule in self.rules if names(rule, instance, now)), None)

    def marked(self, instance: Instance, rule: OrphanPolicy, now: datetime) -> datetime | None:
        """Since when a mark of this rule stands; None when this fleet made none, or people have removed it.

        Where another fleet has marked it anew since then, that is when it became idle.
        """
        own = self.marked_at.get((instance.id, rule.name))
        if own is None or not instance.tags.get(tags.IDLE_SINCE):
            return None
        written = instance.idle_since
        return own if written is None or written > now else max(own, written)


def outside(instances: Sequence[Instance], documents: Collection[FleetDocument]) -> tuple[Instance, ...]:
    """Those that no pool of these fleets owns, gone and stopped ones left out."""
    known = [(document.environment, document.group_names()) for document in documents]

    def has_owner(instance: Instance) -> bool:
        return any(instance.environment == name and owner_of(groups, instance) for name, groups in known)

    return tuple(i for i in instances if i.alive and not has_owner(i))


def names(rule: OrphanPolicy, instance: Instance, now: datetime) -> bool:
    """Whether all that a rule says holds of an instance. A rule that says nothing names nothing."""
    said = [
        *(
            fnmatchcase(instance.tags.get(key, ""), value) and key in instance.tags
            for key, value in rule.tags.items()
        ),
        *([] if rule.name_like is None else [fnmatchcase(name_of(instance), rule.name_like)]),
        *([] if rule.owner is None else [rule.owner in (instance.tags.get(key) for key in OWNER_TAGS)]),
        *([] if rule.older_than is None else [now - instance.launched_at >= rule.older_than]),
    ]
    return bool(said) and all(said)


def name_of(instance: Instance) -> str:
    """What people call it: its `Name` tag on AWS; on Google Cloud the id is the name."""
    return instance.id if instance.cloud is Cloud.GCP else instance.tags.get("Name", "")


def obstacle(instance: Instance, rule: OrphanPolicy, without_local_disks: Collection[str]) -> str | None:
    """Why a machine cannot be stopped for good, or not without a loss; None: it can."""
    if instance.group is not None:
        return f"its group {instance.group} would replace it"
    keeper = next((key for key in instance.tags if key.startswith(KEEPERS)), None)
    if keeper is not None:
        return f"its tag {keeper} says that something else manages it and would replace it"
    if instance.cloud is Cloud.AWS and instance.capacity_type is CapacityType.SPOT:
        return "AWS stops no one-time spot instance"
    if not rule.lose_local_disks and instance.machine_type not in without_local_disks:
        return "a stop loses what lies on its local disks, and the rule does not allow that (lose_local_disks)"
    return None
