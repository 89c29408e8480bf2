"""Choosing machines: a fleet's own prices take precedence over the packaged lists, none is invented, and each machine
type is either ranked or named with a code.
"""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.choice import OfferPrices, choose
from app.measured_here import ServedHere
from gpufleet.domain import catalogue
from gpufleet.domain.model import CapacityType, Cloud
from serving.sizing.choice import Offer, SizingDemand, UnrankedCode
from serving.sizing.options import ServingOption
from serving.sizing.speed import Speed, SpeedOrigin, Traffic
from tests.fixtures.sized_models import BYTES, sized
from tests.fixtures.small_fleet import T0, document

MACHINE = catalogue.machine(Cloud.AWS, "g6.xlarge")


def test_own_price_of_a_fleet_precedes_the_packaged_one(tmp_path: Path) -> None:
    stated = {
        "sku": "aws:ec2:g6.xlarge:on-demand", "usd_per_hour": "0.1", "source": "contract", "as_of": "2026-01-02"
    }  # fmt: skip
    fleet = document(tmp_path, prices={"overrides": [stated]})
    offer = OfferPrices([str(fleet)], None, T0).offer(MACHINE, CapacityType.ON_DEMAND)
    assert isinstance(offer, Offer)
    assert offer.usd_per_hour == Decimal("0.1")
    assert offer.price_source == "contract, us-east-1, as of 2026-01-02"


def test_a_cloud_without_a_named_fleet_has_the_packaged_prices(tmp_path: Path) -> None:
    prices = OfferPrices([str(document(tmp_path))], "europe-west4", T0)
    offer = prices.offer(catalogue.machine(Cloud.GCP, "g2-standard-4"), CapacityType.ON_DEMAND)
    assert isinstance(offer, Offer)
    assert "europe-west4" in offer.price_source


def test_a_missing_price_is_named(tmp_path: Path) -> None:
    offer = OfferPrices([str(document(tmp_path))], None, T0).offer(MACHINE, CapacityType.SPOT)
    assert isinstance(offer, str)
    assert "no price for aws:ec2:g6.xlarge:spot in us-east-1" in offer


MACHINES = [
    catalogue.machine(Cloud.AWS, name)
    for name in ("g4dn.xlarge", "g6f.xlarge", "g6e.xlarge", "p5.48xlarge", "inf2.48xlarge", "g4ad.xlarge")
] + [catalogue.machine(Cloud.GCP, name) for name in ("a2-highgpu-1g", "ct6e-standard-8t")]


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(sorted(BYTES)),
    sizes=st.sampled_from([(128, 128), (1000, 200), (1000, 1000), (3000, 500)]),
    itl=st.sampled_from([None, 0.02, 0.1]),
    options=st.lists(st.sampled_from(ServingOption), unique=True, max_size=3),
)
def test_each_machine_type_is_either_ranked_or_named_with_a_code(
    name: str, sizes: tuple[int, int], itl: float | None, options: list[ServingOption]
) -> None:
    traffic = Traffic(input_tokens=sizes[0], output_tokens=sizes[1], itl_s=itl)
    found = choose(
        sized(name), SizingDemand(traffic=traffic, requests_per_s=3), MACHINES, list(CapacityType),
        OfferPrices((), None, T0), serving=[(option, 0) for option in options],
    )  # fmt: skip
    ranked = {(one.offer.machine, one.offer.capacity_type, one.able.option) for one in found.options}
    assert len(ranked) == len(found.options)
    named = {(one.machine, one.capacity_type, one.option) for one in found.not_ranked}
    unpriced = {(one.machine, one.capacity_type) for one in found.not_ranked if one.missing.code == "no_price"}
    for machine in MACHINES:
        for option in (None, *options):
            for kind in CapacityType:
                is_named = (machine, None, option) in named or (machine, kind) in unpriced
                assert ((machine, kind, option) in ranked) is not is_named
    for one in found.options:
        assert traffic.allows(one.able.speed.ttft_s, one.able.speed.itl_s)
        assert one.able.speed.source
        assert one.able.speed.kind is not SpeedOrigin.MODELLED or one.able.speed.error is not None
    assert [one.usd_per_hour for one in found.options] == sorted(one.usd_per_hour for one in found.options)


@pytest.mark.parametrize(
    ("itl", "origin"),
    [
        pytest.param(None, SpeedOrigin.MEASURED_HERE, id="no objective: what was served here"),
        pytest.param(0.1, SpeedOrigin.MODELLED, id="an objective: the ledger has no latencies"),
    ],
)
def test_served_throughput_decides_only_without_a_latency_objective(itl: float | None, origin: SpeedOrigin) -> None:
    machine = catalogue.machine(Cloud.AWS, "g6e.xlarge")
    here = Speed(
        requests_per_s=7, concurrency=None, ttft_s=None, itl_s=None, kind=SpeedOrigin.MEASURED_HERE, source="a ledger"
    )
    traffic = Traffic(input_tokens=1000, output_tokens=200, itl_s=itl)
    found = choose(
        sized("meta-llama/Llama-3.1-8B-Instruct"), SizingDemand(traffic=traffic, requests_per_s=14.5), [machine],
        [CapacityType.ON_DEMAND], OfferPrices((), None, T0), served={machine.name: ServedHere(speed=here, why="")},
    )  # fmt: skip
    (option,) = found.options
    assert option.able.speed.kind is origin
    if origin is SpeedOrigin.MEASURED_HERE:
        # 14.5 requests/s at 7 each
        assert option.count == 3


def test_a_price_that_is_missing_for_all_options_is_named_once() -> None:
    traffic = Traffic(input_tokens=1000, output_tokens=200)
    found = choose(
        sized("meta-llama/Llama-3.1-8B-Instruct"), SizingDemand(traffic=traffic, requests_per_s=1),
        [catalogue.machine(Cloud.AWS, "g6e.xlarge")], [CapacityType.SPOT], OfferPrices((), None, T0),
        serving=[(ServingOption.FP8, 0)],
    )  # fmt: skip
    assert [one.missing.code for one in found.not_ranked] == [UnrankedCode.NO_PRICE]
    assert not found.options and found.mix is None
