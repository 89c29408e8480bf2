"""REST clients of the embedded Google Cloud. They connect to loopback only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from localcloud.documents import Document, inner, items
from localcloud.provider.errors import ProviderError
from localcloud.provider.session import (
    Cloud,
    NotLocalError,
    Session,
    Settings,
    decode_settings,
    require_loopback,
    token_of,
)

_ENDPOINTS = ("GPUFLEET_COMPUTE_ENDPOINT", "STORAGE_EMULATOR_HOST", "GPUFLEET_SECRETMANAGER_ENDPOINT")
_BASES = {
    "compute": ("GPUFLEET_COMPUTE_ENDPOINT", "/compute/v1/"),
    "dns": ("GPUFLEET_COMPUTE_ENDPOINT", "/dns/v1/"),
    "iam": ("GPUFLEET_COMPUTE_ENDPOINT", "/v1/"),
    "resources": ("GPUFLEET_COMPUTE_ENDPOINT", "/v1/"),
    "secrets": ("GPUFLEET_SECRETMANAGER_ENDPOINT", "/v1/"),
    "storage": ("STORAGE_EMULATOR_HOST", "/storage/v1/"),
    "upload": ("STORAGE_EMULATOR_HOST", "/upload/storage/v1/"),
}
_KNOWN_SETTINGS = frozenset(
    {
        "addPulumiAttributionLabel",
        "defaultLabels",
        "disableGlobalProjectWarning",
        "project",
        "region",
        "version",
        "zone",
    }
)
_TIMEOUT_S = 60.0
_NOT_FOUND = 404


class GoogleError(ProviderError):
    """An error response, with the message of Google's Go client."""

    def __init__(self, status: int, message: str, reason: str) -> None:
        tail = f", {reason}" if reason else ""
        super().__init__(f"googleapi: Error {status}: {message}{tail}")
        self.status = status
        self.reason = reason

    def during(self, what: str) -> GoogleError:
        """The same error, prefixed with the failed action."""
        other = GoogleError(self.status, "", self.reason)
        other.args = (f"{what}: {self}",)
        return other


class RestClient:
    """One service of the embedded cloud. Safe to use from many threads."""

    def __init__(self, base: str, http: httpx.Client) -> None:
        self._base = base
        self._http = http

    def call(  # noqa: PLR0913
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        parameters: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """One call and its JSON answer.

        Raises:
            GoogleError: the cloud refused.
            ProviderError: the cloud did not answer.
        """
        try:
            answer = self._http.request(
                method, f"{self._base}{path}", json=body, content=content, headers=headers, params=parameters
            )
            if answer.is_success:
                return answer.json() if answer.content else {}
        except (httpx.HTTPError, ValueError) as error:
            raise ProviderError(f"the embedded cloud did not answer {method} {path}: {error}") from error
        raise _refusal(answer)

    def find(self, path: str) -> dict[str, Any] | None:
        """The resource at a path, or None. Raises as `call`."""
        try:
            return self.call("GET", path)
        except GoogleError as error:
            if error.status == _NOT_FOUND:
                return None
            raise


def _refusal(answer: httpx.Response) -> GoogleError:
    try:
        detail: Document = answer.json()["error"]
        causes = items(detail, "errors") or items(detail, "details")
        return GoogleError(
            answer.status_code,
            str(detail["message"]),
            str(causes[0].get("reason", "")) if causes else "",
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return GoogleError(answer.status_code, answer.text[:300], "")


def read_settings(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Settings from the provider's arguments and the environment.

    Raises:
        NotLocalError: an endpoint is missing, or is not loopback.
        ValueError: a setting that only a real project can honour, or no project.
    """
    given = decode_settings(arguments, _KNOWN_SETTINGS)
    for name in _ENDPOINTS:
        if not environment.get(name):
            raise NotLocalError(
                f"{name} is not set: the local provider connects to the embedded cloud only. "
                "Run `gpufleet local up` and use the environment of `gpufleet local env`"
            )
        require_loopback(environment[name], name)
    if not given.get("project"):
        raise ValueError("gcp:project is not set: `pulumi config set gcp:project gpu-fleet-local`")
    if not given.get("region"):
        raise ValueError("gcp:region is not set: `pulumi config set gcp:region us-central1`")
    return Settings(
        endpoint=environment["GPUFLEET_COMPUTE_ENDPOINT"],
        token=token_of(environment),
        region=str(given["region"]),
        project=str(given["project"]),
        zone=str(given.get("zone") or ""),
        default_tags=inner(given, "defaultLabels"),
    )


class GoogleSession(Session):
    """REST clients with the token of the embedded cloud: no other credential is read, so none can leak."""

    def __init__(self, settings: Settings, endpoints: Mapping[str, str], *, root: Path | None = None) -> None:
        super().__init__(settings, root=root)
        self._endpoints = endpoints
        # trust_env: no proxy may carry what is meant for loopback
        shown = {"Authorization": f"Bearer {settings.token}"}
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=False, headers=shown)

    def make_client(self, service: str, region: str) -> Any:
        """A REST client of one service; Google's region is part of each path."""
        variable, path = _BASES[service]
        return RestClient(self._endpoints[variable].rstrip("/") + path, self._http)


def open_session(arguments: Mapping[str, Any], environment: Mapping[str, str], root: Path) -> GoogleSession:
    """The session of a configured provider. Raises ValueError."""
    settings = read_settings(arguments, environment)
    return GoogleSession(settings, {name: environment[name] for name in _ENDPOINTS}, root=root)


def rest_client(cloud: Cloud, service: str) -> RestClient:
    """The REST client of a service."""
    client: RestClient = cloud.client(service)
    return client


def relative(link: str) -> str:
    """A self link without host and version, from `projects/` on; anything else as it is."""
    path = urlsplit(link).path if "://" in link else link
    _, found, rest_of_it = path.partition("projects/")
    return f"{found}{rest_of_it}" if found else path.lstrip("/")


def finish(cloud: Cloud, operation: Mapping[str, Any]) -> None:
    """Wait for an operation of Compute Engine.

    Raises:
        GoogleError: it failed.
        NotReadyError: it took longer than the request's limit.
    """
    path = relative(str(operation["selfLink"]))
    compute = rest_client(cloud, "compute")
    state: dict[str, Any] = dict(operation)

    def done() -> bool:
        if state.get("status") != "DONE":
            state.update(compute.call("GET", path))
        return state.get("status") == "DONE"

    cloud.wait(f"{operation.get('operationType', 'operation')} of {operation.get('targetLink', path)}", done)
    for error in items(inner(state, "error"), "errors"):
        status = int(state.get("httpErrorStatusCode") or 400)
        raise GoogleError(status, str(error.get("message", "")), str(error.get("code", "")))
