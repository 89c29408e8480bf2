"""The contract of Ollama. Read-only. It has no metrics page: nothing proves work or idleness, so nothing is ended."""

from typing import Final

from serving.engines.contract import (
    Contract,
    EngineDrain,
    EngineEvidenceRule,
    Probes,
    StopMode,
    TokenError,
    TokenRecord,
    TokenSource,
)
from serving.releases import versions

CONTRACT: Final = Contract(
    kind="ollama",
    title="Ollama",
    tested=versions("0.11", "1.0"),
    series=(),
    evidence=EngineEvidenceRule(work=(), idle=()),
    tokens=TokenRecord(
        source=TokenSource.ROUTER,
        error="only of requests that passed through the router: the engine counts nothing",
        errors=(TokenError.NOT_ROUTED,),
    ),
    probes=Probes(alive="/", version="/api/version", metrics=None),
    drain=EngineDrain(stop=StopMode.CUTS),
    sources=("server/routes.go of ollama/ollama at fb30760",),
)
