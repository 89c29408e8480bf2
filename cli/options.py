"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

FleetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fleet",
        help="URL (file://, s3://, gs://) or path of a fleet document; repeatable. Default: $GPUFLEET_FLEET.",
    ),
]
FeedOption = Annotated[
    Path | None,
    typer.Option(
        "--feed",
        help="Folder that `gpufleet host feed` writes. Read the fleet's state there, without cloud credentials.",
    ),
]
ApplyOption = Annotated[
    bool, typer.Option("--apply", help="Carry out the plan. Without it, the command only prints the plan.")
]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-policy",
        metavar="HASH",
        help="Allow the changed policy with this hash to act, without a dry run that shows it first; repeatable.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing if there is nothing to do.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
