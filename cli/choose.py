"""`gpufleet choose`: ranks machines that can serve a model's traffic, by cost."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app import choice
from app.choice import Choice, OfferPrices
from app.sizing import load_model
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from cli.size import Fp8Option, KvFp8Option, ModelArgument
from gpufleet.domain import catalogue
from gpufleet.domain.model import CapacityType, Cloud
from serving.sizing.choice import Option, SizingDemand
from serving.sizing.speed import Traffic


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("choose")(choose)


def choose(
    model: ModelArgument,
    rps: Annotated[float, typer.Option("--rps", min=0.0001, help="Peak load in requests per second.")],
    input_tokens: Annotated[int, typer.Option("--input", min=1, help="Input tokens per request.")],
    output_tokens: Annotated[int, typer.Option("--output", min=1, help="Output tokens per request.")],
    ttft: Annotated[
        float | None,
        typer.Option("--ttft", min=0.0001, help="Longest allowed time to first token, in seconds. Default: any."),
    ] = None,
    itl: Annotated[
        float | None,
        typer.Option(
            "--itl", min=0.0001, help="Longest allowed time between output tokens, in seconds. Default: any."
        ),
    ] = None,
    cloud: Annotated[
        list[Cloud] | None, typer.Option("--cloud", help="Cloud to consider; repeatable. Default: both.")
    ] = None,
    region: Annotated[
        str | None,
        typer.Option("--region", help="Region of the prices. Default: us-east-1 for AWS, us-central1 for Google."),
    ] = None,
    capacity: Annotated[
        list[CapacityType] | None,
        typer.Option("--capacity", help="Capacity type to consider; repeatable. Default: all."),
    ] = None,
    kv_fp8: KvFp8Option = False,
    fp8: Fp8Option = False,
    most: Annotated[int, typer.Option("--most", min=1, help="Number of options to show.")] = 10,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rank machine types and counts that can serve a model's load, by USD per million tokens.

    Exit code 3: no machine type meets the latency objectives.
    """
    traffic = Traffic(input_tokens=input_tokens, output_tokens=output_tokens, ttft_s=ttft, itl_s=itl)
    found = choice.choose(
        load_model(model),
        SizingDemand(traffic=traffic, requests_per_s=rps, kv_fp8=kv_fp8, weights_fp8=fp8),
        [machine for one in cloud or Cloud for machine in catalogue.machines(one)],
        capacity or list(CapacityType),
        OfferPrices(fleet or (), region, datetime.now(UTC)),
    )
    if as_json:
        print_json(_document(found))
    else:
        _show(found, most)
    if not found.options:
        raise typer.Exit(Exit.FOUND)


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


def _document(found: Choice) -> dict[str, Any]:
    mix = found.mix
    return {
        "options": [_row(option) for option in found.options],
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
        "not_chosen": [{"on": on, "why": why} for on, why in found.left_out],
    }


def _show(found: Choice, most: int) -> None:
    options, mix = found.options, found.mix
    for option in options[:most]:
        offer, machine, speed = option.offer, option.offer.machine, option.able.speed
        _print(
            f"{option.usd_per_million_tokens:9.4f} USD/Mtok blended  {option.count} × {machine.cloud} {machine.name} "
            f"{offer.capacity_type}: {option.usd_per_hour:.2f} USD/h, {speed.requests_per_s:.2f} requests/s each"
            f", first token {speed.ttft_s:.2f} s, {speed.itl_s * 1000:.0f} ms/token, {speed.kind}"
        )
        _print(f"           price: {offer.price_source}; speed: {speed.source}")
    if mix is not None and options and mix.usd_per_hour < options[0].usd_per_hour:
        parts = " + ".join(f"{n} × {o.offer.machine.name} {o.offer.capacity_type}" for o, n in mix.parts)
        _print(f"mixed: {parts}: {mix.usd_per_million_tokens:.4f} USD/Mtok, {mix.usd_per_hour:.2f} USD/h")
    for why, those in _by_reason(found.left_out).items():
        STDERR.print(f"not {', '.join(those)}: {why}", highlight=False, soft_wrap=True)


def _print(line: str) -> None:
    STDOUT.print(line, highlight=False, soft_wrap=True)


def _by_reason(left_out: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The excluded machines, by reason. Machines share a reason if it differs only in the machine type, which becomes
    TYPE.
    """
    grouped: dict[str, list[tuple[str, str]]] = {}
    for on, why in left_out:
        grouped.setdefault(why.replace(on.split()[1], "TYPE"), []).append((on, why))
    return {why if len(rows) > 1 else rows[0][1]: [on for on, _ in rows] for why, rows in grouped.items()}
