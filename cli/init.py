"""`gpufleet init`: drafts the settings file of an environment."""

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from app.errors import AppError, ErrorCode
from app.scan_document import read_scan
from app.settings_draft import Answers, check_types, draft
from cli.files import write_text
from cli.options import JsonOption
from cli.output import STDOUT, Exit, print_json
from cli.settings import problems_of
from gpufleet.domain.model import Cloud


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(  # noqa: PLR0913, PLR0917 - options
    environment: Annotated[str, typer.Option("--environment", help="Name of the environment, such as dev.")] = "dev",
    scan: Annotated[
        Path | None, typer.Option("--from", help="Output of `gpufleet scan --json`. Its instances become pools.")
    ] = None,
    cloud: Annotated[Cloud | None, typer.Option("--cloud", help="Default: that of the scan, or aws.")] = None,
    account: Annotated[str | None, typer.Option("--account", help="AWS account id or Google Cloud project.")] = None,
    region: Annotated[
        str | None, typer.Option("--region", help="Default: the region of the scan with the highest cost.")
    ] = None,
    zone: Annotated[
        list[str] | None, typer.Option("--zone", metavar="ZONE", help="Zone; repeatable. Default: those of the scan.")
    ] = None,
    machine_type: Annotated[
        list[str] | None,
        typer.Option("--machine-type", metavar="TYPE", help="Machine type of the one pool, without a scan."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Source of the model, such as hf://ORGANISATION/MODEL.")
    ] = None,
    weights_gib: Annotated[
        float | None, typer.Option("--weights-gib", min=0.001, help="Size of the model's weights in GiB.")
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Team that owns the pools.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write. Default: Pulumi.CLOUD-ENVIRONMENT.yaml here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draft the settings file of an environment from a scan, and list what is left to decide.

    Exit code 3: the file needs a decision before `gpufleet settings check` accepts it.
    """
    answers = Answers(
        environment=environment,
        cloud=cloud,
        account=account,
        region=region,
        zones=tuple(zone or ()),
        machine_types=tuple(machine_type or ()),
        model=model,
        weights_gib=weights_gib,
        owner=owner,
    )
    check_types(answers)
    found = draft(answers, None if scan is None else read_scan(_text(scan)), datetime.now(UTC))
    path = Path(found.name) if out is None else out
    if path.is_dir():
        raise AppError(f"--out: {path} is a folder; name a file in it", ErrorCode.WRONG_USE)
    if path.exists() and not force:
        raise AppError(f"{path} exists: choose another --out, or replace it with --force", ErrorCode.WRONG_USE)
    write_text(found.text, path)
    problems = problems_of(path)
    if as_json:
        print_json({"file": str(path), "decide": found.decide, "problems": [str(problem) for problem in problems]})
    else:
        STDOUT.print(f"wrote {path}", highlight=False)
        STDOUT.print("Decide:", highlight=False)
        for one in found.decide:
            STDOUT.print(f" - {one}", highlight=False, soft_wrap=True)
        for problem in problems:
            STDOUT.print(f" - {problem}", highlight=False, soft_wrap=True)
        STDOUT.print(f"Then: gpufleet settings check {shlex.quote(str(path))}", highlight=False, soft_wrap=True)
    if problems:
        raise typer.Exit(Exit.FOUND)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise AppError(f"--from: {path}: {getattr(error, 'strerror', None) or error}", ErrorCode.WRONG_USE) from error
