"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

FleetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fleet",
        help="URL of a fleet document (file://, s3://, gs:// or a path); repeatable. Default: $GPUFLEET_FLEET.",
    ),
]
FeedOption = Annotated[
    Path | None,
    typer.Option("--feed", help="Folder that `gpufleet host feed` writes: for who has no credentials of the cloud."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
