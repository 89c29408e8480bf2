"""The use case of a scan: accounts that fail, that are named twice, and a user who interrupts it."""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from app import scan as use_case
from app.scan import RegionFacts, failure_of
from gpufleet.clouds.progress import Touch
from gpufleet.domain import catalogue
from gpufleet.domain.activity import CloudError
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.gpu_hours import HourUse
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.scan import redaction, summary
from gpufleet.scan.judge import ScanWindows
from gpufleet.scan.model import FailureCode, Scan, ScanScope, ScopeResult, Verdict, key_of

WINDOWS = ScanWindows(now=datetime(2026, 11, 26, 12, 30, tzinfo=UTC))


def instance(name: str, region: str) -> Instance:
    return Instance(
        id=name,
        cloud=Cloud.AWS,
        region=region,
        zone=f"{region}a",
        machine_type="g6.xlarge",
        capacity_type=CapacityType.ON_DEMAND,
        state=InstanceState.RUNNING,
        launched_at=datetime(2026, 11, 1, tzinfo=UTC),
    )


def nothing(scope: ScanScope, facts: RegionFacts) -> None:
    facts.hours = {}


@dataclass
class FakeAccount:
    """An account with one instance in each region."""

    name: str
    account: str
    regions: Sequence[str] = ("us-east-1", "us-west-2")
    then: Callable[[ScanScope, RegionFacts], object] = nothing
    """What it does once it has listed the instances."""
    read_scopes: list[ScanScope] = field(default_factory=list)
    cloud: Cloud = Cloud.AWS

    def scopes(self, touch: Touch) -> Sequence[ScanScope]:
        touch()
        if not self.account:
            raise CloudError("the session has expired", "NoCredentials")
        return [ScanScope(self.cloud, self.account, name) for name in self.regions]

    def read(self, scope: ScanScope, windows: ScanWindows, touch: Touch, facts: RegionFacts) -> None:
        self.read_scopes.append(scope)
        facts.instances = [instance(f"i-{scope.account}-{scope.region}", scope.region)]
        facts.read_parts({"metrics": lambda: self._metrics(scope, facts), "spot prices": lambda: None})

    def _metrics(self, scope: ScanScope, facts: RegionFacts) -> None:
        self.then(scope, facts)


def scanned(*accounts: FakeAccount, limit_s: float = 15, regions: Sequence[str] = ()) -> Scan:
    return use_case.scan(accounts, WINDOWS, lambda *_: None, limit_s, regions)


def test_an_account_that_two_profiles_name_is_counted_once_and_named() -> None:
    first, second = FakeAccount("prod", "1"), FakeAccount("prod-admin", "1")
    found = scanned(first, second, FakeAccount("research", "2"))
    assert found.duplicates == {"prod-admin": "prod"} and not second.read_scopes
    assert len(found.instances) == 4
    assert "prod-admin is the same account as prod: counted once" in summary.headline(found)


def test_accounts_take_turns_because_each_has_its_own_limit_of_calls() -> None:
    regions = [f"region-{number}" for number in range(17)]
    order: list[str] = []
    lock = threading.Lock()

    def note(scope: ScanScope, facts: RegionFacts) -> None:
        with lock:
            order.append(scope.account)

    found = scanned(*(FakeAccount(f"p{number}", str(number), regions, note) for number in range(50)))
    assert len(found.results) == 50 * 17 and not found.all_failures
    assert len(set(order[:50])) > 25, "the first tasks belong to many accounts"


def test_credentials_that_expired_are_named_with_a_remedy_and_other_accounts_are_shown() -> None:
    found = scanned(FakeAccount("prod", ""), FakeAccount("research", "2"))
    (failure,) = found.all_failures
    assert (failure.scope.account, failure.code) == ("prod", FailureCode.CREDENTIALS)
    assert "aws sso login" in failure.message
    assert len(found.instances) == 2


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_interrupted_scan_shows_what_it_has_and_names_what_is_missing(number: int) -> None:
    seen = itertools.count(1)

    def progress(scope: str, text: str) -> None:
        if next(seen) == number:
            raise KeyboardInterrupt

    accounts = [FakeAccount(str(one), str(one), ("us-east-1",)) for one in range(3)]
    hang = threading.Event()
    last = FakeAccount("3", "3", ("us-east-1",), lambda *_: hang.wait(60))
    found = use_case.scan([*accounts, last], WINDOWS, progress)
    hang.set()
    assert found.is_interrupted and len(found.results) == 4
    assert "interrupted: the scan is incomplete" in summary.headline(found)
    missing = {one.scope.account for one in found.all_failures}
    assert "3" in missing and {one.code for one in found.all_failures} == {FailureCode.INTERRUPTED}
    assert {one.account for one in found.instances} >= {"0", "1", "2"} - missing
    assert summary.document(found, [], {})["interrupted"] is True


