"""What a killed run of the spot watchdog began: said and settled by the next one."""

from gpufleet.domain.decisions import Outcome, OutcomeKind
from gpufleet.settings.document import FleetDocument
from watchdogs.draining import has_gone
from watchdogs.ports import Ports
from watchdogs.spot import failures
from watchdogs.spot.decide import WATCHDOG


def settle(ports: Ports, document: FleetDocument) -> tuple[Outcome, ...]:
    """Give an outcome to each end that has none. What lives is judged anew by this pass. Raises OSError."""
    outcomes: list[Outcome] = []
    for decision in ports.ledger.unfinished(WATCHDOG):
        if not has_gone(ports, document, ports.inventory.instance(decision.resource)):
            kind, detail = OutcomeKind.NO_LONGER_TRUE, "a run was killed before it ended it; it is judged anew"
        else:
            kind, detail = OutcomeKind.DONE, "ended by an earlier run that did not live to say so"
            text = f"{decision.resource} of pool {decision.pool} was ended: {decision.reason}; {decision.detail}."
            # the same key as that run's own message: if it was told already, it is told once
            ports.messages.tell(f"{WATCHDOG}:ended:{decision.resource}", text, {})
        group = decision.evidence.get(failures.GROUP)
        if kind is OutcomeKind.DONE and group is not None:
            ports.ledger.record_outcome(WATCHDOG, failures.note(decision, group), ports.clock.now())
        outcome = Outcome(decision=decision, kind=kind, detail=detail)
        ports.ledger.record_outcome(WATCHDOG, outcome, ports.clock.now())
        outcomes.append(outcome)
    return tuple(outcomes)
