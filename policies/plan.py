"""Finds out whether a property refers to a resource of the plan: by id, name, ARN, link or address, or by the source
of its value.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from policies.resource import UNKNOWN, Resource

_IDENTIFIERS: Final[tuple[tuple[str | int, ...], ...]] = (
    *(("id",), ("name",), ("arn",), ("email",), ("selfLink",), ("selfLinkUnique",)),
    *(("bucket",), ("zoneId",), ("dnsName",), ("privateIp",), ("ipAddress",)),
    ("networkInterfaces", 0, "networkIp"),
)
"""Properties by which others refer to a resource."""
_MADE: Final = ("id", "arn", "email", "selfLink")
"""Those properties that a provider reports after creation."""


_LIKE_AN_ID: Final = re.compile(r".*/.*|[a-z]+-[0-9a-f]{8,}")
"""Names that operators can choose and that look like the id of another resource."""


class PlanIndex:
    """Resources of a plan, by all their identifiers."""

    def __init__(self, resources: Iterable[Resource], others: Iterable[str] = ()) -> None:
        """`others` are names of resources outside the plan, from the settings."""
        self._by_urn: dict[str, Resource] = {}
        self._by_name: dict[str, list[Resource]] = {name: [] for name in others}
        for resource in resources:
            self._by_urn[resource.urn] = resource
            for name in names(resource):
                self._by_name.setdefault(name, []).append(resource)

    def has(self, value: Any, sources: Sequence[str], count: int = 1) -> bool:
        """Return whether a value refers to one of the resources.

        `sources` are the URNs from which the property takes its value. `count` is the number of values in the list
        that a preview does not know; each needs its own source.
        """
        if isinstance(value, str) and plain_link(value) in self._by_name:
            return True
        behind = self.behind(sources)
        if not behind or len(behind) < count:
            return False
        # a plan with inputs alone shows the source of a value, but not the value
        return value is UNKNOWN or all(one.at(key) is None for one in behind for key in _MADE)

    def named(self, value: Any) -> Sequence[Resource]:
        """Return the resources to which a value refers."""
        return self._by_name.get(plain_link(value), ()) if isinstance(value, str) else ()

    def behind(self, sources: Sequence[str]) -> Sequence[Resource]:
        """Return the resources of the plan among the URNs from which a property takes its value."""
        return [self._by_urn[urn] for urn in dict.fromkeys(sources) if urn in self._by_urn]


def names(resource: Resource) -> Iterator[str]:
    """Yield all known identifiers of a resource."""
    for one, path in (
        (one, path) for one in (resource, replace(resource, props=resource.outputs)) for path in _IDENTIFIERS
    ):
        value = one.at(*path)
        if isinstance(value, str) and value and not (path == ("name",) and _LIKE_AN_ID.fullmatch(value)):
            yield plain_link(value)
            if path == ("arn",):
                yield value.rpartition("/")[2]
            if path == ("dnsName",):
                # Route 53 stores the name in lower case
                yield value.lower()
            if path == ("name",) and resource.type == "gcp:compute/instanceTemplate:InstanceTemplate":
                yield f"global/instanceTemplates/{value}"


def plain_link(value: str) -> str:
    """Return a link without host, API version and unique id. Links of the embedded cloud use no TLS."""
    link = value.partition("?")[0]
    return (
        link[link.index("projects/") :] if link.startswith(("https://", "http://")) and "projects/" in link else link
    )
