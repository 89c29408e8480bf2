"""What a killed run of the spot watchdog began: the next one gives it an outcome."""

from gpufleet.domain.decisions import Decision
from gpufleet.settings.document import FleetDocument
from watchdogs.draining import has_gone
from watchdogs.execute import Executor
from watchdogs.ports import Ports
from watchdogs.spot import failures


def settle(executor: Executor, ports: Ports, document: FleetDocument, decision: Decision) -> None:
    """Give an outcome to an end that has none. What lives is judged anew by this pass. Raises OSError."""
    if not has_gone(ports, document, ports.inventory.instance(decision.resource)):
        executor.off(decision, "a run was killed before it ended it; it is judged anew")
        return
    text = f"{decision.resource} of pool {decision.pool} was ended: {decision.reason.sentence}; {decision.detail}."
    # the same key as that run's own message: if it was sent already, it is sent once
    executor.notify(f"ended:{decision.resource}", text)
    if (group := decision.evidence.get(failures.GROUP)) is not None:
        executor.note(failures.note(decision, group))
    executor.done(decision, "ended by an earlier run that did not live to say so")
