"""What was known of a span when a bill closed it."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.execute("alter table finals add column facts text")
