"""Scans AWS accounts and Google projects, all regions at once. It writes nothing.

Each region of each account is a scope that fails alone.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Protocol

from app.watched_tasks import TIMEOUT, WatchedTask, run_all
from gpufleet.clouds.progress import Touch
from gpufleet.domain import catalogue
from gpufleet.domain.activity import CloudError
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.gpu_hours import HoursOfInstances
from gpufleet.domain.instance_history import PaidCapacity
from gpufleet.domain.model import CapacityType, Cloud, Instance
from gpufleet.domain.prices import Price
from gpufleet.prices.book import PriceBook
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.scan.judge import ScanWindows, judge
from gpufleet.scan.model import (
    INSTANCES,
    CapacityKind,
    FailureCode,
    Scan,
    ScannedCapacity,
    ScannedInstance,
    ScanScope,
    ScopeFailure,
    ScopeResult,
    key_of,
)

INTERRUPTED: Final = "Interrupted"
"""Code of the CloudError of a scope that was not complete when the user interrupted the scan."""
if TYPE_CHECKING:
    from app.scan_evidence import EvidenceStore
ANSWER_LIMIT_S: Final = 15.0
"""A scope without an answer for this long is given up."""
LONGEST_MESSAGE: Final = 200
"""Longest message of a failure, in characters."""
_OWNER_TAGS: Final = (
    "owner",
    "team",
    "gpu-fleet:owner",
    "created-by",
    "createdby",
    "project",
    "cost-center",
    "eks:cluster-name",
    "aws:eks:cluster-name",
    "karpenter.sh/nodepool",
    "goog-k8s-cluster-name",
    "name",
)
"""Tags and labels that name who runs an instance, best first. Keys are compared without case."""
_CODES: Final = {
    FailureCode.TIMEOUT: frozenset({TIMEOUT}),
    FailureCode.INTERRUPTED: frozenset({INTERRUPTED}),
    FailureCode.NOT_USABLE: frozenset({FailureCode.NOT_USABLE.value}),
    FailureCode.DENIED: frozenset(
        {
            *("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "OptInRequired"),
            *("403", "forbidden", "PERMISSION_DENIED", "IAM_PERMISSION_DENIED", "accessNotConfigured"),
            "SERVICE_DISABLED",
        }
    ),
    FailureCode.CREDENTIALS: frozenset(
        {
            *("AuthFailure", "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "RequestExpired"),
            *("SignatureDoesNotMatch", "UnrecognizedClientException", "ProfileNotFound", "NoCredentials", "401"),
            *("ConfigParseError", "CredentialRetrievalError", "MfaCode"),
            *("DefaultCredentialsError", "RefreshError", "ReauthFailError", "authError", "UNAUTHENTICATED"),
        }
    ),
}
"""Codes of the clouds by code of a failure. All others are `failed`."""
_LOGIN: Final[Mapping[str, str]] = {
    Cloud.AWS: "log in (`aws sso login`) or replace the keys",
    Cloud.GCP: "run `gcloud auth application-default login`",
}
_REMEDIES: Final[Mapping[str, str]] = {
    "ProfileNotFound": "`aws configure list-profiles` lists the profiles",
    "ConfigParseError": "correct the file",
    "CredentialRetrievalError": "correct the profile, or log in again",
    "MfaCode": "",
    # EC2 has the same code for expired temporary credentials
    "RequestExpired": "synchronize the clock of this machine; with temporary credentials, log in again",
}
"""By code of AWS: a remedy that is better than that of the failure's code. Empty: the message has it."""
_WRONG_CLOCK: Final = re.compile(r"Signature (expired|not yet current)", re.IGNORECASE)
_API_DISABLED: Final = re.compile(r"SERVICE_DISABLED|accessNotConfigured|API has not been used in project")
_API: Final = re.compile(r"[a-z]+\.googleapis\.com")
_NO_PROJECT: Final = re.compile(r"'projects/[^/']+' was not found|Invalid value for field 'project'")


