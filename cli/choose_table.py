"""The text of `gpufleet choose`: the table, its sources, what is not ranked, and what other tools give."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from app.choice import Choice, NotRanked
from app.measured_here import ServedHere
from cli.output import STDOUT
from serving.sizing.choice import Option
from serving.sizing.fit import GIB
from serving.sizing.speed import Speed, SpeedError

_NAMES_SHOWN = 6
_NOT_TRIED = "* not tried on hardware: this project never ran on this machine type"


def show(found: Choice, most: int, served: Mapping[str, ServedHere], formats: Sequence[Mapping[str, Any]]) -> None:
    """Print the choice. `formats`: the serving options, as in the JSON document."""
    shown = found.options[:most]
    sources = list(dict.fromkeys(_source(option.able.speed) for option in shown))
    if shown:
        STDOUT.print(_table(shown, found, sources))
        if any(not option.offer.machine.tried_on_hardware for option in shown):
            _print(_NOT_TRIED)
        _show_sources(shown, sources)
    _show_mix(found)
    for machine_type, one in served.items():
        _print(f"measured here, {machine_type}: {_served(one)}")
    for one in formats:
        checkpoint = "; needs a checkpoint in this format" if one["needs_checkpoint"] else ""
        _print(f"option {one['option']}: {one['weights_bytes'] / GIB:.2f} GiB of weights{checkpoint}")
    for effect in found.effects:
        _print(f"published effect of {effect.option}: {effect}")
    _print(f"AIConfigurator: {_aiconfigurator(found)}")
    _print(f"Mélange: {_melange(found)}")
    for why, names in by_reason(found.not_ranked).items():
        more = len(names) - _NAMES_SHOWN
        rest = f" and {more} more (--json lists all)" if more > 0 else ""
        _print(f"not ranked, {why}: {', '.join(names[:_NAMES_SHOWN])}{rest}")


def _table(shown: Sequence[Option], found: Choice, sources: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("USD/Mtok", "USD/h"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("machines", overflow="fold")
    table.add_column("throughput")
    peers = [found.aiconfigurator.for_offer_of(option) for option in shown]
    for heading in ("error", "TTFT s", "ms/tok", *(["AIConf"] if any(peers) else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for option, covered in zip(shown, peers, strict=True):
        speed = option.able.speed
        table.add_row(
            f"{option.usd_per_million_tokens:.4f}",
            f"{option.usd_per_hour:.2f}",
            name_of(option),
            f"{speed.kind.replace('_', ' ')} [{sources.index(_source(speed)) + 1}]",
            error_text(speed.error),
            "?" if speed.ttft_s is None else f"{speed.ttft_s:.2f}",
            "?" if speed.itl_s is None else f"{speed.itl_s * 1000:.0f}",
            *(["-" if covered is None else f"{covered.usd_per_million_tokens:.4f}"] if any(peers) else []),
        )
    return table


def name_of(option: Option) -> str:
    """Count, machine type, capacity type and serving option; a star if it was not tried on hardware."""
    machine, serving = option.offer.machine, option.able.option
    with_option = "" if serving is None else f" {serving}"
    star = "" if machine.tried_on_hardware else "*"
    return f"{option.count} × {machine.name}{star} {option.offer.capacity_type}{with_option}"


def error_text(error: SpeedError | None) -> str:
    """How far real throughput was from the figure."""
    if error is None:
        return "unknown"
    if error.high is None:
        return "at least"
    low, high = round(error.low * 100), round(error.high * 100)
    return f"{low:+d} %" if low == high else f"{low:+d}..{high:+d} %"


def _source(speed: Speed) -> str:
    error = "error unknown" if speed.error is None else f"error: {speed.error.basis}"
    return f"{speed.source}; {error}"


def _show_sources(shown: Sequence[Option], sources: Sequence[str]) -> None:
    for number, source in enumerate(sources, 1):
        _print(f"[{number}] {source}")
    for source in dict.fromkeys(option.offer.price_source for option in shown):
        _print(f"price: {source}")


def _show_mix(found: Choice) -> None:
    mix, alone = found.mix, [option for option in found.options if option.able.option is None]
    if mix is None or not alone or mix.usd_per_hour >= alone[0].usd_per_hour:
        return
    parts = " + ".join(f"{n} × {one.offer.machine.name} {one.offer.capacity_type}" for one, n in mix.parts)
    _print(f"mixed: {parts}: {mix.usd_per_million_tokens:.4f} USD/Mtok, {mix.usd_per_hour:.2f} USD/h")


def _served(one: ServedHere) -> str:
    if one.speed is None:
        return f"not used: {one.why}"
    rate = f"{one.speed.requests_per_s:.2f} requests/s of this size each"
    return f"{rate}, without latencies, so it ranks only without --ttft and --itl; {one.speed.source}"


def _aiconfigurator(found: Choice) -> str:
    answer = found.aiconfigurator
    if answer.uncovered is not None:
        return f"not covered ({answer.uncovered})"
    first = answer.options[0]
    text = f"{first.usd_per_million_tokens:.4f} USD/Mtok with {name_of(first)}; {first.able.speed.source}"
    alone = next((option for option in found.options if option.able.option is None), None)
    if alone is None:
        return f"{text}; here: none"
    same = "the same" if alone.offer == first.offer else f"here {name_of(alone)}"
    return f"{text}; {same}, {alone.usd_per_million_tokens:.4f} USD/Mtok"


def _melange(found: Choice) -> str:
    answer = found.melange
    if answer.uncovered is not None:
        return f"not covered ({answer.uncovered})"
    alone = next((option for option in found.options if option.able.option is None), None)
    here = "none" if alone is None else alone.offer.machine.gpu
    return (
        f"{answer.gpu}, with {answer.percent} % more tokens per dollar than the second of L4, A10G, A100 and H100 "
        f"({answer.input_tokens} to {answer.output_tokens} tokens, its prices of 2024); here {here}; it publishes no "
        "USD/Mtok"
    )


def _print(line: str) -> None:
    STDOUT.print(line, highlight=False, soft_wrap=True)


def by_reason(not_ranked: Sequence[NotRanked]) -> dict[str, list[str]]:
    """What is not ranked, by code and detail. A detail that names the device is shared by devices, which becomes
    DEVICE; otherwise machine types share it, which become TYPE.
    """
    grouped: dict[str, dict[str, str]] = {}
    for one in not_ranked:
        machine, detail = one.machine, f"{one.missing.code}: {one.missing.detail}"
        if machine.gpu in detail:
            shared, name = detail.replace(machine.gpu, "DEVICE"), machine.gpu
        else:
            parts = (machine.cloud.value, machine.name, one.capacity_type, one.option)
            shared, name = detail.replace(machine.name, "TYPE"), " ".join(part for part in parts if part)
        grouped.setdefault(shared, {}).setdefault(name, detail)
    return {
        shared if len(names) > 1 else next(iter(names.values())): list(names) for shared, names in grouped.items()
    }
