"""`gpufleet choose`: which machines serve a model's traffic for the least money."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app.declared import book_of
from app.fleets import load_one
from app.sizing import load_model
from cli.options import FleetOption
from cli.output import STDERR, STDOUT, Exit, print_json
from cli.size import JsonOption, ModelArgument
from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import Machine
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from prices.book import MissingPriceError, PriceBook
from prices.packaged import PackagedPrices
from serving.sizing.choice import Able, Demand, Mix, Offer, Option, ability, cheapest_mix, rank
from serving.sizing.speed import Traffic

_REGIONS = {Cloud.AWS: "us-east-1", Cloud.GCP: "us-central1"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("choose")(choose)


def choose(
    model: ModelArgument,
    rps: Annotated[float, typer.Option("--rps", min=0.0001, help="Requests per second at the peak.")],
    input_tokens: Annotated[int, typer.Option("--input", min=1, help="Input tokens of a request.")],
    output_tokens: Annotated[int, typer.Option("--output", min=1, help="Output tokens of a request.")],
    ttft: Annotated[float | None, typer.Option("--ttft", min=0.0001, help="Longest time to first token, s.")] = None,
    itl: Annotated[float | None, typer.Option("--itl", min=0.0001, help="Longest time between tokens, s.")] = None,
    cloud: Annotated[list[Cloud] | None, typer.Option("--cloud", help="Repeatable. Default: both.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Default: us-east-1, us-central1.")] = None,
    capacity: Annotated[
        list[CapacityType] | None, typer.Option("--capacity", help="reserved, spot or on-demand; default: all.")
    ] = None,
    kv_fp8: Annotated[bool, typer.Option("--kv-fp8", help="Keys and values in 8 bits.")] = False,
    fp8: Annotated[bool, typer.Option("--fp8", help="Quantize 16-bit weights to FP8 while loading.")] = False,
    most: Annotated[int, typer.Option("--most", min=1, help="Options to show.")] = 10,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Machine types and counts by USD per million tokens under a latency objective. Exit 3 when none will do."""
    shape, heavy = load_model(model)
    traffic = Traffic(input_tokens=input_tokens, output_tokens=output_tokens, ttft_s=ttft, itl_s=itl)
    demand = Demand(traffic=traffic, requests_per_s=rps, kv_fp8=kv_fp8, weights_fp8=fp8)
    markets, now = _markets(fleet, region), datetime.now(UTC)
    able: list[tuple[Offer, Able]] = []
    unable: list[dict[str, str]] = []
    for machine in _machines(cloud or list(Cloud)):
        found = ability(shape, heavy, machine, demand)
        if isinstance(found, str):
            unable.append({"on": f"{machine.cloud} {machine.name}", "why": found})
            continue
        for kind in capacity or list(CapacityType):
            offer = _offer(markets, machine, kind, now)
            if isinstance(offer, Offer):
                able.append((offer, found))
            else:
                unable.append({"on": f"{machine.cloud} {machine.name} {kind}", "why": offer})
    options = rank(able, demand)
    mix = cheapest_mix(options, demand)
    if as_json:
        print_json(_document(options, mix, unable))
    else:
        _show(options, mix, unable, most)
    if not options:
        raise typer.Exit(Exit.FOUND)


def _machines(clouds: list[Cloud]) -> Iterator[Machine]:
    for cloud in clouds:
        yield from catalogue.machines(cloud)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Market:
    """Prices of one region; `zones` are those in which spot was observed or may be bought."""

    book: PriceBook
    cloud: Cloud
    region: str
    zones: tuple[str | None, ...] = (None,)


def _markets(fleets: list[str] | None, region: str | None) -> list[_Market]:
    """Where prices come from: the packaged lists, and the ledgers of fleets that were named."""
    known = [load_one(url) for url in fleets or []]
    own = [
        _Market(
            book=book_of(document),
            cloud=document.cloud,
            region=document.region,
            zones=(None, *sorted({group.zone for pool in document.pools for group in pool.groups if group.zone})),
        )
        for document in known
    ]
    rest = [
        _Market(book=PriceBook(region=place, packaged=PackagedPrices()), cloud=cloud, region=place)
        for cloud in Cloud
        if cloud not in {market.cloud for market in own}
        for place in [region or _REGIONS[cloud]]
    ]
    return [*own, *rest]


