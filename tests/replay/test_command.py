"""Tests of the arguments that `gpufleet replay` accepts and refuses, and of its error messages."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from app.errors import AppError
from cli import replay
from cli.output import Exit, exit_of

HEADER = "time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total"
POOLED = f"{HEADER},pool\n" + "".join(f"{60 * t},{name},0,0,0,1,p\n" for t in range(90) for name in "abc")
ALONE = f"{HEADER}\n" + "".join(f"{60 * t},a,0,0,0,1\n" for t in range(90))
MARKET = "time_s,zone,available\n0,a,1\n100,a,1\n200,a,1\n"
REQUESTS = "time_s,input_tokens,output_tokens\n0,10,10\n100,10,10\n"
RATES = "time_s,rate_rps\n0,1\n100,1\n"
COMMANDS = {
    "idle": ["--activity"],
    "spot": ["--target", "1", "--availability"],
    "scale": ["--tokens-per-second-per-replica", "100", "--requests"],
}


@dataclass(frozen=True)
class Result:
    """Result of a command."""

    code: int
    out: str
    wrong: str


def asked(tmp_path: Path, command: str, text: str, *more: str) -> Result:
    """Run a command on a history with that text."""
    path, app = tmp_path / "history.csv", typer.Typer()
    path.write_text(text)
    replay.register(app)
    done = CliRunner().invoke(app, ["replay", command, *COMMANDS[command], str(path), "--json", *more])
    if isinstance(done.exception, AppError):
        return Result(exit_of(done.exception.code), done.stdout, str(done.exception))
    assert isinstance(done.exception, SystemExit | None), done.exception
    return Result(done.exit_code, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("command", "text", "policy"),
    [
        pytest.param("idle", POOLED, {}, id="nothing"),
        pytest.param("idle", POOLED, {"window": "30m"}, id="idle's, with pools"),
        pytest.param("idle", POOLED, {"down_after": "30m"}, id="scale's, with pools"),
        pytest.param("idle", POOLED, {"idle": {"window": "30m"}, "scale": {"headroom": 1}}, id="both by name"),
        pytest.param("idle", POOLED, {"idle": None}, id="none by name"),
        pytest.param("idle", ALONE, {"window": "30m"}, id="idle's, alone"),
        pytest.param("scale", REQUESTS, {"headroom": 1}, id="scale's"),
        pytest.param("spot", MARKET, {"spot": {"hold": "1m"}}, id="spot's by name"),
    ],
)
def test_a_policy_belongs_to_one_watchdog_or_names_it(
    tmp_path: Path, command: str, text: str, policy: object
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy))
    done = asked(tmp_path, command, text, "--policy", str(file))
    assert done.code == Exit.DONE, done.wrong


def test_a_scale_policy_alone_applies_to_a_pool(tmp_path: Path) -> None:
    always = {"days": ["sat", "sun"], "start": "00:00", "end": "00:00", "target": 3}
    flat, named = tmp_path / "flat.json", tmp_path / "named.json"
    flat.write_text(json.dumps({"schedule": [always]}))
    named.write_text(json.dumps({"scale": {"schedule": [always]}}))
    policies: list[list[str]] = [[], ["--policy", str(flat)], ["--policy", str(named)]]
    stops = [json.loads(asked(tmp_path, "idle", POOLED, *policy).out)["stops"] for policy in policies]
    assert stops == [2, 0, 0]


@pytest.mark.parametrize(
    ("command", "text", "policy", "messages"),
    [
        pytest.param(
            "idle",
            POOLED,
            {"window": "30m", "headroom": 1},
            ["'headroom'", "keys of idle", "keys of scale"],
            id="mixed",
        ),
        pytest.param("idle", POOLED, {"windou": "30m"}, ["'windou'", "keys of idle", "keys of scale"], id="unknown"),
        pytest.param("scale", REQUESTS, {"window": "30m"}, ["'window'", "keys of scale", '{"scale"'], id="another's"),
        pytest.param("idle", POOLED, {"idle": {}, "window": "30m"}, ["'idle'", "keys of idle"], id="both ways"),
        pytest.param("idle", ALONE, {"idle": False}, ["idle", "expected a map"], id="false"),
        pytest.param("idle", ALONE, {"idle": []}, ["idle", "expected a map"], id="a list"),
        pytest.param("idle", ALONE, [], ["JSON object"], id="no object"),
    ],
)
def test_a_policy_of_no_watchdog_is_reported(
    tmp_path: Path, command: str, text: str, policy: object, messages: list[str]
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy))
    done = asked(tmp_path, command, text, "--policy", str(file))
    assert done.code == Exit.WRONG_USE
    for message in messages:
        assert message in done.wrong


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "recursion"),
        ('{"window": "30m", "grace": "5m", "window": "2h"}', "'window' occurs twice"),
        ('{"idle": {"grace": "5m", "grace": "6m"}}', "'grace' occurs twice"),
    ],
    ids=["nothing", "half of one", "as deep as the sea", "a key twice", "a key of a key twice"],
)
def test_an_unreadable_policy_is_reported(tmp_path: Path, written: str, message: str) -> None:
    file = tmp_path / "policy.json"
    file.write_text(written)
    done = asked(tmp_path, "idle", ALONE, "--policy", str(file))
    assert done.code == Exit.WRONG_USE
    assert "policy.json" in done.wrong
    assert message in done.wrong


@pytest.mark.parametrize(
    ("command", "text", "option"),
    [
        pytest.param("idle", ALONE, "--cold-start", id="a boot"),
        pytest.param("spot", MARKET, "--cold-start", id="a boot of spot"),
        pytest.param("spot", MARKET, "--on-demand-price", id="a price"),
        pytest.param("spot", MARKET, "--spot-price", id="a price of spot"),
        pytest.param("scale", REQUESTS, "--max-wait", id="a wait"),
        pytest.param("scale", RATES, "--tokens-per-request", id="tokens"),
    ],
)
@pytest.mark.parametrize("value", ["inf", "1e+300"])
def test_an_excessive_number_is_refused_with_its_name(
    tmp_path: Path, command: str, text: str, option: str, value: str
) -> None:
    done = asked(tmp_path, command, text, option, value)
    assert done.code == Exit.WRONG_USE
    message = " ".join(done.wrong.replace("│", " ").split())
    assert option in message and f"{value} is too large: expected at most 1,000,000" in message


@pytest.mark.parametrize("rule", ["own", "timer-15m", "queue-threshold"])
def test_the_largest_accepted_values_are_replayed(tmp_path: Path, rule: str) -> None:
    text = "time_s,rate_rps\n" + "".join(f"{60 * t},{1e9 * (t > 2):g}\n" for t in range(5))
    options = ["--tokens-per-request", "1e12", "--max-wait", "1e6", "--cold-start", "1e6", "--rule", rule]
    answer = json.loads(asked(tmp_path, "scale", text, *options).out, parse_constant=pytest.fail)
    assert answer["peak_replicas"] <= 1_000_000


MONDAY = {"days": ["mon"], "start": "08:00", "end": "09:00", "target": 7, "timezone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("first", "holds"),
    [
        pytest.param(0.0, False, id="a Saturday"),
        pytest.param(2 * 86400 + 7 * 3600.0, True, id="that Monday at eight"),
        pytest.param(1_720_418_400.0, True, id="Monday, 2024-07-08, at eight, since 1970"),
        pytest.param(1_720_418_400.0 + 3600, False, id="at nine"),
        pytest.param(1_720_418_400.0 - 946_684_800, True, id="the same moment since 2000"),
    ],
)
def test_schedules_use_the_time_of_the_history(tmp_path: Path, first: float, holds: bool) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"schedule": [MONDAY]}))
    moments = [first + 60 * tick for tick in range(60)]
    requests = "time_s,input_tokens,output_tokens\n" + "".join(f"{at},1,1\n" for at in moments)
    answer = json.loads(asked(tmp_path, "scale", requests, "--policy", str(policy)).out)
    assert (answer["peak_replicas"] == 7) == holds
    rates = "time_s,rate_rps\n" + "".join(f"{at},0.001\n" for at in moments)
    answer = json.loads(asked(tmp_path, "scale", rates, "--policy", str(policy)).out)
    assert (answer["peak_replicas"] == 7) == holds
    rows = "".join(f"{at},{name},0,0,0,1,p\n" for at in moments for name in "abcdefg")
    answer = json.loads(asked(tmp_path, "idle", f"{HEADER},pool\n{rows}", "--policy", str(policy)).out)
    assert (answer["stops"] == 0) == holds


@pytest.mark.parametrize("option", ["--target", "--spare"])
def test_too_many_instances_are_refused(tmp_path: Path, option: str) -> None:
    done = asked(tmp_path, "spot", MARKET, option, "1000001")
    assert done.code == Exit.WRONG_USE
    message = " ".join(done.wrong.replace("│", " ").split())
    assert option in message and "at most 1,000,000 instances" in message


@pytest.mark.parametrize(
    ("command", "text", "policy", "more", "named"),
    [
        pytest.param("idle", ALONE, {"window": "1h", "max_stops_per_day": None}, (), "", id="alone"),
        pytest.param("idle", ALONE, {"headroom": 1}, (), "scale.headroom", id="scale's, alone"),
        pytest.param("idle", ALONE, {"grace": "1h"}, ("--rule", "timer-15m"), "idle.grace", id="a timer"),
        pytest.param("idle", ALONE, {"gpu_active_below": 0.5}, ("--rule", "timer-15m"), "", id="what a timer asks"),
        pytest.param("idle", POOLED, {"headroom": 1, "down_after": "1h"}, (), "", id="pools"),
        pytest.param("idle", POOLED, {"max_stops_per_run": 1}, (), "idle.max_stops_per_run", id="idle's, with pools"),
        pytest.param("idle", POOLED, {"max_stops_per_run": 0}, (), "", id="no stop at all, with pools"),
        pytest.param("spot", MARKET, {"hold": "1h", "max_surge": 3}, (), "", id="spot"),
        pytest.param("spot", MARKET, {"fallback_after": "1h"}, (), "spot.fallback_after", id="boots never hang"),
        pytest.param("spot", MARKET, {"hold": "1h"}, ("--rule", "skyserve"), "spot.hold", id="SkyServe"),
        pytest.param("scale", RATES, {"headroom": 1}, (), "", id="scale"),
        pytest.param("scale", RATES, {"kv_cache_above": 0.5}, (), "scale.kv_cache_above", id="not in any history"),
        pytest.param("scale", RATES, {"kv_cache_above": 0.8}, (), "", id="the default, stated explicitly"),
    ],
)
def test_policy_fields_without_effect_are_reported(
    tmp_path: Path, command: str, text: str, policy: object, more: tuple[str, ...], named: str
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy))
    done = asked(tmp_path, command, text, "--policy", str(file), *more)
    assert done.code == Exit.DONE
    assert done.wrong == (f"gpufleet: --policy {file}: {named}: this replay does not use it\n" if named else "")


@pytest.mark.parametrize(
    ("command", "text", "policy", "message"),
    [
        pytest.param("idle", ALONE, '{"window": "0s"}', "idle.window: expected at least 1s, got 0s", id="no window"),
        pytest.param("idle", ALONE, '{"grace": "999999999d"}', "at most 36500d", id="millions of years"),
        pytest.param(
            "idle", ALONE, '{"max_stops_per_day": 1e308}', "idle.max_stops_per_day: .* got 1e+308", id="stops"
        ),
        pytest.param("scale", RATES, '{"headroom": 1e308}', "scale.headroom: .* got 1e+308", id="headroom"),
        pytest.param("idle", ALONE, '{"coverage": 90}', "idle.coverage: expected 1 or less, got 90", id="percent"),
    ],
)
def test_a_value_that_cannot_be_replayed_is_reported(
    tmp_path: Path, command: str, text: str, policy: str, message: str
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(policy)
    done = asked(tmp_path, command, text, "--policy", str(file))
    assert done.code == Exit.WRONG_USE
    assert all(word in done.wrong for word in message.split(" .* "))


def test_a_ceiling_may_be_written_as_a_number_as_in_the_fleet_document(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"price_ceiling": 0.29}')
    text = MARKET.replace("available", "available,spot_price").replace(",1\n", ",1,0.3\n")
    assert json.loads(asked(tmp_path, "spot", text, "--policy", str(file)).out)["spot_launches"] == 0
