"""Compute Engine's metadata server, one on the address of each instance."""

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qs

from gpufleet.domain.parsed import is_list
from gpufleet.http_server import Answer, HttpRequest, HttpServer
from localcloud.documents import is_document
from localcloud.faults import Silence
from localcloud.gcp.locations import METADATA_PORT, PROJECT, PROJECT_NUMBER
from localcloud.same_user import LIMITS, refused

_TOKEN_LASTS: Final = timedelta(hours=1)
_RENEW_BEFORE: Final = timedelta(minutes=5)
_LONGEST_WAIT_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """The present metadata of one instance."""

    row: dict[str, Any]
    """Its resource."""
    zone: str
    preempted: bool
    maintenance: bool
    now: datetime


def tree(facts: InstanceFacts) -> dict[str, Any]:
    """Everything below /computeMetadata/v1/, as nested maps; tokens are not in it."""
    row = facts.row
    interface: dict[str, Any] = row["networkInterfaces"][0]
    host = f"{row['name']}.{facts.zone}.c.{PROJECT}.internal"
    accounts: dict[str, Any] = {}
    for account in row.get("serviceAccounts", ()):
        known = {"aliases": ["default"], "email": account["email"], "scopes": account.get("scopes", [])}
        accounts[account["email"]] = accounts["default"] = known
    scheduling: dict[str, Any] = row["scheduling"]
    return {
        "instance": {
            "attributes": {item["key"]: item.get("value", "") for item in row["metadata"].get("items", ())},
            "cpuPlatform": row["cpuPlatform"],
            "description": row.get("description", ""),
            "disks": [
                {
                    "deviceName": disk["deviceName"],
                    "index": disk["index"],
                    "interface": disk["interface"],
                    "mode": disk["mode"],
                    "type": "LOCAL-SSD" if disk["type"] == "SCRATCH" else "PERSISTENT-BALANCED",
                }
                for disk in row["disks"]
            ],
            "hostname": host,
            "id": int(row["id"]),
            "image": next((d.get("initializeParams", {}).get("sourceImage", "") for d in row["disks"]), ""),
            "machineType": f"projects/{PROJECT_NUMBER}/machineTypes/{row['machineType'].rpartition('/')[2]}",
            "maintenanceEvent": "TERMINATE_ON_HOST_MAINTENANCE" if facts.maintenance else "NONE",
            "name": row["name"],
            "networkInterfaces": [
                {
                    "ip": interface["networkIP"],
                    "mac": "42:01:" + ":".join(f"{int(part):02x}" for part in interface["networkIP"].split(".")),
                    "network": f"projects/{PROJECT_NUMBER}/networks/{interface['network'].rpartition('/')[2]}",
                    "accessConfigs": [],
                }
            ],
            "preempted": "TRUE" if facts.preempted else "FALSE",
            "scheduling": {
                "automaticRestart": str(scheduling["automaticRestart"]).upper(),
                "onHostMaintenance": scheduling["onHostMaintenance"],
                "preemptible": str(bool(scheduling["preemptible"])).upper(),
            },
            "serviceAccounts": accounts,
            "tags": row.get("tags", {}).get("items", []),
            "zone": f"projects/{PROJECT_NUMBER}/zones/{facts.zone}",
        },
        "project": {
            "attributes": {},
            "numericProjectId": int(PROJECT_NUMBER),
            "projectId": PROJECT,
        },
    }


def look_up(found: Any, path: str) -> Any:
    """A value or a folder by its path in kebab case; None for an unknown path."""
    at = found
    parts = [part for part in path.split("/") if part]
    for index, part in enumerate(parts):
        if is_list(at) and part.isdigit() and int(part) < len(at):
            at = at[int(part)]
            continue
        if not is_document(at):
            return None
        # keys of attributes and accounts are arbitrary; all others are camel case in JSON and kebab case in paths
        theirs = bool(index) and parts[index - 1] in ("attributes", "service-accounts")
        name = part if theirs else _camel(part)
        if name not in at or (not theirs and _dashed(name) != part):
            return None
        at = at[name]
    return at


def _camel(word: str) -> str:
    return re.sub(r"-(\w)", lambda found: found[1].upper(), word)


def _dashed(word: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"-{found[1].lower()}", word)


def as_text(value: Any, path: str) -> str:
    """A leaf as text, a folder as a list of its names."""
    plain = path.rstrip("/").endswith(("attributes", "service-accounts"))
    if is_document(value):
        names = [
            (name if plain else _dashed(name)) + ("/" if isinstance(inner, dict | list) and name != "scopes" else "")
            for name, inner in sorted(value.items())
        ]
        return "".join(f"{name}\n" for name in names)
    if is_list(value):
        if all(isinstance(one, str) for one in value):
            return json.dumps(value) if path.rstrip("/").endswith("tags") else "".join(f"{one}\n" for one in value)
        return "".join(f"{number}/\n" for number in range(len(value)))
    return str(value)


