"""`gpufleet scan` against AWS accounts on loopback."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Generator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from localcloud.slack.server import SlackSink

from app.scan_aws import ACTIONS
from gpufleet.toolchain.folders import ROOT
from tests.fixtures import local_token
from tests.fixtures.scan.aws_accounts import AwsCloud, AwsInstance, AwsRegion, aws_cloud, hours
from tests.fixtures.scan.google_projects import GoogleVm, google_cloud

OLD = datetime.now(UTC) - timedelta(days=30)


@pytest.fixture
def cloud() -> Generator[AwsCloud]:
    with aws_cloud() as made:
        made.regions["us-east-1"] = AwsRegion(
            instances=[
                AwsInstance(id="i-idle", launched=OLD, gpus=[hours(0)], tags={"Owner": "ml"}),
                AwsInstance(id="i-busy", launched=OLD, gpus=[hours(40)]),
                AwsInstance(id="i-blind", launched=OLD),
                AwsInstance(id="i-stopped", launched=OLD, state="stopped"),
            ],
            reservations=[("cr-1", "g6.xlarge", 4, 3)],
            spot_usd={"g6.xlarge": "0.25"},
        )
        made.regions["eu-west-1"] = AwsRegion(
            instances=[AwsInstance(id="i-far", type="g5.48xlarge", launched=OLD)], list_usd={"g5.48xlarge": "18.2"}
        )
        yield made


def scan(
    cloud: AwsCloud, *arguments: str, key: str = "AKIDFIRST", more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", "scan", *arguments],
        cwd=ROOT, env=environment(cloud.environment(key) | dict(more or {})),
        capture_output=True, text=True, timeout=180, check=False, start_new_session=True,
    )  # fmt: skip


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Environment of a command without credentials of this machine. An empty value removes a variable."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GOOGLE_"))}
    every = plain | {"HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true"} | dict(more)
    return {name: value for name, value in every.items() if value}


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(done.stdout)


def test_scan_distinguishes_idle_busy_and_unknown_instances(cloud: AwsCloud) -> None:
    done = scan(cloud, "--json")
    assert done.returncode == 3, done.stderr
    found = document(done)
    uses = {one["id"]: (one["use"], one["reason_code"]) for one in found["instances"]}
    assert uses == {
        "i-idle": ("idle", "gpu_idle"),
        "i-busy": ("in use", "gpu_worked"),
        "i-blind": ("unknown", "no_metric"),
        "i-stopped": ("stopped", "not_running"),
        "i-far": ("unknown", "no_metric"),
    }
    (idle,) = (one for one in found["instances"] if one["id"] == "i-idle")
    assert (idle["owner"], idle["idle_hours"], idle["measured_hours"]) == ("ml", 168, 168)
    assert idle["usd_per_hour"] == "0.8048" and idle["waste_usd"] == str(168 * 8048 / 10_000)
    assert found["totals"]["waste_usd"] == idle["waste_usd"], "only certainly idle hours are waste"
    (far,) = (one for one in found["instances"] if one["id"] == "i-far")
    assert far["usd_per_hour"] == "18.2", "the packaged price is over a year old, and AWS's Price List has one"
    assert [one["code"] for one in found["do_first"]] == ["release_capacity", "stop_idle", "use_spot"]
    assert "aws ec2 stop-instances --region us-east-1 --instance-ids i-idle" in found["do_first"][1]["command"]
    (held,) = found["capacity"]
    assert (held["id"], held["total"], held["unused"]) == ("cr-1", 4, 3)
    assert held["unused_usd_per_hour"] == str(3 * 8048 / 10_000)


def test_calls_are_those_of_the_printed_policy(cloud: AwsCloud) -> None:
    scan(cloud, "--json")
    done = scan(cloud, "--print-policy", "aws")
    (statement,) = document(done)["Statement"]
    assert statement["Effect"] == "Allow" and statement["Action"] == list(ACTIONS)
    assert cloud.operations() - {"sts:GetCallerIdentity"} == set(ACTIONS)


def test_a_region_that_hangs_or_refuses_is_named_and_the_rest_is_shown(cloud: AwsCloud) -> None:
    cloud.regions["eu-west-1"].never_answers = frozenset({"*"})
    cloud.regions["eu-west-2"] = AwsRegion(refuses=frozenset({"DescribeInstances"}))
    cloud.regions["us-east-1"].refuses = frozenset({"DescribeCapacityReservations"})
    done = scan(cloud, "--json")
    assert done.returncode == 1
    found = document(done)
    failures = {(one["region"], one["missing"], one["code"]) for one in found["failures"]}
    assert failures == {
        ("eu-west-1", "instances", "timeout"),
        ("eu-west-2", "instances", "denied"),
        ("us-east-1", "capacity reservations", "denied"),
    }
    assert {one["id"] for one in found["instances"]} == {"i-idle", "i-busy", "i-blind", "i-stopped"}


def test_without_the_permission_for_metrics_nothing_is_idle(cloud: AwsCloud) -> None:
    cloud.regions["us-east-1"].refuses = frozenset({"ListMetrics"})
    found = document(scan(cloud, "--json"))
    reasons = {one["reason_code"] for one in found["instances"] if one["region"] == "us-east-1"}
    assert reasons == {"metrics_failed", "not_running"}
    assert found["totals"]["waste_usd"] == "0"


@pytest.mark.parametrize(
    ("key", "message"),
    [pytest.param("AKIDWRONG", "credentials: sts:get_caller_identity in us-east-1 was refused", id="wrong key")],
)
def test_wrong_credentials_are_one_clear_error(cloud: AwsCloud, key: str, message: str) -> None:
    done = scan(cloud, key=key)
    assert done.returncode == 1 and message in done.stdout
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("no instances could be listed: 1 part could not be read\n"), "0 USD would be wrong"


def test_no_credentials_are_a_wrong_use_with_a_remedy() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "scan"],
        cwd=ROOT, env=environment({}),
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "aws sso login" in done.stderr
    assert "gcloud auth application-default login" in done.stderr


ADC = '{"type":"authorized_user","client_id":"x","client_secret":"y","refresh_token":"z"}'
"""Google credentials that name no project."""


@pytest.mark.parametrize(
    ("arguments", "login", "message"),
    [
        pytest.param(
            ["--region", "us-central1"],
            "aws",
            "--region us-central1 is a region of gcp: no Google Cloud credentials: run `gcloud auth",
            id="region of Google Cloud, keys of AWS",
        ),
        pytest.param(
            ["--region", "us-central1", "--region", "us-east-1"],
            "aws",
            "--region us-central1 is a region of gcp: no Google Cloud credentials: run `gcloud auth",
            id="regions of both clouds, keys of AWS",
        ),
        pytest.param(
            ["--region", "us-east-1"],
            "google",
            "--region us-east-1 is a region of aws: no AWS credentials: log in (`aws sso login`",
            id="region of AWS, login of Google Cloud",
        ),
        pytest.param(
            [], "google", "the Google Cloud credentials name no project: name one with --project", id="no project"
        ),
    ],
)
def test_what_is_missing_for_a_scan_is_named(
    cloud: AwsCloud, tmp_path: Path, arguments: list[str], login: str, message: str
) -> None:
    credentials = tmp_path / "adc.json"
    credentials.write_text(ADC)
    google = {
        "AWS_ACCESS_KEY_ID": "",
        "AWS_SECRET_ACCESS_KEY": "",
        "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
    }
    done = scan(cloud, *arguments, more=google if login == "google" else {})
    assert done.returncode == 2 and message in done.stderr and not cloud.calls, done.stderr


PROFILES = """
[profile team]
aws_access_key_id = AKIDSECOND
aws_secret_access_key = secret

