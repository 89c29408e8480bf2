"""`gpufleet bundle`: uploads the control host's software to the bucket, as one file named by its digest."""

from typing import Annotated

import typer

from app import bundles
from app.fleets import load_only
from cli.options import FleetOption
from cli.output import STDERR, STDOUT, print_json


def register(app: typer.Typer) -> None:
    app.command("bundle")(bundle)


def bundle(
    fleet: FleetOption = None,
    place: Annotated[
        str, typer.Option("--place", help="Bucket or folder instead of the fleet's bucket, as s3://BUCKET.")
    ] = "",
    machine: Annotated[str, typer.Option("--machine", help="Processor of the control host.")] = "x86_64",
    python: Annotated[str, typer.Option("--python", help="Python of its image.")] = "3.11",
    dependencies: Annotated[
        bool,
        typer.Option("--dependencies/--no-dependencies", help="Whether the packages of uv.lock go in, or are there."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="JSON to stdout.")] = False,
) -> None:
    """Pack this clone and the packages of uv.lock, each proven by its hash, put it into the bucket, print the digest.

    `control.bundle` of the settings and `gpufleet upgrade --to` take that digest.
    """
    why = "name one --fleet, or a --place: a bundle goes into one bucket"
    url = place or load_only(fleet, why).bucket
    made = bundles.publish(url, machine, python, dependencies=dependencies)
    STDERR.print(f"{url}: {made.files} files, {made.bytes:,} bytes", highlight=False)
    if as_json:
        print_json({"version": 1, "sha256": made.sha256, "bytes": made.bytes, "files": made.files})
    else:
        STDOUT.print(made.sha256, highlight=False, soft_wrap=True)