@dataclass(slots=True)
class _Session:
    """The present token of one instance."""

    token: str = ""
    until: datetime | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False


class GoogleMetadataServer:
    """The service of one instance. Raises OSError when its address is taken."""

    def __init__(
        self,
        address: str,
        facts: Callable[[], InstanceFacts],
        known: Callable[[str, str], None],
        is_silent: Callable[[], bool],
    ) -> None:
        """`known(token, principal)` is called with all tokens that the server issues."""
        self._silence = Silence(is_silent)
        self._facts = facts
        self._known = known
        self._session = _Session()
        server = HttpServer((address, METADATA_PORT), self._answer, limits=LIMITS)
        self._server = server.start(f"metadata-{address}", poll_s=1.0)

    def close(self) -> None:
        """Stop serving and free the address."""
        self._silence.end()
        with self._session.changed:
            self._session.closed = True
            self._session.changed.notify_all()
        self._server.stop()

    def wake(self) -> None:
        """Notify waiting requests of a change."""
        with self._session.changed:
            self._session.changed.notify_all()

    def _answer(self, request: HttpRequest) -> Answer | None:
        if self._silence.holds():
            return None
        return refused(request, "metadata server") or self._get(request)

    def _get(self, request: HttpRequest) -> Answer:
        """GET with the header `Metadata-Flavor: Google`; 403 without."""
        if request.method != "GET":
            return _answer(405, "method not allowed\n")
        if request.header("X-Forwarded-For"):
            return _answer(403, "X-Forwarded-For is not allowed\n")
        if request.path in ("", "/"):
            return _answer(200, "computeMetadata/\n")
        if not request.path.startswith("/computeMetadata/v1"):
            return _answer(404, "not found\n")
        if request.header("Metadata-Flavor") != "Google":
            return _answer(403, "Missing Metadata-Flavor:Google header.\n")
        query = {name: values[-1] for name, values in parse_qs(request.query, keep_blank_values=True).items()}
        return _answer(*self._value(request.path.removeprefix("/computeMetadata/v1"), query))

    def _value(self, path: str, query: dict[str, str]) -> tuple[int, str, str]:
        account = re.fullmatch(r"/instance/service-accounts/([^/]+)/(token|identity)", path)
        if account is not None:
            return self._credential(account[1], account[2], query)
        if query.get("wait_for_change", "").lower() == "true":
            self._wait(path, query)
        return self._look(path, query)

    def _look(self, path: str, query: dict[str, str]) -> tuple[int, str, str]:
        found = look_up(tree(self._facts()), path)
        if found is None:
            return 404, "not found\n", "text/html"
        folder = isinstance(found, dict | list)
        recursive = query.get("recursive", "").lower() == "true"
        if recursive and query.get("alt") != "text" or query.get("alt") == "json":
            return 200, json.dumps(found), "application/json"
        if folder and not path.endswith("/") and not path.endswith(("scopes", "aliases", "tags")):
            path = f"{path}/"
        return 200, as_text(found, path), "application/text"

    def _wait(self, path: str, query: dict[str, str]) -> None:
        """Wait until the value differs from that of `last_etag`, or from the present one."""
        seconds = query.get("timeout_sec", "")
        until = time.monotonic() + min(float(seconds) if seconds.isdigit() else _LONGEST_WAIT_S, _LONGEST_WAIT_S)
        known = query.get("last_etag") or etag(self._look(path, {"recursive": "true"})[1])
        with self._session.changed:
            while not self._session.closed and time.monotonic() < until:
                if etag(self._look(path, {"recursive": "true"})[1]) != known:
                    return
                self._session.changed.wait(min(1.0, max(0.0, until - time.monotonic())))

    def _credential(self, email: str, what: str, query: dict[str, str]) -> tuple[int, str, str]:
        facts = self._facts()
        accounts = tree(facts)["instance"]["serviceAccounts"]
        if email not in accounts:
            return 404, "not found\n", "text/html"
        if what == "identity":
            if not query.get("audience"):
                return 400, "non-empty audience parameter required\n", "text/html"
            return 200, f"local.{secrets.token_urlsafe(20)}.{secrets.token_urlsafe(10)}", "text/html"
        session = self._session
        if session.until is None or facts.now >= session.until - _RENEW_BEFORE:
            session.token = f"ya29.local-{secrets.token_urlsafe(40)}"
            session.until = facts.now + _TOKEN_LASTS
            self._known(session.token, f"{accounts[email]['email']}/{facts.row['name']}")
        left = int((session.until - facts.now).total_seconds())
        body = {"access_token": session.token, "expires_in": left, "token_type": "Bearer"}
        return 200, json.dumps(body), "application/json"


def etag(text: str) -> str:
    """A digest of the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _answer(status: int, text: str, kind: str = "text/html") -> Answer:
    headers = {"Metadata-Flavor": "Google", "ETag": etag(text)}
    return Answer(status=status, body=text, content_type=kind, headers=headers)
