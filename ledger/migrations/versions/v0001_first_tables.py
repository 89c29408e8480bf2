"""The first tables of the ledger."""

from alembic import op

from ledger.tables import METADATA

revision = "0001"
down_revision = None


def upgrade() -> None:
    METADATA.create_all(op.get_bind())
