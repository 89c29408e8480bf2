"""IAM roles on AWS: one role per kind of machine, with only the calls that its code makes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
from pulumi_aws import iam


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Allowed calls on resources. A wildcard may end a resource name but may not replace an action."""

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    when: Mapping[str, Mapping[str, str | list[str]]] = field(
        default_factory=dict[str, Mapping[str, str | list[str]]]
    )
    """Conditions in IAM syntax."""

    def statement(self) -> dict[str, Any]:
        statement: dict[str, Any] = {
            "Effect": "Allow",
            "Action": sorted(self.actions),
            "Resource": sorted(self.resources),
        }
        return statement | ({"Condition": self.when} if self.when else {})


class MachineIdentity(pulumi.ComponentResource):
    """A role that EC2 instances can assume, with its instance profile."""

    profile: pulumi.Output[str]
    """ARN of the instance profile."""
    profile_name: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        allowed: Sequence[Allowed],
        tags: Mapping[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("gpu-fleet:aws:MachineIdentity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        role = iam.Role(name, assume_role_policy=_policy([_EC2_MAY_ASSUME]), tags=dict(tags), opts=child)
        policy = _policy([each.statement() for each in allowed])
        rights = iam.RolePolicy(name, role=role.name, policy=policy, opts=child)
        profile = iam.InstanceProfile(name, role=role.name, tags=dict(tags), opts=child)
        self.profile = profile.arn
        # a machine with this profile must have its permissions immediately, so the name depends on the policy
        self.profile_name = pulumi.Output.all(profile.name, rights.urn).apply(lambda known: known[0])
        self.register_outputs({"profile": self.profile})


_EC2_MAY_ASSUME = {
    "Effect": "Allow",
    "Principal": {"Service": "ec2.amazonaws.com"},
    "Action": "sts:AssumeRole",
}


def _policy(statements: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, sort_keys=True)
