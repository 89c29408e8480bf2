"""A fast parser for EC2's instance lists that reads only the needed fields.

With botocore's parser, parsing took most of the time of `status` for a large fleet.
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
"""Fields of an instance that `inventory` and `instance_history` read."""


def lean(client: Any) -> Any:
    """Make an EC2 client return only the fields in INSTANCE for instance lists. Other responses do not change."""
    client.meta.events.register("before-parse.ec2.DescribeInstances", _read)
    return client


def _read(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Handle botocore's `before-parse` event: parse the reservations of a response.

    botocore parses the remainder of the response, error responses, and responses that are not valid XML.
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
    """Parses elements of one XML namespace (`{http://…}`, or empty) to the same values as botocore."""

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
