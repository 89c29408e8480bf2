"""Runs the watchdogs without a machine of their own: an AWS Lambda handler and a Cloud Run job, with the code of
`watch`.

Both need a ledger in PostgreSQL (a function has no persistent disk) and a connection to Prometheus and to the node
agents (the environment's network). If a time limit interrupts a pass, the next one continues it.
"""

import ipaddress
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from app import logs
from app.errors import AppError, ErrorCode
from app.fleets import load_each
from app.passes import Options, kinds
from cli import watch_cost, watch_revisions
from cli.output import Exit, exit_of, log_failure, print_json
from cli.watch_pass import Show, over_fleets, readable
from gpufleet.domain.parsed import is_list
from gpufleet.settings.document import FleetDocument

COST: Final = "cost"
REVISIONS: Final = "revisions"
EVENT_KEYS: Final = frozenset({"watchdog", "apply", "fleet"})


class PassFailedError(Exception):
    """A pass failed. The cloud counts it as an error, which its alarms use."""


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """AWS Lambda. Event: `{"watchdog": "idle", "apply": true, "fleet": ["s3://…"]}`; else $GPUFLEET_FLEET.

    Raises AppError for a wrong event, PassFailedError when a pass failed.
    """
    name, apply, urls = _parse_event(event)
    code, fleets = one_pass(name, urls, apply=apply)
    answer = {"watchdog": name, "applied": apply, "found": code is Exit.FOUND, "fleets": fleets}
    if code is Exit.FAILED:
        raise PassFailedError(f"{name}: {'; '.join(_why(fleet) for fleet in fleets)}")
    return answer


def _why(fleet: Mapping[str, Any]) -> str:
    return str(fleet.get("error") or "; ".join(fleet.get("notes", ())) or "an outcome failed")


def main(arguments: Sequence[str] | None = None) -> int:
    """A Cloud Run job: `python -m cli.serverless idle --apply`. JSON on stdout; 0 unless a pass failed.

    A dry run with actions is a success here: Cloud Run would repeat a failure.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    apply = "--apply" in given
    names = [word for word in given if word != "--apply"]
    try:
        if len(names) != 1:
            raise AppError(
                f"arguments: expected one watchdog and optionally --apply, got {given}", ErrorCode.WRONG_USE
            )
        code, fleets = one_pass(names[0], None, apply=apply)
    except AppError as error:
        log_failure(error)
        return exit_of(error.code)
    print_json({"watchdog": names[0], "applied": apply, "fleets": fleets})
    return Exit.FAILED if code is Exit.FAILED else Exit.DONE


def one_pass(name: str, urls: Sequence[str] | None, *, apply: bool) -> tuple[Exit, list[dict[str, Any]]]:
    """Run one pass of a watchdog over some fleets. Raises AppError."""
    logs.configure("function", service=True)
    known = kinds()
    if name not in (names := (*known, COST, REVISIONS)):
        raise AppError(f"watchdog {name!r}: expected one of {', '.join(names)}", ErrorCode.WRONG_USE)
    documents, unread = readable(load_each(urls))
    for document in documents:
        reachable(document)
    if name == COST:
        code, answers = watch_cost.over_fleets(documents, show=False)
    elif name == REVISIONS:
        code, answers = watch_revisions.over_fleets(documents, apply=apply, holder=_holder())
    else:
        code, answers = over_fleets(known[name], documents, Options(apply=apply, holder=_holder()), Show.PROBLEMS)
    return (Exit.FAILED if unread else code), answers


def _holder() -> str:
    """A lease holder's name without machine details.

    All functions are called `localhost` and share a few process numbers, so a live one elsewhere would look like a
    dead one here. An interrupted function keeps its lease until the lease expires.
    """
    return f"function/{uuid.uuid4()}"


def reachable(document: FleetDocument) -> None:
    """Check that a function can work for this fleet. Raises AppError."""
    scheme = document.ledger_url.split(":", 1)[0]
    if not scheme.startswith("postgresql"):
        raise AppError(
            f"{document.environment}: the ledger is {scheme}, and a function does not have a persistent disk;"
            " set ledger_url to postgresql://… in the settings"
        )
    host = urlsplit(document.prometheus_url).hostname or ""
    if _is_loopback(host):
        raise AppError(
            f"{document.environment}: prometheus_url is {document.prometheus_url}, which a function cannot reach;"
            " set the control host's private address"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parse_event(event: Mapping[str, Any]) -> tuple[str, bool, list[str] | None]:
    unknown = sorted(set(event) - EVENT_KEYS)
    if unknown:
        raise AppError(
            f"event: unknown key {', '.join(unknown)}; expected watchdog, apply or fleet", ErrorCode.WRONG_USE
        )
    apply: Any = event.get("apply", False)
    if not isinstance(apply, bool):
        raise AppError(f"event: apply: expected true or false, got {apply!r}", ErrorCode.WRONG_USE)
    fleet: Any = event.get("fleet")
    if fleet is not None and not (is_list(fleet) and all(isinstance(url, str) for url in fleet)):
        raise AppError(f"event: fleet: expected a list of URLs, got {fleet!r}", ErrorCode.WRONG_USE)
    return str(event.get("watchdog", "")), apply, fleet


if __name__ == "__main__":
    sys.exit(main())
