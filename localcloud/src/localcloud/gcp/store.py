"""The resources of the project, as the APIs show them."""

import base64
import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from localcloud.gcp.errors import already_exists, not_found
from localcloud.gcp.locations import PROJECT

Row = dict[str, Any]
_PACIFIC: Final = ZoneInfo("America/Los_Angeles")
_KINDS: Final = {
    "networks": "network",
    "subnetworks": "subnetwork",
    "routers": "router",
    "firewalls": "firewall",
    "addresses": "address",
    "disks": "disk",
    "instances": "instance",
    "reservations": "reservation",
    "healthChecks": "healthCheck",
    "resourcePolicies": "resourcePolicy",
}


@dataclass(frozen=True, slots=True)
class Key:
    """The location of a resource: `zones/us-central1-a`, `instances`, its name."""

    scope: str
    """`global`, `regions/R` or `zones/Z`."""
    collection: str
    name: str

    @property
    def path(self) -> str:
        return f"projects/{PROJECT}/{self.scope}/{self.collection}/{self.name}"


@dataclass(slots=True, kw_only=True)
class Store:
    """All resources, in order of creation."""

    base_url: str
    _rows: dict[Key, Row] = field(default_factory=dict[Key, Row])
    _numbers: random.Random = field(default_factory=random.Random)

    def url(self, path: str) -> str:
        """The full link of `projects/…`."""
        return f"{self.base_url}/compute/v1/{path}"

    def number(self) -> str:
        """A new numeric id."""
        return str(self._numbers.randrange(10**18, 9 * 10**18))

    def add(self, key: Key, row: Mapping[str, Any], now: datetime) -> Row:
        """Add a resource. Raises ApiError when the name exists."""
        if key in self._rows:
            raise already_exists(key.path)
        kind = _KINDS.get(key.collection, key.collection.removesuffix("s"))
        made: Row = {
            **row,
            "kind": f"compute#{kind}",
            "id": self.number(),
            "creationTimestamp": stamp(now),
            "name": key.name,
            "selfLink": self.url(key.path),
        }
        place, _, where = key.scope.partition("/")
        if where:
            made[place.removesuffix("s")] = self.url(f"projects/{PROJECT}/{key.scope}")
        self._rows[key] = made
        return made

    def get(self, key: Key) -> Row:
        """Raises ApiError when it does not exist."""
        found = self._rows.get(key)
        if found is None:
            raise not_found(key.path)
        return found

    def find(self, key: Key) -> Row | None:
        return self._rows.get(key)

    def remove(self, key: Key) -> None:
        """Remove a resource. Raises ApiError when it does not exist."""
        self.get(key)
        del self._rows[key]

    def all(self, collection: str, scope: str | None = None) -> Iterator[tuple[Key, Row]]:
        """The resources of one scope, or of all."""
        for key, row in list(self._rows.items()):
            if key.collection == collection and scope in (None, key.scope):
                yield key, row

    def users(self, link: str, collections: tuple[str, ...]) -> Iterator[tuple[Key, Row]]:
        """Resources that refer to this one."""
        wanted = f'{path_of(link)}"'
        for key, row in list(self._rows.items()):
            if key.collection in collections and wanted in json.dumps({**row, "selfLink": ""}):
                yield key, row


def stamp(moment: datetime) -> str:
    """A time as Compute Engine writes it."""
    return moment.astimezone(_PACIFIC).isoformat(timespec="milliseconds")


def utc_stamp(moment: datetime) -> str:
    """A time as the other APIs write it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def path_of(link: str) -> str:
    """`projects/…` of a link, which may be a full URL or start at `projects/` or at the scope."""
    _, found, rest = link.partition("/compute/v1/")
    path = rest if found else link.lstrip("/")
    return path if path.startswith("projects/") else f"projects/{PROJECT}/{path}"


def key_of(link: str) -> Key | None:
    """The key of a link; None if it is not the link of a resource."""
    parts = path_of(link).split("/")
    if len(parts) == 5 and parts[2] == "global":
        return Key("global", parts[3], parts[4])
    if len(parts) == 6:
        return Key(f"{parts[2]}/{parts[3]}", parts[4], parts[5])
    return None


def last(link: str) -> str:
    """The name at the end of a link."""
    return link.rstrip("/").rpartition("/")[2]


def fingerprint(value: Any) -> str:
    """A digest of the resource."""
    return base64.b64encode(hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()[:8]).decode()
