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
            ["type: is missing, and rule resource-type-listed allows no exception without it; write the type that the"
             " rule's message names, for example aws:ec2/instance:Instance"],
            id="without a type",
        ),
        pytest.param(
            {**ALARM, "resource": "*"},
            ["resource: is every resource, and rule resource-type-listed allows exceptions only for named resources "
             "(is '*'); write the"
             " name that the Pulumi program uses; write one exception for each resource"],
            id="for all",
        ),
        pytest.param(
            {**ALARM, "until": "2027-11-23"},
            ["until: is more than a year from now (is '2027-11-23'); write a day within a year, and review the "
             "exception then"],
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
