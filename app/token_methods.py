"""How the tokens of each engine are counted, from its contract."""

from gpufleet.costs.token_origins import TokenMethod
from serving.engines import contract_of
from serving.engines.contract import TokenSource


def token_method(engine: str | None) -> TokenMethod:
    """The method of an engine. None: settings of an older release named no engine."""
    contract = contract_of(engine)
    if contract is None:
        return TokenMethod(
            title=str(engine),
            source="unknown",
            source_text="unknown",
            errors=(),
            error_text="this release does not know the engine",
            by_engine=False,
        )
    record = contract.tokens
    return TokenMethod(
        title=contract.title,
        source=record.source.code,
        source_text=record.source.value,
        errors=tuple(error.value for error in record.errors),
        error_text=record.error,
        by_engine=record.source is not TokenSource.ROUTER,
    )
