"""The agent's `/metrics` page."""

from collections.abc import Iterator

from gpufleet.domain.model import Phase
from hosts.node.state import NodeState
from serving import metrics
from serving.exposition import Sample, render_family
from serving.metrics import Metric


def render(state: NodeState) -> str:
    """Render the metrics page."""
    families: list[str] = []
    for metric, samples in _values(state):
        lines = [
            Sample(name=metric.name, labels={"pool": state.pool, **more}, value=value) for more, value in samples
        ]
        families.append(render_family(metric.name, metric.kind, metric.meaning, lines))
    return "".join(families)


def _values(state: NodeState) -> Iterator[tuple[Metric, list[tuple[dict[str, str], float]]]]:
    counters, steps, order = state.counters, state.steps(), state.order
    yield metrics.NODE_PHASE, [({"phase": phase.value}, float(phase is state.phase)) for phase in Phase]
    yield metrics.NODE_PHASE_SINCE, [({}, state.since.timestamp())]
    yield (
        metrics.NODE_BOOT_SECONDS,
        [
            ({"step": step.phase.value}, (step.ended - step.started).total_seconds())
            for step in steps
            if step.ended is not None and step.error is None
        ],
    )
    yield metrics.NODE_BOOT_ATTEMPTS, [({"step": step.phase.value}, step.attempts) for step in steps]
    yield (
        metrics.NODE_CACHE_BYTES,
        [({"origin": "fetched"}, counters.bytes_fetched), ({"origin": "kept"}, counters.bytes_kept)],
    )
    yield metrics.NODE_CACHE_RETRIES, [({}, counters.cache_retries)]
    yield metrics.NODE_ENGINE_RESTARTS, [({}, counters.engine_starts)]
    if state.engine is not None:
        identity = {"kind": state.engine.kind, "version": state.engine.version or ""}
        yield metrics.NODE_ENGINE_INFO, [(identity, 1.0)]
        yield metrics.NODE_ENGINE_MISSING, [({"name": name}, 1.0) for name in state.engine.missing]
        if state.engine.process is not None:
            yield metrics.NODE_ENGINE_STARTED, [({}, state.engine.process.started)]
            yield metrics.NODE_ENGINE_CPU, [({}, state.engine.process.cpu_s)]
    if (requests := state.gate_requests()) is not None:
        yield metrics.NODE_ENGINE_REQUESTS, [({}, requests.opened)]
        yield metrics.NODE_ENGINE_PASSED, [({}, requests.passed)]
    yield metrics.NODE_DRAINING, [({}, float(order is not None))]
    if order is not None:
        yield metrics.NODE_DRAIN_DEADLINE, [({"reason": order.reason}, order.deadline.timestamp())]
    yield metrics.NODE_ORDER_KEY, [({"key": key}, 1.0) for key in state.order_keys]
    yield metrics.NODE_REQUESTS_CUT, [({}, counters.requests_cut)]
