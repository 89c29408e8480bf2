"""The rule on permissions that reach too far: inline, attached, or given to everybody."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context
from policies.resource import Resource
from policies.rule import Rule

_WITH_POLICY: Final = frozenset(
    f"aws:iam/{kind}"
    for kind in ("rolePolicy:RolePolicy", "policy:Policy", "userPolicy:UserPolicy", "groupPolicy:GroupPolicy")
)
_ATTACHMENTS: Final = re.compile(r"aws:iam/(?:role|user|group)?[pP]olicyAttachment(?:sExclusive)?:\w+")
_OF_RESOURCES: Final = frozenset(
    {
        "aws:s3/bucket:Bucket",
        "aws:s3/bucketPolicy:BucketPolicy",
        "aws:sqs/queue:Queue",
        "aws:sqs/queuePolicy:QueuePolicy",
        "aws:sns/topic:Topic",
        "aws:sns/topicPolicy:TopicPolicy",
        "aws:kms/key:Key",
        "aws:kms/keyPolicy:KeyPolicy",
        "aws:secretsmanager/secret:Secret",
        "aws:secretsmanager/secretPolicy:SecretPolicy",
        "aws:ecr/repositoryPolicy:RepositoryPolicy",
    }
)
"""Policies that say who may use a resource, and not what somebody may."""
_WIDE_MANAGED: Final = re.compile(r"arn:[^:]+:iam::aws:policy/(?:.*/)?(?:Administrator|PowerUser|\w*Full)Access")
_WIDE_ROLES: Final = frozenset({"roles/owner", "roles/editor"})
_EVERYBODY: Final = frozenset({"allUsers", "allAuthenticatedUsers"})
_SAY_NOTHING: Final = frozenset(
    {"aws:securetransport", "s3:tlsversion", "aws:currenttime", "aws:epochtime", "aws:useragent", "aws:referer"}
)
"""Keys of conditions that hold for whoever wants them to."""
_FIT_ALL: Final = frozenset({"*", "0.0.0.0/0", "::/0"})
_MAY_BE_ABSENT: Final = re.compile(r"ForAllValues:.*|.*IfExists|.*Not.*|Null", re.IGNORECASE)
"""Tests that pass where nothing was said, or for all but some."""
_WHOLE_SERVICE: Final = re.compile(r"arn:[^:]*:[^:]*:[^:]*:[^:]*:\*+")
"""An ARN that names a service and nothing of it."""
UNSCOPED: Final = re.compile(
    r"ec2:Describe\w+|autoscaling:Describe\w+|pricing:\w+|servicequotas:Get\w+|ecr:GetAuthorizationToken"
    r"|ssm:(?:UpdateInstanceInformation|ListAssociations|ListInstanceAssociations)|ssmmessages:\w+|ec2messages:\w+"
    r"|tag:Get\w+|sts:GetCallerIdentity|cloudwatch:GetMetric\w+|cloudwatch:ListMetrics"
)
"""Calls that AWS cannot limit to a resource: for these alone `Resource: *` is no choice of ours."""


def _too_wide(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type.startswith("gcp:"):
        yield from _google(resource)
        return
    if resource.type in _WITH_POLICY:
        yield from _of_policy(resource.at("policy"))
    elif resource.type in _OF_RESOURCES:
        yield from (wrong for s in _statements(resource.at("policy")) for wrong in _for_everybody(s))
    elif resource.type == "aws:iam/role:Role":
        for inline in resource.each("inlinePolicies"):
            yield from _of_policy(inline.get("policy"))
        yield from _all_managed(resource.at("managedPolicyArns"))
        yield from (wrong for s in _statements(resource.at("assumeRolePolicy")) for wrong in _for_everybody(s))
    elif _ATTACHMENTS.fullmatch(resource.type):
        yield from _all_managed(resource.at("policyArn"))
        yield from _all_managed(resource.at("policyArns"))


def _google(resource: Resource) -> Iterator[str]:
    yield from _granted(resource.props)
    policy = resource.at("policyData")
    whole = _parsed(policy) if isinstance(policy, str) else policy
    for binding in _listed(whole.get("bindings")) if is_map(whole) else ():
        if is_map(binding):
            yield from _granted(binding)


def _granted(binding: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one role and those who get it; an access list of a bucket calls them `entity`."""
    role = binding.get("role")
    if isinstance(role, str) and role in _WIDE_ROLES:
        yield f"grants {role}"
    for member in (binding.get("member"), binding.get("entity"), *_listed(binding.get("members"))):
        if isinstance(member, str) and member in _EVERYBODY:
            yield f"grants {role} to {member}"


def _all_managed(arns: Any) -> Iterator[str]:
    for arn in _listed(arns):
        if isinstance(arn, str) and _WIDE_MANAGED.fullmatch(arn):
            yield f"attaches {arn.rpartition('/')[2]}"


def _of_policy(policy: Any) -> Iterator[str]:
    if isinstance(policy, str) and _parsed(policy) is None:
        yield "policy is no JSON"
    for statement in _statements(policy):
        yield from _wide_statement(statement)


def _statements(policy: Any) -> Iterator[Mapping[str, Any]]:
    """Those that allow something; nothing of a policy that a preview does not know yet."""
    policy = _parsed(policy) if isinstance(policy, str) else policy
    if is_map(policy):
        for statement in _listed(policy.get("Statement")):
            if is_map(statement) and statement.get("Effect") == "Allow":
                yield statement


def _parsed(policy: str) -> Any:
    try:
        return json.loads(policy)
    except ValueError:
        return None


def _wide_statement(statement: Mapping[str, Any]) -> Iterator[str]:
    actions = [action for action in _listed(statement.get("Action")) if isinstance(action, str)]
    for action in actions:
        if "*" in action or "?" in action:
            yield f"allows the action {action}"
    for key in ("NotAction", "NotResource"):
        if key in statement:
            yield f"allows everything but {key}"
    resources = [one for one in _listed(statement.get("Resource")) if isinstance(one, str)]
    wide = any(set(one) == {"*"} or _WHOLE_SERVICE.fullmatch(one) for one in resources)
    if wide and not _is_bound(statement.get("Condition")):
        for action in actions:
            if not UNSCOPED.fullmatch(action):
                yield f"allows {action} on every resource"


def _for_everybody(statement: Mapping[str, Any]) -> Iterator[str]:
    principal = statement.get("Principal")
    named = principal.values() if is_map(principal) else [principal]
    everybody = "NotPrincipal" in statement or any("*" in _listed(one) for one in named)
    if everybody and not _is_bound(statement.get("Condition")):
        yield f"lets everybody call {', '.join(map(str, _listed(statement.get('Action'))))}"


def _is_bound(condition: Any) -> bool:
    """Whether a condition limits whom or what it holds for: `*` fits all, and so does a secure line."""
    if not is_map(condition):
        return False
    asked = [
        _listed(value)
        for operator, test in condition.items()
        if is_map(test) and not _MAY_BE_ABSENT.fullmatch(operator)
        for key, value in test.items()
        if key.lower() not in _SAY_NOTHING
    ]
    # the values of one key are alternatives: one that fits all is enough
    return any(values and not any(_fits_all(value) for value in values) for values in asked)


def _fits_all(value: Any) -> bool:
    return str(value) in _FIT_ALL or set(str(value)) == {"*"}


def _listed(value: Any) -> list[Any]:
    return value if is_list(value) else [] if value is None else [value]


RULES: Final = (
    Rule(
        id="no-wildcard-iam",
        reason="A role that may do everything turns every bug into a breach.",
        remedy="Name the actions and resources that the code uses.",
        of_one=_too_wide,
    ),
)
