"""Tests of `gpufleet policies`: it explains rules, and checks a plan without the engine."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import main
from cli.output import ANSWER_BEGUN
from gpufleet.settings.environment import PolicyException
from policies.pack import RULES
from tests.fixtures.stacks.settings_files import AWS, FLEET, changed

ALARM, INGRESS = "aws:cloudwatch/metricAlarm:MetricAlarm", "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
OBJECT = "gcp:storage/bucketObject:BucketObject"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
WAIVER = {"rule": "resource-type-listed", "type": ALARM, "resource": "it", "owner": "ann", "reason": "wanted"}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr of `gpufleet policies`."""
        monkeypatch.setattr(sys, "argv", ["gpufleet", "policies", *arguments])
        ANSWER_BEGUN.clear()  # an earlier command of this process sets it
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Write the production settings with one exception."""
    path = tmp_path / "Pulumi.aws-prod.yaml"
    waivers = [{**WAIVER, "until": "2999-01-01"}]
    # prod requires spot in several zones, and these plans have none
    config = changed(AWS, {"policies.exceptions": waivers, "environment": "dev"})
    path.write_text(yaml.safe_dump({"config": config}))
    return path


PROVIDER = "urn:pulumi:dev::gpu-fleet::pulumi:providers:aws::default_7_51_1"


def step(kind: str, name: str = "it", op: str = "create", provider: str = PROVIDER, **inputs: Any) -> dict[str, Any]:
    urn = f"urn:pulumi:dev::gpu-fleet::{'gpu-fleet:aws:Firewall$' if kind == INGRESS else ''}{kind}::{name}"
    state = {"urn": urn, "type": kind, "inputs": inputs}
    return {
        "op": op,
        "urn": urn,
        "provider": f"{provider}::{UNKNOWN}",
        "oldState" if op == "delete" else "newState": state,
    }


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., str]:
    def plan(*steps: dict[str, Any]) -> str:
        path = tmp_path / "preview.json"
        counts = {one["op"]: sum(other["op"] == one["op"] for other in steps) for one in steps}
        path.write_text(json.dumps({"config": {}, "steps": steps, "changeSummary": counts}))
        return str(path)

    return plan


def test_a_plan_that_breaks_no_rule_passes(run: Run, settings: Path, plan: Callable[..., str]) -> None:
    code, out, _ = run("check", plan(step(INGRESS, cidrIpv4="10.0.0.0/8")), "--settings", str(settings))
    assert (code, out.splitlines()[-1].rpartition(": ")[2]) == (0, "passes")


def test_a_violation_names_resource_property_value_rule_and_remedy(
    run: Run, settings: Path, plan: Callable[..., str]
) -> None:
    given = plan(step(ALARM, "other"), step(OBJECT, metadata={"x": "[secret]"}))
    code, out, _ = run("check", given, "--settings", str(settings), "--json")
    found = json.loads(out)
    assert (code, found["passes"], found["resources"], found["exceptions"]) == (1, False, 3, [])
    assert found["rules"] == [rule.id for rule in RULES]
    first, second = found["violations"]
    remedies = {rule.id: rule.remedy for rule in RULES}
    assert first == {
        "rule": "resource-type-listed",
        "resource": "other",
        "type": ALARM,
        "property": "",
        "value": None,
        "message": first["message"],
        "remedy": remedies["resource-type-listed"],
    }
    assert first["message"].startswith(f"other ({ALARM}): ")
    assert (second["rule"], second["property"], second["value"]) == (
        "no-hidden-value",
        "metadata.x",
        "(known after up)",
    )


def test_an_exception_lets_pass_and_is_listed(run: Run, settings: Path, plan: Callable[..., str]) -> None:
    code, out, _ = run("check", plan(step(ALARM)), "--settings", str(settings), "--json")
    assert (code, json.loads(out)["exceptions"]) == (0, [{**WAIVER, "until": "2999-01-01"}])
    code, out, _ = run("check", plan(step(ALARM)), "--settings", str(settings))
    assert (code, out.splitlines()[0]) == (
        0,
        f"allowed until 2999-01-01 by ann: resource-type-listed, it ({ALARM}): wanted",
    )


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        pytest.param([step(ALARM, "other", op="delete"), step(INGRESS)], 0, id="deleted"),
        pytest.param([step(ALARM, "other", op="same")], 1, id="there already"),
        pytest.param([step(ALARM, "other", op="read")], 0, id="looked up"),
        pytest.param([step(INGRESS, provider=PROVIDER.replace("aws:", "random:"))], 1, id="of another provider"),
        pytest.param(
            [step(INGRESS, provider=PROVIDER.replace("default_7_51_1", "mine"))], 1, id="of a provider made"
        ),
        pytest.param([step(OBJECT, content="[secret]")], 0, id="content that the provider hides"),
        pytest.param([step(INGRESS, cidrIpv4="0.0.0.0/0")], 1, id="open"),
        pytest.param([step(INGRESS, cidrIpv4="[secret]")], 1, id="hidden"),
    ],
)
def test_resources_after_the_plan_are_checked(
    run: Run, settings: Path, plan: Callable[..., str], steps: list[dict[str, Any]], code: int
) -> None:
    assert run("check", plan(*steps), "--settings", str(settings))[0] == code


def test_a_secret_in_a_value_is_not_shown(run: Run, settings: Path, plan: Callable[..., str]) -> None:
    key = "AKIA" + "I" * 16
    template = step("aws:ec2/launchTemplate:LaunchTemplate", userData=f"export K={key}")
    code, out, err = run("check", plan(template), "--settings", str(settings), "--json")
    assert code == 1
    assert "no-secret-in-user-data" in {one["rule"] for one in json.loads(out)["violations"]}
    assert key not in out + err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "No such file", id="no such file"),
        pytest.param("", "the preview is empty", id="empty"),
        pytest.param('{"steps": [{"op": "cre', "the preview is not JSON", id="cut"),
        pytest.param('{"resources": []}', "no `steps`", id="of something else"),
        pytest.param('{"steps": []}', "has no resources", id="nothing in it"),
        pytest.param(
            '{"steps": [], "changeSummary": {"create": 2}}', "0 of 2 steps `create`", id="cut between steps"
        ),
        pytest.param('{"steps": [], "changeSummary": {"same": 2}}', "--show-sames", id="without unchanged resources"),
    ],
)
def test_an_incomplete_preview_is_an_error(
    run: Run, settings: Path, tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "preview.json"
    if text is not None:
        path.write_text(text)
    code, out, err = run("check", str(path), "--settings", str(settings), "--json")
    assert code == 2
    assert message in err
    assert message in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"policies.exceptions": [{**WAIVER, "until": "soon"}]}, "exceptions.0.until", id="exception"),
        pytest.param({"budget": {"usd_per_month": "lots"}}, "budget.usd_per_month", id="budget"),
        pytest.param(
            {"policies.exceptions": [{**WAIVER, "rule": "no-wildcard-iam", "until": "2999-01-01"}]},
            "no-wildcard-iam is now iam-in-list",
            id="exception of a rule by its old id",
        ),
    ],
)
def test_settings_with_errors_are_refused(
    run: Run, plan: Callable[..., str], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "Pulumi.aws-prod.yaml"
    path.write_text(yaml.safe_dump({"config": changed(AWS, change)}))
    code, _, err = run("check", plan(step(INGRESS)), "--settings", str(path))
    assert (code, message in err) == (2, True)


@pytest.mark.parametrize(("environment", "code"), [("dev", 0), ("prod", 2)])
def test_a_plan_of_another_environment_is_an_error(
    run: Run, settings: Path, plan: Callable[..., str], environment: str, code: int
) -> None:
    path = Path(plan(step(INGRESS, cidrIpv4="10.0.0.0/8")))
    fleet = {"cloud": "aws", "environment": environment}
    path.write_text(json.dumps({**json.loads(path.read_text()), "config": {FLEET: json.dumps(fleet)}}))
    found, _, err = run("check", str(path), "--settings", str(settings))
    assert (found, "is a plan for aws prod, and" in err) == (code, code == 2)


def test_missing_settings_are_an_error(run: Run, plan: Callable[..., str], tmp_path: Path) -> None:
    code, _, err = run("check", plan(step(INGRESS)), "--settings", str(tmp_path / "absent.yaml"))
    assert (code, "No such file" in err) == (2, True)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_is_explained_with_a_valid_exception(run: Run, rule: Any) -> None:
    code, out, _ = run("explain", rule.id)
    assert (code, out.splitlines()[0]) == (0, rule.id)
    assert {rule.reason, f"Remedy: {rule.remedy}"} <= set(out.splitlines())
    (written,) = yaml.safe_load(out[out.index("policies:") :])["policies"]["exceptions"]
    exception = PolicyException.model_validate(written)
    assert isinstance(written["until"], str), "Pulumi makes a time of a date without quotes, which no settings take"
    assert (exception.rule, exception.type, exception.resource) == (rule.id, "aws:ec2/instance:Instance", "NAME")


def test_an_unknown_rule_is_an_error_with_similar_names(run: Run) -> None:
    code, _, err = run("explain", "open-ingres")
    assert code == 2
    assert "'open-ingres' is not a rule of the policy pack; similar names: no-open-ingress" in err


def test_all_rules_are_listed(run: Run) -> None:
    assert [line.split()[0] for line in run("list")[1].splitlines()] == [rule.id for rule in RULES]
    listed = json.loads(run("list", "--json")[1])
    assert [(one["rule"], one["remedy"]) for one in listed] == [(rule.id, rule.remedy) for rule in RULES]
