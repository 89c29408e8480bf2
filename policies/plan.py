"""Whether what a property names is in the plan: by id, name, ARN, link or address, or by where its value is from."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from policies.resource import UNKNOWN, Resource

_SAYS: Final[tuple[tuple[str | int, ...], ...]] = (
    *(("id",), ("name",), ("arn",), ("email",), ("selfLink",), ("selfLinkUnique",)),
    *(("bucket",), ("zoneId",), ("dnsName",), ("privateIp",), ("ipAddress",)),
    ("networkInterfaces", 0, "networkIp"),
)
"""Properties by which others name a resource."""
_MADE: Final = ("id", "arn", "email", "selfLink")
"""Of them: what a provider reports of a resource once it was made."""


_LIKE_AN_ID: Final = re.compile(r".*/.*|[a-z]+-[0-9a-f]{8,}")
"""Names that people may give to what they make, and that read as the id of something else."""


class Made:
    """Resources of a plan, by all that names them."""

    def __init__(self, resources: Iterable[Resource], others: Iterable[str] = ()) -> None:
        """`others`: names that stand for resources outside the plan, which the settings give."""
        self._by_urn: dict[str, Resource] = {}
        self._by_name: dict[str, list[Resource]] = {name: [] for name in others}
        for resource in resources:
            self._by_urn[resource.urn] = resource
            for name in names(resource):
                self._by_name.setdefault(name, []).append(resource)

    def has(self, value: Any, sources: Sequence[str], count: int = 1) -> bool:
        """Whether a value names one of them. `sources`: the URNs that its property takes its value from; `count`:
        how many values of one list a preview does not know, each of which needs a source of its own.
        """
        if isinstance(value, str) and plain_link(value) in self._by_name:
            return True
        behind = self.behind(sources)
        if not behind or len(behind) < count:
            return False
        # a plan of inputs alone tells where a value comes from and not what it is
        return value is UNKNOWN or all(one.at(key) is None for one in behind for key in _MADE)

    def named(self, value: Any) -> Sequence[Resource]:
        """Those that a value names."""
        return self._by_name.get(plain_link(value), ()) if isinstance(value, str) else ()

    def behind(self, sources: Sequence[str]) -> Sequence[Resource]:
        """Those of the plan among the URNs that a property takes its value from."""
        return [self._by_urn[urn] for urn in dict.fromkeys(sources) if urn in self._by_urn]


def names(resource: Resource) -> Iterator[str]:
    """All that identifies a resource, as far as it is known."""
    for one, path in ((one, path) for one in (resource, replace(resource, props=resource.outputs)) for path in _SAYS):
        value = one.at(*path)
        if isinstance(value, str) and value and not (path == ("name",) and _LIKE_AN_ID.fullmatch(value)):
            yield plain_link(value)
            if path == ("arn",):
                yield value.rpartition("/")[2]
            if path == ("dnsName",):
                # as Route 53 keeps it
                yield value.lower()
            if path == ("name",) and resource.type == "gcp:compute/instanceTemplate:InstanceTemplate":
                yield f"global/instanceTemplates/{value}"


def plain_link(value: str) -> str:
    """A link without host, version of the API and unique id; the embedded cloud's have no TLS."""
    link = value.partition("?")[0]
    return (
        link[link.index("projects/") :] if link.startswith(("https://", "http://")) and "projects/" in link else link
    )
