"""`gpufleet bundle`: uploads the control host's software to the bucket, as one file named by its digest."""

from typing import Annotated

import typer

from app import bundles
from app.fleets import load_only
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, STDOUT, print_json


def register(app: typer.Typer) -> None:
    app.command("bundle")(bundle)


def bundle(
    fleet: FleetOption = None,
    place: Annotated[
        str,
        typer.Option(
            "--place", help="Bucket or folder to upload to, for example s3://BUCKET. Default: the fleet's bucket."
        ),
    ] = "",
    machine: Annotated[
        str, typer.Option("--machine", help="Processor architecture of the control host, for example x86_64.")
    ] = "x86_64",
    python: Annotated[str, typer.Option("--python", help="Python version of the control host's image.")] = "3.11",
    dependencies: Annotated[
        bool,
        typer.Option(
            "--dependencies/--no-dependencies",
            help="Include the packages of uv.lock. Exclude them only if the control host's image has them.",
        ),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Pack this clone and the packages of uv.lock, upload them to the bucket, and print the digest of the bundle.

    Each package is checked against its hash in uv.lock. `control.bundle` in the settings and `gpufleet upgrade --to`
    accept the digest.
    """
    why = "give one --fleet or a --place: a bundle is uploaded to one bucket"
    url = place or load_only(fleet, why).bucket
    made = bundles.publish(url, machine, python, dependencies=dependencies)
    STDERR.print(f"{url}: {made.files} files, {made.bytes:,} bytes", highlight=False)
    if as_json:
        print_json({"version": 1, "sha256": made.sha256, "bytes": made.bytes, "files": made.files})
    else:
        STDOUT.print(made.sha256, highlight=False, soft_wrap=True)
