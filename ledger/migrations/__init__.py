"""Alembic migrations of the ledger. `ledger.schema` runs them."""
