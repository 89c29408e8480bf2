"""SSM parameters, SQS queues and EventBridge rules."""

from __future__ import annotations

import json
from typing import Any

from localcloud.documents import inner
from localcloud.provider.aws.calls import listed, or_none, present
from localcloud.provider.aws.iam import is_policy
from localcloud.provider.aws.tags import tag_changes, tag_list, tag_map
from localcloud.provider.checks import between, conflicts, matches, one_of
from localcloud.provider.errors import Failure
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.translate import input_shape, to_request
from localcloud.provider.wire import UNKNOWN, Properties, sha1


class Parameter(Resource):
    token = "aws:ssm/parameter:Parameter"
    naming = Naming(limit=2048)
    tagged = True
    force_new = frozenset({"dataType", "name"})
    mutable = frozenset(
        {"allowedPattern", "description", "insecureValue", "keyId", "overwrite", "tier", "type", "value"}
    )
    volatile = frozenset({"version"})
    enums = {
        "type": frozenset({"String", "StringList", "SecureString"}),
        "tier": frozenset({"Standard", "Advanced", "Intelligent-Tiering"}),
        "dataType": frozenset({"text", "aws:ec2:image", "aws:ssm:integration"}),
    }
    rules = (
        one_of("value", "insecureValue"),
        matches("name", r"(?!/?(?:aws|ssm))[a-zA-Z0-9_.\-/]{1,2048}", "a parameter name"),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        tags = tag_list(inputs.get("tags"))
        overwrite = inputs.get("overwrite", False)
        # SSM refuses tags together with Overwrite
        self._put(cloud, inputs, Overwrite=overwrite, **({"Tags": tags} if tags and not overwrite else {}))
        return str(inputs["name"])

    def _put(self, cloud: Cloud, inputs: Properties, **more: Any) -> None:
        cloud.client("ssm").put_parameter(
            Name=inputs["name"],
            Type=inputs["type"],
            Value=inputs.get("value", inputs.get("insecureValue")),
            **present(
                AllowedPattern=inputs.get("allowedPattern"),
                DataType=inputs.get("dataType"),
                Description=inputs.get("description"),
                KeyId=inputs.get("keyId"),
                Tier=inputs.get("tier"),
            ),
            **more,
        )

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        ssm = cloud.client("ssm")
        answer = or_none(ssm.get_parameter, Name=ident, WithDecryption=True)
        if answer is None:
            return None
        found = answer["Parameter"]
        tags = ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=ident)["TagList"]
        value_name = "insecureValue" if "insecureValue" in state else "value"
        return {
            "arn": found["ARN"],
            "dataType": found.get("DataType"),
            "name": found["Name"],
            "type": found["Type"],
            value_name: found["Value"],
            "version": found["Version"],
            "tags": tag_map(cloud, tags),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.keys - {"overwrite", "tags"}:
            self._put(cloud, change.new, Overwrite=True)
        if change.touches("tags"):
            put, remove = tag_changes(change)
            kind = {"ResourceType": "Parameter", "ResourceId": ident}
            if remove:
                cloud.client("ssm").remove_tags_from_resource(TagKeys=remove, **kind)
            if put:
                cloud.client("ssm").add_tags_to_resource(Tags=tag_list(put), **kind)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ssm").delete_parameter, Name=ident)


_QUEUE_FIELDS = {
    "contentBasedDeduplication": "ContentBasedDeduplication",
    "deduplicationScope": "DeduplicationScope",
    "delaySeconds": "DelaySeconds",
    "fifoThroughputLimit": "FifoThroughputLimit",
    "kmsDataKeyReusePeriodSeconds": "KmsDataKeyReusePeriodSeconds",
    "kmsMasterKeyId": "KmsMasterKeyId",
    "maxMessageSize": "MaximumMessageSize",
    "messageRetentionSeconds": "MessageRetentionPeriod",
    "policy": "Policy",
    "receiveWaitTimeSeconds": "ReceiveMessageWaitTimeSeconds",
    "redrivePolicy": "RedrivePolicy",
    "sqsManagedSseEnabled": "SqsManagedSseEnabled",
    "visibilityTimeoutSeconds": "VisibilityTimeout",
}
_QUEUE_DEFAULTS = {
    "delaySeconds": 0, "maxMessageSize": 262_144, "messageRetentionSeconds": 345_600, "receiveWaitTimeSeconds": 0,
    "visibilityTimeoutSeconds": 30,
}  # fmt: skip
_QUEUE_NAMING = Naming(prefix_property="namePrefix", limit=80)


def _fifo_by_name(given: Properties) -> list[Failure]:
    name = given.get("name")
    if name is None or name == UNKNOWN:
        return []
    if bool(given.get("fifoQueue")) != name.endswith(".fifo"):
        return [Failure(path="name", reason=f"{name!r}: names of FIFO queues, and only theirs, end with .fifo")]
    return []


class Queue(Resource):
    token = "aws:sqs/queue:Queue"
    naming = _QUEUE_NAMING
    tagged = True
    force_new = frozenset({"fifoQueue", "name", "namePrefix"})
    mutable = frozenset(_QUEUE_FIELDS)
    rules = (
        conflicts("name", "namePrefix"),
        conflicts("kmsMasterKeyId", "sqsManagedSseEnabled"),
        matches(
            "name", r"[a-zA-Z0-9_-]{1,80}|[a-zA-Z0-9_-]{1,75}\.fifo", "a queue name (1 to 80 of a-z A-Z 0-9 _ -)"
        ),
        between("delaySeconds", 0, 900),
        between("messageRetentionSeconds", 60, 1_209_600),
        between("receiveWaitTimeSeconds", 0, 20),
        between("visibilityTimeoutSeconds", 0, 43_200),
        is_policy("policy"),
        _fifo_by_name,
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        attributes = _queue_attributes(inputs) | ({"FifoQueue": "true"} if inputs.get("fifoQueue") else {})
        answer = cloud.client("sqs").create_queue(
            QueueName=_QUEUE_NAMING.from_prefix(inputs), Attributes=attributes, tags=inputs.get("tags") or {}
        )
        return str(answer["QueueUrl"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        sqs = cloud.client("sqs")
        answer = or_none(sqs.get_queue_attributes, QueueUrl=ident, AttributeNames=["All"])
        if answer is None:
            return None
        attributes = answer["Attributes"]
        live = {
            name: _queue_value(state[name], attributes[field])
            for name, field in _QUEUE_FIELDS.items()
            if field in attributes and name in state
        }
        return {
            **live,
            "arn": attributes["QueueArn"],
            "name": ident.rpartition("/")[2],
            "url": ident,
            "tags": tag_map(cloud, inner(or_none(sqs.list_queue_tags, QueueUrl=ident), "Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        sqs = cloud.client("sqs")
        fields = change.keys & _QUEUE_FIELDS.keys()
        wanted = {k: change.new.get(k, _QUEUE_DEFAULTS.get(k, "")) for k in fields}
        if wanted:
            # the emulator forgets the queue's policy when other attributes are set without it
            policy = sqs.get_queue_attributes(QueueUrl=ident, AttributeNames=["Policy"]).get("Attributes", {})
            sqs.set_queue_attributes(QueueUrl=ident, Attributes=policy | _queue_attributes(wanted))
        if change.touches("tags"):
            put, remove = tag_changes(change)
            if remove:
                sqs.untag_queue(QueueUrl=ident, TagKeys=remove)
            if put:
                sqs.tag_queue(QueueUrl=ident, Tags=put)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("sqs").delete_queue, QueueUrl=ident)


def _queue_attributes(inputs: Properties) -> dict[str, str]:
    given = {field: inputs[name] for name, field in _QUEUE_FIELDS.items() if name in inputs}
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in given.items()}


def _queue_value(given: Any, text: str) -> Any:
    if isinstance(given, bool):
        return text == "true"
    return int(text) if isinstance(given, int) else text


class QueuePolicy(Resource):
    token = "aws:sqs/queuePolicy:QueuePolicy"
    force_new = frozenset({"queueUrl"})
    mutable = frozenset({"policy"})
    rules = (is_policy("policy"),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        self._put(cloud, inputs["queueUrl"], inputs["policy"])
        return str(inputs["queueUrl"])

    def _put(self, cloud: Cloud, url: str, policy: str) -> None:
        cloud.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        answer = or_none(cloud.client("sqs").get_queue_attributes, QueueUrl=ident, AttributeNames=["Policy"])
        policy = answer.get("Attributes", {}).get("Policy") if answer else None
        return {"policy": policy, "queueUrl": ident} if policy else None

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self._put(cloud, ident, change.new["policy"])

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("sqs").set_queue_attributes, QueueUrl=ident, Attributes={"Policy": ""})


_RULE_NAMING = Naming(prefix_property="namePrefix", limit=64)
_DEFAULT_BUS = "default"


def _pattern_is_json(given: Properties) -> list[Failure]:
    pattern = given.get("eventPattern")
    if pattern is None or pattern == UNKNOWN:
        return []
    try:
        json.loads(pattern)
    except ValueError as error:
        return [Failure(path="eventPattern", reason=f"not JSON: {error}")]
    return []


def _pattern_or_schedule(given: Properties) -> list[Failure]:
    if "eventPattern" in given or "scheduleExpression" in given:
        return []
    return [Failure(path="eventPattern", reason="one of 'eventPattern', 'scheduleExpression' is required")]


class EventRule(Resource):
    token = "aws:cloudwatch/eventRule:EventRule"
    naming = _RULE_NAMING
    tagged = True
    force_new = frozenset({"eventBusName", "name", "namePrefix"})
    mutable = frozenset({"description", "eventPattern", "forceDestroy", "roleArn", "scheduleExpression", "state"})
    enums = {"state": frozenset({"ENABLED", "DISABLED", "ENABLED_WITH_ALL_CLOUDTRAIL_MANAGEMENT_EVENTS"})}
    rules = (
        conflicts("name", "namePrefix"),
        matches("name", r"[.\-_A-Za-z0-9]{1,64}", "a rule name (1 to 64 of a-z A-Z 0-9 . - _)"),
        _pattern_or_schedule,
        _pattern_is_json,
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        name = _RULE_NAMING.from_prefix(inputs)
        self._put(cloud, name, inputs, **({"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}))
        bus = inputs.get("eventBusName", _DEFAULT_BUS)
        return name if bus == _DEFAULT_BUS else f"{bus}/{name}"

    def _put(self, cloud: Cloud, name: str, inputs: Properties, **more: Any) -> None:
        cloud.client("events").put_rule(
            Name=name,
            State=inputs.get("state", "ENABLED"),
            **present(
                Description=inputs.get("description"),
                EventBusName=inputs.get("eventBusName"),
                EventPattern=inputs.get("eventPattern"),
                RoleArn=inputs.get("roleArn"),
                ScheduleExpression=inputs.get("scheduleExpression"),
            ),
            **more,
        )

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        events = cloud.client("events")
        found = or_none(events.describe_rule, **_rule(ident))
        if found is None:
            return None
        tags = events.list_tags_for_resource(ResourceARN=found["Arn"])["Tags"]
        return {
            "arn": found["Arn"],
            "name": found["Name"],
            "description": found.get("Description"),
            "eventBusName": found.get("EventBusName", _DEFAULT_BUS),
            "eventPattern": found.get("EventPattern"),
            "scheduleExpression": found.get("ScheduleExpression") or None,
            "state": found["State"],
            "tags": tag_map(cloud, tags),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        events = cloud.client("events")
        if change.keys - {"forceDestroy", "tags"}:
            self._put(cloud, _rule(ident)["Name"], change.new)
        if change.touches("tags"):
            put, remove = tag_changes(change)
            if remove:
                events.untag_resource(ResourceARN=change.state["arn"], TagKeys=remove)
            if put:
                events.tag_resource(ResourceARN=change.state["arn"], Tags=tag_list(put))

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("events").delete_rule, Force=bool(state.get("forceDestroy")), **_rule(ident))


def _rule(ident: str) -> dict[str, str]:
    bus, _, name = ident.rpartition("/")
    return {"Name": name, "EventBusName": bus or _DEFAULT_BUS}


_TARGET_FIELDS = frozenset(
    {"arn", "deadLetterConfig", "input", "inputPath", "inputTransformer", "retryPolicy", "roleArn", "sqsTarget"}
)
_TARGET_RENAMES = {
    "sqsTarget": "SqsParameters",
    "inputTransformer.inputPaths": "InputPathsMap",
    "retryPolicy.maximumEventAgeInSeconds": "MaximumEventAgeInSeconds",
}


class EventTarget(Resource):
    token = "aws:cloudwatch/eventTarget:EventTarget"
    force_new = frozenset({"eventBusName", "rule", "targetId"})
    mutable = _TARGET_FIELDS
    rules = (conflicts("input", "inputPath", "inputTransformer"),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        target = inputs.get("targetId") or f"terraform-{sha1(inputs['rule'] + inputs['arn'])[:26]}"
        self._put(cloud, target, inputs)
        bus = inputs.get("eventBusName", _DEFAULT_BUS)
        start = "" if bus == _DEFAULT_BUS else f"{bus}-"
        return f"{start}{inputs['rule']}-{target}"

    def _put(self, cloud: Cloud, target: str, inputs: Properties) -> None:
        shape = input_shape(cloud, "events", "PutTargets", "Targets")
        given = to_request({k: v for k, v in inputs.items() if k in _TARGET_FIELDS}, shape, _TARGET_RENAMES)
        bus = inputs.get("eventBusName", _DEFAULT_BUS)
        targets = [{"Id": target, **given}]
        cloud.client("events").put_targets(Rule=inputs["rule"], EventBusName=bus, Targets=targets)

    def _target(self, ident: str, state: Properties) -> str:
        return ident.rpartition(f"{state['rule']}-")[2]

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        wanted = self._target(ident, state)
        bus = state.get("eventBusName", _DEFAULT_BUS)
        call = cloud.client("events").list_targets_by_rule
        for target in listed(call, "Targets", Rule=state["rule"], EventBusName=bus):
            if target["Id"] == wanted:
                return {"arn": target["Arn"], "rule": state["rule"], "targetId": wanted, "eventBusName": bus}
        return None

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self._put(cloud, self._target(ident, change.state), change.new)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        bus = state.get("eventBusName", _DEFAULT_BUS)
        ids = [self._target(ident, state)]
        or_none(cloud.client("events").remove_targets, Rule=state["rule"], EventBusName=bus, Ids=ids)
