"""What Prometheus answers where there is this evidence, in the words of `watchdogs.signals`."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from gpufleet.domain.evidence import EngineEvidence, Evidence, GpuEvidence


def engine_stats(evidence: Evidence, at: datetime, span: timedelta) -> dict[str, float]:
    """What Prometheus would answer for this evidence, asked over a span."""
    engine = evidence.engine
    if engine is None:
        return {}
    stats = {
        "running": engine.running_max,
        "below0": engine.running_max if engine.running_max is not None and engine.running_max < 0 else None,
        "waiting": engine.waiting_max,
        **_samples(engine, evidence, span),
        "newest": None if engine.newest_age is None else (at - engine.newest_age).timestamp(),
        "started": None if engine.started_age is None else (at - engine.started_age).timestamp(),
        "restarts": engine.restarts or None,
        "pulse": engine.pulse_changes,
        "changes0": engine.counter_changes,
        "changes1": None if engine.counter_changes is None else 0.0,
        "tokens0": engine.tokens,
    }
    return {name: value for name, value in stats.items() if value is not None}


def gpu_stats(evidence: Evidence, at: datetime, span: timedelta) -> dict[str, float]:
    """What Prometheus would answer for this evidence, asked over a span."""
    gpu = evidence.gpu
    if gpu is None:
        return {}
    stats = {
        "active": gpu.active_max,
        "lowest": gpu.active_min,
        **_samples(gpu, evidence, span),
        "newest": None if gpu.newest_age is None else (at - gpu.newest_age).timestamp(),
        "gpus": gpu.gpus,
        "metered": gpu.metered,
        "util": gpu.util_max,
        "energy": gpu.energy_changes,
        "milliwatts": None if gpu.watts_max is None else gpu.watts_max * 1000,
    }
    return {name: float(value) for name, value in stats.items() if value is not None}


def _samples(side: EngineEvidence | GpuEvidence, evidence: Evidence, span: timedelta) -> dict[str, float | None]:
    """How many came, and on how many scrapes."""
    if side.coverage is None:
        return {}
    count = side.coverage * (span / evidence.interval)
    return {"count": count, "intervals": count, "scrapes": count + (side.missed or 0)}


def scrape_rows(instance: str, evidence: Evidence, at: datetime) -> list[tuple[Mapping[str, str], float]]:
    """When each source was scraped last; an engine without evidence is one that does not answer any more."""
    gpu = evidence.gpu.newest_age if evidence.gpu else None
    engine = evidence.engine.newest_age if evidence.engine else gpu
    stats = {
        "engine": None if engine is None else (at - engine).timestamp(),
        "gpu": None if gpu is None else (at - gpu).timestamp(),
        "answers": None if engine is None else float(evidence.engine is not None),
    }
    return [({"instance_id": instance, "stat": name}, value) for name, value in stats.items() if value is not None]