def test_an_interrupt_while_accounts_are_listed_reads_no_region() -> None:
    class Interrupting(FakeAccount):
        def scopes(self, touch: Touch) -> Sequence[ScanScope]:
            raise CloudError("denied", "AccessDenied")

    def progress(scope: str, text: str) -> None:
        raise KeyboardInterrupt

    other = FakeAccount("other", "2", then=lambda *_: None)
    found = use_case.scan([Interrupting("first", "1"), other], WINDOWS, progress)
    assert found.is_interrupted and not other.read_scopes


def test_parts_after_one_that_hangs_are_named_and_the_instances_are_shown() -> None:
    hang = threading.Event()
    found = scanned(FakeAccount("p", "1", ("us-east-1",), lambda *_: hang.wait(60)), limit_s=0.5)
    hang.set()
    assert [one.instance.id for one in found.instances] == ["i-1-us-east-1"]
    assert {(one.what, one.code) for one in found.all_failures} == {
        ("metrics", FailureCode.TIMEOUT),
        ("spot prices", FailureCode.TIMEOUT),
    }


def test_the_number_of_gpus_is_known_without_the_figures_of_the_gpu() -> None:
    known = catalogue.machine(Cloud.AWS, "g7.12xlarge")
    with pytest.raises(UnknownMachineError):
        catalogue.gpu(known.gpu)
    rest = HourUse(gpus=known.gpu_count, samples=60, utilization_max=0)

    def measure(scope: ScanScope, facts: RegionFacts) -> None:
        facts.instances = [replace(one, machine_type=known.name) for one in facts.instances]
        hours = {WINDOWS.end - number * timedelta(hours=1): rest for number in range(1, 169)}
        facts.hours = {key_of(one): hours for one in facts.instances}

    (one,) = scanned(FakeAccount("p", "1", ("us-east-1",), measure)).instances
    assert (one.verdict, one.idle_hours) == (Verdict.IDLE, 168)


@pytest.mark.parametrize(
    ("cloud", "code", "expected", "remedy"),
    [
        pytest.param(Cloud.AWS, "NoCredentials", FailureCode.CREDENTIALS, "aws sso login", id="SSO expired"),
        pytest.param(
            Cloud.AWS, "ProfileNotFound", FailureCode.CREDENTIALS, "aws configure list-profiles", id="unknown profile"
        ),
        pytest.param(Cloud.AWS, "OptInRequired", FailureCode.DENIED, "--print-policy aws", id="opt-in region"),
        pytest.param(
            Cloud.GCP, "RefreshError", FailureCode.CREDENTIALS, "gcloud auth application-default login", id="Google"
        ),
        pytest.param("prometheus", "", FailureCode.FAILED, "", id="a store"),
    ],
)
def test_a_failure_has_a_code_and_a_remedy(cloud: str, code: str, expected: FailureCode, remedy: str) -> None:
    failure = failure_of(ScanScope(cloud, "x"), "instances", CloudError("<html>" + "long " * 500, code))
    assert failure.code is expected and remedy in failure.message and len(failure.message) < 350


