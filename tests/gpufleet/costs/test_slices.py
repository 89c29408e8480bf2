"""The bill of a node by device, slice and tenant: computed by hand, and properties that hold for any tree."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from gpufleet.costs.slice_bills import by_slice, with_energy
from gpufleet.costs.slices import BilledSpan, NodeBill, NodePart, allocate
from gpufleet.costs.slot_parts import ALL, NodeShape, PartState, hour_parts
from gpufleet.domain import money
from gpufleet.domain.slices import MIG_GPUS
from gpufleet.ledger.slots import SLOTS
from gpufleet.ledger.units import Sighting, UnitHour

T0 = datetime(2026, 11, 21, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
A100 = NodeShape(devices=1, gpu="A100-80GB")
H100_8 = NodeShape(devices=8, gpu="H100-80GB")
USED, IDLE, UNMEASURED, STRANDED = PartState.USED, PartState.IDLE, PartState.UNMEASURED, PartState.STRANDED


def slots(first: int, end: int) -> int:
    return (1 << end) - (1 << first)


def unit(device: str = "GPU-0", slice: str = "", profile: str = "", tenant: str = "", **more: object) -> UnitHour:
    """A unit that is reported the whole hour, without evidence."""
    fields: dict[str, object] = {"engine": "", "model": "", "hour": T0, "instance_id": "i-1", "seen": ALL}
    bits = dict.fromkeys(("busy", "idle", "engine_busy", "engine_idle"), 0)
    names = {"environment": "e", "device": device, "slice": slice, "profile": profile, "tenant": tenant}
    return UnitHour(**(fields | bits | names | more))  # pyright: ignore[reportArgumentType]


def bill(shape: NodeShape = A100, usd: str | None = "7", hours: int = 1, **more: object) -> NodeBill:
    price = None if usd is None else Decimal(usd)
    spans = [BilledSpan(start=T0, end=T0 + hours * HOUR, usd_per_hour=price, pool="chat", model="m", owner="t")]
    return NodeBill(**({"instance_id": "i-1", "shape": shape, "spans": spans} | more))  # pyright: ignore[reportArgumentType]


def parts(node: NodeBill, rows: Sequence[UnitHour], sightings: Sequence[Sighting] = ()) -> list[NodePart]:
    return allocate({node.instance_id: node}, rows, {node.instance_id: sightings})


def by_hand(found: Sequence[NodePart]) -> dict[tuple[str, str, str], str]:
    """Slice, users and state to USD."""
    usd = {(one.key.slice, "+".join(one.key.users), one.state.value): money.usd(one.amount) for one in found}
    return {key: format(value.normalize(), "f") for key, value in usd.items()}


def test_each_tenant_of_a_divided_gpu_costs_its_slice_and_the_idle_one_is_shown() -> None:
    rows = [
        unit(slice="1", profile="2g.20gb", tenant="a/one", busy=ALL),
        unit(slice="2", profile="2g.20gb", tenant="b/two", idle=ALL),
        unit(slice="3", profile="2g.20gb", tenant="c/three", busy=slots(0, 90), idle=slots(90, 180)),
    ]
    assert by_hand(parts(bill(), rows)) == {
        ("1", "a/one", "used"): "2",
        ("2", "b/two", "idle"): "2",
        ("3", "c/three", "used"): "0.5",
        ("3", "c/three", "idle"): "0.5",
        ("3", "c/three", "unmeasured"): "1",
        ("", "", "stranded"): "1",
    }


@pytest.mark.parametrize(
    ("shape", "profiles", "stranded", "code"),
    [
        pytest.param(A100, ["3g.40gb", "3g.40gb"], "1", "no_slice_fits", id="all memory is in two slices"),
        pytest.param(A100, ["1g.20gb"] * 4, "3", "no_slice_fits", id="slices with double memory"),
        pytest.param(A100, ["1g.10gb"] * 3, "4", "another_slice_may_fit", id="slices that were not made"),
        pytest.param(A100, ["3g.40gb"], "4", "another_slice_may_fit", id="half a GPU"),
        pytest.param(
            NodeShape(devices=1), ["3g.40gb", "3g.40gb"], "1", "unknown", id="a GPU that is not in the catalogue"
        ),
        pytest.param(
            NodeShape(devices=1, gpu="RTX-PRO-6000"), ["1g.24gb"] * 3, "1.75", "another_slice_may_fit", id="of four"
        ),
    ],
)
def test_compute_that_no_slice_holds_is_stranded(
    shape: NodeShape, profiles: list[str], stranded: str, code: str
) -> None:
    rows = [unit(slice=str(n), profile=profile, idle=ALL) for n, profile in enumerate(profiles)]
    (rest,) = [one for one in parts(bill(shape), rows) if one.state is STRANDED]
    assert (money.usd(rest.amount), rest.key.stranded) == (Decimal(stranded), code)


def test_gpu_without_reported_slices_is_unmeasured_and_not_stranded() -> None:
    rows = [unit(device="GPU-0", slice="1", profile="7g.80gb", busy=ALL)]
    found = parts(bill(NodeShape(devices=2, gpu="H100-80GB")), rows)
    assert by_hand(found) == {("1", "", "used"): "3.5", ("", "", "unmeasured"): "3.5"}


@pytest.mark.parametrize(
    ("shape", "rows", "expected"),
    [
        pytest.param(
            NodeShape(devices=1),
            [unit(slice=f"{n}/", profile="CPX", busy=ALL) for n in range(2)],
            {("0/", "", "used"): "0.875", ("1/", "", "used"): "0.875", ("", "", "unmeasured"): "5.25"},
            id="two of eight partitions of an AMD GPU",
        ),
        pytest.param(
            NodeShape(devices=7, units_per_device=2),
            [unit(device="", slice=str(n), busy=ALL) for n in range(2)],
            {("0", "", "used"): "0.5", ("1", "", "used"): "0.5", ("", "", "unmeasured"): "6"},
            id="two of fourteen Neuron cores, numbered through the host",
        ),
        pytest.param(
            NodeShape(devices=1),
            [unit(slice="0", busy=ALL)],
            {("", "", "unmeasured"): "7"},
            id="a slice of unknown size",
        ),
        pytest.param(
            A100,
            [unit(slice="", busy=ALL), unit(slice="1", profile="7g.80gb", idle=ALL)],
            {("1", "", "idle"): "7"},
            id="numbers of the whole device do not count in addition to its slices",
        ),
        pytest.param(
            A100, [], {("", "", "unmeasured"): "7"}, id="an hour without rows"
        ),
    ],
)  # fmt: skip
def test_parts_of_other_devices_and_unknown_sizes(
    shape: NodeShape, rows: list[UnitHour], expected: dict[tuple[str, str, str], str]
) -> None:
    assert by_hand(parts(bill(shape), rows)) == expected


def engine(tenant: str, works: int, inactive: int, **more: Any) -> UnitHour:
    return unit(tenant=tenant, engine="8000/0", engine_busy=works, engine_idle=inactive, **more)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(
            [
                engine("a", slots(0, 180), slots(180, 360), model="x"),
                engine("b", slots(90, 180), slots(0, 90) | slots(180, 360)),
            ],
            {("", "a", "used"): "2.625", ("", "b", "used"): "0.875", ("", "a+b", "idle"): "3.5"},
            id="by engine busy seconds, the idle time of all together",
        ),
        pytest.param(
            [engine("a", ALL, 0, busy=ALL), unit(tenant="b", busy=ALL)],
            {("", "a+b", "used"): "7"},
            id="one of two engines is not known: inseparable",
        ),
        pytest.param(
            [unit(tenant="a"), unit(tenant="b")],
            {("", "a+b", "unmeasured"): "7"},
            id="no evidence",
        ),
        pytest.param(
            [engine("a", 0, ALL, busy=slots(0, 180)), engine("b", 0, ALL, busy=slots(0, 180))],
            {("", "a+b", "unmeasured"): "3.5", ("", "a+b", "idle"): "3.5"},
            id="the device worked for another process",
        ),
        pytest.param(
            [unit(tenant="", seen=slots(0, 180)), unit(tenant="b", idle=ALL)],
            {("", "b", "idle"): "7"},
            id="a series without a tenant repeats the tenant's",
        ),
        pytest.param(
            [unit(tenant="a", seen=slots(0, 90), busy=ALL), unit(tenant="b", seen=slots(90, 360), busy=ALL)],
            {("", "a", "used"): "1.75", ("", "b", "used"): "5.25"},
            id="one tenant after the other",
        ),
    ],
)
def test_shared_device_is_divided_by_engine_busy_seconds_or_inseparable(
    rows: list[UnitHour], expected: dict[tuple[str, str, str], str]
) -> None:
    assert by_hand(parts(bill(), rows)) == expected


def test_device_that_is_divided_in_another_way_meanwhile_is_charged_by_time() -> None:
    first, second = slots(0, 90), slots(90, 360)
    rows = [
        *(unit(slice=str(n), profile="1g.10gb", seen=first, busy=first) for n in range(7)),
        unit(slice="1", profile="3g.40gb", seen=second, busy=second),
        unit(slice="2", profile="3g.40gb", seen=second, idle=second),
    ]
    sightings = [Sighting("GPU-0", str(n), "1g.10gb", T0 - HOUR, T0 + HOUR) for n in range(7)]
    found = parts(bill(), rows, sightings)
    usd = {(one.key.slice, one.key.profile): money.usd(one.amount) for one in found}
    assert usd == {
        **{(str(n), "1g.10gb"): Decimal("0.25") for n in range(7)},
        ("1", "3g.40gb"): Decimal("2.25"),
        ("2", "3g.40gb"): Decimal("2.25"),
        ("", ""): Decimal("0.75"),
    }


def test_slice_that_is_not_reported_between_two_sightings_is_unmeasured() -> None:
    """An exporter that stops reporting a slice does not prove that the slice was removed."""
    rows = [unit(slice="1", profile="3g.40gb", busy=ALL)]
    lost = Sighting("GPU-0", "2", "3g.40gb", T0 - HOUR, T0 + HOUR)
    assert by_hand(parts(bill(), rows, [lost])) == {
        ("1", "", "used"): "3", ("2", "", "unmeasured"): "3", ("", "", "stranded"): "1",
    }  # fmt: skip
    removed = Sighting("GPU-0", "2", "3g.40gb", T0 - 2 * HOUR, T0 - HOUR)
    assert by_hand(parts(bill(), rows, [removed])) == {("1", "", "used"): "3", ("", "", "stranded"): "4"}


def test_fixed_charges_and_time_before_the_first_answer_are_parts_of_their_own() -> None:
    start = BilledSpan(start=T0, end=T0 + HOUR / 2, usd_per_hour=Decimal(7), is_starting=True)
    serving = BilledSpan(start=T0 + HOUR / 2, end=T0 + HOUR, usd_per_hour=Decimal(7))
    node = bill(spans=[start, serving], fixed=Decimal(-3600))
    found = parts(node, [unit(slice="1", profile="7g.80gb", busy=ALL)])
    assert by_hand(found) == {("1", "", "used"): "3.5", ("", "", "starting"): "3.5", ("", "", "fixed"): "-1"}


def test_part_without_a_price_has_time_and_no_amount() -> None:
    (found,) = parts(bill(usd=None), [unit(slice="1", profile="7g.80gb", busy=ALL)])
    assert (found.amount, found.time, found.unpriced) == (0, HOUR, HOUR)


# properties


PROFILES = sorted({profile for gpu in MIG_GPUS.values() for profile in gpu.profiles})
BITS = st.one_of(
    st.sampled_from([0, ALL, slots(0, 90), slots(90, 200)]),
    st.tuples(st.integers(0, SLOTS - 1), st.integers(1, SLOTS)).map(lambda two: slots(two[0], max(two))),
)


@st.composite
def users(draw: st.DrawFn, hour: datetime, device: str, number: int) -> list[UnitHour]:
    """The users of one unit in one hour; users of a unit have the same evidence of the unit."""
    whole = draw(st.booleans())
    profile = "" if whole else draw(st.sampled_from([*PROFILES, "CPX", "QPX", "1g.11gb", "", "9g.90gb+me"]))
    slice_id = "" if whole else str(number)
    busy, idle = draw(BITS), draw(BITS)
    names = draw(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=3, unique=True))
    found: list[UnitHour] = []
    for name in names:
        works = draw(BITS)
        more = {"engine": draw(st.sampled_from(["", "8000/0", "8001/0"])), "model": draw(st.sampled_from(["", "x"]))}
        found.append(
            unit(
                device, slice_id, profile, name, hour=hour, busy=busy, idle=idle & ~busy, seen=draw(BITS),
                engine_busy=works if more["engine"] else 0,
                engine_idle=draw(BITS) & ~works if more["engine"] else 0, **more,
            )
        )  # fmt: skip
    return found


@st.composite
def trees(draw: st.DrawFn) -> tuple[NodeBill, list[UnitHour]]:
    """A node with its bill, and the hours of its units; devices and slices change from hour to hour."""
    rows: list[UnitHour] = []
    hours = draw(st.integers(1, 2))
    for hour in range(hours):
        for device in draw(st.lists(st.sampled_from(["", "GPU-0", "GPU-1"]), max_size=2, unique=True)):
            for number in range(draw(st.integers(0, 3))):
                rows += draw(users(T0 + hour * HOUR, device, number))
    cuts = draw(st.lists(st.integers(0, hours * 3_600_000_000), min_size=2, max_size=5, unique=True))
    times = [T0 + timedelta(microseconds=cut) for cut in sorted(cuts)]
    money_of = st.decimals(0, 500, places=draw(st.integers(0, 9)), allow_nan=False, allow_infinity=False)
    spans = [
        BilledSpan(
            start=start, end=end, usd_per_hour=draw(money_of), is_starting=draw(st.integers(0, 4)) == 0,
            pool=draw(st.sampled_from(["chat", None])), model="m", owner=None,
        )
        for start, end in zip(times, times[1:], strict=False)
    ]  # fmt: skip
    shape = NodeShape(
        devices=draw(st.sampled_from([None, 1, 2, 8])),
        gpu=draw(st.sampled_from([None, *MIG_GPUS])),
        units_per_device=draw(st.sampled_from([1, 2, 8])),
    )
    return NodeBill(instance_id="i-1", shape=shape, spans=spans), rows


def cost(node: NodeBill) -> Decimal:
    return money.total(
        money.dollar_seconds(span.usd_per_hour, span.end - span.start)
        for span in node.spans
        if span.usd_per_hour is not None
    )


@given(trees(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_parts_of_any_node_add_up_to_its_bill(tree: tuple[NodeBill, list[UnitHour]], random: Random) -> None:
    node, rows = tree
    found = parts(node, rows)
    assert money.total(part.amount for part in found) == cost(node)
    assert all(part.amount >= 0 and part.time >= timedelta(0) for part in found)
    cents = money.rounded_parts([money.usd(p.amount) for p in found], money.usd(cost(node))) if found else ()
    assert sum(cents, money.ZERO) == (money.usd(cost(node), money.CENT) if found else 0)
    # rows of one hour come in any order
    shuffled = sorted(random.sample(rows, len(rows)), key=lambda one: one.hour)
    assert parts(node, shuffled) == found


@given(trees())
@settings(max_examples=40, deadline=None)
def test_in_each_slot_the_shares_of_a_node_add_up_to_one(tree: tuple[NodeBill, list[UnitHour]]) -> None:
    node, rows = tree
    found = hour_parts(node.shape, [row for row in rows if row.hour == T0])
    assert all(part.share > 0 and part.slots & ALL == part.slots for part in found)
    for slot in range(0, SLOTS, 7):
        assert sum((part.share for part in found if part.slots >> slot & 1), Fraction(0)) == 1


@given(trees(), st.integers(1, 3_599_999_999))
@settings(max_examples=20, deadline=None)
def test_two_windows_cost_as_much_as_both_together(tree: tuple[NodeBill, list[UnitHour]], cut: int) -> None:
    node, rows = tree
    at = T0 + timedelta(microseconds=cut)

    def usd(spans: list[BilledSpan]) -> dict[tuple[object, ...], Decimal]:
        found: dict[tuple[object, ...], Decimal] = {}
        for one in parts(NodeBill(instance_id="i-1", shape=node.shape, spans=spans), rows):
            name = (one.pool, one.key, one.state)
            found[name] = found.get(name, money.ZERO) + one.amount
        return found

    def within(since: datetime, until: datetime) -> list[BilledSpan]:
        return [
            BilledSpan(
                start=max(span.start, since), end=min(span.end, until), usd_per_hour=span.usd_per_hour,
                pool=span.pool, model=span.model, owner=span.owner, is_starting=span.is_starting,
            )
            for span in node.spans
            if span.start < until and span.end > since
        ]  # fmt: skip

    whole, before, after = usd(list(node.spans)), usd(within(T0, at)), usd(within(at, T0 + 9 * HOUR))
    for name in whole.keys() | before.keys() | after.keys():
        difference = whole.get(name, money.ZERO) - before.get(name, money.ZERO) - after.get(name, money.ZERO)
        assert abs(difference) < Decimal("1e-6")  # the last part of each split gets what rounding left


def is_rich(tree: tuple[NodeBill, list[UnitHour]]) -> bool:
    """Whether a node has at once: used, idle, unmeasured and stranded parts, several users, two prices."""
    node, rows = tree
    found = parts(node, rows)
    return (
        {USED, IDLE, UNMEASURED, STRANDED} <= {part.state for part in found if part.amount}
        and any(len(part.key.users) > 1 for part in found)
        and len({span.usd_per_hour for span in node.spans}) > 1
    )


@pytest.mark.parametrize(
    "is_wanted",
    [
        pytest.param(is_rich, id="all states, shared units and several prices"),
        pytest.param(lambda tree: not tree[1] and cost(tree[0]) > 0, id="no units"),
        pytest.param(
            lambda tree: len({(row.hour, row.slice, row.profile) for row in tree[1] if row.slice}) > 3
            and len({row.profile for row in tree[1] if row.slice == "1"}) > 1,
            id="slices that change",
        ),
    ],
)  # fmt: skip
def test_generated_trees_are_not_trivial(is_wanted: object) -> None:
    find(trees(), is_wanted, settings=settings(max_examples=20_000, database=None, phases=[Phase.generate]))  # pyright: ignore[reportArgumentType]


def test_energy_of_a_node_is_allocated_like_its_cost_and_adds_up() -> None:
    rows = [
        unit(slice="1", profile="2g.20gb", tenant="a/one", busy=ALL),
        unit(slice="2", profile="3g.40gb", tenant="b/two", idle=ALL),
    ]
    found = with_energy(by_slice(parts(bill(), rows)), {"i-1": 1_000_003})
    energy = {row.key.users or row.kind.value: row.allocated_mj for row in found.rows}
    assert energy == {("b/two",): 428_572, ("a/one",): 285_716, "stranded": 285_715}
    assert sum(filter(None, energy.values())) == 1_000_003


@pytest.mark.parametrize(
    ("usd", "measured"),
    [pytest.param("7", {}, id="not measured"), pytest.param(None, {"i-1": 7}, id="without a price")],
)
def test_energy_of_slices_is_unknown_without_measurement_or_price(usd: str | None, measured: dict[str, int]) -> None:
    rows = [unit(slice="1", profile="2g.20gb", busy=ALL)]
    found = with_energy(by_slice(parts(bill(usd=usd), rows)), measured)
    assert {row.allocated_mj for row in found.rows} == {None}
