"""`gpufleet bootstrap`: what an environment needs before its first `pulumi up`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from app.errors import AppError
from cli.output import STDERR, STDOUT, Exit, print_json
from clouds.foundation import Step
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import Cloud


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bootstrap")(bootstrap)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to be there, and what Pulumi is told of it."""

    cloud: Cloud
    steps: Iterator[Step]
    backend_url: str
    secrets_provider: str
    token: str


def bootstrap(
    environment: Annotated[str, typer.Argument(help="dev, staging, prod, …")],
    region: Annotated[str, typer.Option(help="Region of the environment.")],
    project: Annotated[
        str | None, typer.Option(help="Project id: make it on Google Cloud. Without it, on AWS.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Make what is missing; without it, only say so.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make the state bucket, the key and the agents' token of an environment, once."""
    missing = 0
    try:
        plan = _on_aws(environment, region) if project is None else _on_google(environment, region, project)
        for step in plan.steps:
            if step.present:
                STDERR.print(f"there    {step.what}", highlight=False, markup=False, soft_wrap=True)
            elif apply:
                step.make()
                STDERR.print(f"made     {step.what}", highlight=False, markup=False, soft_wrap=True)
            else:
                missing += 1
                STDERR.print(f"missing  {step.what}", highlight=False, markup=False, soft_wrap=True)
    except CloudError as error:
        raise AppError(f"{error}; what was made stays, and the next run goes on from there") from error
    told = {"PULUMI_BACKEND_URL": plan.backend_url, "secrets_provider": plan.secrets_provider}
    if as_json:
        print_json({"version": 1, "missing": missing, "agent_token": plan.token, **told})
    else:
        STDOUT.print(f"export PULUMI_BACKEND_URL='{plan.backend_url}'", highlight=False, soft_wrap=True)
        STDOUT.print(
            f"pulumi stack init {plan.cloud}-{environment} --secrets-provider '{plan.secrets_provider}'",
            highlight=False,
            soft_wrap=True,
        )
    if missing:
        STDERR.print(f"{missing} missing; run it again with --apply to make them")
        raise typer.Exit(Exit.FOUND)


def _on_aws(environment: str, region: str) -> _Plan:
    from clouds.aws import bootstrap as aws
    from clouds.aws.calls import AwsCalls

    calls = AwsCalls(region)
    wanted = aws.foundation(aws.account_of(calls), region, environment)
    return _Plan(
        cloud=Cloud.AWS,
        steps=aws.steps(calls, wanted),
        backend_url=wanted.backend_url,
        secrets_provider=wanted.secrets_provider,
        token=wanted.token,
    )


def _on_google(environment: str, region: str, project: str) -> _Plan:
    from clouds.gcp import bootstrap as google

    wanted = google.Foundation(project=project, region=region, environment=environment)
    return _Plan(
        cloud=Cloud.GCP,
        steps=google.steps(google.Rest(), wanted),
        backend_url=wanted.backend_url,
        secrets_provider=wanted.secrets_provider,
        token=wanted.token,
    )
