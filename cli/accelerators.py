"""`gpufleet accelerators`: what is known about each kind of accelerator, and what pages of its exporter prove."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import accelerator_pages
from cli.options import JsonOption
from cli.output import STDOUT, print_json
from serving.accelerators import CONTRACTS, metrics
from serving.accelerators import relabelling as accelerator_relabelling

if TYPE_CHECKING:
    from app.accelerator_pages import AcceleratorPageReport
    from serving.accelerators.contract import AcceleratorContract, AcceleratorSeries

accelerators_app = typer.Typer(
    no_args_is_help=True, help="The accelerators: what their numbers mean, and a check of metrics pages."
)
UNKNOWN = 1
"""Exit code of `check`: a unit cannot be proved idle by its page."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(accelerators_app, name="accelerators")


@accelerators_app.command("list")
def list_accelerators(as_json: JsonOption = False) -> None:
    """List the kinds of accelerators whose numbers are understood, with their exporters."""
    if as_json:
        print_json([_summary(contract) for contract in CONTRACTS.values()])
        return
    for contract in CONTRACTS.values():
        exporters = "; ".join(f"{one.name}, port {one.port}, releases {one.releases}" for one in contract.exporters)
        tried = contract.run or "not tried on hardware"
        STDOUT.print(f"{contract.kind:8} {contract.title:17} {exporters} ({tried})", highlight=False, soft_wrap=True)


@accelerators_app.command("show")
def show(kind: Annotated[str, typer.Argument(help="Kind of accelerator, for example amd.")]) -> None:
    """Explain a kind of accelerator: its metrics, what identifies a unit, and what proves work and idleness."""
    contract = accelerator_pages.contract_of(kind)
    STDOUT.print(f"{contract.title}, {contract.run or 'not tried on hardware'}", highlight=False)
    for series in contract.series:
        STDOUT.print(f"  {series.name}: {_meaning(series)}", highlight=False, soft_wrap=True)
    rule, identity = contract.evidence, contract.identity
    parts = " and ".join(identity.slice) or "none"
    for text in (
        f"device: the first of {', '.join(identity.device)}; slice: {parts}",
        f"proves work: {', '.join(metric.name for metric in rule.work)}",
        f"proves idleness together: {', '.join(metric.name for metric in rule.idle)}, over "
        f"{rule.window.total_seconds():g} s or more",
        *(
            f"0 proves nothing ({spot.code}) where "
            + ", ".join(f"{label} matches {pattern}" for label, pattern in spot.labels.items())
            for spot in contract.blind_spots
        ),
        *(f"source: {source}" for source in contract.sources),
    ):
        STDOUT.print(text, highlight=False, soft_wrap=True, markup=False)


@accelerators_app.command("relabelling")
def relabelling(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="Kinds of accelerators, for example nvidia. Default: all.")
    ] = None,
) -> None:
    """Print the metric_relabel_configs for a Prometheus of your own that scrapes exporters of accelerators.

    Add them to the job `accelerator`, whose targets need the label instance_id.
    """
    import yaml

    contracts = [accelerator_pages.contract_of(kind) for kind in kinds or CONTRACTS]
    rules = accelerator_relabelling.relabelling(contracts)
    typer.echo(yaml.safe_dump({"metric_relabel_configs": rules}, sort_keys=False), nl=False)


@accelerators_app.command("check")
def check(
    pages: Annotated[
        list[str], typer.Argument(help="Paths or http URLs of metrics pages of one exporter, in the order of time.")
    ],
    kind: Annotated[
        str | None, typer.Option(help="Kind of accelerator. Default: recognized by the metric names.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Seconds between two pages.")] = 60,
    shared: Annotated[bool, typer.Option("--shared", help="Programs share the devices (time-slicing, MPS).")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read metrics pages in SI units. Exit codes: 0 idleness can be proved, 1 it cannot, 2 invalid usage."""
    found = accelerator_pages.check(pages, kind, timedelta(seconds=every), shared=shared)
    document = _document(found)
    if as_json:
        print_json(document)
    else:
        for unit in document["units"]:
            name = "/".join(part for part in (unit["device"], unit["slice"]) if part)
            parts = [f"{metric} {value:g}" for metric, value in unit["values"].items()]
            parts += [f"{metric} rejected: {code}" for metric, code in unit["rejected"].items()]
            proved = unit["proved"] or ("unknown" if unit["unknown"] else "can be proved idle")
            codes = f": {', '.join(unit['unknown'])}" if unit["unknown"] else ""
            STDOUT.print(
                f"{name}: {', '.join(parts) or 'no values'}; {proved}{codes}", highlight=False, soft_wrap=True
            )
        if not document["units"]:
            STDOUT.print(f"no unit: {', '.join(document['unknown'])}", highlight=False)
        for device in found.contradicted:
            known = metrics.POWER in found.reading.devices[device]
            power = (
                "power: one of the two is in a wrong unit of measurement"
                if known
                else "the power of all accelerators"
            )
            STDOUT.print(f"{device}: energy contradicts {power}", highlight=False)
    if not found.is_understood:
        raise typer.Exit(UNKNOWN)


def _document(found: "AcceleratorPageReport") -> dict[str, Any]:
    units: list[dict[str, Any]] = []
    for key, doubts in found.doubts.items():
        unit, judgement = found.reading.units.get(key), found.judgements.get(key)
        units.append(
            {
                "device": key.device,
                "slice": key.slice,
                "profile": "" if unit is None else unit.profile,
                "values": {} if unit is None else {metric.name: value for metric, value in unit.values.items()},
                "unknown": list(doubts),
                "rejected": {} if unit is None else {metric.name: code for metric, code in unit.rejected.items()},
                "proved": None if judgement is None else judgement.activity,
            }
        )
    return {
        "accelerator": found.contract.kind,
        "units": units,
        "devices": {
            device: {metric.name: value for metric, value in values.items()}
            for device, values in found.reading.devices.items()
        },
        "host": {metric.name: value for metric, value in found.reading.host.items()},
        "unknown": list(found.reading.unknown),
        "contradicted": list(found.contradicted),
    }


def _meaning(series: "AcceleratorSeries") -> str:
    parts = [f"{series.measures.name}, in {series.unit}", f"of the {series.scope}", f"from {series.exporter}"]
    if series.zero_while_busy:
        parts.append("can be 0 while the unit computes")
    if series.kept_at_rest:
        parts.append("can stay above 0 at rest")
    return "; ".join(parts)


def _summary(contract: "AcceleratorContract") -> dict[str, Any]:
    return {
        "accelerator": contract.kind,
        "title": contract.title,
        "exporters": [
            {"name": one.name, "port": one.port, "path": one.path, "releases": str(one.releases), "note": one.note}
            for one in contract.exporters
        ],
        "tried": contract.run,
    }
