"""`gpufleet status` during a change of the key that signs orders: which instances would refuse the new key."""

from app.fleet_view import refused_orders

OLD, NEW = "0" * 64, "f" * 64


def test_nothing_is_reported_while_all_instances_accept_all_keys() -> None:
    assert refused_orders([OLD], ["i-1", "i-2"], {OLD: {"i-1", "i-2"}}) == []
    assert refused_orders([OLD, NEW], ["i-1"], {OLD: ["i-1"], NEW: ["i-1", "i-gone"]}) == []
    assert refused_orders([OLD], [], {}) == []


def test_outdated_instances_are_named_up_to_a_limit() -> None:
    instances = [f"i-{number}" for number in range(8)]
    taken = {OLD: instances, NEW: ["i-7"]}
    assert refused_orders([OLD, NEW], instances, taken) == [
        "orders signed with key ffffffffffff would be refused by i-0, i-1, i-2, i-3, i-4 and 2 more"
    ]


def test_agent_of_a_release_without_signed_orders_accepts_no_key() -> None:
    assert refused_orders([OLD], ["i-old"], {}) == ["orders signed with key 000000000000 would be refused by i-old"]
