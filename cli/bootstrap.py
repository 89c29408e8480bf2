"""`gpufleet bootstrap`: creates what an environment needs before its first `pulumi up`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from app.errors import AppError, ErrorCode
from app.stated_names import check_environment, check_project, check_region
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from gpufleet.clouds.foundation import BootstrapStep
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import Cloud
from gpufleet.domain.rsa import PublicKey
from gpufleet.settings.document.orders import secret_names_begin


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bootstrap")(bootstrap)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The resources to create, and the values that settings and Pulumi need."""

    cloud: Cloud
    steps: Iterator[BootstrapStep]
    backend_url: str
    secrets_provider: str
    engine_key: str
    order_key: str
    public_key: Callable[[], PublicKey | None]
    """The public key of `order_key`, read from its secret store."""


def bootstrap(
    environment: Annotated[str, typer.Argument(help="Name of the environment, for example dev, staging or prod.")],
    region: Annotated[str, typer.Option(help="Cloud region of the environment, for example us-east-1.")],
    project: Annotated[
        str | None,
        typer.Option(help="Google Cloud project id. Default: use AWS, with the account of your credentials."),
    ] = None,
    order_key: Annotated[
        str | None,
        typer.Option(
            help="Name of the secret that holds the key for signing orders. Default: the environment's standard "
            "name. To rotate the key, give a new name."
        ),
    ] = None,
    shared_project: Annotated[
        bool,
        typer.Option("--shared-project", help="Google Cloud: allow a project that contains other environments."),
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Create what is missing. Without it, the command only lists it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create the state bucket, the encryption key and the secrets of an environment; print what its settings need.

    Run it once, before the first `pulumi up`. It keeps what exists. Exit code 3: something is missing.
    """
    cloud = Cloud.AWS if project is None else Cloud.GCP
    check_environment(environment)
    check_region(cloud, region)
    if project is not None:
        check_project(project)
    begin = secret_names_begin(cloud, environment)
    if order_key is not None and not order_key.startswith(begin):
        raise AppError(f"--order-key {order_key}: the names of this environment's secrets begin with {begin}")
    if shared_project and project is None:
        raise AppError("--shared-project is for Google Cloud: name its project with --project", ErrorCode.WRONG_USE)
    try:
        if project is None:
            plan = _on_aws(environment, region, order_key)
        else:
            plan = _on_google(environment, region, project, order_key, shared=shared_project)
        missing = _make(plan.steps, apply=apply)
        public = plan.public_key()
    except CloudError as error:
        raise AppError(f"{error}{_remedy(error, apply=apply)}") from error
    if as_json:
        print_json({"version": 1, "missing": missing, **_values_for_settings(plan, public)})
    else:
        for line in _lines(plan, public, environment):
            STDOUT.print(line, highlight=False, markup=False, soft_wrap=True)
    if missing:
        STDERR.print(f"{missing} missing; run the command again with --apply to create them")
        raise typer.Exit(Exit.FOUND)


def _remedy(error: CloudError, *, apply: bool) -> str:
    from gpufleet.clouds.aws.calls import LOGIN, NOT_LOGGED_IN

    login = f"; {LOGIN}" if error.code in NOT_LOGGED_IN else ""
    kept = "; what was created is kept, and the next run continues from there" if apply else ""
    return f"{login}{kept}"


def _make(steps: Iterator[BootstrapStep], *, apply: bool) -> int:
    """Run the steps. Returns the number of missing resources afterwards. Raises CloudError."""
    missing = 0
    for step in steps:
        if step.present:
            word = "exists "
        elif apply:
            step.make()
            word = "created"
        else:
            missing += 1
            word = "missing"
        STDERR.print(f"{word}  {step.what}", highlight=False, markup=False, soft_wrap=True)
    return missing


def _values_for_settings(plan: _Plan, public: PublicKey | None) -> dict[str, Any]:
    """The values that settings and Pulumi need, for JSON."""
    keys = [] if public is None else [public.text]
    return {
        "engine_key": plan.engine_key,
        "orders": {"private_key": plan.order_key, "public_keys": keys},
        "PULUMI_BACKEND_URL": plan.backend_url,
        "secrets_provider": plan.secrets_provider,
    }


def _lines(plan: _Plan, public: PublicKey | None, environment: str) -> list[str]:
    """The same values for people: commands for the shell, and lines for the settings file."""
    stack = f"{plan.cloud}-{environment}"
    lines = [
        f"export PULUMI_BACKEND_URL='{plan.backend_url}'",
        f"pulumi stack init {stack} --secrets-provider '{plan.secrets_provider}'",
    ]
    if public is not None:
        lines += [
            f"# in stacks/config/Pulumi.{stack}.yaml, below gpu-fleet:fleet:",
            f"#   engine_key: {plan.engine_key}",
            "#   orders:",
            f"#     private_key: {plan.order_key}",
            f"#     public_keys: [{public.text}]",
        ]
    return lines


def _on_aws(environment: str, region: str, order_key: str | None) -> _Plan:
    from gpufleet.clouds.aws import bootstrap as aws
    from gpufleet.clouds.aws.calls import AwsCalls

    calls = AwsCalls(region)
    wanted = aws.foundation(aws.account_of(calls), region, environment, order_key)
    return _Plan(
        cloud=Cloud.AWS,
        steps=aws.steps(calls, wanted),
        backend_url=wanted.backend_url,
        secrets_provider=wanted.secrets_provider,
        engine_key=wanted.engine_key,
        order_key=wanted.order_key,
        public_key=lambda: aws.public_key(calls, wanted),
    )


def _on_google(environment: str, region: str, project: str, order_key: str | None, *, shared: bool) -> _Plan:
    from gpufleet.clouds.gcp import bootstrap as google

    rest = google.GoogleRest()
    others = () if shared else sorted(google.environments(rest, project) - {environment})
    if others:
        raise AppError(
            f"--project {project}: the project already contains the environment {', '.join(others)}, and the control"
            f" host of {environment} could resize its groups (docs/security.md). Use another project for"
            f" {environment}, or give --shared-project and set `shared_project: true` in the settings of each"
        )
    wanted = google.Foundation(project=project, region=region, environment=environment, own_order_key=order_key)
    return _Plan(
        cloud=Cloud.GCP,
        steps=google.steps(rest, wanted),
        backend_url=wanted.backend_url,
        secrets_provider=wanted.secrets_provider,
        engine_key=wanted.engine_key,
        order_key=wanted.order_key,
        public_key=lambda: google.public_key(rest, wanted),
    )