@dataclass(slots=True)
class RegionFacts:
    """What a region reports. Parts that failed are empty, and named in `failures`."""

    pending: list[str] = field(default_factory=lambda: [INSTANCES])
    """Parts that are not read yet. A scope that is given up shows the parts that it has read."""
    instances: Sequence[Instance] = ()
    gpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of GPUs by `key_of`, of machine types that the catalogue does not know."""
    capacity: Sequence[ScannedCapacity] = ()
    """Without prices: `usd_per_hour` is None."""
    prices: Sequence[Price] = ()
    """Current prices that the cloud reports."""
    hours: HoursOfInstances | None = None
    """By `key_of`. None: the metrics store failed."""
    failures: dict[str, CloudError] = field(default_factory=dict[str, CloudError])
    """By missing part."""
    api_calls: Mapping[str, int] = field(default_factory=dict[str, int])
    metered_series: int = 0
    is_given_up: bool = False
    """Its result is already reported, so no further part is read."""

    def add_capacity(self, found: Iterable[ScannedCapacity]) -> None:
        """Add capacity. It replaces the list: a scope that is given up may be read at the same time."""
        self.capacity = [*self.capacity, *found]

    def read_parts(self, parts: Mapping[str, Callable[[], None]]) -> None:
        """Read each part. A failure is noted, and the other parts are read."""
        self.pending = list(parts)
        for what, read in parts.items():
            if self.is_given_up:
                return
            try:
                read()
            except CloudError as error:
                self.failures[what] = error
            self.pending.remove(what)

    def so_far(self, error: CloudError) -> "RegionFacts":
        """What is read although the scope was given up. Its thread may still change the original."""
        failures = dict(self.failures) | dict.fromkeys(list(self.pending), error)
        return replace(self, failures=failures, api_calls=dict(self.api_calls), pending=[])


def reserved(kind: CapacityKind, scope: ScanScope, paid: PaidCapacity) -> ScannedCapacity:
    """A reservation of a cloud, without its price."""
    return ScannedCapacity(
        kind=kind,
        scope=scope,
        id=paid.reservation,
        place=paid.zone,
        machine_type=paid.machine_type,
        total=paid.instances,
        unused=paid.available,
        usd_per_hour=None,
    )


class ScanAccount(Protocol):
    """An account or a project."""

    @property
    def cloud(self) -> Cloud: ...

    @property
    def name(self) -> str:
        """How the user names it: a profile, a role, a project."""
        ...

    def scopes(self, touch: Touch) -> Sequence[ScanScope]:
        """Its regions. Raises CloudError."""
        ...

    def read(self, scope: ScanScope, windows: ScanWindows, touch: Touch, facts: RegionFacts) -> None:
        """Read one scope into `facts`. Raises CloudError if its instances cannot be listed."""
        ...


Progress = Callable[[str, str], None]
"""Called with a scope or the name of an account, and what it reported."""


def scan(  # noqa: PLR0913 - options
    accounts: Sequence[ScanAccount],
    windows: ScanWindows,
    progress: Progress,
    limit_s: float = ANSWER_LIMIT_S,
    regions: Sequence[str] = (),
    stores: "Sequence[EvidenceStore]" = (),
) -> Scan:
    """Scan all accounts. `regions`: only these; empty: all that are enabled. `stores`: metrics stores of the user.

    After a KeyboardInterrupt, return what was read until then.
    """
    found = _accounts(accounts, progress, limit_s, regions)
    facts = {scope: RegionFacts() for scope in found.readers}
    results: dict[ScanScope, ScopeResult] = {}
    try:
        tasks = [
            WatchedTask(scope, partial(_read, account, scope, windows, facts[scope]))
            for scope, account in ({} if found.is_interrupted else found.readers).items()
        ]
        for scope, error in run_all(tasks, limit_s):
            results[scope] = _result(scope, facts[scope], error, windows)
            progress(str(scope), _summary(results[scope]))
    except KeyboardInterrupt:
        found.is_interrupted = True
    missing = CloudError("interrupted", INTERRUPTED)
    ordered = [results.get(scope) or _result(scope, facts[scope], missing, windows) for scope in sorted(facts)]
    if stores:
        from app.scan_evidence import with_evidence  # imports the watchdogs

        try:
            ordered, failed = with_evidence(ordered, [] if found.is_interrupted else stores, windows, limit_s)
            for scope, error in failed.items():
                found.failures.append(failure_of(scope, "metrics", error))
                progress(str(scope), found.failures[-1].message)
        except KeyboardInterrupt:
            found.is_interrupted = True
    return Scan(
        at=windows.now,
        window=windows.whole,
        idle_window=windows.idle,
        results=ordered,
        failures=found.failures,
        duplicates=found.duplicates,
        is_interrupted=found.is_interrupted,
    )


def _read(
    account: ScanAccount, scope: ScanScope, windows: ScanWindows, facts: RegionFacts, touch: Touch
) -> CloudError | None:
    account.read(scope, windows, touch, facts)
    return None


@dataclass(slots=True)
class _Accounts:
    readers: dict[ScanScope, ScanAccount] = field(default_factory=dict[ScanScope, ScanAccount])
    failures: list[ScopeFailure] = field(default_factory=list[ScopeFailure])
    duplicates: dict[str, str] = field(default_factory=dict[str, str])
    is_interrupted: bool = False


def _accounts(
    accounts: Sequence[ScanAccount], progress: Progress, limit_s: float, regions: Sequence[str]
) -> _Accounts:
    """The scopes of all accounts. An account that two profiles name is read once."""
    found = _Accounts()
    listed: dict[int, Sequence[ScanScope] | CloudError] = {}
    try:
        tasks = [WatchedTask(number, one.scopes) for number, one in enumerate(accounts)]
        for number, scopes in run_all(tasks, limit_s):
            listed[number] = scopes
            if isinstance(scopes, CloudError):
                progress(accounts[number].name, str(scopes))
    except KeyboardInterrupt:
        found.is_interrupted = True
    first: dict[tuple[str, str], str] = {}
    by_account: list[list[tuple[ScanScope, ScanAccount]]] = []
    for number, account in enumerate(accounts):
        scopes = listed.get(number, CloudError("interrupted", INTERRUPTED))
        if isinstance(scopes, CloudError):
            found.failures.append(failure_of(ScanScope(account.cloud, account.name), "regions", scopes))
            continue
        name = next((first[one[:2]] for one in scopes if one[:2] in first), None)
        if name is not None:
            found.duplicates[account.name] = name
            progress(account.name, f"the same account as {name}; counted once")
            continue
        first |= {one[:2]: account.name for one in scopes}
        wanted = [one for one in scopes if not regions or not one.region or one.region in regions]
        by_account.append([(scope, account) for scope in wanted])
    # in turns, because each account has its own limit of calls
    found.readers = dict(pair for turn in zip_longest(*by_account) for pair in turn if pair is not None)
    return found


def _summary(result: ScopeResult) -> str:
    count = len(result.instances)
    parts = [f"{count} GPU instance{'' if count == 1 else 's'}"] if count or not result.failures else []
    return "; ".join([*parts, *(f"{one.what} missing: {one.message}" for one in result.failures)])


def _result(scope: ScanScope, facts: RegionFacts, error: CloudError | None, windows: ScanWindows) -> ScopeResult:
    if error is not None:
        facts.is_given_up = True
        if INSTANCES in facts.pending:
            calls = dict(facts.api_calls)
            return ScopeResult(scope=scope, failures=[failure_of(scope, INSTANCES, error)], api_calls=calls)
        facts = facts.so_far(error)
    price_books: dict[str, PriceBook] = {}

    def book(region: str) -> PriceBook:
        if region not in price_books:
            price_books[region] = PriceBook(region=region, observed=facts.prices, packaged=PackagedPrices())
        return price_books[region]

    return ScopeResult(
        scope=scope,
        instances=[_scanned(scope, one, facts, book(one.region), windows) for one in facts.instances],
        capacity=[_priced(one, book(one.region), windows.now) for one in facts.capacity],
        failures=[failure_of(scope, what, error) for what, error in facts.failures.items()],
        api_calls=facts.api_calls,
        metered_series=facts.metered_series,
    )


def _scanned(
    scope: ScanScope, instance: Instance, facts: RegionFacts, book: PriceBook, windows: ScanWindows
) -> ScannedInstance:
    gpus, watts = _gpus(instance)
    gpus = facts.gpus.get(key_of(instance)) if gpus is None else gpus
    use = None if facts.hours is None else facts.hours.get(key_of(instance), {})
    found = judge(instance, use, windows, gpus, watts)
    spot = None
    if instance.capacity_type is CapacityType.ON_DEMAND and instance.alive:
        spot = _usd(book, instance, CapacityType.SPOT, windows.now)
    return ScannedInstance(
        instance=instance,
        account=scope.account,
        owner=owner_of(instance.tags),
        usd_per_hour=_usd(book, instance, instance.capacity_type, windows.now) if instance.alive else None,
        verdict=found.verdict,
        reason=found.reason,
        idle_hours=found.idle_hours,
        measured_hours=found.measured_hours,
        spot_usd_per_hour=spot,
    )


def owner_of(tags: Mapping[str, str]) -> str | None:
    """Return who runs an instance, by its tags or labels; None: they do not say."""
    lower = {key.lower(): value for key, value in tags.items() if value}
    return next((lower[key] for key in _OWNER_TAGS if key in lower), None)


def _gpus(instance: Instance) -> tuple[int | None, float | None]:
    """Number of GPUs of the machine type and the rated power of one; None: not in the catalogue."""
    try:
        machine = catalogue.machine(instance.cloud, instance.machine_type)
    except UnknownMachineError:
        return None, None
    return machine.gpu_count, catalogue.rated_watts(instance.cloud, instance.machine_type)


def _usd(book: PriceBook, instance: Instance, capacity_type: CapacityType, now: datetime) -> Decimal | None:
    return book.usd_per_hour(
        instance.cloud, instance.machine_type, capacity_type, region=instance.region, zone=instance.zone, at=now
    )


def _priced(one: ScannedCapacity, book: PriceBook, now: datetime) -> ScannedCapacity:
    """With the on-demand price of its unused part."""
    price = book.usd_per_hour(
        Cloud(one.scope.cloud),
        one.machine_type,
        CapacityType.ON_DEMAND,
        region=book.region,
        zone=one.place or None,
        at=now,
    )
    if price is None or one.unused is None:
        return one
    return replace(one, usd_per_hour=price * one.unused)


def failure_of(scope: ScanScope, what: str, error: CloudError) -> ScopeFailure:
    """Return the failure of a part, with a remedy if one is known."""
    code = next((code for code, known in _CODES.items() if error.code in known), FailureCode.FAILED)
    # a gateway's error may be a whole page
    text = " ".join(str(error).split()).removesuffix(".")
    is_ours = code is FailureCode.NOT_USABLE  # this product's own text, with a remedy
    message = text if is_ours or len(text) <= LONGEST_MESSAGE else f"{_shortened(text)}…"
    if remedy := _remedy(scope, what, code, error):
        message += f"; {remedy}"
    return ScopeFailure(scope=scope, code=code, what=what, message=message)


def _remedy(scope: ScanScope, what: str, code: FailureCode, error: CloudError) -> str:
    """What to do about a failure; empty: nothing is known."""
    text = f"{error.code} {error}"
    if scope.cloud == Cloud.GCP and _API_DISABLED.search(text):
        named = _API.search(text)
        name = "monitoring" if what == "metrics" else "compute"
        api = named[0] if named else f"{name}.googleapis.com"
        return f"`gcloud services enable {api} --project {scope.account}`"
    if scope.cloud == Cloud.GCP and _NO_PROJECT.search(text):
        return "`gcloud projects list` lists the projects"
    if _WRONG_CLOCK.search(text):
        return "synchronize the clock of this machine"
    if scope.cloud == Cloud.AWS and error.code in _REMEDIES:
        return _REMEDIES[error.code]
    if code is FailureCode.CREDENTIALS:
        return _LOGIN.get(scope.cloud, "")
    if code is FailureCode.DENIED and scope.cloud in _LOGIN:
        return f"`gpufleet scan --print-policy {scope.cloud}` prints the permissions"
    return ""


def _shortened(text: str) -> str:
    """The begin of a message. It ends with a whole word: a part of a name would not be recognized as private."""
    begin = text[: LONGEST_MESSAGE + 1]
    return begin.rpartition(" ")[0] or begin[:LONGEST_MESSAGE]


def all_calls(results: Iterable[ScopeResult]) -> dict[str, int]:
    """Number of API calls of all scopes, by operation."""
    found: dict[str, int] = {}
    for result in results:
        for name, count in result.api_calls.items():
            found[name] = found.get(name, 0) + count
    return dict(sorted(found.items()))
