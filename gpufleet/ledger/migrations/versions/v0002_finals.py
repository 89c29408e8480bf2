"""What bills said of spans of the ledger."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("""
create table if not exists finals (
    fleet varchar(128) not null, since bigint not null, until bigint not null, digest varchar(64) not null,
    form varchar(64) not null, billed_usd varchar(60) not null, computed_usd varchar(60) not null,
    at bigint not null, primary key (fleet, since, until, digest)
)
""")
