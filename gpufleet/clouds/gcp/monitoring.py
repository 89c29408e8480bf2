"""GPU utilization from Cloud Monitoring, as the Ops Agent reports it (`agent.googleapis.com/gpu/utilization`).

A value is the mean utilization since the previous collection, so any value above 0 is work. Series name instances by
their numeric id. Not tried on Google Cloud.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import Response
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from urllib3.util.retry import Retry

from gpufleet.clouds.clock_check import seconds_apart
from gpufleet.clouds.gcp.emulator import emulator
from gpufleet.clouds.gcp.login import credentials, emulated
from gpufleet.domain.activity import CloudError
from gpufleet.domain.gpu_hours import HoursOfInstances, HourUse
from gpufleet.domain.parsed import is_list, is_map

ENDPOINT: Final = "GPUFLEET_MONITORING_ENDPOINT"
"""Environment variable with the loopback address of a server that answers instead of Cloud Monitoring."""
PERMISSION: Final = "monitoring.timeSeries.list"
UTILIZATION: Final = "agent.googleapis.com/gpu/utilization"
CALL: Final = "monitoring:timeSeries.list"
_SERVER: Final = "https://monitoring.googleapis.com"
_SCOPE: Final = "https://www.googleapis.com/auth/monitoring.read"
_POINTS_PER_PAGE: Final = 100_000
_TIMEOUT_S: Final = 30.0
_HOUR: Final = timedelta(hours=1)
_FIELDS: Final = ",".join(
    (
        "timeSeries(metric/labels,resource/labels,points(interval/endTime,value))",
        *("nextPageToken", "executionErrors", "unreachable"),
    )
)
_RETRIES: Final = Retry(total=2, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503), allowed_methods=("GET",))


class CloudMonitoring:
    """The metrics of one project."""

    def __init__(self, project: str, before: Callable[[], None] = lambda: None, session: Any = None) -> None:
        """`before` is called before each request."""
        self._project, self._before, self._session = project, before, session
        self.counts: dict[str, int] = {}

    def gpu_hours(self, since: datetime, until: datetime) -> HoursOfInstances:
        """Use of GPUs by the hour, by numeric id. `since` and `until` are whole hours.

        Raises CloudError for incomplete answers.
        """
        found: dict[str, dict[datetime, dict[str, list[float]]]] = {}
        for place, aligner in enumerate(("ALIGN_MAX", "ALIGN_COUNT")):
            for series in self._series(aligner, since, until):
                gpus, gpu = found.setdefault(_instance(series), {}), _gpu(series)
                for hour, value in _points(series):
                    # a GPU whose driver was installed again has a second series: neither hides the other
                    known = gpus.setdefault(hour, {}).setdefault(gpu, [-1.0, 0.0])
                    known[place] = max(known[place], value)
        return {
            instance: {hour: _hour(list(gpus.values())) for hour, gpus in sorted(hours.items())}
            for instance, hours in found.items()
        }

    def _series(self, aligner: str, since: datetime, until: datetime) -> Iterator[Mapping[str, Any]]:
        asked = {
            "filter": f'metric.type="{UTILIZATION}" AND resource.type="gce_instance"',
            "interval.startTime": _text(since),
            "interval.endTime": _text(until),
            "aggregation.alignmentPeriod": "3600s",
            "aggregation.perSeriesAligner": aligner,
            "pageSize": str(_POINTS_PER_PAGE),
            "fields": _FIELDS,
        }
        token = ""
        while True:
            page = self._page({**asked, "pageToken": token} if token else asked)
            if page.get("executionErrors") or page.get("unreachable"):
                raise CloudError(f"{CALL} in {self._project}: the answer is incomplete")
            listed: object = page.get("timeSeries", [])
            if not is_list(listed) or not all(map(is_map, listed)):
                raise CloudError(f"{CALL} in {self._project}: the answer has no list of series")
            yield from listed
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _page(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        self._before()
        self.counts[CALL] = self.counts.get(CALL, 0) + 1
        try:
            server = emulator(ENDPOINT)
            if self._session is None:
                self._session = _session(server)
            url = f"{server or _SERVER}/v3/projects/{self._project}/timeSeries"
            asked = datetime.now(UTC)
            answer = cast(Response, self._session.get(url, params=query, timeout=_TIMEOUT_S))
            self._check_clock(answer.headers.get("Date"), asked)
            body: object = answer.json()
        except GoogleAuthError as error:
            raise CloudError(f"{CALL} in {self._project} failed: {error}", type(error).__name__) from error
        except (RequestException, ValueError) as error:
            raise CloudError(f"{CALL} in {self._project} failed: {error}") from error
        if answer.ok and is_map(body):
            return body
        detail: Any = body.get("error") if is_map(body) else None
        message = detail.get("message") if is_map(detail) else "no message"
        raise CloudError(f"{CALL} in {self._project} was refused: {message}", str(answer.status_code))

    def _check_clock(self, date: str | None, asked: datetime) -> None:
        """Raise CloudError if the clocks differ too much: a slow one asks for hours that are long past."""
        apart = seconds_apart(date, asked, datetime.now(UTC))
        if apart is not None:
            raise CloudError(
                f"{CALL} in {self._project}: this machine is {apart:.0f} s from Google's time ({date}):"
                " synchronize the clock of this machine"
            )


def _session(server: str | None) -> Any:
    # google-auth and requests do not type these calls completely
    session: Any = cast(Any, AuthorizedSession)(credentials(_SCOPE) if server is None else emulated(server))
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=_RETRIES))
    return session


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _instance(series: Mapping[str, Any]) -> str:
    return str(_labels(series, "resource").get("instance_id", ""))


def _gpu(series: Mapping[str, Any]) -> str:
    labels = _labels(series, "metric")
    return str(labels.get("gpu_number", labels.get("uuid", "0")))


def _labels(series: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    held = series.get(part)
    labels = held.get("labels") if is_map(held) else None
    return labels if is_map(labels) else {}


def _points(series: Mapping[str, Any]) -> Iterator[tuple[datetime, float]]:
    """Start of the hour, and value. A point that is not aligned to a whole hour proves nothing about an hour."""
    for point in series.get("points", ()):
        try:
            end = datetime.fromisoformat(point["interval"]["endTime"]).astimezone(UTC)
            value = point["value"]
            number = float(value["doubleValue"] if "doubleValue" in value else value["int64Value"])
        except (KeyError, TypeError, ValueError) as error:
            raise CloudError(f"{CALL}: a point has no time or no number") from error
        if (end.minute, end.second, end.microsecond) == (0, 0, 0):
            yield end - _HOUR, number


def _hour(gpus: list[list[float]]) -> HourUse:
    measured = [(highest, samples) for highest, samples in gpus if 0 <= highest <= 100]
    return HourUse(
        gpus=len(measured),
        samples=min((samples for _, samples in measured), default=0.0),
        utilization_max=max((highest for highest, _ in measured), default=None),
    )
