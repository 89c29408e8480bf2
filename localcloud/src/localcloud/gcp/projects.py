"""IAM, Resource Manager, Secret Manager, keys and DNS, as far as a fleet uses them."""

import base64
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from gpufleet.http_server import Answer
from localcloud.documents import is_document
from localcloud.gcp.errors import ApiError, already_exists, not_found, required
from localcloud.gcp.exchange import Request, json_reply
from localcloud.gcp.locations import PROJECT, PROJECT_NUMBER
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Row, fingerprint, utc_stamp

_P: Final = r"/v1/projects/([^/:]+)"
_Z: Final = r"/dns/v1/projects/([^/]+)/managedZones"
_K: Final = rf"{_P}/locations/([^/]+)/keyRings"
_PATHS: Final = tuple(
    (method, re.compile(pattern), name)
    for method, pattern, name in (
        ("POST", rf"{_P}/serviceAccounts", "iam:accounts_create"),
        ("GET", rf"{_P}/serviceAccounts", "iam:accounts_list"),
        ("GET", rf"{_P}/serviceAccounts/([^/:]+)", "iam:accounts_get"),
        ("PATCH", rf"{_P}/serviceAccounts/([^/:]+)", "iam:accounts_patch"),
        ("DELETE", rf"{_P}/serviceAccounts/([^/:]+)", "iam:accounts_delete"),
        ("POST", rf"{_P}/roles", "iam:roles_create"),
        ("GET", rf"{_P}/roles/([^/:]+)", "iam:roles_get"),
        ("PATCH", rf"{_P}/roles/([^/:]+)", "iam:roles_patch"),
        ("DELETE", rf"{_P}/roles/([^/:]+)", "iam:roles_delete"),
        ("GET", _P, "cloudresourcemanager:project_get"),
        ("POST", rf"{_P}:getIamPolicy", "cloudresourcemanager:policy_get"),
        ("POST", rf"{_P}:setIamPolicy", "cloudresourcemanager:policy_set"),
        ("POST", rf"{_P}/secrets", "secretmanager:secrets_create"),
        ("GET", rf"{_P}/secrets", "secretmanager:secrets_list"),
        ("GET", rf"{_P}/secrets/([^/:]+)", "secretmanager:secrets_get"),
        ("PATCH", rf"{_P}/secrets/([^/:]+)", "secretmanager:secrets_patch"),
        ("DELETE", rf"{_P}/secrets/([^/:]+)", "secretmanager:secrets_delete"),
        ("GET", rf"{_P}/secrets/([^/:]+):getIamPolicy", "secretmanager:secret_policy_get"),
        ("POST", rf"{_P}/secrets/([^/:]+):setIamPolicy", "secretmanager:secret_policy_set"),
        ("POST", rf"{_P}/secrets/([^/:]+):addVersion", "secretmanager:versions_add"),
        ("GET", rf"{_P}/secrets/([^/:]+)/versions/([^/:]+):access", "secretmanager:versions_access"),
        ("GET", rf"{_P}/secrets/([^/:]+)/versions/([^/:]+)", "secretmanager:versions_get"),
        ("POST", _K, "cloudkms:rings_create"),
        ("GET", rf"{_K}/([^/:]+)", "cloudkms:rings_get"),
        ("POST", rf"{_K}/([^/:]+)/cryptoKeys", "cloudkms:keys_create"),
        ("GET", rf"{_K}/([^/:]+)/cryptoKeys/([^/:]+)", "cloudkms:keys_get"),
        ("POST", _Z, "dns:zones_create"),
        ("GET", _Z, "dns:zones_list"),
        ("GET", rf"{_Z}/([^/]+)", "dns:zones_get"),
        ("PATCH", rf"{_Z}/([^/]+)", "dns:zones_patch"),
        ("DELETE", rf"{_Z}/([^/]+)", "dns:zones_delete"),
        ("POST", rf"{_Z}/([^/]+)/rrsets", "dns:records_create"),
        ("GET", rf"{_Z}/([^/]+)/rrsets", "dns:records_list"),
        ("GET", rf"{_Z}/([^/]+)/rrsets/([^/]+)/([^/]+)", "dns:records_get"),
        ("PATCH", rf"{_Z}/([^/]+)/rrsets/([^/]+)/([^/]+)", "dns:records_patch"),
        ("DELETE", rf"{_Z}/([^/]+)/rrsets/([^/]+)/([^/]+)", "dns:records_delete"),
    )
)
_ACCOUNT_ID: Final = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
_ROLE_ID: Final = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_SECRET_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")


