"""Which accounts use a shared reservation."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.execute("alter table reservation_seats add column accounts text")
