"""Which accounts use a shared reservation."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("alter table reservation_seats add column accounts text")