class Projects:
    """The resources of the project outside Compute Engine and Cloud Storage."""

    def __init__(self, state: GoogleState) -> None:
        self._state = state
        self._rows: dict[tuple[str, str], Row] = {}
        """By kind and name."""
        self._policies: dict[str, Row] = {}
        self._versions: dict[str, list[bytes]] = {}

    def method_of(self, request: Request) -> str:
        """`secretmanager:versions_access`; "" for other requests."""
        found = self._match(request)
        return found[0] if found else ""

    def _match(self, request: Request) -> tuple[str, list[str]] | None:
        path = unquote(request.path)
        for method, pattern, name in _PATHS:
            found = pattern.fullmatch(path)
            if found is not None and method == request.method:
                return name, list(found.groups())
        return None

    def answer(self, request: Request) -> Answer:
        """Raises ApiError."""
        found = self._match(request)
        assert found is not None
        name, (project, *rest) = found
        if project not in (PROJECT, PROJECT_NUMBER, "-"):
            raise ApiError(403, "forbidden", f"The caller does not have permission on project '{project}'.")
        handler: Callable[..., Row] = getattr(self, f"_{name.partition(':')[2]}")
        return json_reply(handler(request, *rest))

    def _get(self, kind: str, name: str) -> Row:
        found = self._rows.get((kind, name))
        if found is None:
            raise not_found(f"projects/{PROJECT}/{kind}/{name}")
        return found

    def _add(self, kind: str, name: str, row: Row) -> Row:
        if (kind, name) in self._rows:
            raise already_exists(f"projects/{PROJECT}/{kind}/{name}")
        self._rows[kind, name] = row
        return row

    def _all(self, kind: str) -> list[Row]:
        return [row for (of, _), row in self._rows.items() if of == kind]

    def _change(self, kind: str, name: str, body: Row, fixed: tuple[str, ...]) -> Row:
        row = self._get(kind, name)
        row.update({k: v for k, v in body.items() if k not in fixed})
        if "etag" in row:
            row["etag"] = fingerprint(row)
        return row

    # IAM.

    def _accounts_create(self, request: Request) -> Row:
        body = _body(request)
        account_id = str(body.get("accountId", ""))
        if not _ACCOUNT_ID.fullmatch(account_id):
            raise ApiError(
                400,
                "badRequest",
                f"Invalid account id '{account_id}': 6 to 30 lower-case letters, digits and dashes.",
            )
        email = f"{account_id}@{PROJECT}.iam.gserviceaccount.com"
        number = self._state.store.number()
        row: Row = {
            **body.get("serviceAccount", {}),
            "name": f"projects/{PROJECT}/serviceAccounts/{email}",
            "projectId": PROJECT,
            "uniqueId": number,
            "email": email,
            "oauth2ClientId": number,
        }
        row["etag"] = fingerprint(row)
        return self._add("serviceAccounts", email, row)

    def _account_email(self, name: str) -> str:
        for row in self._all("serviceAccounts"):
            if row["uniqueId"] == name:
                return str(row["email"])
        return name

    def _accounts_list(self, request: Request) -> Row:
        return {"accounts": self._all("serviceAccounts")}

    def _accounts_get(self, request: Request, name: str) -> Row:
        return self._get("serviceAccounts", self._account_email(name))

    def _accounts_patch(self, request: Request, name: str) -> Row:
        body = _body(request)
        changed = body.get("serviceAccount", body)
        return self._change(
            "serviceAccounts", self._account_email(name), changed, ("name", "email", "uniqueId", "etag")
        )

    def _accounts_delete(self, request: Request, name: str) -> Row:
        email = self._account_email(name)
        self._get("serviceAccounts", email)
        del self._rows["serviceAccounts", email]
        return {}

    def _roles_create(self, request: Request) -> Row:
        body = _body(request)
        role_id = str(body.get("roleId", ""))
        if not _ROLE_ID.fullmatch(role_id):
            raise ApiError(400, "badRequest", f"The role_id '{role_id}' must be 3 to 64 letters, digits, _ and dots.")
        role: Row = {"stage": "ALPHA", **body.get("role", {}), "name": f"projects/{PROJECT}/roles/{role_id}"}
        role["etag"] = fingerprint(role)
        return self._add("roles", role_id, role)

    def _roles_get(self, request: Request, name: str) -> Row:
        return self._get("roles", name)

    def _roles_patch(self, request: Request, name: str) -> Row:
        return self._change("roles", name, _body(request), ("name", "etag"))

    def _roles_delete(self, request: Request, name: str) -> Row:
        self._get("roles", name)
        return self._rows.pop(("roles", name)) | {"deleted": True}

    # Policies.

    def _project_get(self, request: Request) -> Row:
        return {"projectId": PROJECT, "projectNumber": PROJECT_NUMBER, "name": PROJECT, "lifecycleState": "ACTIVE"}

    def _policy(self, of: str) -> Row:
        found = self._policies.get(of, {"version": 1, "bindings": []})
        return {**found, "etag": fingerprint(found)}

    def _set_policy(self, of: str, request: Request) -> Row:
        policy = _body(request).get("policy")
        if not is_document(policy):
            raise required("policy")
        if policy.get("etag") not in (None, "", self._policy(of)["etag"]):
            raise ApiError(
                409, "aborted", "There were concurrent policy changes. Please retry the whole read-modify-write."
            )
        for binding in policy.get("bindings", ()):
            if not binding.get("role") or not str(binding["role"]).startswith(
                ("roles/", "projects/", "organizations/")
            ):
                raise ApiError(400, "badRequest", f"Invalid argument: role {binding.get('role')!r}.")
            self._check_role(str(binding["role"]))
        self._policies[of] = {k: v for k, v in policy.items() if k != "etag"}
        return self._policy(of)

    def _check_role(self, role: str) -> None:
        if role.startswith(f"projects/{PROJECT}/roles/"):
            name = role.rpartition("/")[2]
            if ("roles", name) not in self._rows:
                raise ApiError(400, "badRequest", f"Role ({role}) does not exist in the resource's hierarchy.")

    def _policy_get(self, request: Request) -> Row:
        return self._policy("project")

    def _policy_set(self, request: Request) -> Row:
        return self._set_policy("project", request)

    # Secrets.

    def _secrets_create(self, request: Request) -> Row:
        name = request.query.get("secretId", "")
        if not _SECRET_ID.fullmatch(name):
            raise ApiError(
                400, "badRequest", f"The provided Secret ID [{name}] does not match [[A-Za-z0-9-_]{{1,255}}]."
            )
        body: Row = request.json() or {}
        row: Row = {
            **body,
            "name": f"projects/{PROJECT_NUMBER}/secrets/{name}",
            "createTime": utc_stamp(self._state.now()),
        }
        row["etag"] = fingerprint(row)
        return self._add("secrets", name, row)

    def _secrets_list(self, request: Request) -> Row:
        return {"secrets": self._all("secrets"), "totalSize": len(self._all("secrets"))}

    def _secrets_get(self, request: Request, name: str) -> Row:
        return self._get("secrets", name)

    def _secrets_patch(self, request: Request, name: str) -> Row:
        return self._change("secrets", name, _body(request), ("name", "createTime", "etag"))

    def _secrets_delete(self, request: Request, name: str) -> Row:
        self._get("secrets", name)
        del self._rows["secrets", name]
        self._versions.pop(name, None)
        self._policies.pop(f"secrets/{name}", None)
        return {}

    def _secret_policy_get(self, request: Request, name: str) -> Row:
        self._get("secrets", name)
        return self._policy(f"secrets/{name}")

    def _secret_policy_set(self, request: Request, name: str) -> Row:
        self._get("secrets", name)
        return self._set_policy(f"secrets/{name}", request)

    def _versions_add(self, request: Request, name: str) -> Row:
        self._get("secrets", name)
        payload = _body(request).get("payload", {}).get("data")
        if payload is None:
            raise required("payload")
        self._versions.setdefault(name, []).append(base64.b64decode(payload))
        return self._versions_get(request, name, "latest")

    def _version(self, name: str, number: str) -> tuple[int, bytes]:
        self._get("secrets", name)
        held = self._versions.get(name, [])
        index = len(held) if number == "latest" else int(number) if number.isdigit() else 0
        if not 1 <= index <= len(held):
            raise not_found(f"projects/{PROJECT_NUMBER}/secrets/{name}/versions/{number}")
        return index, held[index - 1]

    def _versions_get(self, request: Request, name: str, number: str) -> Row:
        index, _ = self._version(name, number)
        return {"name": f"projects/{PROJECT_NUMBER}/secrets/{name}/versions/{index}", "state": "ENABLED"}

    def _versions_access(self, request: Request, name: str, number: str) -> Row:
        index, value = self._version(name, number)
        return {
            "name": f"projects/{PROJECT_NUMBER}/secrets/{name}/versions/{index}",
            "payload": {"data": base64.b64encode(value).decode()},
        }

    # Keys: they have a name only, nothing is encrypted with them.

    def _rings_create(self, request: Request, place: str) -> Row:
        ring = request.query.get("keyRingId") or ""
        if not ring:
            raise required("keyRingId")
        name = f"{place}/{ring}"
        return self._add("keyRings", name, self._key_row(f"locations/{place}/keyRings/{ring}"))

    def _rings_get(self, request: Request, place: str, ring: str) -> Row:
        return self._get("keyRings", f"{place}/{ring}")

    def _keys_create(self, request: Request, place: str, ring: str) -> Row:
        self._get("keyRings", f"{place}/{ring}")
        key = request.query.get("cryptoKeyId") or ""
        body: Row = request.json() or {}
        if not key:
            raise required("cryptoKeyId")
        if ("rotationPeriod" in body) != ("nextRotationTime" in body):
            raise ApiError(400, "badRequest", "rotation_period and next_rotation_time must be set together.")
        row = self._key_row(f"locations/{place}/keyRings/{ring}/cryptoKeys/{key}") | body
        return self._add("cryptoKeys", f"{place}/{ring}/{key}", row)

    def _keys_get(self, request: Request, place: str, ring: str, key: str) -> Row:
        return self._get("cryptoKeys", f"{place}/{ring}/{key}")

    def _key_row(self, name: str) -> Row:
        return {"name": f"projects/{PROJECT}/{name}", "createTime": utc_stamp(self._state.now())}

    # DNS.

    def _zones_create(self, request: Request) -> Row:
        body = _body(request)
        for name in ("name", "dnsName", "description"):
            if not body.get(name) and not (name == "description" and name in body):
                raise required(f"entity.managedZone.{name}")
        if not str(body["dnsName"]).endswith("."):
            raise ApiError(400, "invalid", f"Invalid value for 'entity.managedZone.dnsName': '{body['dnsName']}'")
        row: Row = {
            "visibility": "public",
            **body,
            "kind": "dns#managedZone",
            "id": self._state.store.number(),
            "creationTime": utc_stamp(self._state.now()),
            "nameServers": ["ns-gcp-private.googledomains.com."],
        }
        return self._add("managedZones", str(body["name"]), row)

    def _zones_list(self, request: Request) -> Row:
        return {"kind": "dns#managedZonesListResponse", "managedZones": self._all("managedZones")}

    def _zones_get(self, request: Request, name: str) -> Row:
        return self._get("managedZones", name)

    def _zones_patch(self, request: Request, name: str) -> Row:
        row = self._change("managedZones", name, _body(request), ("name", "dnsName", "id", "kind"))
        return {
            "kind": "dns#operation",
            "id": self._state.store.number(),
            "status": "done",
            "zoneContext": {"newValue": row},
        }

    def _zones_delete(self, request: Request, name: str) -> Row:
        self._get("managedZones", name)
        if self._all(f"rrsets/{name}"):
            raise ApiError(
                400, "containerNotEmpty", f"The resource named '{name}' cannot be deleted: it is not empty."
            )
        del self._rows["managedZones", name]
        return {}

    def _records_create(self, request: Request, zone: str) -> Row:
        row: Row = {"kind": "dns#resourceRecordSet", "ttl": 300, **_body(request)}
        suffix = str(self._get("managedZones", zone)["dnsName"])
        if not str(row.get("name", "")).endswith(suffix):
            raise ApiError(
                400, "invalid", f"Invalid value for 'entity.rrset.name': '{row.get('name')}' is not in {suffix}"
            )
        return self._add(f"rrsets/{zone}", f"{row['name']}/{row['type']}", row)

    def _records_list(self, request: Request, zone: str) -> Row:
        self._get("managedZones", zone)
        return {"kind": "dns#resourceRecordSetsListResponse", "rrsets": self._all(f"rrsets/{zone}")}

    def _records_get(self, request: Request, zone: str, name: str, kind: str) -> Row:
        return self._get(f"rrsets/{zone}", f"{name}/{kind}")

    def _records_patch(self, request: Request, zone: str, name: str, kind: str) -> Row:
        return self._change(f"rrsets/{zone}", f"{name}/{kind}", _body(request), ("name", "type", "kind"))

    def _records_delete(self, request: Request, zone: str, name: str, kind: str) -> Row:
        self._get(f"rrsets/{zone}", f"{name}/{kind}")
        del self._rows[f"rrsets/{zone}", f"{name}/{kind}"]
        return {}


def _body(request: Request) -> Row:
    found: Any = request.json()
    if not is_document(found):
        raise ApiError(400, "badRequest", "Request contains an invalid argument: the body must be a JSON object.")
    return found
