"""Hours whose alerts were told."""

from alembic import op

from ledger.tables import TOLD

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    # a new ledger has it from 0001 on, which makes every table that is declared
    TOLD.create(op.get_bind(), checkfirst=True)
