"""`gpufleet choose`: ranks machines that can serve a model's traffic, by cost."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app import choice
from app.choice import Choice, NotRanked, OfferPrices
from app.errors import AppError, ErrorCode
from app.measured_here import ServedHere, served_here
from app.sizing import load_model
from cli.choose_table import show
from cli.options import FleetOption, JsonOption
from cli.output import Exit, print_json
from cli.size import EngineOption, Fp8Option, KvFp8Option, ModelArgument, check_engine
from gpufleet.domain import catalogue
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.regions import REGIONS
from serving.sizing.choice import Option, SizingDemand
from serving.sizing.model import Weights
from serving.sizing.options import BITS, NEEDS_CHECKPOINT, NEEDS_DRAFT, Effect, ServingOption
from serving.sizing.peers import AicAnswer, MelangeAnswer
from serving.sizing.speed import SpeedError, Traffic
from serving.sizing.validity import ENGINE


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
    option: Annotated[
        list[ServingOption] | None,
        typer.Option(
            "--option",
            help="Number format of the weights, or speculative decoding, to compare with the model as it is; "
            "repeatable. Ranked where its effect on speed is published or modelled.",
        ),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option("--draft-model", help="Folder or URL of the second model of --option eagle or draft."),
    ] = None,
    kv_fp8: KvFp8Option = False,
    fp8: Fp8Option = False,
    most: Annotated[int, typer.Option("--most", min=1, help="Number of options to show.")] = 10,
    engine: EngineOption = ENGINE,
    fleet: FleetOption = None,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            help="Pool that serves this model. What its machines served in the last 7 days is a source of "
            "throughput, if neither --ttft nor --itl is given.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Rank machine types of all accelerators that can serve a model's load, by USD per million tokens.

    Each row names the source of its throughput (measured here, published, modelled) and its error. Types without a
    source or price follow, with the reason. Exit code 3: no machine type meets the latency objectives.
    """
    check_engine(engine)
    if region is not None and not any(region in REGIONS[one] for one in cloud or Cloud):
        clouds = " or ".join(cloud or Cloud)
        raise AppError(f"--region: {region!r} is not a known region of {clouds}", ErrorCode.WRONG_USE)
    traffic = Traffic(input_tokens=input_tokens, output_tokens=output_tokens, ttft_s=ttft, itl_s=itl)
    demand = SizingDemand(traffic=traffic, requests_per_s=rps, kv_fp8=kv_fp8, weights_fp8=fp8)
    serving = _serving(option or (), draft_model)
    now = datetime.now(UTC)
    served = served_here(fleet, pool, traffic, now)
    loaded = load_model(model)
    found = choice.choose(
        loaded,
        demand,
        [machine for one in cloud or Cloud for machine in catalogue.machines(one)],
        capacity or list(CapacityType),
        OfferPrices(fleet or (), region, now),
        serving=serving,
        served=served,
    )
    formats = [_serving_option(chosen, size, loaded[1], found.effects) for chosen, size in serving]
    if as_json:
        print_json(_document(found, formats, served))
    else:
        show(found, most, served, formats)
    if not found.options:
        raise typer.Exit(Exit.FOUND)


def _serving(options: Sequence[ServingOption], draft_model: str | None) -> list[tuple[ServingOption, int]]:
    """The options, each with the bytes of its second model's weights. Raises AppError."""
    chosen = list(dict.fromkeys(options))
    needing = [option for option in chosen if option in NEEDS_DRAFT]
    if needing and draft_model is None:
        raise AppError(
            f"--option {needing[0]}: its second model uses memory, too: set --draft-model to its folder or URL",
            ErrorCode.WRONG_USE,
        )
    if draft_model is not None and not needing:
        raise AppError("--draft-model: only --option eagle and --option draft use one", ErrorCode.WRONG_USE)
    size = 0 if draft_model is None else load_model(draft_model)[1].total
    return [(option, size if option in NEEDS_DRAFT else 0) for option in chosen]


