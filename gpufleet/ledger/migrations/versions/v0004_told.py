"""Hours whose alerts were told."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute("""
create table if not exists told_hours (
    fleet varchar(128) not null, hour bigint not null, primary key (fleet, hour)
)
""")
