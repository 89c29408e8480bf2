"""Alembic migrations of the ledger. `gpufleet.ledger.schema` runs them."""
