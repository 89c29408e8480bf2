"""What the last pass of the cost watchdog added up."""

from alembic import op

from ledger.tables import SUMS

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    # a new ledger has it from 0001 on, which makes every table that is declared
    SUMS.create(op.get_bind(), checkfirst=True)
