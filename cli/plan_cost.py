"""`gpufleet plan-cost`: the cost of a plan before it is deployed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer

from app import plan_tokens
from app.errors import AppError, ErrorCode
from app.fleets import load
from app.plan_tokens import Expected
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json, write
from gpufleet.costs.render import table
from gpufleet.domain.prices import Price
from gpufleet.prices.plan.cost import PlanCost, PlanCostError, parts_of, plan_cost
from gpufleet.prices.plan.preview import PreviewError, parse
from gpufleet.prices.plan.rates import rates_of
from gpufleet.prices.plan.render import HEADINGS, as_json, headline, markdown, notes, rows

PREVIEW_LIMIT_S = 900


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan-cost")(plan_cost_command)


def plan_cost_command(
    preview: Annotated[
        str | None,
        typer.Argument(
            help="File with the output of `pulumi preview --json --show-sames`, or `-` for standard input. Default: "
            "run that command."
        ),
    ] = None,
    stack: Annotated[
        str | None, typer.Option(help="Stack to preview if no file is given. Default: the selected stack.")
    ] = None,
    json_output: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown for a pull request.")] = False,
    fail_over: Annotated[
        str | None,
        typer.Option(help="Exit with code 3 if the plan costs more than this at its desired size, in USD a month."),
    ] = None,
    fleet: FleetOption = None,
) -> None:
    """Compute the cost of a plan by pool and capacity type, at its minimum, desired and maximum size.

    If the environment runs already, --fleet also uses the spot prices in its ledger, and the cost of spot is a range.
    """
    limit = _parse_limit(fail_over)
    try:
        plan = parse(_read(preview, stack))
        rates = rates_of(plan.config, datetime.now(UTC), _observed(fleet, plan.config))
        before, after = plan_cost(plan, plan.before, rates), plan_cost(plan, plan.after, rates)
        expected = plan_tokens.expected(plan.config, after)
    except PreviewError as error:
        raise AppError(str(error)) from error
    except PlanCostError as error:
        raise AppError("the plan cannot be priced:\n  " + "\n  ".join(error.problems)) from error
    if json_output:
        print_json(as_json(before, after) | {"expected": [plan_tokens.as_json(row) for row in expected]})
    elif as_markdown:
        write(markdown(before, after) + "".join(f"- {plan_tokens.as_text(row)}\n" for row in expected))
    else:
        _show(before, after, expected)
    if limit is not None and after.usd_per_month > limit:
        STDERR.print(f"gpufleet: {after.usd_per_month:.2f} USD a month is above --fail-over {limit}", style="red")
        raise typer.Exit(Exit.FOUND)


def _observed(urls: Sequence[str] | None, config: Mapping[str, Any]) -> Sequence[Price]:
    """Prices that the ledger of the plan's own environment observed; empty without a fleet."""
    if not urls and not os.environ.get("GPUFLEET_FLEET"):
        return ()
    from app.price_inputs import observed_prices  # imports the ledger, which most plans do not need

    settings = parts_of(config)
    place = (settings.cloud, settings.environment, settings.region)
    try:
        for document in load(urls):
            if (document.cloud, document.environment, document.region) == place:
                return observed_prices(document)
    except AppError as error:
        if urls:
            raise
        # the shell's fleet may be another one or may not exist: the plan uses its packaged and stated prices
        STDERR.print(f"gpufleet: without observed prices: {error}", style="yellow", highlight=False, soft_wrap=True)
    return ()


def _parse_limit(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        limit = Decimal(text)
    except InvalidOperation as error:
        raise AppError(
            f"--fail-over {text!r} is not an amount: write USD a month, for example 5000", ErrorCode.WRONG_USE
        ) from error
    if not limit.is_finite() or limit < 0:
        raise AppError(f"--fail-over {text}: expected a finite amount of at least 0", ErrorCode.WRONG_USE)
    return limit


def _read(preview: str | None, stack: str | None) -> bytes:
    if preview == "-":
        return sys.stdin.buffer.read()
    if preview is not None:
        try:
            return Path(preview).read_bytes()
        except OSError as error:
            raise AppError(f"{preview}: {error.strerror}") from error
    return _run(stack)


def _run(stack: str | None) -> bytes:
    if shutil.which("pulumi") is None:
        raise AppError("pulumi is not on PATH: run `make setup`, or give a file with a preview")
    command = ["pulumi", "preview", "--json", "--show-sames", *(["--stack", stack] if stack else [])]
    STDERR.print(f"$ {' '.join(command)}", highlight=False)
    try:
        done = subprocess.run(command, capture_output=True, timeout=PREVIEW_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise AppError(f"`pulumi preview` did not end within {PREVIEW_LIMIT_S} s") from error
    if done.returncode != 0 and not done.stdout.strip():
        output = done.stderr.decode(errors="replace").strip()
        raise AppError(f"`pulumi preview` failed ({done.returncode}): {output}")
    return done.stdout


def _show(before: PlanCost, after: PlanCost, expected: Sequence[Expected]) -> None:
    STDOUT.print("Cost of this plan", style="italic")
    STDOUT.print(table([HEADINGS, *rows(after)], left={0, 1, 2}), markup=False, highlight=False, soft_wrap=True)
    STDOUT.print(headline(before, after), style="bold", highlight=False, soft_wrap=True)
    for note in (*notes(after), *map(plan_tokens.as_text, expected)):
        STDOUT.print(note, markup=False, highlight=False, soft_wrap=True)
