"""Packaged prices include the devices: no machine type is far cheaper per device than others with the same device."""

import csv
from collections import defaultdict
from importlib import resources

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud

MIN_SHARE = 0.5
"""Of the cheapest other type with the same device, per device. Types differ in CPUs and memory, by less than that."""


def test_no_on_demand_price_leaves_out_the_devices() -> None:
    text = resources.files("gpufleet.prices.data").joinpath("gcp_on_demand.csv").read_text("utf-8")
    latest = {
        (row["machine_type"], row["region"]): float(row["usd_per_hour"]) for row in csv.DictReader(text.splitlines())
    }
    known = {machine.name: machine for machine in catalogue.machines(Cloud.GCP)}
    per_device: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for (name, region), usd in latest.items():
        machine = known.get(name)
        if machine is not None:
            per_device[machine.gpu, region][name] = usd / float(machine.gpu_count * machine.gpu_share)
    compared = 0
    for prices in per_device.values():
        for name, usd in prices.items():
            others = [other for at, other in prices.items() if at != name]
            compared += bool(others)
            assert not others or usd >= MIN_SHARE * min(others), (name, usd, prices)
    assert compared > 500
