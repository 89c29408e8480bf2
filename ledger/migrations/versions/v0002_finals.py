"""What bills said of spans of the ledger."""

from alembic import op

from ledger.tables import FINALS

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    # a new ledger has it from 0001 on, which makes every table that is declared
    FINALS.create(op.get_bind(), checkfirst=True)
