"""`gpufleet images`: container images for machines without internet."""

from typing import Annotated

import typer

from app.errors import AppError
from cli.options import JsonOption
from cli.output import STDERR, print_json
from gpufleet.clouds.images import Mirrored, Registry
from gpufleet.domain.activity import CloudError

app = typer.Typer(no_args_is_help=True, help="Container images for machines without internet.")


def register(parent: typer.Typer) -> None:
    """Add the group."""
    parent.add_typer(app, name="images")


@app.callback()
def _root() -> None:
    """Keep `images` a group while it has one command."""


@app.command()
def mirror(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Images to copy, for example docker.io/vllm/vllm-openai:v0.32.0, or with @sha256:DIGEST."
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", help="Target registry and path: Amazon ECR or Google Artifact Registry.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Copy images to your registry, and print their names with digest, as the settings need them."""
    registry = Registry(to)
    mirrored: list[Mirrored] = []
    for source in sources:
        STDERR.print(f"{source} → {to} …", highlight=False, markup=False)
        try:
            done = registry.mirror(source)
        except CloudError as error:
            raise AppError(f"{source}: {error}; images copied before are kept, run it again to continue") from error
        STDERR.print("  copied" if done.copied else "  exists already")
        mirrored.append(done)
    if as_json:
        print_json({"version": 1, "images": [{"source": m.source, "target": m.target} for m in mirrored]})
    else:
        for done in mirrored:
            typer.echo(done.target)
