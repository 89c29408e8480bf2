"""`gpufleet images`: container images for machines without internet."""

from typing import Annotated

import typer

from app.errors import AppError
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
        list[str], typer.Argument(help="Images, as docker.io/vllm/vllm-openai:v0.32.0 or with @sha256.")
    ],
    to: Annotated[str, typer.Option("--to", help="Registry and path: ECR or Artifact Registry.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy images by digest into your registry and print the names that settings want."""
    registry = Registry(to)
    mirrored: list[Mirrored] = []
    for source in sources:
        STDERR.print(f"{source} → {to} …", highlight=False, markup=False)
        try:
            done = registry.mirror(source)
        except CloudError as error:
            raise AppError(f"{source}: {error}; images copied before stay, run it again to go on") from error
        STDERR.print("  copied" if done.copied else "  there already")
        mirrored.append(done)
    if as_json:
        print_json({"version": 1, "images": [{"source": m.source, "target": m.target} for m in mirrored]})
    else:
        for done in mirrored:
            typer.echo(done.target)
