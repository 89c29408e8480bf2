"""Managed instance groups, zonal and regional. Their size is written only where the program itself changed it."""

from __future__ import annotations

from typing import Any

from gpufleet.domain.parsed import is_list
from localcloud.documents import inner, is_document, items
from localcloud.provider.checks import between, matches
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.rest_resource import NAME_RULE, RestResource, error_context
from localcloud.provider.resource import Change
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties

_ACTIONS = frozenset({"NONE", "REFRESH", "REPLACE", "RESTART"})
_POLICY = frozenset(
    {"minimalAction", "mostDisruptiveAllowedAction", "replacementMethod", "type", "instanceRedistributionType"}
)
_AMOUNTS = ("maxSurge", "maxUnavailable")
_ANSWER_LIMIT_S = 600.0


def _policy_fits(given: Properties) -> list[Failure]:
    policy = given.get("updatePolicy")
    if not is_document(policy):
        return []
    failures: list[Failure] = []
    for amount in _AMOUNTS:
        fixed, percent = f"{amount}Fixed", f"{amount}Percent"
        if fixed in policy and percent in policy:
            reason = f"{percent!r} conflicts with {fixed!r}; give one of them"
            failures.append(Failure(path=f"updatePolicy.{percent}", reason=reason))
    if policy.get("maxSurgeFixed") == 0 and policy.get("maxUnavailableFixed") == 0:
        reason = "maxUnavailableFixed and maxSurgeFixed cannot both be 0"
        failures.append(Failure(path="updatePolicy.maxUnavailableFixed", reason=reason))
    if "minReadySec" in policy:
        reason = "'minReadySec' is known to the beta API alone; leave it out"
        failures.append(Failure(path="updatePolicy.minReadySec", reason=reason))
    return failures


def _versions_fit(given: Properties) -> list[Failure]:
    versions = given.get("versions")
    if not is_list(versions):
        return []
    open_ended = [v for v in versions if is_document(v) and "targetSize" not in v]
    if len(open_ended) == 1:
        return []
    return [Failure(path="versions", reason=f"exactly one version has no 'targetSize', got {len(open_ended)}")]


class InstanceGroupManager(RestResource):
    token = "gcp:compute/instanceGroupManager:InstanceGroupManager"
    api = ("compute.v1", "InstanceGroupManager")
    place = "zones/{zone}/instanceGroupManagers"
    force_new = frozenset({"baseInstanceName", "name"})
    mutable = frozenset(
        {
            "autoHealingPolicies", "description", "instanceLifecyclePolicy", "listManagedInstancesResults",
            "namedPorts", "targetSize", "updatePolicy", "versions",
        }
    )  # fmt: skip
    local = frozenset({"waitForInstances", "waitForInstancesStatus"})
    computed = {
        "selfLink": "selfLink",
        "creationTimestamp": "creationTimestamp",
        "fingerprint": "fingerprint",
        "instanceGroup": "instanceGroup",
        "instanceGroupManagerId": "id",
    }
    volatile = frozenset({"fingerprint", "statuses"})
    enums = {
        "updatePolicy.type": frozenset({"OPPORTUNISTIC", "PROACTIVE"}),
        "updatePolicy.minimalAction": _ACTIONS,
        "updatePolicy.mostDisruptiveAllowedAction": _ACTIONS,
        "updatePolicy.replacementMethod": frozenset({"RECREATE", "SUBSTITUTE"}),
        "instanceLifecyclePolicy.defaultActionOnFailure": frozenset({"DO_NOTHING", "REPAIR"}),
        "instanceLifecyclePolicy.forceUpdateOnRepair": frozenset({"NO", "YES"}),
        "instanceLifecyclePolicy.onFailedHealthCheck": frozenset({"DEFAULT_ACTION", "DO_NOTHING", "REPAIR"}),
        "listManagedInstancesResults": frozenset({"PAGELESS", "PAGINATED"}),
        "waitForInstancesStatus": frozenset({"STABLE", "UPDATED"}),
    }
    rules = (
        NAME_RULE,
        matches(
            "baseInstanceName",
            r"[a-z](?:[-a-z0-9]{0,56}[a-z0-9])?",
            "a base of instance names (1 to 58 of a-z 0-9 -, beginning with a letter, not ending with a hyphen)",
        ),
        between("targetSize", 0, 4000),
        between("autoHealingPolicies.initialDelaySec", 0, 3600),
        _policy_fits,
        _versions_fit,
    )

    def to_wire(self, cloud: Cloud, inputs: Properties) -> Properties:
        wired = dict(inputs)
        if policy := inputs.get("updatePolicy"):
            wired["updatePolicy"] = {
                **{k: v for k, v in policy.items() if k in _POLICY},
                **{amount: found for amount in _AMOUNTS if (found := _amount(policy, amount)) is not None},
            }
        return wired

    def from_wire(self, raw: Properties) -> Properties:
        shown = dict(raw)
        if policy := raw.get("updatePolicy"):
            shown["updatePolicy"] = {k: v for k, v in policy.items() if k in _POLICY} | {
                f"{amount}{kind.title()}": policy[amount][kind]
                for amount in _AMOUNTS
                for kind in ("fixed", "percent")
                if kind in policy.get(amount, {})
            }
        return shown

    def shown(self, cloud: Cloud, raw: Properties, state: Properties) -> Properties:
        # watchdogs also write the size, so the cloud's value always counts
        size = {"targetSize": raw["targetSize"]} if "targetSize" in raw else {}
        return {**super().shown(cloud, raw, state), "statuses": _statuses(raw), **size}

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        if inputs.get("waitForInstances"):
            self._wait_until_stable(cloud, ident)

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self.patch(cloud, ident, change, change.keys - self.local - {"targetSize"})
        if change.touches("targetSize") and "targetSize" in change.new:
            with error_context(f"Error updating {self.what} {ident!r}"):
                size = str(change.new["targetSize"])
                self.finish(cloud, self.client(cloud).call("POST", f"{ident}/resize", parameters={"size": size}))
        if change.new.get("waitForInstances"):
            self._wait_until_stable(cloud, ident)

    def _wait_until_stable(self, cloud: Cloud, ident: str) -> None:
        def stable() -> bool:
            found = self.client(cloud).call("GET", ident)
            return bool(inner(found, "status").get("isStable"))

        cloud.wait(f"the instances of {ident} to be stable", stable, limit_s=min(cloud.limit_s, _ANSWER_LIMIT_S))


