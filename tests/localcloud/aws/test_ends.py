"""When the activities of a group do not explain an end, the description of the instance does."""

import pytest

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.clouds.aws.inventory import AwsInventory
from gpufleet.domain.activity import Activity, ActivityKind
from tests.fixtures.clouds.emulator import REGION, RunningCloud, make_group, make_template, wait_for
from tests.fixtures.watchdogs.plain import START


@pytest.mark.parametrize(
    ("spot", "why"),
    [(True, ActivityKind.PREEMPTED), (False, ActivityKind.ENDED_BY_PERSON)],
    ids=["taken", "a person"],
)
def test_cause_of_an_end_is_read_from_the_instance(cloud: RunningCloud, spot: bool, why: ActivityKind) -> None:
    name = f"ends-{spot}".lower()
    make_group(cloud, name, make_template(cloud, name), size=1, spot=spot, pool=name)
    (member,) = wait_for("a member", lambda: cloud.in_service(name))
    instance = member["InstanceId"]
    if spot:
        cloud.control("POST", "preempt", {"pool": name, "notice_s": 0})
    else:
        cloud.client("ec2").terminate_instances(InstanceIds=[instance])
    calls = AwsCalls(REGION, cloud.client)

    def ends() -> list[Activity]:
        return [a for a in AwsGroups(calls).activities([name], START.replace(year=2000)) if a.instance_id == instance]

    found = wait_for("its end", lambda: [a for a in ends() if a.kind is not ActivityKind.LAUNCHED])
    assert [a.kind for a in found] == [ActivityKind.ENDED_UNSTATED]
    wait_for(
        "its description", lambda: [i for i in AwsInventory(calls, REGION, "e").ended([instance]) if i.end_reason]
    )
    assert [i.end_reason for i in AwsInventory(calls, REGION, "e").ended([instance, "i-0123456789abcdef0"])] == [why]
