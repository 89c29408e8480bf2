"""What the router counted by key."""

from alembic import op

from ledger.tables import TEAM_READINGS

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    # a new ledger has it from 0001 on, which makes every table that is declared
    TEAM_READINGS.create(op.get_bind(), checkfirst=True)
