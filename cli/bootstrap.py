"""`gpufleet bootstrap`: what an environment needs before its first `pulumi up`."""

from typing import Annotated

import typer

from cli.output import STDERR, STDOUT, Exit, UserError, print_json
from clouds.aws.bootstrap import account_of, foundation, steps
from clouds.aws.calls import AwsCalls
from fleet.activity import CloudError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bootstrap")(bootstrap)


def bootstrap(
    environment: Annotated[str, typer.Argument(help="dev, staging, prod, …")],
    region: Annotated[str, typer.Option(help="Region of the environment.")],
    apply: Annotated[bool, typer.Option("--apply", help="Make what is missing; without it, only say so.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make the state bucket, the key and the agents' token of an environment on AWS, once."""
    calls = AwsCalls(region)
    missing = 0
    try:
        wanted = foundation(account_of(calls), region, environment)
        for step in steps(calls, wanted):
            if step.present:
                STDERR.print(f"there    {step.what}", highlight=False, markup=False)
            elif apply:
                step.make()
                STDERR.print(f"made     {step.what}", highlight=False, markup=False)
            else:
                missing += 1
                STDERR.print(f"missing  {step.what}", highlight=False, markup=False)
    except CloudError as error:
        raise UserError(f"{error}; what was made stays, and the next run goes on from there") from error
    told = {"PULUMI_BACKEND_URL": wanted.backend_url, "secrets_provider": wanted.secrets_provider}
    if as_json:
        print_json({"version": 1, "missing": missing, "agent_token": wanted.token, **told})
    else:
        STDOUT.print(f"export PULUMI_BACKEND_URL='{wanted.backend_url}'", highlight=False, soft_wrap=True)
        STDOUT.print(
            f"pulumi stack init aws-{environment} --secrets-provider '{wanted.secrets_provider}'",
            highlight=False,
            soft_wrap=True,
        )
    if missing:
        STDERR.print(f"{missing} missing; run it again with --apply to make them")
        raise typer.Exit(Exit.FOUND)