def _amount(policy: Properties, amount: str) -> dict[str, Any] | None:
    for kind in ("fixed", "percent"):
        if f"{amount}{kind.title()}" in policy:
            return {kind: policy[f"{amount}{kind.title()}"]}
    return None


def _statuses(raw: Properties) -> list[dict[str, Any]]:
    status = inner(raw, "status")
    reached = inner(status, "versionTarget").get("isReached", False)
    return [{"isStable": bool(status.get("isStable")), "versionTargets": [{"isReached": bool(reached)}]}]


def _spread_fits(given: Properties) -> list[Failure]:
    policy, zones = given.get("updatePolicy"), given.get("distributionPolicyZones")
    if not is_document(policy) or not is_list(zones):
        return []
    failures: list[Failure] = []
    for name in ("maxSurgeFixed", "maxUnavailableFixed"):
        amount = policy.get(name)
        if isinstance(amount, int) and 0 < amount < len(zones):
            reason = f"must be 0 or at least the number of zones, {len(zones)}, got {amount}"
            failures.append(Failure(path=f"updatePolicy.{name}", reason=reason))
    shape = given.get("distributionPolicyTargetShape", "EVEN")
    if policy.get("instanceRedistributionType") == "PROACTIVE" and shape not in ("EVEN", "ANY_SINGLE_ZONE"):
        reason = f"PROACTIVE needs the target shape EVEN, got {shape}"
        failures.append(Failure(path="updatePolicy.instanceRedistributionType", reason=reason))
    return failures


def _flexible_fits(given: Properties) -> list[Failure]:
    if "instanceFlexibilityPolicy" in given and given.get("distributionPolicyTargetShape", "EVEN") == "EVEN":
        reason = "an instance flexibility policy needs the target shape ANY, ANY_SINGLE_ZONE or BALANCED, got EVEN"
        return [Failure(path="distributionPolicyTargetShape", reason=reason)]
    return []


class RegionInstanceGroupManager(InstanceGroupManager):
    token = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
    place = "regions/{region}/instanceGroupManagers"
    force_new = InstanceGroupManager.force_new | {"distributionPolicyZones"}
    mutable = InstanceGroupManager.mutable | {"distributionPolicyTargetShape", "instanceFlexibilityPolicy"}
    enums = {
        **InstanceGroupManager.enums,
        "distributionPolicyTargetShape": frozenset({"ANY", "ANY_SINGLE_ZONE", "BALANCED", "EVEN"}),
        "updatePolicy.instanceRedistributionType": frozenset({"NONE", "PROACTIVE"}),
    }
    rules = (*InstanceGroupManager.rules, _spread_fits, _flexible_fits)

    def to_wire(self, cloud: Cloud, inputs: Properties) -> Properties:
        wired = super().to_wire(cloud, inputs)
        zones, shape = wired.pop("distributionPolicyZones", None), wired.pop("distributionPolicyTargetShape", None)
        spread: Properties = {}
        if zones:
            spread["zones"] = [{"zone": f"projects/{cloud.project}/zones/{zone}"} for zone in zones]
        if shape:
            spread["targetShape"] = shape
        if spread:
            wired["distributionPolicy"] = spread
        if policy := wired.get("instanceFlexibilityPolicy"):
            chosen = {s["name"]: {k: v for k, v in s.items() if k != "name"} for s in policy["instanceSelections"]}
            wired["instanceFlexibilityPolicy"] = {"instanceSelections": chosen}
        return wired

    def from_wire(self, raw: Properties) -> Properties:
        shown = super().from_wire(raw)
        spread: Properties = shown.pop("distributionPolicy", None) or {}
        if zones := items(spread, "zones"):
            shown["distributionPolicyZones"] = sorted(str(z["zone"]).rsplit("/", 1)[-1] for z in zones)
        if shape := spread.get("targetShape"):
            shown["distributionPolicyTargetShape"] = shape
        if policy := shown.get("instanceFlexibilityPolicy"):
            chosen = inner(policy, "instanceSelections")
            listed: list[Properties] = [{"name": name, **selection} for name, selection in chosen.items()]
            listed.sort(key=lambda s: (s.get("rank", 0), s["name"]))
            shown["instanceFlexibilityPolicy"] = {"instanceSelections": listed}
        return shown

    def fields_of(self, keys: frozenset[str]) -> frozenset[str]:
        spread = {"distributionPolicyTargetShape"}
        return keys - spread | ({"distributionPolicy"} if keys & spread else set[str]())
