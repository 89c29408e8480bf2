"""What the router counted by key."""

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = (
    """create table if not exists team_readings (
    fleet varchar(128) not null, router varchar(64) not null, team varchar(64) not null,
    model varchar(256) not null, pool varchar(64) not null, at bigint not null, replica_ms bigint,
    tokens_in bigint, tokens_out bigint, unmetered bigint, primary key (fleet, router, team, model, pool, at)
) {without_rowid}""",
)


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    without_rowid = "without rowid" if is_sqlite else ""
    for statement in STATEMENTS:
        op.execute(statement.format(without_rowid=without_rowid))
