"""Whether a look read all paid capacity: what one that did not lacks may still be there."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.execute("alter table passes add column paid integer")
