"""`gpufleet watch revisions`: changes running replicas to the served revision, one at a time."""

from collections.abc import Sequence
from typing import Any

import typer

from app import logs
from app.errors import AppError
from app.fleets import load_each
from app.revisions import run_locked
from cli.options import ApplyOption, FleetOption, QuietOption
from cli.output import PEOPLE, STDERR, Exit, note_unlogged
from cli.watch_pass import readable
from gpufleet.settings.document import FleetDocument


def register(watch_app: typer.Typer) -> None:
    watch_app.command("revisions")(revisions)


def revisions(
    fleet: FleetOption = None,
    apply: ApplyOption = False,
    quiet: QuietOption = False,
) -> None:
    """Change at most one running replica of each pool to the revision that `gpufleet model rollout` selected.

    Run it every minute.
    """
    documents, unread = readable(load_each(fleet))
    code, answers = over_fleets(documents, apply=apply)
    if not quiet and not logs.is_on():
        for answer in answers:
            how = "checked" if answer["error"] is None else "failed"
            STDERR.print(f"{answer['environment']}: revisions: {how}", soft_wrap=True, highlight=False)
    if unread or code is not Exit.DONE:
        raise typer.Exit(Exit.FAILED)


def over_fleets(
    documents: Sequence[FleetDocument], *, apply: bool, holder: str | None = None
) -> tuple[Exit, list[dict[str, Any]]]:
    """Run one pass over each fleet; a failure does not stop the others. `holder`: of the lease; None:
    this process.
    """
    answers: list[dict[str, Any]] = []
    for document in documents:
        error: str | None = None
        try:
            if not run_locked(document, apply=apply, people=PEOPLE, holder=holder):
                error = "a pool's rollout has failed"
        except (AppError, OSError) as failed:
            error = str(failed)
            note_unlogged(f"{document.environment}: revisions: {error}")
        answers.append({"environment": document.environment, "error": error})
    return Exit.FAILED if any(answer["error"] for answer in answers) else Exit.DONE, answers
