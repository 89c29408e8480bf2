"""`gpufleet status` while the key that signs orders changes: which instances would refuse the new one."""

from app.fleet_view import refused_orders

OLD, NEW = "0" * 64, "f" * 64


def test_nothing_is_said_while_every_instance_takes_every_key_of_the_settings() -> None:
    assert refused_orders([OLD], ["i-1", "i-2"], {OLD: {"i-1", "i-2"}}) == []
    assert refused_orders([OLD, NEW], ["i-1"], {OLD: ["i-1"], NEW: ["i-1", "i-gone"]}) == []
    assert refused_orders([OLD], [], {}) == []


def test_who_still_waits_for_a_rollout_is_named_and_of_many_the_first() -> None:
    instances = [f"i-{number}" for number in range(8)]
    taken = {OLD: instances, NEW: ["i-7"]}
    assert refused_orders([OLD, NEW], instances, taken) == [
        "orders signed with key ffffffffffff would be refused by i-0, i-1, i-2, i-3, i-4 and 2 more"
    ]


def test_an_agent_of_a_release_before_orders_were_signed_takes_none() -> None:
    assert refused_orders([OLD], ["i-old"], {}) == ["orders signed with key 000000000000 would be refused by i-old"]