def _row(option: Option, answer: AicAnswer) -> dict[str, Any]:
    speed, offer, fit = option.able.speed, option.offer, option.able.fit
    covered = answer.for_offer_of(option)
    return {
        "cloud": offer.machine.cloud.value,
        "machine_type": offer.machine.name,
        "accelerator": offer.machine.accelerator.value,
        "tried_on_hardware": offer.machine.tried_on_hardware,
        "capacity_type": offer.capacity_type.value,
        "serving_option": option.able.option,
        "count": option.count,
        "usd_per_million_tokens": str(round(option.usd_per_million_tokens, 4)),
        "usd_per_hour": str(option.usd_per_hour),
        "price_usd_per_hour": str(offer.usd_per_hour),
        "price_source": offer.price_source,
        "requests_per_s_each": round(speed.requests_per_s, 4),
        "requests_at_once_each": speed.concurrency,
        "ttft_s": None if speed.ttft_s is None else round(speed.ttft_s, 4),
        "itl_s": None if speed.itl_s is None else round(speed.itl_s, 5),
        "speed_is": speed.kind.value,
        "speed_source": speed.source,
        "speed_error": _error(speed.error),
        "aiconfigurator_usd_per_million_tokens": None
        if covered is None
        else str(round(covered.usd_per_million_tokens, 4)),
        "engine": ENGINE,
        "engine_args": [] if fit is None else list(fit.options.arguments()),
    }


def _error(error: SpeedError | None) -> dict[str, Any] | None:
    """How far real throughput was from the figure, as shares of it."""
    if error is None:
        return None
    high = None if error.high is None else round(error.high, 3)
    return {"low": round(error.low, 3), "high": high, "basis": error.basis}


def _document(
    found: Choice, formats: Sequence[Mapping[str, Any]], served: Mapping[str, ServedHere]
) -> dict[str, Any]:
    mix = found.mix
    return {
        "options": [_row(option, found.aiconfigurator) for option in found.options],
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
        "not_ranked": [_not_ranked(one) for one in found.not_ranked],
        "serving_options": formats,
        "served_here": _served(served),
        "compared_with": {
            "aiconfigurator": _aiconfigurator(found.aiconfigurator),
            "melange": _melange(found.melange),
        },
    }


def _not_ranked(one: NotRanked) -> dict[str, Any]:
    return {
        "cloud": one.machine.cloud.value,
        "machine_type": one.machine.name,
        "accelerator": one.machine.accelerator.value,
        "tried_on_hardware": one.machine.tried_on_hardware,
        "capacity_type": one.capacity_type,
        "serving_option": one.option,
        "code": one.missing.code.value,
        "detail": one.missing.detail,
    }


def _serving_option(
    option: ServingOption, draft_bytes: int, weights: Weights, effects: Sequence[Effect]
) -> dict[str, Any]:
    bits = BITS.get(option)
    saved = 0 if bits is None else int(weights.quantizable * (1 - bits / 16))
    return {
        "option": option.value,
        "bits_per_weight": None if bits is None else float(bits),
        "weights_bytes": weights.total - saved + draft_bytes,
        "needs_checkpoint": option in NEEDS_CHECKPOINT,
        "published_effects": [_effect(effect) for effect in effects if effect.option is option],
    }


def _effect(effect: Effect) -> dict[str, Any]:
    at = effect.concurrency
    return {
        "method": effect.method,
        "model": effect.model,
        "gpu": effect.gpu,
        "gpus": effect.gpus,
        "concurrent_requests": None if at is None else [at.start, at.stop - 1],
        "load": effect.load,
        "factor": float(effect.factor),
        "measure": effect.measure,
        "engine": effect.engine,
        "source": effect.source,
        "date": effect.date or None,
    }


def _served(served: Mapping[str, ServedHere]) -> list[dict[str, Any]]:
    return [
        {
            "machine_type": machine_type,
            "requests_per_s_each": None if one.speed is None else round(one.speed.requests_per_s, 4),
            "source": None if one.speed is None else one.speed.source,
            "error": None if one.speed is None else _error(one.speed.error),
            "why_not_used": one.why or None,
        }
        for machine_type, one in served.items()
    ]


def _aiconfigurator(answer: AicAnswer) -> dict[str, Any]:
    return {
        "covered": answer.uncovered is None,
        "why_not": answer.uncovered,
        "options": [
            {
                "cloud": option.offer.machine.cloud.value,
                "machine_type": option.offer.machine.name,
                "capacity_type": option.offer.capacity_type.value,
                "count": option.count,
                "usd_per_million_tokens": str(round(option.usd_per_million_tokens, 4)),
                "speed_is": option.able.speed.kind.value,
                "speed_source": option.able.speed.source,
            }
            for option in answer.options
        ],
    }


def _melange(answer: MelangeAnswer) -> dict[str, Any]:
    return {
        "covered": answer.uncovered is None,
        "why_not": answer.uncovered,
        "gpu": answer.gpu,
        "percent_over_second": answer.percent,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "usd_per_million_tokens": None,
    }