[profile admin]
aws_access_key_id = AKIDSECOND
aws_secret_access_key = secret

[profile sso]
sso_session = company
sso_account_id = 111122223333
sso_role_name = viewer

[sso-session company]
sso_region = us-east-1
sso_start_url = https://company.awsapps.com/start

[profile garbage]
credential_process = echo hello

[profile number]
credential_process = echo 5

[profile missing]
credential_process = /nonexistent/tool

[profile mfa]
role_arn = arn:aws:iam::444455556666:role/scan
source_profile = team
mfa_serial = arn:aws:iam::111122223333:mfa/alice
"""


@pytest.mark.parametrize(
    ("arguments", "more", "messages"),
    [
        pytest.param([], {"AWS_PROFILE": "team"}, ["444455556666 us-east-1"], id="AWS_PROFILE"),
        pytest.param(
            [],
            {"AWS_PROFILE": "gone"},
            ["AWS profile 'gone'", "aws configure list-profiles"],
            id="unknown AWS_PROFILE",
        ),
        pytest.param(
            ["--profile", "team", "--profile", "admin"], {}, ["admin is the same account as team"], id="duplicate"
        ),
        pytest.param(["--profile", "sso"], {}, ["credentials: ", "aws sso login"], id="SSO session expired"),
        pytest.param(
            [],
            {"AWS_PROFILE": "garbage"},
            ["the credential_process of profile 'garbage': it printed no valid JSON", "correct the profile"],
            id="credential_process of AWS_PROFILE prints no JSON",
        ),
        pytest.param(
            ["--profile", "number"],
            {},
            ["the credential_process of profile 'number': it printed no valid JSON"],
            id="credential_process prints no JSON object",
        ),
        pytest.param(
            ["--profile", "missing"],
            {},
            ["the credential_process of profile 'missing': [Errno 2] No such file", "correct the profile"],
            id="credential_process does not start",
        ),
        pytest.param(
            ["--profile", "mfa"],
            {},
            ["AWS profile 'mfa' needs an MFA code, and there is no terminal", "credentials: "],
            id="MFA without a terminal",
        ),
    ],
)
def test_profiles_name_accounts(
    cloud: AwsCloud, tmp_path: Path, arguments: list[str], more: dict[str, str], messages: list[str]
) -> None:
    config = tmp_path / "config"
    config.write_text(PROFILES)
    keys = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": str(config)}
    done = scan(cloud, *arguments, more=keys | more)
    assert "Traceback" not in done.stderr
    assert all(message in done.stdout + done.stderr for message in messages), done.stdout + done.stderr


def at_a_terminal(cloud: AwsCloud, config: Path, *arguments: str, typed: bytes) -> tuple[int, str, bool]:
    """Exit code and output of a scan at a terminal where a user answers a prompt, and whether it has its echo."""
    keys = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": str(config)}
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(ROOT)
        variables = environment(cloud.environment() | keys)
        os.execve(sys.executable, [sys.executable, "-m", "cli.main", "scan", *arguments], variables)
    shown = b""
    has_echo = False
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the process has ended
            break
        has_echo = bool(termios.tcgetattr(terminal)[3] & termios.ECHO)
        if typed and b"MFA code" in shown and not has_echo:
            os.write(terminal, typed)
            typed = b""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), shown.decode(), has_echo


def test_an_mfa_code_is_asked_for_once_and_the_terminal_keeps_its_echo(cloud: AwsCloud, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(PROFILES)
    code, shown, has_echo = at_a_terminal(cloud, config, "--profile", "mfa", typed=b"123456\n")
    assert code == 3 and "444455556666 us-east-1: 4 GPU instances" in shown and has_echo, shown
    assert shown.count("MFA code") == 1
    code, shown, has_echo = at_a_terminal(cloud, config, "--profile", "mfa", typed=b"\x03")
    assert code == 130 and "nothing was changed" in shown and has_echo, shown


def test_a_refused_mfa_code_is_named(cloud: AwsCloud, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(PROFILES)
    for region in cloud.regions.values():
        region.refuses, region.code = frozenset({"AssumeRole"}), "AccessDenied"
        region.message = "MultiFactorAuthentication failed with invalid MFA one time pass code."
    code, shown, has_echo = at_a_terminal(cloud, config, "--profile", "mfa", typed=b"000000\n")
    assert code == 1 and has_echo and "Traceback" not in shown and shown.count("MFA code for") == 1, shown
    assert "the MFA code was not accepted; run the command again" in " ".join(shown.split()), shown


def test_named_regions_need_no_list_of_regions(cloud: AwsCloud) -> None:
    cloud.regions["us-east-1"].refuses = frozenset({"DescribeRegions"})
    found = document(scan(cloud, "--region", "eu-west-1", "--json"))
    assert not found["failures"] and [one["id"] for one in found["instances"]] == ["i-far"]
    (failure,) = document(scan(cloud, "--json"))["failures"]
    assert (failure["missing"], failure["code"]) == ("regions", "denied")
    assert "gpufleet scan --print-policy aws" in failure["message"]


def test_a_region_that_refuses_the_credentials_is_named(cloud: AwsCloud) -> None:
    cloud.regions["eu-west-1"].refuses = frozenset({"DescribeInstances"})
    cloud.regions["eu-west-1"].code = "AuthFailure"
    (failure,) = document(scan(cloud, "--json"))["failures"]
    assert (failure["region"], failure["code"]) == ("eu-west-1", "credentials"), "GPUs in it would be invisible"


def test_an_instance_that_ends_is_not_charged_and_needs_no_action(cloud: AwsCloud) -> None:
    cloud.regions["us-east-1"] = AwsRegion(
        instances=[AwsInstance(id="i-ending", launched=OLD, state="shutting-down", gpus=[hours(0)])]
    )
    found = document(scan(cloud, "--region", "us-east-1", "--json"))
    (one,) = found["instances"]
    assert (one["use"], one["usd_per_hour"], one["idle_hours"]) == ("stopped", None, 0)
    assert not found["advice"]


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        pytest.param(60, ["instance", "use", "USD/h", "waste USD"], id="narrow"),
        pytest.param(80, ["instance", "use", "USD/h", "waste USD", "type", "region"], id="usual"),
    ],
)
def test_a_narrow_terminal_shows_whole_names_in_fewer_columns(
    cloud: AwsCloud, width: int, headings: list[str]
) -> None:
    long = [f"i-0123456789abcdef{number}" for number in range(3)]
    for one, name in zip(cloud.regions["us-east-1"].instances, long, strict=False):
        one.id = name
    done = scan(cloud, "--region", "us-east-1", more={"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": str(width)})
    lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith("Instances ("))
    assert re.split(r"\s{2,}", lines[first + 1].strip()) == headings
    table = lines[first + 1 : first + 6]
    assert {line.split()[0] for line in table[1:]} == {*long, "i-stopped"} and max(map(len, table)) <= width


def test_hostile_tags_change_neither_the_table_nor_the_terminal(cloud: AwsCloud) -> None:
    cloud.regions["us-east-1"].instances[0].tags = {"Owner": f"a\tb {'x' * 200}\u202e"}
    done = scan(cloud)
    (row,) = (line for line in done.stdout.splitlines() if "i-idle" in line and "g6.xlarge" in line)
    assert "a b xxx" in row and "x…" in row and "\u202e" not in row


def test_the_summary_is_posted_to_slack_without_account_ids(cloud: AwsCloud) -> None:
    sink = SlackSink("127.0.0.1", 0, local_token.callers())
    sink.start()
    slack = {"GPUFLEET_SLACK_TOKEN": local_token.BOT, "GPUFLEET_SLACK_API_URL": f"{sink.url}/api/"}
    try:
        done = scan(cloud, "--slack", "#gpu-costs", "--redact", more=slack)
    finally:
        sink.stop()
    (message,) = sink.channels.messages
    text = json.dumps(message.content, ensure_ascii=False)
    assert message.channel == "#gpu-costs" and done.returncode == 3
    assert "running GPU instances" in text and "waste of the last 7d" in text
    assert "aws ec2 stop-instances --region us-east-1 --instance-ids i-idle" in text
    assert "111122223333" not in text and "account-1" in text


def test_a_post_that_slack_refuses_is_a_failure_after_the_result(cloud: AwsCloud) -> None:
    done = scan(cloud, "--slack", "#x", more={"GPUFLEET_SLACK_TOKEN": "xoxb-1", "GPUFLEET_SLACK_API_URL": cloud.url})
    assert done.returncode == 1 and "--slack #x: not posted" in done.stderr and "Do first:" in done.stdout
    done = scan(cloud, "--slack", "#x")
    assert done.returncode == 2 and "GPUFLEET_SLACK_TOKEN" in done.stderr and not done.stdout


def test_ctrl_c_shows_what_was_read_and_that_it_is_incomplete(cloud: AwsCloud) -> None:
    cloud.regions["eu-west-1"].never_answers = frozenset({"*"})
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "scan", "--json"],
        cwd=ROOT, env=environment(cloud.environment()), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a shell's background jobs, such as a nightly run, ignore SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as running:  # fmt: skip
        assert running.stderr is not None and running.stdout is not None
        next(line for line in running.stderr if "us-east-1: " in line)
        running.send_signal(signal.SIGINT)
        found = json.loads(running.stdout.read())
        assert running.wait(60) == 130 and found["interrupted"] is True
    assert {one["id"] for one in found["instances"]} == {"i-idle", "i-busy", "i-blind", "i-stopped"}
    assert [(one["region"], one["code"]) for one in found["failures"]] == [("eu-west-1", "interrupted")]


def test_a_store_that_fails_is_named_and_accounts_and_projects_are_in_one_scan(cloud: AwsCloud) -> None:
    with google_cloud() as google:
        google.projects["research-7"] = [GoogleVm(name="worker", number=1, launched=OLD)]
        done = scan(
            cloud, "--json", "--redact", "--prometheus", "http://u:secret@127.0.0.1:1", more=google.environment()
            | {"GOOGLE_CLOUD_PROJECT": "research-7"},
        )  # fmt: skip
    found = document(done)
    assert {one["cloud"] for one in found["instances"]} == {"aws", "gcp"}
    assert [(one["cloud"], one["missing"]) for one in found["failures"]] == [("prometheus", "metrics")]
    assert "secret" not in done.stdout + done.stderr and "research-7" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--region", "us-est-1"], "did you mean us-west-1 or us-east-1 or us-west-2?", id="AWS"),
        pytest.param(["--region", "us-central11"], "did you mean us-central1 or me-central1?", id="Google Cloud"),
        pytest.param(
            ["--project", "research-7", "--region", "us-east-1"],
            "choose a region of gcp: us-east-1 is a region of aws",
            id="other cloud",
        ),
        pytest.param(
            ["--prometheus", "http://u:secret@[::1"], "'http://[::1' is not an address", id="half an address"
        ),
        pytest.param(["--profile", ""], "--profile: expected a name, got ''", id="no profile"),
        pytest.param(["--region", ""], "--region: expected a name, got ''", id="no region"),
        pytest.param(["--project", ""], "--project: expected the id of a Google Cloud project", id="no project"),
        pytest.param(["--project", "../../x"], "`gcloud projects list` shows it; got '../../x'", id="a path"),
        pytest.param(["--prometheus", "http://"], "expected an http:// or https:// address", id="no server"),
        pytest.param(
            ["--role", "gpu-scan"], "expected an ARN as arn:aws:iam::111122223333:role/NAME", id="role name"
        ),
    ],
)
def test_names_that_cannot_exist_are_refused_and_not_reported_as_empty(
    cloud: AwsCloud, arguments: list[str], message: str
) -> None:
    done = scan(cloud, *arguments)
    assert done.returncode == 2 and message in done.stderr and not done.stdout and not cloud.calls


def test_a_region_of_one_cloud_is_read_in_that_cloud_only(cloud: AwsCloud) -> None:
    with google_cloud() as google:
        google.projects["research-7"] = [GoogleVm(name="worker", number=1, launched=OLD)]
        more = google.environment() | {"GOOGLE_CLOUD_PROJECT": "research-7"}
        found = document(scan(cloud, "--json", "--region", "us-central1", more=more))
        assert ([one["id"] for one in found["instances"]], found["failures"]) == (["worker"], [])
        assert not cloud.calls, "AWS has no us-central1"
        google.calls.clear()
        found = document(scan(cloud, "--json", "--region", "eu-west-1", more=more))
        assert [one["id"] for one in found["instances"]] == ["i-far"] and not google.calls


def test_an_account_without_gpus_is_not_an_error(cloud: AwsCloud) -> None:
    cloud.regions = {"us-east-1": AwsRegion(), "eu-west-1": AwsRegion()}
    done = scan(cloud)
    assert done.returncode == 0
    assert done.stdout.startswith("1 account, 2 regions: 0 running GPU instances, 0.00 USD/h\n")


def test_redacted_output_names_no_account(cloud: AwsCloud, tmp_path: Path) -> None:
    page = tmp_path / "scan.html"
    first, second = cloud.regions["us-east-1"].instances[:2]
    first.tags, second.tags = {"Owner": "111122223333-ml"}, {"Owner": "arn:aws:iam::999988887777:user/x"}
    for arguments in (["--json"], ["--html", str(page)]):
        done = scan(cloud, "--redact", *arguments)
        assert "account-1" in done.stdout and "account-1-ml" in done.stdout
        assert not any(account in done.stdout + done.stderr for account in ("111122223333", "999988887777"))
        assert "aws account us-east-1: 4 GPU instances" in done.stderr
    assert "111122223333" not in page.read_text() and "account-1" in page.read_text()


def test_redacted_output_hides_projects_and_profiles_and_leaves_a_valid_page(cloud: AwsCloud, tmp_path: Path) -> None:
    config, page = tmp_path / "config", tmp_path / "scan.html"
    config.write_text(
        PROFILES.replace("profile team", "profile main").replace("profile admin", "profile r&d-444455556666")
    )
    profiles = ["--profile", "main", "--profile", "r&d-444455556666", "--profile", "r&d"]
    more = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": str(config)}
    with google_cloud() as google:
        google.projects["research-7"] = [
            GoogleVm(name="worker", number=1, launched=OLD, labels={"owner": "research-7-team"})
        ]
        done = scan(
            cloud, *profiles, "--project", "research-7", "--json", "--redact", "--html", str(page),
            more=more | google.environment(),
        )  # fmt: skip
    text = page.read_text()
    assert "<main>" in text, "a profile named as an element"
    assert not any(name in text + done.stdout + done.stderr for name in ("research-7", "4444", "r&d", "r&amp;d"))
    assert document(done)["duplicates"] == {"account-5": "account-4"}


SPELLINGS = ("1111-2222-3333 ml", "acct_444455556666", "x444455556666", "444455556666x", "4444 5555 6666")
"""Owners that name an account."""


def test_redacted_output_hides_account_ids_in_every_usual_spelling(cloud: AwsCloud, tmp_path: Path) -> None:
    page = tmp_path / "scan.html"
    owners = [*SPELLINGS, f"{'a' * 37}11112222-3333"]
    cloud.regions["us-east-1"].instances = [
        AwsInstance(id=f"i-{number}", launched=OLD, tags={"Owner": owner}) for number, owner in enumerate(owners)
    ]
    shown = [scan(cloud, "--redact", *more) for more in ([], ["--json", "--html", str(page)])]
    text = page.read_text() + "".join(done.stdout + done.stderr for done in shown)
    assert "account-1 ml" in text
    assert not any(part in text for part in ("1111", "2222", "4444", "6666")), text


@pytest.mark.parametrize(
    ("arguments", "more", "hidden", "shown"),
    [
        pytest.param(
            ["--role", "arn:aws:iam::444455556666:role/team/acme-gpu-scan"],
            {},
            ["acme-gpu-scan", "444455556666"],
            "is not authorized",
            id="role",
        ),
        pytest.param([], {"AWS_PROFILE": "acme-prod"}, ["acme-prod"], "could not be found", id="AWS_PROFILE"),
        pytest.param(
            [], {"AWS_DEFAULT_PROFILE": "acme-prod"}, ["acme-prod"], "could not be found", id="AWS_DEFAULT_PROFILE"
        ),
        pytest.param(
            ["--prometheus", "http://metrics.acme.example:1/"],
            {},
            ["acme"],
            "Prometheus at account-",
            id="address of a store that ends in a slash",
        ),
    ],
)
def test_redacted_output_hides_roles_profiles_and_stores(
    cloud: AwsCloud, arguments: list[str], more: dict[str, str], hidden: list[str], shown: str
) -> None:
    user = "arn:aws:sts::444455556666:assumed-role/acme-gpu-scan/gpufleet-scan"
    for region in cloud.regions.values():
        region.refuses, region.message = frozenset({"DescribeInstances"}), f"User: {user} is not authorized: {{}}"
    keys = {"AWS_ACCESS_KEY_ID": ""} if "AWS" in "".join(more) else {}
    for form in ([], ["--json"]):
        done = scan(cloud, "--redact", *arguments, *form, more=keys | more)
        text = done.stdout + done.stderr
        assert shown in text and not any(name in text for name in hidden), text


def test_redacted_output_hides_projects_in_labels_and_messages(tmp_path: Path) -> None:
    page = tmp_path / "scan.html"
    labels = ("ml_acme-research", "acme-research_2", f"{'x' * 30}-acme-research")
    with google_cloud() as google:
        google.projects["acme-research"] = [
            GoogleVm(name=f"vm-{number}", number=number, launched=OLD, labels={"owner": owner}, gpus=[hours(0)])
            for number, owner in enumerate(labels)
        ]
        google.refuses = {"timeSeries.list": 403}
        google.message = "Cloud Monitoring API has not been used in project 71234567890 before or it is disabled"
        text = ""
        for form in ([], ["--json"], ["--html", str(page)]):
            done = subprocess.run(
                [sys.executable, "-m", "cli.main", "scan", "--project", "acme-research", "--redact", *form],
                cwd=ROOT, env=environment(google.environment()),
                capture_output=True, text=True, timeout=180, check=False,
            )  # fmt: skip
            text += done.stdout + done.stderr
    text += page.read_text()
    assert "ml_account-1" in text and "has not been used in project account" in text
    assert not any(part in text for part in ("acme", "71234567890")), text


def test_names_from_tags_are_escaped_in_the_page(cloud: AwsCloud, tmp_path: Path) -> None:
    cloud.regions["us-east-1"].instances[0].tags["Owner"] = "<script>alert(1)</script>"
    page = tmp_path / "scan.html"
    scan(cloud, "--html", str(page))
    assert "<script>" not in page.read_text() and "&lt;script&gt;" in page.read_text()


def test_long_messages_of_the_page_wrap(cloud: AwsCloud, tmp_path: Path) -> None:
    cloud.regions["eu-west-1"].refuses = frozenset({"DescribeInstances"})
    page = tmp_path / "scan.html"
    scan(cloud, "--html", str(page))
    assert '<td class="long">ec2:describe_instances in eu-west-1 was refused' in page.read_text()
    assert "<td>i-idle</td>" in page.read_text(), "an id stays in one line"


def test_a_page_that_cannot_be_written_does_not_lose_the_result(cloud: AwsCloud) -> None:
    done = scan(cloud, "--html", "/dev/full")
    assert done.returncode == 1 and "--html /dev/full: cannot be written: No space left" in done.stderr
    assert "Do first:" in done.stdout


def test_a_page_that_cannot_be_written_is_refused_before_the_scan(cloud: AwsCloud, tmp_path: Path) -> None:
    page = tmp_path / "missing" / "scan.html"
    for path, message in ((page, f"folder {page.parent} does not exist; create it"), (tmp_path, "is a folder")):
        done = scan(cloud, "--html", str(path))
        assert done.returncode == 2 and message in " ".join(done.stderr.split())
    assert not cloud.calls


def test_an_expired_token_is_named_with_the_remedy(cloud: AwsCloud) -> None:
    for region in cloud.regions.values():
        region.refuses, region.code = frozenset({"GetCallerIdentity"}), "ExpiredToken"
    done = scan(cloud)
    assert done.returncode == 1 and "credentials: " in done.stdout and "aws sso login" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--window", "a week"], "--window: 'a week' is not a duration", id="not a duration"),
        pytest.param(["--window", "30d"], "--window: expected at least 2h and at most 14d; got 30d", id="too long"),
        pytest.param(["--window", "0h"], "--window: expected at least 2h and at most 14d; got 0h", id="none"),
        pytest.param(
            ["--idle", "5m"], "--idle: expected at least 2h and at most 7d, the --window; got 5m", id="too short"
        ),
        pytest.param(["--idle", "8d"], "at most 7d, the --window; got 8d", id="idle for longer than is read"),
    ],
)
def test_wrong_options_are_named(cloud: AwsCloud, arguments: list[str], message: str) -> None:
    done = scan(cloud, *arguments)
    assert done.returncode == 2 and message in done.stderr


def test_an_account_gets_at_most_ten_calls_per_second(cloud: AwsCloud) -> None:
    for number in range(12):
        cloud.regions[f"xx-test-{number}"] = AwsRegion()
    scan(cloud, "--json")
    times = sorted(at for at, *_ in cloud.calls)
    assert len(times) > 40
    # over the whole scan: on a busy machine, requests that were sent in time may arrive together
    assert len(times) <= 10 * (times[-1] - times[0]) + 5


@pytest.mark.slow
def test_slow_regions_are_read_at_the_same_time(cloud: AwsCloud) -> None:
    for number in range(15):
        cloud.regions[f"xx-test-{number}"] = AwsRegion(latency_s=1.0)
    found = document(scan(cloud, "--json"))
    assert not found["failures"]
    first = {region: at for at, _, region, operation in reversed(cloud.calls) if operation == "ec2:DescribeInstances"}
    slow = sorted(at for region, at in first.items() if region.startswith("xx-test-"))
    # one after the other, fifteen regions with several calls of a second each would begin over a minute
    assert len(slow) == 15 and slow[-1] - slow[0] < 15


@pytest.mark.slow
def test_ten_thousand_instances_are_read_completely(cloud: AwsCloud) -> None:
    idle = hours(0, 24)
    cloud.regions["us-east-1"].instances = [
        AwsInstance(id=f"i-{number:017x}", launched=OLD, gpus=[idle]) for number in range(10_000)
    ]
    found = document(scan(cloud, "--window", "24h", "--json"))
    assert found["totals"]["by_verdict"]["idle"]["instances"] == 10_000
