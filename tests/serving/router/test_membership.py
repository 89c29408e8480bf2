"""The order in which servers are added and removed. Pure."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.router.breaker import BreakerRules, BreakerState, judge
from serving.router.membership import MembershipRules, MembershipState, ServerStep, plan
from serving.router.policy import Placement, PoolPolicy, RouterPolicy
from serving.router.runtime import ServerStatus, parse_stat
from serving.router.settings import RouterSettings
from serving.router.topology import Replica

RULES = MembershipRules(settings=RouterSettings(), policy=RouterPolicy())


def replica(name: str, address: str = "10.0.0.1") -> Replica:
    return Replica(pool="chat", name=name, address=address)


def server(name: str, **changed: object) -> ServerStatus:
    values: dict[str, object] = {
        "backend": "pool_chat",
        "name": name,
        "address": "10.0.0.1",
        "status": "UP",
        "sessions": 0,
        "agent_status": "L7OK",
        "check_status": "L7OK",
        "total": 0,
        "errors": 0,
        "bytes_out": 0,
        "weight": 100,
    }
    return ServerStatus(**(values | changed))  # type: ignore[arg-type]


def steps(changes: object) -> list[tuple[str, str]]:
    return [(change.step.value, change.server) for change in changes]  # type: ignore[attr-defined]


def test_a_new_server_is_down_until_its_checks_succeed() -> None:
    (change,), _ = plan([replica("i-1")], [], MembershipState(), rules=RULES, now=0)
    added, *others = change.commands
    assert added.startswith("add server pool_chat/i-1 10.0.0.1:8000 ")
    assert "shutdown-sessions" not in added
    assert others == [
        "enable agent pool_chat/i-1",
        "set server pool_chat/i-1 agent down",
        "enable health pool_chat/i-1",
        "set server pool_chat/i-1 state ready",
        "set server pool_chat/i-1 health down",
    ], "at the end of maintenance HAProxy counts the health checks as passed, so health is set last"


def test_removal_steps_are_in_order() -> None:
    memory, seen = MembershipState(), []
    for now, status, sessions in ((0, "UP", 2), (1, "UP", 2), (2, "MAINT", 2), (3, "MAINT", 0)):
        shown = [server("i-1", status=status, sessions=sessions)]
        changes, memory = plan([], shown, memory, rules=RULES, now=now)
        seen.append([change.commands for change in changes])
    assert seen[0] == [], "clouds forget for a moment"
    assert seen[1] == [
        ("disable agent pool_chat/i-1", "disable health pool_chat/i-1", "set server pool_chat/i-1 state maint")
    ]
    assert seen[2] == [], "it still has requests"
    assert seen[3] == [("set server pool_chat/i-1 state maint", "del server pool_chat/i-1")]


def test_a_server_without_requests_is_removed_at_once() -> None:
    _, memory = plan([], [server("i-1")], MembershipState(), rules=RULES, now=0)
    (change,), _ = plan([], [server("i-1")], memory, rules=RULES, now=1)
    assert change.commands[-2:] == ("set server pool_chat/i-1 state maint", "del server pool_chat/i-1")


def test_requests_of_a_machine_terminated_long_ago_are_ended() -> None:
    _, memory = plan([], [server("i-1", sessions=1)], MembershipState(), rules=RULES, now=0)
    _, memory = plan([], [server("i-1", sessions=1)], memory, rules=RULES, now=5)
    changes, _ = plan([], [server("i-1", status="MAINT", sessions=1)], memory, rules=RULES, now=601)
    assert steps(changes) == [("cut", "pool_chat/i-1")]


def test_a_server_that_is_back_before_its_removal_returns() -> None:
    _, memory = plan([], [server("i-1", sessions=1)], MembershipState(), rules=RULES, now=0)
    _, memory = plan([], [server("i-1", sessions=1)], memory, rules=RULES, now=2)
    changes, memory = plan([replica("i-1")], [server("i-1", status="MAINT")], memory, rules=RULES, now=3)
    assert steps(changes) == [("return", "pool_chat/i-1")]
    assert changes[0].commands[-1] == "set server pool_chat/i-1 health down", "DOWN until its checks succeed"
    assert plan([replica("i-1")], [server("i-1")], memory, rules=RULES, now=4)[0] == ()


def test_another_address_is_another_machine() -> None:
    _, memory = plan([replica("i-1", "10.0.0.2")], [server("i-1")], MembershipState(), rules=RULES, now=0)
    changes, _ = plan([replica("i-1", "10.0.0.2")], [server("i-1")], memory, rules=RULES, now=2)
    assert steps(changes) == [("leave", "pool_chat/i-1")]


@pytest.mark.parametrize(
    ("status", "is_kept"),
    [("UP", True), ("UP 1/3", True), ("DRAIN", False), ("DOWN", False), ("MAINT", False), ("DOWN (agent)", False)],
)
def test_only_healthy_servers_are_kept_when_the_inventory_briefly_omits_them(status: str, is_kept: bool) -> None:
    shown = [server("i-1", status=status)]
    changes, memory = plan([], shown, MembershipState(), rules=RULES, now=0)
    assert bool(changes) is not is_kept
    changes, _ = plan([], shown, memory, rules=RULES, now=0.5)
    assert changes, "half a second is enough: a change is to be in force within one"


def test_a_removal_that_the_agent_undid_is_repeated() -> None:
    busy = {"sessions": 1}
    _, memory = plan([], [server("i-1", **busy)], MembershipState(), rules=RULES, now=0)
    _, memory = plan([], [server("i-1", **busy)], memory, rules=RULES, now=1)
    assert plan([], [server("i-1", status="MAINT", **busy)], memory, rules=RULES, now=2)[0] == ()
    changes, _ = plan([], [server("i-1", status="UP", **busy)], memory, rules=RULES, now=3)
    assert steps(changes) == [("leave", "pool_chat/i-1")]


@pytest.mark.parametrize(
    ("status", "agent", "seconds", "silenced"),
    [
        ("UP", "L4TOUT", 31, True),
        ("UP", "L4TOUT", 29, False),
        ("UP", "L7OK", 99, False),
        ("DOWN", "L4CON", 99, False),
    ],
    ids=["silent", "not-yet", "speaks", "down-anyway"],
)
def test_a_server_is_removed_when_its_agent_stays_silent(
    status: str, agent: str, seconds: float, silenced: bool
) -> None:
    shown = [server("i-1", status=status, agent_status=agent)]
    _, memory = plan([replica("i-1")], shown, MembershipState(), rules=RULES, now=0)
    changes, _ = plan([replica("i-1")], shown, memory, rules=RULES, now=seconds)
    assert bool(changes) is silenced


@pytest.mark.parametrize(
    ("agent", "check", "seconds", "sessions", "cut"),
    [
        ("L4TOUT", "L4TOUT", 10, 1, True),
        ("L4TOUT", "L4TOUT", 9, 1, False),
        ("L4TOUT", "L4TOUT", 99, 0, False),
        ("L4CON", "L4TOUT", 99, 1, False),
        ("L4TOUT", "L7TOUT", 99, 1, False),
        ("L4TOUT", "L7OK", 99, 1, False),
        ("L7OK", "L4TOUT", 99, 1, False),
    ],
    ids=["gone", "not-yet", "serves-no-request", "refuses", "hung-engine", "dead-agent", "dead-engine"],
)
def test_requests_on_an_unreachable_machine_are_ended(
    agent: str, check: str, seconds: float, sessions: int, cut: bool
) -> None:
    shown = [server("i-1", status="DOWN", agent_status=agent, check_status=check, sessions=sessions)]
    _, memory = plan([replica("i-1")], shown, MembershipState(), rules=RULES, now=0)
    changes, _ = plan([replica("i-1")], shown, memory, rules=RULES, now=seconds)
    assert steps(changes) == [("cut", "pool_chat/i-1")] * cut


def test_a_pool_filled_in_order_has_a_backend_for_each_type() -> None:
    policy = RouterPolicy(pools={"chat": PoolPolicy(placement=Placement.RESERVED_FIRST)})
    rules = MembershipRules(settings=RouterSettings(), policy=policy)
    (change,), _ = plan([replica("i-1")], [], MembershipState(), rules=rules, now=0)
    assert change.server == "pool_chat.on-demand/i-1"


names = st.sets(st.sampled_from([f"i-{n}" for n in range(6)]))


@given(st.lists(st.tuples(names, st.integers(0, 3)), min_size=1, max_size=12), names)
def test_servers_always_converge_to_the_wanted_set(history: list[tuple[set[str], int]], last: set[str]) -> None:
    """For any earlier inventories; and no server is deleted with requests on it."""
    memory, there, now = MembershipState(), {}, 0.0
    rules = MembershipRules(settings=RouterSettings(), policy=RouterPolicy(), absent=timedelta(seconds=1))
    for wanted, sessions in [*history, *[(last, 0)] * 6]:
        now += 1
        there = {name: server(name, sessions=sessions, status=s.status) for name, s in there.items()}
        changes, memory = plan([replica(name) for name in wanted], there.values(), memory, rules=rules, now=now)
        for change in changes:
            name = change.server.partition("/")[2]
            if change.step is ServerStep.ADD:
                there[name] = server(name)
            elif change.step is ServerStep.DELETE:
                assert there.pop(name).sessions == 0
            elif change.step is ServerStep.LEAVE:
                there[name] = server(name, status="MAINT", sessions=there[name].sessions)
            elif change.step is ServerStep.RETURN:
                there[name] = server(name)
    assert set(there) == last
    assert all(s.status == "UP" for s in there.values())


def test_server_numbers_do_not_depend_on_order() -> None:
    numbers = {replica(f"i-{n:017x}").number for n in range(2000)}
    assert len(numbers) == 2000
    assert min(numbers) > 1


def test_an_invalid_answer_of_the_socket_is_an_error() -> None:
    with pytest.raises(OSError, match="cannot be parsed"):
        parse_stat("Unknown command")


BREAKER = BreakerRules(errors=5, share=0.5, window_s=10, exclusion_s=10, floor=0.5)


def test_a_failing_replica_is_excluded_longer_each_time() -> None:
    memory = BreakerState()
    good = server("i-2")
    _, memory = judge([server("i-1"), good], memory, BREAKER, 0)
    changes, memory = judge([server("i-1", total=8, errors=8), good], memory, BREAKER, 1)
    assert [(c.path, c.percent) for c in changes] == [("pool_chat/i-1", 0)]
    assert judge([server("i-1", total=8, errors=8), good], memory, BREAKER, 10)[0] == ()
    changes, memory = judge([server("i-1", total=8, errors=8), good], memory, BREAKER, 11)
    assert [c.percent for c in changes] == [100]
    changes, memory = judge([server("i-1", total=16, errors=16), good], memory, BREAKER, 12)
    assert "excluded for 20 s" in changes[0].why


@pytest.mark.parametrize(
    ("total", "errors", "is_excluded"),
    [(100, 49, False), (100, 50, True), (4, 4, False), (5, 5, True), (0, 0, False)],
    ids=["few", "half", "too-few", "all", "nothing"],
)
def test_a_replica_is_excluded_from_five_errors_and_half_of_its_responses(
    total: int, errors: int, is_excluded: bool
) -> None:
    _, memory = judge([server("i-1"), server("i-2")], BreakerState(), BREAKER, 0)
    changes, _ = judge([server("i-1", total=total, errors=errors), server("i-2")], memory, BREAKER, 1)
    assert bool(changes) is is_excluded


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_a_client_that_crashes_handlers_never_excludes_more_than_half_of_a_pool(errors: list[int]) -> None:
    start = [server(f"i-{n}") for n in range(len(errors))]
    _, memory = judge(start, BreakerState(), BREAKER, 0)
    bad = [server(f"i-{n}", total=count, errors=count) for n, count in enumerate(errors)]
    _, memory = judge(bad, memory, BREAKER, 1)
    assert len(memory.excluded) <= len(errors) / 2


def test_a_new_controller_includes_replicas_that_the_last_one_excluded() -> None:
    changes, _ = judge([server("i-1", weight=0), server("i-2")], BreakerState(), BREAKER, 0)
    assert [(c.path, c.percent) for c in changes] == [("pool_chat/i-1", 100)]