def _offer(markets: list[_Market], machine: Machine, kind: CapacityType, now: datetime) -> Offer | str:
    """The machine at its lowest price, or which price is missing."""
    prices: list[Price] = []
    missing = "no price is known"
    for market in markets:
        if market.cloud is not machine.cloud:
            continue
        for zone in market.zones:
            sku = market.book.machine(machine.cloud, machine.name, kind, region=market.region, zone=zone)
            try:
                prices.append(market.book.at(sku, now))
            except MissingPriceError as error:
                missing = str(error)
    if not prices:
        return missing
    best = min(prices, key=lambda price: price.usd_per_hour)
    return Offer(
        machine=machine,
        capacity_type=kind,
        usd_per_hour=best.usd_per_hour,
        price_source=f"{best.source}, {best.region}, as of {best.as_of:%Y-%m-%d}",
    )


def _row(option: Option) -> dict[str, Any]:
    speed, offer = option.able.speed, option.offer
    return {
        "cloud": offer.machine.cloud.value,
        "machine_type": offer.machine.name,
        "capacity_type": offer.capacity_type.value,
        "count": option.count,
        "usd_per_million_tokens": str(round(option.usd_per_million_tokens, 4)),
        "usd_per_hour": str(option.usd_per_hour),
        "price_usd_per_hour": str(offer.usd_per_hour),
        "price_source": offer.price_source,
        "requests_per_s_each": round(speed.requests_per_s, 4),
        "requests_at_once_each": speed.concurrency,
        "ttft_s": round(speed.ttft_s, 4),
        "itl_s": round(speed.itl_s, 5),
        "speed_is": speed.kind.value,
        "speed_source": speed.source,
        "engine_args": list(option.able.fit.options.arguments()),
    }


def _document(options: list[Option], mix: Mix | None, unknown: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "options": [_row(option) for option in options],
        "mix": None
        if mix is None
        else {
            "usd_per_hour": str(mix.usd_per_hour),
            "usd_per_million_tokens": str(round(mix.usd_per_million_tokens, 4)),
            "parts": [
                {
                    "count": count,
                    "cloud": option.offer.machine.cloud.value,
                    "machine_type": option.offer.machine.name,
                    "capacity_type": option.offer.capacity_type.value,
                }
                for option, count in mix.parts
            ],
        },
        "not_chosen": unknown,
    }


def _show(options: list[Option], mix: Mix | None, unknown: list[dict[str, str]], most: int) -> None:
    for option in options[:most]:
        offer, machine, speed = option.offer, option.offer.machine, option.able.speed
        STDOUT.print(
            f"{option.usd_per_million_tokens:9.4f} USD/Mtok blended  {option.count} × {machine.cloud} {machine.name} "
            f"{offer.capacity_type}: {option.usd_per_hour:.2f} USD/h, {speed.requests_per_s:.2f} requests/s each"
            f", first token {speed.ttft_s:.2f} s, {speed.itl_s * 1000:.0f} ms/token, {speed.kind}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        STDOUT.print(
            f"           price: {option.offer.price_source}; speed: {speed.source}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if mix is not None and options and mix.usd_per_hour < options[0].usd_per_hour:
        words = " + ".join(f"{n} × {o.offer.machine.name} {o.offer.capacity_type}" for o, n in mix.parts)
        STDOUT.print(
            f"mixed: {words}: {mix.usd_per_million_tokens:.4f} USD/Mtok, {mix.usd_per_hour:.2f} USD/h",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    for why, those in _by_reason(unknown).items():
        STDERR.print(f"not {', '.join(those)}: {why}", highlight=False, markup=False, soft_wrap=True)


def _by_reason(unknown: list[dict[str, str]]) -> dict[str, list[str]]:
    """What was left out, by reason: where several share one that names the machine, it says TYPE instead."""
    grouped: dict[str, list[dict[str, str]]] = {}
    for row in unknown:
        grouped.setdefault(row["why"].replace(row["on"].split()[1], "TYPE"), []).append(row)
    return {why if len(rows) > 1 else rows[0]["why"]: [row["on"] for row in rows] for why, rows in grouped.items()}
