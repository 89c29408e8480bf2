"""`gpufleet policies`: the rules that reject a plan, and a check of a plan without Pulumi's engine."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.errors import AppError, ErrorCode
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, print_json
from gpufleet.domain.parsed import is_map
from gpufleet.settings import KEY

if TYPE_CHECKING:
    from policies.context import Context
    from policies.rule import Rule, Violation

VIOLATIONS: Final = 1
"""Exit code of `check`: a CI gate distinguishes 0 (passes), 1 (violations) and 2 (cannot judge)."""
_USUAL: Final = timedelta(days=90)

policies_app = typer.Typer(
    no_args_is_help=True, help="The policy pack: list and explain its rules, and check a plan against them."
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(policies_app, name="policies")


@policies_app.command("list")
def list_rules(as_json: JsonOption = False) -> None:
    """List all rules, each with its reason."""
    from policies.pack import RULES  # slow to import

    if as_json:
        print_json([_described(rule) for rule in RULES])
        return
    width = max(len(rule.id) for rule in RULES)
    for rule in RULES:
        STDOUT.print(f"{rule.id:{width}}  {rule.reason}", highlight=False, soft_wrap=True)


@policies_app.command("explain")
def explain(rule: Annotated[str, typer.Argument(help="Name of a rule, for example no-open-ingress.")]) -> None:
    """Explain a rule: its reason, what it checks, the remedy, and how to write an exception."""
    found = _rule(rule)
    whole = "the plan as a whole" if found.check_resource is None else "each resource"
    for line in (found.id, found.reason, f"Checks: {found.judges or whole}.", f"Remedy: {found.remedy}"):
        STDOUT.print(line, highlight=False, soft_wrap=True)
    STDOUT.print("\nTo write an exception, add this to the settings of the environment:", highlight=False)
    STDOUT.print(_snippet(found), highlight=False, soft_wrap=True)


@policies_app.command("check")
def check(
    preview: Annotated[
        str,
        typer.Argument(
            help="File with the output of `pulumi preview --json --show-sames`, or `-` for standard input."
        ),
    ],
    settings: Annotated[Path, typer.Option(help="Settings file with which the plan was made.")],
    as_json: JsonOption = False,
) -> None:
    """Check a plan against the policy pack, without Pulumi's engine. Exit codes: 0 passes, 1 violations, 2 error."""
    from gpufleet.prices.plan.preview import PreviewError, parse
    from policies.pack import RULES, judged
    from policies.preview import resources_of

    context = _context(settings)
    text = _read(preview)
    try:
        plan = parse(text)
        resources = resources_of(plan)
    except PreviewError as error:
        raise AppError(f"{preview}: {error}", ErrorCode.WRONG_USE) from error
    if (other := _environment(plan.config.get(KEY))) not in (None, f"{context.cloud} {context.environment}"):
        wrong = f"{preview} is a plan for {other}, and {settings} is for {context.cloud} {context.environment}"
        raise AppError(f"{wrong}: give the settings with which the plan was made", ErrorCode.WRONG_USE)
    violations, used = judged(resources, context)
    for path in context.unknown:
        STDERR.print(f"{path}: this release does not know the key, and ignores it", highlight=False, soft_wrap=True)
    if as_json:
        print_json(
            {
                "passes": not violations,
                "resources": len(resources),
                "rules": [rule.id for rule in RULES],
                "violations": [_as_json(rule, violation) for rule, violation in violations],
                "exceptions": [exception.model_dump(mode="json") for exception in used],
                "unknown_settings": list(context.unknown),
            }
        )
    else:
        for rule, violation in violations:
            STDOUT.print(rule.message(violation), highlight=False, soft_wrap=True)
        for e in used:
            what = f"{e.rule}, {e.resource}{f' ({e.type})' if e.type else ''}"
            STDOUT.print(f"allowed until {e.until} by {e.owner}: {what}: {e.reason}", highlight=False, soft_wrap=True)
        count = len(violations)
        result = "passes" if not count else "1 violation" if count == 1 else f"{count} violations"
        STDOUT.print(f"{len(resources)} resources, {len(RULES)} rules: {result}", highlight=False)
    if violations:
        raise typer.Exit(VIOLATIONS)


def _context(settings: Path) -> "Context":
    """Raises AppError for settings that the rules cannot use."""
    from policies.context import ContextError, from_config
    from policies.pack import problems_of
    from policies.settings import FROM_FILE, config_of

    try:
        context = from_config(config_of({FROM_FILE: os.fspath(settings)}), datetime.now(UTC).date())
    except ContextError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error
    if problems := problems_of(context):
        raise AppError(f"{settings}: {'; '.join(problems)}", ErrorCode.WRONG_USE)
    return context


def _environment(fleet: Any) -> str | None:
    """Cloud and environment in the settings of a preview; None if it has none."""
    try:
        found: Any = json.loads(fleet) if isinstance(fleet, str) else fleet
    except ValueError:
        return None
    return f"{found.get('cloud')} {found.get('environment')}" if is_map(found) else None


def _read(preview: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if preview == "-" else Path(preview).read_bytes()
    except OSError as error:
        raise AppError(f"{preview}: {error.strerror or error}", ErrorCode.WRONG_USE) from error


def _rule(name: str) -> "Rule":
    from policies.pack import RULES, close_to

    found = {rule.id: rule for rule in RULES}
    if name not in found:
        near = ", ".join(close_to(name))
        raise AppError(f"{name!r} is not a rule of the policy pack; similar names: {near}", ErrorCode.WRONG_USE)
    return found[name]


def _snippet(rule: "Rule") -> str:
    until = (datetime.now(UTC) + _USUAL).date()
    one = "NAME" if rule.named else 'NAME    # the name in the Pulumi program; "*": every resource'
    kind = "aws:ec2/instance:Instance" if rule.named else "aws:ec2/instance:Instance    # leave out for every type"
    return f"""\
policies:
  exceptions:
    - rule: {rule.id}
      type: {kind}
      resource: {one}
      owner: TEAM
      reason: WHY
      until: "{until}"    # the last day; in quotes, because Pulumi would read it as a time"""


def _described(rule: "Rule") -> dict[str, str]:
    return {"rule": rule.id, "reason": rule.reason, "judges": rule.judges, "remedy": rule.remedy}


def _as_json(rule: "Rule", violation: "Violation") -> dict[str, Any]:
    from policies.rule import shown

    return {
        "rule": rule.id,
        "resource": violation.resource,
        "type": violation.type,
        "property": violation.path,
        "value": shown(violation.value) if violation.path else None,
        "message": violation.sentence,
        "remedy": rule.remedy,
    }
