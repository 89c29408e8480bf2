"""EC2's lists of instances, read as far as somebody needs them: botocore's own reading took the largest part of
the time that `status` of a large fleet took.
"""

from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree

from gpufleet.clouds.aws.moments import moment

_TEXTS: Final = {
    "capacityReservationId": "CapacityReservationId",
    "instanceId": "InstanceId",
    "instanceLifecycle": "InstanceLifecycle",
    "instanceType": "InstanceType",
    "privateIpAddress": "PrivateIpAddress",
    "reason": "StateTransitionReason",
}
_PARTS: Final = {
    "instanceState": ("State", {"name": "Name"}),
    "placement": ("Placement", {"availabilityZone": "AvailabilityZone"}),
    "stateReason": ("StateReason", {"code": "Code"}),
}
_LAUNCHED: Final = "LaunchTime"
_TAGS: Final = "Tags"
_TAG: Final = {"key": "Key", "value": "Value"}

INSTANCE: Final = frozenset({*_TEXTS.values(), *(name for name, _ in _PARTS.values()), _LAUNCHED, _TAGS})
"""What `inventory` and `instance_history` read of an instance."""


def lean(client: Any) -> Any:
    """The client of EC2, whose lists of instances have the fields of INSTANCE alone. Other answers stay whole."""
    client.meta.events.register("before-parse.ec2.DescribeInstances", _read)
    return client


def _read(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """The reservations of an answer. The rest of it is left to botocore, and so are refusals and what is no XML.

    The signature is that of botocore's event.
    """
    if response_dict["status_code"] >= 300:
        return
    try:
        root = ElementTree.fromstring(response_dict["body"])
    except ElementTree.ParseError:
        return
    reader = _Reader(root.tag[: root.tag.rfind("}") + 1])
    listed = root.find(reader.named("reservationSet"))
    if listed is not None:
        customized_response_dict["Reservations"] = [reader.reservation(item) for item in listed]
        root.remove(listed)
        response_dict["body"] = ElementTree.tostring(root)


class _Reader:
    """Reads elements of one name space (`{http://…}`, or empty), as botocore would."""

    def __init__(self, space: str) -> None:
        self._space = space
        self._texts = self._all_named(_TEXTS)
        self._parts = {self.named(key): (name, self._all_named(fields)) for key, (name, fields) in _PARTS.items()}
        self._tag = self._all_named(_TAG)
        self._instances, self._launched, self._tags = map(self.named, ("instancesSet", "launchTime", "tagSet"))

    def named(self, name: str) -> str:
        return self._space + name

    def _all_named(self, fields: Mapping[str, str]) -> dict[str, str]:
        return {self.named(key): name for key, name in fields.items()}

    def reservation(self, item: ElementTree.Element) -> dict[str, Any]:
        found = item.find(self._instances)
        return {} if found is None else {"Instances": [self._instance(one) for one in found]}

    def _instance(self, item: ElementTree.Element) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in item:
            tag = part.tag
            if tag in self._texts:
                found[self._texts[tag]] = part.text or ""
            elif tag in self._parts:
                name, fields = self._parts[tag]
                found[name] = _fields(part, fields)
            elif tag == self._tags:
                found[_TAGS] = [_fields(one, self._tag) for one in part]
            elif tag == self._launched:
                found[_LAUNCHED] = moment(part.text or "")
        return found


def _fields(part: ElementTree.Element, fields: Mapping[str, str]) -> dict[str, str]:
    return {fields[one.tag]: one.text or "" for one in part if one.tag in fields}
