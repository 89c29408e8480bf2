"""The instance metadata service (IMDSv2), one server on the address of each instance."""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

from gpufleet.http_server import Answer, HttpRequest, HttpServer, Routes
from localcloud.addresses import ACCOUNT, METADATA_PORT, REGION
from localcloud.faults import Silence
from localcloud.same_user import LIMITS, refused

_TOKEN_SECONDS: Final = 21600
_CREDENTIALS_LAST: Final = timedelta(hours=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """The present metadata of one instance."""

    instance_id: str
    machine_type: str
    zone: str
    address: str
    image_id: str
    hostname: str
    lifecycle: str
    """spot or on-demand."""

    target_state: str
    """The lifecycle state that its group wants, such as `InService` or `Terminated`; "" without a group."""

    interruption: datetime | None
    rebalance: datetime | None
    role: str | None
    profile_arn: str | None
    tags: dict[str, str]
    user_data: bytes | None
    launched: datetime
    now: datetime


def document(facts: InstanceFacts) -> dict[str, Any]:
    """The instance identity document."""
    return {
        "accountId": ACCOUNT,
        "architecture": "x86_64",
        "availabilityZone": facts.zone,
        "imageId": facts.image_id,
        "instanceId": facts.instance_id,
        "instanceType": facts.machine_type,
        "pendingTime": _stamp(facts.launched),
        "privateIp": facts.address,
        "region": REGION,
        "version": "2017-09-30",
    }


def tree(facts: InstanceFacts) -> dict[str, str]:
    """Every leaf under /latest/, by path."""
    found = {
        "meta-data/instance-id": facts.instance_id,
        "meta-data/instance-type": facts.machine_type,
        "meta-data/instance-life-cycle": facts.lifecycle,
        "meta-data/ami-id": facts.image_id,
        "meta-data/local-ipv4": facts.address,
        "meta-data/hostname": facts.hostname,
        "meta-data/local-hostname": facts.hostname,
        "meta-data/placement/availability-zone": facts.zone,
        "meta-data/placement/region": REGION,
        "meta-data/services/domain": "amazonaws.com",
        "meta-data/services/partition": "aws",
        "dynamic/instance-identity/document": json.dumps(document(facts), indent=2),
    }
    if facts.target_state:
        found["meta-data/autoscaling/target-lifecycle-state"] = facts.target_state
    if facts.interruption is not None:
        moment = _stamp(facts.interruption)
        found["meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": moment})
        found["meta-data/spot/termination-time"] = moment
    if facts.rebalance is not None:
        found["meta-data/events/recommendations/rebalance"] = json.dumps({"noticeTime": _stamp(facts.rebalance)})
    if facts.profile_arn is not None:
        info = {"Code": "Success", "LastUpdated": _stamp(facts.launched), "InstanceProfileArn": facts.profile_arn}
        found["meta-data/iam/info"] = json.dumps(info)
    for key, value in facts.tags.items():
        found[f"meta-data/tags/instance/{key}"] = value
    if facts.user_data is not None:
        found["user-data"] = facts.user_data.decode("utf-8", "replace")
    return found


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def listing(found: dict[str, str], path: str) -> str | None:
    """The names below a folder, as the service lists them; None when there is no such folder."""
    prefix = f"{path.rstrip('/')}/" if path.strip("/") else ""
    names: dict[str, None] = {}
    for leaf in found:
        if leaf.startswith(prefix):
            name, slash, _ = leaf.removeprefix(prefix).partition("/")
            names[name + slash] = None
    return "\n".join(sorted(names)) if names else None


@dataclass(slots=True)
class _Session:
    """Tokens and credentials that one instance holds."""

    tokens: dict[str, float] = field(default_factory=dict[str, float])
    credentials: dict[str, Any] | None = None
    renew_at: datetime | None = None


class MetadataServer:
    """The service of one instance. Raises OSError when its address is taken."""

    def __init__(
        self,
        address: str,
        facts: Callable[[], InstanceFacts | None],
        known: Callable[[str, str, str], None],
        is_silent: Callable[[], bool],
    ) -> None:
        """`known(access_key, secret_key, principal)` is called with all credentials that the service issues."""
        self._silence = Silence(is_silent)
        self._facts = facts
        self._known = known
        self._session = _Session()
        self._routes = Routes({"PUT /latest/api/token": self._put_token, "GET *": self._get})
        server = HttpServer((address, METADATA_PORT), self._answer, limits=LIMITS)
        self._server = server.start(f"metadata-{address}", poll_s=1.0)

    def close(self) -> None:
        """Stop serving and free the address."""
        self._silence.end()
        self._server.stop()

    def _answer(self, request: HttpRequest) -> Answer | None:
        if self._silence.holds():
            return None
        return refused(request, "instance metadata") or self._routes(request)

    def _put_token(self, request: HttpRequest) -> Answer:
        lifetime = request.header("X-aws-ec2-metadata-token-ttl-seconds") or ""
        if request.header("X-Forwarded-For"):
            return Answer(status=HTTPStatus.FORBIDDEN)
        if not lifetime.isdigit() or not 1 <= int(lifetime) <= _TOKEN_SECONDS:
            return Answer(status=HTTPStatus.BAD_REQUEST)
        token = secrets.token_urlsafe(40)
        self._session.tokens[token] = time.monotonic() + int(lifetime)
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": lifetime}
        return Answer(body=token, content_type="text/plain", headers=headers)

    def _get(self, request: HttpRequest) -> Answer:
        """Needs a token; 401 without, as IMDSv2 is required."""
        token = request.header("X-aws-ec2-metadata-token") or ""
        if self._session.tokens.get(token, 0.0) < time.monotonic():
            return Answer(status=HTTPStatus.UNAUTHORIZED)
        facts = self._facts()
        if facts is None or not request.path.startswith("/latest/"):
            return Answer(status=HTTPStatus.NOT_FOUND)
        found = tree(facts)
        if facts.role is not None:
            folder = "meta-data/iam/security-credentials"
            found[f"{folder}/{facts.role}"] = json.dumps(self._credentials(facts), indent=2)
        asked = request.path.removeprefix("/latest/")
        leaf = found.get(asked.rstrip("/"))
        text = leaf if leaf is not None else listing(found, asked)
        return Answer(status=HTTPStatus.NOT_FOUND) if text is None else Answer(body=text, content_type="text/plain")

    def _credentials(self, facts: InstanceFacts) -> dict[str, Any]:
        session = self._session
        if session.credentials is None or session.renew_at is None or facts.now >= session.renew_at:
            # a new key pair each time; the previous pair stays valid for clients that still use it
            key, secret_key = f"ASIALOCAL{secrets.token_hex(6).upper()}", secrets.token_urlsafe(30)
            self._known(key, secret_key, f"{facts.role}/{facts.instance_id}")
            session.renew_at = facts.now + _CREDENTIALS_LAST / 2
            session.credentials = {
                "Code": "Success",
                "LastUpdated": _stamp(facts.now),
                "Type": "AWS-HMAC",
                "AccessKeyId": key,
                "SecretAccessKey": secret_key,
                "Token": secrets.token_urlsafe(30),
                "Expiration": _stamp(facts.now + _CREDENTIALS_LAST),
            }
        return session.credentials
