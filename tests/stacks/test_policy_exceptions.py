"""Tests of the errors that `gpufleet settings check` reports for exceptions from policy rules."""

from typing import Any

import pytest

from cli import policy_exceptions
from stacks import reading
from tests.fixtures.stacks.settings_files import AWS, FLEET, TODAY, changed, problems

ALARM = {
    "rule": "resource-type-listed",
    "type": "aws:cloudwatch/metricAlarm:MetricAlarm",
    "resource": "alarm",
    "owner": "ops",
    "reason": "r",
    "until": "2027-11-22",
}
WITHOUT_A_TYPE = {key: value for key, value in ALARM.items() if key != "type"}


@pytest.mark.parametrize(
    ("exception", "lines"),
    [
        pytest.param(ALARM, [], id="by type and name"),
        pytest.param({**WITHOUT_A_TYPE, "rule": "disks-encrypted", "resource": "*"}, [], id="of another rule"),
        pytest.param(
            WITHOUT_A_TYPE,
            ["type: is missing, and rule resource-type-listed lets nothing pass without it; name the type that the"
             " message of the rule names, as aws:ec2/instance:Instance"],
            id="without a type",
        ),
        pytest.param(
            {**ALARM, "resource": "*"},
            ["resource: is every resource, and rule resource-type-listed lets one pass by its name (is '*'); name the"
             " resource as the program does; write an exception for each"],
            id="for all",
        ),
        pytest.param(
            {**ALARM, "until": "2027-11-23"},
            ["until: is more than a year off (is '2027-11-23'); write a day within a year, and look at it "
             "again then"],
            id="more than a year",
        ),
    ],
)  # fmt: skip
def test_an_exception_without_effect_or_expiry_is_an_error(exception: dict[str, Any], lines: list[str]) -> None:
    settings = reading.parse(changed(AWS, {"policies.exceptions": [exception]}), "file", TODAY)
    found = [str(problem) for problem in policy_exceptions.problems(settings, TODAY)]
    assert found == [f"{FLEET}.policies.exceptions.0.{line}" for line in lines]


@pytest.mark.parametrize("kind", ["Instance", "aws:ec2/instance", "aws ec2:instance:Instance", "*"])
def test_a_type_of_an_exception_has_the_form_of_a_type(kind: str) -> None:
    (line,) = problems(changed(AWS, {"policies.exceptions": [{**ALARM, "type": kind}]}))
    assert line.startswith(f"{FLEET}.policies.exceptions.0.type: ")