@pytest.mark.parametrize(
    ("cloud", "what", "code", "message", "remedy"),
    [
        pytest.param(
            Cloud.AWS,
            "regions",
            "SignatureDoesNotMatch",
            "Signature expired: 20261128T200000Z is now earlier than 20261128T220000Z",
            "synchronize the clock of this machine",
            id="slow clock",
        ),
        pytest.param(
            Cloud.AWS,
            "regions",
            "InvalidSignatureException",
            "Signature not yet current: 20261128T220000Z is still later than 20261128T200000Z",
            "synchronize the clock of this machine",
            id="fast clock",
        ),
        pytest.param(
            Cloud.AWS,
            "instances",
            "RequestExpired",
            "Request has expired",
            "synchronize the clock of this machine; with temporary credentials, log in again",
            id="slow clock or expired credentials",
        ),
        pytest.param(
            Cloud.GCP,
            "instances",
            "accessNotConfigured",
            "Compute Engine API has not been used in project 1, see https://x/apis/api/compute.googleapis.com/overview",
            "`gcloud services enable compute.googleapis.com --project x`",
            id="disabled API",
        ),
        pytest.param(
            Cloud.GCP,
            "metrics",
            "403",
            "Cloud Monitoring API has not been used in project 1 before or it is disabled",
            "`gcloud services enable monitoring.googleapis.com --project x`",
            id="disabled API that is not named",
        ),
        pytest.param(
            Cloud.GCP,
            "instances",
            "notFound",
            "The resource 'projects/x' was not found",
            "`gcloud projects list` lists the projects",
            id="no such project",
        ),
    ],
)
def test_the_remedy_fits_the_cause(cloud: str, what: str, code: str, message: str, remedy: str) -> None:
    failure = failure_of(ScanScope(cloud, "x"), what, CloudError(message, code))
    assert failure.message == f"{message}; {remedy}"


def test_a_long_message_ends_with_a_whole_word() -> None:
    text = f"{'x ' * 95}acme-research-with-a-long-name and more"
    message = failure_of(ScanScope("prometheus", "x"), "metrics", CloudError(text)).message
    assert message.endswith("x x…"), "a part of a private name would not be recognized"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("arn:aws:iam::111122223333:user/x", "arn:aws:iam::account-1:user/x", id="ARN"),
        pytest.param("x111122223333y", "xaccount-1y", id="within a name"),
        pytest.param("of 999988887777.", "of account.", id="another account"),
        pytest.param("12.123456789012 USD", "12.123456789012 USD", id="an amount"),
        pytest.param("i-0111122223333444", "i-0111122223333444", id="an instance"),
        pytest.param("research-7-team of research-77", "account-2-team of research-77", id="project"),
        pytest.param("prod: production, prod-cluster", "account-3: production, prod-cluster", id="profile"),
        pytest.param("is not authorized: 11112222…", "is not authorized: account…", id="cut in the middle"),
        pytest.param("1111-2222-3333 ml", "account-1 ml", id="in groups of four"),
        pytest.param("4444 5555 6666, 4444_5555_6666", "account, account", id="another account in groups"),
        pytest.param("acct_444455556666", "acct_account", id="another account after an underscore"),
        pytest.param("x444455556666 444455556666x", "xaccount accountx", id="another account within a name"),
        pytest.param(
            "i-0abcd444455556666, 12345678-1111-2222-3333-444455556666",
            "i-0abcd444455556666, 12345678-1111-2222-3333-444455556666",
            id="ids that contain 12 digits by chance",
        ),
        pytest.param(
            "2026-11-28T10:00:00 1764324000 1764324000123",
            "2026-11-28T10:00:00 1764324000 1764324000123",
            id="times",
        ),
        pytest.param("444455556666.25 USD", "444455556666.25 USD", id="an amount with cents"),
        pytest.param("ml_research-7, research-7_2", "ml_account-2, account-2_2", id="project and underscores"),
        pytest.param(
            "not been used in project 71234567890, see ?project=71234567890, projects/71234567890",
            "not been used in project account, see ?project=account, projects/account",
            id="number of a project",
        ),
        pytest.param(
            "User: arn:aws:sts::444455556666:assumed-role/acme-scan/gpufleet-scan is not authorized",
            "User: arn:aws:sts::account:assumed-role/account is not authorized",
            id="role in an ARN",
        ),
    ],
)
def test_redaction_hides_names_of_accounts_and_nothing_else(text: str, shown: str) -> None:
    scopes = (ScanScope(Cloud.AWS, "111122223333", "us-east-1"), ScanScope(Cloud.GCP, "research-7"))
    found = Scan(
        at=WINDOWS.now, window=WINDOWS.whole, idle_window=WINDOWS.idle,
        results=[ScopeResult(scope=scope) for scope in scopes], failures=[],
    )  # fmt: skip
    assert redaction.redactor(found, ["prod"])(text) == shown
