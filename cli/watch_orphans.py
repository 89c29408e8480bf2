"""`gpufleet watch orphans`: GPU instances that no pool owns, with their price. It only reads."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated

import typer

from cli import plans
from cli.fleets import FleetOption, load
from cli.output import STDOUT, Exit, UserError, print_json
from cli.wiring import wire
from fleet.document import FleetDocument
from fleet.model import Cloud, Instance
from watchdogs.idle import orphans as rules
from watchdogs.ports import Ports

WINDOW = "30m"


def register(watch_app: typer.Typer) -> None:
    watch_app.command("orphans")(orphans)


def orphans(
    fleet: FleetOption = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="KEY=VALUE", help="Only those with this tag.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")] = False,
) -> None:
    """List running GPU instances outside every pool of the fleets named, whoever made them. Exit code 3: found some.

    Those of each fleet's region and account, by machine type (AWS: families G and P). Nothing is marked or stopped.
    """
    chosen = _tag(tag)
    documents = load(fleet)
    answers: list[dict[str, object]] = []
    found = False
    for document in {(d.cloud, d.account, d.region): d for d in documents}.values():
        wired = wire(document, "orphans")
        try:
            now = wired.ports.clock.now()
            there = rules.outside(_gpus(document), documents)
            mine = [i for i in there if chosen is None or i.tags.get(chosen[0]) == chosen[1]]
            plan = rules.listed(mine, _active(wired.ports, mine, now), wired.ports.prices, now)
        except OSError as error:
            raise UserError(f"{document.cloud} {document.region}: {error}") from error
        finally:
            wired.engine.dispose()
        found = found or bool(plan.decisions)
        known = [d.usd_per_hour for d in plan.decisions if d.usd_per_hour is not None]
        unpriced = len(plan.decisions) - len(known)
        total = sum(known, Decimal(0))
        answers.append(
            plans.plan_json(plan, ())
            | {"cloud": document.cloud, "region": document.region, "usd_per_hour": str(total), "unpriced": unpriced}
        )
        if not as_json:
            words = f"{total.normalize():f} USD/h{f' and {unpriced} of unknown price' if unpriced else ''}"
            title = f"{document.cloud} {document.region}: {len(plan.decisions)} outside every pool, {words}"
            if plan.decisions:
                plans.show_plan(plan, title)
            else:
                STDOUT.print(title, highlight=False)
    if as_json:
        print_json(answers)
    raise typer.Exit(Exit.FOUND if found else Exit.DONE)


def _tag(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UserError(f"--tag {text!r}: write it as KEY=VALUE", Exit.WRONG_USE)
    return key, value


def _gpus(document: FleetDocument) -> tuple[Instance, ...]:
    if document.cloud is Cloud.GCP:
        from clouds.gcp.calls import GoogleCalls
        from clouds.gcp.inventory import GoogleInventory

        return GoogleInventory(GoogleCalls(document.account), document.region, document.environment).gpus()
    from clouds.aws.calls import AwsCalls
    from clouds.aws.inventory import AwsInventory

    return AwsInventory(AwsCalls(document.region), document.region, document.environment).gpus()


def _active(ports: Ports, instances: list[Instance], now: datetime) -> dict[str, float]:
    """What Prometheus knows of them. An unreachable one is said, and no reason to hide what costs money."""
    if not instances:
        return {}
    try:
        rows = ports.metrics.query(rules.query(instances, WINDOW), now)
    except OSError as error:
        plans.say(f"their GPUs are not known: {error}")
        return {}
    return {labels["instance_id"]: value for labels, value in rows if "instance_id" in labels}
