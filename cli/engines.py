"""`gpufleet engines`: what is known about each inference engine, and what one of its pages proves."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import engine_pages
from cli.options import JsonOption
from cli.output import STDOUT, print_json
from serving.engines import CONTRACTS

if TYPE_CHECKING:
    from serving.engines.contract import Contract, EngineSeries

engines_app = typer.Typer(
    no_args_is_help=True, help="The inference engines: what their numbers mean, and a check of a metrics page."
)
UNKNOWN = 1
"""Exit code of `check`: the page proves nothing."""
_WINDOW_MINUTES = 30


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(engines_app, name="engines")


@engines_app.command("list")
def list_engines(as_json: JsonOption = False) -> None:
    """List the engines: the releases that are understood, and whether the fleet starts them or only reads them."""
    if as_json:
        print_json([_summary(contract) for contract in CONTRACTS.values()])
        return
    for contract in CONTRACTS.values():
        use = "starts and reads" if contract.launch is not None else "reads"
        STDOUT.print(f"{contract.kind:9} {contract.title:13} {use:17} releases {contract.tested}", highlight=False)


@engines_app.command("show")
def show(engine: Annotated[str, typer.Argument(help="Name of an engine, for example sglang.")]) -> None:
    """Explain an engine: its metrics, when each is refreshed, what proves work and idleness, and its tokens."""
    contract = engine_pages.require_contract(engine)
    STDOUT.print(f"{contract.title}, releases {contract.tested}", highlight=False)
    for series in contract.series:
        STDOUT.print(f"  {series.name}: {_meaning(series)}", highlight=False, soft_wrap=True)
    for title, metrics in (
        ("proves work", contract.evidence.work),
        ("proves idleness together", contract.evidence.idle),
    ):
        names = ", ".join(metric.name for metric in metrics) or "nothing"
        STDOUT.print(f"{title}: {names}", highlight=False, soft_wrap=True)
    STDOUT.print(f"tokens: {contract.tokens.source}: {contract.tokens.error}", highlight=False, soft_wrap=True)
    if (adapters := _adapters(contract)) is not None:
        STDOUT.print(f"LoRA adapters: requests select one {adapters}", highlight=False, soft_wrap=True)
    STDOUT.print(f"after SIGTERM: {contract.drain.stop}", highlight=False, soft_wrap=True)
    for source in contract.sources:
        STDOUT.print(f"source: {source}", highlight=False, soft_wrap=True)


@engines_app.command("check")
def check(
    engine: Annotated[str, typer.Argument(help="Name of an engine, for example sglang.")],
    page: Annotated[str, typer.Argument(help="Path or http URL of a metrics page of the engine.")],
    release: Annotated[
        str | None, typer.Option(help="Release of the engine, for example 0.5.23. Default: not known.")
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Minutes over which idleness is judged.")] = _WINDOW_MINUTES,
    as_json: JsonOption = False,
) -> None:
    """Read a metrics page as the watchdogs do. Exit codes: 0 it can prove idleness, 1 it cannot, 2 invalid usage."""
    found = engine_pages.check(engine, release, page, timedelta(minutes=window))
    if as_json:
        print_json(
            {
                "engine": found.contract.kind,
                "release": found.version,
                "values": dict(found.values),
                "missing": list(found.missing),
                "without_tokens": list(found.without_tokens),
                "unknown": found.unknown,
            }
        )
    else:
        for name, value in found.values.items():
            STDOUT.print(f"{name} {value:g}", highlight=False)
        if found.without_tokens:
            names = ", ".join(found.without_tokens)
            STDOUT.print(f"tokens are unknown: the page lacks {names}", highlight=False, soft_wrap=True)
        result = found.unknown or "the numbers are understood and can prove that the engine is idle"
        STDOUT.print(f"{'kept: ' if found.unknown else ''}{result}", highlight=False, soft_wrap=True)
    if found.unknown is not None:
        raise typer.Exit(UNKNOWN)


def _meaning(series: "EngineSeries") -> str:
    parts = [f"{series.measures.name}, {series.measures.unit}", f"refreshed {series.refresh}"]
    if series.versions.since or series.versions.before:
        parts.append(f"releases {series.versions}")
    if series.lag:
        parts.append(f"up to {series.lag.total_seconds():g} s late")
    if series.zero_while_busy:
        parts.append("can be 0 or constant while a request runs")
    if series.kept_at_rest:
        parts.append("can stay above 0 after the last request")
    return "; ".join(parts)


def _adapters(contract: "Contract") -> str | None:
    """How requests select an adapter; None: the fleet does not start the engine with adapters."""
    return None if contract.launch is None else contract.launch.adapters


def _summary(contract: "Contract") -> dict[str, Any]:
    return {
        "engine": contract.kind,
        "title": contract.title,
        "releases": str(contract.tested),
        "starts": contract.launch is not None,
        "adapters": _adapters(contract),
        "tokens": {"source": contract.tokens.source, "error": contract.tokens.error},
    }
